"""Heads on the last layer: language model, pooling, sentence embedding."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.model.config import ModelConfig, SentenceEmbedding
from flaxformer_lite.model.dense import Dense, matrix_product
from flaxformer_lite.model.feed_forward import ACTIVATIONS
from flaxformer_lite.model.norms import Normalize
from flaxformer_lite.model.numerics import DTYPES, accumulation_dtype


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["hidden", "kernel", "bias"], meta_fields=["soft_cap", "chunk"]
)
@dataclass(frozen=True, kw_only=True)
class LazyLogits:
    """Logits that are computed on demand, from the last layer and the head's kernel."""

    hidden: Float[Array, "B T D"]
    kernel: Float[Array, "D V"]
    bias: Float[Array, "V"] | None = None
    soft_cap: float | None = None
    chunk: int | None = None
    """Positions of each row whose logits a loss computes at a time; None: all."""

    def logits(self) -> Float[Array, "B T V"]:
        """Returns all logits."""
        logits = matrix_product(self.hidden, self.kernel)
        logits = logits if self.bias is None else logits + self.bias.astype(self.hidden.dtype)
        return logits if self.soft_cap is None else self.soft_cap * jnp.tanh(logits / self.soft_cap)


class Head(nn.Module):
    """Language-model head; parameters `kernel` `[D, V]` unless it is the embedding table, and perhaps `bias` `[V]`.

    In a search the kernel is the variable `kernel` of the collection `step`, which `step_variables` makes.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, hidden: Float[Array, "B T D"], table: Float[Array, "V D"] | None) -> LazyLogits:
        c, settings = self.config, self.config.head
        assert settings is not None
        dtype, kernel_init, vocab_size = DTYPES[c.dtype], c.initializer.kernel(), c.output_size
        if settings.transform is not None:
            h = Dense(c.d_model, dtype=dtype, kernel_init=kernel_init, name="transform")(hidden)
            hidden = Normalize(c.norm, name="norm")(ACTIVATIONS[settings.transform][0](h))
        if self.has_variable("step", "kernel"):
            kernel: Array = self.get_variable("step", "kernel")
        elif table is None:
            kernel = self.param("kernel", kernel_init, (c.d_model, vocab_size), jnp.float32)
        else:
            kernel = table.T
        hidden = hidden if settings.scale == 1 else hidden * jnp.asarray(settings.scale, dtype)
        bias = self.param("bias", nn.initializers.zeros, (vocab_size,), jnp.float32) if settings.bias else None
        return LazyLogits(
            hidden=hidden, kernel=kernel, bias=bias, soft_cap=settings.soft_cap, chunk=settings.loss_chunk
        )


class Pooling(nn.Module):
    """Module for a pooler and its classes; parameters `dense` and `classes`, if it has them."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None, last: Int[Array, "B"] | None = None
    ) -> tuple[Float[Array, "B D"], Float[Array, "B C"] | None]:
        c, settings = self.config, self.config.pooler
        assert settings is not None

        def dense(width: int, name: str, bias: bool = True) -> nn.Dense:
            kernel_init = c.initializer.kernel()
            return Dense(width, use_bias=bias, dtype=DTYPES[c.dtype], kernel_init=kernel_init, name=name)

        pooled = hidden[:, 0] if settings.token == "first" else last_token(hidden, mask, last)
        if settings.activation is not None:
            pooled = ACTIVATIONS[settings.activation][0](dense(c.d_model, "dense")(pooled))
        classes = settings.num_classes
        return pooled, dense(classes, "classes", settings.class_bias)(pooled) if classes else None


def last_token(
    hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None, last: Int[Array, "B"] | None = None
) -> Float[Array, "B D"]:
    """Returns the vector of each text's last token: at position `last`; None: the last token that is not padding."""
    if last is None:
        if mask is None:
            return hidden[:, -1]
        last = jnp.where(mask, jnp.arange(hidden.shape[1]), 0).max(1)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]


def sentence_embedding(
    settings: SentenceEmbedding, hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None
) -> Float[Array, "B D"]:
    """Returns one vector for each text, in at least float32."""
    x = hidden.astype(accumulation_dtype(hidden))
    shown = jnp.ones(x.shape[:2], bool) if mask is None else mask
    if settings.pooling == "mean":
        vector = jnp.where(shown[..., None], x, 0).sum(1) / jnp.maximum(shown.sum(1), 1)[:, None]
    elif settings.pooling == "max":
        vector = jnp.where(shown.any(1)[:, None], jnp.where(shown[..., None], x, -jnp.inf).max(1), 0)
    else:
        vector = x[:, 0] if settings.pooling == "cls" else last_token(x, mask)
    return unit_length(vector) if settings.normalize else vector


def unit_length(x: Float[Array, "B D"]) -> Float[Array, "B D"]:
    """Returns each vector divided by its length; the gradient at 0 is 0."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-24))
