"""Oracle: the lines that the same command prints. Runs are made up; `test_commands.py` has whole commands with a model."""

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from flaxformer_lite.base.console import Progress
from flaxformer_lite.base.sealed_files import read_sealed
from flaxformer_lite.cli import output
from flaxformer_lite.cli.answering import Answering, answer_lines
from flaxformer_lite.cli.commands.task import TaskAnswering
from flaxformer_lite.cli.commands.task import write as write_task
from flaxformer_lite.cli.input_lines import LineChunk, TextColumns, chosen_blocks
from flaxformer_lite.cli.main import COMMANDS, Parser, command_of, run
from flaxformer_lite.cli.options import chosen_output
from flaxformer_lite.files.text.files import line_chunks
from flaxformer_lite.tasks.embed.lines import Lines as EmbedLines
from flaxformer_lite.tasks.lines import Columns

RUN = cast(Any, SimpleNamespace(origin=[(3, "of a config", "of parameters")]))


@dataclass(frozen=True)
class Shouting(Answering[str]):
    """The text of a line in capitals; a line of digits has no answer."""

    names: tuple[str, ...] = ()

    @property
    def columns(self) -> Columns[str]:
        return dict.fromkeys(self.names, str)

    def read(self, block: LineChunk, number: int) -> str:
        if block.lines[number].isdecimal():
            with block.naming(number):
                raise ValueError("a number")
        return block.lines[number]

    def answers(self, block: LineChunk) -> Iterator[str]:
        with block.reporting("shouting") as report:
            report["progress"]("", 1, 1)
            yield from map(str.upper, block.lines)

    def written(self, index: int, answer: str) -> list[list[str]]:
        return [[answer]]


def parsed(command: str, *words: str | Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command_of(command).add_arguments(parser)
    return parser.parse_intermixed_args(["RUN", *map(str, words)])


def write(arguments: argparse.Namespace, answering: Answering[Any], columns: TextColumns | None = None) -> None:
    blocks = chosen_blocks(arguments.files, "shout at", columns, arguments.pieces)
    output.write_answers(blocks, answering, chosen_output(arguments), [RUN])


def test_pieces_have_the_lines_that_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Several files, a bad line, one that is no UTF-8; the first file says how answers are packed."""
    (tmp_path / "a.en.gz").write_bytes(gzip.compress("a\n7\nä\n\nb".encode()))
    (tmp_path / "b.en").write_bytes(b"\xff\nc\r\n")
    files = [str(tmp_path / name) for name in ("a.en.gz", "b.en")]
    answer_lines(chosen_blocks(files, "shout at"), Shouting())
    printed, told = capsys.readouterr()
    assert printed == "A\n\nÄ\n\nB\n\nC\n"
    write(parsed("translate", *files, "-o", f"{tmp_path}/out", "--pieces", "2", "--join"), Shouting())
    pieces = [gzip.decompress(file.read_bytes()).decode() for file in sorted((tmp_path / "out").glob("0*.txt.gz"))]
    assert pieces == ["A\n\n", "Ä\n\n", "B\n", "\nC\n"]
    assert gzip.decompress((tmp_path / "out" / "answers.txt.gz").read_bytes()).decode() == printed
    said = capsys.readouterr().err
    assert all(line in said for line in told.splitlines()) and "line 2: a number; its answer is empty" in said
    assert "part 1/1 (no --part, no cluster)" in said and "7 lines answered" in said


@pytest.mark.parametrize("kind", [".tsv", ".csv.xz", ".csv.zst"])
def test_answers_stand_beside_the_rows_of_tables(tmp_path: Path, capsys: pytest.CaptureFixture, kind: str):
    """Law: a header is printed with the first piece of a table that has another; also if another process answers that piece."""
    names = [f"{tmp_path}/{name}{kind}" for name in "abc"]
    mark = "\t" if kind == ".tsv" else ","
    for name, header in zip(names, ("n,more", "n,more", "n,other"), strict=True):
        Path(name).write_text("".join(f"{row}\n" for row in (header, "x,1", "y,2", "z,3")).replace(",", mark))
    columns = TextColumns((("n",),), header=True, typed=True)
    answer_lines(chosen_blocks(names, "shout at", columns), Shouting(("loud",)))
    printed = capsys.readouterr().out
    assert printed.count("loud") == 2
    for share in ("2/2", "1/2"):
        options = ("-o", f"{tmp_path}/out/", "--pieces", "2", "--part", share, "--join", "--column", "n")
        write(parsed("translate", *names, *options), Shouting(("loud",)), columns)
        assert (tmp_path / "out" / f"answers{kind.removesuffix('.zst')}").exists() == (share == "1/2")
    pieces = [file.name for file in sorted((tmp_path / "out").glob("0*[!n]"))]
    assert pieces == [f"000000{number}{kind.removesuffix('.zst')}" for number in range(6)]
    joined = line_chunks(tmp_path / "out" / f"answers{kind.removesuffix('.zst')}")
    assert "".join(f"{line}\n" for lines in joined for line in lines) == printed


def test_a_long_work_shows_its_activity_speed_and_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shown = list[object]()
    monkeypatch.setattr(Progress, "within", lambda self, *about: shown.append(about))
    monkeypatch.setattr(Progress, "show", lambda self, *about: shown.append(about))
    (tmp_path / "a").write_text("a\nb\nc\n")
    (tmp_path / "b").write_text("c\n")
    write(parsed("translate", tmp_path / "a", tmp_path / "b", "-o", f"{tmp_path}/out/", "--pieces", "2"), Shouting())
    assert shown[:3] == [("shouting", 0, 2), ("shouting", 1, 2), ("corpus", "2 lines answered")]
    assert re.fullmatch(r"4 lines answered, [\d,.]+ a second, 100% read, 0 s left", cast(Any, shown[-1])[1])


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_beside_a_folder_of_answers_has_its_mark(name: str, monkeypatch: pytest.MonkeyPatch):
    """By hand: the options that decide no answer, or whose values stand in the manifest under another name."""

    def stop(parser: argparse.ArgumentParser, words: object) -> None:
        stopped.append(parser)
        raise SystemExit

    stopped = list[argparse.ArgumentParser]()
    monkeypatch.setattr(Parser, "parse_known_intermixed_args", stop)
    with pytest.raises(SystemExit):
        run(name, ["RUN"])
    options, marks = {action.dest for action in stopped[0]._actions} - {"help"}, stopped[0].get_default("marks")
    if "join" in options:
        assert marks.keys() == options
        beside = {
            "folder",
            "ensemble",
            "files",
            "terms",
            "prompts",
            "output",
            "pieces",
            "part",
            "join",
            "quiet",
            "imports",
        }
        assert {option for option, mark in marks.items() if not mark.decides} == beside & options


def test_the_manifest_has_what_decides_the_answers(tmp_path: Path):
    (tmp_path / "lines").write_text("a\n")
    (tmp_path / "terms").write_text("dog\tHund\n")
    words = (tmp_path / "lines", "-o", f"{tmp_path}/out/", "--terms", tmp_path / "terms", "--beam-size", "4")
    write(parsed("translate", *words, "--part", "1/1"), Shouting())
    facts = read_sealed(tmp_path / "out" / "corpus.json")
    assert facts["run"] == "RUN" and facts["steps"] == [3] and facts["files"] == ["lines"] and facts["beam_size"] == 4
    assert facts["pieces"] == 4096 and facts["command"] == "translate" and facts["number_of_lines"] == 1
    assert not {"part", "join", "output", "settings"} & facts.keys() and json.dumps(facts)
    both = chosen_output(parsed("translate", *words)).facts([RUN, RUN])
    assert both["steps"] == [3, 3] and both["parameters"] == ["of parameters"] * 2  # the second: the run of --best-by
    write(parsed("translate", *words, "--join"), Shouting())
    for other, name in ((["--scores"], "scores"), (["--pieces", "7"], "pieces"), (["--alpha", "2"], "alpha")):
        with pytest.raises(ValueError, match=f"begun with {name} = "):
            write(parsed("translate", *words, *other), Shouting())
    (tmp_path / "terms").write_text("dog\tKatze\n")
    with pytest.raises(ValueError, match="begun with content_of_terms = "):
        write(parsed("translate", *words), Shouting())


def test_a_line_that_is_no_text_is_another_one_than_a_blank_line(tmp_path: Path):
    """Else a piece of the old input stands for the mended one."""
    words = (tmp_path / "in", "-o", f"{tmp_path}/out/", "--pieces", "2")
    (tmp_path / "in").write_bytes(b"a\n\xff\nb\n\n")
    write(parsed("translate", *words), Shouting())
    (tmp_path / "in").write_bytes(b"a\n\nb\n\n")
    with pytest.raises(ValueError, match="in, lines 1 to 2 are not the lines that "):
        write(parsed("translate", *words), Shouting())


def test_a_task_of_a_cluster_answers_what_no_other_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Oracle: the folder of a process alone. Each task of a step may have files of its own; `--part` is obeyed as it is."""
    (tmp_path / "in").write_text("".join(f"line {number}\n" for number in range(20)))
    folders = {name: f"{tmp_path}/{name}/" for name in ("alone", "task", "part")}
    words = (tmp_path / "in", "--pieces", "2", "-o")
    write(parsed("translate", *words, folders["alone"], "--join"), Shouting())
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    write(parsed("translate", *words, folders["task"], "--join"), Shouting())
    write(parsed("translate", *words, folders["part"], "--part", "2/4"), Shouting())
    files = {
        name: {file.name: file.read_bytes() for file in Path(folder).glob("[!.]*")} for name, folder in folders.items()
    }
    assert files["task"] == files["alone"] and len(files["part"]) == 2 * 3 + 1


class Measuring:
    """A task whose vector of a text has its length."""

    def check_asked(self, model: object, asked: str, line: int) -> None: ...

    def answers(self, model: object, asked: list[str], **report: object) -> list[np.ndarray]:
        return [np.float32([len(text), 1]) for text in asked]


def test_vectors_of_pieces_are_joined_to_the_file_of_one_process(tmp_path: Path):
    (tmp_path / "lines").write_bytes(b"abc\n\xff\n\nabcdefg\na\n")
    for place in ("vectors.npy", "out/"):
        options = ("--pieces", "2", "--join") if place == "out/" else ()
        arguments = parsed("embed", tmp_path / "lines", "-o", f"{tmp_path}/{place}", *options)
        blocks = chosen_blocks(arguments.files, "embed", None, arguments.pieces)
        model = SimpleNamespace(vector_width=2)
        answering = TaskAnswering(cast(Any, model), cast(Any, Measuring()), EmbedLines(False, None, None))
        write_task(blocks, answering, chosen_output(arguments), RUN)
    whole = (tmp_path / "vectors.npy").read_bytes()
    assert (tmp_path / "out" / "answers.npy").read_bytes() == whole
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy")[:, 0], [3, np.nan, np.nan, 7, 1])


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("translate", ["in", "--pieces", "0"], "--pieces is for a folder of answers: add -o OUT/, or leave it out"),
        ("translate", ["in", "-o", "out.txt"], "-o out.txt has no slash at its end: write -o out.txt/ for"),
        (
            "embed",
            ["in", "-o", "out.npy", "--part", "1/2"],
            "-o out.npy has no slash at its end: write -o out.npy/ for",
        ),
        ("classify", ["in", "--pieces", "7"], "--pieces is for a folder of answers: add -o OUT/, or leave"),
        ("generate", ["--file", "in", "--join"], "--join is for a folder of answers: add -o OUT/, or leave"),
        ("translate", ["in", "-o", "out", "--pieces", "0"], "--pieces is 0: it must be at least 1"),
        ("translate", ["-o", "out/"], "-o out/ needs lines that can be read again: name a FILE in place of stdin"),
        ("translate", ["-o", "none/", "--join"], "none/ has no corpus.json: give the folder of -o"),
        ("embed", ["in", "-o", "out/", "--similarity"], "leave one of them out"),
        ("generate", ["a prompt", "-o", "out/"], "-o is for the prompts of a --file, each by itself: leave out"),
        ("generate", ["--file", "in", "--chat", "-o", "out/"], "-o is for the prompts of a --file, each by itself: l"),
        ("translate", ["in", "-o", "/proc/out/"], "cannot be created: the folder /proc is not writable"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_a_model_is_read(
    command: str, words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    if "/proc/out/" in words:
        monkeypatch.setattr("os.access", lambda path, mode: str(path) != "/proc")
    with pytest.raises(ValueError) as caught:
        command_of(command).run(parsed(command, *words))
    assert message in str(caught.value)
    assert [*tmp_path.iterdir()] == []
