"""Laws of exports: an answer is always that of the run as it is now, one export is made, and what goes wrong is one line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.base.sealed_files import file_digest, read_sealed, sealed, write_sealed
from flaxformer_lite.engine import exports
from flaxformer_lite.engine.engine_run import open_engine
from flaxformer_lite.engine.exports import RunWeights, export_name, export_of, key, own_config, signed, state_of
from flaxformer_lite.run import load
from tests.support import needs
from tests.support.engine_runs import LINES, run_config, save
from tests.support.paths import ROOT

pytestmark = [needs.ctranslate2, pytest.mark.usefixtures("one_device")]


def names(folder: Path) -> set[str]:
    return {path.name for path in (folder / "engine").iterdir() if path.is_dir()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache of exports."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "flaxformer_lite" / "engine"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[RunWeights]:
    """The exports that are asked for; none is made: each folder has its facts alone."""
    made: list[RunWeights] = []

    def export(wanted: RunWeights, state: str, output: Path, lock: int | None) -> tuple[int, str]:
        made.append(wanted)
        output.mkdir()
        write_sealed(output / exports.FACTS, signed({"files": {}, "number": len(made)}))
        return 0, ""

    monkeypatch.setattr(exports, "run_exporter", export)
    return made


def edit(folder: Path) -> None:
    """Another setting of decoding in config.json."""
    file = folder / "config.json"
    tree = json.loads(file.read_text())
    tree["decode"]["alpha"] = 0.5
    file.write_text(json.dumps(tree))


def rewrite_metrics(folder: Path) -> None:
    """Another evaluation of a checkpoint, by which another one is the best."""
    file = folder / "checkpoints" / "6" / "meta" / "meta.json"
    document = json.loads(file.read_text())
    document["content"]["metrics"]["loss"] = 0.5
    file.write_text(json.dumps(sealed(document["content"])))


def lose_newest(folder: Path) -> None:
    """A deletion of the newest checkpoint, as after a rollback."""
    shutil.rmtree(folder / "checkpoints" / "6")


def change_tokenizer(folder: Path) -> None:
    (file,) = folder.glob("tokenizer.*")
    file.write_bytes(file.read_bytes() + b"\n")


def change_target_tokenizer(folder: Path) -> None:
    file = folder / "target_tokenizer.model"
    file.write_bytes(file.read_bytes() + b"\n" if file.is_file() else b"")


CHANGES: tuple[Callable[[Path], Any], ...] = (
    lambda folder: save(folder, run_config(), 9, seed=7),
    rewrite_metrics,
    lose_newest,
    change_tokenizer,
    change_target_tokenizer,
    edit,
)


def test_signs_of_life_of_a_training_in_a_bucket_are_no_new_state(tmp_path: Path) -> None:
    """By hand: the ledger's holder and beat decide no answer, its checkpoints do."""
    ledger = {"holder": {"mark": "a"}, "start": 1, "beat": 7, "steps": {"40": "checkpoints/40/state.1-0"}}

    def state(**values: Any) -> str:
        (tmp_path / ".run.json").write_text(json.dumps(ledger | values), encoding="utf-8")
        return state_of(str(tmp_path))

    assert state() == state(holder=None, beat=8) != state(steps={"40": "checkpoints/40/state.2-0"})


@pytest.mark.parametrize(
    "change", CHANGES, ids=["trained_on", "evaluated", "lost", "tokenizer", "target_tokenizer", "edited"]
)
def test_another_state_of_a_run_has_another_export(
    folder: Path, change: Callable[[Path], Any], counted: list[RunWeights]
):
    wanted = RunWeights(str(folder))
    first = export_of(wanted)
    assert export_of(wanted) == first and len(counted) == 1
    change(folder)
    assert export_of(wanted).facts["number"] == 2


@pytest.mark.parametrize("other", [{"weights": "best"}, {"weights": "ema"}, {"step": 3}])
def test_other_weights_have_an_export_of_their_own(folder: Path, other: dict[str, Any]):
    run, state = str(folder), state_of(str(folder))
    assert export_name(RunWeights(run), state) != export_name(RunWeights(run, **other), state)
    alike = RunWeights(run, dtype="int8"), RunWeights(run, imports=("one.py",))
    assert {export_name(one, state) for one in alike} == {export_name(RunWeights(run), state)}


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_a_config_that_cannot_be_read_is_for_jax_to_report(tmp_path: Path, content: str):
    (tmp_path / "config.json").write_text(content)
    assert own_config(str(tmp_path)) is None


def test_a_state_that_comes_back_has_its_export(folder: Path, counted: list[RunWeights]):
    before = (folder / "config.json").read_bytes()
    first = export_of(RunWeights(str(folder)))
    edit(folder)
    export_of(RunWeights(str(folder)))
    (folder / "config.json").write_bytes(before)
    assert export_of(RunWeights(str(folder))) == first and len(counted) == 2


@pytest.mark.slow
def test_answers_are_those_of_the_run_as_it_is(folder: Path):
    """Oracle: the run in JAX, after each change."""
    seen = set()

    def same(**options: Any) -> None:
        engine = open_engine(RunWeights(str(folder), options.get("weights")))
        answers = engine.translator.translate(LINES)
        assert answers == load(folder, **options).translate(LINES)
        seen.add(tuple(answers))

    same()
    same(weights="best")
    same(weights="average:2")
    save(folder, run_config(), 9, seed=7)
    same()
    lose_newest(folder)
    same()
    edit(folder)
    same(weights="best")
    assert len(seen) > 2


def test_a_run_keeps_the_exports_that_were_used_last(folder: Path, counted: list[RunWeights]):
    wanted = [RunWeights(str(folder), f"average:{number}") for number in range(2, 6)]
    made = [export_of(one).folder.name for one in wanted[:3]]
    os.utime(folder / "engine" / made[0], (1, 1))
    os.utime(folder / "engine" / made[1], (2, 2))
    export_of(wanted[0])  # used again
    newest = export_of(wanted[3]).folder.name
    assert names(folder) == {made[0], made[2], newest}


def test_the_cache_has_a_limit(cache: Path, folder: Path, counted: list[RunWeights], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exports, "export_folders", lambda run: [cache])
    first = export_of(RunWeights(str(folder), "last"))
    os.utime(first.folder, (1, 1))
    second = export_of(RunWeights(str(folder), "best"))
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {first.folder.name, second.folder.name}
    monkeypatch.setattr(
        exports, "MOST_CACHE_BYTES", exports.bytes_in(first.folder) + exports.bytes_in(second.folder) + 1
    )
    third = export_of(RunWeights(str(folder), "ema"))
    assert {path.name for path in cache.iterdir() if path.is_dir()} == {second.folder.name, third.folder.name}


def test_a_read_only_run_is_exported_to_the_cache(
    folder: Path, cache: Path, counted: list[RunWeights], monkeypatch: pytest.MonkeyPatch
):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: folder not in Path(path).parents and real(path, mode))
    assert export_of(RunWeights(str(folder))).folder.parent == cache
    assert export_of(RunWeights(str(folder))).folder.parent == cache and len(counted) == 1


def test_a_run_at_an_address_is_exported_to_the_cache(folder: Path, cache: Path, counted: list[RunWeights]):
    wanted = RunWeights(f"file://{folder}")
    assert state_of(wanted.run) == state_of(str(folder))
    assert export_of(wanted).folder.parent == cache
    for number, change in enumerate(CHANGES, 2):
        change(folder)
        assert export_of(wanted).facts["number"] == number


def test_no_writable_place_is_one_line(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ValueError, match=r"engine and .*engine cannot be written: make one writable .*engine jax"):
        export_of(RunWeights(str(folder)))


def test_a_damaged_export_is_made_anew(folder: Path, counted: list[RunWeights], capsys: pytest.CaptureFixture):
    first = export_of(RunWeights(str(folder))).folder
    (first / exports.FACTS).write_text("{}")
    assert export_of(RunWeights(str(folder))).facts["number"] == 2
    assert f"warning: {first} is damaged (engine.json is garbled): it is made anew" in capsys.readouterr().err


def test_a_changed_file_of_an_export_is_noticed(folder: Path, counted: list[RunWeights]):
    export = export_of(RunWeights(str(folder))).folder
    (export / "model.bin").write_bytes(b"abc")
    facts = {"files": {"model.bin": file_digest(export / "model.bin")}, "number": 1}
    write_sealed(export / exports.FACTS, signed(facts))
    assert export_of(RunWeights(str(folder))).facts["number"] == 1
    (export / "model.bin").write_bytes(b"abd")
    assert export_of(RunWeights(str(folder))).facts["number"] == 2


def strange(export: Path) -> None:
    """Another file of weights, with facts that fit, as whoever had the folder can write it."""
    (export / "model.bin").write_bytes(b"of another model")
    facts = {"files": {"model.bin": file_digest(export / "model.bin")}, "number": -1}
    write_sealed(export / exports.FACTS, read_sealed(export / exports.FACTS) | facts)


def test_an_export_that_came_with_a_run_is_not_used(
    folder: Path, counted: list[RunWeights], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Law: neither one at another user's place for it, nor one at this user's; nor the reason why there is none."""
    wanted = RunWeights(str(folder))
    theirs = export_of(wanted).folder
    strange(theirs)
    write_sealed(theirs.with_suffix(".json"), {"reason": "a stranger's"})
    assert export_of(wanted).facts["number"] == 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir()
    export = export_of(wanted)
    assert export.folder != theirs and export.facts["number"] == 3 and theirs.is_dir()
    (secret,) = (tmp_path / "mine").rglob("key")
    assert secret.stat().st_mode & 0o077 == 0, "others can read it"
    secret.write_text("")  # as a power cut may leave it: else a seal without a key would do
    assert len(key()) > 30


def test_an_export_without_a_key_is_refused_in_one_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match=r"key, the key that signs exports: Not a directory"):
        export_of(RunWeights(str(folder)))


def test_a_run_that_changes_meanwhile_is_exported_again(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exports, "run_exporter", lambda *_: (exports.CHANGED, ""))
    with pytest.raises(ValueError, match="changes while it is exported: try again, or choose engine jax"):
        export_of(RunWeights(str(folder)))


def test_what_ctranslate2_cannot_have_is_asked_once(folder: Path, monkeypatch: pytest.MonkeyPatch):
    asked = []

    def refuse(wanted: RunWeights, state: str, output: Path, lock: int | None) -> tuple[int, str]:
        asked.append(output)
        return exports.CANNOT, "CTranslate2 has no such norm"

    monkeypatch.setattr(exports, "run_exporter", refuse)
    for _ in range(2):
        with pytest.raises(ValueError, match="CTranslate2 has no such norm"):
            export_of(RunWeights(str(folder)))
    edit(folder)
    with pytest.raises(ValueError, match="CTranslate2 has no such norm"):
        export_of(RunWeights(str(folder)))
    assert len(asked) == 2 and len([*(folder / "engine").glob("*.json")]) == 1


def test_a_mistake_is_told_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exports, "run_exporter", lambda *_: (exports.MISTAKE, "weights is 'average:9'"))
    with pytest.raises(ValueError, match=r"^weights is 'average:9'$"):
        export_of(RunWeights(str(folder)))


def test_a_failure_of_the_moment_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exports, "run_exporter", lambda *_: (2, "No space left on device"))
    with pytest.raises(ValueError, match="No space left on device"):
        export_of(RunWeights(str(folder)))
    monkeypatch.setattr(exports, "run_exporter", lambda *_: (-9, ""))
    with pytest.raises(ValueError, match="the export failed: its process ended with status -9"):
        export_of(RunWeights(str(folder)))


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "flaxformer_lite", "translate", str(folder), "--engine", "ctranslate2", *more]


@pytest.mark.slow
def test_two_commands_at_once_make_one_export(folder: Path):
    started = [
        subprocess.Popen(
            command(folder), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    ended = [one.communicate("20 nov 2026\n") for one in started]
    assert [one.returncode for one in started] == [0, 0] and len({out for out, _ in ended}) == 1, ended
    lines = [line for _, err in ended for line in err.splitlines()]
    assert sum(line.startswith("exporting ") for line in lines) == 1, lines
    assert len(names(folder)) == 1


@pytest.mark.slow
def test_the_export_of_a_killed_command_is_waited_for(folder: Path):
    """Law: its process goes on alone and keeps the lock; the next command uses what it makes."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command(folder), cwd=ROOT, stdin=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None and process.stderr.readline().startswith("exporting ")
        time.sleep(1)
        process.kill()
        done = subprocess.run(command(folder), cwd=ROOT, input="20 nov 2026\n", capture_output=True, text=True)
    assert (
        done.returncode == 0
        and "waiting for another process" in done.stderr
        and "exporting" not in done.stderr.replace("that exports", "")
    )
    assert len(names(folder)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 2.0, 4.0, 5.0])
def test_a_killed_export_leaves_nothing_that_looks_whole(folder: Path, seconds: float):
    process = subprocess.Popen(command(folder), cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for name in names(folder) if (folder / "engine").is_dir() else ():
        assert name.startswith(".") or read_sealed(folder / "engine" / name / exports.FACTS)
    answers = open_engine(RunWeights(str(folder))).translator.translate(LINES)
    assert answers == load(folder).translate(LINES)
    assert not [name for name in names(folder) if name.startswith(".")]


@pytest.mark.slow
def test_a_damaged_checkpoint_is_not_exported(folder: Path):
    """Else the export of the older one would stay when the newer one is mended."""
    file = max((folder / "checkpoints" / "6" / "state").rglob("*"), key=lambda path: path.stat().st_size)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"checkpoint 6 of .* is damaged"):
        export_of(RunWeights(str(folder)))
    file.write_bytes(whole)
    assert export_of(RunWeights(str(folder))).facts["origin"][0] == 6
