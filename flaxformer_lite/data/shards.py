"""Shards of a token store: each has consecutive records, tokenized, as arrays in a folder.

    00017/ids.npy      all tokens, 16-bit numbers if they suffice
    00017/starts.npy   where each side starts, as in `TokenShard`
    00017/labels.npy   only if a record has a label
    00017/shard.json   `ShardFacts`, with the digest of the arrays

A folder gets its name once it is whole.
"""

import contextlib
import errno
import hashlib
import os
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite.base.atomic_files import atomic_write
from flaxformer_lite.base.hardware import usable_cores
from flaxformer_lite.base.sealed_files import DamageError, read_sealed, write_sealed
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.token_arrays import TokenShard
from flaxformer_lite.text import Tokenizers

MOST_RECORDS, MOST_CHARACTERS = 2**17, 2**24
"""A shard ends with the record that reaches one of these. Changing them makes every store anew."""
MOST_FILES = 3
"""Files of a shard that stay open while it is used."""


class ShardFacts(NamedTuple):
    """Counts of a shard, and the SHA-256 of each side's texts and of the arrays."""

    records: int
    source_tokens: int
    target_tokens: int
    source_texts: str
    target_texts: str
    arrays: str


def chunks(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
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


def text_digests(pairs: Sequence[Pair]) -> tuple[str, str]:
    """Returns the SHA-256 of all source texts, and of all target texts with the labels."""
    found = hashlib.sha256(), hashlib.sha256()
    for pair in pairs:
        for digest, text in zip(found, (pair.source, pair.target + pair.label), strict=True):
            digest.update(f"{len(text)} {text}".encode(errors="surrogatepass"))
    return found[0].hexdigest(), found[1].hexdigest()


def write_shard(folder: Path, pairs: Sequence[Pair], tokenizers: Tokenizers) -> ShardFacts:
    """Tokenizes the pairs into the folder, which replaces an older one."""
    most = max(tokenizers.source.largest_id, tokenizers.target.largest_id)
    encode = tokenizers.source.encode, tokenizers.target.encode
    empty = [function("") for function in encode]  # a document has no source, and a call takes a tenth of a line's time
    sides = (encode[i](pair[i]) if pair[i] else empty[i] for pair in pairs for i in (0, 1))
    shard = TokenShard.of(sides, [pair.label for pair in pairs], np.uint16 if most < 2**16 else np.int32)
    sizes = np.diff(shard.starts)
    with atomic_write(folder) as unfinished:
        unfinished.mkdir()
        _save(unfinished / "ids.npy", shard.ids)
        _save(unfinished / "starts.npy", shard.starts)
        if shard.labels is not None:
            _save(unfinished / "labels.npy", shard.labels)
        counts = len(pairs), int(sizes[::2].sum()), int(sizes[1::2].sum())
        facts = ShardFacts(*counts, *text_digests(pairs), arrays_digest(unfinished))
        write_sealed(unfinished / "shard.json", facts._asdict())
        if folder.exists():
            shutil.rmtree(folder)
    return facts


def _save(path: Path, array: np.ndarray) -> None:
    with open(path, "wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())  # a power cut must not leave a whole name with half a file


def read_facts(folder: Path) -> ShardFacts | None:
    """Returns the facts of a shard; None if it is not there. Raises: ValueError if they are damaged."""
    facts = read_checked(folder / "shard.json")
    try:
        return None if facts is None else ShardFacts(**facts)
    except TypeError as error:
        raise damaged(folder, error) from None


def read_checked(path: Path) -> dict[str, Any] | None:
    """Returns the content of a sealed file of a store; None if there is no such file. Raises: ValueError if it is damaged."""
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


def arrays_digest(folder: Path) -> str:
    """Returns the SHA-256 of a shard's arrays, of their files as they are."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.npy")):
        with open(path, "rb") as file:
            digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def check_shards(digests: Mapping[Path, str]) -> None:
    """Reads the arrays of shards on all cores. Raises: ValueError for the first folder whose arrays have another digest."""

    def check(folder: Path) -> None:
        try:
            if arrays_digest(folder) != digests[folder]:
                raise damaged(folder, "its arrays are not as they were written")
        except OSError as error:
            raise ValueError(f"{folder}: cannot be read: {error.strerror}") from None

    with ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(check, digests))


def open_shards(store: Path, records: Sequence[int]) -> list[TokenShard]:
    """Returns the shards of a store, whose arrays are read when they are used; `records` has the number in each.

    Raises: ValueError if one is damaged or cannot be read.
    """
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if now != resource.RLIM_INFINITY:  # the files of a shard stay open
        more = now + MOST_FILES * len(records)
        with contextlib.suppress(ValueError, OSError):  # macOS allows less than it says
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (more if most == resource.RLIM_INFINITY else min(more, most), most)
            )
    return [open_shard(store / f"{i:05}", number) for i, number in enumerate(records)]


def open_shard(folder: Path, records: int) -> TokenShard:
    """Returns one shard. Raises: ValueError as `open_shards`."""
    try:
        ids, starts = _mapped(folder / "ids.npy"), _mapped(folder / "starts.npy")
        labels = _mapped(folder / "labels.npy") if (folder / "labels.npy").is_file() else None
        if len(starts) != 2 * records + 1 or starts[-1] != len(ids):
            raise ValueError(f"its arrays do not fit: {len(starts) // 2} records, {len(ids)} tokens")
    except (FileNotFoundError, ValueError, EOFError) as error:
        raise damaged(folder, error) from None
    except OSError as error:
        remedy = ": raise the limit of open files, such as with ulimit -n 65536" if error.errno == errno.EMFILE else ""
        raise ValueError(f"{folder}: cannot be read: {error.strerror}{remedy}") from None
    return TokenShard(ids, starts, labels)


def _mapped(path: Path) -> np.ndarray:
    """Returns an array whose pages are mapped, without the class memmap, whose slices are slow."""
    return np.asarray(np.load(path, mmap_mode="r"))
