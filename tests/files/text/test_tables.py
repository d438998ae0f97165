"""Oracle: rows written by hand; a row that is written is read again as it was."""

import csv
import io

import pytest

from flaxformer_lite.files.text.tables import (
    FileTable,
    Format,
    best_delimiter,
    container,
    is_blank,
    open_table,
    require_lines,
)

CELLS = ["7", 'say "hi", he', "two\tparts", ""]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_quoted_row_is_read_as_it_was_written(delimiter: str):
    """Each odd text alone in its row, first and last, and beside others; read here and by Python's library."""
    form = Format(delimiter, quoted=True)
    odd = [
        "a\nb",
        "a\r\nb",
        "a\rb",
        "\n",
        "\r",
        " a",
        "a ",
        " ",
        '"',
        '""',
        'a"b',
        "a\0b",
        "a,;\t|b",
        "\x0b\x0c\x1c\x85\u2028",
        "-",
        "'",
    ]
    rows = [CELLS, odd, *([one, "b"] for one in odd), *(["a", one] for one in odd), *([one] for one in ["", *odd])]
    for row in rows:
        written = form.line(row)
        assert [cells for _, cells in form.rows(written.split("\n"), "x")] == [row]
        assert [*csv.reader(io.StringIO(written, newline=""), delimiter=delimiter, strict=True)] == [row]


def test_a_row_between_tabs_has_no_tab_in_a_cell():
    form = Format()
    assert list(form.rows([form.line(CELLS)], "x")) == [(1, [*CELLS[:2], "two parts", ""])]


def test_the_delimiter_is_the_one_that_divides_the_rows_evenly():
    """A comma before a space belongs to a sentence."""
    assert best_delimiter(["one, two;eins", "three;drei, vier", "five;fünf"]) == ";"
    assert best_delimiter(["one, two;eins, zwei", "three, four;drei, vier"]) == ";"
    assert best_delimiter(["one,eins", "two,zwei"]) == ","
    assert open_table(["a;b", "c;d"], "x.csv", header=False).form == Format(";", quoted=True)
    assert open_table(['"a\rb";c', '"d\re";f'], "x.csv", header=False).form == Format(";", quoted=True)
    assert open_table(["a\tb", "c\td"], "x.tsv", header=False).form == Format()


def test_a_row_is_compared_with_the_usual_width_or_with_the_header():
    table = FileTable(["a\tb", "c\td\te", "f\tg"], "x", Format(), header=False)
    table.width = table.usual_width()
    wrong = [table.wrong(cells, 1) for _, cells in table.rows]
    assert wrong == ["", "3 column(s) between tabs, but the first rows have 2", ""]
    named = FileTable(["en\tde", "c"], "x", Format(), header=True)
    assert [named.wrong(cells, 1) for _, cells in named.rows] == [
        "1 column(s) between tabs, but column 1, counted from 0, is needed"
    ]
    assert named.number("de") == 1
    with pytest.raises(ValueError, match="x:1: the header has no columns 'fr': it is en, de"):
        named.number("fr")


def test_a_header_is_looked_for_in_the_columns_that_are_read():
    rows = ["id\ttext", *(f"{i}\ta long sentence of number {i}" for i in range(4))]
    table = FileTable(rows, "x", Format(), header=False)
    table.width = table.usual_width()
    assert table.header_in([1]) == ["text"] and table.header_in([0]) == []
    assert FileTable(rows, "x", Format(), header=True).header_in([1]) == []


def test_files_that_have_no_lines_are_known_by_their_names():
    for path, kind in (("a.csv.gz", "a table"), ("a.JSONL", "JSON lines"), ("a.parquet", "Parquet"), ("a.csv.en", "")):
        assert container(path) == kind
    with pytest.raises(ValueError, match=r"a\.tsv is a table by its name, and is read line by line: give"):
        require_lines("a.tsv")


def test_white_space_is_no_text():
    assert is_blank(["", " ", "\u3000"]) and is_blank([]) and not is_blank(["", "x"])


@pytest.mark.parametrize(
    ("name", "line", "learned", "cells"),
    [
        ("a.tsv", '"a ""b"""\tc', None, ['a "b"', "c"]),
        ("a.tsv", '"a ""b"""\tc', Format(), ['"a ""b"""', "c"]),
        ("a.tsv", '"a ""b"""\tc', Format("\t", quoted=True), ['a "b"', "c"]),
        ("a.tsv", "a;b\tc", Format(";", quoted=True), ["a;b", "c"]),
        ("a.csv", "Go;now, Geh", None, ["Go", "now, Geh"]),
        ("a.csv", "Go;now, Geh", Format(",", quoted=True), ["Go;now", " Geh"]),
        ("a.csv", "a#b", Format("#", quoted=True), ["a", "b"]),
        ("a.csv", "a,b", Format(), ["a", "b"]),
    ],
)
def test_a_file_of_the_kind_that_was_learned_is_read_as_it_was(
    name: str, line: str, learned: Format | None, cells: list[str]
):
    """By hand: quotes and delimiter of the training, for a file of that kind by its name; another kind is read by its rows."""
    (row,) = open_table([line], name, header=False, learned=learned).rows
    assert row[1] == cells
