"""The heads of a `Transformer`: what reads the last layer. Logits of tokens, a pooler with classes, the vector of a text.

The head that rates translations is in `estimation.py`.
"""

from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.model.config import LanguageModelHead, ModelConfig
from flaxformer_lite.core.model.inputs import LazyLogits
from flaxformer_lite.core.model.layers import ACTIVATIONS, DTYPES, Dense, accumulation_dtype
from flaxformer_lite.core.model.norms import Normalize, unit_length
from flaxformer_lite.core.reading.heads import Pooler, SentenceEmbedding, pooled, text_vector

FUNCTIONS = {name: function for name, (function, _) in ACTIVATIONS.items()}
"""The activations of heads by their names."""


class Head(nn.Module):
    """Language-model head; parameters `kernel` `[D, V]` unless it is the embedding table, and perhaps `bias` `[V]`.

    In a search the kernel may be the variable `kernel` of the collection `step`: see `step_copies`.
    """

    config: ModelConfig
    settings: LanguageModelHead
    vocab_size: int

    @nn.compact
    def __call__(self, hidden: Float[Array, "B T D"], table: Float[Array, "V E"] | None) -> LazyLogits:
        c, settings, vocab_size = self.config, self.settings, self.vocab_size
        if settings.transform is not None:
            h = dense(c, c.embedding_width, "transform", settings.transform_bias)(hidden)
            hidden = Normalize(c.norm, name="norm")(ACTIVATIONS[settings.transform][0](h))
        if self.has_variable("step", "kernel"):
            kernel: Array = self.get_variable("step", "kernel")
        elif table is None:
            kernel = self.param("kernel", c.initializer.kernel(), (hidden.shape[-1], vocab_size), jnp.float32)
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
        layers = {
            "dense": dense(c, c.d_model, "dense", settings.dense_bias),
            "norm": Normalize(c.norm, name="norm"),
            "classes": dense(c, settings.num_classes, "classes", settings.class_bias),
        }
        return pooled(settings, hidden, mask, last, layers, FUNCTIONS)


def dense(config: ModelConfig, width: int, name: str | None, use_bias: bool) -> nn.Dense:
    """Returns a dense layer beside the layers of a stack, with the model's settings of such layers."""
    like = {"dtype": DTYPES[config.dtype], "kernel_init": config.initializer.kernel(), "lora": config.lora}
    return Dense(width, use_bias=use_bias, name=name, precision=config.matmul_dtype, **like)


class TextVector(nn.Module):
    """Module for the vector of a text; parameters `dense_0`, `dense_1` and so on, for each of its dense layers."""

    config: ModelConfig
    settings: SentenceEmbedding

    @nn.compact
    def __call__(self, hidden: Float[Array, "B T D"], mask: Bool[Array, "B T"] | None) -> Float[Array, "B E"]:
        """Returns one vector for each text, in at least float32."""
        settings = self.settings
        like: dict[str, Any] = {"dtype": accumulation_dtype(hidden), "kernel_init": self.config.initializer.kernel()}
        layers = [
            Dense(layer.width, use_bias=layer.bias, name=f"dense_{i}", **like) for i, layer in enumerate(settings.dense)
        ]
        vector = text_vector(settings, hidden, mask, layers, FUNCTIONS)
        return unit_length(vector) if settings.normalize else vector
