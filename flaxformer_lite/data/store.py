"""Token stores: data that was tokenized once, in shards on disk, and is read from its files row by row.

A folder of stores has one folder for each corpus with one tokenizer, named by a hash of the source's settings, the versions of
its files and the tokenizer. Its shards (shards.py) are made by parallel processes. `store.json` is written last: it
makes the store whole. A build that was stopped keeps its finished shards. Every file is compared with its digest when it is used.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flaxformer_lite.base.sealed_files import write_sealed
from flaxformer_lite.data import shards
from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.shards import (
    ShardFacts,
    check_shards,
    chunks,
    damaged,
    open_shards,
    read_checked,
    read_facts,
    text_digests,
)
from flaxformer_lite.data.source import DataSource
from flaxformer_lite.data.token_arrays import TokenArrays
from flaxformer_lite.data.workers import BuildProgress, Workers
from flaxformer_lite.text import FromRun, Tokenizers, load_tokenizers

FORMAT = 2
"""Changes with the layout of a store; others are made anew."""


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
    train = data.source("train")
    versions = None if data.store is None or train is None else train.versions()
    if data.store is not None and versions is not None and not any(isinstance(kind, FromRun) for kind in kinds):
        settings = [FORMAT, repr(train), versions, repr(kinds), vocab_sizes]
        folder = Path(data.store, f"tokenizer-{_hash(settings)}")
        if check_tokenizers(folder):
            return load_tokenizers(folder)
    if data.target_tokenizer is None:
        source = target = data.tokenizer.train((line for pair in pairs for line in pair[:2]), vocab_sizes[0])
    else:
        source = data.tokenizer.train((pair.source for pair in pairs), vocab_sizes[0])
        target = data.target_tokenizer.train((pair.target for pair in pairs), vocab_sizes[1])
    tokenizers = Tokenizers(source, target)
    if folder is not None:
        tokenizers.save(folder)
        write_sealed(folder / "files.json", tokenizer_files(folder))
    return tokenizers


def check_tokenizers(folder: Path) -> bool:
    """Returns whether a folder of stores keeps a trained tokenizer there. Raises: ValueError if it is not as it was written."""
    kept = read_checked(folder / "files.json")
    if kept is not None and kept != tokenizer_files(folder):
        raise damaged(folder, "a tokenizer is not as it was written")
    return kept is not None


def tokenizer_files(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file of a tokenizer in a folder, by its name."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*tokenizer.*"))}


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
        """The content of store.json; None if the store is not whole. Raises: ValueError if it is damaged."""
        return read_checked(self.folder / "store.json")

    @property
    def is_current(self) -> bool:
        """Whether the store is whole, and known to have the source's texts without a look at them."""
        facts = None if self.key["versions"] is None else self.facts
        return facts is not None and all((self.folder / f"{i:05}").is_dir() for i in range(len(facts["shards"])))

    @property
    def records(self) -> TokenArrays:
        """The tokenized records. Raises: ValueError if a file is not as it was written."""
        facts = check_store(self.folder)
        assert facts is not None
        return TokenArrays(open_shards(self.folder, facts["shards"]), facts["fingerprint"])

    def build(
        self,
        stream: PairStream,
        tokenizers: Tokenizers,
        progress: BuildProgress,
        part: tuple[int, int] = (0, 1),
    ) -> bool:
        """Tokenizes what is missing, and returns whether the store is whole.

        Shards of an earlier build are kept: by their names if the source knows its versions, else by a hash of their texts.
        Another process that builds the same part is waited for.

        Args:
            part: i of n: of every n shards makes the i-th, counted from 0, for n hosts that share the folder.
        """
        if self.is_current:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        with _held(FileLock(self.folder / f".{part[0]}-of-{part[1]}.lock"), progress):
            return self._build(stream, tokenizers, progress, part)

    def _build(
        self, stream: PairStream, tokenizers: Tokenizers, progress: BuildProgress, part: tuple[int, int]
    ) -> bool:
        if self.is_current:
            return True
        trusted = self.key["versions"] is not None
        tokenizers.save(self.folder)
        write_sealed(self.folder / "key.json", self.key)
        number = kept = made = 0
        with Workers(self.folder, tokenizers, progress) as workers:
            for number, chunk in enumerate(chunks(iter(stream)), 1):
                folder = self.folder / f"{number - 1:05}"
                there = read_facts(folder)
                keep = there is not None and (trusted or text_digests(chunk) == there[3:5])
                kept += keep
                make = not keep and (number - 1) % part[1] == part[0]
                made += make
                if make:  # until all are there again: its fingerprint is that of other texts
                    (self.folder / "store.json").unlink(missing_ok=True)
                workers.add(folder if make else None, chunk, stream.fraction)
            workers.finish()
        facts = self.facts
        if kept == number and facts is not None and len(facts["shards"]) == number:
            return True
        # Another host's shard of texts that were not compared may be an older one.
        return (trusted or kept + made == number) and self._complete(number)

    def _complete(self, number: int) -> bool:
        """Writes store.json if all shards are there."""
        found = [read_facts(self.folder / f"{i:05}") for i in range(number)]
        facts = [one for one in found if one is not None]
        if len(facts) < number:
            return False
        check_shards({self.folder / f"{i:05}": one.arrays for i, one in enumerate(facts)})
        tokens = TokenArrays(open_shards(self.folder, [one.records for one in facts]))
        content = {
            **self.key,
            "shards": [one.records for one in facts],
            "arrays": [one.arrays for one in facts],
            "records": sum(one.records for one in facts),
            "source_tokens": sum(one.source_tokens for one in facts),
            "target_tokens": sum(one.target_tokens for one in facts),
            "texts": [
                hashlib.sha256("".join(parts).encode()).hexdigest()
                for parts in ([one.source_texts for one in facts], [one.target_texts for one in facts])
            ],
            "fingerprint": tokens.fingerprint(),
        }
        write_sealed(self.folder / "store.json", content)
        for left in self.folder.glob(".*.unfinished"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        return True


@contextlib.contextmanager
def _held(lock: FileLock, progress: BuildProgress) -> Iterator[None]:
    """Holds the lock; while another process has it, `progress` is called each second, which may raise."""
    try:
        while not lock.is_locked:
            try:
                lock.acquire(timeout=1)
            except Timeout:
                progress(0.0, 0)
            except NotImplementedError:  # a file system without locks
                break
        yield
    finally:
        lock.release()


def list_stores(folder: Path) -> list[dict[str, Any]]:
    """Returns what is in each store of a folder of stores, or in the one that `folder` is, ready for JSON."""
    found = sorted(folder.glob("tokens-*")) or [folder] * (folder / "key.json").is_file()
    return [_describe(store) for store in found]


def stores_of(stores: Path, sources: Iterable[DataSource]) -> list[Path]:
    """Returns the stores of these sources in a folder of stores, with any tokenizer, and those that do not say whose they are."""
    names = {repr(source) for source in sources}

    def concerned(folder: Path) -> bool:
        try:
            key = read_checked(folder / "key.json")
        except ValueError:
            return True
        return key is None or key["source"] in names

    return [folder for folder in sorted(stores.glob("tokens-*")) if concerned(folder)]


def check_store(folder: Path) -> dict[str, Any] | None:
    """Reads every file of a store; returns the content of store.json, None if the store is not whole.

    Raises: ValueError if a file is not as it was written.
    """
    key, facts = read_checked(folder / "key.json"), read_checked(folder / "store.json")
    if key is None or set(tokenizer_files(folder).values()) != set(key["tokenizers"]):
        raise damaged(folder, "key.json is missing" if key is None else "a tokenizer is not as it was written")
    found = {path: one.arrays for path, one in shards_in(folder)}
    if facts is not None:
        found |= {folder / f"{i:05}": digest for i, digest in enumerate(facts["arrays"])}
    check_shards(found)
    return facts


def shards_in(folder: Path) -> list[tuple[Path, ShardFacts]]:
    """Returns the shards that are in a store, with their facts."""
    paths = sorted(folder.glob("[0-9]*"))
    return [(path, facts) for path in paths if (facts := read_facts(path)) is not None]


def _describe(folder: Path) -> dict[str, Any]:
    key, facts = read_checked(folder / "key.json"), [one for _, one in shards_in(folder)]
    if key is None:
        raise damaged(folder, "key.json is missing")
    return {
        "store": str(folder),
        "whole": (folder / "store.json").is_file(),
        "source": key["source"],
        "files": key["versions"],
        "tokenizers": [path.name for path in sorted(folder.glob("*tokenizer.*"))],
        "shards": len(facts),
        "records": sum(one.records for one in facts),
        "source_tokens": sum(one.source_tokens for one in facts),
        "target_tokens": sum(one.target_tokens for one in facts),
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
    }
