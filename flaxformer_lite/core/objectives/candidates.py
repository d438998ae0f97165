"""Queries with candidates, the data of embeddings and of rerankers.

A record (`TokenPair`) of a query with its candidates has

    source   the tokens of the query
    target   the tokens of all candidates, one after the other: those that answer the query (positives) before those that do not
    marks    the number of the candidate of each token, from 0
    label    the number of positives, the number of candidates and, if a teacher scored them, its score of each: "1 3 9.5 -2 0.25"

A record without a label is a plain pair: its target is the only candidate, and answers the query.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.data.records import TokenPair
from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.core.model import Inputs, ModelConfig
from flaxformer_lite.core.objectives.batch import Batch
from flaxformer_lite.core.objectives.classification import WholeTexts
from flaxformer_lite.core.objectives.losses import LossTerm, squared_error

ABSENT = -1e9
"""The score of a candidate that a row does not have, or of a padding row: it is the last, and has no share of a softmax."""
MOST_CANDIDATES = 2**16
"""The most candidates of a query: their numbers are stored in 16 bits."""


class QueryCandidates(NamedTuple):
    """A query with K candidates, as token ids without special tokens."""

    query: Int[np.ndarray, "S"]
    candidates: tuple[Int[np.ndarray, "_"], ...]
    """The positives, then the negatives."""
    num_positives: int
    """At least 1."""
    scores: Float[np.ndarray, "K"] | None = None
    """The score of each candidate by a teacher; None without one."""

    @classmethod
    def of(cls, record: TokenPair) -> "QueryCandidates":
        """Returns the parts of a record."""
        num_positives, number, scores = read_label(record.label)
        marks = np.zeros(len(record.target)) if record.marks is None else record.marks.astype(np.int32)
        candidates = np.split(record.target, np.searchsorted(marks, np.arange(1, number)))
        return cls(record.source, tuple(candidates), num_positives, np.array(scores, np.float32) if scores else None)


def read_label(label: str) -> tuple[int, int, list[str]]:
    """Returns the numbers of positives and of candidates, and the scores, by a record's label; of a plain pair 1 and 1."""
    num_positives, number, *scores = label.split() if " " in label else ("1", "1")
    return int(num_positives), int(number), scores


def candidates_label(num_positives: int, number: int, scores: Sequence[float]) -> str:
    """Returns the label of a record with so many candidates, with the scores as seven digits each: about those of float32."""
    return " ".join([str(num_positives), str(number), *(f"{score:.7g}" for score in scores)])


@dataclass(frozen=True, kw_only=True)
class CandidateTexts(WholeTexts):
    """Base of the objectives whose records are queries with candidates, or plain pairs."""

    reads = "candidates"

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
        num_negatives, has_scores = 0, False
        for number, label in enumerate(arrays.labels, 1):
            num_positives, num_candidates, scores = read_label(label)
            num_negatives += num_candidates - num_positives
            has_scores |= bool(scores)
            if needs_scores and not scores:
                raise ValueError(
                    f"objective.kind '{self.kind}' learns the scores of a teacher, but record {number} of the data has none: name "
                    "their fields (data.train.record.scores), or choose another objective.criterion"
                )
        return num_negatives, has_scores


def margin_mse(scores: Float[Array, "B K"], relevance: Float[Array, "B K"], present: Bool[Array, "B K"]) -> LossTerm:
    """Returns the squared errors of the margins of the first candidate to all others."""
    margins, wanted = (jnp.where(present, x[:, :1] - x, 0)[:, 1:] for x in (scores, relevance))
    return squared_error(margins, wanted, present[:, 1:].astype(scores.dtype))


def unread_scores(criterion: str) -> str:
    """Returns a note on scores of a teacher that a criterion does not read."""
    return f"the data has scores of a teacher (record.scores), which objective.criterion '{criterion}' does not read"
