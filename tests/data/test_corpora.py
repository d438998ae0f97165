"""Oracles: files written by hand with the documents they must become, and counts over Python's own help topics."""

import gzip
import sys
from pathlib import Path

import pytest

from flaxformer_lite.data.corpora import PlainText, PythonDocs, held_out, paragraphs
from flaxformer_lite.data.records import Pair
from tests.support.files import file


def texts(source: PlainText | PythonDocs) -> list[str]:
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


def test_paragraphs_without_blank_lines_are_warned_about(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = file(tmp_path, "x", "one\ntwo\nthree\n\n")
    assert texts(PlainText(path=path, documents="paragraphs")) == ["one\ntwo\nthree"]
    expected = "so its 3 lines are one paragraph and one document: set plain_text.documents to 'lines'"
    assert expected in capsys.readouterr().err
    for content in ("one\n", "one\n\ntwo\nthree\n"):
        texts(PlainText(path=file(tmp_path, "x", content), documents="paragraphs"))
    texts(PlainText(path=path, documents="lines"))
    assert not capsys.readouterr().err


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


def test_topics_are_held_out_by_their_name():
    """Oracle: the hash of the name, worked out once; about one in twenty."""
    from pydoc_data.topics import topics

    held = {name for name in topics if held_out(name)}
    assert {"comparisons", "dict", "yield"} <= held and "for" not in held
    train, rest = texts(PythonDocs()), texts(PythonDocs(split="held_out"))
    assert (len(train), len(rest)) == (len(topics) - len(held), len(held))
    assert 0.04 < sum(map(len, rest)) / sum(map(len, train)) < 0.08
    assert sum(map(len, train)) > 400_000


def test_no_paragraph_is_in_both_splits():
    """Law; topics repeat each other, so a split by topic alone would not keep it (the `if` statement is described twice)."""
    train, rest = (
        {paragraph for text in texts(PythonDocs(split=split)) for paragraph in paragraphs(text.split("\n"))}
        for split in ("train", "held_out")
    )
    assert rest and train and not rest & train


def test_a_python_without_topics_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match="lacks pydoc_data"):
        PythonDocs().open()
