"""Tables in text files: rows of cells between tabs, commas or another character. One check of their columns and of a header."""

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from flaxformer_lite.base.console import warn
from flaxformer_lite.files.text.files import LONGEST_LINE

MOST_COMPARED = 101
"""Rows at the start of a file that decide on its columns and its header."""
DELIMITERS = (",", ";", "\t", "|")
"""The characters that programs write between two columns of a CSV."""
EVEN = 0.9
"""The share of rows of one width from which a delimiter is believed."""
CELL_CHARACTERS = 30
"""Characters of a cell in messages."""

NumberedCells = tuple[int, list[str]]
"""The number of the first line of a row, from 1, and the row's cells; for a blank line, cells without text."""

CONTAINERS = {
    ".csv": "a table",
    ".tsv": "a table",
    ".tab": "a table",
    ".json": "JSON",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".conll": "CoNLL columns",
    ".conllu": "CoNLL columns",
    ".parquet": "Parquet",
    ".arrow": "Arrow",
    ".xlsx": "a workbook",
    ".xls": "a workbook",
    ".ods": "a workbook",
    ".tmx": "a translation memory",
    ".xlf": "XLIFF",
    ".xliff": "XLIFF",
}
"""The containers whose texts are not lines, by the ends of their files' names."""


def is_blank(cells: Sequence[str]) -> bool:
    """Returns whether a row has no text, which every reader takes for an empty row."""
    return not "".join(cells).strip()


def columns_in(line: str) -> list[str]:
    """Returns the columns of a line between tabs, or without a tab between spaces; other spaces, such as U+00A0, end no word."""
    return line.split("\t") if "\t" in line else list(filter(None, line.split(" ")))


def container(path: str) -> str:
    """Returns the container of texts that a file has by its name, compressed or not; an empty text if it may have lines."""
    name = re.sub(r"\.(gz|bz2|xz|zst)$", "", path.lower())
    return next((kind for end, kind in CONTAINERS.items() if name.endswith(end)), "")


def require_lines(path: str, remedy: str = "give a file with one text a line, or rename it if it is one") -> None:
    """Raises: ValueError if a file is a table or another container of texts by its name."""
    kind = container(path)
    if kind:
        raise ValueError(f"{path} is {kind} by its name, and is read line by line: {remedy}")


class Format(NamedTuple):
    """The way in which rows are written."""

    delimiter: str = "\t"
    quoted: bool = False
    """Whether a cell may stand in double quotes, as RFC 4180 has it. False: each line is a row, and a quote is a quote."""

    @property
    def between(self) -> str:
        """The name of the delimiter in messages."""
        return repr(self.delimiter) if self.quoted else "tabs"

    def line(self, cells: Sequence[str]) -> str:
        """Returns a row as it is written, without the end of its line."""
        if not self.quoted:
            return self.delimiter.join(cell.replace(self.delimiter, " ") for cell in cells)
        written = io.StringIO()
        # Up to Python 3.12 a cell is quoted for the line ends of the writer, and for no others: its own are \r\n.
        csv.writer(written, delimiter=self.delimiter).writerow(cells)
        return written.getvalue()[:-2]

    def rows(self, lines: Iterable[str], file: str) -> Iterator[NumberedCells]:
        """Yields the cells of each row. Raises: ValueError with file and line if quotes are wrong."""
        if not self.quoted:
            yield from ((number, line.split(self.delimiter)) for number, line in enumerate(lines, 1))
            return
        reader = csv_reader(lines, self.delimiter, strict=True)
        while True:
            number = reader.line_num + 1
            try:
                yield number, next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise ValueError(
                    f"{file}:{number}: not CSV ({error}); a text with a quote, {self.between} or a line break must stand in "
                    "double quotes, and each quote inside twice"
                ) from None


def csv_reader(lines: Iterable[str], delimiter: str, strict: bool) -> Any:
    """Returns the reader of Python's library. strict: wrong quotes raise csv.Error."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # 131,072 characters by default
    return csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=strict)


class DelimiterFit(NamedTuple):
    """The evenness with which a delimiter divides the first rows of a CSV."""

    share: float
    """The share of the rows that have the usual number of columns; 0 if that is one."""
    punctuation: int
    """The negative number of places before a space, where a comma belongs to a sentence; 0 if the share is 0."""
    width: int
    """The usual number of columns."""


def fit_of_delimiter(lines: Sequence[str], delimiter: str) -> DelimiterFit:
    whole = [line.replace("\r", " ") for line in lines]  # the csv module raises for one outside of quotes
    rows = csv_reader(whole, delimiter, strict=False)  # the last cell may be cut
    widths = Counter(len(cells) for cells in rows if any(cells))
    usual = max(widths, key=lambda width: widths[width], default=0)
    if usual < 2:
        return DelimiterFit(0.0, 0, usual)
    return DelimiterFit(widths[usual] / widths.total(), -sum(line.count(delimiter + " ") for line in lines), usual)


def best_delimiter(lines: Sequence[str]) -> str:
    """Returns the delimiter that gives most of the first lines of a CSV the same number of columns; "," if none does."""
    return max(DELIMITERS, key=lambda delimiter: fit_of_delimiter(lines, delimiter)[:2])


def better_delimiter(lines: Sequence[str], chosen: str, least: int) -> str | None:
    """Returns the delimiter that the first lines of a CSV seem to have in place of the chosen one; None if none is better.

    least: the number of columns that are needed. A single line with that many columns decides nothing.
    """
    best = best_delimiter(lines)
    if best == chosen or fit_of_delimiter(lines, best).share < EVEN:
        return None
    return best if len(lines) > 1 or fit_of_delimiter(lines, chosen).width < least else None


class FileTable:
    """The rows of one file, with the names in its header and the number of its columns."""

    def __init__(self, lines: Iterable[str], file: str, form: Format, header: bool, width: int = 0) -> None:
        """form: how rows are written. width: the number of columns if it is known from elsewhere; 0: the first rows say it.

        Raises: ValueError if the first row, or the header, is no row of such a table.
        """
        self.file, self.form, self.header = file, form, header
        rows = form.rows(lines, file)
        self.names = [name.strip() for name in next(rows, (1, []))[1]] if header else []
        self.first = list(itertools.islice(rows, MOST_COMPARED))
        self.rows = itertools.chain(self.first, rows)
        self.width = len(self.names) or width

    def usual_width(self, least: int = 1) -> int:
        """Returns the usual number of columns of the first rows that have at least `least`; 0 without such rows."""
        widths = Counter(len(cells) for _, cells in self.first if len(cells) >= least and any(cells))
        return max(widths, key=lambda width: widths[width], default=0)

    def number(self, column: int | str) -> int:
        """Returns the number of a column. Raises: ValueError if the header does not have its name, or has it twice."""
        if isinstance(column, int):
            return column
        if self.names.count(column) != 1:
            count = self.names.count(column) or "no"
            raise ValueError(f"{self.file}:1: the header has {count} columns {column!r}: it is {', '.join(self.names)}")
        return self.names.index(column)

    def wrong(self, cells: Sequence[str], last: int) -> str:
        """Returns what is wrong with the number of a row's columns; an empty text for nothing. last: the last column needed."""
        if len(cells) <= last:
            needed = f"column {last}, counted from 0, is needed"
        elif self.width and len(cells) != self.width:
            needed = f"the {'header has' if self.header else 'first rows have'} {self.width}"
        else:
            return ""
        return f"{len(cells)} column(s) between {self.form.between}, but {needed}"

    def shown(self) -> str:
        """Returns the columns as a person sees them: the number of each and its name, or its text in the first row."""
        cells = self.names or next((cells for _, cells in self.first if any(cells)), [])
        texts = (cell if len(cell) <= CELL_CHARACTERS else f"{cell[:CELL_CHARACTERS]}…" for cell in cells)
        return ", ".join(f"{number} {text!r}" for number, text in enumerate(texts))

    def numbers_alone(self, column: int) -> bool:
        """Returns whether a column looks like the numbers of rows: in each of the first rows, two or more, digits and no text."""
        texts = [cells[column].strip() for _, cells in self.first if len(cells) > column and any(cells)]
        return len(texts) > 1 and all(map(str.isdecimal, texts))

    def header_in(self, columns: Sequence[int]) -> list[str]:
        """Returns the texts of the first row in these columns if they look like names, and the table has no header; else none."""
        if self.header:
            return []
        rows = [[cells[column] for column in columns] for _, cells in self.first if len(cells) == self.width]
        return rows[0] if rows and looks_like_a_header(rows) else []


def is_quoted(cell: str) -> bool:
    """Returns whether a cell stands in double quotes, with each quote inside twice."""
    return len(cell) > 1 and cell[0] == cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "")


MISQUOTED = re.compile(r'(?:^|\t)"(?:[^"]|"")*"[^"\t]')
"""A cell that goes on behind its closing quote."""


def looks_quoted(lines: Sequence[str]) -> bool:
    """Returns whether the cells between tabs seem to be quoted: one has doubled quotes inside, or all in three rows or more are.

    They are not where a cell goes on behind its closing quote.
    """
    if any(map(MISQUOTED.search, lines)):
        return False
    rows = [line.split("\t") for line in lines if line.strip()]
    cells = list(itertools.chain.from_iterable(rows))
    if any('""' in cell[1:-1] and is_quoted(cell) for cell in cells):
        return True
    all_quoted = all(is_quoted(cell) or cell.isdecimal() for cell in cells)
    return len(rows) > 2 and all_quoted and '"' in lines[0]


def open_table(lines: Iterable[str], file: str, header: bool, learned: Format | None = None) -> FileTable:
    """Returns the table of a file that no settings describe: a CSV by its name, with the delimiter that fits, or a TSV.

    learned: the format of the training texts. A file of that kind has the same, unless its first rows fit another delimiter.
    Without it, a TSV whose first rows seem quoted is read with quotes, like a CSV; a warning then says so.
    """
    rest = iter(lines)
    start = list(itertools.islice(rest, MOST_COMPARED))
    is_csv = re.search(r"\.csv(\.(gz|bz2|xz|zst))?$", file.lower()) is not None
    if learned is not None:
        of_this_kind = learned.quoted if is_csv else learned.delimiter == "\t"
        learned = learned if of_this_kind and better_delimiter(start, learned.delimiter, 2) is None else None
    if learned is not None:
        form = learned
    elif is_csv:
        form = Format(best_delimiter(start), quoted=True)
    else:
        form = Format(quoted=looks_quoted(start))
        if form.quoted:
            warn(
                f"{file}: its cells stand in double quotes, which are left out of the texts; a source tsv would have them"
            )
    return FileTable(itertools.chain(start, rest), file, form, header)


def looks_like_a_header(rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether the texts of the first row are names of columns: each is a word, much shorter than the texts below it."""
    first = rows[0]
    others = [row for row in rows[1:] if len(row) == len(first)]
    if not first or len(others) <= 2:
        return False
    for i, text in enumerate(first):
        usual = median(len(row[i]) for row in others)
        if not re.fullmatch(r"\w[\w.-]*\w", text) or 2 * len(text) > usual:
            return False
    return True
