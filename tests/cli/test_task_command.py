"""Laws of the command of any task: a line, a row and a record have the answer of the text alone; mistakes are one line."""

import csv
import dataclasses
import gzip
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from flaxformer_lite.cli.input_lines import TextColumns, table_blocks
from flaxformer_lite.core.objectives import AnswerSpans, MaskedLM, TokenLabels
from flaxformer_lite.files.data import CSV, JSONLines, Mixture
from flaxformer_lite.files.data.text_files import TSV
from flaxformer_lite.files.records import Classes, Documents, Pairs
from flaxformer_lite.run import Run
from flaxformer_lite.tasks import TASK_FOLDERS
from tests.support.commands import Command
from tests.support.limits import assert_close
from tests.support.text_runs import numbers, text_run, token_run, trained_on

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def run() -> Run:
    return text_run()


@pytest.fixture(scope="module")
def masked() -> Run:
    return text_run(objective=MaskedLM(mask_token=30))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("embed run --similarity --output x", "--output writes vectors and --similarity cosines"),
        ("fill-mask run --top 0", "--top is 0: it must be at least 1"),
        ("embed run --output {tmp}", "{tmp} exists already: give a file that does not"),
        ("embed run --output {tmp}/file/x.npy", "{tmp}/file/x.npy cannot be created: {tmp}/file is no folder"),
        ("classify run --scores nowhere.txt", "nowhere.txt: no such file"),
        ("label run {tmp}/file --column 1 --words w", "--words is for lines of JSON, --column for a table: leave one"),
    ],
)
def test_a_mistake_is_one_line(words: str, message: str, masked: Run, command: Command, tmp_path: Path):
    (tmp_path / "file").touch()
    command.load(masked)
    said = command.mistake(*words.format(tmp=tmp_path).split())
    assert said.startswith(f"error: {message.format(tmp=tmp_path)}")


def test_texts_that_were_cut_are_one_line(run: Run, command: Command):
    """Oracle: by hand."""
    long = "a" * 19 + "\n"
    _, errors = command.on(run, "embed", stdin=f"{long * 3}a\n{long * 5}".encode())
    cut = "warning: stdin: line 1: the text has 21 tokens and was cut to 16 (data.max_source_length)"
    assert errors == [f"{cut} (and 7 more, such as line 2, 3, 5, 6, 7)"]


class Use(NamedTuple):
    """A way to use the command of a task."""

    kind: str
    """The name of its run."""
    words: str
    lines: str
    """Three lines that it answers, with | between them."""
    refused: dict[bytes, str]
    """Lines that it refuses, each with the reason."""


UTF8 = "not UTF-8 (byte 0xff); convert it, for example with iconv"
QUERY = '{"query": "c", "candidates": ["c"]}'
USES = (
    Use("texts", "classify", "a\tb|b|c", {b"\xff": UTF8, b"a\tb\tc": "3 texts separated by tabs: there must be one or two"}),
    Use("texts", "classify --scores", "a|b|c", {b"\xff": UTF8}),
    Use("texts", "embed", "a|b|c", {b"\xff": UTF8}),
    Use("texts", "embed --similarity", "a\tb|b\ta|c\td", {b"a": "1 texts separated by tabs: there must be 2"}),
    Use("texts", "embed --output", "a|b|c", {b"\xff": UTF8}),
    Use("texts", "rank", '{"query": "a", "candidates": ["b", "ab"]}|{"query": "b", "candidates": []}|' + QUERY, {
        b"{}": "no field query",
        b'{"query": "a", "candidates": ["b", 3]}': 'write {"query": "…", "candidates": ["…", …]}, all of them texts',
        b'{"query": "a", "candidates": "b"}': 'write {"query": "…", "candidates": ["…", …]}, all of them texts',
        b"kite": "not JSON",
    }),
    Use("masked", "fill-mask", "a[MASK]|b[MASK]|[MASK]c", {b"\xff": UTF8}),
    Use("words", "label", "ab cd|e|f g", {b"\xff": UTF8}),
    Use("words", "label --words w", '{"w": ["a", "b"]}|{"w": ["c"]}|{"w": ["d", "e"]}', {
        b'{"w": 3}': "the field w has '3': it must be a list of texts",
        b"x": "not JSON",
        b'{"id": 3, "u": {"v": []}}': "no field w; the fields are id, u.v",
    }),
    Use("places", "answer", "a\tbcd|b\tc|c\tab", {b"\xff": UTF8, b"a": "1 texts separated by tabs: there must be 2"}),
)  # fmt: skip
"""A new task, and an option that reads or writes lines in another way, is a row."""


def test_each_task_has_a_row():
    assert {use.words.split()[0] for use in USES} == TASK_FOLDERS.keys()


@pytest.fixture(scope="module")
def runs(run: Run, masked: Run) -> dict[str, Run]:
    words, places = token_run(TokenLabels(labels=("O", "B-A", "I-A"))), token_run(AnswerSpans())
    return {"texts": run, "masked": masked, "words": words, "places": places}


def answered(use: Use, content: bytes, runs: dict[str, Run], command: Command, place: Path) -> tuple[list, list[str]]:
    """The numbers of each answer of lines in a pipe, which a file has too; and what is said of the pipe."""
    found, notes = list[list](), list[list[str]]()
    for files in ([], [place / "in.txt"]):
        (place / "in.txt").write_bytes(content)
        made = [place / f"{len(list(place.iterdir()))}.npy"] if use.words.endswith("--output") else []
        out, said = command.on(runs[use.kind], *use.words.split(), *made, *files, stdin=b"" if files else content)
        found.append(np.load(made[0]).tolist() if made else [numbers(line) for line in out])
        notes.append([line.replace(str(place / "in.txt"), "stdin") for line in said])
    assert str(found[0]) == str(found[1]) and notes[0] == notes[1]
    if use.words == "fill-mask":  # five candidates for each mask, behind the numbers of its line and of itself
        answers = {i: [row[2:] for row in found[0] if row[0] == i] or [math.nan] for i in range(content.count(b"\n"))}
        return list(answers.values()), notes[0]
    return found[0], notes[0]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.words)
def test_the_answer_to_a_line_is_its_answer_alone(use: Use, runs: dict[str, Run], command: Command, tmp_path: Path):
    """Law: among other lines, in any order, in a pipe and in a file; no line has no answer."""
    lines = [f"{line}\n".encode() for line in use.lines.split("|")]
    whole, said = answered(use, b"".join(lines), runs, command, tmp_path)
    assert len(whole) == 3 and not said
    for line, expected in zip(lines, whole, strict=True):
        (found,), _ = answered(use, line, runs, command, tmp_path)
        assert_close(found, expected)
    backwards, _ = answered(use, b"".join(lines[::-1]), runs, command, tmp_path)
    for found, expected in zip(backwards[::-1], whole, strict=True):
        assert_close(found, expected)
    assert answered(use, b"", runs, command, tmp_path) == ([], [])


@pytest.mark.parametrize(
    ("use", "bad"), [(use, bad) for use in USES for bad in use.refused], ids=lambda value: getattr(value, "words", None)
)
def test_a_bad_line_is_reported_and_stops_no_other(
    use: Use, bad: bytes, runs: dict[str, Run], command: Command, tmp_path: Path
):
    """Law: the others have the answers that they have with a good line in its place."""
    first, second, third = use.lines.encode().split(b"|")
    whole, _ = answered(use, b"\n".join([first, second, third, b""]), runs, command, tmp_path)
    found, (said,) = answered(use, b"\n".join([first, bad, third, b""]), runs, command, tmp_path)
    assert said.startswith(f"warning: stdin, line 2: {use.refused[bad]}") and said.endswith("; its answer is empty")
    assert np.isnan(found[1]).all()
    for i in (0, 2):
        assert_close(found[i], whole[i])


@pytest.mark.parametrize("use", USES, ids=lambda use: use.words)
def test_text_outside_the_vocabulary_is_reported_once(use: Use, runs: dict[str, Run], command: Command, tmp_path: Path):
    """Law: neither the tab between two texts nor [MASK] is text."""
    command.monkeypatch.setattr(runs[use.kind].text_model.unknown, "reported", set())  # what it has warned of
    first = use.lines.split("|")[0]
    line = first.replace('"a"', '"aß"') if "{" in first else first.replace("a", "aß", 1)
    made = [tmp_path / "x.npy"] if use.words.endswith("--output") else []
    _, said = command.on(runs[use.kind], *use.words.split(), *made, stdin=f"{line}\n{line}\n".encode())
    assert said == ["warning: stdin: not in the vocabulary, so the model cannot read it: 'ß'"]


@pytest.mark.parametrize("name", ["classify", "embed"])
def test_a_table_is_answered_by_its_column_and_keeps_its_rows(name: str, run: Run, command: Command, tmp_path: Path):
    """Law: an answer is that to the text alone, and stands beside the row's other cells, quotes and all."""
    rows = [["7", "abc, d", "pos"], ["8", 'he"l\nlo', ""], ["9", "x", "neg"]]
    table = tmp_path / "in.csv"
    with open(table, "w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([["id", "text", "y"], *rows])
    single = trained_on(run, CSV(path="x", header=True, record=Documents()))
    out, err = command.on(single, name, table)
    header, *answered = csv.reader([line + "\n" for line in out], delimiter=";")
    alone = command.on(single, name, stdin=b"abc, d\n\nx\n")[0]
    assert header[:3] == ["id", "text", "y"] and [row[:3] for row in answered] == rows
    for row, line in list(zip(answered, alone, strict=True))[::2]:
        assert numbers("\t".join(row[3:])) == pytest.approx(numbers(line), abs=2e-6)
    assert any("the texts are in column 1, counted from 0; --column chooses another" in line for line in err)
    typed = command.on(run, name, table, "--column", "text")
    assert typed[0] == out and not any("--column chooses" in line for line in typed[1])
    by_number = command.on(run, name, table, "--column", "2")[0]
    assert len(by_number) == 5 and by_number[0].startswith("id;text;y;"), "without a name the first row is no header"


def test_the_column_is_that_of_any_training_data(run: Run, command: Command, tmp_path: Path):
    """A field of JSON lines is a column of its name; sources of a mixture count if they agree; an input follows its text."""
    table = tmp_path / "in.csv"
    table.write_text("id,text,more\n1,ab,cd\n", encoding="utf-8")
    fields = JSONLines(path="x", record=Classes(label="y"))
    header, answer = command.on(trained_on(run, fields), "classify", str(table))[0]
    assert header == "id,text,more,label,probability" and answer.startswith("1,ab,cd,")
    same = Mixture(sources=(fields, dataclasses.replace(fields, path="y")))
    assert command.on(trained_on(run, same), "classify", str(table))[0] == [header, answer]
    other = dataclasses.replace(fields, record=Classes(text="more", label="y"))
    command.load(trained_on(run, Mixture(sources=(fields, other))))
    assert "choose that of the texts by --column" in command.mistake("classify", "run", table)
    record = Pairs(source="text", input="more", target="id")
    asked = TextColumns(record.texts[:1], header=True)
    (block,) = table_blocks(str(table), asked)
    assert block.lines == ["ab\n\ncd"]


def test_lines_of_json_are_read_as_the_training_data_was(run: Run, command: Command, tmp_path: Path):
    """Law: an answer is that to the text alone, whatever labels the lines have; two texts are a pair."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": "abc", "b": "x"}\n{"a": 7}\n\n{"a": "abx", "b": "y", "label": 3}\n', encoding="utf-8")
    single = trained_on(run, JSONLines(path="t.jsonl", record=Classes(text="a")))
    out, err = command.on(single, "classify", str(path))
    assert err == [f"warning: {path}:2: field a holds int '7': it must be a string; its answer is empty"]
    alone = command.on(single, "classify", stdin=b"abc\n\nabx\n")[0]
    assert [out[0], *out[2:]] == alone and out[1] == ""
    pairs = trained_on(run, JSONLines(path="t.jsonl", record=Classes(source="a", text="b")))
    path.write_text('{"a": "abc", "b": "x"}\n{"a": "abx", "b": "ab"}\n', encoding="utf-8")
    alone = command.on(pairs, "classify", stdin=b"abc\tx\nabx\tab\n")[0]
    assert command.on(pairs, "classify", path)[0] == alone
    said = command.mistake("embed", "run", path)
    assert "1 of its texts must be read, but the run was trained on 2" in said


def test_two_columns_are_two_texts(run: Run, command: Command, tmp_path: Path):
    table = tmp_path / "in.tsv"
    table.write_text("1\ta\t2\tb\n3\tc\t4\td\tmore\n5\te\t6\tf\n")
    out, err = command.on(run, "classify", str(table), "--column", "1", "--column", "3")
    alone = command.on(run, "classify", stdin=b"a\tb\ne\tf\n")[0]
    assert [out[0], out[2]] == [f"1\ta\t2\tb\t{alone[0]}", f"5\te\t6\tf\t{alone[1]}"]
    assert out[1] == "3\tc\t4\td\tmore\t\t"
    assert err == [f"warning: {table}:2: 5 column(s) between tabs, but the first rows have 4; its answer is empty"]
    similar = command.on(run, "embed", "--similarity", str(table), "--column", "1", "--column", "3")[0]
    assert similar[0].startswith("1\ta\t2\tb\t")


@pytest.mark.parametrize(
    ("name", "content", "words", "message"),
    [
        ("a.csv", "1,a\n2,c\n", "embed", "a.csv is a table by its name, and this run was not trained on its columns, 0 '1'"),
        ("a.tsv.gz", "1\ta\t2\n", "classify", "choose that of the texts by --column"),
        ("a.csv", "1,a b\n", "embed --column text", "the header has no columns 'text': it is 1, a b; choose by --column"),
        ("a.csv", "1,a b\n", "embed --column 2", "has no column 2, counted from 0: choose by --column among 0 '1', 1 'a b'"),
        ("a.csv", "1,a\n", "embed --column 0 --column 1", "1 of its columns must be read, but 0 1 are typed"),
        ("a.conll", "a O\n", "classify", "a.conll is CoNLL columns by its name, and is read line by line"),
        ("a.tmx", "", "embed", "a.tmx is a translation memory by its name, and is read line by line"),
        (None, "a\n", "classify --column 1", "--column is for a table, but stdin is read line by line"),
    ],
)  # fmt: skip
def test_a_table_whose_text_is_not_known_is_refused(
    name: str | None, content: str, words: str, message: str,
    run: Run, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    command.load(trained_on(run, None))
    packed = gzip.compress(content.encode()) if name and name.endswith("gz") else content.encode()
    if name:
        Path(name).write_bytes(packed)
    typed, *options = words.split()
    assert message in command.mistake(typed, "run", *options, *([name] if name else []), stdin=packed)


def test_a_run_without_data_reads_the_field_of_texts(run: Run, command: Command, tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"text": "ab"}\n{"text": "cd"}\n')
    without = trained_on(run, None)
    assert (
        command.on(without, "classify", str(tmp_path / "a.jsonl"))[0]
        == command.on(run, "classify", stdin=b"ab\ncd\n")[0]
    )


def test_a_table_of_lines_alone_needs_no_column(run: Run, command: Command, tmp_path: Path):
    """One column is the text, two between tabs are the two texts of a line."""
    chosen = trained_on(run, None)
    for name, content, width in (("a.csv", '"a, b"\nc\n', 1), ("a.tsv", "a\tb\nc\td\n", 2)):
        (tmp_path / name).write_text(content)
        out = command.on(chosen, "classify", str(tmp_path / name))[0]
        text = content.replace('"', "").encode()
        between = "," if name == "a.csv" else "\t"
        alone = command.on(chosen, "classify", stdin=text)[0]
        answers = [row[width:] for row in csv.reader(out, delimiter=between)]
        for answer, line in zip(answers, alone, strict=True):
            assert answer[0] == line.split("\t")[0] and float(answer[1]) == pytest.approx(numbers(line)[0], abs=2e-6)


def test_numbers_and_a_header_in_the_place_of_texts_are_told_of(run: Run, command: Command, tmp_path: Path):
    (tmp_path / "a.tsv").write_text("1\tone\n2\ttwo\n")
    (tmp_path / "b.tsv").write_text("id\ttext\n" + "1\ta few words of text\n" * 3)
    chosen = trained_on(run, TSV(path="x", record=Classes(text=0, label=1)))
    err = command.on(chosen, "classify", str(tmp_path / "a.tsv"))[1]
    assert any("column 0 has nothing but numbers" in line and "1 'one'" in line for line in err)
    err = command.on(run, "classify", str(tmp_path / "b.tsv"), "--column", "1")[1]
    assert any("b.tsv:1: this row looks like a header" in line and "--column" in line for line in err)
