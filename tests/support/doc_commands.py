"""The commands that README.md and docs/ show."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

PAGES = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "notebooks/README.md", "benchmarks/README.md", "lab/recipes.md")
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))

BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.M | re.S)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
OURS = re.compile(
    r"^[!$ ]*((?:[A-Z_]+=\S+ +)*)(?:flaxformer-lite|python -m flaxformer_lite|(?:srun )?python (?=train\.py)) *([a-z].*)$"
)
"""A line with a command of the package: what is set in the environment before it, and its words."""


@dataclass(frozen=True)
class DocCommand:
    """A command of the package as a page shows it."""

    page: str
    text: str
    """The whole command, without comment, redirection and what is piped into it."""

    @property
    def words(self) -> list[str]:
        """The words after the program; `train` is the first of `python train.py`."""
        found = OURS.match(self.text)
        assert found is not None
        return ["train" if word == "train.py" else word for word in shlex.split(found[2], comments=True)]


def commands_of(page: Path) -> Iterator[DocCommand]:
    """Yields the commands in a page's blocks, then those in its sentences, without the brackets of optional words."""
    text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
    lines = [
        line
        for block in BLOCK.finditer(text)
        if block[2] in ("", "sh", "bash", "console")
        for line in logical(block[3])
    ]
    lines += SPAN.findall(BLOCK.sub("", text))
    for line in lines:
        for part in re.split(r"&&|;|\|(?! )|\| |(?<!&)&(?!&)", line):
            if OURS.match(part.strip()) and "…" not in part:
                yield DocCommand(name, cleaned(part))


def python_blocks(page: Path) -> list[str]:
    """Returns the Python code of a page, block by block."""
    return [block[3] for block in BLOCK.finditer(page.read_text(encoding="utf-8")) if block[2] == "python"]


def logical(block: str) -> list[str]:
    """Returns the lines of a block, those that end in a backslash joined with the next."""
    return re.sub(r"\\\n\s*", "", block).splitlines()


def cleaned(command: str) -> str:
    """Returns a command without comment, redirections and the brackets of optional words."""
    command = re.sub(r"\s#.*$", "", command.strip())
    command = re.sub(r"\s\d?[<>]+\s*(&\d|\S+)", "", command)
    return " ".join(re.sub(r"(?<=\s)\[([^\]]+)\]|(?<=NAME)\[[^\]]+\]", r"\1", command).split())
