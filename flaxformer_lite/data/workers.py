"""Processes that tokenize shards at the same time. Each reads pickled requests from its input until that ends.

They are programs of their own rather than a `ProcessPoolExecutor`, which would import the user's script again, and whose processes
get the terminal's signals and outlive a training that was killed. These end with the pipe.
"""

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Any

from flaxformer_lite.base.hardware import usable_cores
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.shards import ShardFacts, write_shard
from flaxformer_lite.text import Tokenizers, load_tokenizers

MOST_WORKERS = 64
"""Processes that tokenize at the same time; each holds a shard's texts and ids, some 150 MB."""

BuildProgress = Callable[[float, int], None]
"""Called in the main thread with the fraction of the source that is tokenized, and its number of records. May raise."""


class Workers:
    """Processes that tokenize shards, as many as this process has cores; with one core, this process itself.

    They end with the context. After an error, shards that are not finished are left out.
    """

    def __init__(self, store: Path, tokenizers: Tokenizers, progress: BuildProgress) -> None:
        self._store, self._tokenizers, self._progress = store, tokenizers, progress
        self._number = min(usable_cores(), MOST_WORKERS) if sys.executable else 1
        self._threads = ThreadPoolExecutor(self._number)
        self._of_thread = threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._running: set[Future[ShardFacts]] = set()
        self._done = self._read = 0
        self._fraction_read = 0.0

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            for process in self._processes:
                process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            with contextlib.suppress(OSError), process:  # closes its pipes, and waits
                pass

    def add(self, folder: Path | None, pairs: Sequence[Pair], fraction_read: float) -> None:
        """Tokenizes the pairs into the folder, in the background; waits while each process has a shard at work and one at hand.

        Args:
            folder: None: the pairs are tokenized already.
            fraction_read: of the source, up to the last of these pairs.
        """
        self._read, self._fraction_read = self._read + len(pairs), fraction_read
        if folder is None:
            self._done += len(pairs)
        else:
            self._running.add(self._threads.submit(self._write, folder, pairs))
        self._report()
        self._wait(2 * self._number)

    def finish(self) -> None:
        """Waits for all shards."""
        self._wait(1)

    def _report(self) -> None:
        """Reports the fraction of the source that is done, as far as its records are of one size, and the number of records."""
        self._progress(self._fraction_read * self._done / max(self._read, 1), self._done)

    def _wait(self, below: int) -> None:
        while len(self._running) >= below:
            # In short turns, so that a signal ends the wait.
            for future in wait(self._running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                self._running.remove(future)
                self._done += future.result().records
            self._report()

    def _write(self, folder: Path, pairs: Sequence[Pair]) -> ShardFacts:
        """Has the shard written by the process of this thread."""
        if self._number == 1:
            return write_shard(folder, pairs, self._tokenizers)
        process = getattr(self._of_thread, "process", None) or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            # Three tuples of texts: a third of the time of as many pairs.
            pickle.dump((folder, tuple(zip(*pairs, strict=True))), process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise ValueError(
                f"a process that tokenized ended with status {process.wait()}; -9 is most likely the system's, whose memory is "
                "full (each takes some 150 MB): start again with fewer, such as four by taskset -c 0-3 before the command; "
                "finished shards are kept"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _start(self) -> "subprocess.Popen[bytes]":
        path = os.pathsep.join(filter(None, sys.path))
        self._of_thread.process = process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(self._store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,  # Ctrl-C is for the process that trains
        )
        self._processes.append(process)
        return process


def serve(tokenizers: Tokenizers, requests: Any, answers: Any) -> None:
    """Answers each pickled `(folder, (sources, targets, labels))` with the shard's facts, or with the error that it met.

    Returns when the requests end.
    """
    with contextlib.suppress(EOFError, pickle.UnpicklingError):  # the latter if the process that asks was killed at it
        while True:
            folder, columns = pickle.load(requests)
            try:
                answer: ShardFacts | Exception = write_shard(folder, list(map(Pair, *columns)), tokenizers)
            except (OSError, ValueError) as error:
                answer = error
            pickle.dump(answer, answers)
            answers.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        serve(load_tokenizers(Path(sys.argv[1])), sys.stdin.buffer, answers)
    except BrokenPipeError:  # the process that asked was killed
        os._exit(1)  # without writing once more what it did not take
