"""Sweeps. Oracles: runs that `train` makes alone, bit for bit; means and deviations by hand; combinations typed out."""

import json
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite import load, train
from flaxformer_lite.base.console import Failure
from flaxformer_lite.config import load_config, to_json
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.tools import sweep as sweeping
from flaxformer_lite.tools.corpus.part import Part
from flaxformer_lite.tools.sweep import Member, axis, member_name, members_of, sweep, sweep_table
from flaxformer_lite.training import loop, setup
from flaxformer_lite.workdir import RunFolder
from tests.support.commands import Command
from tests.support.experiments import tiniest_config, use_one_device

RATES = "optimizer.schedule.peak-rate=1e-2,3e-3"
NAMES = ["peak-rate=1e-2,seed=0", "peak-rate=1e-2,seed=1", "peak-rate=3e-3,seed=0", "peak-rate=3e-3,seed=1"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A config file; the tests stand in its folder."""
    use_one_device(monkeypatch)
    monkeypatch.chdir(tmp_path)
    Path("tiny.json").write_text(to_json(tiniest_config()))
    return "tiny.json"


def trained(folder: Path) -> list[str]:
    return sorted(path.parent.name for path in folder.glob("*/config.json"))


@pytest.mark.slow
def test_a_sweep_trains_what_is_missing_and_ends_with_a_table(
    config: str, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """A part is trained, the other run is missing; then the whole. A run has the bits of the same training alone."""
    output, names = Path("runs/sweep"), ["peak-rate=1e-2", "peak-rate=3e-3"]
    words = ("train", config, "--sweep", RATES, "-o", output)
    starts: list[str] = []
    monkeypatch.setattr(loop, "set_up", lambda run: starts.append(run.folder.path.name) or setup.set_up(run))
    said = command(*words, "--part", "1/2")
    assert trained(output) == starts == names[:1] and said.out == ""
    missing = "1 of 2 runs are not complete: the table comes with the last --part, or without --part"
    assert said.notes[-1] == missing
    said = command(*words)
    assert trained(output) == starts == names
    head, *lines = said.lines
    assert head.split()[:3] == ["run", "step", "loss"] and sorted(line.split()[0] for line in lines) == names
    losses = [float(line.split()[2]) for line in lines]
    assert losses == sorted(losses)
    assert (output / "sweep.txt").read_text() == said.out and (output / "sweep.png").read_bytes()[:4] == b"\x89PNG"
    assert command(*words).out == said.out and starts == names
    alone = train(load_config(config, ["--optimizer.schedule.peak-rate", "3e-3"]), "runs/alone")
    ours, theirs = (leaves_by_path(run.params) for run in (load(output / names[1]), alone))
    assert ours.keys() == theirs.keys()
    for path in ours:
        np.testing.assert_array_equal(ours[path], theirs[path])


def test_combinations_by_hand(config: str):
    sweeps = [RATES, "data.bucket-lengths=20,20 30"]
    members = members_of(config, Path("out"), ["--train.steps", "7"], sweeps, None, False)
    assert [(member.name, member.values) for member in members] == [
        (name, name)
        for name in (
            "peak-rate=1e-2,bucket-lengths=20", "peak-rate=1e-2,bucket-lengths=20-30",
            "peak-rate=3e-3,bucket-lengths=20", "peak-rate=3e-3,bucket-lengths=20-30",
        )
    ]  # fmt: skip
    assert members[1].config.data.bucket_lengths == (20, 30) and {member.config.train.steps for member in members} == {
        7
    }
    seeded = members_of(config, Path("out"), ["--train.seed", "5"], [], 2, False)
    assert [(member.name, member.values, member.config.train.seed) for member in seeded] == [
        ("seed=5", "", 5),
        ("seed=6", "", 6),
    ]
    assert (
        member_name({"--model.dropout.rate": "1", "--model.lora.rate": "a/b"})
        == "model.dropout.rate=1,model.lora.rate=a-b"
    )
    assert axis("a.b_c=1 2,x") == ("--a.b-c", ["1 2", "x"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sweep", "train.steps"], "--sweep is 'train.steps': it must be a setting and values that differ, such as"),
        (["--sweep", "train.steps=5,5"], "--sweep is 'train.steps=5,5': it must be a setting and values that differ"),
        (["--sweep", "train.steps=5,"], "--sweep is 'train.steps=5,': it must be a setting and values that differ"),
        (
            ["--sweep", "train.steps=5,6", "--train.steps", "7"],
            "--sweep train.steps=5,6: train.steps is set twice: name it once",
        ),
        (["--sweep", "train.steps=5,6", "--sweep", "train.steps=7"], "--sweep train.steps=7: train.steps is set twice"),
        (
            ["--sweep", "train.seed=5,6", "--seeds", "2"],
            "--seeds is 2, and --sweep sets train.seed: leave one of them out",
        ),
        (["--seeds", "0"], "--seeds is 0: it must be at least 1"),
        (
            ["--sweep", "model.d-model=12,13"],
            "the run d-model=13: model.d_model 13 is not divisible by model.num_heads 3",
        ),
        (["--sweep", "lr=1,2"], "the run lr=1: there is no option --lr; it is --optimizer.schedule.peak-rate"),
        (["--sweep", "train.steps=5,6", "--part", "3/2"], "the part is 3/2, by --part"),
        (
            ["--sweep", "train.steps=5,6", "--workdir", "x"],
            "--workdir is for one run: leave it out, or --sweep and --seeds",
        ),
        (["--sweep", "train.steps=5,6", "--json"], "--json is for one run"),
        (["--sweep", "train.seed=a/b,a-b"], "the run seed=a-b: train.seed is 'a/b'"),
        (["--sweep", "data.eval=none"], "the run eval=none: data.eval is 'none'"),
    ],
)
def test_a_mistake_is_told_before_anything_is_trained(words: list[str], said: str, config: str, command: Command):
    assert command.mistake("train", config, "-o", "out", *words).startswith(f"error: {said}")
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seeds", "2"], "several runs need a folder: add -o FOLDER, such as -o runs/sweep"),
        (["-o", "x"], "--output is for several runs: add --sweep or --seeds, or leave it out"),
        (["--part", "1/2"], "--part is for several runs"),
    ],
)
def test_options_of_several_runs_belong_together(words: list[str], said: str, config: str, command: Command):
    assert command.mistake("train", config, *words).startswith(f"error: {said}")


def test_a_folder_of_another_run_is_named_before_anything_is_trained(config: str, monkeypatch: pytest.MonkeyPatch):
    folder = Path("out/steps=6")
    (folder / "checkpoints" / "5").mkdir(parents=True)
    (folder / "config.json").write_text(to_json(load_config(config, ["--train.steps", "6", "--model.d-ff", "7"])))
    monkeypatch.setattr(loop, "train", lambda *words, **options: pytest.fail("trained"))
    with pytest.raises(ValueError, match=r"the run steps=6: .*model\.d_ff was 7"):
        sweep(config, "out", sweeps=["train.steps=5,6"])


def test_a_sweep_that_is_stopped_has_no_table(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    begun: list[str] = []

    def stopped(config: object, folder: Path, **options: object) -> int:
        begun.append(folder.name)
        return 15 if len(begun) == 2 else 0

    monkeypatch.setattr(loop, "train", stopped)
    assert sweep(config, "out", sweeps=["train.steps=5,6,7"]) is None and begun == ["steps=5", "steps=6"]
    assert capsys.readouterr().err.splitlines() == [
        "run 1 of 3: out/steps=5",
        "run 2 of 3: out/steps=6",
        "the sweep was stopped, so there is no table; the same command continues it",
    ]


def test_a_run_that_fails_is_left_out(config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    def failing(config: object, folder: Path, **options: object) -> int:
        if folder.name == "steps=5":
            raise Failure("10 steps in a row")
        return 0

    monkeypatch.setattr(loop, "train", failing)
    monkeypatch.setattr(sweeping, "is_complete", lambda member: True)
    monkeypatch.setattr(sweeping, "draw", lambda members, path: None)
    monkeypatch.setattr(RunFolder, "rows", lambda folder: [{"step": 1, "split": "eval", "loss": 1.0}])
    Path("out").mkdir()
    lines = sweep(config, "out", sweeps=["train.steps=5,6"])
    assert lines is not None and [line.split()[0] for line in lines] == ["run", "steps=6"]
    assert "warning: the run steps=5 has failed: 10 steps in a row" in capsys.readouterr().err


def test_the_table_by_hand(tmp_path: Path):
    """The best of two evaluations; losses 1 and 2 have mean 1.5 and deviation 0.70711; a number that is missing is –."""
    members = []
    for name, values, rows in (
        ("a,seed=0", "a", [("train", 0.0, None), ("eval", 3.0, 0.5), ("eval", 2.0, 0.25)]),
        ("a,seed=1", "a", [("eval", 1.0, None)]),
        ("b,seed=0", "b", [("eval", None, None)]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        lines = (
            json.dumps({"step": step, "split": split, "loss": loss, "accuracy": accuracy})
            for step, (split, loss, accuracy) in enumerate(rows, 1)
        )
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        members.append(Member(values, tiniest_config(), RunFolder(folder)))
    assert [line.split() for line in sweep_table(members)] == [
        ["run", "step", "loss", "accuracy"],
        ["a,seed=1", "1", "1", "–"],
        ["a,seed=0", "3", "2", "0.25"],
        ["b,seed=0", "–", "–", "–"],
        ["a", "(2", "seeds)", "1.5", "±", "0.71", "–"],
    ]


def test_shares_are_disjoint_and_whole(config: str, monkeypatch: pytest.MonkeyPatch):
    begun: list[str] = []
    monkeypatch.setattr(loop, "train", lambda config, folder, **options: begun.append(folder.name) or 0)
    for number in (1, 2, 3):
        sweep(config, "out", sweeps=[RATES], seeds=2, part=Part(number, 3, "--part"))
    assert sorted(begun) == NAMES
