"""Draws a real terminal session as an SVG: `python docs/pictures/terminal.py OUT.svg "COMMAND" ["COMMAND" …]`.

Each command runs in a shell. Its output is drawn as it came; of more than 24 lines the first 8 and the last 14 remain.
"""

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

HEAD, TAIL = 8, 14


def session(commands: list[str]) -> list[Text]:
    """Returns the lines that the commands print, each after its prompt."""
    lines = []
    for command in commands:
        done = subprocess.run(
            command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        )
        printed = done.stdout.rstrip("\n").splitlines()
        if len(printed) > HEAD + TAIL + 2:
            printed = [*printed[:HEAD], "  …", *printed[-TAIL:]]
        lines += [Text(f"$ {command}", "bold green"), *map(Text, printed)]
    return lines


if __name__ == "__main__":
    out, *commands = sys.argv[1:]
    console = Console(record=True, width=118, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(Text("\n").join(session(commands)), soft_wrap=True)
    svg = console.export_svg(title="flaxformer_lite")
    # The fonts of the reader's machine: the page loads nothing from elsewhere.
    Path(out).write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")
