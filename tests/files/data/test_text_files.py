"""Oracles: files written by hand, byte for byte, with the pairs or the message they must give."""

import csv
import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data.text_files import CSV, TSV, JSONLines, ParallelText, PlainText
from flaxformer_lite.files.records import Classes, Documents, Pairs
from flaxformer_lite.files.text.tables import open_table
from tests.support.files import PAIRS, file, message


def test_patterns_read_several_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, content in (("b.de", "zwei\n"), ("a.de", "eins"), ("a.en", "one\n"), ("b.en.gz", "two\n")):
        file(tmp_path, name, content, packed=name.endswith("gz"))
    source = ParallelText(source=f"{tmp_path}/*.de", target=f"{tmp_path}/*.en*")
    fractions: list[float] = []
    assert list(source.stream(None, fractions.append)) == [Pair("eins", "one"), Pair("zwei", "two")]
    assert fractions == [0.5, 1.0]
    assert [version.split()[0] for version in source.versions()] == [
        f"{tmp_path}/{n}" for n in ("a.de", "b.de", "a.en", "b.en.gz")
    ]
    table = [file(tmp_path, f"{n}.tsv", f"{n}\tx\n") for n in (1, 2)]
    assert TSV(path=f"{tmp_path}/?.tsv").open() == [Pair("1", "x"), Pair("2", "x")]
    before = TSV(path=table[0]).versions()
    file(tmp_path, "1.tsv", "longer\tx\n")
    assert TSV(path=table[0]).versions() != before


def test_files_of_a_pattern_belong_together_one_by_one(tmp_path: Path) -> None:
    """Two cut files whose lines add up would shift every pair after the first cut."""
    for name, content in (("1.de", "a\nb\nc\n"), ("2.de", "d\ne\n"), ("1.en", "a\nb\n"), ("2.en", "c\nd\ne\n")):
        file(tmp_path, name, content)
    source = ParallelText(source=f"{tmp_path}/*.de", target=f"{tmp_path}/*.en")
    assert message(source).startswith(f"3 lines in {tmp_path}/1.de but 2 in {tmp_path}/1.en: ")
    file(tmp_path, "3.en", "x\n")
    assert message(source).startswith(f"{tmp_path}/*.de matches 2 files but {tmp_path}/*.en 3: ")


def test_a_bad_row_of_a_pattern_is_named_by_its_own_file_and_line(tmp_path: Path) -> None:
    for n in (1, 2):
        file(tmp_path, f"{n}.jsonl", '{"source": "a", "target": "A"}\n' + "{a\n" * (n - 1))
        file(tmp_path, f"{n}.tsv", "a\tA\n" + "b\n" * (n - 1))
    assert message(JSONLines(path=f"{tmp_path}/*.jsonl")).startswith(f"{tmp_path}/2.jsonl:2: not JSON")
    assert message(TSV(path=f"{tmp_path}/*.tsv")).startswith(f"{tmp_path}/2.tsv:2: 1 column(s)")


def test_empty_files(tmp_path: Path) -> None:
    empty = file(tmp_path, "empty", "")
    for source in (
        ParallelText(source=empty, target=empty),
        TSV(path=empty),
        JSONLines(path=file(tmp_path, "empty", "", packed=True)),
    ):
        assert message(source) == f"{empty}: the file is empty"


def test_empty_sides_and_empty_lines_of_tables(tmp_path: Path) -> None:
    tsv = file(tmp_path, "x.tsv", "a\tA\n\n \tB\nc\t\n \nd\tD\n")
    assert message(TSV(path=tsv)).startswith(f"{tsv}:2: the source is empty")
    assert list(TSV(path=tsv, empty_lines="drop").open()) == [Pair("a", "A"), Pair("d", "D")]
    lines = ['{"source": "a", "target": "A"}', "", '{"source": "b", "target": " "}', '{"source": "d", "target": "D"}']
    json_lines = file(tmp_path, "x.jsonl", "\n".join(lines))
    assert message(JSONLines(path=json_lines)).startswith(f"{json_lines}:2: the source is empty")
    assert list(JSONLines(path=json_lines, empty_lines="drop").open()) == [Pair("a", "A"), Pair("d", "D")]
    blank = file(tmp_path, "blank", "\n\n")
    assert message(TSV(path=blank, empty_lines="drop")) == f"{blank}: no pair of sentences in it"


def test_rows_with_too_few_columns(tmp_path: Path) -> None:
    path = file(tmp_path, "x.tsv", "a\tA\tx\nb\tB\n")
    assert message(TSV(path=path, record=Pairs(source=0, target=2))).startswith(
        f"{path}:2: 2 column(s) between tabs, but column 2"
    )


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"record": Pairs(source=-1, target=1)}, r"tsv\.record\.source is -1: "),
        ({"record": Pairs(source=0, target=-2)}, r"tsv\.record\.target is -2: "),
        ({"record": Pairs(source=0, target=0)}, r"tsv\.record\.source and tsv\.record\.target are both 0: "),
        (
            {"record": Documents(text="en")},
            r"tsv\.record\.text is 'en', but tsv\.header is False, so .*: set it to True",
        ),
        ({"header": True, "record": Classes(text="x", label="x")}, r"tsv\.record\.text and .* are both 'x'"),
    ],
)
def test_impossible_columns(setting: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        TSV(path="x.tsv", **setting)


def test_quoted_fields_of_a_csv(tmp_path: Path) -> None:
    """Commas, quotes and line breaks inside double quotes; a byte order mark; a text longer than Python's own limit."""
    long = "x" * 200_000
    path = file(tmp_path, "x.csv", f'\ufeff"a, ""b""",A\r\n"c\r\n\r\nd", D \r\n{long},L\r\n')
    assert list(CSV(path=path).open()) == [Pair('a, "b"', "A"), Pair("c\n\nd", " D "), Pair(long, "L")]
    semicolons = file(tmp_path, "y.csv", "a,b;c\n")
    assert list(CSV(path=semicolons, delimiter=";").open()) == [Pair("a,b", "c")]
    for delimiter in ("", ", ", '"', "\n"):
        with pytest.raises(ValueError, match=r"^csv\.delimiter is .*: it must be one character, and not a quote$"):
            CSV(path=path, delimiter=delimiter)


def test_rows_of_a_csv_are_named_by_their_first_line(tmp_path: Path) -> None:
    """A text of three lines comes before; a text with a comma but no quotes would shift the columns."""
    before = 'a,A\n"b\n\nb",B\n'
    for row, expected in (
        ("c,d,C\n", "3 column(s) between ',', but the first rows have 2"),
        ("c\n", "1 column(s) between ',', but column 1, counted from 0, is needed"),
        ("\n", "the source is empty; correct the data"),
        (",C\n", "the source is empty; correct the data"),
        ('"c,C\nd,D\n', "not CSV (unexpected end of data); a text with a quote, ','"),
        ('"c" d,C\n', "not CSV (',' expected after '\"'); a text with a quote, ','"),
    ):
        path = file(tmp_path, "x.csv", before + row)
        assert message(CSV(path=path)).startswith(f"{path}:5: {expected}")
        with_header = CSV(path=file(tmp_path, "h.csv", f"x,y\n{before}{row}"), header=True)
        assert message(with_header).startswith(
            f"{tmp_path}/h.csv:6: {expected.replace('first rows have', 'header has')}"
        )


@pytest.mark.parametrize("kind", [CSV, TSV])
def test_columns_by_the_names_of_a_header(tmp_path: Path, kind: type[CSV] | type[TSV]) -> None:
    """Each file of a pattern has its own header, perhaps in another order; an empty one has none."""
    for name, rows in (("1", ["de,id,en ,label", "ein,1,one,x"]), ("2", []), ("3", ["en,de,label,id", "two,zwei,y,2"])):
        content = "".join(f"{row}\n" for row in rows)
        file(tmp_path, f"{name}.x", content if kind is CSV else content.replace(",", "\t"))
    names: dict[str, Any] = {"path": f"{tmp_path}/?.x", "header": True}
    assert list(kind(**names, record=Pairs(source="de", target="en")).open()) == [
        Pair("ein", "one"),
        Pair("zwei", "two"),
    ]
    assert list(kind(**names, record=Classes(text="en")).open()) == [Pair("", "one", "x"), Pair("", "two", "y")]
    assert list(kind(**names, record=Pairs(source=1, target="en")).open()) == [Pair("1", "one"), Pair("zwei", "two")]
    assert message(kind(**names, record=Pairs(source="fr", target="en"))) == (
        f"{tmp_path}/1.x:1: the header has no columns 'fr': it is de, id, en, label"
    )
    only = file(tmp_path, "only", "a,a\n" if kind is CSV else "a\ta\n")
    assert message(kind(path=only, header=True)) == f"{only}: no pair of sentences in it"
    assert message(kind(path=only, header=True, record=Pairs(source=0, target="a"))).endswith(
        "the header has 2 columns 'a': it is a, a"
    )


@pytest.mark.parametrize("indent", [None, 1])
def test_json_over_several_lines_is_called_so(tmp_path: Path, indent: int | None) -> None:
    rows = [{"source": "a", "target": "b"}] * 2
    text = json.dumps(rows, indent=indent) if indent else "[" + ",\n".join(map(json.dumps, rows)) + "]"
    path = file(tmp_path, "x.json", text)
    assert message(JSONLines(path=path)) == (
        f"{path}:1: JSON that does not end in its line; each line must be one JSON object"
    )


def test_tables_without_a_source_give_documents(tmp_path: Path) -> None:
    documents = [Pair("", target) for _, target, *_ in PAIRS]
    tsv = file(tmp_path, "x.tsv", "".join(f"{i}\t{t}\n" for i, (_, t, *_) in enumerate(PAIRS)))
    json_lines = file(tmp_path, "x.jsonl", "".join(json.dumps({"text": t}) + "\n" for _, t, *_ in PAIRS))
    assert list(TSV(path=tsv, record=Documents(text=1)).open()) == documents
    assert list(JSONLines(path=json_lines, record=Documents()).open()) == documents
    blank = file(tmp_path, "blank.jsonl", '{"text": "a"}\n{"text": " "}\n')
    source = JSONLines(path=blank, record=Documents())
    assert message(source) == f"{blank}:2: the text is empty; correct the data"
    assert list(JSONLines(path=blank, record=Documents(), empty_lines="drop").open()) == [Pair("", "a")]


def texts(source: PlainText) -> list[str]:
    pairs = source.open()
    assert all(isinstance(pair, Pair) and pair.source == "" for pair in pairs)
    return [pair.target for pair in pairs]


@pytest.mark.parametrize("packed", [False, True])
def test_what_a_document_is(tmp_path: Path, packed: bool):
    content = "\ufeffone\r\ntwo\n \n\nthree\u2028four\nfive".encode()
    (tmp_path / "a").write_bytes(gzip.compress(content) if packed else content)
    path = str(tmp_path / "a")
    assert texts(PlainText(path=path)) == ["one\ntwo\n \n\nthree\u2028four\nfive"]
    assert texts(PlainText(path=path, documents="lines")) == ["one", "two", "three\u2028four", "five"]
    assert texts(PlainText(path=path, documents="paragraphs")) == ["one\ntwo", "three\u2028four\nfive"]


def test_a_unit_that_does_not_exist_is_refused():
    """Once "line" made paragraphs of a file, without a word."""
    with pytest.raises(
        ValueError, match=r"^plain_text\.documents is 'line': it must be 'file' or 'lines' or 'paragraphs'"
    ):
        PlainText(path="x", documents="line")  # type: ignore[arg-type]


def test_several_files_come_in_the_order_of_their_names(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    for name, text in (("b.txt", "B"), ("a.txt", "A"), ("c.md", "C"), ("deep/d.txt", "D"), ("e.txt", " \n")):
        (tmp_path / name).write_text(text)
    assert texts(PlainText(path=f"{tmp_path}/*.txt")) == ["A", "B"]
    assert texts(PlainText(path=f"{tmp_path}/**/*.txt")) == ["A", "B", "D"]
    (tmp_path / "odd[1].txt").write_text("odd")
    assert texts(PlainText(path=f"{tmp_path}/odd[1].txt")) == ["odd"]


def test_what_is_wrong_with_the_files_is_one_line(tmp_path: Path):
    (tmp_path / "white").write_text(" \n\n")
    (tmp_path / "latin").write_bytes(b"ok\n\xff\n")
    for path, words in (
        ("*.txt", r"\*\.txt: no file matches this pattern"),
        ("none", "none: no such file"),
        ("white", "white: no text in it"),
        ("latin", r"latin:2: not UTF-8"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            PlainText(path=str(tmp_path / path)).open()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("first", "is_header"),
    [
        ("source\ttarget", True),
        ("English\tGerman", True),
        ("en\tde", True),
        ("sentence1\tsentence_2", True),
        ("Deutsch\tEnglisch", True),
        ("Go.\tGeh.", False),
        ("A sentence like the others\tEin Satz wie die anderen", False),
        ("a\tEin Satz wie die anderen", False),
    ],
)
def test_a_row_that_looks_like_a_header_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture, first: str, is_header: bool
) -> None:
    """It is read like the others; with `header` it is not, without a word."""
    path = file(tmp_path, "x.tsv", f"{first}\n" + "A few words of text\tEin paar Wörter Text\n" * 5)
    assert len(TSV(path=path).open()) == 6
    warning = f"warning: {path}:1: this row looks like a header ("
    assert capsys.readouterr().err.startswith(warning) == is_header
    assert len(TSV(path=path, header=True).open()) == 5 and not capsys.readouterr().err
    bad = file(tmp_path, "bad.tsv", Path(path).read_text().replace("\n", "\nno tab\n", 1))
    assert len(TSV(path=bad, bad_rows="drop").open()) == 6
    assert ("looks like a header" in capsys.readouterr().err) == is_header, "a bad row is none of the others"


def test_a_header_is_warned_about_once_by_the_path_of_its_setting(tmp_path: Path, capsys: pytest.CaptureFixture):
    """A start reads large data several times."""
    csv = CSV(path=file(tmp_path, "x.csv", "source,target\n" + "A few words of text,Ein paar Wörter Text\n" * 3))
    for _ in range(2):
        list(csv.stream("data.train"))
    assert capsys.readouterr().err.count(": set data.train.header to True if it is one\n") == 1


@pytest.mark.parametrize("name", ["x.csv", "x.TSV.gz", "x.jsonl", "x.parquet"])
def test_a_container_of_texts_is_not_read_line_by_line_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    table, lines = file(tmp_path, name, "a,A\n", packed=name.endswith("gz")), file(tmp_path, "lines.csv.txt", "a\n")
    for sides in ({"source": table, "target": lines}, {"source": lines, "target": table}):
        assert message(ParallelText(**sides)).startswith(f"{table} is ")
    assert ParallelText(source=lines, target=lines).open()
    assert PlainText(path=table).open() and f"{table} is " in capsys.readouterr().err
    assert PlainText(path=lines).open() and not capsys.readouterr().err


def test_paragraphs_without_blank_lines_are_warned_about(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = file(tmp_path, "x", "one\ntwo\nthree\n\n")
    assert texts(PlainText(path=path, documents="paragraphs")) == ["one\ntwo\nthree"]
    expected = "so its 3 lines are one paragraph and one document: set plain_text.documents to 'lines'"
    assert expected in capsys.readouterr().err
    for content in ("one\n", "one\n\ntwo\nthree\n"):
        texts(PlainText(path=file(tmp_path, "x", content), documents="paragraphs"))
    texts(PlainText(path=path, documents="lines"))
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("kind", "between"), [(CSV, ","), (TSV, "\t")])
def test_rows_with_more_columns_than_the_others_are_refused_or_left_out(
    tmp_path: Path, kind: type[CSV] | type[TSV], between: str
) -> None:
    """A tab inside a text cuts it. The first row may be the odd one, and a file of a pattern may be odd as a whole."""
    rows = [["one dog", "ein Hund"], ["two", "cats", "zwei Katzen"], ["three men", "drei Männer"], ["four", "vier"]]
    lines = [between.join(row) + "\n" for row in rows]
    table = kind(path=file(tmp_path, "1.x", "".join(lines)))
    words = f"{table.path}:2: 3 column(s) between {'tabs' if kind is TSV else repr(between)}, but the first rows have 2"
    assert message(table).startswith(words)
    good = [Pair(*row) for row in rows if len(row) == 2]
    assert dataclasses.replace(table, bad_rows="drop").open() == good
    odd_first = kind(path=file(tmp_path, "2.x", "".join([lines[1], lines[0], *lines[2:]])), bad_rows="drop")
    assert odd_first.open() == good
    assert message(dataclasses.replace(odd_first, bad_rows="error")).startswith(f"{odd_first.path}:1: 3 column(s)")
    file(tmp_path, "1.x", lines[0])
    file(tmp_path, "2.x", lines[1])
    assert message(kind(path=f"{tmp_path}/?.x")).startswith(f"{tmp_path}/2.x:1: 3 column(s)")
    documents = kind(path=file(tmp_path, "3.x", "".join(lines)), record=Documents(text=0))
    assert message(documents).startswith(f"{documents.path}:2: 3 column(s)")


@pytest.mark.parametrize(
    ("content", "other"),
    [
        ("Ein Mann, der schläft;A man\nJa;Yes, of course\n", ";"),
        ("id;text;label\n1;a, b, c;x\n2;d;y\n", ";"),
        ("Hallo, du;Hello, you\nJa, du;Yes, you\nNein, du;No, you\n", ";"),
        ('"a;b";"A;B"\n"c";"C"\n', ";"),
        ("a\tA\nb\tB\n", "\t"),
        ("a|A\nb|B\n", "|"),
    ],
)
def test_a_csv_with_another_delimiter_is_named(tmp_path: Path, content: str, other: str) -> None:
    path = file(tmp_path, "x.csv", content)
    assert message(CSV(path=path)).startswith("csv.delimiter is ','") and message(CSV(path=path)).endswith(
        f"set it to {other!r}"
    )
    assert CSV(path=path, delimiter=other).open()
    if other != "\t":
        assert f"CSV(path=…, delimiter={other!r})" in message(TSV(path=path))
    else:
        assert TSV(path=path).open()


@pytest.mark.parametrize(
    "content",
    [
        "one; two,eins; zwei\nthree,drei\n",
        "a;b,A;B\n",
        '"a;b\n\nc;d","A"\n"e","E"\n',
        "a, b\nc, d\ne, f\n",
        "yes | no,ja | nein\n" * 3,
    ],
)
def test_commas_beside_other_signs_are_commas(tmp_path: Path, content: str) -> None:
    assert CSV(path=file(tmp_path, "x.csv", content)).open()


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        ('"He said ""no"".",Er sagte nein.\nYes,Ja\n', True),
        ('"en","de"\n"a","A"\n"b","B"\n', True),
        ('7,"a"\n8,"b"\n9,"c"\n', True),
        ('"Hello.",Hallo\nYes,"Ja"\n"No","Nein"\n', False),
        ('""Hello"",x\nsaid "a" and "b",y\n",z\n', False),
        ("1,2\n3,4\n5,6\n", False),
    ],
)
def test_a_tsv_with_the_quotes_of_a_csv_is_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture, content: str, quoted: bool
) -> None:
    """Some programs quote cells between tabs too; and texts have quotes of their own."""
    path = file(tmp_path, "x.tsv", content.replace(",", "\t"))
    assert TSV(path=path).open()[0].source == content.split(",")[0]
    assert (f"{path}: its first rows have cells in double quotes" in capsys.readouterr().err) == quoted
    table = open_table(content.replace(",", "\t").splitlines(), path, header=False)
    assert table.first[0][1] == (
        next(csv.reader([content.splitlines()[0]])) if quoted else content.splitlines()[0].split(",")
    )


def test_numbers_in_the_place_of_texts_are_warned_about(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Tatoeba's four columns are a number, a text, a number, a text; the first two are no pair of sentences."""
    path = file(tmp_path, "x.tsv", "1\tA dog.\t77\tEin Hund.\n2\tA cat.\t78\tEine Katze.\n")
    assert TSV(path=path).open()[0] == Pair("1", "A dog.")
    said = capsys.readouterr().err
    assert "tsv.record.source is 0" in said and "0 '1', 1 'A dog.', 2 '77', 3 'Ein Hund.'" in said
    assert TSV(path=path, record=Pairs(source=1, target=3)).open()[0] == Pair("A dog.", "Ein Hund.")
    assert TSV(path=file(tmp_path, "y.tsv", "1\tone\n2\ttwo\n")).open(), "a table of nothing else is about numbers"
    assert not capsys.readouterr().err


def test_files_of_a_pattern_have_the_same_columns(tmp_path: Path):
    file(tmp_path, "1.csv", "en,de\na,b\n")
    file(tmp_path, "2.csv", "de,en\nb,a\n")
    csv = CSV(path=str(tmp_path / "*.csv"), header=True, record=Pairs(source="en", target="de"))
    assert [tuple(pair[:2]) for pair in csv.open()] == [("a", "b")] * 2
    file(tmp_path, "3.csv", "en,fr\na,c\n")
    assert message(csv).startswith(f"{tmp_path}/3.csv:1: the header is en, fr, but that of {tmp_path}/1.csv en, de")
