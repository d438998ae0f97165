"""Oracle: chunks and messages written by hand; pipes and typed lines are tested with whole commands in test_commands.py."""

from pathlib import Path

import pytest

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.input_lines import BadLines, LineChunk, TextColumns, chosen_blocks, columns, table_blocks
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.files.data import TSV
from flaxformer_lite.tools.pair.folder import read_pairs
from tests.support.files import file

CHUNK = LineChunk(["7 8", "a\tb", "c"], "in.txt", before=40)


def test_lines_of_files_come_in_chunks_that_know_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(input_lines, "LINES_AT_ONCE", 2)
    names = [str(tmp_path / name) for name in ("one", "two", "empty")]
    for name, text in zip(names, ("a\nb\nc\n", "d\n", ""), strict=True):
        Path(name).write_text(text)
    assert list(chosen_blocks(names, "translate")) == [
        LineChunk(["a", "b"], names[0], 0),
        LineChunk(["c"], names[0], 2, index=2),
        LineChunk(["d"], names[1], 0, index=3),
    ]


def test_chunks_know_the_share_of_all_files_that_has_been_read(tmp_path: Path):
    names = [file(tmp_path, "long", "a line of text\n" * 60_000), file(tmp_path, "short", "b\n")]
    shares = [block.share for block in chosen_blocks(names, "translate", size=10_000)]
    assert len(shares) == 7 and shares == sorted(shares) and shares[-1] == 1
    assert 0.1 < shares[2] < 0.4, "of 2 files, 30,000 of 60,000 lines of the first, and at most 256 KiB more"


def test_token_ids_and_columns_of_a_line():
    assert CHUNK.token_ids(0) == [7, 8]
    assert (columns(CHUNK, 1), columns(CHUNK, 2)) == (["a", "b"], ["c"])
    with pytest.raises(ValueError, match=r"^'a\\tb' is no list of token ids: write numbers separated by sp"):
        CHUNK.token_ids(1)
    with pytest.raises(ValueError, match=r"^1 texts separated by tabs: there must be 2$"):
        columns(CHUNK, 2, 2)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (Mistake("has 9 ids", subject="source 0"), "in.txt, line 42 has 9 ids"),
        (ValueError("a prompt is empty"), "in.txt, line 42: a prompt is empty"),
    ],
)
def test_errors_of_a_line_get_its_place(error: ValueError, message: str):
    with pytest.raises(ValueError) as caught, CHUNK.naming(1):
        raise error
    assert str(caught.value) == message


def test_good_lines_come_in_order_around_each_bad_one(capsys: pytest.CaptureFixture):
    """Oracle: parts written by hand. A line that was bad when it was read is not checked again."""
    bad = BadLines()
    bad.add(43, Mistake("not UTF-8", "in.txt, line 43"))
    chunk = LineChunk(["a b", "c", "d", "", "e", "7", "f"], "in.txt", before=40, bad=bad, index=50)

    def read(chunk: LineChunk, number: int) -> str:
        assert number != 2
        if not chunk.lines[number]:
            with chunk.naming(number):
                raise ValueError("it is empty")
        return chunk.lines[number].upper()

    found = list(chunk.answerable(read))
    assert [None if lines is None else lines.read for lines in found] == [("A B", "C"), None, None, ("E", "7", "F")]
    assert found == [
        LineChunk(["a b", "c"], "in.txt", 40, index=50),
        None,
        None,
        LineChunk(["e", "7", "f"], "in.txt", 44, index=54),
    ]
    assert list(LineChunk(["", "a"], "x", 0).answerable()) == [LineChunk(["", "a"], "x", 0)]
    assert capsys.readouterr().err.splitlines() == [
        "warning: in.txt, line 43: not UTF-8; its answer is empty",
        "warning: in.txt, line 44: it is empty; its answer is empty",
    ]


def test_a_file_that_is_no_text_fills_no_screen(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\n" * 40)
    (chunk,) = chosen_blocks([str(path)], "translate")
    assert list(chunk.answerable()) == [None] * 40
    said = capsys.readouterr().err.splitlines()
    assert len(said) == input_lines.MOST_BAD_LINES and said[-1].endswith("; further ones are not listed")


def test_a_text_in_the_place_of_a_file_is_answered_with_the_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"no such file in .*; for a text itself: echo 'a \[MASK\]' \| flaxformer-lite"
    ):
        chosen_blocks(["a [MASK]"], "fill")
    with pytest.raises(ValueError, match=r"absent: no such file in [^;]*$"):
        chosen_blocks(["absent"], "fill")
    (tmp_path / "my data").mkdir(exist_ok=True)
    for other in ("my data", ""):
        with pytest.raises(ValueError) as caught:
            chosen_blocks([other], "fill")
        assert "for a text itself" not in str(caught.value)


@pytest.mark.parametrize("blank", ["", "  ", " \t", "\t \t"])
def test_a_row_without_text_is_an_empty_one_for_every_reader(blank: str, tmp_path: Path):
    """The source of a training, a command of lines, and `pair`: no row of other columns, whatever white space it has."""
    path = file(tmp_path, "a.tsv", f"one\teins\n{blank}\ntwo\tzwei\n")
    wanted = [("one", "eins"), ("two", "zwei")]
    assert [tuple(pair[:2]) for pair in TSV(path=path, empty_lines="drop").open()] == wanted
    assert [tuple(pair[:2]) for pair in read_pairs([path])] == [wanted[0], ("", ""), wanted[1]]
    (block,) = chosen_blocks([path], "translate", TextColumns(((0,), (1,)), wanted=2, typed=True))
    assert [row.texts for row in block.rows] == [wanted[0], ("", ""), wanted[1]] and not block.bad.numbers


@pytest.mark.parametrize(
    ("name", "content", "line", "texts"),
    [
        ("a.tsv", b"1\tab\n2\t\xff\n3\tcd\n", 2, ["ab", "", "cd"]),
        ("a.csv", b'1,ab\n2,"x\n\xff\ny"\n3,cd\n', 3, ["ab", "x\n\ny", "cd"]),
    ],
)
def test_a_row_of_a_table_that_is_not_utf8_is_a_bad_row(
    name: str, content: bytes, line: int, texts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
):
    """By hand: the second row, of one line or of three. The others are read, and the count of rows stays."""
    (tmp_path / name).write_bytes(content)
    (block,) = table_blocks(str(tmp_path / name), TextColumns(((1,),), typed=True))
    assert block.lines == texts and block.bad.numbers == {2}
    assert f"{name}:{line}: not UTF-8 (byte 0xff)" in capsys.readouterr().err


def test_a_tsv_with_quotes_says_that_they_are_no_part_of_its_texts(tmp_path: Path, capsys: pytest.CaptureFixture):
    """The source `tsv` learns them."""
    for content, text, said in (
        ('"a ""b"""\t"c"\n' * 3, 'a "b"', True),
        ('say "b"\tc\n' * 3, 'say "b"', False),
        ('"a ""b"""\tc\n"Hi" he said\ty\n', '"a ""b"""', False),
    ):
        (tmp_path / "a.tsv").write_text(content)
        (block,) = table_blocks(str(tmp_path / "a.tsv"), TextColumns(((0,),), typed=True))
        assert (block.lines[0], "double quotes" in capsys.readouterr().err) == (text, said)


def test_a_header_that_is_not_utf8_is_named(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes(b"t\xe9xt,more\nab,cd\n")
    with pytest.raises(ValueError, match=r"a\.csv:1: not UTF-8 \(byte 0xe9\).*the header"):
        next(table_blocks(str(tmp_path / "a.csv"), TextColumns((("text",),), header=True, typed=True)))
