"""A run in a bucket is the run in a folder: the same numbers, rows and checkpoints, also after kills that cost the disk.

Oracle: the run that was never stopped, in a folder.
"""

import dataclasses
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

from flaxformer_lite.base.stores import LEDGER, Store
from flaxformer_lite.cli.main import main
from flaxformer_lite.config import Config
from flaxformer_lite.core.model import LoRA
from flaxformer_lite.core.optim import Constant
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.run import load
from flaxformer_lite.training.loop import train
from flaxformer_lite.workdir import open_checkpoints, parameter_digest
from flaxformer_lite.workdir.bucket import read_ledger
from flaxformer_lite.workdir.folder import new_run
from tests.support.disturbed_loops import during_step, poison, share_programs
from tests.support.experiments import tiniest_config, with_train, write_config_file
from tests.support.gcs import google_storage
from tests.support.paths import FIXTURES, ROOT

CONFIG = tiniest_config()
NO_TEXT = with_train(CONFIG, text_metrics=())


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where working copies lie."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "disk"))
    return tmp_path / "disk"


def facts(place: str | Path) -> tuple[str, list[dict[str, Any]], list[int]]:
    """The parameters' SHA-256, the rows without what a clock measured, and the steps that are kept."""
    run = load(place)
    measured = ("seconds", "tokens_per_second", "peak_memory_bytes")
    rows = [{name: x for name, x in row.items() if name not in measured} for row in run.folder.rows()]
    with open_checkpoints(run.config, run.folder, read_only=True) as checkpoints:
        return parameter_digest(run.params), rows, checkpoints.steps()


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_it_is_the_run_in_a_folder_also_continued_on_an_empty_disk(protocol: str, tmp_path: Path, disk: Path):
    url = f"{protocol}://{tmp_path}/bucket"
    for steps in 6, 12:
        for place in tmp_path / "folder", url:
            train(with_train(CONFIG, steps=steps), place)
        assert facts(url) == facts(tmp_path / "folder")
        shutil.rmtree(disk)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six steps in `folder`, and in the bucket `bucket`, on one device."""
    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "disk"))
        share_programs(patch, NO_TEXT.train)
        for place in root / "folder", f"file://{root}/bucket":
            train(with_train(NO_TEXT, steps=6), place)
    return root


@pytest.fixture
def url(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The run in a bucket."""
    share_programs(monkeypatch, NO_TEXT.train)
    shutil.copytree(trained / "bucket", tmp_path / "bucket")
    return f"file://{tmp_path}/bucket"


def test_it_is_the_run_in_a_folder(url: str, trained: Path):
    folder = trained / "folder"
    assert facts(url) == facts(folder)
    small = {name for name in Store(url).names() if not name.startswith("checkpoints/")}
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert small == {name for name in files if "/." not in f"/{name}" and not name.startswith("checkpoints/")} | {
        LEDGER
    }


def test_messages_name_it_by_its_url(url: str):
    with pytest.raises(ValueError, match=f"so the run {url} cannot classify: use translate, or"):
        load(url).classify(["a"])
    with pytest.raises(ValueError, match=f"the run {url} has no tokenizer: use the option --ids"):
        _ = dataclasses.replace(load(url), tokenizers=None).tokenizer


@pytest.mark.slow
def test_commands_read_it_by_its_url(url: str, tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]):
    """Results of `evaluate` are in the bucket afterwards, and stay there; a damaged object is told."""
    assert not main(["evaluate", url, "--split", "eval", "--beam-size", "1"])
    report = Store(url).read("evaluations/eval.json").content or b""
    assert json.loads(report) == json.loads(capsys.readouterr().out) and json.loads(report)["run"] == url
    shutil.rmtree(disk)
    assert not main(["train", url, "--train.steps", "8"]), "the URL stands for its config and is continued"
    assert not main(["rows", url, "7"]) and not main(["seen", url, "a"])
    assert Store(url).read("evaluations/eval.json").content == report
    assert not main(["inspect", url, "--verify"]) and not main(["inspect", url, "--json"])
    said = capsys.readouterr().out
    assert f'"run": "{url}"' in said and str(disk) not in said
    name = max(Store(url).names("checkpoints/8/state"), key=lambda name: len(Store(url).read(name).content or b""))
    content = bytearray(Store(url).read(name).content or b"")
    content[len(content) // 2] ^= 1
    Store(url).write(name, bytes(content))
    with pytest.raises(SystemExit) as ended:
        main(["inspect", url, "--verify"])
    assert ended.value.code == 1
    assert "checkpoint 8: " in capsys.readouterr().out
    assert load(url).step == 6


def test_a_run_with_other_settings_is_refused_by_its_url(url: str, disk: Path):
    other = dataclasses.replace(NO_TEXT, optimizer=dataclasses.replace(CONFIG.optimizer, ema_decay=0.5))
    with pytest.raises(ValueError, match=rf"the run folder {url} was made with another config: ") as raised:
        train(with_train(other, steps=8), url)
    assert str(disk) not in str(raised.value)
    assert newest(url) == 6 and read_ledger(Store(url).read(LEDGER).content, url).holder is None


def on_a_lora_base(root: str, patch: pytest.MonkeyPatch) -> None:
    """Stopped once; base and run are in buckets."""
    share_programs(patch, NO_TEXT.train)
    train(with_train(NO_TEXT, steps=1), f"{root}/base")
    model = dataclasses.replace(CONFIG.model, lora=LoRA(rank=4))
    config = dataclasses.replace(with_train(NO_TEXT, init_from=f"{root}/base"), model=model)
    for steps in 5, 9:
        train(with_train(config, steps=steps), f"{root}/run")


def returned_to_a_checkpoint(root: str, patch: pytest.MonkeyPatch) -> None:
    """Batches 9 and 10 spoil steps, so that the run returns to step 8."""
    share_programs(patch, NO_TEXT.train)
    poison(patch, 9, 10)
    train(with_train(NO_TEXT, log_every=1, max_skipped_steps=2, max_rollbacks=1), f"{root}/run")


def with_another_rate(root: str, patch: pytest.MonkeyPatch) -> None:
    share_programs(patch, NO_TEXT.train)
    train(with_train(NO_TEXT, steps=6), f"{root}/run")
    slower = dataclasses.replace(NO_TEXT.optimizer, schedule=Constant(peak_rate=1e-3))
    with pytest.raises(ValueError, match="--continue-with-changes"):
        train(dataclasses.replace(NO_TEXT, optimizer=slower), f"{root}/run")
    train(dataclasses.replace(NO_TEXT, optimizer=slower), f"{root}/run", with_changes=True)


@pytest.mark.slow
@pytest.mark.parametrize("history", [on_a_lora_base, returned_to_a_checkpoint, with_another_rate])
def test_what_a_run_does_in_a_folder_it_does_in_a_bucket(
    history: Callable[[str, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The disk with the working copies is lost before the runs are compared."""
    found = []
    for root in str(tmp_path), f"file://{tmp_path}/bucket":
        with monkeypatch.context() as patch:
            history(root, patch)
        shutil.rmtree(tmp_path / "disk", ignore_errors=True)
        found.append(facts(f"{root}/run"))
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_storage_that_is_away_for_4_seconds_costs_nothing(trained: Path, monkeypatch: pytest.MonkeyPatch):
    share_programs(monkeypatch, NO_TEXT.train)
    with google_storage() as storage:
        during_step(monkeypatch, 4, lambda _: setattr(storage, "away_until", time.monotonic() + 4))
        train(with_train(NO_TEXT, steps=6), "gs://bucket/run")
        assert storage.counts["FAULT"] > 0 and facts("gs://bucket/run") == facts(trained / "folder")


def write_half(url: str) -> None:
    with new_run(url) as run:
        (run.path / "config.json").write_text("{}")
        raise ValueError("a mistake")


def test_a_model_is_imported_into_a_bucket(tmp_path: Path):
    source = FIXTURES / "hf" / "llama" / "gqa_llama3"
    url = f"file://{tmp_path}/bucket/run"
    assert import_hf(source, url) == url
    assert parameter_digest(load(url).params) == parameter_digest(load(import_hf(source, tmp_path / "run")).params)
    with pytest.raises(ValueError, match=rf"{url} has files already: give an empty place"):
        import_hf(source, url)
    broken = f"file://{tmp_path}/broken"
    with pytest.raises(ValueError, match="a mistake"):
        write_half(broken)
    assert Store(broken).names() == []


class Popen(subprocess.Popen):
    def __init__(self, words: list[str], *, log: Path, **options: Any) -> None:
        super().__init__(words, **options)
        self.log = log

    def said(self) -> str:
        return self.log.read_text()


def started(config: Path, url: str, disk: Path, *flags: str) -> Popen:
    """A process that trains, with a sign of life every half second; `said` returns its lines."""
    code = (
        "import sys; from flaxformer_lite.workdir import bucket; bucket.BEAT_SECONDS = 0.5; "
        "from flaxformer_lite.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    flags_of_one = os.environ["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    environment = os.environ | {"XDG_CACHE_HOME": str(disk), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags_of_one}
    environment["PYTHONPATH"] = str(ROOT)
    words = [sys.executable, "-c", code, "train", str(config), "--workdir", url, *flags]
    with open(f"{disk}.{time.monotonic_ns()}.err", "w+b") as stderr:  # a pipe would be full
        return Popen(words, env=environment, cwd=ROOT, stderr=stderr, log=Path(stderr.name))


def newest(url: str) -> int:
    return max(read_ledger(Store(url).read(LEDGER).content, url).steps, default=0)


def wait_for(url: str, step: int, process: Popen) -> None:
    end = time.monotonic() + 120
    while newest(url) < step:
        assert process.poll() is None, process.said()
        assert time.monotonic() < end
        time.sleep(0.01)


def undisturbed(config: Config, tmp_path: Path) -> tuple[str, list[dict[str, Any]], list[int]]:
    """The facts of the run in a folder, on one device."""
    process = started(write_config_file(tmp_path / "config.json", config), str(tmp_path / "folder"), tmp_path / "none")
    assert process.wait(120) == 0
    return facts(tmp_path / "folder")


@pytest.mark.slow
def test_killed_three_times_on_machines_that_lose_their_disks(tmp_path: Path):
    config, url = with_train(CONFIG, steps=40), f"file://{tmp_path}/bucket"
    file = write_config_file(tmp_path / "config.json", config)
    for i in range(3):
        process = started(file, url, tmp_path / f"disk{i}")
        wait_for(url, 8 * (i + 1), process)
        time.sleep(0.05 * i)
        process.kill()
        process.wait()
    process = started(file, url, tmp_path / "disk3")
    assert process.wait(120) == 0 and "resuming after step" in process.said(), process.said()
    assert facts(url) == undisturbed(config, tmp_path)


@pytest.mark.slow
def test_a_process_that_sleeps_while_another_takes_over_changes_nothing(tmp_path: Path):
    config = with_train(CONFIG, steps=100_000, checkpoint_every=100, eval_every=1000, log_every=50)
    file, url = write_config_file(tmp_path / "config.json", config), f"file://{tmp_path}/bucket"
    sleeper = started(file, url, tmp_path / "first")
    wait_for(url, 100, sleeper)
    beside = started(file, url, tmp_path / "second")
    assert beside.wait(120) == 2 and "another process is training in" in beside.said()
    sleeper.send_signal(signal.SIGSTOP)
    short = ["--train.steps", str(newest(url) + 300)]
    other = started(file, url, tmp_path / "second", *short)
    wait_for(url, newest(url) + 100, other)
    sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait(120) != 0 and "another process has started to train in" in sleeper.said()
    assert other.wait(120) == 0, other.said()
    rows = [row["step"] for row in load(url).folder.rows() if row["split"] == "train"]
    assert rows == sorted({*rows}) and rows[-1] == newest(url)
