"""Answers to the lines of a command: computed in chunks, and printed in the order of the lines, beside the rows of a table."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from flaxformer_lite.cli.input_lines import LineChunk

Answer = TypeVar("Answer")


class Answering(ABC, Generic[Answer]):
    """A way to answer lines; each command of lines has one, with the run and the options that it answers by."""

    @property
    def beside(self) -> Sequence[str]:
        """Names of the columns of an answer, which is then printed behind its row of a table; (): answers alone."""
        return ()

    def check(self, block: LineChunk, number: int) -> None:
        """Raises: ValueError, with the place, if line `number` of a chunk has no answer."""
        return

    @abstractmethod
    def answers(self, block: LineChunk) -> Iterable[Answer]:
        """Returns the answer to each line of a chunk."""

    @abstractmethod
    def written(self, index: int, answer: Answer) -> Sequence[str]:
        """Returns an answer as it is printed: no line, one, or several. `index` counts the input lines from 0."""

    def unanswered(self, index: int) -> Sequence[str]:
        """Returns the printed lines of a bad line."""
        return [""]


def answer_lines(blocks: Iterable[LineChunk], answering: Answering[Answer]) -> None:
    """Prints the answers to all lines, in their order, after each chunk."""
    header, beside = list[str](), answering.beside
    for block in blocks:
        if beside and block.table is not None and block.table.names and block.table.names != header:
            header = block.table.names
            print(block.table.form.line([*header, *beside]))
        for number, lines in enumerate(printed(block, answering)):
            for line in lines:
                print(block.beside(number, line, len(beside)) if beside else line)
        sys.stdout.flush()


def printed(block: LineChunk, answering: Answering[Answer]) -> Iterator[Sequence[str]]:
    """Yields for each line of a chunk the lines that are printed."""
    index = block.index
    for lines in block.answerable(answering.check):
        if lines is None:
            yield answering.unanswered(index)
            index += 1
            continue
        for answer in answering.answers(lines):
            yield answering.written(index, answer)
            index += 1
