"""Oracle: the same pairs tokenized here, in this process."""

import contextlib
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.shards import open_shard, write_shard
from flaxformer_lite.data.workers import Workers
from flaxformer_lite.text.characters import CharacterTokenizer
from flaxformer_lite.text.tokenizer import Tokenizers


@pytest.fixture
def workers(tmp_path: Path):
    tokenizer = CharacterTokenizer("abcdefghij")
    tokenizers = Tokenizers(tokenizer, tokenizer)
    tokenizers.save(tmp_path)
    with contextlib.closing(Workers(tmp_path, tokenizers)) as workers:
        yield workers


def test_a_process_of_its_own_writes_the_same_shard_and_counts_it(workers: Workers, tmp_path: Path):
    pairs = [Pair("abc", "j"), Pair("", "defg"), Pair("h", "")]
    shown: list[tuple[float, int]] = []
    workers._number = 2
    workers.add(tmp_path / "there", pairs, 0.5)
    workers.finish(lambda fraction, done: shown.append((fraction, done)))
    assert shown[-1] == (0.5, 3) and len(workers._processes) == 1
    facts = write_shard(tmp_path / "here", pairs, workers._tokenizers)
    there, here = (open_shard(tmp_path / name, facts.records) for name in ("there", "here"))
    np.testing.assert_array_equal(there.ids[:], here.ids[:])
    np.testing.assert_array_equal(there.starts, here.starts)


@pytest.mark.parametrize("running", [False, True])
def test_the_end_leaves_no_process_and_no_pipe(workers: Workers, tmp_path: Path, running: bool):
    workers._number = 2
    workers.add(tmp_path / "there", [Pair("abc", "j")] * (1_000 if running else 1), 1.0)
    ends = time.monotonic() + 60
    while not workers._processes and time.monotonic() < ends:
        time.sleep(0.01)
    if not running:
        workers.finish(lambda *_: None)
    workers.close()
    assert all(p.returncode is not None and p.stdin.closed and p.stdout.closed for p in workers._processes)


def test_a_process_that_ends_before_it_reads_is_named(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its input is still in the pipe's buffer here, and closing the pipe would write it."""
    start = Workers._start

    def ended(workers: Workers):
        process = start(workers)
        process.wait()
        return process

    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.setattr(Workers, "_start", ended)
    workers._number = 2
    workers.add(tmp_path / "there", [Pair("abc", "j")] * 5, 1.0)
    with pytest.raises(ValueError, match=r"^a process that tokenized ended with status 1: start again$"):
        workers.finish(lambda *_: None)
    workers.close()
    assert all(process.stdin.closed and process.stdout.closed for process in workers._processes)


def test_an_error_there_is_a_mistake_here_with_the_shard(workers: Workers, tmp_path: Path):
    workers._number = 2
    (tmp_path / "file").touch()
    workers.add(tmp_path / "file" / "shard", [Pair("a", "b")], 1.0)
    with pytest.raises(ValueError, match=r"file/shard: .*File exists"):
        workers.finish(lambda *_: None)


def test_a_process_that_was_killed_is_told_from_one_that_failed(workers: Workers, tmp_path: Path):
    """SIGKILL is what the kernel sends where the memory is full."""
    workers._number = 2
    process = workers._start()
    process.kill()
    workers._idle.put(process)
    workers.add(tmp_path / "there", [Pair("abc", "j")], 1.0)
    with pytest.raises(
        ValueError, match=r"^a process that tokenized was killed \(SIGKILL\), most likely because the memory"
    ):
        workers.finish(lambda *_: None)
