"""Exact search: the documents whose vectors have the largest products with each query's, by matrix products in chunks.

chunk of documents      divided over the groups of devices: each finds the K best of its share, for all queries
host                    merges the shares, then the chunks: memory holds one chunk and the best so far
"""

from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flaxformer_lite.core.placement.placement import ONE_DEVICE, Placement

QUERIES_AT_ONCE = 1024
"""The most queries of a product, so that the scores of a chunk fit the memory."""
NO_DOCUMENT = -1
"""The number in the places that remain where the documents are fewer than K."""


class Nearest(NamedTuple):
    """The best documents of each query, best first; of equal scores the lowest number."""

    scores: Float[np.ndarray, "Q K"]
    """-inf where no document remains."""
    numbers: Int[np.ndarray, "Q K"]
    """The number of the document, counted over all chunks from 0, or NO_DOCUMENT."""


class NearestSearch:
    """The `most` best documents of queries, compiled once for each number of documents in a chunk."""

    def __init__(self, most: int, placement: Placement = ONE_DEVICE) -> None:
        self.most, self.placement = most, placement

        def of_share(
            queries: Float[Array, "Q D"], documents: Float[Array, "C D"], numbers: Int[Array, "C"]
        ) -> tuple[Float[Array, "1 Q K"], Int[Array, "1 Q K"]]:
            scores = jnp.einsum("QD,CD->QC", queries, documents, precision=jax.lax.Precision.HIGHEST)
            scores = jnp.where(numbers == NO_DOCUMENT, -jnp.inf, scores)
            best, places = jax.lax.top_k(scores, min(most, len(numbers)))
            return best[None], numbers[places][None]

        self.function = jax.jit(placement.by_rows(of_share))

    def search(self, queries: Float[np.ndarray, "Q D"], chunks: Iterable[Float[np.ndarray, "_ D"]]) -> Nearest:
        """Returns the best documents of all chunks, whose vectors may be made while they are read."""
        shape = (len(queries), self.most)
        best = Nearest(np.full(shape, -np.inf, np.float32), np.full(shape, NO_DOCUMENT, np.int32))
        before = 0
        for chunk in chunks:
            groups = self.placement.groups
            added = -len(chunk) % groups
            documents = np.pad(np.asarray(chunk, np.float32), ((0, added), (0, 0)))
            numbers = np.pad(
                np.arange(before, before + len(chunk), dtype=np.int32), (0, added), constant_values=NO_DOCUMENT
            )
            shares = list(zip(np.split(documents, groups), np.split(numbers, groups), strict=True))
            placed = self.placement.joined(shares, filler=lambda share: share)
            for start in range(0, len(queries), QUERIES_AT_ONCE):
                chosen = slice(start, start + QUERIES_AT_ONCE)
                self._merge(best, chosen, *jax.device_get(self.function(queries[chosen], *placed)))
            before += len(chunk)
        return best

    def _merge(
        self, best: Nearest, chosen: slice, scores: Float[np.ndarray, "G Q _"], numbers: Int[np.ndarray, "G Q _"]
    ) -> None:
        """Writes the best of those so far and of a chunk into the rows of these queries."""
        all_scores = np.concatenate([best.scores[chosen], *scores], axis=1)
        all_numbers = np.concatenate([best.numbers[chosen], *numbers], axis=1)
        order = np.argsort(-all_scores, axis=1, kind="stable")[:, : self.most]  # earlier documents stand first
        best.scores[chosen] = np.take_along_axis(all_scores, order, 1)
        best.numbers[chosen] = np.take_along_axis(all_numbers, order, 1)
