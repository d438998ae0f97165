"""Oracle: the same pairs tokenized here, in this process."""

import contextlib
import io
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.data import workers
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.shards import open_shard, read_facts, write_shard
from flaxformer_lite.data.workers import Workers, serve
from flaxformer_lite.text.characters import CharacterTokenizer
from flaxformer_lite.text.tokenizer import Tokenizers
from tests.support.paths import ROOT

PAIRS = [Pair("abc", "j"), Pair("", "defg"), Pair("h", "", "yes")]
TOKENIZERS = Tokenizers(*[CharacterTokenizer("abcdefghij")] * 2)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tokenizers; shards are tokenized by processes, as with two cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    TOKENIZERS.save(tmp_path)
    return tmp_path


def test_a_process_of_its_own_writes_the_same_shard_and_counts_it(store: Path):
    shown: list[tuple[float, int]] = []
    with Workers(store, TOKENIZERS, lambda fraction, done: shown.append((fraction, done))) as pool:
        pool.add(store / "there", PAIRS, 0.5)
        pool.finish()
    assert shown[-1] == (0.5, 3) and len(pool._processes) == 1
    facts = write_shard(store / "here", PAIRS, TOKENIZERS)
    assert read_facts(store / "there") == facts
    there, here = (open_shard(store / name, 3) for name in ("there", "here"))
    np.testing.assert_array_equal(there.ids, here.ids)
    np.testing.assert_array_equal(there.starts, here.starts)


def tokenize(store: Path, name: str = "there", pairs: list[Pair] = PAIRS, *, interrupt: bool = False) -> Workers:
    """Tokenizes the pairs into a folder of the store, or interrupts that once a process is at it. Returns what was used for it."""
    pool = Workers(store, TOKENIZERS, lambda *_: None)
    with contextlib.suppress(KeyboardInterrupt), pool:
        pool.add(store / name, pairs, 1.0)
        ends = time.monotonic() + 60
        while interrupt and not pool._processes and time.monotonic() < ends:
            time.sleep(0.01)
        if interrupt:
            raise KeyboardInterrupt
        pool.finish()
    return pool


@pytest.mark.parametrize("interrupt", [False, True])
def test_the_end_leaves_no_process_and_no_pipe(store: Path, interrupt: bool):
    pool = tokenize(store, pairs=PAIRS * (100_000 if interrupt else 1), interrupt=interrupt)
    assert (store / "there").exists() is not interrupt and pool._processes
    assert all(p.returncode is not None and p.stdin.closed and p.stdout.closed for p in pool._processes)


def test_a_process_that_ends_before_it_answers_is_named(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "__name__", "flaxformer_lite.no_such_module")
    with pytest.raises(ValueError, match=r"^a process that tokenized ended with status 1; -9 is most likely"):
        tokenize(store)


def test_an_error_there_is_the_same_error_here(store: Path):
    (store / "file").touch()
    with pytest.raises(OSError, match=r"file"):
        tokenize(store, "file/shard")


def test_a_process_answers_requests_until_they_end(tmp_path: Path):
    """A shard that cannot be written is an answer too; a request that was cut is the end of its asker."""
    (tmp_path / "file").touch()
    requests = b"".join(pickle.dumps((tmp_path / name, tuple(zip(*PAIRS, strict=True)))) for name in ("0", "file/1"))
    answers = io.BytesIO()
    serve(TOKENIZERS, io.BytesIO(requests + requests[:-9]), answers)
    answers.seek(0)
    assert pickle.load(answers) == read_facts(tmp_path / "0")
    assert isinstance(pickle.load(answers), OSError)


@pytest.mark.parametrize("at", ["the request", "the answer"])
def test_a_process_whose_asker_was_killed_ends_without_a_line(tmp_path: Path, at: str) -> None:
    """It wrote a traceback onto the terminal of the training that was killed."""
    TOKENIZERS.save(tmp_path)
    request = pickle.dumps((tmp_path / "00000", tuple(zip(*PAIRS, strict=True))))
    command = [sys.executable, "-m", "flaxformer_lite.data.workers", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdout.close()
        process.stdin.write(request if at == "the answer" else request[:-9])
        process.stdin.close()
        assert process.stderr.read() == b""
    assert (tmp_path / "00000" / "shard.json").exists() is (at == "the answer")
