"""What a row is, in the spellings of other programs. Oracles: the same rows in another spelling, by hand, by pandas and NumPy."""

import json
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data import CSV, TSV, CoNLL, JSONLines, Parquet
from flaxformer_lite.files.records import READERS, Classes, Conversations, RecordKinds, Words
from flaxformer_lite.files.records.base import Record
from flaxformer_lite.files.records.words import pair_of_words


def file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def message(source: Any) -> str:
    with pytest.raises(ValueError) as error:
        source.open()
    return str(error.value)


WORDS, LABELS = ["O'Hara", 'say "é"', "New", "a\\b", "\u3000x"], ["B-PER", "O", "B-LOC", "I-LOC", "O"]


@pytest.mark.parametrize("write", [json.dumps, str, lambda items: str(np.array(items))],
                         ids=["JSON", "Python", "NumPy"])  # fmt: skip
def test_a_cell_has_the_list_that_was_written(write: Any, tmp_path: Path):
    """Law: the words that a program wrote into a cell are those that are read."""
    import csv

    with open(tmp_path / "x.csv", "w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([["words", "tags"], [write(WORDS), write(LABELS)], [write(["a"]), write(["O"])]])
    source = CSV(path=str(tmp_path / "x.csv"), header=True, record=Words(words="words", labels="tags"))
    assert source.open() == [pair_of_words(WORDS, LABELS), pair_of_words(["a"], ["O"])]


def test_numbers_of_labels_and_words_between_spaces(tmp_path: Path):
    path = file(tmp_path, "x.tsv", "EU rejects it\t[3 0 0]\nNew York\t[1, -100]\nGo [ now\tO O O\n")
    source = TSV(path=path, record=Words(words=0, labels=1))
    assert source.open() == [
        pair_of_words(["EU", "rejects", "it"], [3, 0, 0]),
        pair_of_words(["New", "York"], [1, None]),
        pair_of_words(["Go", "[", "now"], ["O", "O", "O"]),
    ]
    bad = file(tmp_path, "y.tsv", "a b\tO O\na b\tO\n")
    assert message(TSV(path=bad, record=Words(words=0, labels=1))).startswith(f"{bad}:2: it has 2 words and 1 labels")


def test_a_list_that_is_not_whole_is_refused(tmp_path: Path):
    """Oracle: NumPy, which shortens arrays of more than 1,000 items; a long run of digits takes no longer than another."""
    many = str(np.array(["a"] * 1_001)).replace("\n", " ")
    for cell in (many, "[" + "1" * 50 + " x]", "[a, b]"):
        bad = file(tmp_path, "x.tsv", f"{cell}\tO\n")
        assert "is no list that JSON, Python or NumPy writes whole" in message(
            TSV(path=bad, record=Words(words=0, labels=1))
        )


@pytest.mark.parametrize("every", [False, True])
def test_a_row_has_one_word(every: bool, tmp_path: Path):
    """Law: one word a row is the same as lists; the name of a text stands in its first row, or in each."""
    rows = [("1", "Ab", "B-PER"), ("1", "cd", "I-PER"), ("2", "e", "O"), ("1", "f", "O"), ("1", "", "O")]
    shown = [row if every or i in (0, 2, 3) else ("", *row[1:]) for i, row in enumerate(rows)]
    path = file(tmp_path, "x.csv", "Sentence #,Word,Tag\n" + "".join(",".join(row) + "\n" for row in shown))
    source = CSV(path=path, header=True, record=Words(sentence="Sentence #", words="Word", labels="Tag"))
    wanted = [(["Ab", "cd"], ["B-PER", "I-PER"]), (["e"], ["O"]), (["f", ""], ["O", "O"])]
    assert source.open() == [pair_of_words(*one) for one in wanted]
    assert [row.number for row in source.located()] == [2, 4, 5]
    lines = "".join(json.dumps(dict(zip("swt", row, strict=True))) + "\n" for row in shown)
    fields = JSONLines(path=file(tmp_path, "x.jsonl", lines), record=Words(sentence="s", words="w", labels="t"))
    assert fields.open() == source.open()
    bad = file(tmp_path, "bad.csv", "s,w,t\n1,a,O\n2,b,O\n,c\n")
    source = CSV(path=bad, header=True, record=Words(sentence="s", words="w", labels="t"))
    assert message(source).startswith(f"{bad}:3: 2 column(s) between ','")


def test_conllu_has_its_own_columns(tmp_path: Path):
    """By hand, of the format's page: comments, ranges, empty nodes; FORM and UPOS, or the columns that are named."""
    text = "# sent_id = 1\n# text = vámonos al mar\n1-2\tvámonos\t_" + "\t_" * 7 + "\n"
    for number, form, lemma, upos in (("1", "vamos", "ir", "VERB"), ("2", "nos", "nosotros", "PRON"), ("2.1", "x", "x", "X"),
                                      ("3", "#", "#", "SYM")):  # fmt: skip
        text += "\t".join((number, form, lemma, upos, *"______")) + "\n"
    path = file(tmp_path, "x.conllu", text + "\n" + text)
    assert CoNLL(path=path).open() == [pair_of_words(["vamos", "nos", "#"], ["VERB", "PRON", "SYM"])] * 2
    named = CoNLL(path=path, record=Words(words=2, labels=3))
    assert named.open()[0] == pair_of_words(["ir", "nosotros", "#"], ["VERB", "PRON", "SYM"])
    for record in (Words(), Words(words=0, labels=0), Words(words=0, labels=1, sentence=2)):
        with pytest.raises(ValueError, match=r"^conll\.record is .*: words and labels must be two columns by number"):
            CoNLL(path="x", record=record)


@pytest.mark.parametrize("yes", ["1", "true", "True", "1.0"])
def test_a_column_for_each_label(yes: str, tmp_path: Path):
    """Law: columns of 0 and 1 are the list of the names of those with 1."""
    no = {"1": "0", "true": "false", "True": "False", "1.0": "0.0"}[yes]
    path = file(tmp_path, "x.csv", f"text,rude,toxic\na,{yes},{no}\nb,{no},{no}\nc,{yes},{yes}\n")
    source = CSV(path=path, header=True, record=Classes(label=("toxic", "rude")))
    assert source.open() == [Pair("", "a", '["rude"]'), Pair("", "b", "[]"), Pair("", "c", '["toxic", "rude"]')]
    rows = [{"text": "a", "toxic": 1, "rude": False}, {"text": "b", "toxic": 1.0, "rude": None}]
    lines = file(tmp_path, "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    source = JSONLines(path=lines, record=Classes(label=("toxic", "rude")))
    wrong = f"{lines}:2: field rude holds 'None': a field of one label must have 0 or 1, false or true"
    assert message(source) == wrong


def test_labels_in_columns_of_a_dataset(tmp_path: Path):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    table = pyarrow.table({"text": ["a", "b"], "x.y": [True, False], "z": [0, 1]})
    parquet.write_table(table, tmp_path / "x.parquet")
    source = Parquet(path=str(tmp_path / "x.parquet"), record=Classes(label=("x.y", "z")))
    assert source.open() == [Pair("", "a", '["x.y"]'), Pair("", "b", '["z"]')]


def test_a_table_has_conversations(tmp_path: Path):
    """Law: a cell of messages beside a cell of a system prompt is the same conversation as in JSON lines."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    row = {"chat": messages, "system": "Be brief."}
    lines = JSONLines(path=file(tmp_path, "x.jsonl", json.dumps(row)), record=Conversations(messages="chat"))
    cell = json.dumps(messages).replace('"', '""')
    table = file(tmp_path, "x.csv", f'system,chat\nBe brief.,"{cell}"\n')
    assert CSV(path=table, header=True, record=Conversations(messages="chat")).open() == lines.open()
    bad = file(tmp_path, "y.csv", "chat\nhello\n")
    assert message(CSV(path=bad, header=True, record=Conversations(messages="chat"))).startswith(
        f"{bad}:2: 'hello' is not"
    )


@pytest.mark.parametrize("kind", typing.get_args(RecordKinds), ids=lambda kind: kind.__name__)
def test_kinds_that_are_read_alike_have_one_reader(kind: type[Record]):
    """Law: a table of readers by what is read has one for each name; another kind of the name must not have its own."""
    chosen = READERS[kind.reads]
    for name in ("reader", "learned"):
        assert getattr(kind, name).__func__ is getattr(chosen, name).__func__, f"{kind.__name__} and {chosen.__name__}"
