"""A teacher's predictions for the targets of training pairs: a file that a student reads, pair by pair."""

import hashlib
import operator
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Integer, Shaped

from flaxformer_lite.base.atomic_files import atomic_write
from flaxformer_lite.core.data.records import TokenPair

ARRAYS = ("keys", "starts", "ids", "probs", "vocab_size")
"""The arrays of a file; `Predictions` describes them."""

MOST_PROBABLE = 1 + 2**-10
"""The largest sum of the probabilities of a position: float16 rounds each by up to 2**-11 of it."""


class SoftTargets(NamedTuple):
    """The K most probable tokens at each position of a target, EOS included; no position if the teacher did not read it."""

    ids: Int[np.ndarray, "T K"]
    probs: Float[np.ndarray, "T K"]
    """Their probabilities. The rest to 1 belongs to the other tokens."""


class TaughtPair(NamedTuple):
    """A pair with what a teacher predicts for its target."""

    source: Int[np.ndarray, "S"]
    target: Int[np.ndarray, "T"]
    soft_targets: SoftTargets


def pair_key(record: TokenPair) -> int:
    """Returns the number that stands for a pair: 64 bits of a hash of its token ids."""
    sides = [np.asarray(side, np.int32).tobytes() for side in record[:2]]
    digest = hashlib.blake2b(len(sides[0]).to_bytes(8, "little") + b"".join(sides), digest_size=8)
    return int.from_bytes(digest.digest(), "little")


def file_vocab_size(path: str) -> int:
    """Returns the size of the vocabulary that a file is for; reads nothing else of it."""
    with np.load(path) as file:
        return int(file["vocab_size"])


class Predictions:
    """For each position of a target, EOS included, the K most probable tokens and their probabilities.

        keys        [P]      64 bits, ascending: `pair_key` of each pair
        starts      [P + 1]  pair p has the positions starts[p] … starts[p + 1] - 1
        ids, probs  [N, K]   of each position, in 16 or 32 bits, and in float16

    Pairs are found by their token ids, so the order of the data does not matter, and any mixture may have some of them.
    """

    def __init__(
        self,
        keys: Integer[np.ndarray, "P"],
        starts: Integer[np.ndarray, "_"],
        ids: Shaped[np.ndarray, "N K"],
        probs: Shaped[np.ndarray, "_ _"],
        vocab_size: int,
    ) -> None:
        self.keys, self.starts, self.ids, self.probs, self.vocab_size = keys, starts, ids, probs, vocab_size
        if not (
            (keys.dtype.str[1:], starts.dtype.kind, probs.dtype.kind, ids.ndim) == ("u8", "i", "f", 2)
            and len(starts) == len(keys) + 1
            and ids.shape == probs.shape
            and len(ids) == starts[-1]
            and starts[0] == 0
            and (np.diff(starts) > 0).all()
            and (keys[1:] > keys[:-1]).all()
        ):
            raise ValueError("keys, starts, ids and probs do not fit each other: write all of them together")
        if ids.dtype.kind not in "iu" or (ids.size and not 0 <= ids.min() <= ids.max() < vocab_size):
            raise ValueError(f"ids has numbers that are not token ids: they must be whole, from 0 to {vocab_size - 1}")
        if not ((probs >= 0).all() and (probs.sum(-1, dtype=np.float64) <= MOST_PROBABLE).all()):
            raise ValueError(
                "probs has numbers that are not probabilities: each must be at least 0, their sum at most 1"
            )

    @classmethod
    def of(cls, targets: dict[int, SoftTargets], vocab_size: int) -> "Predictions":
        """Returns the predictions for pairs, by their keys."""
        keys = sorted(targets)
        small = np.uint16 if vocab_size <= 2**16 else np.uint32
        return cls(
            np.array(keys, np.uint64),
            np.cumsum([0, *(len(targets[key].ids) for key in keys)]),
            np.concatenate([targets[key].ids for key in keys]).astype(small),
            np.concatenate([targets[key].probs for key in keys]).astype(np.float16),
            vocab_size,
        )

    @classmethod
    def read(cls, path: str) -> "Predictions":
        """Returns the predictions of a file. Raises: ValueError if it is missing, or another file."""
        try:
            with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
                keys, starts, ids, probs, vocab_size = (file[name] for name in ARRAYS)
            return cls(keys, starts, ids, probs, operator.index(vocab_size[()]))
        except FileNotFoundError:
            raise ValueError(
                f"objective.predictions is {path!r}: there is no such file; `flaxformer-lite teach` writes it"
            ) from None
        except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"objective.predictions is {path!r}, which is not a file of `flaxformer-lite teach` ({error}): write it again"
            ) from None

    def write(self, path: Path) -> None:
        """Writes the file completely, or not at all."""
        with atomic_write(path) as unfinished, open(unfinished, "wb") as file:
            arrays: dict[str, Any] = {name: np.asarray(getattr(self, name)) for name in ARRAYS}
            np.savez(file, **arrays)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def top(self) -> int:
        """K, the number of tokens for each position."""
        return self.ids.shape[1]

    def fingerprint(self) -> str:
        """Returns a hash of all predictions."""
        digest = hashlib.sha256()
        for name in ARRAYS:
            digest.update(np.ascontiguousarray(getattr(self, name)).data)
        return digest.hexdigest()

    def __contains__(self, record: TokenPair) -> bool:
        return self._place(record) is not None

    def taught(self, record: TokenPair) -> TaughtPair:
        """Returns the pair with its soft targets; with empty ones if the file does not have it."""
        place = self._place(record)
        rows = slice(0, 0) if place is None else slice(*self.starts[place : place + 2])
        soft = SoftTargets(self.ids[rows].astype(np.int32), self.probs[rows].astype(np.float32))
        return TaughtPair(record.source, record.target, soft)

    def coverage(self, records: Sequence[TokenPair], most: int = 1000) -> float:
        """Returns the share of the records that the file has, by at most `most` of them, evenly spread."""
        chosen = np.linspace(0, len(records) - 1, min(most, len(records))).astype(int).tolist()
        return sum(records[i] in self for i in chosen) / len(chosen)

    def _place(self, record: TokenPair) -> int | None:
        key = np.uint64(pair_key(record))
        place = int(np.searchsorted(self.keys, key))
        return place if place < len(self.keys) and self.keys[place] == key else None
