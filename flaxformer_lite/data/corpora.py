"""Plain text for language models: files, and the documentation topics of Python itself.

A document is a `Pair` with an empty source. The sources of text_files.py and hub.py read documents too, if their source field
or column is None.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flaxformer_lite.data.dates import split_mix_64
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.source import DataSource
from flaxformer_lite.text.files import matching_files, read_lines


@dataclass(frozen=True, kw_only=True)
class PlainText(DataSource):
    """Text files, plain or gzipped, UTF-8."""

    kind: Literal["plain_text"] = "plain_text"
    path: str
    """The file or URL, or a pattern for several, sorted by name: `books/*.txt`, `books/**/*.txt.gz`."""
    documents: Literal["file", "lines", "paragraphs"] = "file"
    """Unit of a document: a whole file, a line, or a paragraph between blank lines. Blank documents are left out."""

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """Returns all documents in order. Raises: ValueError for anything wrong with the files, or if they have no text."""
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
class PythonDocs(DataSource):
    """The topics of Python's own `help()`: about 470,000 characters of English and code, without any download.

    Another version of Python has a slightly different text. Topics repeat each other, so the training topics leave out every
    paragraph that occurs in a held-out topic.
    """

    kind: Literal["python_docs"] = "python_docs"
    split: Literal["train", "held_out"] = "train"
    """The part of the topics. A hash of its name holds out about one topic in twenty."""

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        """Returns a document for each topic, by name. Raises: ValueError if this Python lacks its documentation topics."""
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise ValueError(
                "this Python lacks pydoc_data, its documentation topics: use a Python that has it, or the source PlainText"
            ) from None
        kept, rest = ([name for name in sorted(topics) if held_out(name) == side] for side in (True, False))
        if self.split == "held_out":
            return [Pair("", without(topics[name], set())) for name in kept]
        excluded = {text for name in kept for text in paragraphs(topics[name].split("\n"))}
        return [Pair("", without(topics[name], excluded)) for name in rest]


def held_out(name: str) -> bool:
    """Returns whether the topic of that name is held out from training."""
    # With 3 as its first number, the hash holds out 5 to 6 % of the text, in topics of many sizes.
    return split_mix_64(3, *name.encode()) % 20 == 0


def paragraphs(lines: Sequence[str]) -> list[str]:
    """Returns the groups of lines between blank lines."""
    return ["\n".join(group) for filled, group in itertools.groupby(lines, lambda line: bool(line.strip())) if filled]


def without(text: str, excluded: set[str]) -> str:
    """Returns the paragraphs of the text that are not excluded, with a blank line between them."""
    return "\n\n".join(paragraph for paragraph in paragraphs(text.split("\n")) if paragraph not in excluded) + "\n"
