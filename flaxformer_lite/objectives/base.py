"""What objectives share: a batch, rows made of pieces, and the loss of what the head scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, SupportsIndex

import numpy as np
from jaxtyping import Array, Float, Int

from flaxformer_lite.data.records import Lengths, TokenPair
from flaxformer_lite.losses import Term, accuracy, cross_entropy, read
from flaxformer_lite.model_config import ModelConfig
from flaxformer_lite.tokenizer import BOS, EOS, PAD
from flaxformer_lite.transformer import Inputs, Outputs


class Batch(NamedTuple):
    """One step's data: the model's inputs, the token expected wherever the head scores one, and how much each counts."""

    inputs: Inputs
    targets: Int[Array, "B T"]
    weights: Float[Array, "B T"]


def padded(tokens: Sequence[SupportsIndex] | Int[np.ndarray, "_"], length: int) -> Int[np.ndarray, "T"]:
    """The tokens, then padding up to `length`."""
    row = np.full(length, PAD, np.int32)
    row[: len(tokens)] = tokens
    return row


def pair_example(record: TokenPair, lengths: Lengths) -> Batch:
    """One row for an encoder–decoder: it reads the source and EOS, then BOS and the target, and should say the target and EOS."""
    source = padded([*record.source, EOS], lengths.source)
    target = padded([BOS, *record.target], lengths.target)
    is_source, is_target = (
        np.arange(lengths.source) <= len(record.source),
        np.arange(lengths.target) <= len(record.target),
    )
    # NumPy here on the host; the model sees the same on devices.
    inputs = Inputs(source_tokens=source, source_mask=is_source, target_tokens=target, target_mask=is_target)  # type: ignore[arg-type]
    return Batch(inputs, padded([*record.target, EOS], lengths.target), is_target.astype(np.float32))  # type: ignore[arg-type]


class Joined(NamedTuple):
    """Pieces one after the other, padded: their tokens, where each stands in its piece, and the number of its piece from 1."""

    tokens: Int[np.ndarray, "T"]
    positions: Int[np.ndarray, "T"]
    segments: Int[np.ndarray, "T"]


def joined(pieces: Sequence[Int[np.ndarray, "_"]], length: int) -> Joined:
    """The pieces in one row of `length` positions; positions and segments are 0 in the padding."""
    return Joined(
        padded(np.concatenate(pieces), length),
        padded(np.concatenate([np.arange(len(piece)) for piece in pieces]), length),
        padded(np.concatenate([np.full(len(piece), number) for number, piece in enumerate(pieces, 1)]), length),
    )


def check_smoothing(label_smoothing: float) -> None:
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"objective.label_smoothing is {label_smoothing}: give a share, at least 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class BaseObjective:
    """What objectives share: the loss of what the head scores, and what is usual for them."""

    kind: str

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

    @property
    def num_reserved(self) -> int:
        """Ids at the top of the vocabulary that are the objective's own, not the tokenizer's."""
        return 0

    def full_row(self, longest: Lengths) -> Lengths | None:
        """The one shape of all rows, where documents fill them; None where each record has its own length."""
        return longest

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, Term]:
        """The terms that training minimises."""
        return {"cross_entropy": cross_entropy(outputs.scored, batch.targets, batch.weights)}

    def metrics(self, outputs: Outputs, batch: Batch) -> dict[str, Term]:
        """What evaluation reports: unsmoothed nats per token that is to be told, and the share of these told right."""
        seen = read(outputs.scored, batch.targets)
        return {
            "loss": cross_entropy(seen, batch.targets, batch.weights),
            "accuracy": accuracy(seen, batch.targets, batch.weights),
        }


def check_last_id(setting: str, value: int, model: ModelConfig) -> None:
    """Raises: ValueError where the setting is not the last id of the model's vocabulary."""
    if value != model.vocab_size - 1:
        raise ValueError(
            f"objective.{setting} is {value}, but model.vocab_size is {model.vocab_size}, whose last id it has to be: set it to "
            f"{model.vocab_size - 1}, or change model.vocab_size"
        )
