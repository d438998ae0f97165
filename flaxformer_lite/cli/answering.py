"""Answers to the lines of a command: computed in chunks, and printed in the order of the lines, beside the rows of a table."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from flaxformer_lite.cli.input_lines import LineChunk
from flaxformer_lite.tasks.lines import Columns

AnswerT = TypeVar("AnswerT")


class Answering(ABC, Generic[AnswerT]):
    """A way to answer lines; each command of lines has one, with the run and the options that it answers by."""

    @property
    def columns(self) -> Columns[AnswerT]:
        """The columns of an answer, which stand behind the row of a table; {}: it has lines of its own (`written`)."""
        return {}

    def read(self, block: LineChunk, number: int) -> Any:
        """Returns what `answers` gets of line `number` of a chunk, in `block.read`.

        Raises: ValueError, with the place, if the line has no answer.
        """
        return block.lines[number]

    @abstractmethod
    def answers(self, block: LineChunk) -> Iterable[AnswerT]:
        """Returns the answer to each line of a chunk."""

    def written(self, index: int, answer: AnswerT) -> Sequence[Sequence[str]]:
        """Returns an answer as it is printed, each line as its cells: by default one, of its columns.

        index: the number of the input line, from 0.
        """
        return [[cell(answer) for cell in self.columns.values()]]

    def unanswered(self, index: int) -> Sequence[Sequence[str]]:
        """Returns the printed lines of a bad line, each as its cells."""
        return [[]]


def answer_lines(blocks: Iterable[LineChunk], answering: Answering[AnswerT]) -> None:
    """Prints the answers to all lines, in their order, after each chunk.

    Raises: ValueError in the end, if no line has an answer.
    """
    refused = set[bool]()
    for block, header in with_headers(blocks, answering):
        for line in printed(block, answering, header):
            print(line)
        sys.stdout.flush()
        refused.add(block.is_refused)
    if refused == {True}:
        raise ValueError("no line has an answer: correct the lines as the warnings say")


def with_headers(
    blocks: Iterable[LineChunk], answering: Answering[AnswerT]
) -> Iterator[tuple[LineChunk, Sequence[str]]]:
    """Yields each chunk with the header that is printed before its answers; (): none, or that of the chunk before."""
    header = list[str]()
    for block in blocks:
        names = [] if block.table is None or not answering.columns else block.table.names
        is_new = names not in ([], header)
        header = names or header
        yield block, [*names, *(free(column, names) for column in answering.columns)] if is_new else []


def free(column: str, names: Sequence[str]) -> str:
    """Returns a name for a further column of a table that has columns of these names: another one if the table has it already."""
    while column in names:
        column = f"predicted_{column}"
    return column


def printed(block: LineChunk, answering: Answering[AnswerT], header: Sequence[str] = ()) -> Iterator[str]:
    """Yields the lines that are printed for a chunk."""
    table = block.table
    width = len(answering.columns)
    if header and table is not None:
        yield table.form.line(header)
    for number, lines in enumerate(printed_of_lines(block, answering)):
        for cells in lines:
            if table is None or not width:
                yield "\t".join(cells)
            else:
                yield table.form.line([*block.rows[number].cells, *cells, *[""] * (width - len(cells))])


def printed_of_lines(block: LineChunk, answering: Answering[AnswerT]) -> Iterator[Sequence[Sequence[str]]]:
    """Yields for each line of a chunk the lines that are printed, each as its cells."""
    index = block.index
    for lines in block.answerable(answering.read):
        if lines is None:
            yield answering.unanswered(index)
            index += 1
            continue
        for answer in answering.answers(lines):
            yield answering.written(index, answer)
            index += 1
