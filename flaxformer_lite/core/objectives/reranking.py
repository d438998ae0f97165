"""Rerankers: a model reads a query together with a candidate, and says by one number how well it answers the query."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge
from jaxtyping import Array, Bool, Float

from flaxformer_lite.core.data.records import LabelledText, Lengths, TokenPair
from flaxformer_lite.core.data.token_arrays import Lazy, Rows, TokenArrays
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.model.layers import accumulation_dtype
from flaxformer_lite.core.objectives.base import check_pooler
from flaxformer_lite.core.objectives.batch import Batch, host_row, pad_tokens
from flaxformer_lite.core.objectives.candidates import (
    ABSENT_SCORE,
    CandidateTexts,
    QueryCandidates,
    longest_candidates,
    margin_mse,
    unread_scores,
)
from flaxformer_lite.core.objectives.classification import class_logits
from flaxformer_lite.core.objectives.losses import Counts, LossTerm, PerRowMetric, binary_cross_entropy
from flaxformer_lite.core.reading.objectives import RankedTexts
from flaxformer_lite.core.retrieval.ranking import ndcg, reciprocal_rank
from flaxformer_lite.core.text import SpecialIds, Tokenizer
from flaxformer_lite.core.text.characters import ByteTokenizer
from flaxformer_lite.core.text.pair_template import cut_pair, pair_ending, pair_text

# Losses ---------------------------------------------------------------------------------------------------------------


def binary(scores: Float[Array, "B K"], relevance: Float[Array, "B K"], present: Bool[Array, "B K"]) -> LossTerm:
    return binary_cross_entropy(scores[..., None], relevance[..., None], present[..., None].astype(scores.dtype))


def ranknet(scores: Float[Array, "B K"], relevance: Float[Array, "B K"], present: Bool[Array, "B K"]) -> LossTerm:
    """Returns log₂(1 + exp(s_j - s_i)) of all candidates i of more relevance than j."""
    ordered = (relevance[:, :, None] > relevance[:, None, :]) & present[:, :, None] & present[:, None, :]
    differences = jnp.where(ordered, scores[:, None, :] - scores[:, :, None], 0)
    return LossTerm((jax.nn.softplus(differences) * ordered).sum() / math.log(2), ordered.sum().astype(scores.dtype))


def listnet(scores: Float[Array, "B K"], relevance: Float[Array, "B K"], present: Bool[Array, "B K"]) -> LossTerm:
    wanted = jax.nn.softmax(jnp.where(present, relevance, ABSENT_SCORE))
    losses = -(jnp.where(present, jax.nn.log_softmax(scores), 0) * wanted).sum(-1)
    weights = present.any(-1).astype(scores.dtype)
    return LossTerm((losses * weights).sum(), weights.sum())


CRITERIA: dict[str, Callable[[Array, Array, Array], LossTerm]] = {
    loss.__name__: loss for loss in (binary, margin_mse, ranknet, listnet)
}
"""The losses of scores by their names. A new one stands here, and in a sentence on the setting `criterion`."""


# The objective ----------------------------------------------------------------------------------------------------------


class RankedPairs(NamedTuple):
    """A query with each of its candidates, or some of them, as the model reads them."""

    pairs: Sequence[LabelledText]
    """The pairs of the positives first. A label is the teacher's score, or else 1 for a positive and 0 for a negative."""
    num_positives: int
    place: tuple[int, int] = (0, 0)
    """The number of the record, and that of the first of these candidates, in an evaluation."""


@dataclass(frozen=True, kw_only=True)
class Reranking(RankedTexts, CandidateTexts):
    """A query and each of its candidates are read together; the single logit of `model.pooler` is the candidate's score.

        row   BOS query EOS candidate EOS, once for each candidate; or the text of `pair_template`

    The relevance of a candidate is the score of a teacher, if the data has scores, else 1 for a positive and 0 for a negative.
    Evaluation reports `loss`, and `mrr@10` and `ndcg@10` of the positives among all candidates of their own query; a negative of
    the same score stands before a positive. It reads a query with more than `num_candidates` in several rows.

    Reference: Nogueira & Cho 2019, arXiv:1901.04085, section 3.
    """

    kind: Literal["reranking"] = "reranking"
    criterion: Literal[tuple(CRITERIA)] = "binary"
    """binary: the binary cross-entropy of each candidate, a positive or not; nats per candidate. margin_mse: the squared error of
    the score of a positive minus that of each other candidate, against the same difference of the teacher's scores (Hofstätter et
    al. 2021, arXiv:2010.02666, section 3); per pair. ranknet: for each two candidates of different relevance the bits of the
    probability that their scores have the same order (Burges et al. 2005, "Learning to rank using gradient descent", section 3);
    per pair. listnet: the cross-entropy of the softmax of the scores against that of the relevance (Cao et al. 2007, "Learning to
    rank: from pairwise approach to listwise approach", section 4); nats per query."""
    num_candidates: Annotated[int, Ge(2)] = 8
    """The most candidates of a query that a step reads. In training a query that has more gets others in each epoch, one positive
    always."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "mrr@10", "ndcg@10")

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks, or not exactly one class logit."""
        super().check_model(model)
        check_pooler(model, 1, f"objective.kind '{self.kind}' needs")

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns one row a record. Raises: ValueError for records without a query or the scores, or without any negative."""
        arrays, reader, note, template = TokenArrays.of(records), tokenizer or ByteTokenizer(), "", self.pair_template
        ending = pair_ending(template, reader) if template else []
        num_tokens = len(reader.encode(pair_text(template, "", ""))) if template else 0
        if template and num_tokens >= longest.source:
            raise ValueError(
                f"objective.pair_template alone has {num_tokens} tokens: data.max_source_length is {longest.source}; raise it"
            )
        if tokenizer is not None:
            num_negatives, has_scores = self.check_records(arrays, needs_scores=self.criterion == "margin_mse")
            if not num_negatives:
                raise ValueError(
                    f"objective.kind '{self.kind}' compares candidates, but no record of the data has a negative: name their "
                    "fields (data.train.record.negatives)"
                )
            note = unread_scores(self.criterion) if has_scores and self.criterion == "binary" else ""

        def make(i: int) -> RankedPairs:
            query, candidates, num_positives, scores = QueryCandidates.of(arrays[i])

            def pair(number: int) -> LabelledText:
                candidate = candidates[number].tolist()
                if template:  # the tokenizers' reader has written the query into each candidate
                    read = cut_pair(candidate, ending, longest.source)
                else:
                    read = reader.truncated([query.tolist(), candidate], longest.source)
                relevance = float(number < num_positives)
                if len(scores) and self.criterion != "binary":
                    relevance = float(scores[number])
                return LabelledText.of(read, relevance)

            return RankedPairs(Lazy(len(candidates), pair), num_positives)

        num_special, sizes = 0, longest_candidates(arrays)
        if not template:
            num_special, sizes = len(reader.truncated([[], []], 0).tokens), sizes + arrays.sizes[:, 0]
        return Rows.truncated(num_special, sizes, longest.source, make, note)

    def evaluated_rows(self, rows: Rows, first: int) -> Rows:
        """Returns one row or several for each query, so that all of its candidates are read, in the shape of training's rows."""
        places = [
            (number, start)
            for number, row in enumerate(rows)
            for start in range(0, len(row.pairs), self.num_candidates)
        ]

        def make(i: int) -> RankedPairs:
            number, start = places[i]
            pairs, num_positives, _ = rows[number]
            some = pairs[start : start + self.num_candidates]
            return RankedPairs(some, max(num_positives - start, 0), (first + number, start))

        return Rows(rows.lengths[[number for number, _ in places]], make)

    def example(
        self, record: RankedPairs, lengths: Lengths, generator: np.random.Generator, special: SpecialIds
    ) -> Batch:
        """Returns a row without the axis B, of K texts `[K, S]`; absent ones are masked, and have no relevance.

        `extra` has 1 for each positive, and the place of the row.
        """
        chosen = np.arange(len(record.pairs))
        if len(chosen) > self.num_candidates:
            positive = generator.integers(record.num_positives)
            others = generator.choice(np.delete(chosen, positive), self.num_candidates - 1, replace=False)
            chosen = np.append(positive, np.sort(others))
        nothing = np.zeros(0, np.int32)
        absent = LabelledText(nothing, nothing, 0.0)
        texts = [record.pairs[i] for i in chosen.tolist()] + [absent] * (self.num_candidates - len(chosen))
        row = host_row(
            np.array([text.label for text in texts], np.float32),
            np.ones(1, np.float32),
            source_tokens=np.stack([pad_tokens(text.tokens, lengths.source, special.pad) for text in texts]),
            source_mask=np.stack([np.arange(lengths.source) < len(text.tokens) for text in texts]),
            token_types=np.stack([pad_tokens(text.types, lengths.source) for text in texts]),
        )
        is_positive = np.zeros(self.num_candidates, np.float32)
        is_positive[: len(chosen)] = chosen < record.num_positives
        return row._replace(extra=(is_positive, np.array(record.place, np.int32)))

    def scores(self, outputs: Outputs, batch: Batch) -> tuple[Float[Array, "B K"], Bool[Array, "B K"]]:
        """Returns the score of each candidate, and whether it is there."""
        logits = class_logits(outputs).reshape(jnp.shape(batch.targets))
        present = jnp.asarray(batch.inputs.source_mask).any(-1) & (jnp.asarray(batch.weights) > 0)
        return jnp.where(present, logits.astype(accumulation_dtype(logits)), ABSENT_SCORE), present

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the term of the criterion, in its unit."""
        scores, present = self.scores(outputs, batch)
        return {self.criterion: CRITERIA[self.criterion](scores, jnp.asarray(batch.targets), present)}

    def metrics(self, outputs: Outputs, batch: Batch) -> Counts:
        """Returns the scores, the relevance and the gains of each row, `[B, 3K]`, and its place."""
        scores, _ = self.scores(outputs, batch)
        (gains, places), weights = batch.extra, batch.weights[:, 0]
        rows = jnp.concatenate([scores, batch.targets, gains], -1)
        return {"rows": PerRowMetric(rows, weights), "places": PerRowMetric(places, weights)}

    def report(self, totals: Counts) -> dict[str, float]:
        """Returns the figures of the queries, each with the candidates of all its rows."""
        places, rows = (np.asarray(totals[name][0]) for name in ("places", "rows"))
        order = np.lexsort(places.T[::-1])
        figures = list[tuple[float, float]]()
        losses = list[LossTerm]()
        for of_query in np.split(rows[order], np.flatnonzero(np.diff(places[order, 0])) + 1):
            scores, relevance, gains = (x.reshape(1, -1) for x in np.split(of_query, 3, axis=1))
            losses.append(CRITERIA[self.criterion](*map(jnp.asarray, (scores, relevance, scores != ABSENT_SCORE))))
            ranked = gains[0, np.lexsort((gains[0], -scores[0]))].tolist()
            figures.append((reciprocal_rank(ranked, 10), ndcg(ranked, ranked, 10)))
        loss = LossTerm(*np.array(jax.device_get(losses), np.float64).sum(0)[:2])
        mrr, ndcg_ = np.mean(figures, axis=0).tolist()
        return {"loss": loss.mean, "mrr@10": mrr, "ndcg@10": ndcg_}
