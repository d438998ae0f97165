"""BERT's `attention_layer`: multi-head attention on activations kept as matrices, with that function's own contract.

The names of arguments and parameters are BERT's, so that code which calls it and weights made for it fit as they are.
Reference: Devlin et al. 2018, arXiv:1810.04805; the function is part of the code published with the paper.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Shaped

from flaxformer_lite.core.model.attention import DotProduct, attention_scores, weighted_values
from flaxformer_lite.core.model.layers import ACTIVATIONS, Dense, Normal, apply_dropout
from flaxformer_lite.core.model.masks import Penalize

ActivationFunction = Callable[[Array], Array]
BERT_ACTIVATIONS = {"linear": "linear", "relu": "relu", "gelu": "gelu_tanh", "tanh": "tanh"}
"""Our name of each of BERT's activations: its gelu is the tanh approximation."""


class AttentionLayer(nn.Module):
    """Attention from one sequence to another without an output projection; parameters `query`, `key` and `value`.

    Scores are `query key^T / sqrt(size_per_head)`. The attention probabilities, before dropout, are sown as the intermediate
    `attention_probs`, the scores they are made of as `scores`.
    """

    num_attention_heads: int = 1
    size_per_head: int = 512
    query_act: str | ActivationFunction | None = None
    """Activation of the projected queries, before the split into heads: a function, or linear, relu, gelu (by tanh) or tanh."""
    key_act: str | ActivationFunction | None = None
    value_act: str | ActivationFunction | None = None
    attention_probs_dropout_prob: float = 0.0
    initializer_range: float = 0.02
    """Standard deviation of the initial kernels, normal and truncated at two standard deviations."""
    do_return_2d_tensor: bool = False
    """Return the matrix `[B*F, N*H]` instead of `[B, F, N*H]`, whatever the rank of the input."""
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        from_tensor: Float[Array, "..."],
        to_tensor: Float[Array, "..."],
        attention_mask: Shaped[Array, "B F T"] | None = None,
        *,
        batch_size: int | None = None,
        from_seq_length: int | None = None,
        to_seq_length: int | None = None,
    ) -> Float[Array, "B F E"] | Float[Array, "M E"]:
        """Returns the attention of every from-position to the to-positions; `E` is `num_attention_heads * size_per_head`.

        from_tensor, to_tensor: both `[B, F, W]` and `[B, T, W2]`, or both matrices `[B*F, W]` and `[B*T, W2]`; matrices need all
        of `batch_size`, `from_seq_length` and `to_seq_length`.
        attention_mask: 1 where a from-position may attend to a to-position, 0 where it may not. The score's addend is
        `-10000 * (1 - mask)`: a fraction is a partial penalty, and a row of zeros attends as if nothing were masked.

        Raises: ValueError for tensors that are not both of rank 2 or both of rank 3, for matrices without their sizes, and for an
        unknown activation.
        """
        sizes = (batch_size, from_seq_length, to_seq_length)
        queries, keys = as_sequences(from_tensor, to_tensor, sizes)
        num_heads, width = self.num_attention_heads, self.size_per_head

        def heads(x: Array, name: str, act: str | ActivationFunction | None) -> Float[Array, "B L N H"]:
            dense = Dense(
                num_heads * width,
                dtype=self.dtype,
                kernel_init=Normal(stddev=self.initializer_range).kernel(),
                name=name,
            )
            activation = bert_activation(act)
            return DotProduct().split(x, lambda x: activation(dense(x)), num_heads, width)

        query, key = heads(queries, "query", self.query_act), heads(keys, "key", self.key_act)
        value = heads(keys, "value", self.value_act)
        bias = None
        if attention_mask is not None:
            bias = (1 - attention_mask[:, None].astype(query.dtype)) * Penalize().value
        scores = attention_scores(query, key, bias=bias, scale=width**-0.5)
        self.sow("intermediates", "scores", scores)
        weights = jax.nn.softmax(scores)
        self.sow("intermediates", "attention_probs", weights)
        weights = apply_dropout(self, weights.astype(self.dtype), self.attention_probs_dropout_prob)
        mixed = weighted_values(weights, value)
        batch, length, *_ = mixed.shape
        return mixed.reshape((batch * length, -1) if self.do_return_2d_tensor else (batch, length, -1))


def as_sequences(
    from_tensor: Float[Array, "..."], to_tensor: Float[Array, "..."], sizes: tuple[int | None, int | None, int | None]
) -> tuple[Float[Array, "B F W"], Float[Array, "B T W2"]]:
    """Returns both tensors with rank 3. Raises: ValueError where their ranks or the sizes do not allow it."""
    shapes = " and ".join(
        f"`{name}` has rank {x.ndim}, shape {x.shape}"
        for name, x in (("from_tensor", from_tensor), ("to_tensor", to_tensor))
    )
    if from_tensor.ndim != to_tensor.ndim or from_tensor.ndim not in (2, 3):
        raise ValueError(f"{shapes}: both must have rank 3, [batch, length, width], or rank 2, [batch * length, width]")
    if from_tensor.ndim == 3:
        return from_tensor, to_tensor
    batch, from_length, to_length = sizes
    if batch is None or from_length is None or to_length is None:
        raise ValueError(
            f"the sizes `batch_size`, `from_seq_length`, `to_seq_length` are {sizes}: inputs of rank 2 need all of them"
        )
    if (len(from_tensor), len(to_tensor)) != (batch * from_length, batch * to_length):
        raise ValueError(f"{shapes}, but the sizes are {sizes}: change one")
    return from_tensor.reshape(batch, from_length, -1), to_tensor.reshape(batch, to_length, -1)


def bert_activation(act: str | ActivationFunction | None) -> ActivationFunction:
    """Returns the activation: a function as it is, or by BERT's name. Raises: ValueError listing the names."""
    if callable(act):
        return act
    name = (act or "linear").lower()
    if name not in BERT_ACTIVATIONS:
        raise ValueError(
            f"unsupported activation {act!r}: choose one of {', '.join(BERT_ACTIVATIONS)}, a function, or None"
        )
    return ACTIVATIONS[BERT_ACTIVATIONS[name]][0]
