"""Whole texts in, what a model says of each out: rows of few different shapes, compiled once a shape, answers in order.

`text_inputs` is how a model reads a text, whichever stack it has; the objectives that train on whole texts use it too.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.inference.decoder import plan_batches
from flaxformer_lite.model.inputs import has_two_stacks, shifted, text_inputs
from flaxformer_lite.model.transformer import Transformer
from flaxformer_lite.text.special_ids import EncodedText


class BatchPredictor:
    """Asks a model about texts. Keep it: what it compiled serves later calls too, also with other parameters.

    `ask` is compiled: it gets the model's function of some inputs, these inputs as tokens, mask and types, and `places`, the
    positions that are asked about in each row.
    """

    def __init__(self, model: Transformer, ask: Callable[..., Any], batch_tokens: int, pad_id: int) -> None:
        self.config, self.batch_tokens, self.pad_id = model.config, batch_tokens, pad_id
        self.ask = jax.jit(functools.partial(ask, model))

    def answers(
        self,
        variables: VariableDict,
        rows: Sequence[EncodedText],
        places: Sequence[Sequence[int]] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Any]:
        """What `ask` says of each row, in order: its arrays without their leading axis.

        After every batch `progress` is told how many rows are done, of how many.

        Raises: ValueError where a row is longer than the model has positions for.
        """
        limit = self.config.positions.max_positions
        for i, row in enumerate(rows):
            if limit is not None and len(row.tokens) > limit:
                raise ValueError(
                    f"text {i} has {len(row.tokens)} tokens, but model.positions.max_positions is {limit}: shorten it"
                )
        found: list[Any] = [None] * len(rows)
        most = max(map(len, places), default=0) if places else 0
        width = 1 << (max(most, 1) - 1).bit_length()
        done = 0
        for batch in plan_batches([max(1, len(row.tokens)) for row in rows], self.batch_tokens):
            shape = (batch.rows, min(batch.source_length, limit or batch.source_length))
            tokens, types = np.full(shape, self.pad_id, np.int32), np.zeros(shape, np.int32)
            mask, asked = np.zeros(shape, bool), np.zeros((batch.rows, width), np.int32)
            for place, i in enumerate(batch.sentences):
                count = len(rows[i].tokens)
                tokens[place, :count], types[place, :count], mask[place, :count] = *rows[i], True
                if places:
                    asked[place, : len(places[i])] = places[i]
            answer = jax.device_get(self.ask(variables, tokens, mask, types, asked))
            for place, i in enumerate(batch.sentences):
                found[i] = jax.tree.map(operator.itemgetter(place), answer)
            done += len(batch.sentences)
            progress(done, len(rows))
        return found


def embeddings(
    model: Transformer,
    variables: VariableDict,
    tokens: Int[Array, "B S"],
    mask: Bool[Array, "B S"],
    types: Int[Array, "B S"],
    places: Int[Array, "B P"],
) -> Float[Array, "B D"]:
    """The vector of each text."""
    outputs: Any = model.apply(variables, text_inputs(model.config, tokens, mask, types))
    vectors: Float[Array, "B D"] = outputs.embedding
    return vectors


def class_logits(
    start: int,
    model: Transformer,
    variables: VariableDict,
    tokens: Int[Array, "B S"],
    mask: Bool[Array, "B S"],
    types: Int[Array, "B S"],
    places: Int[Array, "B P"],
) -> Float[Array, "B C"]:
    """The scores of the classes for each text. Where there are two stacks, the decoder reads the text one place later, after
    `start`, and `places` says where its end is.
    """
    inputs = text_inputs(model.config, tokens, mask, types)
    if has_two_stacks(model.config):
        inputs = inputs._replace(target_tokens=shifted(tokens, start), last_positions=places[:, 0])
    outputs: Any = model.apply(variables, inputs)
    logits: Float[Array, "B C"] = outputs.class_logits.astype(jnp.float32)
    return logits


def likely_tokens(
    top: int,
    model: Transformer,
    variables: VariableDict,
    tokens: Int[Array, "B S"],
    mask: Bool[Array, "B S"],
    types: Int[Array, "B S"],
    places: Int[Array, "B P"],
) -> tuple[Float[Array, "B P K"], Int[Array, "B P K"]]:
    """The probabilities of the `top` most probable tokens at some places, and these tokens, most probable first."""
    inputs = text_inputs(model.config, tokens, mask, types)._replace(predict_positions=places)
    outputs: Any = model.apply(variables, inputs)
    probabilities = jax.nn.softmax(outputs.logits.astype(jnp.float32))
    best, which = jax.lax.top_k(probabilities, min(top, probabilities.shape[-1]))
    return best, which
