"""Oracle: chunks and messages written by hand; pipes and typed lines are tested with whole commands in test_commands.py."""

from pathlib import Path

import pytest

from flaxformer_lite.cli import input_lines
from flaxformer_lite.cli.input_lines import LineChunk, chosen_blocks, columns

CHUNK = LineChunk(["7 8", "a\tb", "c"], "in.txt", before=40)


def test_lines_of_files_come_in_chunks_that_know_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(input_lines, "LINES_AT_ONCE", 2)
    names = [str(tmp_path / name) for name in ("one", "two", "empty")]
    for name, text in zip(names, ("a\nb\nc\n", "d\n", ""), strict=True):
        Path(name).write_text(text)
    assert list(chosen_blocks(names, "translate")) == [
        LineChunk(["a", "b"], names[0], 0),
        LineChunk(["c"], names[0], 2),
        LineChunk(["d"], names[1], 0),
    ]


def test_token_ids_and_columns_of_a_line():
    assert CHUNK.token_ids(0) == [7, 8]
    assert (columns(CHUNK, 1), columns(CHUNK, 2)) == (["a", "b"], ["c"])
    with pytest.raises(
        ValueError, match=r"^in\.txt, line 42: 'a\\tb' is no list of token ids: write numbers separated by sp"
    ):
        CHUNK.token_ids(1)
    with pytest.raises(ValueError, match=r"^in\.txt, line 43: 1 texts separated by tabs: there must be 2$"):
        columns(CHUNK, 2, 2)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("line 3: it is empty", "in.txt, line 3: it is empty"),
        ("prompt 6: it is empty", "in.txt, line 42: it is empty"),
        ("decode.alpha is nan", "decode.alpha is nan"),
    ],
)
def test_errors_that_name_a_line_or_a_prompt_get_the_source(error: str, message: str):
    with pytest.raises(ValueError) as caught, CHUNK.naming(5):
        raise ValueError(error)
    assert str(caught.value) == message


def test_a_file_that_is_no_text_fills_no_screen(tmp_path: Path, capsys: pytest.CaptureFixture):
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\n" * 40)
    assert sum(len(chunk.lines) for chunk in chosen_blocks([str(path)], "translate", keep_bad=True)) == 40
    said = capsys.readouterr().err.splitlines()
    assert len(said) == input_lines.MOST_BAD_LINES and said[-1].endswith("; further ones are not listed")


def test_a_text_in_the_place_of_a_file_is_answered_with_the_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for keep_bad in (False, True):
        with pytest.raises(
            ValueError, match=r"no such file in .*; for a text itself: echo 'a \[MASK\]' \| flaxformer-lite"
        ):
            chosen_blocks(["a [MASK]"], "fill", keep_bad=keep_bad)
        with pytest.raises(ValueError, match=r"absent: no such file in [^;]*$"):
            chosen_blocks(["absent"], "fill", keep_bad=keep_bad)
        (tmp_path / "my data").mkdir(exist_ok=True)
        for other in ("my data", ""):
            with pytest.raises(ValueError) as caught:
                chosen_blocks([other], "fill", keep_bad=keep_bad)
            assert "for a text itself" not in str(caught.value)
