"""Token stores: data that was tokenized once, in shards on disk, and is read from its files row by row.

A folder of stores has a folder for each corpus with one tokenizer:

    tokens-HASH/key.json           the facts that are hashed; the tokenizers are in the same folder
    tokens-HASH/00017/ids.npy      all tokens of a shard, 16-bit numbers if they suffice
    tokens-HASH/00017/starts.npy   where each side starts, as in `TokenShard`
    tokens-HASH/00017/labels.npy   only if a record has a label
    tokens-HASH/00017/extents.npy  only if a record is not read as a whole
    tokens-HASH/00017/NAME.npy     a further array of records (`Column`), and NAME.starts.npy
    tokens-HASH/00017/shard.json   counts, and the SHA-256 of the texts and the arrays
    tokens-HASH/store.json         written last: it makes the store whole

A shard gets its name once it is whole, so a build that was stopped keeps its finished shards. Every file is compared with its
digest when it is used.
"""

import contextlib
import hashlib
import itertools
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from flaxformer_lite.base.atomic_files import atomic_write
from flaxformer_lite.base.hardware import usable_cores
from flaxformer_lite.base.sealed_files import DamageError, file_digest, read_sealed, text_digest, write_sealed
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.data.token_arrays import Column, TokenArrays, TokenShard
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.data.refused import Origin, tell_refused
from flaxformer_lite.files.data.source import DataSource
from flaxformer_lite.files.tokenizers import FromRun, SentencePiece, load_tokenizers, save_tokenizers

STORE_FORMAT = 4
"""Changes with the layout of a store; stores with another number are made anew."""
MOST_RECORDS, MOST_CHARACTERS = 2**17, 2**24
"""A shard ends with the record that reaches one of these. Changing them makes every store anew."""
MOST_FILES = 10
"""Files of a shard that stay open while it is used."""


class PairStream(Iterable[Pair]):
    """The pairs of a source, read again by every loop over them, and the fraction that the newest loop has read."""

    def __init__(
        self, source: DataSource, setting: str | None = None, progress: ProgressCallback = no_progress
    ) -> None:
        self.source, self.setting, self.progress = source, setting, progress
        self.fraction = 0.0

    def __iter__(self) -> Iterator[Pair]:
        self.fraction = 0.0
        for number, pair in enumerate(self.source.stream(self.setting, self._read)):
            if number % 4096 == 0:
                self.progress(f"reading {self.setting or 'texts'}", number, self.total(number))
            yield pair

    def total(self, number: int) -> int:
        """Returns the number of all pairs by how many the fraction has that was read: an estimate; 0: unknown."""
        return round(number / self.fraction) if self.fraction else 0

    def _read(self, fraction: float) -> None:
        self.fraction = fraction
        if fraction == 0:  # a source may read everything before it yields a pair
            self.progress(f"reading {self.setting or 'texts'}", 0, 0)


def small_parts(source: DataSource, setting: str) -> list[list[Pair]] | None:
    """Returns the pairs of each source of a mixture, or of the source itself; None if all together do not fit a shard."""
    parts: list[list[Pair]] = []
    records = characters = 0
    for at, member in source.parts(setting):
        parts.append([])
        for pair in member.stream(at):
            records, characters = records + 1, characters + len(pair.source) + len(pair.target)
            if records > MOST_RECORDS or characters > MOST_CHARACTERS:
                return None
            parts[-1].append(pair)
    return parts


def chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Yields the pairs of each shard."""
    chunk: list[Pair] = []
    characters = 0
    for pair in pairs:
        chunk.append(pair)
        characters += len(pair.source) + len(pair.target)
        if len(chunk) == MOST_RECORDS or characters >= MOST_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def text_digests(pairs: Iterable[Pair]) -> tuple[str, str]:
    """Returns the SHA-256 of all source texts, and of all target texts with all else that pairs have."""
    of_sources, of_others = hashlib.sha256(), hashlib.sha256()
    for pair in pairs:
        others = "".join(map(str, filter(None, pair[1:])))
        for digest, text in ((of_sources, pair.source), (of_others, others)):
            digest.update(f"{len(text)} {text}".encode(errors="surrogatepass"))
    return of_sources.hexdigest(), of_others.hexdigest()


# Tokenizers -------------------------------------------------------------------------------------------------------------


def train_tokenizers(data: DataConfig, vocab_sizes: tuple[int, int], pairs: Iterable[Pair]) -> Tokenizers:
    """Returns the tokenizers of the source and the target side, trained on the pairs, or found in `data.store`."""
    data = with_language_pieces(data)
    assert data.tokenizer is not None
    kinds, folder = (data.tokenizer, data.target_tokenizer), None
    train = data.source("train")
    versions = None if data.store is None or train is None else train.versions()
    if data.store is not None and versions is not None and not any(isinstance(kind, FromRun) for kind in kinds):
        settings = [STORE_FORMAT, repr(train), versions, repr(kinds), vocab_sizes]
        folder = Path(data.store, f"tokenizer-{_hash(settings)}")
        if check_tokenizers(folder):
            return load_tokenizers(folder)
    if data.target_tokenizer is None:
        texts = itertools.chain.from_iterable(pair[:2] for pair in pairs)
        source = target = data.tokenizer.train(texts, vocab_sizes[0])
    else:
        source = data.tokenizer.train((pair.source for pair in pairs), vocab_sizes[0])
        target = data.target_tokenizer.train((pair.target for pair in pairs), vocab_sizes[1])
    tokenizers = Tokenizers(source, target)
    if folder is not None:
        save_tokenizers(tokenizers, folder)
        write_sealed(folder / "files.json", tokenizer_files(folder))
    return tokenizers


def with_language_pieces(data: DataConfig) -> DataConfig:
    """Returns the settings with the tokens of languages among the pieces of the tokenizers that learn pieces."""
    if data.languages is None:
        return data
    tokens = data.languages.tokens

    def added(kind: object) -> Any:
        if not isinstance(kind, SentencePiece):
            return kind
        return replace(kind, user_symbols=tuple(dict.fromkeys((*kind.user_symbols, *tokens))))

    kinds = {name: added(getattr(data, name)) for name in ("tokenizer", "target_tokenizer")}
    return replace(data, subword_sampling=None, **kinds)  # sampling never cuts these pieces: pairs get ids


def check_tokenizers(folder: Path) -> bool:
    """Returns whether a folder of stores keeps a trained tokenizer. Raises: ValueError if a file has changed since."""
    kept = read_checked(folder / "files.json")
    if kept is not None and kept != tokenizer_files(folder):
        raise damaged(folder, "a tokenizer is not as it was written")
    return kept is not None


def tokenizer_files(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file of a tokenizer in a folder, by its name."""
    return {path.name: file_digest(path) for path in sorted(folder.glob("*tokenizer.*"))}


def _hash(settings: object) -> str:
    return text_digest(json.dumps(settings))[:16]


# A store ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenStore:
    """A corpus that is or will be tokenized into `folder`."""

    folder: Path
    key: dict[str, Any]
    """The source's settings, the versions of its files, and the tokenizers."""
    stream: PairStream
    trusted: bool = False
    """Whether another process of the run has compared these files with their digests already."""

    @classmethod
    def of(
        cls,
        stores: Path,
        source: DataSource,
        tokenizers: Tokenizers,
        setting: str | None = None,
        progress: ProgressCallback = no_progress,
    ) -> "TokenStore":
        """Returns the store of the source in a folder of stores.

        If the source does not know its versions, this reads all its texts, with `progress`, and names the store by their hash.
        """
        both = tokenizers.source, tokenizers.target
        versions = source.versions()
        if versions is None:
            versions = [f"texts {digest}" for digest in text_digests(PairStream(source, setting, progress))]
        key: dict[str, Any] = {
            "format": STORE_FORMAT,
            "source": repr(source),
            "versions": versions,
            "tokenizers": [hashlib.sha256(tokenizer.to_bytes()).hexdigest() for tokenizer in both],
            "limits": [MOST_RECORDS, MOST_CHARACTERS],
        }
        if tokenizers.reading:
            key["reading"] = tokenizers.reading
        return cls(stores / f"tokens-{_hash(key)}", key, PairStream(source, setting))

    @property
    def facts(self) -> dict[str, Any] | None:
        """The content of store.json; None if it does not exist. Raises: ValueError if it is damaged."""
        return read_checked(self.folder / "store.json")

    @property
    def is_whole(self) -> bool:
        facts = self.facts
        return facts is not None and all(path.is_dir() for path in shard_folders(self.folder, len(facts["shards"])))

    @property
    def records(self) -> TokenArrays:
        """The tokenized records. Raises: ValueError if a file is not as it was written."""
        shards = check_store(self.folder, trusted=self.trusted)
        facts = self.facts
        assert facts is not None
        return TokenArrays(shards, facts["fingerprint"])

    def build(self, tokenizers: Tokenizers, progress: ProgressCallback, part: tuple[int, int] = (0, 1)) -> bool:
        """Tokenizes missing shards, and returns whether the store is whole. Waits for a process that builds the same part.

        part: (i, n) builds the i-th of every n shards, counted from 0, for n hosts that share the folder.
        """
        if self.is_whole:
            return True
        self.folder.mkdir(parents=True, exist_ok=True)
        with _held(FileLock(self.folder / f".{part[0]}-of-{part[1]}.lock"), progress):
            if self.is_whole:
                return True
            save_tokenizers(tokenizers, self.folder)
            write_sealed(self.folder / "key.json", self.key)
            number = 0
            done = 0
            activity = f"tokenizing {self.stream.setting or 'texts'}"
            for number, chunk in enumerate(chunks(self.stream), 1):
                (*_, folder) = shard_folders(self.folder, number)

                def report(more: int, first: int = done, last: int = done + len(chunk)) -> None:
                    progress(activity, first + more, self.stream.total(last))

                if read_checked(folder / "shard.json") is None and (number - 1) % part[1] == part[0]:
                    write_shard(folder, chunk, tokenizers, report)
                    if self.stream.source.bad_row_rule(None)[1] == "error":  # at once, not after the last shard
                        shard = TokenArrays(open_shards({folder: ""}, compare=False))
                        tell_refused(shard, tokenizers, Origin(self.stream.source, self.stream.setting), first=done)
                report(len(chunk))
                done += len(chunk)
            return self._complete(number)

    def _complete(self, number: int) -> bool:
        """Writes store.json if no shard is missing."""
        folders = shard_folders(self.folder, number)
        read = [read_checked(folder / "shard.json") for folder in folders]
        shards = [shard for shard in read if shard is not None]
        if len(shards) < number:
            return False
        digests = [shard["arrays"] for shard in shards]
        tokens = TokenArrays(open_shards(dict(zip(folders, digests, strict=True))))
        sources = "".join(shard["source_texts"] for shard in shards)
        targets = "".join(shard["target_texts"] for shard in shards)
        content = {
            **self.key,
            "shards": [shard["records"] for shard in shards],
            "arrays": digests,
            **{name: sum(shard[name] for shard in shards) for name in ("records", "source_tokens", "target_tokens")},
            "texts": [text_digest(sources), text_digest(targets)],
            "fingerprint": tokens.fingerprint(),
        }
        write_sealed(self.folder / "store.json", content)
        for unfinished in self.folder.glob(".*.unfinished"):  # a killed process left it
            shutil.rmtree(unfinished, ignore_errors=True)
        return True


@contextlib.contextmanager
def _held(lock: FileLock, progress: ProgressCallback) -> Iterator[None]:
    """Holds the lock. While another process has it, calls `progress` each second; that may raise."""
    try:
        while not lock.is_locked:
            try:
                lock.acquire(timeout=1)
            except Timeout:
                progress("waiting for the process that makes the same tokens", 0, 0)
            except NotImplementedError:  # a file system without locks
                break
        yield
    finally:
        lock.release()


def store_folders(folder: Path) -> list[Path]:
    """Returns the stores in a folder of stores, or `folder` alone if it is a store."""
    stores = sorted(folder.glob("tokens-*"))
    return [folder] if not stores and (folder / "key.json").is_file() else stores


def list_stores(folder: Path) -> list[dict[str, object]]:
    """Returns the content of each store of `store_folders`, ready for JSON."""
    stores = []
    for store in store_folders(folder):
        key = read_key(store)
        facts = list(shards_in(store).values())
        content = {
            "store": str(store),
            "whole": (store / "store.json").is_file(),
            "source": key["source"],
            "files": key["versions"],
            "tokenizers": list(tokenizer_files(store)),
            "shards": len(facts),
            **{name: sum(one[name] for one in facts) for name in ("records", "source_tokens", "target_tokens")},
            "bytes": sum(path.stat().st_size for path in store.rglob("*") if path.is_file()),
        }
        stores.append(content)
    return stores


def stores_of(stores: Path, sources: Iterable[DataSource]) -> list[Path]:
    """Returns the stores of these sources in a folder of stores, with any tokenizer, and the stores whose key cannot be read."""
    names = {repr(source) for source in sources}
    folders = []
    for folder in sorted(stores.glob("tokens-*")):
        with contextlib.suppress(ValueError):
            if read_key(folder)["source"] not in names:
                continue
        folders.append(folder)
    return folders


def check_store(folder: Path, *, trusted: bool = False) -> list[TokenShard]:
    """Returns the shards of a store, whole or not. trusted: the arrays are not compared with their digests.

    Raises: ValueError if a file is not as it was written.
    """
    key = read_key(folder)
    whole = read_checked(folder / "store.json")
    if set(tokenizer_files(folder).values()) != set(key["tokenizers"]):
        raise damaged(folder, "a tokenizer is not as it was written")
    digests = {path: facts["arrays"] for path, facts in shards_in(folder).items()}
    if whole is not None:
        digests = dict(zip(shard_folders(folder, len(whole["arrays"])), whole["arrays"], strict=True))
    return open_shards(digests, compare=not trusted)


def read_key(folder: Path) -> dict[str, Any]:
    """Returns the content of a store's key.json. Raises: ValueError if it is missing or damaged."""
    key = read_checked(folder / "key.json")
    if key is None:
        raise damaged(folder, "key.json is missing")
    return key


def read_checked(path: Path) -> dict[str, Any] | None:
    """Returns the content of a sealed file of a store; None if the file is missing. Raises: ValueError if it is damaged."""
    try:
        return read_sealed(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except DamageError as error:
        raise damaged(path.parent, error) from None


def damaged(folder: Path, reason: object) -> ValueError:
    """Returns the error for a folder of a token store that is not as it was written."""
    return ValueError(f"{folder}: damaged ({reason}); delete this folder, and it is made again")


# Shards -----------------------------------------------------------------------------------------------------------------


def shard_folders(store: Path, number: int) -> list[Path]:
    return [store / f"{i:05}" for i in range(number)]


def shards_in(store: Path) -> dict[Path, dict[str, Any]]:
    """Returns the content of shard.json of each shard that is in a store."""
    contents = {path: read_checked(path / "shard.json") for path in sorted(store.glob("[0-9]*"))}
    return {path: facts for path, facts in contents.items() if facts is not None}


def write_shard(
    folder: Path, pairs: Sequence[Pair], tokenizers: Tokenizers, report: Callable[[int], None] = lambda done: None
) -> dict[str, object]:
    """Tokenizes the pairs into the folder; returns the content of shard.json. `report` gets the number of pairs that are done."""
    most = max(tokenizers.source.largest_id, tokenizers.target.largest_id)
    shard = TokenShard.of_pairs(pairs, tokenizers, np.uint16 if most < 2**16 else np.int32, report)
    sizes = np.diff(shard.starts)
    facts: dict[str, Any] = {
        "records": len(pairs),
        "source_tokens": int(sizes[::2].sum()),
        "target_tokens": int(sizes[1::2].sum()),
    }
    with atomic_write(folder) as unfinished:
        unfinished.mkdir()
        for name, array in arrays_of(shard).items():
            with open(unfinished / f"{name}.npy", "wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())  # a power cut must not leave a whole name with half a file
        facts["source_texts"], facts["target_texts"] = text_digests(pairs)
        facts["arrays"] = arrays_digest(unfinished)
        write_sealed(unfinished / "shard.json", facts)
        shutil.rmtree(folder, ignore_errors=True)  # of a shard that lost its shard.json
    return facts


def arrays_of(shard: TokenShard) -> dict[str, np.ndarray]:
    """Returns all arrays of a shard by the names of their files."""
    *arrays, columns = shard._asdict().items()
    for name, column in columns[1].items():
        arrays += [(name, column.values), (f"{name}.starts", column.starts)]
    return {name: array for name, array in arrays if array is not None}


def shard_of(arrays: Mapping[str, np.ndarray]) -> TokenShard:
    """Returns the shard with the arrays of `arrays_of`."""
    starts = {name: arrays.get(f"{name}.starts") for name in arrays}
    columns = {name: Column(arrays[name], of_name) for name, of_name in starts.items() if of_name is not None}
    return TokenShard(arrays["ids"], arrays["starts"], arrays.get("labels"), arrays.get("extents"), columns)


def arrays_digest(folder: Path) -> str:
    """Returns one SHA-256 of the array files of a shard."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.npy")):
        digest.update(f"{path.name} {file_digest(path)}\n".encode())
    return digest.hexdigest()


def open_shards(digests: Mapping[Path, str], *, compare: bool = True) -> list[TokenShard]:
    """Returns shards whose arrays are mapped into memory.

    compare: whether all files are compared with the digests first, on all cores.

    Raises: ValueError for the first folder that is damaged or cannot be read.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now != resource.RLIM_INFINITY:  # the files of a shard stay open
        more = now + MOST_FILES * len(digests)
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than it says
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (more if most == resource.RLIM_INFINITY else min(more, most), most)
            )

    paths = list(digests)
    try:
        with ThreadPoolExecutor(usable_cores()) as threads:
            for folder, digest in zip(paths, threads.map(arrays_digest, paths), strict=True) if compare else ():
                if digest != digests[folder]:
                    raise damaged(folder, "its arrays are not as they were written")
        # In this thread, since Python 3.11 parses in one thread at a time; not as memmap, since slices of that class are slow.
        shards = list[TokenShard]()
        for folder in paths:
            arrays = {path.stem: np.asarray(np.load(path, mmap_mode="r")) for path in folder.glob("*.npy")}
            shards.append(shard_of(arrays))
        return shards
    except OSError as error:
        raise ValueError(f"{error.filename}: cannot be read: {error.strerror}") from None
