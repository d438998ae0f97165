"""Processes that tokenize shards at the same time."""

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

from flaxformer_lite.base.hardware import usable_cores
from flaxformer_lite.data import shards
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.shards import ShardFacts, write_shard
from flaxformer_lite.text import Tokenizers

MOST_WORKERS = 64
"""Processes that tokenize at the same time; each holds a shard's texts and ids, some 150 MB."""

BuildProgress = Callable[[float, int], None]
"""Called in the main thread with the fraction of the source that is tokenized, and its number of records. May raise."""


class Workers:
    """Processes that tokenize shards, as many as this process has cores; with one core, this process itself."""

    def __init__(self, store: Path, tokenizers: Tokenizers) -> None:
        self._store, self._tokenizers = store, tokenizers
        self._number = min(usable_cores(), MOST_WORKERS) if sys.executable else 1
        self._threads = ThreadPoolExecutor(self._number)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._running: set[Future[ShardFacts]] = set()
        self._lock = threading.Lock()
        self._done = self._read = 0
        self._fraction_read = 0.0

    def add(self, folder: Path | None, pairs: Sequence[Pair], fraction_read: float) -> None:
        """Tokenizes the pairs into the folder, in the background. None: they are done.

        fraction_read: of the source, up to the last of these pairs.
        """
        self._read, self._fraction_read = self._read + len(pairs), fraction_read
        if folder is None:
            self._done += len(pairs)
        else:
            self._running.add(self._threads.submit(self._run, folder, pairs))

    def report(self, progress: BuildProgress) -> None:
        """Reports the fraction of the source that is done, as far as its records are of one size, and the number of records."""
        progress(self._fraction_read * self._done / max(self._read, 1), self._done)

    def wait_for_room(self, progress: BuildProgress) -> None:
        """Waits while each process has a shard at work and one at hand."""
        self._wait(2 * self._number, progress)

    def finish(self, progress: BuildProgress) -> None:
        """Waits for all shards."""
        self._wait(1, progress)

    def _wait(self, below: int, progress: BuildProgress) -> None:
        while len(self._running) >= below:
            # In short turns, so that a signal ends the wait.
            for future in wait(self._running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                self._running.remove(future)
                self._done += future.result().records
            self.report(progress)

    def _run(self, folder: Path, pairs: Sequence[Pair]) -> ShardFacts:
        if self._number == 1:
            return write_shard(folder, pairs, self._tokenizers)
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            # Three tuples of texts: a third of the time of as many pairs.
            pickle.dump((folder, tuple(zip(*pairs, strict=True))), process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise ValueError(ended_in_words(process.wait())) from None
        self._idle.put(process)
        if isinstance(answer, str):
            raise ValueError(f"{folder}: {answer}")
        return ShardFacts(*answer)

    def _start(self) -> "subprocess.Popen[bytes]":
        # A new program rather than a fork: JAX's threads do not survive one, and no script of the user's is imported again.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TOKENIZERS_PARALLELISM": "false",
        }
        with self._lock:
            process = subprocess.Popen(
                [sys.executable, "-m", shards.__name__, str(self._store)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the process that trains
            )
            self._processes.append(process)
        return process

    def close(self) -> None:
        """Ends all processes. A shard that is not finished is left out."""
        for future in self._running:
            future.cancel()
        for process in self._processes:
            with contextlib.suppress(OSError):  # it ended before it read everything
                process.kill() if self._running else process.stdin.close()  # type: ignore[union-attr]
        self._threads.shutdown(wait=True)
        for process in self._processes:
            with contextlib.suppress(OSError), process:  # waits, and closes the pipes
                pass


def ended_in_words(status: int) -> str:
    """Returns the message for a process that ended before its shard; a status below 0 is the signal that killed it."""
    if status != -9:
        return f"a process that tokenized ended with status {status}: start again"
    return (
        "a process that tokenized was killed (SIGKILL), most likely because the memory was full; each takes some 150 MB: start "
        "again with fewer, one for each core, such as four by taskset -c 0-3 before the command; finished shards are kept"
    )
