"""Draws a real terminal session as an SVG: `python docs/pictures/terminal.py OUT.svg "COMMAND" ["COMMAND" …]`.

Each command runs in a terminal, which pyte emulates. What stands there when it ends is drawn; of more than 24 lines the first 8
and the last 14 remain.

`python docs/pictures/terminal.py --at WORDS OUT.svg "COMMAND"` draws the terminal at the moment when WORDS stand on it, and then
stops the command.
"""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

HEAD, TAIL = 8, 14
COLUMNS, LINES = 118, 24
MOST_LINES = 500


def session(commands: list[str]) -> list[Text]:
    """Returns the lines that the commands print, each after its prompt."""
    lines = []
    for command in commands:
        prompt, *printed = screen(command)
        if len(printed) > HEAD + TAIL + 2:
            printed = [*printed[:HEAD], Text("  …"), *printed[-TAIL:]]
        lines += [prompt, *printed]
    return lines


def screen(command: str, words: str = "") -> list[Text]:
    """Returns the prompt and the lines on the terminal of a command, with their colours.

    They are those of its end, or of the moment when all `words`, with "|" between them, stand there.
    """
    height = LINES if words else MOST_LINES
    emulator = pyte.Screen(COLUMNS, height)
    stream = pyte.ByteStream(emulator)
    process, terminal = pty.fork()
    if process == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp("sh", ["sh", "-c", command])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, COLUMNS, 0, 0))
    with contextlib.suppress(OSError):  # the command has ended
        while not words or not all(word in "\n".join(emulator.display) for word in words.split("|")):
            stream.feed(os.read(terminal, 65536))
        os.killpg(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if status and not words:
        raise SystemExit(f"{command} failed")
    lines = [Text(f"$ {command}", "bold green")]
    for number in range(height):
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
