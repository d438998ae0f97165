"""Draws a real terminal session as an SVG: `python docs/pictures/terminal.py OUT.svg "COMMAND" ["COMMAND" …]`.

Each command runs in a shell. Its output is drawn as it came; of more than 24 lines the first 8 and the last 14 remain.

`python docs/pictures/terminal.py --at WORDS OUT.svg "COMMAND"` draws the screen of a terminal in which the command runs, at the
moment when WORDS stand on it, and then stops the command. It needs pyte, a terminal emulator.
"""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

HEAD, TAIL = 8, 14
COLUMNS, LINES = 118, 24


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


def screen(command: str, words: str) -> list[Text]:
    """Returns the lines on the terminal of a running command, with their colours, at the moment when `words` stand there."""
    import pyte

    emulator = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(emulator)
    process, terminal = pty.fork()
    if process == 0:
        os.execvp("sh", ["sh", "-c", f"exec {command}"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    with contextlib.suppress(OSError):  # the command has ended
        while not all(word in "\n".join(emulator.display) for word in words.split("|")):
            stream.feed(os.read(terminal, 65536))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    lines = [Text(f"$ {command}", "bold green")]
    for number in range(LINES):
        line = Text()
        for column in range(COLUMNS):
            cell = emulator.buffer[number][column]
            line.append(cell.data, None if cell.fg == "default" else colour(cell.fg))
        line.rstrip()
        lines.append(line)
    while not lines[-1].plain:
        lines.pop()
    return lines


def colour(name: str) -> str:
    """Returns pyte's name of a colour as Rich's."""
    return f"#{name}" if re.fullmatch(r"[0-9a-f]{6}", name) else {"brown": "yellow"}.get(name, name)


if __name__ == "__main__":
    live = sys.argv[1] == "--at"
    out, *commands = sys.argv[3 if live else 1 :]
    drawn = screen(commands[0], sys.argv[2]) if live else session(commands)
    console = Console(record=True, width=COLUMNS, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    console.print(Text("\n").join(drawn), soft_wrap=True)
    svg = console.export_svg(title="flaxformer_lite")
    # The fonts of the reader's machine: the page loads nothing from elsewhere.
    Path(out).write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), encoding="utf-8")
