"""Labels for tokens: an encoder labels each word of a text, as the name of a person or as a noun, at the word's pieces."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from flaxformer_lite.core.base.bounds import PositiveFloat
from flaxformer_lite.core.data.records import LabelledText, Lengths, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows, Spans, TokenArrays
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.objectives.base import HeadObjective, check_pooler
from flaxformer_lite.core.objectives.batch import Batch, pad_tokens, text_row
from flaxformer_lite.core.objectives.classification import WholeTexts
from flaxformer_lite.core.objectives.losses import (
    Counts,
    LossTerm,
    accuracy,
    check_class_weights,
    cross_entropy,
    weights_of,
)
from flaxformer_lite.core.reading.objectives import (
    OUTSIDE,
    PIECE_LABELS,
    PREFIXES,
    LabelledWordTexts,
    LabelParts,
    continues,
)
from flaxformer_lite.core.text import SpecialIds, Tokenizer
from flaxformer_lite.core.text.characters import ByteTokenizer
from flaxformer_lite.core.text.pairs import Extent


@dataclass(frozen=True, kw_only=True)
class TokenLabels(LabelledWordTexts, WholeTexts, HeadObjective):
    """A label for each word of a text, scored by a `model.pooler` that reads each token. Its word is read off the first piece.

    A word here is a unit of the text: letters and digits in a row, or one other sign. Evaluation reports `loss`; `accuracy`, of
    words; and `precision`, `recall` and `f1` of entities, over all and of each type (`f1_PER`). An entity is right if its type, its
    first and its last word are; entities are read off the labels as conlleval and seqeval's default mode do, where a stray I-
    begins an entity. Words that were cut off do not count.
    """

    kind: Literal["token_labels"] = "token_labels"
    pieces: Literal["first", "all"] = "first"
    """The pieces of a word that the loss counts. all: the further pieces have the word's label too, with I- in place of B-."""
    class_weights: tuple[PositiveFloat, ...] = ()
    """A weight for each label, in their order; (): all 1. It multiplies the loss of the pieces with that label, and the sum is
    divided by the sum of their weights. Evaluation has no weights."""

    counted = "words"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise ValueError(f"objective.labels is {self.labels}: it must be at least 1 label, all different")
        check_class_weights(self.class_weights, "objective.labels", len(self.labels))
        prefixes = PREFIXES.get(self.scheme, "")
        for label in self.labels if prefixes else ():
            if label != OUTSIDE and not (label[:1] in prefixes and label[1:2] == "-" and label[2:]):
                legal = ", ".join(f"{prefix}-TYPE" for prefix in prefixes)
                raise ValueError(
                    f"objective.labels has {label!r}, but objective.scheme is {self.scheme!r}, whose labels are {OUTSIDE}, "
                    f"{legal}: rename it, or set the scheme to 'plain'"
                )

    @property
    def metric_names(self) -> tuple[str, ...]:
        scores = ("precision", "recall", "f1")
        of_types = [f"{score}_{kind}" for kind in self.entity_types for score in scores]
        return ("loss", "accuracy", *scores, *of_types)

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks, or not as many classes of each token."""
        super().check_model(model)
        check_pooler(model, len(self.labels), f"objective.kind '{self.kind}' needs", each=True)

    # From records to rows --------------------------------------------------------------------------------------------

    def label_number(self, label: str | int, word: str) -> int:
        """Returns a label's place in `labels`. Raises: ValueError for one that they lack; `word` names its word in the message."""
        if isinstance(label, int) and 0 <= label < len(self.labels):
            return label
        if label in self.labels:
            return self.labels.index(str(label))
        few = ", ".join(self.labels[:10]) + (", …" if len(self.labels) > 10 else "")
        raise ValueError(
            f"{word} has the label {label!r}, which is not one of objective.labels ({few}): add it there, or correct the data"
        )

    def further_label(self, label: int) -> int:
        """Returns the label of a word's further pieces: that of its first, with I- in place of B- if there is such a label."""
        name = self.labels[label]
        inside = f"I-{name[2:]}" if self.scheme != "plain" and name[:1] == "B" else name
        return self.labels.index(inside) if inside in self.labels else label

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns one row for each text that could be read."""
        arrays, reader = TokenArrays.of(records), tokenizer or ByteTokenizer()
        around = reader.with_special_tokens([-1]).tokens
        before = around.index(-1)
        room = max(longest.source - len(around) + 1, 0)
        kept = np.flatnonzero(arrays.extents != Extent.REFUSED)
        sizes = arrays.sizes[:, 1]

        def make(i: int) -> LabelledText:
            record = arrays[kept[i]]
            read = reader.truncated([record.target.tolist()], longest.source)
            labels, shown = np.zeros(len(read.tokens), np.int32), record.array(PIECE_LABELS)[:room]
            labels[before : before + len(shown)] = shown
            return LabelledText.of(read, labels)

        read = np.minimum(sizes[kept], room).astype(np.int64)
        too_long = kept[sizes[kept] > room]
        lost = [int((arrays[i].array(PIECE_LABELS)[room:] % 2).sum()) for i in too_long]
        note = f"{sum(lost):,} words of {len(lost):,} texts were cut off, as data.max_source_length is {longest.source}"
        rows = Rows.source_only(len(around) - 1 + read, make, Spans.one_each(kept, np.zeros_like(kept), read))
        rows.note = note if sum(lost) else ""
        return rows

    def example(
        self, record: LabelledText, lengths: Lengths, generator: np.random.Generator, special: SpecialIds
    ) -> Batch:
        """Returns a row without the axis B; `extra` is 1 at the first piece of each word."""
        labels = pad_tokens(record.label, lengths.source)
        first: Any = (labels % 2).astype(np.float32)
        counted: Any = first if self.pieces == "first" else (labels > 0).astype(np.float32)
        return text_row(np.maximum(labels - 1, 0) // 2, counted, record, lengths, special)._replace(extra=first)

    # From outputs to figures -----------------------------------------------------------------------------------------

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the terms of `head_loss`, in nats per counted piece."""
        weights = weights_of(self.class_weights, batch.targets, batch.weights)
        return self.head_loss(token_logits(outputs), batch.targets, weights)

    def metrics(self, outputs: Outputs, batch: Batch) -> Counts:
        """Returns nats per counted piece, the words with the right label, and the counts of entities (`entity_counts`)."""
        logits = token_logits(outputs)
        is_word = batch.extra > 0
        order = jnp.argsort(~is_word, axis=-1, stable=True)  # the words first, in their order
        labels = (jnp.where(is_word, x, -1) for x in (batch.targets, logits.argmax(-1)))
        true, predicted = (jnp.take_along_axis(x, order, -1) for x in labels)
        counts = entity_counts(true, predicted, self.label_parts, len(self.entity_types))
        return {
            "loss": cross_entropy(logits, batch.targets, batch.weights),
            "accuracy": accuracy(logits, batch.targets, batch.extra),
            "entities": LossTerm(counts.astype(batch.weights.dtype), batch.extra.sum()),
        }

    def report(self, totals: Counts) -> dict[str, float]:
        terms = {name: total for name, total in totals.items() if isinstance(total, LossTerm)}
        table = np.asarray(terms["entities"].sum)
        figures = {name: terms[name].mean for name in ("loss", "accuracy")} | scores(table.sum(1))
        for kind, counts in zip(self.entity_types, table.T, strict=True):
            figures |= {f"{name}_{kind}": value for name, value in scores(counts).items()}
        return figures


def token_logits(outputs: Outputs) -> Float[Array, "B T C"]:
    """Returns the logits of each token's labels, which `check_model` has made sure of."""
    assert outputs.class_logits is not None
    return outputs.class_logits


# Entities ---------------------------------------------------------------------------------------------------------------


def entity_counts(
    true: Int[Array, "B W"], predicted: Int[Array, "B W"], parts: LabelParts, num_types: int
) -> Int[Array, "3 C"]:
    """Returns the numbers of right, of predicted and of true entities of each type. A label -1 stands behind the last word."""
    tables = LabelParts(*map(jnp.asarray, parts))

    def entities(labels: Array) -> tuple[Array, Array, Array]:
        """Returns whether an entity begins with each word, its type, and the place of its last word."""
        joins = continues(labels, tables)
        inside = ~tables.outside[labels]
        begins = inside & ~jnp.pad(joins, ((0, 0), (1, 0)))
        ends = inside & ~jnp.pad(joins, ((0, 0), (0, 1)))
        places = jnp.where(ends, jnp.arange(labels.shape[1]), labels.shape[1])
        return begins, tables.type[labels], jax.lax.cummin(places, axis=1, reverse=True)

    def by_type(begins: Array, types: Array) -> Array:
        return (begins[..., None] & (types[..., None] == jnp.arange(num_types))).sum((0, 1))

    (begins, types, lasts), (of_true, true_types, true_lasts) = entities(predicted), entities(true)
    right = begins & of_true & (types == true_types) & (lasts == true_lasts)
    return jnp.stack([by_type(right, types), by_type(begins, types), by_type(of_true, true_types)])


def scores(counts: Float[np.ndarray, "3"]) -> dict[str, float]:
    """Returns precision, recall and F1 from the numbers of right, of predicted and of true entities; 0 without any."""
    right, predicted, true = counts.tolist()
    return {
        "precision": right / max(predicted, 1),
        "recall": right / max(true, 1),
        "f1": 2 * right / max(predicted + true, 1),
    }
