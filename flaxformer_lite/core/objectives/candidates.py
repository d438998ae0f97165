"""Queries with candidates, the data of embeddings and of rerankers.

A record (`TokenPair`) of a query with its candidates has

    source      the tokens of the query
    target      the tokens of all candidates, one after the other: those that answer the query (positives) before the others
    positives   an array: the number of tokens of each positive
    negatives   an array: the number of tokens of each other candidate
    scores      an array: the score of each candidate by a teacher, if it has scored them

A record without these arrays is a plain pair: its target is the only candidate, and answers the query.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.data import TokenPair
from flaxformer_lite.core.data.records import NEGATIVES, POSITIVES, SCORES
from flaxformer_lite.core.data.token_arrays import Column, TokenArrays
from flaxformer_lite.core.model import Inputs, ModelConfig
from flaxformer_lite.core.objectives.batch import Batch
from flaxformer_lite.core.objectives.classification import WholeTexts
from flaxformer_lite.core.objectives.losses import LossTerm, squared_error
from flaxformer_lite.core.reading.objectives import CandidatesOfQueries

ABSENT_SCORE = -1e9
"""The score of a candidate that a row does not have, or of a padding row: it is the last, and has no share of a softmax."""


class QueryCandidates(NamedTuple):
    """A query with K candidates, as token ids without special tokens."""

    query: Int[np.ndarray, "S"]
    candidates: tuple[Int[np.ndarray, "_"], ...]
    """The positives, then the negatives."""
    num_positives: int
    """At least 1."""
    scores: Float[np.ndarray, "K"]
    """The score of each candidate by a teacher; empty without a teacher."""

    @classmethod
    def of(cls, record: TokenPair) -> "QueryCandidates":
        """Returns the parts of a record."""
        positives, negatives, scores = map(record.array, (POSITIVES, NEGATIVES, SCORES))
        candidates = np.split(record.target, np.cumsum([*positives, *negatives], dtype=np.int64)[:-1])
        return cls(record.source, tuple(candidates), len(positives) or 1, scores)


def longest_candidates(arrays: TokenArrays) -> Int[np.ndarray, "I"]:
    """Returns the most tokens of a candidate of every record."""
    longest = np.maximum(*(arrays.each(name, Column.largest) for name in (POSITIVES, NEGATIVES)))
    return np.where(arrays.each(POSITIVES, Column.sizes), longest, arrays.sizes[:, 1])


@dataclass(frozen=True, kw_only=True)
class CandidateTexts(CandidatesOfQueries, WholeTexts):
    """Base of the objectives whose records are queries with candidates, or plain pairs."""

    @property
    def prompt_texts(self) -> tuple[str, str]:
        """The texts before each query and before each candidate."""
        query, document = self.side_prompts
        return self.text_before(query), self.text_before(document)

    def inputs(self, batch: Batch, model: ModelConfig) -> Inputs:
        """Returns the texts `[B, K, S]` as rows `[B·K, S]`: those of the first query, then those of the next."""
        given = batch.inputs
        tokens, mask, types = (
            None if x is None else jnp.asarray(x).reshape(-1, jnp.shape(x)[-1])
            for x in (given.source_tokens, given.source_mask, given.token_types)
        )
        assert tokens is not None
        flat = Inputs(
            source_tokens=tokens, source_mask=mask, token_types=jnp.zeros_like(tokens) if types is None else types
        )
        return super().inputs(batch._replace(inputs=flat), model)

    def check_records(self, arrays: TokenArrays, *, needs_scores: bool = False) -> tuple[int, bool]:
        """Returns the number of all negatives, and whether a teacher scored any record.

        Raises: ValueError for a record without a query, or the scores that are needed.
        """
        without_source = np.flatnonzero(arrays.sizes[:, 0] == 0)
        if len(without_source):
            raise ValueError(
                f"objective.kind is '{self.kind}', which reads pairs, but record {without_source[0] + 1} of the data has no "
                "source: name one (data.train.record)"
            )
        num_negatives, num_scores = (arrays.each(name, Column.sizes) for name in (NEGATIVES, SCORES))
        if needs_scores and not num_scores.all():
            raise ValueError(
                f"objective.kind '{self.kind}' learns the scores of a teacher, but record {num_scores.argmin() + 1} of the data "
                "has none: name their fields (data.train.record.scores), or choose another objective.criterion"
            )
        return int(num_negatives.sum()), bool(num_scores.any())


def margin_mse(scores: Float[Array, "B K"], relevance: Float[Array, "B K"], present: Bool[Array, "B K"]) -> LossTerm:
    """Returns the squared errors of the margins of the first candidate to all others."""
    margins, wanted = (jnp.where(present, x[:, :1] - x, 0)[:, 1:] for x in (scores, relevance))
    return squared_error(margins, wanted, present[:, 1:].astype(scores.dtype))


def unread_scores(criterion: str) -> str:
    """Returns a note on scores of a teacher that a criterion does not read."""
    return f"the data has scores of a teacher (record.scores), which objective.criterion '{criterion}' does not read"
