"""The contract of an objective, and its defaults."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
from jaxtyping import Array, Float, Int, PyTree

from flaxformer_lite.core.base.bounds import NonNegativeFloat, Rate
from flaxformer_lite.core.data.records import Lengths, RowMaker
from flaxformer_lite.core.model import Inputs, ModelConfig, Transformer
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.objectives.batch import Batch
from flaxformer_lite.core.objectives.losses import (
    Counts,
    Logits,
    LossTerm,
    accuracy,
    cross_entropy,
    logit_stats,
    z_loss,
)
from flaxformer_lite.core.reading.objectives import AnsweredTexts
from flaxformer_lite.core.search.settings import DecodeConfig, PromptAttention


class Apply(NamedTuple):
    """The model in a train step, as a function of inputs."""

    model: Transformer
    params: PyTree
    decode: DecodeConfig
    """Rules for answers that an objective lets the model generate."""

    def __call__(self, inputs: Inputs, key: Array) -> Outputs:
        outputs: Any = self.model.apply({"params": self.params}, inputs, rngs={"dropout": key})
        return outputs


@dataclass(frozen=True, kw_only=True)
class BaseObjective(AnsweredTexts, RowMaker[Batch]):
    """An objective turns records into rows for the model, and the model's outputs into losses and metrics.

    A subclass is a frozen dataclass whose fields are settings with a `Literal` `kind`. It must define `make_rows` and `example`,
    and `lengths` unless `make_rows` returns `Rows` (core/data/token_arrays.py); everything else has a default, for next-token
    prediction with an encoder–decoder. In the order of their calls:

        make_rows   host, once        records: token ids without special ids  →  rows, values of any type
        lengths     host, once        row  →  positions of source and target; rows of similar lengths share batches
        example     host, each step   row  →  Batch of NumPy arrays without the axis B, padded to the lengths of its bucket
        inputs      device            Batch [B, …]  →  Inputs of the model at hand
        terms       device            the model, Batch  →  {name: LossTerm}, the sum that training minimises; by default `loss`
        loss        device            Outputs, Batch  →  {name: LossTerm}
        metrics     device            Outputs, Batch  →  {name: LossTerm or PerRowMetric}, counted in each evaluation batch
        compared    device            Outputs, Batch of a micro-batch  →  arrays that a loss over all rows reads
        joined      device            those of all micro-batches  →  Outputs of the whole batch, for `loss` and `metrics`
        report      host, once        the totals over all batches  →  {metric name: number}
        text_metrics  host, once      translations and references, as texts  →  {metric name: number}

    `packed_row` and `longest_row` set the shapes of batches. A batch may end in rows whose leaves are all 0: they must not change
    any sum. Losses are sums with their counts, never means, so that a batch can be split in any way.
    """

    # What the rest of the package asks of an objective: class constants, not settings.
    unit: ClassVar[str] = "documents"
    """The name of the records, in the plural."""
    counted: ClassVar[str] = "tokens"
    """The name of what the loss counts, in the plural; the speed of a training is in these per second."""
    translates: ClassVar[bool] = False
    """Whether the model answers a source with a target: its answers are written, and scored by `train.text_metrics`. Evaluation
    then truncates records to `data.max_source_length` and `data.max_target_length`, each with a warning. False: `make_rows` fits
    the whole records."""
    rows_independent: ClassVar[bool] = True
    """Whether the loss of a row depends on that row only, so that a batch can be split over micro-batches and pmap devices. False:
    micro-batches need `compared` and `joined`."""
    decoder_special_ids: ClassVar[tuple[str, ...]] = ()
    """The special ids (fields of `SpecialIds`) that the decoder learns, so that `decode` must have the same ones."""
    prompt_attention: ClassVar[PromptAttention] = "causal"
    """The tokens of a prompt that each of its tokens attends to when a decoder-only model generates. "full": a prefix language
    model, whose `example` sets `Inputs.target_attention` accordingly. An objective that sets it must state this constant."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        """The names of the figures that `report` returns."""
        return ("loss", "perplexity", "accuracy")

    @property
    def text_metric_names(self) -> tuple[str, ...]:
        """The names of the figures that `text_metrics` returns, besides those of `train.text_metrics`."""
        return ()

    def label_value(self, label: str) -> object:
        """Returns a label as a number, or as several.

        Raises: ValueError for an illegal label, in words that follow the name of its record.
        """
        raise NotImplementedError

    @property
    def sentinel_ids(self) -> range:
        """The ids that stand for spans of a text. They are no pieces of text."""
        return range(0)

    @property
    def mask_id(self) -> int | None:
        """The id that replaces a masked token; None: the tokenizer's own."""
        return None

    # The model and the tokenizer -------------------------------------------------------------------------------------

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model lacks a part that this objective trains, or has one that it does not."""
        self.check_stacks(model, encoder=True, decoder=True)

    def check_stacks(self, model: ModelConfig, *, encoder: bool, decoder: bool) -> None:
        """Raises: ValueError unless the model has exactly these stacks, and a head."""
        for side, wanted in (("encoder", encoder), ("decoder", decoder)):
            layers = getattr(model, f"num_{side}_layers")
            if (layers > 0) != wanted:
                remedy = "set it to at least 1" if wanted else "set it to 0"
                raise ValueError(
                    f"model.num_{side}_layers is {layers}, but objective.kind '{self.kind}' trains a model "
                    f"{'with' if wanted else 'without'} {side}: {remedy}, or choose another objective"
                )
        if model.head is None:
            raise ValueError(
                f"model.head is None, but objective.kind '{self.kind}' needs its logits: set it to LanguageModelHead()"
            )

    def check_prompts(self, batch: Batch, model: ModelConfig) -> None:
        """Checks the inputs of a batch; only their shapes matter.

        Raises: ValueError if the decoder trains with an attention of its own, and the class does not say how prompts are read.
        """
        inputs = jax.eval_shape(lambda batch: self.inputs(batch, model), batch)
        stated = any("prompt_attention" in vars(owner) for owner in type(self).__mro__ if owner is not BaseObjective)
        if inputs.target_attention is not None and not stated:
            raise ValueError(
                f"objective.kind '{self.kind}' sets Inputs.target_attention, but not how prompts are read: set prompt_attention of "
                f'{type(self).__name__} to "full" or "causal"'
            )

    def num_tokenizer_ids(self, vocab_size: int) -> int:
        """Returns the number of ids, from 0, that a tokenizer may use; the ids above belong to the objective."""
        return vocab_size

    # From records to rows --------------------------------------------------------------------------------------------

    def lengths(self, record: object) -> Lengths:
        raise NotImplementedError(f"{type(self).__qualname__}.make_rows does not return Rows: define `lengths`")

    def inputs(self, batch: Batch, model: ModelConfig) -> Inputs:
        return batch.inputs

    # From outputs to figures -----------------------------------------------------------------------------------------

    def terms(self, apply: Apply, batch: Batch, key: Array) -> dict[str, LossTerm]:
        """Returns the terms of a train step by name: those of `loss`, for one pass with dropout by the key.

        An objective overrides it to read other rows, or to apply the model several times.
        """
        return self.loss(apply(self.inputs(batch, apply.model.config), key), batch)

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the terms that training minimises, by name."""
        return {"cross_entropy": cross_entropy(outputs.loss_logits, batch.targets, batch.weights)}

    def metrics(self, outputs: Outputs, batch: Batch) -> Counts:
        """Returns the counts of one evaluation batch: unsmoothed nats per predicted token, and correct predictions."""
        stats = logit_stats(outputs.loss_logits, batch.targets)
        return {
            "loss": cross_entropy(stats, batch.targets, batch.weights),
            "accuracy": accuracy(stats, batch.targets, batch.weights),
        }

    def compared(self, outputs: Outputs, batch: Batch) -> PyTree:
        """Returns all arrays that a loss over all rows reads from the outputs of a micro-batch."""
        raise NotImplementedError(
            f"{type(self).__qualname__}.rows_independent is False: define `compared` and `joined`, or set "
            "train.num_micro_batches to 1"
        )

    def joined(self, groups: PyTree) -> Outputs:
        """Returns the outputs of the whole batch. Each array of `groups` has a first axis, of M micro-batches.

        Row r of the batch is row r // M of micro-batch r mod M.
        """
        raise NotImplementedError

    def text_metrics(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        """Returns figures of translations as texts, under `text_metric_names`: of `data.eval` in training, and in `evaluate`."""
        return {}

    def report(self, totals: Counts) -> dict[str, float]:
        """Returns the figures of a whole evaluation, under `metric_names`; `perplexity` is the exponential of `loss`."""
        means = {name: term.mean for name, term in totals.items() if isinstance(term, LossTerm)}
        figures = {**means, "perplexity": math.exp(min(means["loss"], 700.0))}
        return {name: value for name, value in figures.items() if name in self.metric_names}


@dataclass(frozen=True, kw_only=True)
class HeadObjective(BaseObjective):
    """An objective whose loss is the cross-entropy of a head, with the two usual regularizers of its logits."""

    label_smoothing: Rate = 0.0
    """Probability spread evenly over all classes of the head, the target's own included. Evaluation does not smooth."""
    z_loss: NonNegativeFloat = 0.0
    """Weight of the squared logarithm of the softmax's normalizer, which stops logits from drifting; 1e-4 is usual (Chowdhery et
    al. 2022, arXiv:2204.02311, section 5). 0: no such term."""

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns the smoothed cross-entropy, and the z-loss if it has a weight."""
        return self.head_loss(outputs.loss_logits, batch.targets, batch.weights)

    def head_loss(self, logits: Logits, targets: Int[Array, "*B"], weights: Float[Array, "*B"]) -> dict[str, LossTerm]:
        """Returns the same for these logits."""
        stats = logit_stats(logits, targets)
        terms = {"cross_entropy": cross_entropy(stats, targets, weights, label_smoothing=self.label_smoothing)}
        return terms | ({"z_loss": z_loss(stats, weights, self.z_loss)} if self.z_loss else {})


def check_pooler(model: ModelConfig, num_classes: int, needed_by: str, remedy: str = "", each: bool = False) -> None:
    """Raises: ValueError unless the model's pooler has `num_classes` classes. `needed_by` and `remedy` are parts of the message.

    each: whether each token needs them, or the whole text.
    """
    pooler = model.pooler
    reads_each = pooler is not None and pooler.token == "each"
    if pooler is None or pooler.num_classes != num_classes or reads_each != each:
        shown = "None" if pooler is None else f"one of {pooler.num_classes} classes"
        shown += " of each token" if reads_each else ""
        wanted = str(num_classes)
        settings = f"num_classes={num_classes}"
        if each:
            wanted, settings = f"{wanted} of each token", f'token="each", activation=None, {settings}'
        raise ValueError(
            f"model.pooler is {shown}, but {needed_by} {wanted}: set model.pooler to Pooler({settings}){remedy}"
        )
