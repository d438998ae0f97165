"""Plain text to learn a language from: files, and the documentation topics that every Python has.

A document is a `Pair` with an empty source. The sources of tables in `sources.py` give documents too, where their source field
is None.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flaxformer_lite.data.dates import mix
from flaxformer_lite.data.records import Pair
from flaxformer_lite.text.files import matching_files, read_lines


@dataclass(frozen=True, kw_only=True)
class PlainText:
    """Text files, plain or gzipped, UTF-8."""

    kind: Literal["plain_text"] = "plain_text"
    path: str
    """The file, or several by a pattern: `books/*.txt`, `books/**/*.txt.gz`; they come in the order of their names."""
    documents: Literal["file", "lines", "paragraphs"] = "file"
    """What one document is: a whole file, a line, or what stands between empty lines. Empty ones are left out."""

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """All documents in order. Raises: ValueError for anything wrong with the files, or where there is no text in them."""
        texts = [text for path in matching_files(self.path) for text in self._documents(read_lines(path))]
        if not texts:
            raise ValueError(f"{self.path}: no text in it")
        return [Pair("", text) for text in texts]

    def _documents(self, lines: list[str]) -> list[str]:
        if self.documents == "file":
            texts = ["\n".join(lines)]
        elif self.documents == "lines":
            texts = lines
        else:
            texts = paragraphs(lines)
        return [text for text in texts if text.strip()]


@dataclass(frozen=True, kw_only=True)
class PythonDocs:
    """The topics of Python's own `help()`: about 470,000 characters of English and code, on every machine, no network.

    The text is that of the Python that runs, so another version of it is a slightly different corpus. Topics repeat each other:
    a paragraph that a held-out topic has is left out of the training topics.
    """

    kind: Literal["python_docs"] = "python_docs"
    split: Literal["train", "held_out"] = "train"
    """About one topic in twenty is held out, chosen by its name."""

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """A document for each topic, by name. Raises: ValueError where this Python came without its documentation topics."""
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise ValueError(
                "this Python came without pydoc_data, its documentation topics: use one that has it, or PlainText"
            ) from None
        kept, rest = ([name for name in sorted(topics) if held_out(name) == side] for side in (True, False))
        if self.split == "held_out":
            return [Pair("", without(topics[name], set())) for name in kept]
        secret = {text for name in kept for text in paragraphs(topics[name].split("\n"))}
        return [Pair("", without(topics[name], secret)) for name in rest]


def held_out(name: str) -> bool:
    """Whether the topic of that name is kept from training."""
    # Of the first few hashes tried, 3 is one that holds out 5 to 6 % of the text in topics of many sizes.
    return mix(3, *name.encode()) % 20 == 0


def paragraphs(lines: Sequence[str]) -> list[str]:
    """What stands between empty lines."""
    return ["\n".join(group) for filled, group in itertools.groupby(lines, lambda line: bool(line.strip())) if filled]


def without(text: str, secret: set[str]) -> str:
    """The text's paragraphs, an empty line between them, but for those that are `secret`."""
    return "\n\n".join(paragraph for paragraph in paragraphs(text.split("\n")) if paragraph not in secret) + "\n"
