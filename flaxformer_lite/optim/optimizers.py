"""Optimizers and weight-decay masks: one optax chain, a stage a line.

Everything that treats parameters differently goes by their names, never by their rank: with stacked layers a norm
scale is `[L, D]` and a kernel `[L, D, E]`. The names it knows: the leaves `kernel` and `embedding`, the module `layers`
(its parameters have a leading layer axis) and the module `head` (the output layer).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax
from annotated_types import Gt, Le
from pydantic import Discriminator

from flaxformer_lite.bounds import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Rate, check_bounds
from flaxformer_lite.optim.schedules import Noam, Schedule

KeyPath = tuple[Any, ...]
MomentDtype = Literal["bfloat16"] | None


# Parameter names


def _path_names(path: KeyPath) -> list[str]:
    return jax.tree_util.keystr(path, simple=True, separator="/").split("/")


def clip(norm: float) -> optax.GradientTransformation:
    """Scales all gradients by `min(1, norm / (their Euclidean norm taken together + 1e-6))`, as PyTorch does."""

    def update(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        scale = jnp.minimum(1, norm / (optax.tree.norm(updates) + 1e-6))
        return jax.tree.map(lambda x: (x * scale).astype(x.dtype), updates)

    return optax.stateless(update)


def decay_mask(params: optax.Params) -> optax.Params:
    """True for the parameters that weight decay shrinks: leaves called `kernel` or `embedding`.

    Norm scales and all biases are left alone: they are few, shrinking them does not simplify the function, and a scale
    has its neutral value at 1, not at 0. Embeddings decay like kernels, since a shared table is also the output layer.
    """
    return jax.tree.map_with_path(lambda path, _: _path_names(path)[-1] in ("kernel", "embedding"), params)


def muon_labels(params: optax.Params) -> optax.Params:
    """Muon's and Adam's share: "matrices" for leaves called `kernel` outside of `head`, "others" for all the rest."""

    def label(path: KeyPath, _: Any) -> str:
        *modules, leaf = _path_names(path)
        return "matrices" if leaf == "kernel" and "head" not in modules else "others"

    return jax.tree.map_with_path(label, params)


def _layer_by_layer(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """`inner` applied to each parameter of each layer by itself, whatever the number of layers.

    For rules that look at the shape or the mean of a whole array. The layer axis of everything below a module `layers`
    is mapped over, so `inner` never sees it. The state is the parameters' tree with a state of `inner` at every leaf.
    """

    def over_layers(path: KeyPath, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(function) if "layers" in _path_names(path) else function

    def init(params: optax.Params) -> optax.OptState:
        return jax.tree.map_with_path(lambda path, leaf: over_layers(path, inner.init)(leaf), params)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        def update_leaf(path: KeyPath, *leaf: Any) -> Any:
            return over_layers(path, inner.update)(*leaf)

        pairs = jax.tree.map_with_path(update_leaf, updates, state, params)
        new_updates = jax.tree.map(lambda _, pair: pair[0], updates, pairs)
        return new_updates, jax.tree.map(lambda _, pair: pair[1], updates, pairs)

    return optax.GradientTransformation(init, update)


# Algorithms
# `direction()` turns gradients into steps of rate 1, uphill; decay, rate and sign come after it in the chain.


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """Adam with decoupled weight decay.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;  direction = m / (1 - b1^n) / (sqrt(v / (1 - b2^n)) + eps)

    Reference: Kingma & Ba 2015, arXiv 1412.6980, algorithm 1; Loshchilov & Hutter 2019, arXiv 1711.05101.
    """

    kind: Literal["adamw"] = "adamw"
    b1: Rate = 0.9
    """Share of the old average of the gradients kept at each step."""
    b2: Rate = 0.98
    """Share of the old average of the squared gradients kept at each step. 0.98 (Vaswani et al. 2017, section 5.3)
    looks back about 50 steps; Adam's own 0.999 looks back 1,000, longer than many a warm-up."""
    eps: PositiveFloat = 1e-8
    """Added to the root in the denominator, in units of the gradient. Adam's own value: with much less, a gradient that
    is only rounding noise becomes a step of full size."""
    moment_dtype: MomentDtype = None
    """Type in which m is kept; None: the parameters'. v always has the parameters' type: it changes by less at a step than
    bfloat16 can tell, and would stand still."""

    def __post_init__(self) -> None:
        check_bounds(self, "optimizer.algorithm")

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.b1, self.b2, self.eps, mu_dtype=self.moment_dtype)


@dataclass(frozen=True, kw_only=True)
class Adafactor:
    """Adam's second moment kept as one row and one column a matrix instead of a number a weight; no first moment.

    beta(n) = 1 - n^-decay_exponent;  R, C = running means (with beta) of g² over columns and over rows;
    u = g / sqrt(R Cᵀ / mean(R));  direction = u / max(1, RMS(u) / max_update_rms) · max(1e-3, RMS(parameter))

    The last factor only if `scale_by_parameter`. Vectors and small matrices keep all of g². Every RMS, mean, row and
    column belongs to one layer: a stack gets exactly what its layers would get one by one.

    Reference: Shazeer & Stern 2018, arXiv 1804.04235, algorithms 4 and 5.
    """

    kind: Literal["adafactor"] = "adafactor"
    decay_exponent: Annotated[float, Gt(0), Le(1)] = 0.8
    """How fast the averages come to rest: step n keeps the share 1 - n^-decay_exponent (section 7.2 of the paper)."""
    max_update_rms: PositiveFloat | None = 1.0
    """Largest root mean square of one parameter's direction, before the scaling by its size; None does not limit it."""
    scale_by_parameter: bool = True
    """Makes the schedule's rate relative to each parameter's own root mean square (good rates are then near 0.01)."""
    min_size_to_factor: PositiveInt = 128
    """A matrix keeps rows and columns only if both its sides are at least this long; below, memory is no concern."""

    def __post_init__(self) -> None:
        check_bounds(self, "optimizer.algorithm")

    def direction(self) -> optax.GradientTransformation:
        limit = self.max_update_rms
        each_parameter = optax.chain(
            optax.scale_by_factored_rms(True, self.decay_exponent, 0, self.min_size_to_factor),
            optax.identity() if limit is None else optax.clip_by_block_rms(limit),
            optax.scale_by_param_block_rms() if self.scale_by_parameter else optax.identity(),
        )
        return _layer_by_layer(each_parameter)


@dataclass(frozen=True, kw_only=True)
class Lion:
    """The sign of a momentum: half the memory of Adam, every weight moves by exactly the rate.

    direction = sign(b1 m + (1 - b1) g);  then m = b2 m + (1 - b2) g

    Wants a rate 3 to 10 times smaller than AdamW's, and a weight decay as much larger.

    Reference: Chen et al. 2023, arXiv 2302.06675, program 1 and section 5.
    """

    kind: Literal["lion"] = "lion"
    b1: Rate = 0.9
    """Share of the momentum in the direction; the rest is the present gradient."""
    b2: Rate = 0.99
    """Share of the old momentum kept at each step."""
    moment_dtype: MomentDtype = None
    """Type in which m is kept; None: the parameters'."""

    def __post_init__(self) -> None:
        check_bounds(self, "optimizer.algorithm")

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_lion(self.b1, self.b2, mu_dtype=self.moment_dtype)


@dataclass(frozen=True, kw_only=True)
class Muon:
    """Orthogonalised momentum for the hidden matrices, Adam for everything else (embeddings, head, norms, biases).

    M = momentum M + (1 - momentum) G, debiased, mixed with the debiased G once more if `nesterov`;
    U = M with its singular values brought near 1: those above 0.003 of its norm land between 0.68 and 1.21;
    direction = update_rms sqrt(max(D, E)) U

    An orthogonal matrix of shape (D, E) has the root mean square 1 / sqrt(max(D, E)), so `update_rms` is that of the
    direction. At 0.2, Adam's usual one, both kinds of parameters share the schedule and weight decay of AdamW.

    Reference: Jordan 2024, https://kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982, section 2.2.
    """

    kind: Literal["muon"] = "muon"
    momentum: Rate = 0.95
    """Share of the old average of the gradients kept at each step, for the matrices."""
    nesterov: bool = True
    """Mixes the present gradient into the momentum once more before orthogonalising."""
    newton_schulz_steps: PositiveInt = 5
    """Number of Newton-Schulz steps. Fewer leave small singular values small; more cost time and gain nothing."""
    update_rms: PositiveFloat = 0.2
    """Root mean square of the direction of a matrix, in units of the rate."""
    b1: Rate = 0.9
    """AdamW's b1, for the other parameters."""
    b2: Rate = 0.98
    """AdamW's b2, for the other parameters."""
    eps: PositiveFloat = 1e-8
    """AdamW's eps, for the other parameters."""
    moment_dtype: MomentDtype = None
    """Type in which M is kept, and AdamW's m for the other parameters; None: the parameters'."""

    def __post_init__(self) -> None:
        check_bounds(self, "optimizer.algorithm")

    def direction(self) -> optax.GradientTransformation:
        # Kernels are (in, out) in their last two axes; optax takes any other axis, here the layers', as a batch.
        axes = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
        orthogonalized = optax.contrib.scale_by_muon(
            ns_steps=self.newton_schulz_steps,
            beta=self.momentum,
            nesterov=self.nesterov,
            mu_dtype=self.moment_dtype,
            weight_dimension_numbers=lambda matrices: jax.tree.map(lambda _: axes, matrices),
        )
        scaled = optax.stateless_with_tree_map(lambda u, _: self.update_rms * max(u.shape[-2:]) ** 0.5 * u)
        others = optax.scale_by_adam(self.b1, self.b2, self.eps, mu_dtype=self.moment_dtype)
        return optax.partition({"matrices": optax.chain(orthogonalized, scaled), "others": others}, muon_labels)


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent, with heavy-ball momentum if wanted.

    m = momentum m + g;  direction = m, or g + momentum m if `nesterov`

    Reference: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning", section 2.
    """

    kind: Literal["sgd"] = "sgd"
    momentum: Rate = 0.0
    """Share of the old direction kept at each step; 0 keeps no state."""
    nesterov: bool = False
    """Looks one step of the momentum ahead."""
    moment_dtype: MomentDtype = None
    """Type in which m is kept; None: the parameters'."""

    def __post_init__(self) -> None:
        check_bounds(self, "optimizer.algorithm")
        for name, default in (("nesterov", False), ("moment_dtype", None)):
            if self.momentum == 0 and (value := getattr(self, name)) != default:
                raise ValueError(
                    f"optimizer.algorithm.{name} is {value!r}: it must be {default} while optimizer.algorithm.momentum is 0; "
                    f"set the momentum, for example to 0.9, or leave {name} at {default}"
                )

    def direction(self) -> optax.GradientTransformation:
        return optax.trace(self.momentum, self.nesterov, self.moment_dtype) if self.momentum else optax.identity()


Algorithm = Annotated[AdamW | Adafactor | Lion | Muon | SGD, Discriminator("kind")]


# The optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients become new parameters.

    parameter -= rate(n) · (direction(clipped gradients) + weight_decay · parameter)

    The decay is decoupled from the direction but multiplied by the rate, as in AdamW (Loshchilov & Hutter 2019).
    """

    algorithm: Algorithm = AdamW()
    """Gives the direction of a step."""
    schedule: Schedule = Noam()
    """Gives the rate of a step. Noam's scales itself to `model.d_model` and suits AdamW."""
    clip_norm: PositiveFloat | None = 1.0
    """Longest allowed Euclidean norm of all gradients taken together; longer ones are scaled down. None never clips."""
    weight_decay: NonNegativeFloat = 0.0
    """Share of a kernel or embedding taken away at each step, times the rate. Norms and biases are left alone."""
    ema_decay: Fraction | None = None
    """Share of the old value kept at each step in a second set of parameters, their moving average; None keeps none."""

    def __post_init__(self) -> None:
        check_bounds(self, "optimizer")

    def rate(self, *, total_steps: int, d_model: int) -> optax.Schedule:
        """The learning rate by count, 0 for the first step.

        Raises: ValueError if the schedule does not fit into `total_steps`.
        """
        return self.schedule.build(total_steps=total_steps, d_model=d_model)

    def build(self, *, total_steps: int, d_model: int) -> optax.GradientTransformation:
        """The optimizer. The structure of its state depends on the algorithm only, never on `total_steps`.

        Raises: ValueError if the schedule does not fit into `total_steps`.
        """
        return optax.chain(
            optax.identity() if self.clip_norm is None else clip(self.clip_norm),
            self.algorithm.direction(),
            optax.add_decayed_weights(self.weight_decay, mask=decay_mask),
            optax.scale_by_learning_rate(self.rate(total_steps=total_steps, d_model=d_model)),
        )
