"""Laws of the command of any task: a line, a row and a record have the answer of the text alone; mistakes are one line."""

import csv
import dataclasses
import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.cli.input_lines import TextColumns, table_blocks
from flaxformer_lite.core.objectives import MaskedLM
from flaxformer_lite.files.data import CSV, JSONLines, Mixture
from flaxformer_lite.files.data.text_files import TSV
from flaxformer_lite.files.records import Classes, Documents, Pairs
from flaxformer_lite.run import Run
from tests.support.limits import assert_close
from tests.support.text_runs import Typed, numbers, text_run, trained_on

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def run() -> Run:
    return text_run()


@pytest.fixture(scope="module")
def masked() -> Run:
    return text_run(objective=MaskedLM(mask_token=30))


@pytest.fixture
def type_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Typed:
    return Typed(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["embed", "--similarity", "--output", "x"], b"", "--output writes vectors and --similarity cosines"),
        (["fill-mask", "--top", "0"], b"", "--top is 0: it must be at least 1"),
        (["embed", "--output", "{tmp}"], b"", "{tmp} exists already: give a file that does not"),
        (["embed", "--output", "{tmp}/file/x.npy"], b"", "{tmp}/file/x.npy cannot be created: {tmp}/file is no folder"),
        (["classify", "--scores", "nowhere.txt"], b"", "nowhere.txt: no such file"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    stdin: bytes,
    words: str,
    masked: Run,
    type_command: Typed,
    tmp_path: Path,
):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        type_command(masked, *(argument.format(tmp=tmp_path) for argument in arguments), stdin=stdin)
    assert ended.value.code == 2
    (error,) = type_command.errors()
    assert error.startswith(f"error: {words.format(tmp=tmp_path)}")


def test_texts_that_were_cut_are_one_line(run: Run, type_command: Typed):
    """Oracle: by hand."""
    long = "a" * 19 + "\n"
    _, errors = type_command(run, "embed", stdin=f"{long * 3}a\n{long * 5}".encode())
    cut = "warning: stdin: line 1: the text has 21 tokens and was cut to 16 (data.max_source_length)"
    assert errors == [f"{cut} (and 7 more, such as line 2, 3, 5, 6, 7)"]


@pytest.mark.parametrize("command", ["classify", "embed", "fill-mask"])
def test_text_outside_the_vocabulary_is_reported_once(
    command: str, run: Run, masked: Run, type_command: Typed, monkeypatch: pytest.MonkeyPatch
):
    """Law: neither the tab between two texts nor [MASK] is text."""
    chosen = masked if command == "fill-mask" else run
    monkeypatch.setattr(chosen.text_model.unknown, "reported", set())  # what it has warned of
    line = "a[MASK]ßb" if command == "fill-mask" else "aß\tb" if command == "classify" else "aßb"
    err = type_command(chosen, command, stdin=f"{line}\n{line}\n".encode())[1]
    assert err == ["warning: stdin: not in the vocabulary, so the model cannot read it: 'ß'"]


UTF8 = "not UTF-8 (byte 0xff); convert it, for example with iconv"


@pytest.mark.parametrize(
    ("command", "lines", "bad", "reason"),
    [
        (["classify"], b"a\tb|b|c", b"a\tb\tc", "3 texts separated by tabs: there must be one or two"),
        (["classify", "--scores"], b"a|b|c", b"\xff", UTF8),
        (["embed"], b"a|b|c", b"\xff", UTF8),
        (["embed", "--similarity"], b"a\tb|b\ta|c\td", b"a", "1 texts separated by tabs: there must be 2"),
        (["embed", "--output"], b"a|b|c", b"\xff", UTF8),
        (["fill-mask"], b"a[MASK]|b[MASK]|[MASK]c", b"\xff", UTF8),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_line_is_reported_and_stops_no_other(
    command: list[str],
    lines: bytes,
    bad: bytes,
    reason: str,
    run: Run,
    masked: Run,
    type_command: Typed,
    tmp_path: Path,
):
    """Law: the others have the answers that they have with a good line in its place; a file and a pipe agree."""
    first, second, third = lines.split(b"|")
    chosen, file = masked if command == ["fill-mask"] else run, tmp_path / "in.txt"
    answered: list[list[Any]] = []
    for middle, files in ((second, []), (bad, []), (bad, [str(file)])):
        content = b"\n".join([first, middle, third, b""])
        file.write_bytes(content)
        made = [str(tmp_path / f"{len(answered)}.npy")] if "--output" in command else []
        out, err = type_command(chosen, *command, *made, *files, stdin=b"" if files else content)
        answered.append(np.load(made[0]).tolist() if made else [numbers(line) for line in out])
        name = str(file) if files else "stdin"
        assert err == ([f"warning: {name}, line 2: {reason}; its answer is empty"] if middle == bad else [])
    whole, *both = answered
    if command == ["fill-mask"]:  # lines of five candidates each
        whole, both = [whole[:5], whole[5:10], whole[10:]], [[found[:5], math.nan, found[5:]] for found in both]
    for found in both:
        assert np.isnan(found[1]).all()
        for i in (0, 2):
            assert_close(found[i], whole[i])


@pytest.mark.parametrize("command", ["classify", "embed"])
def test_a_table_is_answered_by_its_column_and_keeps_its_rows(
    command: str, run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Law: an answer is that to the text alone, and stands beside the row's other cells, quotes and all."""
    rows = [["7", "abc, d", "pos"], ["8", 'he"l\nlo', ""], ["9", "x", "neg"]]
    table = tmp_path / "in.csv"
    with open(table, "w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([["id", "text", "y"], *rows])
    single = trained_on(run, monkeypatch, CSV(path="x", header=True, record=Documents()))
    out, err = type_command(single, command, str(table))
    header, *answered = csv.reader([line + "\n" for line in out], delimiter=";")
    alone = type_command(single, command, stdin=b"abc, d\n\nx\n")[0]
    assert header[:3] == ["id", "text", "y"] and [row[:3] for row in answered] == rows
    for row, line in list(zip(answered, alone, strict=True))[::2]:
        assert numbers("\t".join(row[3:])) == pytest.approx(numbers(line), abs=2e-6)
    assert any("the texts are in column 1, counted from 0; --column chooses another" in line for line in err)
    typed = type_command(run, command, str(table), "--column", "text")
    assert typed[0] == out and not any("--column chooses" in line for line in typed[1])
    by_number = type_command(run, command, str(table), "--column", "2")[0]
    assert len(by_number) == 5 and by_number[0].startswith("id;text;y;"), "without a name the first row is no header"


def test_the_column_is_that_of_any_training_data(
    run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A field of JSON lines is a column of its name; sources of a mixture count if they agree; an input follows its text."""
    table = tmp_path / "in.csv"
    table.write_text("id,text,more\n1,ab,cd\n", encoding="utf-8")
    fields = JSONLines(path="x", record=Classes(label="y"))
    header, answer = type_command(trained_on(run, monkeypatch, fields), "classify", str(table))[0]
    assert header == "id,text,more,label,probability" and answer.startswith("1,ab,cd,")
    same = Mixture(sources=(fields, dataclasses.replace(fields, path="y")))
    assert type_command(trained_on(run, monkeypatch, same), "classify", str(table))[0] == [header, answer]
    other = dataclasses.replace(fields, record=Classes(text="more", label="y"))
    with pytest.raises(SystemExit):
        type_command(trained_on(run, monkeypatch, Mixture(sources=(fields, other))), "classify", str(table))
    assert "choose that of the texts by --column" in type_command.errors()[-1]
    record = Pairs(source="text", input="more", target="id")
    asked = TextColumns(record.texts[:1], header=True)
    (block,) = table_blocks(str(table), asked)
    assert block.lines == ["ab\n\ncd"]


def test_lines_of_json_are_read_as_the_training_data_was(
    run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Law: an answer is that to the text alone, whatever labels the lines have; two texts are a pair."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": "abc", "b": "x"}\n{"a": 7}\n\n{"a": "abx", "b": "y", "label": 3}\n', encoding="utf-8")
    single = trained_on(run, monkeypatch, JSONLines(path="t.jsonl", record=Classes(text="a")))
    out, err = type_command(single, "classify", str(path))
    assert err == [f"warning: {path}:2: field a holds int '7': it must be a string; its answer is empty"]
    alone = type_command(single, "classify", stdin=b"abc\n\nabx\n")[0]
    assert [out[0], *out[2:]] == alone and out[1] == ""
    pairs = trained_on(run, monkeypatch, JSONLines(path="t.jsonl", record=Classes(source="a", text="b")))
    path.write_text('{"a": "abc", "b": "x"}\n{"a": "abx", "b": "ab"}\n', encoding="utf-8")
    assert (
        type_command(pairs, "classify", str(path))[0] == type_command(pairs, "classify", stdin=b"abc\tx\nabx\tab\n")[0]
    )
    with pytest.raises(SystemExit):
        type_command(pairs, "embed", str(path))
    assert "1 of its texts must be read, but the run was trained on 2" in type_command.errors()[-1]


def test_two_columns_are_two_texts(run: Run, type_command: Typed, tmp_path: Path):
    table = tmp_path / "in.tsv"
    table.write_text("1\ta\t2\tb\n3\tc\t4\td\tmore\n5\te\t6\tf\n")
    out, err = type_command(run, "classify", str(table), "--column", "1", "--column", "3")
    alone = type_command(run, "classify", stdin=b"a\tb\ne\tf\n")[0]
    assert [out[0], out[2]] == [f"1\ta\t2\tb\t{alone[0]}", f"5\te\t6\tf\t{alone[1]}"]
    assert out[1] == "3\tc\t4\td\tmore\t\t"
    assert err == [f"warning: {table}:2: 5 column(s) between tabs, but the first rows have 4; its answer is empty"]
    similar = type_command(run, "embed", "--similarity", str(table), "--column", "1", "--column", "3")[0]
    assert similar[0].startswith("1\ta\t2\tb\t")


@pytest.mark.parametrize(
    ("name", "content", "words", "message"),
    [
        (
            "a.csv",
            "1,a b\n2,c d\n",
            ["embed"],
            "a.csv is a table by its name, and this run was not trained on its columns, 0 '1'",
        ),
        ("a.tsv.gz", "1\ta\t2\n", ["classify"], "choose that of the texts by --column"),
        (
            "a.csv",
            "1,a b\n",
            ["embed", "--column", "text"],
            "the header has no columns 'text': it is 1, a b; choose by --column",
        ),
        (
            "a.csv",
            "1,a b\n",
            ["embed", "--column", "2"],
            "has no column 2, counted from 0: choose by --column among 0 '1', 1 'a b'",
        ),
        (
            "a.csv",
            "1,a\n",
            ["embed", "--column", "0", "--column", "1"],
            "1 of its columns must be read, but 0 1 are typed",
        ),
        ("a.jsonl", "{}\n", ["classify"], "a.jsonl is JSON lines by its name, and is read line by line"),
        ("a.parquet", "", ["fill-mask"], "a.parquet is Parquet by its name, and is read line by line"),
        (None, "a\n", ["classify", "--column", "1"], "--column is for a table, but stdin is read line by line"),
    ],
)
def test_a_table_whose_text_is_not_known_is_refused(
    name: str | None, content: str, words: list[str], message: str,
    run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    chosen = trained_on(run, monkeypatch, None)
    packed = gzip.compress(content.encode()) if name and name.endswith("gz") else content.encode()
    if name:
        Path(name).write_bytes(packed)
    with pytest.raises(SystemExit) as ended:
        type_command(chosen, *words, *([name] if name else []), stdin=b"" if name else packed)
    assert ended.value.code == 2
    (error,) = type_command.errors()
    assert message in error


def test_a_table_of_lines_alone_needs_no_column(
    run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One column is the text, two between tabs are the two texts of a line."""
    chosen = trained_on(run, monkeypatch, None)
    for name, content, width in (("a.csv", '"a, b"\nc\n', 1), ("a.tsv", "a\tb\nc\td\n", 2)):
        (tmp_path / name).write_text(content)
        out = type_command(chosen, "classify", str(tmp_path / name))[0]
        text = content.replace('"', "").encode()
        between = "," if name == "a.csv" else "\t"
        alone = type_command(chosen, "classify", stdin=text)[0]
        answers = [row[width:] for row in csv.reader(out, delimiter=between)]
        for answer, line in zip(answers, alone, strict=True):
            assert answer[0] == line.split("\t")[0] and float(answer[1]) == pytest.approx(numbers(line)[0], abs=2e-6)


def test_numbers_and_a_header_in_the_place_of_texts_are_told_of(
    run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a.tsv").write_text("1\tone\n2\ttwo\n")
    (tmp_path / "b.tsv").write_text("id\ttext\n" + "1\ta few words of text\n" * 3)
    chosen = trained_on(run, monkeypatch, TSV(path="x", record=Classes(text=0, label=1)))
    err = type_command(chosen, "classify", str(tmp_path / "a.tsv"))[1]
    assert any("column 0 has nothing but numbers" in line and "1 'one'" in line for line in err)
    err = type_command(run, "classify", str(tmp_path / "b.tsv"), "--column", "1")[1]
    assert any("b.tsv:1: this row looks like a header" in line and "--column" in line for line in err)
