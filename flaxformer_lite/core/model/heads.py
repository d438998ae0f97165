"""The heads of a `Transformer`: what reads the last layer. Logits of tokens, a pooler with classes, the vector of a text.

The head that rates translations is in `estimation.py`.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.model.config import LanguageModelHead, ModelConfig, Pooler, SentenceEmbedding
from flaxformer_lite.core.model.inputs import LazyLogits
from flaxformer_lite.core.model.layers import ACTIVATIONS, DTYPES, Dense, accumulation_dtype
from flaxformer_lite.core.model.norms import Normalize, unit_length


class Head(nn.Module):
    """Language-model head; parameters `kernel` `[D, V]` unless it is the embedding table, and perhaps `bias` `[V]`.

    In a search the kernel may be the variable `kernel` of the collection `step`: see `step_copies`.
    """

    config: ModelConfig
    settings: LanguageModelHead
    vocab_size: int

    @nn.compact
    def __call__(self, hidden: Float[Array, "B T D"], table: Float[Array, "V D"] | None) -> LazyLogits:
        c, settings, vocab_size = self.config, self.settings, self.vocab_size
        if settings.transform is not None:
            h = dense(c, c.d_model, "transform", settings.transform_bias)(hidden)
            hidden = Normalize(c.norm, name="norm")(ACTIVATIONS[settings.transform][0](h))
        if self.has_variable("step", "kernel"):
            kernel: Array = self.get_variable("step", "kernel")
        elif table is None:
            kernel = self.param("kernel", c.initializer.kernel(), (c.d_model, vocab_size), jnp.float32)
        else:
            kernel = table.T
        hidden = hidden if settings.scale == 1 else hidden * jnp.asarray(settings.scale, DTYPES[c.dtype])
        bias = self.param("bias", nn.initializers.zeros, (vocab_size,), jnp.float32) if settings.bias else None
        if bias is not None and kernel.shape[1] < vocab_size:
            bias = bias[: kernel.shape[1]]
        return LazyLogits(
            hidden=hidden,
            kernel=kernel,
            bias=bias,
            soft_cap=settings.soft_cap,
            chunk=settings.loss_chunk,
            matmul_dtype=c.matmul_dtype,
        )


class Pooling(nn.Module):
    """Module for a pooler and its classes; parameters `dense`, `norm` and `classes`, if it has them."""

    config: ModelConfig
    settings: Pooler

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None, last: Int[Array, "B"] | None = None
    ) -> tuple[Float[Array, "B *T D"], Float[Array, "B *T C"] | None]:
        c, settings = self.config, self.settings
        if settings.token in ("each", "late_mean"):
            pooled = hidden
        elif settings.token == "mean":
            pooled = mean_token(hidden, mask).astype(hidden.dtype)
        else:
            pooled = hidden[:, 0] if settings.token == "first" else last_token(hidden, mask, last)
        if settings.activation is not None:
            pooled = ACTIVATIONS[settings.activation][0](dense(c, c.d_model, "dense", settings.dense_bias)(pooled))
        pooled = Normalize(c.norm, name="norm")(pooled) if settings.norm else pooled
        pooled = mean_token(pooled, mask).astype(hidden.dtype) if settings.token == "late_mean" else pooled
        classes = settings.num_classes
        return pooled, dense(c, classes, "classes", settings.class_bias)(pooled) if classes else None


def dense(config: ModelConfig, width: int, name: str, use_bias: bool) -> nn.Dense:
    """Returns a dense layer of a head, with the model's settings of such layers."""
    like = {"dtype": DTYPES[config.dtype], "kernel_init": config.initializer.kernel(), "lora": config.lora}
    return Dense(width, use_bias=use_bias, name=name, precision=config.matmul_dtype, **like)


def mean_token(hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None) -> Float[Array, "B D"]:
    """Returns the mean over the tokens of each text, in at least float32; 0 for a text without tokens."""
    x = hidden.astype(accumulation_dtype(hidden))
    if mask is None:
        return x.mean(1)
    return jnp.where(mask[..., None], x, 0).sum(1) / jnp.maximum(mask.sum(1), 1)[:, None]


def last_token(
    hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None, last: Int[Array, "B"] | None = None
) -> Float[Array, "B D"]:
    """Returns the vector of each text's last token: at position `last`; None: the last token that is not padding."""
    if last is None:
        if mask is None:
            return hidden[:, -1]
        last = jnp.where(mask, jnp.arange(hidden.shape[1]), 0).max(1)
    return jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]


class TextVector(nn.Module):
    """Module for the vector of a text; parameters `dense_0`, `dense_1` and so on, for each of its dense layers."""

    config: ModelConfig
    settings: SentenceEmbedding

    @nn.compact
    def __call__(self, hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None) -> Float[Array, "B E"]:
        """Returns one vector for each text, in at least float32."""
        settings, x = self.settings, hidden.astype(accumulation_dtype(hidden))
        shown = jnp.ones(x.shape[:2], bool) if mask is None else mask
        if settings.pooling == "mean":
            vector = mean_token(hidden, mask)
        elif settings.pooling == "max":
            vector = jnp.where(shown.any(1)[:, None], jnp.where(shown[..., None], x, -jnp.inf).max(1), 0)
        else:
            vector = x[:, 0] if settings.pooling == "cls" else last_token(x, mask)
        like: dict[str, Any] = {"dtype": vector.dtype, "kernel_init": self.config.initializer.kernel()}
        for i, layer in enumerate(settings.dense):
            vector = Dense(layer.width, use_bias=layer.bias, name=f"dense_{i}", **like)(vector)
            vector = ACTIVATIONS[layer.activation][0](vector)
        return unit_length(vector) if settings.normalize else vector
