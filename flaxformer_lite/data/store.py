"""Token stores: data that was tokenized once, in shards on disk, and is read by mapping files into memory.

A folder of stores has one folder for each corpus with one tokenizer, named by a hash of the source's settings, the versions of
its files and the tokenizer. Its shards (shards.py) are made by parallel processes. `store.json` is written last: it
makes the store whole. A build that was stopped keeps its finished shards.
"""

import contextlib
import hashlib
import json
import os
import pickle
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flaxformer_lite.atomic_files import write_whole
from flaxformer_lite.data import shards
from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.shards import (
    ShardFacts,
    chunks,
    load_tokenizers,
    map_shard,
    read_facts,
    text_digests,
    write_shard,
)
from flaxformer_lite.data.source import DataSource
from flaxformer_lite.data.token_arrays import TokenArrays
from flaxformer_lite.text import FromRun, Tokenizers

FORMAT = 1
"""Changes with the layout of a store; others are made anew."""
MOST_WORKERS = 64
"""Processes that tokenize at the same time; each holds a shard's texts and ids, some 200 MB."""

BuildProgress = Callable[[float, int], None]
"""Called in the main thread with the fraction of the source that is tokenized, and its number of records. May raise."""


class StoredRecords(TokenArrays):
    """The records of a store; their fingerprint was computed when it was made."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        super().__init__([map_shard(folder / f"{i:05}", n) for i, n in enumerate(facts["shards"])])
        self._fingerprint = str(facts["fingerprint"])

    def fingerprint(self) -> str:
        return self._fingerprint


class PairStream(Iterable[Pair]):
    """The pairs of a source, read again by every loop over them, and the fraction that the newest loop has read."""

    def __init__(self, source: DataSource, setting: str, progress: BuildProgress | None = None) -> None:
        self.source, self.setting, self.progress = source, setting, progress
        self.fraction = 0.0

    def __iter__(self) -> Iterator[Pair]:
        self.fraction = 0.0
        for number, pair in enumerate(self.source.stream(self.setting, self._read)):
            if self.progress is not None and number % 4096 == 0:
                self.progress(self.fraction, number)
            yield pair

    def _read(self, fraction: float) -> None:
        self.fraction = fraction

    def if_small(self) -> list[Pair] | None:
        """Returns all pairs if they fit one shard, else None."""
        pairs = iter(self)
        first = next(chunks(pairs), [])
        return first if next(pairs, None) is None else None


def train_tokenizers(data: DataConfig, vocab_sizes: tuple[int, int], pairs: Iterable[Pair]) -> Tokenizers:
    """Returns the tokenizers of the source and the target side, trained on the pairs, or found in `data.store`."""
    assert data.tokenizer is not None
    kinds, folder = (data.tokenizer, data.target_tokenizer), None
    versions = None if data.store is None or data.train is None else data.train.versions()
    if data.store is not None and versions is not None and not any(isinstance(kind, FromRun) for kind in kinds):
        settings = [FORMAT, repr(data.train), versions, repr(kinds), vocab_sizes]
        folder = Path(data.store, f"tokenizer-{_hash(settings)}")
        with contextlib.suppress(ValueError):
            return load_tokenizers(folder)
    if data.target_tokenizer is None:
        source = target = data.tokenizer.train((line for pair in pairs for line in pair[:2]), vocab_sizes[0])
    else:
        source = data.tokenizer.train((pair.source for pair in pairs), vocab_sizes[0])
        target = data.target_tokenizer.train((pair.target for pair in pairs), vocab_sizes[1])
    tokenizers = Tokenizers(source, target)
    if folder is not None:
        save_tokenizers(folder, tokenizers)
    return tokenizers


def save_tokenizers(folder: Path, tokenizers: Tokenizers) -> None:
    """Writes the tokenizers; that of the target first, so that a folder with that of the source has both."""
    if tokenizers.target is not tokenizers.source:
        tokenizers.target.save(folder, "target_tokenizer")
    tokenizers.source.save(folder)


def _hash(settings: Any) -> str:
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class TokenStore:
    """A corpus that is or will be tokenized into `folder`."""

    folder: Path
    key: dict[str, Any]
    """The source's settings, the versions of its files, and the tokenizers."""

    @classmethod
    def of(cls, stores: Path, source: DataSource, tokenizers: Tokenizers) -> "TokenStore":
        """Returns the store of the source in a folder of stores."""
        files = [
            hashlib.sha256(tokenizer.to_bytes()).hexdigest() for tokenizer in (tokenizers.source, tokenizers.target)
        ]
        limits = [shards.MOST_RECORDS, shards.MOST_CHARACTERS]
        key = {
            "format": FORMAT, "source": repr(source), "versions": source.versions(), "tokenizers": files, "limits": limits
        }  # fmt: skip
        return cls(stores / f"tokens-{_hash(key)}", key)

    @property
    def facts(self) -> dict[str, Any] | None:
        """The content of store.json; None if the store is not whole."""
        file = self.folder / "store.json"
        return json.loads(file.read_bytes()) if file.is_file() else None

    @property
    def records(self) -> StoredRecords:
        """The tokenized records. Raises: ValueError if a shard is damaged."""
        facts = self.facts
        assert facts is not None
        return StoredRecords(self.folder, facts)

    def build(
        self,
        stream: PairStream,
        tokenizers: Tokenizers,
        progress: BuildProgress,
        part: tuple[int, int] = (0, 1),
    ) -> bool:
        """Tokenizes what is missing, and returns whether the store is whole.

        Shards of an earlier build are kept: by their names if the source knows its versions, else by a hash of their texts.

        Args:
            part: i of n: of every n shards makes the i-th, counted from 0, for n hosts that share the folder.
        """
        trusted = self.key["versions"] is not None
        if trusted and self._is_whole():
            return True
        save_tokenizers(self.folder, tokenizers)
        number = kept = 0
        with contextlib.closing(Workers(self.folder, tokenizers)) as workers:
            for number, chunk in enumerate(chunks(iter(stream)), 1):
                folder = self.folder / f"{number - 1:05}"
                if (number - 1) % part[1] != part[0]:
                    continue
                there = read_facts(folder)
                if there is not None and (trusted or text_digests(chunk) == there[3:]):
                    kept += 1
                    workers.done += len(chunk)
                else:
                    workers.add(folder, chunk, stream.fraction)
                progress(workers.fraction, workers.done)
                workers.wait_for_room(progress)
            workers.finish(progress)
        facts = self.facts
        if kept == number and facts is not None and len(facts["shards"]) == number:
            return True
        return self._complete(number)

    def _is_whole(self) -> bool:
        facts = self.facts
        return facts is not None and all((self.folder / f"{i:05}").is_dir() for i in range(len(facts["shards"])))

    def _complete(self, number: int) -> bool:
        """Writes store.json if all shards are there."""
        found = [read_facts(self.folder / f"{i:05}") for i in range(number)]
        facts = [one for one in found if one is not None]
        if len(facts) < number:
            return False
        mapped = TokenArrays([map_shard(self.folder / f"{i:05}", one.records) for i, one in enumerate(facts)])
        content = {
            **self.key,
            "shards": [one.records for one in facts],
            "records": sum(one.records for one in facts),
            "source_tokens": sum(one.source_tokens for one in facts),
            "target_tokens": sum(one.target_tokens for one in facts),
            "texts": [
                hashlib.sha256("".join(parts).encode()).hexdigest()
                for parts in ([one.source_texts for one in facts], [one.target_texts for one in facts])
            ],
            "fingerprint": mapped.fingerprint(),
        }
        write_whole(self.folder / "store.json", json.dumps(content, indent=2) + "\n")
        for left in self.folder.glob(".*.unfinished"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        return True


class Workers:
    """Processes that tokenize shards, as many as this process has cores; with one core, this process itself."""

    def __init__(self, store: Path, tokenizers: Tokenizers) -> None:
        self._store, self._tokenizers = store, tokenizers
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._number = min(cores, MOST_WORKERS) if sys.executable else 1
        self._threads = ThreadPoolExecutor(self._number)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._running: dict[Future[ShardFacts], float] = {}
        self._lock = threading.Lock()
        self.done, self.fraction = 0, 0.0

    def add(self, folder: Path, pairs: Sequence[Pair], fraction: float) -> None:
        """Tokenizes the pairs into the folder, in the background; `fraction` of the source is done with them."""
        self._running[self._threads.submit(self._run, folder, pairs)] = fraction

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
                self.fraction = max(self.fraction, self._running.pop(future))
                self.done += future.result().records
            progress(self.fraction, self.done)

    def _run(self, folder: Path, pairs: Sequence[Pair]) -> ShardFacts:
        if self._number == 1:
            return write_shard(folder, pairs, self._tokenizers)
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            pickle.dump((folder, list(pairs)), process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise ValueError(f"a process that tokenized ended with status {process.wait()}: start again") from None
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
            process.kill() if self._running else process.stdin.close()  # type: ignore[union-attr]
        for process in self._processes:
            process.wait()
        self._threads.shutdown(wait=True)
