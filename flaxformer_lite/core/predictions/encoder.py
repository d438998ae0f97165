"""Predictions for whole texts: vectors, class scores, masked tokens. Rows of few different shapes, compiled once a shape."""

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.typing import VariableDict
from jaxtyping import Array, Float, Int, PyTree

from flaxformer_lite.core.base.mistake import known
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.model import Inputs, ModelConfig, Transformer
from flaxformer_lite.core.model.inputs import shifted, text_inputs
from flaxformer_lite.core.placement.batches import (
    InputBatch,
    finely_padded_length,
    pad_rows,
    padded_rows,
    plan_batches,
)
from flaxformer_lite.core.placement.placement import ONE_DEVICE, Placement, Prepared
from flaxformer_lite.core.text.special_ids import EncodedText, check_length


class BatchPredictor:
    """Applies a function of a model to many texts, batch by batch.

    `function` takes the model, its variables, the inputs of its first stack, and `positions` `[B, P]`, the positions of each row
    that it predicts for; it returns arrays with a leading axis B, as `predict_embeddings` and the functions below it do.
    It is compiled once for each batch shape. Later calls reuse that, also with other parameters: keep the object.

    Example: `BatchPredictor(model, predict_embeddings, 2048, tokenizer.pad_id).predict({"params": params}, texts)`.
    """

    def __init__(
        self,
        model: Transformer,
        function: Callable[..., Any],
        batch_tokens: int,
        pad_id: int,
        placement: Placement = ONE_DEVICE,
    ) -> None:
        self.config, self.batch_tokens, self.pad_id, self.placement = model.config, batch_tokens, pad_id, placement

        def of_arrays(variables: VariableDict, arrays: tuple[Array, Array, Array], positions: Array) -> PyTree:
            return function(model, variables, text_inputs(model.config, *arrays), positions)

        self.function = placement.jitted(placement.by_rows(of_arrays))

    def predict(
        self,
        variables: VariableDict,
        texts: Sequence[EncodedText],
        positions: Sequence[Sequence[int]] | None = None,
        progress: ProgressCallback = no_progress,
    ) -> list[Any]:
        """Returns the prediction for each text, in order: the function's arrays without their leading axis.

        Rows of `positions`, each with different positions of its text, are padded with 0 to one length for each batch: 1, 8, 16, …
        or that of its texts. So predictions have further entries at the end. A batch predicts at most `batch_tokens` positions.

        Raises: ValueError if a text is longer than the model's positions.
        """
        limit = self.config.positions.max_positions
        for number, text in enumerate(texts):
            with known(subject=f"text {number}"):
                check_length(len(text.tokens), limit)

        def prepared(batch: InputBatch) -> Prepared:
            shape = (batch.rows, min(batch.length, limit or batch.length))
            tokens, types = zip(*(texts[i] for i in batch.members), strict=True)
            asked = [positions[i] for i in batch.members] if positions else []
            num_positions = min(padded_rows(max(map(len, asked), default=1)), shape[1])
            mask = pad_rows([[1] * len(row) for row in tokens], shape).astype(bool)
            arrays = (pad_rows(tokens, shape, self.pad_id), mask, pad_rows(types, shape))
            return Prepared(batch, (arrays, pad_rows(asked, (batch.rows, num_positions))))

        def predict_rows(call: list[Prepared]) -> Iterator[Any]:
            joined = self.placement.joined([one.arrays for one in call], filler=lambda arrays: arrays)
            outputs = jax.device_get(self.function(variables, *joined))
            number = len(jax.tree.leaves(outputs)[0])
            return (jax.tree.map(operator.itemgetter(row), outputs) for row in range(number))

        lengths = [max(1, len(text.tokens)) for text in texts]
        batches = plan_batches(lengths, self.batch_tokens, padded=finely_padded_length)
        answers = self.placement.map(predict_rows, map(prepared, batches), "predicting", len(texts), progress)
        return [answers[i] for i in range(len(texts))]


def predict_embeddings(
    model: Transformer, variables: VariableDict, inputs: Inputs, positions: Int[Array, "B P"]
) -> Float[Array, "B D"]:
    """Returns the vector of each text, by `model.sentence_embedding`; `positions` is not used."""
    outputs: Any = model.apply(variables, inputs)
    return outputs.embedding


def predict_class_logits(
    bos_id: int | None, model: Transformer, variables: VariableDict, inputs: Inputs, positions: Int[Array, "B P"]
) -> Float[Array, "B *T C"]:
    """Returns the class logits of each text, or of each of its tokens.

    In an encoder–decoder the decoder reads the text shifted right, after `bos_id`, and classifies at the first of `positions`;
    if its pooler reads the first token, it reads `bos_id` alone.
    """
    if model.config.has_two_stacks:
        assert inputs.source_tokens is not None and bos_id is not None  # by Config
        start = shifted(inputs.source_tokens, bos_id)
        start = start[:, :1] if reads_first(model.config) else start
        inputs = inputs._replace(target_tokens=start, last_positions=positions[:, 0])
    outputs: Any = model.apply(variables, inputs)
    return outputs.class_logits.astype(jnp.float32)


def predict_top_tokens(
    top: int, model: Transformer, variables: VariableDict, inputs: Inputs, positions: Int[Array, "B P"]
) -> tuple[Float[Array, "B P K"], Int[Array, "B P K"]]:
    """Returns probabilities and ids of the `top` most probable tokens at each of `positions`, most probable first."""
    outputs: Any = model.apply(variables, inputs._replace(predict_positions=positions))
    probabilities = jax.nn.softmax(outputs.logits.astype(jnp.float32))
    best, ids = jax.lax.top_k(probabilities, min(top, probabilities.shape[-1]))
    return best, ids


def reads_first(config: ModelConfig) -> bool:
    """Returns whether classes are read at the first token."""
    return config.pooler is not None and config.pooler.token == "first"


@functools.partial(jax.jit, static_argnums=0)
def estimated_ratings(
    model: Transformer,
    variables: VariableDict,
    source: Float[Array, "B E"],
    translation: Float[Array, "B E"],
    reference: Float[Array, "B E"],
) -> Float[Array, "B"]:
    """Returns the number of each translation, by `model.estimator`, which ignores a reference that it does not read."""
    ratings: Any = model.apply(
        variables, source, translation, reference, method=lambda bound, *texts: bound.estimator(*texts)
    )
    return ratings
