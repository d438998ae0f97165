"""Sentence embeddings: texts that belong together get similar vectors."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from flaxformer_lite.core.base.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from flaxformer_lite.core.data import Lengths, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows, TokenArrays
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.model.norms import unit_length
from flaxformer_lite.core.objectives.batch import Batch, host_row, pad_tokens
from flaxformer_lite.core.objectives.candidates import (
    ABSENT_SCORE,
    CandidateTexts,
    QueryCandidates,
    longest_candidates,
    margin_mse,
    unread_scores,
)
from flaxformer_lite.core.objectives.losses import Counts, LossTerm, accuracy, cross_entropy
from flaxformer_lite.core.reading.objectives import PromptedTexts
from flaxformer_lite.core.text import SpecialIds, Tokenizer
from flaxformer_lite.core.text.characters import ByteTokenizer

MOST_KNOWN_POSITIVES = 16
"""The most positives of a query that a batch knows besides the drawn one."""
LOWEST = 0.01
"""The lowest learned temperature."""


@dataclass(frozen=True, kw_only=True)
class SentenceEmbeddings(PromptedTexts, CandidateTexts):
    """Texts that belong together: of all candidates in the batch, a query's own positive should be the nearest.

    A record is a query with one or several positives and any negatives, or a pair, whose target is the positive of its source. The
    loss is the cross-entropy over the cosines divided by `temperature`. The candidates of all other queries of the batch are
    negatives too, so larger batches are harder. Not negatives of a query are its other positives, those in rows of an equal query,
    and texts with the tokens of the query or of a positive. `train.num_micro_batches` divides only the computation of the vectors:
    the loss compares the whole batch, in the memory of a micro-batch. `accuracy` is the fraction of queries whose own positive is
    the nearest in its evaluation batch. An evaluation reads one positive and `num_negatives` of each query, the same each time: its
    figures compare runs of equal settings, and those of a search are `evaluate --search`'s.

    Reference: Henderson et al. 2017, arXiv:1705.00652, section 4.4; Gao et al. 2021, arXiv:2101.06983, section 3, for the memory.
    """

    kind: Literal["sentence_embeddings"] = "sentence_embeddings"
    criterion: Literal["in_batch_negatives", "margin_mse"] = "in_batch_negatives"
    """in_batch_negatives: the cross-entropy. margin_mse: the squared error of a positive's product with the query minus that of
    each negative, against the same difference of a teacher's scores (Hofstätter et al. 2021, arXiv:2010.02666, section 3)."""
    temperature: PositiveFloat = 0.05
    """Divides the cosines, or the products of `margin_mse`; a lower one gives more weight to near misses. The first one where
    `model.sentence_embedding.learned_temperature` is set; it then goes down to 0.01, and stays there (Radford et al. 2021,
    arXiv:2103.00020, section 2.5, cuts it there too)."""
    directions: Literal["forward", "both"] = "forward"
    """forward: each query finds its positive. both: also each positive its query among all queries, with half of the weight."""
    num_negatives: NonNegativeInt = 0
    """The most negatives of a query that a step reads. A query that has more gets others in each epoch."""
    widths: tuple[PositiveInt, ...] = ()
    """Widths of beginnings of the vectors that are vectors of their own: the loss is summed over them, each scaled to length 1
    (Kusupati et al. 2022, arXiv:2205.13147, section 3). (): only whole vectors."""
    width_weights: tuple[PositiveFloat, ...] = ()
    """The weight of each of `widths` in the loss; (): 1 each."""
    rows_independent = False

    def __post_init__(self) -> None:
        """Raises: ValueError for settings that do not fit each other."""
        super().__post_init__()
        are_pairs = all(len(prompt) == 2 for prompt in self.prompts)
        if not are_pairs or len(dict(self.prompts)) < len(self.prompts):
            raise ValueError(
                f"objective.prompts is {self.prompts}: it must be pairs of a name and a text, all names different"
            )
        for setting in ("query_prompt", "document_prompt", "default_prompt"):
            self.prompt_text(getattr(self, setting), f"objective.{setting}")
        if self.width_weights and len(self.width_weights) != len(self.widths):
            raise ValueError(
                f"objective.width_weights is {self.width_weights}, but objective.widths is {self.widths}: give each width a weight"
            )
        if self.criterion == "margin_mse":
            self.check_margin()

    def check_margin(self) -> None:
        if self.directions == "both":
            raise ValueError(
                "objective.directions is 'both', but objective.criterion 'margin_mse' has one: set it to 'forward'"
            )
        if not self.num_negatives:
            raise ValueError(
                "objective.num_negatives is 0, but objective.criterion 'margin_mse' compares them: set it to 1 or more"
            )

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "accuracy") if self.criterion == "margin_mse" else super().metric_names

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks, or no sentence embedding that fits `widths` and `temperature`."""
        super().check_model(model)
        if model.sentence_embedding is None:
            raise ValueError(
                f"model.sentence_embedding is None, but objective.kind '{self.kind}' compares vectors: set it, for example to "
                "SentenceEmbedding(pooling='mean')"
            )
        if model.sentence_embedding.learned_temperature and self.temperature < LOWEST:
            raise ValueError(
                f"objective.temperature is {self.temperature}, but model.sentence_embedding.learned_temperature starts with it and "
                f"has at least {LOWEST}: raise it"
            )
        width = model.sentence_embedding.width(model.output_width)
        if self.widths and max(self.widths) > width:
            raise ValueError(f"objective.widths is {self.widths}, but vectors have the width {width}: lower them")

    def require_negatives(self, number: int) -> None:
        """Raises: ValueError if negatives are read, and the data has none."""
        if self.num_negatives and not number:
            raise ValueError(
                f"objective.num_negatives is {self.num_negatives}, but no record of the data has a negative: name their fields "
                "(data.train.record.negatives), or set it to 0"
            )

    def check_training(self, records: Sequence[TokenPair]) -> None:
        """Raises: ValueError if `num_negatives` would be ignored. In evaluation, a plain pair has the negatives of its batch."""
        num_negatives, _ = self.check_records(TokenArrays.of(records))
        self.require_negatives(num_negatives)

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns one row a record, of its query and its candidates. Raises: ValueError for records that do not fit."""
        arrays = TokenArrays.of(records)
        reader = tokenizer or ByteTokenizer()
        notes = list[str]()
        if tokenizer is not None:
            reads_scores = self.criterion == "margin_mse"
            num_negatives, has_scores = self.check_records(arrays, needs_scores=reads_scores)
            if reads_scores:
                self.require_negatives(num_negatives)
            if num_negatives and not self.num_negatives:
                notes.append(
                    f"the data has {num_negatives:,} negatives, which are not read: objective.num_negatives is 0"
                )
            if has_scores and not reads_scores:
                notes.append(unread_scores(self.criterion))

        def framed(text: Int[np.ndarray, "_"]) -> Int[np.ndarray, "_"]:
            return np.array(reader.truncated([text.tolist()], longest.source).tokens, np.int32)

        def make(i: int) -> QueryCandidates:
            record = QueryCandidates.of(arrays[i])
            candidates = tuple(map(framed, record.candidates))  # arrays: an evaluation draws from them by content
            return record._replace(query=framed(record.query), candidates=candidates)

        num_special = len(reader.truncated([[]], 0).tokens)
        sizes = np.maximum(arrays.sizes[:, 0], longest_candidates(arrays))
        return Rows.truncated(num_special, sizes, longest.source, make, "; ".join(notes))

    def example(
        self, record: QueryCandidates, lengths: Lengths, generator: np.random.Generator, special: SpecialIds
    ) -> Batch:
        """Returns a row without the axis B, of K texts `[K, S]`: a query, a positive, and negatives; absent ones are masked.

        Its targets are the scores of the candidates for `margin_mse`, and else not used. `extra` has the digests of its texts, and
        those of the positives of its query.
        """
        negatives = np.arange(record.num_positives, len(record.candidates))
        if len(negatives) > self.num_negatives:
            negatives = generator.choice(negatives, self.num_negatives, replace=False)
        chosen = [int(generator.integers(record.num_positives)), *negatives.tolist()]
        absent = [np.zeros(0, np.int32)] * (self.num_negatives + 1 - len(chosen))
        candidates = [record.candidates[i] for i in chosen]
        texts = [record.query, *candidates, *absent]
        targets: np.ndarray = np.zeros(1, np.int32)
        if self.criterion == "margin_mse":
            targets = np.zeros(self.num_negatives + 1, np.float32)
            targets[: len(chosen)] = record.scores[chosen] if len(record.scores) else 0
        row = host_row(
            targets,
            np.ones(1, np.float32),
            source_tokens=np.stack([pad_tokens(text, lengths.source, special.pad) for text in texts]),
            source_mask=np.stack([np.arange(lengths.source) < len(text) for text in texts]),
        )
        positives = record.candidates[: min(record.num_positives, MOST_KNOWN_POSITIVES)]
        digests = np.array(list(map(text_number, texts)))
        digests_of_positives = pad_tokens(list(map(text_number, positives)), MOST_KNOWN_POSITIVES)
        return row._replace(extra=(digests, digests_of_positives))

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the terms of each width: nats per query, or squared differences of scores per negative."""
        if not self.widths:
            return dict(self.terms_of(Vectors.of(outputs, batch, self.temperature), batch))
        weights = self.width_weights or (1.0,) * len(self.widths)
        terms = {}
        for width, weight in zip(self.widths, weights, strict=True):
            vectors = Vectors.of(outputs, batch, self.temperature, width)
            for name, term in self.terms_of(vectors, batch):
                terms[f"{name}_{width}"] = term._replace(weight=weight * term.weight)
        return terms

    def terms_of(self, vectors: "Vectors", batch: Batch) -> Iterator[tuple[str, LossTerm]]:
        """Yields the terms of the loss of one width, with their names."""
        if self.criterion == "margin_mse":
            yield "margin_mse", vectors.margins(jnp.asarray(batch.targets))
            return
        weight = 0.5 if self.directions == "both" else 1.0
        yield "cross_entropy", cross_entropy(*vectors.forward())._replace(weight=weight)
        if self.directions == "both":
            yield "backward", cross_entropy(*vectors.backward())._replace(weight=weight)

    def metrics(self, outputs: Outputs, batch: Batch) -> Counts:
        """Returns the loss of whole vectors forward, and the number of queries whose own positive is the nearest."""
        vectors = Vectors.of(outputs, batch, self.temperature)
        forward, *_ = dict(self.terms_of(vectors, batch)).values()
        return {"loss": forward, "accuracy": accuracy(*vectors.forward())}

    def compared(self, outputs: Outputs, batch: Batch) -> PyTree:
        """Returns the vectors of each row, `[R, K, D]`, and the factor of the cosines."""
        assert outputs.embedding is not None
        return outputs.embedding.reshape(len(batch.weights), -1, outputs.embedding.shape[-1]), outputs.log_scale

    def joined(self, groups: PyTree) -> Outputs:
        """Returns the vectors of all rows, those of a row side by side."""
        vectors, log_scales = groups
        log_scale = None if log_scales is None else log_scales.mean()  # all are the parameter
        return Outputs(embedding=vectors.swapaxes(0, 1).reshape(-1, vectors.shape[-1]), log_scale=log_scale)


def text_number(text: Int[np.ndarray, "_"]) -> np.int32:
    """Returns a number that equal texts share, and others hardly ever."""
    return np.frombuffer(hashlib.sha256(text.tobytes()).digest(), np.int32)[0]


@dataclass(frozen=True)
class Vectors:
    """The vectors of a batch."""

    query: Float[Array, "B D"]
    candidates: Float[Array, "B K D"]
    """The positive of each query, then its negatives."""
    present: Bool[Array, "B K"]
    """False for a candidate that a row does not have, and for those of a padding row."""
    compared: Bool[Array, "B B K"]
    """The candidates of all rows that each query is compared with: its own positive, and texts that neither answer nor equal it."""
    temperature: float | Float[Array, ""]

    @classmethod
    def of(cls, outputs: Outputs, batch: Batch, first: float, width: int | None = None) -> "Vectors":
        """Returns the vectors, cut to a width and scaled to length 1 where one is given.

        first: the temperature before it is learned.
        """
        assert outputs.embedding is not None
        vectors = outputs.embedding if width is None else unit_length(outputs.embedding[:, :width])
        of_rows = vectors.reshape(len(batch.weights), -1, vectors.shape[-1])
        present = jnp.broadcast_to(batch.weights > 0, of_rows.shape[:2])
        if batch.inputs.source_mask is not None:
            present &= batch.inputs.source_mask.any(-1)
        temperature: float | Array = first
        if outputs.log_scale is not None:
            temperature = jnp.maximum(first * jnp.exp(-outputs.log_scale), LOWEST)
        texts, answers = map(jnp.asarray, batch.extra)
        known = jnp.concatenate([texts[:, :2], answers], 1)
        excluded = (known[:, :, None, None] == texts[:, 1:]).any(1)
        first_excluded = excluded[..., 0]
        has_equal_query = texts[:, :1] == texts[:, 0]
        others_excluded = (first_excluded | has_equal_query) & ~jnp.eye(len(texts), dtype=bool)
        excluded = excluded.at[..., 0].set(others_excluded)
        compared = ~excluded & present[:, :1, None] & present[:, 1:]
        return cls(of_rows[:, 0], of_rows[:, 1:], present[:, 1:], compared, temperature)

    def forward(self) -> tuple[Float[Array, "B C"], Int[Array, "B"], Float[Array, "B"]]:
        """Returns the logits of all candidates for every query, the place of its own positive, and the weight of each row."""
        number, several, width = self.candidates.shape
        candidates = unit_length(self.candidates.reshape(-1, width)).reshape(self.candidates.shape)
        cosines = jnp.einsum("BD,CKD->BCK", unit_length(self.query), candidates)
        logits = jnp.where(self.compared, cosines / self.temperature, ABSENT_SCORE)
        return logits.reshape(number, -1), several * jnp.arange(number), self.weights

    def backward(self) -> tuple[Float[Array, "B B"], Int[Array, "B"], Float[Array, "B"]]:
        """Returns the same of all queries for every positive."""
        cosines = jnp.einsum("BD,CD->BC", unit_length(self.candidates[:, 0]), unit_length(self.query))
        logits = jnp.where(self.compared[..., 0].T, cosines / self.temperature, ABSENT_SCORE)
        return logits, jnp.arange(len(logits)), self.weights

    @property
    def weights(self) -> Float[Array, "B"]:
        """1, or 0 for a padding row."""
        return self.present[:, 0].astype(jnp.float32)

    def margins(self, scores: Float[Array, "B K"]) -> LossTerm:
        """Returns the squared errors of the margins between each positive and its negatives, of products and of scores."""
        products = jnp.einsum("BD,BKD->BK", self.query, self.candidates) / self.temperature
        return margin_mse(products, scores, self.present)
