"""Activations and the feed-forward layer."""

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from flaxformer_lite.model.dense import Dense
from flaxformer_lite.model.dropout import apply_dropout

ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], bool]] = {
    "relu": (nn.relu, False),
    "gelu": (lambda x: nn.gelu(x, approximate=False), False),
    "gelu_tanh": (lambda x: nn.gelu(x, approximate=True), False),
    "silu": (nn.silu, False),
    "tanh": (jnp.tanh, False),
    "linear": (lambda x: x, False),
    "reglu": (nn.relu, True),
    "geglu": (lambda x: nn.gelu(x, approximate=False), True),
    "geglu_tanh": (lambda x: nn.gelu(x, approximate=True), True),
    "swiglu": (nn.silu, True),
}
"""Function by name, and whether it gates a second projection. `gelu` is x·Φ(x) by erf; `gelu_tanh` its tanh approximation.

Reference: Shazeer 2020, arXiv:2002.05202 (gated forms); Hendrycks and Gimpel 2016, arXiv:1606.08415 (gelu)."""


Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "tanh", "linear", "reglu", "geglu", "geglu_tanh", "swiglu"]


class FeedForward(nn.Module):
    """Feed-forward layer: `down(act(up(x)))`, or gated `down(act(gate(x)) * up(x))`; kernels `[D, F]` and `[F, D]`."""

    d_model: int
    d_ff: int
    activation: Activation = "relu"
    bias: bool = True
    dropout_rate: float = 0.0
    dtype: Any = jnp.float32
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        def dense(width: int, name: str) -> nn.Dense:
            return Dense(width, use_bias=self.bias, dtype=self.dtype, kernel_init=self.kernel_init, name=name)

        activation, gated = ACTIVATIONS[self.activation]
        h = dense(self.d_ff, "up")(x)
        h = activation(dense(self.d_ff, "gate")(x)) * h if gated else activation(h)
        return dense(self.d_model, "down")(apply_dropout(self, h, self.dropout_rate))
