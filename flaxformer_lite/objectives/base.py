"""What objectives share: a batch, rows made of pieces, and the loss of what the head scores."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, SupportsIndex

import numpy as np
from jaxtyping import Array, Float, Int

from flaxformer_lite.data.records import Lengths, TokenPair
from flaxformer_lite.inference.config import PromptAttention
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.inputs import Inputs, Outputs
from flaxformer_lite.objectives.losses import LossTerm, PerRowMetric, accuracy, cross_entropy, logit_stats
from flaxformer_lite.text.special_ids import PAD, SpecialIds


class Batch(NamedTuple):
    """One step's data: the model's inputs, the token expected wherever the head scores one, and how much each counts."""

    inputs: Inputs
    targets: Int[Array, "B T"] | Float[Array, "B 1"]
    """Of whole texts the class or the value, one a row."""
    weights: Float[Array, "B T"]
    labels: Int[Array, "B"] | None = None
    """Whether each row's second text follows its first (0) or not (1), where the objective asks."""


def padded(
    tokens: Sequence[SupportsIndex] | Int[np.ndarray, "_"], length: int, fill: int = PAD
) -> Int[np.ndarray, "T"]:
    """The tokens, then padding up to `length`."""
    row = np.full(length, fill, np.int32)
    row[: len(tokens)] = tokens
    return row


def pair_example(record: TokenPair, lengths: Lengths, special: SpecialIds) -> Batch:
    """One row for an encoder–decoder: it reads the source and EOS, then the start and the target, and should say the target and
    EOS.
    """
    if special.eos is None:
        raise ValueError(
            "the tokenizer has no id that ends a text (eos), so no answer could end: choose another tokenizer"
        )
    source = padded([*record.source, special.eos], lengths.source, special.pad)
    target = padded([special.start, *record.target], lengths.target, special.pad)
    is_source, is_target = (
        np.arange(lengths.source) <= len(record.source),
        np.arange(lengths.target) <= len(record.target),
    )
    # NumPy here on the host; the model sees the same on devices.
    inputs = Inputs(source_tokens=source, source_mask=is_source, target_tokens=target, target_mask=is_target)  # type: ignore[arg-type]
    targets = padded([*record.target, special.eos], lengths.target, special.pad)
    return Batch(inputs, targets, is_target.astype(np.float32))  # type: ignore[arg-type]


class ConcatenatedPieces(NamedTuple):
    """Pieces one after the other, padded: their tokens, where each stands in its piece, and the number of its piece from 1."""

    tokens: Int[np.ndarray, "T"]
    positions: Int[np.ndarray, "T"]
    segments: Int[np.ndarray, "T"]


def concat_pieces(pieces: Sequence[Int[np.ndarray, "_"]], length: int, fill: int = PAD) -> ConcatenatedPieces:
    """The pieces in one row of `length` positions; positions and segments are 0 in the padding."""
    return ConcatenatedPieces(
        padded(np.concatenate(pieces), length, fill),
        padded(np.concatenate([np.arange(len(piece)) for piece in pieces]), length),
        padded(np.concatenate([np.full(len(piece), number) for number, piece in enumerate(pieces, 1)]), length),
    )


@dataclass(frozen=True, kw_only=True)
class BaseObjective:
    """What objectives share: the loss of what the head scores, and what is usual for them."""

    kind: str

    # What the rest of the package needs to know of an objective: class constants, no settings.
    unit: ClassVar[str] = "documents"
    """The name of the records, in the plural."""
    command: ClassVar[str] = "evaluate"
    """The command that uses a model trained with this objective."""
    translates: ClassVar[bool] = False
    """Whether the model answers a source with a target, so that its answers are written and scored by `train.text_metrics`."""
    truncates_records: ClassVar[bool] = False
    """Whether evaluation records are truncated to `data.max_source_length` and `data.max_target_length` before `make_rows`, each
    with a warning. False: `make_rows` fits the whole records."""
    rows_independent: ClassVar[bool] = True
    """Whether the loss of a row depends on that row alone, so that a batch can be split over micro-batches and pmap devices."""
    decoder_special_ids: ClassVar[tuple[str, ...]] = ()
    """The special ids (fields of `Special`) that the decoder learns, so that `decode` must have the same ones."""
    prompt_attention: ClassVar[PromptAttention] = "causal"
    """The tokens of a prompt that each one attends to, for a decoder alone; `example` sets `Inputs.target_attention` alike."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the figures that `report` returns."""
        return ("loss", "perplexity", "accuracy")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the order of `Outputs.class_logits`; empty: the objective names none."""
        return ()

    @property
    def mask_id(self) -> int | None:
        """The id that stands for a masked token; None: the tokenizer's own."""
        return None

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError where the model is not one that this objective trains."""
        self.check_stacks(model, encoder=True, decoder=True)

    def check_stacks(self, model: ModelConfig, *, encoder: bool, decoder: bool) -> None:
        for side, wanted in (("encoder", encoder), ("decoder", decoder)):
            found = getattr(model, f"num_{side}_layers")
            if (found > 0) != wanted:
                remedy = "give at least 1" if wanted else "set it to 0"
                raise ValueError(
                    f"model.num_{side}_layers is {found}, but objective.kind '{self.kind}' trains a model "
                    f"{'with' if wanted else 'without'} {side}: {remedy}, or choose another objective"
                )
        if model.head is None:
            raise ValueError(
                f"model.head is None, but objective.kind '{self.kind}' needs its scores: give the model a head"
            )

    def num_tokenizer_ids(self, vocab_size: int) -> int:
        """How many ids, from 0 on, a tokenizer may have: those above are the objective's own."""
        return vocab_size

    def packed_row(self, longest: Lengths) -> Lengths | None:
        """The one shape of all rows, where documents fill them; None where each record has its own length."""
        return longest

    def longest_row(self, longest: Lengths) -> Lengths:
        """The longest row that there can be; 0 for a side that is not read."""
        return self.packed_row(longest) or longest

    def inputs(self, batch: Batch, model: ModelConfig) -> Inputs:
        """What that model reads of a batch."""
        return batch.inputs

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """The terms that training minimises."""
        return {"cross_entropy": cross_entropy(outputs.loss_logits, batch.targets, batch.weights)}

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm | PerRowMetric]:
        """What evaluation counts: unsmoothed nats per token that is to be told, and how many of these are told right."""
        seen = logit_stats(outputs.loss_logits, batch.targets)
        return {
            "loss": cross_entropy(seen, batch.targets, batch.weights),
            "accuracy": accuracy(seen, batch.targets, batch.weights),
        }

    def report(self, totals: Mapping[str, LossTerm | PerRowMetric]) -> dict[str, float]:
        """What evaluation reports, from what `metrics` counted over all batches; `perplexity` is the exponential of `loss`."""
        means = {name: term.mean for name, term in totals.items() if isinstance(term, LossTerm)}
        return {**means, "perplexity": math.exp(min(means["loss"], 700.0))}


def check_id(setting: str, value: int, model: ModelConfig) -> None:
    """Raises: ValueError where the setting is no id of the model's vocabulary."""
    if value >= model.vocab_size:
        raise ValueError(
            f"objective.{setting} is {value}, but model.vocab_size is {model.vocab_size}: set it to "
            f"{model.vocab_size - 1}, the last id, or raise model.vocab_size"
        )
