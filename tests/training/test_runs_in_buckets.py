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
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.base.stores import Store
from flaxformer_lite.cli.main import main
from flaxformer_lite.config import Config
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.run import load
from flaxformer_lite.training.loop import train
from flaxformer_lite.workdir import open_checkpoints, parameter_digest
from flaxformer_lite.workdir.bucket import LEDGER, read_ledger
from flaxformer_lite.workdir.folder import new_run
from tests.support.experiments import tiniest_config, with_train, write_config_file
from tests.support.paths import FIXTURES, ROOT

CONFIG = tiniest_config()


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


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A run of six steps in a bucket."""
    train(with_train(CONFIG, steps=6), f"file://{tmp_path}/bucket")
    return f"file://{tmp_path}/bucket"


def test_it_is_the_run_in_a_folder(url: str, tmp_path: Path):
    train(with_train(CONFIG, steps=6), tmp_path / "folder")
    assert facts(url) == facts(tmp_path / "folder")
    small = {name for name in Store(url).names() if not name.startswith("checkpoints/")}
    files = {
        path.relative_to(tmp_path / "folder").as_posix() for path in (tmp_path / "folder").rglob("*") if path.is_file()
    }
    assert small == {name for name in files if "/." not in f"/{name}" and not name.startswith("checkpoints/")} | {
        LEDGER
    }


@pytest.mark.slow
def test_commands_read_it_by_its_url(url: str, tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]):
    """Results of `evaluate` are in the bucket afterwards, and stay there; a damaged object is told."""
    assert not main(["evaluate", url, "--split", "eval"])
    report = Store(url).read("evaluations/eval.json").content or b""
    assert json.loads(report) == json.loads(capsys.readouterr().out)
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
    other = dataclasses.replace(CONFIG, optimizer=dataclasses.replace(CONFIG.optimizer, ema_decay=0.5))
    with pytest.raises(ValueError, match=rf"the run folder {url} was made with another config: ") as raised:
        train(with_train(other, steps=8), url)
    assert str(disk) not in str(raised.value)
    assert newest(url) == 6 and read_ledger(Store(url).read(LEDGER).content, url).holder is None


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
