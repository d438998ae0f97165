"""Plain text for language models: files, and the documentation topics of Python itself.

A document is a `Pair` with an empty source. The sources of text_files.py and hub.py read documents too, if their source field
or column is None.
"""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from flaxformer_lite.base.bounds import Checked
from flaxformer_lite.data.dates import split_mix_64
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.source import DataSource, StreamedSource, warn_once
from flaxformer_lite.text.files import ReadProgress, file_versions, ignore_progress, line_chunks, matching_files


@dataclass(frozen=True, kw_only=True)
class PlainText(Checked, StreamedSource, at="plain_text"):
    """Text files, plain or compressed, UTF-8."""

    kind: Literal["plain_text"] = "plain_text"
    path: str
    """The file or URL, or a pattern for several, sorted by name: `books/*.txt`, `books/**/*.txt.gz`."""
    documents: Literal["file", "lines", "paragraphs"] = "file"
    """Unit of a document: a whole file, a line, or a paragraph between blank lines. Blank documents are left out."""

    def stream(self, setting: str | None = None, progress: ReadProgress = ignore_progress) -> Iterator[Pair]:
        files, found, longest = matching_files(self.path), 0, 0
        for number, file in enumerate(files):
            chunks = line_chunks(file, lambda fraction, before=number: progress((before + fraction) / len(files)))
            for text in self._documents(itertools.chain.from_iterable(chunks)):
                if text.strip():
                    found, longest = found + 1, max(longest, text.count("\n") + 1)
                    yield Pair("", text)
        if not found:
            raise ValueError(f"{self.path}: no text in it")
        if self.documents == "paragraphs" and found == 1 and longest > 1:
            warn_once(
                f"{self.path}: no blank line in its text, so its {longest:,} lines are one paragraph and one document: set "
                f"{setting or self.kind}.documents to 'lines' if each line is one"
            )

    def versions(self) -> list[str] | None:
        return file_versions(self.path)

    def _documents(self, lines: Iterator[str]) -> Iterator[str]:
        if self.documents == "file":
            return iter(["\n".join(lines)])
        return lines if self.documents == "lines" else paragraphs(lines)


@dataclass(frozen=True, kw_only=True)
class PythonDocs(Checked, DataSource, at="python_docs"):
    """The topics of Python's own `help()`: about 470,000 characters of English and code, without any download.

    Another version of Python has a slightly different text. Topics repeat each other, so the training topics leave out every
    paragraph that occurs in a held-out topic.
    """

    kind: Literal["python_docs"] = "python_docs"
    split: Literal["train", "held_out"] = "train"
    """The part of the topics. A hash of its name holds out about one topic in twenty."""

    def versions(self) -> list[str] | None:
        return [f"Python {sys.version}"]

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


def paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Yields the groups of lines between blank lines."""
    groups = itertools.groupby(lines, lambda line: bool(line.strip()))
    return ("\n".join(group) for filled, group in groups if filled)


def without(text: str, excluded: set[str]) -> str:
    """Returns the paragraphs of the text that are not excluded, with a blank line between them."""
    return "\n\n".join(paragraph for paragraph in paragraphs(text.split("\n")) if paragraph not in excluded) + "\n"
