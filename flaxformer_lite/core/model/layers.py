"""Layers without attention: dense, dropout, feed-forward; their initial values and number types."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from flax.typing import Dtype
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from flaxformer_lite.core.base.annotations import Answers, Resume
from flaxformer_lite.core.base.bounds import Checked, NonNegativeFloat, Rate
from flaxformer_lite.core.model import fast
from flaxformer_lite.core.model.lora import FIRST_A, LoRA
from flaxformer_lite.core.reading.heads import Activation

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float64": jnp.float64}


def accumulation_dtype(x: Array) -> Any:
    """Returns the number type of sums in softmax, norms and losses: at least float32, float64 for float64 input."""
    return jnp.promote_types(x.dtype, jnp.float32)


# Initial values --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class XavierUniform:
    """Kernels uniform in ±sqrt(6 / (fan-in + fan-out)), embeddings normal with standard deviation `d_model ** -0.5`.

    Reference: Glorot and Bengio 2010, Proceedings of AISTATS, equation 16.
    """

    kind: Literal["xavier_uniform"] = "xavier_uniform"

    def kernel(self) -> nn.initializers.Initializer:
        return nn.initializers.xavier_uniform()

    def embedding(self, d_model: int) -> nn.initializers.Initializer:
        return nn.initializers.normal(d_model**-0.5)


@dataclass(frozen=True, kw_only=True)
class Normal(Checked, at="model.initializer"):
    """Kernels and embeddings normal around 0, truncated at two standard deviations, as in BERT."""

    kind: Literal["normal"] = "normal"
    stddev: NonNegativeFloat = 0.02
    """Standard deviation before truncation."""

    def kernel(self) -> nn.initializers.Initializer:
        return nn.initializers.truncated_normal(self.stddev)

    def embedding(self, d_model: int) -> nn.initializers.Initializer:
        return nn.initializers.truncated_normal(self.stddev)


Initializer = XavierUniform | Normal


# Dense -----------------------------------------------------------------------------------------------------------------


def product_dtype(x: Array, kernel: Array) -> Dtype:
    """Returns the type in which `matrix_product` multiplies: bfloat16 if the kernel has it, else the type of `x`."""
    return kernel.dtype if kernel.dtype == jnp.bfloat16 else x.dtype


def matrix_product(
    x: Float[Array, "*B D"], kernel: Float[Array, "D F"], matmul_dtype: str | None = None
) -> Float[Array, "*B F"]:
    """Returns `x kernel`. With a kernel in bfloat16, `x` is rounded to it. Sums and result have the type of `x`.

    matmul_dtype: the setting of that name; unless it is None, both are rounded to bfloat16, also in the gradients.
    """
    dtype = product_dtype(x, kernel)
    if matmul_dtype is not None and dtype != jnp.bfloat16:
        return fast.rounded_matmul(x, kernel, matmul_dtype)
    return fast.matmul(x.astype(dtype), kernel.astype(dtype), x.dtype)


def promote_all_but_kernel(
    *operands: ArrayLike | None, dtype: object = None, inexact: bool = True
) -> list[Array | None]:
    """Returns input and bias in the type of the computation, and between them the kernel as it is, for `matrix_product`."""
    x, _, bias = promote_dtype(*operands, dtype=dtype, inexact=inexact)
    return [x, jnp.asarray(operands[1]), bias]


class Dense(nn.Dense):
    """Flax's dense layer with `matrix_product`; parameters `kernel` `[D, F]`, perhaps `bias` `[F]`, and an adapter of `lora`.

    Flax's `precision` is here `model.matmul_dtype`.
    """

    dot_general: Any = staticmethod(lambda x, kernel, *_, precision, **__: matrix_product(x, kernel, precision))
    promote_dtype: Any = staticmethod(promote_all_but_kernel)
    lora: LoRA | None = None

    @nn.compact
    def __call__(self, inputs: Float[Array, "*B D"]) -> Float[Array, "*B F"]:
        """Returns the product, with the adapter's part if this layer has one."""
        y: Array = super().__call__(inputs)
        if self.lora is None:
            return y
        has_adapter = self.has_variable("params", "lora_a")
        if self.is_initializing():  # its path decides, once
            has_adapter = self.lora.adapts("/".join(self.path))
        if not has_adapter:
            return y
        dense = functools.partial(Dense, use_bias=False, dtype=self.dtype, precision=self.precision)
        x = apply_dropout(self, inputs, self.lora.dropout)
        x = dense(self.lora.rank, kernel_init=FIRST_A, name="lora_a")(x)
        x = dense(self.features, kernel_init=nn.initializers.zeros, name="lora_b")(x)
        return y + jnp.asarray(self.lora.scale, x.dtype) * x


def round_kernels(params: PyTree, dtype: Dtype) -> PyTree:
    """Returns the parameters with all kernels and embedding tables in `dtype`; biases, norms and scales stay as they are."""

    def rounded(keys: tuple[jax.tree_util.DictKey, ...], leaf: Array) -> Array:
        return leaf.astype(dtype) if keys[-1].key in ("kernel", "embedding") else leaf

    return jax.tree_util.tree_map_with_path(rounded, params)


def rounded_shapes(shapes: PyTree, dtype: str) -> PyTree:
    """Returns the shapes of parameters with the types that `round_kernels` gives them."""
    return jax.eval_shape(lambda params: round_kernels(params, dtype), shapes)


# Dropout ---------------------------------------------------------------------------------------------------------------

DropoutScaling = Literal["training", "evaluation"]


@dataclass(frozen=True, kw_only=True)
class DropoutRates(Checked, at="model.dropout"):
    """Dropout rates: the probability of zeroing an element, by place."""

    embedding_rate: Annotated[Rate, Resume.ON_REQUEST, Answers.SAME] = 0.1
    """Rate on the sum of token and position embeddings."""
    attention_rate: Annotated[Rate, Resume.ON_REQUEST, Answers.SAME] = 0.1
    """Rate on the attention weights."""
    feed_forward_rate: Annotated[Rate, Resume.ON_REQUEST, Answers.SAME] = 0.1
    """Rate on the inner activations of the feed-forward layer."""
    residual_rate: Annotated[Rate, Resume.ON_REQUEST] = 0.1
    """Rate at each `d` of a residual command: usually on a sublayer's output, before the residual sum."""
    residual_scaling: DropoutScaling = "training"
    """When residual dropout is rescaled: in training (divided by 1 - rate), or in evaluation (multiplied by 1 - rate)."""


def dropout(x: Float[Array, "*B T D"], rate: float, key: Array, *, rescale: bool = True) -> Float[Array, "*B T D"]:
    """Zeroes elements with probability `rate` and divides the rest by `1 - rate`; without `rescale` it does not divide.

    Reference: Srivastava et al. 2014, Journal of Machine Learning Research 15, section 4 (there scaled at test time).
    """
    is_kept, rate = fast.random_mask(key, x.shape, rate)
    kept = x.astype(accumulation_dtype(x)) / (1 - rate) if rescale else x
    return jnp.where(is_kept, kept, 0).astype(x.dtype)


def apply_dropout(
    module: nn.Module, x: Float[Array, "*B T D"], rate: float, scaling: DropoutScaling = "training"
) -> Float[Array, "*B T D"]:
    """Applies `dropout` with the module's next "dropout" key. Without a key (evaluation) returns `x`, rescaled by `scaling`."""
    if rate == 0:
        return x
    if module.has_rng("dropout"):
        return dropout(x, rate, module.make_rng("dropout"), rescale=scaling == "training")
    return x if scaling == "training" else x * jnp.asarray(1 - rate, x.dtype)


# Feed-forward ----------------------------------------------------------------------------------------------------------


def recomputed(function: Callable[..., Array]) -> Callable[..., Array]:
    """Returns the function with a backward pass that computes it again: of the forward pass only its inputs are kept."""
    return jax.checkpoint(function, prevent_cse=False)


ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], bool]] = {
    "relu": (nn.relu, False),
    "gelu": (recomputed(lambda x: nn.gelu(x, approximate=False)), False),
    "gelu_tanh": (recomputed(lambda x: nn.gelu(x, approximate=True)), False),
    "silu": (recomputed(nn.silu), False),
    "tanh": (recomputed(jnp.tanh), False),
    "linear": (lambda x: x, False),
    "reglu": (nn.relu, True),
    "geglu": (lambda x: nn.gelu(x, approximate=False), True),
    "geglu_tanh": (lambda x: nn.gelu(x, approximate=True), True),
    "swiglu": (nn.silu, True),
}
"""Function by name, and whether it gates a second projection. `gelu` is x·Φ(x) by erf; `gelu_tanh` its tanh approximation.
The backward pass of `relu` keeps a mask, which is smaller than the input.

Reference: Shazeer 2020, arXiv:2002.05202 (gated forms); Hendrycks and Gimpel 2016, arXiv:1606.08415 (gelu)."""


class FeedForward(nn.Module):
    """Feed-forward layer: `down(act(up(x)))`, or gated `down(act(gate(x)) * up(x))`; kernels `[D, F]` and `[F, D]`."""

    d_model: int
    d_ff: int
    activation: Activation = "relu"
    bias: bool = True
    dropout_rate: float = 0.0
    dtype: Any = jnp.float32
    kernel_init: nn.initializers.Initializer = nn.initializers.xavier_uniform()
    lora: LoRA | None = None
    matmul_dtype: str | None = None
    out_bias: bool | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        def dense(width: int, name: str, bias: bool | None = None) -> nn.Dense:
            like = {"dtype": self.dtype, "kernel_init": self.kernel_init, "lora": self.lora}
            like |= {"use_bias": self.bias if bias is None else bias}
            return Dense(width, name=name, precision=self.matmul_dtype, **like)

        activation, gated = ACTIVATIONS[self.activation]
        h = dense(self.d_ff, "up")(x)
        product = recomputed(lambda gate, up: activation(gate) * up)
        h = product(dense(self.d_ff, "gate")(x), h) if gated else activation(h)
        return dense(self.d_model, "down", self.out_bias)(apply_dropout(self, h, self.dropout_rate))
