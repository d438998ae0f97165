"""The commands as they are typed: what goes to stdout, what to stderr, the exit status, and every mistake in one line."""

import csv
import dataclasses
import errno
import functools
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jaxtyping import PyTree

import flaxformer_lite
from flaxformer_lite.base.console import Failure, Progress
from flaxformer_lite.cli.main import main
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.search.settings import DecodeConfig, Sampling
from flaxformer_lite.files.data.text_files import ParallelText
from flaxformer_lite.files.tokenizers.kinds import save_tokenizer
from flaxformer_lite.training.loop_state import LoopState
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_saved_params, open_checkpoints
from tests.support import needs
from tests.support.commands import Command
from tests.support.experiments import tiny_config, use_one_device, with_train, write_config_file
from tests.support.paths import ROOT

LINES = ["20 nov 2026", "", "20. Nov. 2026", "  ", "2026年11月20日"]
PAIRS = [(f"{day}.{month}.2026", f"2026-{month}-{day}") for day, month in (("20", "11"), ("21", "10"), ("22", "12"))]
LOAD = functools.cache(flaxformer_lite.load)
"""Loads a run once, whose steps then stay compiled. (What loading does is tested in test_run.py.)"""


def run_config(folder: Path) -> Config:
    """Everything of one shape: eight sentences of up to 16 tokens, answers of up to 11."""
    config = tiny_config()
    pairs = ParallelText(source=str(folder / "pairs.source"), target=str(folder / "pairs.target"))
    data = dataclasses.replace(config.data, eval=pairs, bucket_lengths=(16,), max_source_length=16)
    decode = DecodeConfig(max_length_ratio=0, max_length_extra=11, batch_tokens=128)
    model = dataclasses.replace(config.model, vocab_size=23)
    return with_train(dataclasses.replace(config, model=model, data=data, decode=decode), keep_best=2)


def random_params(config: Config, seed: int) -> PyTree:
    """Parameters so large that answers to several sources differ; those of one name are alike in any tree."""

    def draw(keys: tuple[object, ...], x: jax.ShapeDtypeStruct) -> np.ndarray:
        generator = np.random.default_rng([seed, *jax.tree_util.keystr(keys).encode()])
        scale = (0.7 if "embedding" in jax.tree_util.keystr(keys) else 4.0) * x.shape[-1] ** -0.5
        return np.float32(scale * generator.normal(size=x.shape))

    return jax.tree_util.tree_map_with_path(draw, abstract_saved_params(config))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two checkpoints, as the trainer leaves it, with parameters by chance: commands do not know the difference."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    path.mkdir()
    config = run_config(path.parent)
    for side, lines in zip(("source", "target"), zip(*PAIRS, strict=True), strict=True):
        (path.parent / f"pairs.{side}").write_bytes(text(list(lines)))
    write_config_file(path / "config.json", config)
    save_tokenizer(config.data.tokenizer.train([*LINES, *(line for pair in PAIRS for line in pair)], 23), path)
    with open_checkpoints(config, RunFolder(path), read_only=False) as checkpoints:
        for step, seed, loss in ((3, 1, 2.5), (6, 5, 3.5)):
            params, ema = random_params(config, seed), random_params(config, seed + 1)
            checkpoints.save(
                step, {"params": params, "ema": ema}, dataclasses.asdict(LoopState(data="")), {"loss": loss}
            )
    return path


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch):
    use_one_device(monkeypatch)
    monkeypatch.setattr("flaxformer_lite.run.run.load", LOAD)


def text(lines: list[str]) -> bytes:
    return "".join(line + "\n" for line in lines).encode()


@pytest.mark.slow
def test_translate_answers_every_line_in_order(folder: Path, command: Command, tmp_path: Path):
    """Law: one line out for each line in, an empty one for an empty one; a pipe, files and Python agree."""
    out = command("translate", folder, stdin=text(LINES)).out
    answers = out.split("\n")[:-1]
    assert len(answers) == len(LINES)
    assert [not answer for answer in answers] == [not line.strip() for line in LINES]
    (tmp_path / "a.txt").write_bytes(text(LINES[:4]))
    (tmp_path / "b.gz").write_bytes(gzip.compress(text(LINES[3:] + LINES[:1])))
    both = command("translate", folder, tmp_path / "a.txt", tmp_path / "b.gz").out
    assert both.split("\n")[:-1] == [*answers[:4], *answers[3:], answers[0]]
    assert LOAD(str(folder), weights=None).translate(LINES) == answers


def test_ends_of_lines_and_a_byte_order_mark_are_no_part_of_the_text(folder: Path, command: Command):
    expected = command("translate", folder, stdin=text(LINES[2:])).out
    assert len(set(expected.split())) == 2, "all answers are alike: nothing was compared"
    assert command("translate", folder, stdin=b"\xef\xbb\xbf" + text(LINES[2:])[:-1]).out == expected
    assert command("translate", folder, stdin=text(LINES[2:]).replace(b"\n", b"\r\n")).out == expected


def test_n_best_has_index_text_and_score(folder: Path, command: Command, tmp_path: Path):
    out = command("translate", folder, "--beam-size", 3, "--n-best", 2, stdin=text(LINES[:3])).out
    rows = [line.split(" ||| ") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    scores = [float(row[2]) for row in rows]
    assert scores[0] >= scores[1]
    assert rows[2][1] == ""


LONGEST = types.SimpleNamespace(
    rates_with=(False,), sign=1, rate=lambda sources, texts, **_: np.array(list(map(len, texts)), np.float32)
)
"""A metric that rates the longest translation best."""


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--minimum-risk", "bleu", "--beam-size", "3"], {"best_by": "bleu", "beam_size": 3}),
        (
            ["--minimum-risk", "chrf", "--samples", "4", "--temperature", "0.5"],
            {"best_by": "chrf", "samples": 4, "temperature": 0.5},
        ),
        (["--best-by", "longest", "--samples", "4"], {"best_by": LONGEST, "samples": 4}),
    ],
    ids=["bleu", "chrf", "metric"],
)
def test_python_chooses_among_candidates_as_the_shell(
    words: list[str], options: dict[str, Any], folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """Law: the same candidate of each line. By hand: a metric of lengths takes the longest sample, the search another one."""
    monkeypatch.setattr("flaxformer_lite.run.load", lambda path: LONGEST)
    run = LOAD(str(folder), weights=None)
    found = run.translate(LINES, **options)
    assert command("translate", folder, *words, stdin=text(LINES)).lines == found
    assert found != run.translate(LINES)
    if options["best_by"] is LONGEST:
        drawn = run.hypotheses(LINES, sampling=Sampling(), beam_size=1, num_hypotheses=4)
        assert [len(one) for one in found] == [max(len(sample.text) for sample in of_line) for of_line in drawn]


def test_translate_does_what_the_config_says_of_hypotheses(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    run = LOAD(str(folder), weights=None)
    decode = dataclasses.replace(run.config.decode, beam_size=3, num_hypotheses=2)
    several = dataclasses.replace(run, config=dataclasses.replace(run.config, decode=decode))
    expected = command("translate", folder, "--beam-size", 3, "--n-best", 2, stdin=text(LINES[:3]))
    monkeypatch.setattr("flaxformer_lite.run.run.load", lambda path, **weights: several)
    assert command("translate", folder, stdin=text(LINES[:3])) == expected


def test_scores_follow_a_tab(folder: Path, command: Command):
    plain = command("translate", folder, stdin=text(LINES[2:])).out.splitlines()
    scored = [line.split("\t") for line in command("translate", folder, "--scores", stdin=text(LINES[2:])).lines]
    assert [answer for answer, _ in scored] == plain
    assert float(scored[0][1]) < 0


def test_a_table_is_translated_by_its_column_and_keeps_its_rows(folder: Path, command: Command, tmp_path: Path):
    """Law: a translation is that of the text alone, in the row of its text."""
    (tmp_path / "in.csv").write_text(f'id,date\n7,{LINES[0]}\n8,"{LINES[2]}"\n', encoding="utf-8")
    plain = command("translate", folder, stdin=text([LINES[0], LINES[2]])).out.splitlines()
    out, err = command("translate", folder, tmp_path / "in.csv", "--column", "date")
    rows = [[number, line, answer] for number, line, answer in zip("78", (LINES[0], LINES[2]), plain, strict=True)]
    assert (list(csv.reader(out.splitlines())), err) == ([["id", "date", "translation"], *rows], "")
    said = command.mistake("translate", folder, tmp_path / "in.csv")
    assert "0 'id', 1 'date': choose that of the texts by --column" in said


def test_a_line_that_is_too_long_is_cut_with_a_warning_and_answered(folder: Path, command: Command, tmp_path: Path):
    out, err = command("translate", folder, stdin=text(["20 nov 2026", "2" * 50]))
    assert len(out.splitlines()) == 2
    assert err == "warning: stdin: line 2: the source has 50 tokens and was cut to 15 (data.max_source_length)\n"
    (tmp_path / "a").write_bytes(text(LINES))
    (tmp_path / "b").write_bytes(text(["20 nov 2026", "2" * 50]))
    err = command("translate", folder, tmp_path / "a", tmp_path / "b").err
    assert err.startswith(f"warning: {tmp_path}/b: line 2: the source has 50 tokens")


def test_what_is_not_in_the_vocabulary_is_told_once(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch):
    fresh = dataclasses.replace(LOAD(str(folder), weights=None))
    monkeypatch.setattr("flaxformer_lite.run.run.load", lambda path, **weights: fresh)
    out, err = command("translate", folder, stdin=text(["20 nov 2026", "20 ß", "…ß"]))
    assert len(out.splitlines()) == 3
    assert err == "warning: stdin: not in the vocabulary, so the model cannot read it: 'ß', '…'\n"


class Conversation(io.RawIOBase):
    """A stdin whose other end writes a line only when the line before has been answered on stdout."""

    def __init__(self, lines: list[bytes], answered: "Answered"):
        self.lines, self.answered, self.said = iter(lines), answered, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        assert self.answered.flushed == self.said, "it reads on without having answered"
        line = next(self.lines, b"")
        self.said += line.count(b"\n")
        buffer[: len(line)] = line
        return len(line)


class Answered(io.StringIO):
    """A stdout that knows how many of its lines have been flushed."""

    flushed = 0

    def flush(self) -> None:
        self.flushed = self.getvalue().count("\n")


def test_a_pipe_is_answered_as_its_lines_arrive(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Law: a program that writes a line and waits for the answer gets it, and a line that comes in parts is one line."""
    long, lines = text(["2" * 50]), text(LINES)
    chunks = [text(LINES[:3]), b"\n", lines, lines[:17], lines[17:], long, lines[:-1]]
    out = Answered()
    pipe = io.BufferedReader(Conversation(chunks, out))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(pipe, encoding="utf-8"))
    monkeypatch.setattr(sys, "stdout", out)
    main(["translate", str(folder)])
    *every, cut = LOAD(str(folder), weights=None).translate([*LINES, "2" * 15])
    assert out.getvalue().split("\n")[:-1] == [*every[:3], "", *every, *every, cut, *every]
    assert capsys.readouterr().err.startswith("warning: stdin: line 15: the source has 50 tokens")


@pytest.mark.slow
def test_evaluate_prints_json_with_signatures(folder: Path, command: Command, tmp_path: Path):
    """Oracle: sacreBLEU itself on the kept hypotheses; files and the split of the config agree."""
    import sacrebleu

    out = command("evaluate", folder).out
    report = json.loads(out)
    assert report["split"] == "eval"
    assert report["sentences"] == 3
    hypotheses = (folder / "hypotheses" / "eval.txt").read_text().split("\n")[:-1]
    references = [target for _, target in PAIRS]
    assert report["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [references]).score)
    assert report["chrf"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [references]).score)
    assert "tok:13a" in report["bleu_signature"]
    assert "case:lc" in report["bleu_lowercase_signature"]
    assert report["reference_words"] == 3 * 5  # 13a takes 2026-11-20 apart
    assert report["perplexity"] == pytest.approx(np.exp(report["loss"]))
    files = ["--source", folder.parent / "pairs.source", "--target", folder.parent / "pairs.target"]
    out = command("evaluate", folder, *files).out
    assert json.loads(out) == {**report, "split": "files"}


def test_a_failure_is_one_line_and_status_1(folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise Failure("the loss is nan")

    monkeypatch.setattr("flaxformer_lite.tools.ops.inspection.describe", fail)
    assert command.ended("inspect", folder) == (1, ("", "error: the loss is nan\n"))


def test_evaluate_where_nothing_can_be_written_prints_first(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("flaxformer_lite.workdir.folder.write_whole", refuse)
    out, err = command("evaluate", folder)
    assert json.loads(out)["sentences"] == 3
    assert err.count(f"nothing was saved in {folder} (Read-only file system)") == 1


@pytest.mark.slow
def test_the_digest_is_what_its_text_says(folder: Path, command: Command):
    """Oracle: recomputed here from the arrays by the documented format."""
    report = json.loads(command("inspect", folder, "--json").out)
    params = flaxformer_lite.load(folder).params
    leaves: dict[str, np.ndarray] = {}

    def walk(node, path: str) -> None:
        if isinstance(node, dict):
            for name, child in node.items():
                walk(child, f"{path}/{name}" if path else name)
        else:
            leaves[path] = np.asarray(node)

    walk(params, "")
    digest = hashlib.sha256()
    for path in sorted(leaves):
        array = leaves[path]
        digest.update(f"{path} {array.dtype.name} {','.join(map(str, array.shape))}\n".encode())
        digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
    assert report["sha256"] == digest.hexdigest()
    assert report["total"] == sum(array.size for array in leaves.values())
    assert [c["step"] for c in report["checkpoints"]] == [3, 6]
    assert sum(c["best"] for c in report["checkpoints"]) == 1


@pytest.mark.slow
def test_inspect_shows_any_step_and_weights(folder: Path, command: Command):
    digests = {}
    for arguments in (["--step", 3], ["--weights", "best"], ["--weights", "last"], ["--weights", "ema"]):
        out = command("inspect", folder, "--json", *arguments).out
        digests[tuple(arguments)] = json.loads(out)["sha256"]
    assert digests["--step", 3] == digests["--weights", "best"]
    assert len(set(digests.values())) == 3
    out = command("inspect", folder, "--weights", "average:2").out
    lines = out.splitlines()
    assert lines[0] == f"Run {folder}" and lines[1].startswith("  model: encoder of")
    lacking = "position_padding_id, positions"
    assert lines[5] == f"  exports to: Hugging Face: no ({lacking}); CTranslate2: yes"
    assert "encoder/layers/attention/query/kernel" in out
    assert "SHA-256" in out
    assert not any(digest in out for digest in digests.values())


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_with_a_word(folder: Path, command: Command, tmp_path: Path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    for file in (copy / "checkpoints" / "6" / "state").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    out, err = command("inspect", copy, "--json")
    assert json.loads(out)["step"] == 3
    assert "checkpoint 6" in err
    assert "using checkpoint 3" in err
    shutil.rmtree(copy / "checkpoints")
    command.mistake("inspect", copy)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("", ["train, prepare, translate, generate, classify, label, embed, rank, answer, fill-mask, evaluate"]),
        ("tranlsate {run}", ["no command tranlsate", "perhaps you meant translate"]),
        ("xyz {run}", ["no command xyz", "train, prepare, translate, generate, classify, label, embed, rank, answer"]),
        ("translate", ["RUN", "flaxformer-lite translate --help"]),
        ("translate {run} --beam-sise 3", ["--beam-sise 3", "perhaps you meant --beam-size"]),
        ("translate {run} --beam-size three", ["--beam-size", "three"]),
        ("inspect {run} 3", ["inspect does not take 3", "--step, --weights, --verify, --json"]),
        ("export hf {run} {tmp}/x --dry-run", ["export does not take --dry-run; its options are --config, --family"]),
        ("generate {run} --qqq", ["generate does not take --qqq; its options are ", "--mesh.tensor, --mesh.fsdp"]),
        ("import hf {run} {tmp}/x", ["{run} is a run already", "`flaxformer-lite inspect {run}`"]),
        (f"translate {{run}} --terms {os.devnull}", [f"{os.devnull} has no terms", "leave --terms out"]),
        ("translate {run}/nowhere", ["does not exist", "flaxformer-lite train", "import hf ORG/NAME RUN"]),
        ("evaluate {run} --metric {run}/name", ["{run}/name does not exist", "import hf ORG/NAME RUN"]),
        ("translate {tmp}", ["holds no run", "config.json"]),
        ("translate {run} {tmp}/three {tmp}/no-file", ["{tmp}/no-file"]),
        ("translate {run} --beam-size 0", ["error: --beam-size is 0: it must be at least 1"]),
        (
            "translate {run} --n-best 5",
            ["error: --n-best is 5 but decode.beam_size is 1: --n-best must be between 1 and decode.beam_size"],
        ),
        ("evaluate {run} --beam-size -1", ["error: --beam-size is -1: it must be at least 1"]),
        ("translate {run} --weights latest", ["weights is 'latest'", "average:N"]),
        ("translate {run} --mesh.tensor 0", ["error: --mesh.tensor is 0: it must be at least 1, or -1"]),
        ("translate {run} --mesh.tensor 3", ["error: --mesh.fsdp 1, --mesh.tensor 3 do not make up 1 device"]),
        ("translate {run} --weights average:9", ["average:9", "train.keep_latest"]),
        ("evaluate {run} --split test", ["data.test is None in the config", "give source"]),
        ("evaluate {run} --source {tmp}/a", ["give both files"]),
        ("evaluate {run} --source {tmp}/three --target {tmp}/two", ["3", "2"]),
        ("evaluate {run} --source {tmp}/gap --target {tmp}/three", ["{tmp}/gap:2: the source is empty"]),
        ("inspect {run} --step 4", ["4", "3, 6"]),
        ("report {run} -o {tmp}", ["--output is the folder {tmp}", "report.html"]),
    ],
)
def test_a_mistake_is_one_line(folder: Path, command: Command, tmp_path: Path, typed: str, words: list[str]):
    (tmp_path / "three").write_text("a\nb\nc\n")
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "gap").write_text("a\n \nc\n")
    said = command.mistake(*typed.format(run=folder, tmp=tmp_path).split())
    for word in words:
        assert word.format(run=folder, tmp=tmp_path) in said


def test_a_line_that_is_not_utf8_is_reported_and_keeps_its_place(folder: Path, command: Command, tmp_path: Path):
    """Also where lines arrive in a pipe; what is good is answered as without the bad lines."""
    good = ["20 nov 2026", "1 May 1999"]
    (tmp_path / "bad").write_bytes(b"20 nov 2026\n\xff\xfe\n1 May 1999\nGr\xfc\xdfe\n")
    expected = command("translate", folder, stdin="\n".join(good).encode()).out
    first, second = expected.splitlines()
    for name, words, stdin in (
        (tmp_path / "bad", [tmp_path / "bad"], b""),
        ("stdin", [], (tmp_path / "bad").read_bytes()),
    ):
        out, err = command("translate", folder, *words, stdin=stdin)
        assert out.split("\n") == [first, "", second, "", ""]
        remedy = "; convert it, for example with iconv; its answer is empty"
        assert [line for line in err.splitlines() if line.startswith("warning")] == [
            f"warning: {name}, line 2: not UTF-8 (byte 0xff){remedy}",
            f"warning: {name}, line 4: not UTF-8 (byte 0xfc){remedy}",
        ]


def test_no_stdin_and_no_stdout_are_mistakes(folder: Path, capsys: pytest.CaptureFixture, monkeypatch):
    """As after `<&-` and `>&-` in a shell: Python then has None in their places."""
    for stream, name in (("stdin", "input"), ("stdout", "output")):
        with monkeypatch.context() as patch:
            patch.setattr(sys, stream, None)
            with pytest.raises(SystemExit, match="2"):
                main(["translate", str(folder)])
        assert f"there is no standard {name}" in capsys.readouterr().err


@pytest.mark.slow
def test_a_reader_that_closes_ends_it_without_a_word(folder: Path):
    """A real process, as in `… | head -1`."""
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "flaxformer_lite", "inspect", str(folder)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(words, cwd=ROOT, env=buffered, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.slow
def test_ctrl_c_ends_it_without_a_word(folder: Path, tmp_path: Path):
    """A real process, while it reads a file that somebody else is still writing."""
    os.mkfifo(tmp_path / "pipe")
    words = [sys.executable, "-m", "flaxformer_lite", "translate", str(folder), str(tmp_path / "pipe")]
    words += ["--engine", "jax"]  # CTranslate2 would say that it answers

    def hear_ctrl_c() -> None:
        """A job in the background of a script inherits a SIGINT that is ignored, and its children would too."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    done = subprocess.Popen(words, cwd=ROOT, preexec_fn=hear_ctrl_c, **streams)
    with open(tmp_path / "pipe", "wb"):  # waits until the other end is read
        done.send_signal(signal.SIGINT)
        assert (*done.communicate(timeout=60), done.returncode) == (b"", b"", 130)


def test_a_folder_of_pieces_has_the_lines_of_stdout(folder: Path, command: Command, tmp_path: Path):
    """Law: two parts and --join make the bytes of one process; --join alone loads no model; other weights are refused."""
    (tmp_path / "in.gz").write_bytes(gzip.compress(text(LINES)))
    expected = command("translate", folder, tmp_path / "in.gz").out
    for out, options in (("one/", ["1/1"]), ("two/", ["2/2"]), ("two/", ["1/2"])):
        words = ("translate", folder, tmp_path / "in.gz", "-o", f"{tmp_path}/{out}", "--pieces", 2, "--part", *options)
        assert command(*words).out == ""
    for out in ("one", "two"):
        shutil.move(folder, tmp_path / "elsewhere")
        assert command("translate", folder, "-o", f"{tmp_path}/{out}/", "--join").out == ""
        shutil.move(tmp_path / "elsewhere", folder)
    one, two = ({file.name: file.read_bytes() for file in (tmp_path / out).iterdir()} for out in ("one", "two"))
    assert one == two and len(one) == 9 and gzip.decompress(one["answers.txt.gz"]).decode() == expected
    said = command.mistake(*words, "--weights", "ema")
    assert "two was begun with weights = None, and this start has 'ema': start with the old" in said


@pytest.mark.slow
def test_a_translation_that_is_killed_and_interrupted_goes_on(folder: Path, command: Command, tmp_path: Path):
    """Real processes: SIGKILL, then Ctrl-C, each after the next piece; two at once end it."""
    (tmp_path / "in").write_bytes(text(LINES * 60))
    expected = command("translate", folder, tmp_path / "in").out
    out = tmp_path / "out"
    words = ["translate", str(folder), str(tmp_path / "in"), "-o", f"{out}/", "--pieces", "5", "--join"]

    def start() -> subprocess.Popen[str]:
        process = [sys.executable, "-m", "flaxformer_lite", *words]
        heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None  # noqa: E731
        return subprocess.Popen(process, cwd=ROOT, stderr=subprocess.PIPE, text=True, preexec_fn=heard)

    pieces = 0
    for number, status in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        process, before = start(), pieces
        while process.poll() is None and pieces == before:
            time.sleep(0.002)
            pieces = len([*out.glob("0*.txt")])
        process.send_signal(number)
        said = process.communicate()[1]
        assert process.returncode == status and "Traceback" not in said, said
        pieces = len([*out.glob("0*.txt")])
        assert before < pieces < 60
    both = [start(), start()]
    assert all(process.communicate()[1] and process.returncode == 0 for process in both)
    assert (out / "answers.txt").read_text() == expected and not [*out.glob(".*.unfinished")]


@needs.altair
def test_a_report_shows_progress_before_a_run_is_read(command: Command, monkeypatch, tmp_path: Path):
    shown: list[str] = []
    monkeypatch.setattr(Progress, "update", lambda self, activity, step=None: shown.append(activity))
    monkeypatch.chdir(tmp_path)
    command.mistake("report", "missing")
    assert shown == ["reading the runs"]
