"""Law: long work takes no more memory, handles or time a step than short work does.

FLAXFORMER_LITE_LOAD_STEPS sets the number of steps (1,000 if it is unset; 20,000 have 200 evaluations), FLAXFORMER_LITE_LOAD_LINES
that of lines to translate (20,000).
"""

import contextlib
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.cli.main import main
from flaxformer_lite.run import train
from tests.support.experiments import tiniest_config, use_one_device, with_train

pytestmark = pytest.mark.slow

STEPS = int(os.environ.get("FLAXFORMER_LITE_LOAD_STEPS", "1000"))
LINES = int(os.environ.get("FLAXFORMER_LITE_LOAD_LINES", "20000"))
CONFIG = with_train(tiniest_config(), steps=STEPS, eval_every=100, checkpoint_every=100, log_every=50)


def memory() -> int:
    """Returns the memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def size_of(run: Path) -> int:
    """Returns the bytes of a run folder without the rows of metrics, one for each evaluation."""
    total = 0
    for path in run.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # a checkpoint's temporary folder ends meanwhile
            total += path.stat().st_size if path.is_file() and path.name != "metrics.jsonl" else 0
    return total


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells a process what it uses")
def test_a_long_training_uses_no_more_than_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    use_one_device(monkeypatch)
    samples: list[dict[str, float]] = []
    last = time.process_time()

    def measure(row: dict[str, Any]) -> None:
        nonlocal last
        if row["split"] == "eval":
            samples.append(
                {
                    "memory": memory(),
                    "handles": len(os.listdir("/proc/self/fd")),
                    "threads": threading.active_count(),
                    "folder": size_of(tmp_path / "run"),
                    "seconds": time.process_time() - last,
                }
            )
            last = time.process_time()

    train(CONFIG, tmp_path / "run", on_row=measure)
    assert len(samples) == STEPS // 100
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]

    def most(part: list[dict[str, float]], name: str) -> float:
        return max(sample[name] for sample in part)

    for name in ("memory", "handles", "threads", "folder"):
        print(f"{name:8} {most(early, name):15,.2f} in the second quarter, {most(late, name):15,.2f} in the last")
    assert most(late, "memory") < most(early, "memory") + 2**24
    assert most(late, "handles") <= most(early, "handles") + 4
    assert most(late, "threads") <= most(early, "threads") + 4
    # The best checkpoint is the newest or another one, and one that is about to be deleted is there in some samples.
    checkpoints = [size_of(path) for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert len(checkpoints) <= CONFIG.train.keep_latest + 1
    assert most(late, "folder") <= most(early, "folder") * 1.05 + 2 * max(checkpoints)
    middle = [statistics.median(sample["seconds"] for sample in part) for part in (early, late)]
    print(f"{middle[0]:.3f} and {middle[1]:.3f} CPU-seconds for 100 steps and an evaluation")
    assert middle[1] < middle[0] * 1.3


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux tells a process what it uses")
def test_a_long_file_is_translated_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
):
    """Every line has its answer in its place, an empty one for the line that is no text.

    That line is an early one, and the last part of the file is not measured: both have batches of other shapes, whose programs
    take memory when they are compiled, 17 to 35 MiB each.
    """
    use_one_device(monkeypatch)
    train(with_train(CONFIG, steps=2, eval_every=2, checkpoint_every=2), tmp_path / "run")
    lines = [f"{1 + i % 28} nov {1900 + i % 120}".encode() for i in range(LINES)]
    bad = LINES // 8
    lines[bad] = b"\xff\xfe"
    (tmp_path / "lines").write_bytes(b"".join(line + b"\n" for line in lines))
    capfd.readouterr()
    used: list[int] = []

    def measured(*words: Any, **options: Any) -> None:
        used.append(memory())
        write(*words, **options)

    write = print
    monkeypatch.setattr("flaxformer_lite.cli.answering.print", measured, raising=False)
    main(["translate", str(tmp_path / "run"), str(tmp_path / "lines")])
    out, err = capfd.readouterr()
    answers = out.split("\n")
    assert len(answers) == LINES + 1 and answers[bad] == "" == answers[-1]
    assert err.count(f"line {bad + 1}: not UTF-8") == 1
    early, late = used[LINES // 4], used[LINES * 3 // 4]
    print(f"{early / 2**20:.1f} MiB after a quarter of {LINES:,} lines, {late / 2**20:.1f} after three quarters")
    assert late < early + 2**23
