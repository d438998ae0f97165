"""Optimizers: one chain of optax, a stage a line.

Rules select parameters by name, never by rank: with stacked layers a norm scale is `[L, D]` and a kernel `[L, D, E]`. The names
that count: the leaves `kernel` and `embedding`, the module `layers` (a leading layer axis), and the module `head` (the output
layer).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import optax

from flaxformer_lite.core.base.annotations import Resume
from flaxformer_lite.core.base.bounds import (
    Checked,
    Fraction,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    Rate,
)
from flaxformer_lite.core.base.tree_paths import leaf_path
from flaxformer_lite.core.optim.schedules import Noam, Schedule
from flaxformer_lite.core.optim.selection import scaled_updates

KeyPath = tuple[Any, ...]
MomentDtype = Literal["bfloat16"] | None
Beta = Annotated[Rate, Resume.ON_REQUEST]
"""The weight of the old value in a moving average of gradients, or of their squares."""


def clip(norm: float) -> optax.GradientTransformation:
    """Scales all gradients by `min(1, norm / (their joint Euclidean norm + 1e-6))`, as PyTorch does."""

    def update(updates: optax.Updates, params: optax.Params | None) -> optax.Updates:
        scale = jnp.minimum(1, norm / (optax.tree.norm(updates) + 1e-6))
        return jax.tree.map(lambda x: (x * scale).astype(x.dtype), updates)

    return optax.stateless(update)


def decay_mask(params: optax.Params) -> optax.Params:
    """Returns True for the parameters that weight decay shrinks: leaves called `kernel` or `embedding`.

    Norm scales and biases do not decay: they are few, shrinking them does not simplify the function, and the neutral value
    of a scale is 1, not 0. Embeddings decay like kernels, since a shared table is also the output layer.
    """
    return jax.tree.map_with_path(lambda path, _: leaf_path(path).split("/")[-1] in ("kernel", "embedding"), params)


def muon_labels(params: optax.Params) -> optax.Params:
    """Returns "matrices" (Muon) for leaves called `kernel` outside of `head`, "others" (Adam) for all other parameters."""

    def label(path: KeyPath, _: object) -> str:
        *modules, leaf = leaf_path(path).split("/")
        return "matrices" if leaf == "kernel" and "head" not in modules else "others"

    return jax.tree.map_with_path(label, params)


def per_layer(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Applies `inner` to each parameter of each layer separately, for rules on the shape or the mean of a whole array.

    Below a module `layers` the layer axis is mapped over, so `inner` never sees it. The state is the parameters' tree with a
    state of `inner` at every leaf.
    """

    def over_layers(path: KeyPath, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(function) if "layers" in leaf_path(path).split("/") else function

    def init(params: optax.Params) -> optax.OptState:
        return jax.tree.map_with_path(lambda path, leaf: over_layers(path, inner.init)(leaf), params)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        def update_leaf(path: KeyPath, *leaf: object) -> object:
            return over_layers(path, inner.update)(*leaf)

        pairs = jax.tree.map_with_path(update_leaf, updates, state, params)
        new_updates = jax.tree.map(lambda _, pair: pair[0], updates, pairs)
        return new_updates, jax.tree.map(lambda _, pair: pair[1], updates, pairs)

    return optax.GradientTransformation(init, update)


def decaying(direction: optax.GradientTransformation, weight_decay: float) -> optax.GradientTransformation:
    """Adds `weight_decay` times the parameter to a direction, wherever the direction trains the parameter.

    A weight is trained where its direction, or that of a gradient of 1 everywhere, is not 0. So a weight that the direction
    freezes, in whatever form, keeps its bits, and one whose gradient happens to be 0 decays. The state is that of `direction`.
    """
    decay = optax.add_decayed_weights(weight_decay, mask=decay_mask)

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        probe, _ = direction.update(jax.tree.map(jnp.ones_like, updates), state, params)
        steps, state = direction.update(updates, state, params)
        decayed, _ = decay.update(steps, decay.init(params), params)
        return jax.tree.map(lambda x, p, d: jnp.where((x != 0) | (p != 0), d, x), steps, probe, decayed), state

    return optax.GradientTransformation(direction.init, update)


# Algorithms


@dataclass(frozen=True, kw_only=True)
class OptimizerAlgorithm(Checked, ABC, at="optimizer.algorithm"):
    """The direction of a step, from its gradients.

    A new algorithm is a frozen dataclass with a field `kind` (a `Literal` with its name), its settings, and the method
    `direction`. To set it in a config file or on the command line, list it in `Algorithm` below.
    """

    kind: str

    @abstractmethod
    def direction(self) -> optax.GradientTransformation:
        """Returns the transformation from gradients to steps of rate 1, uphill: decay, rate and sign follow in the chain.

        A parameter whose steps are always 0 is frozen: it does not decay either. The state must not depend on the number of
        steps. A state of the shape of a parameter stands at the parameter's path, so the mesh divides both in the same way.
        """


@dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerAlgorithm):
    """Adam with decoupled weight decay.

    m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g²;  direction = m / (1 - b1^n) / (sqrt(v / (1 - b2^n)) + eps)

    Reference: Kingma & Ba 2015, arXiv 1412.6980, algorithm 1; Loshchilov & Hutter 2019, arXiv 1711.05101.
    """

    kind: Literal["adamw"] = "adamw"
    b1: Beta = 0.9
    """Weight of the old average of the gradients."""
    b2: Beta = 0.98
    """Weight of the old average of the squared gradients. 0.98 (Vaswani et al. 2017, section 5.3) averages about 50 steps;
    Adam's own 0.999, the default of PyTorch, optax and transformers, averages 1,000, longer than many warm-ups."""
    eps: Annotated[PositiveFloat, Resume.ON_REQUEST] = 1e-8
    """Added to the root in the denominator, in units of the gradient. With a much smaller value than Adam's, a gradient of
    rounding noise becomes a step of full size."""
    moment_dtype: MomentDtype = None
    """Type of m; None: the type of the parameters. v always has the parameters' type: its change in one step is below the
    resolution of bfloat16."""

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_adam(self.b1, self.b2, self.eps, mu_dtype=self.moment_dtype)


@dataclass(frozen=True, kw_only=True)
class Adafactor(OptimizerAlgorithm):
    """Adam's second moment as one row and one column for each matrix, instead of a number for each weight; no first moment.

    beta(n) = 1 - n^-decay_exponent;  R, C = running means (with beta) of g² over columns and over rows;
    u = g / sqrt(R Cᵀ / mean(R));  direction = u / max(1, RMS(u) / max_update_rms) · max(1e-3, RMS(parameter))

    The last factor applies only with `scale_by_parameter`. Vectors and small matrices keep all of g². Every RMS, mean, row and
    column belongs to one layer: stacked layers move exactly as separate ones.

    Reference: Shazeer & Stern 2018, arXiv 1804.04235, algorithms 4 and 5.
    """

    kind: Literal["adafactor"] = "adafactor"
    decay_exponent: PositiveShare = 0.8
    """Decay of the averages: step n gives the old average the weight 1 - n^-decay_exponent (section 7.2 of the paper)."""
    max_update_rms: PositiveFloat | None = 1.0
    """Largest root mean square of one parameter's direction, before the scaling by its size; None: no limit."""
    scale_by_parameter: bool = True
    """Makes the schedule's rate relative to each parameter's own root mean square (good rates are then near 0.01)."""
    min_size_to_factor: PositiveInt = 128
    """Shortest side of a matrix that keeps a row and a column; smaller matrices keep all of g²."""

    def direction(self) -> optax.GradientTransformation:
        factored = optax.scale_by_factored_rms(True, self.decay_exponent, 0, self.min_size_to_factor)
        limit = optax.identity() if self.max_update_rms is None else optax.clip_by_block_rms(self.max_update_rms)
        size = optax.scale_by_param_block_rms() if self.scale_by_parameter else optax.identity()
        return per_layer(optax.chain(factored, limit, size))


@dataclass(frozen=True, kw_only=True)
class Lion(OptimizerAlgorithm):
    """The sign of a momentum: half the memory of Adam; every weight moves by exactly the rate.

    direction = sign(b1 m + (1 - b1) g);  then m = b2 m + (1 - b2) g

    Lion needs a rate 3 to 10 times smaller than AdamW's, and a weight decay larger by the same factor.

    Reference: Chen et al. 2023, arXiv 2302.06675, program 1 and section 5.
    """

    kind: Literal["lion"] = "lion"
    b1: Beta = 0.9
    """Weight of the momentum in the direction; the rest is the current gradient."""
    b2: Beta = 0.99
    """Weight of the old momentum in the new one."""
    moment_dtype: MomentDtype = None
    """Type of m; None: the type of the parameters."""

    def direction(self) -> optax.GradientTransformation:
        return optax.scale_by_lion(self.b1, self.b2, mu_dtype=self.moment_dtype)


@dataclass(frozen=True, kw_only=True)
class Muon(OptimizerAlgorithm):
    """Orthogonalised momentum for the hidden matrices, Adam for everything else (embeddings, head, norms, biases).

    M = momentum M + (1 - momentum) G, debiased, mixed with the debiased G once more if `nesterov`;
    U = M with singular values near 1: those above 0.003 of its norm end between 0.68 and 1.21;
    direction = update_rms sqrt(max(D, E)) U

    An orthogonal matrix of shape (D, E) has the root mean square 1 / sqrt(max(D, E)), so `update_rms` is the root mean square of
    the direction. At 0.2, the usual one of Adam, both groups of parameters share the schedule and weight decay of AdamW.

    Reference: Jordan 2024, https://kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv 2502.16982, section 2.2.
    """

    kind: Literal["muon"] = "muon"
    momentum: Rate = 0.95
    """Weight of the old average of the gradients, for the matrices."""
    nesterov: bool = True
    """Mixes the current gradient into the momentum once more before orthogonalising."""
    newton_schulz_steps: PositiveInt = 5
    """Number of Newton-Schulz steps. Fewer leave small singular values small; more only cost time."""
    update_rms: PositiveFloat = 0.2
    """Root mean square of the direction of a matrix, in units of the rate."""
    b1: Beta = 0.9
    """AdamW's b1, for the other parameters."""
    b2: Beta = 0.98
    """AdamW's b2, for the other parameters."""
    eps: Annotated[PositiveFloat, Resume.ON_REQUEST] = 1e-8
    """AdamW's eps, for the other parameters."""
    moment_dtype: MomentDtype = None
    """Type of M, and of AdamW's m for the other parameters; None: the type of the parameters."""

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
class SGD(OptimizerAlgorithm):
    """Stochastic gradient descent, with optional heavy-ball momentum.

    m = momentum m + g;  direction = m, or g + momentum m if `nesterov`

    Reference: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning", section 2.
    """

    kind: Literal["sgd"] = "sgd"
    momentum: Rate = 0.0
    """Weight of the old direction in the new one; 0: no momentum and no state."""
    nesterov: bool = False
    """Applies the momentum one step ahead."""
    moment_dtype: MomentDtype = None
    """Type of m; None: the type of the parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, default in (("nesterov", False), ("moment_dtype", None)):
            value = getattr(self, name)
            if self.momentum == 0 and value != default:
                raise ValueError(
                    f"optimizer.algorithm.{name} is {value!r}: it must be {default} while optimizer.algorithm.momentum is 0; "
                    f"set the momentum, for example to 0.9, or leave {name} at {default}"
                )

    def direction(self) -> optax.GradientTransformation:
        return optax.trace(self.momentum, self.nesterov, self.moment_dtype) if self.momentum else optax.identity()


Algorithm = AdamW | Adafactor | Lion | Muon | SGD

TRAIN_ALL = tuple(kind.direction for kind in (AdamW, Adafactor, Lion, Muon, SGD))
"""Directions that freeze no parameter. `decaying` computes any other twice, to find out which parameters it freezes."""


# The optimizer


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Checked, at="optimizer"):
    """The update of the parameters from their gradients.

    parameter -= factor · rate(n) · (direction(clipped gradients) + weight_decay · parameter)

    The decay is decoupled from the direction but multiplied by the rate, as in AdamW (Loshchilov & Hutter 2019).
    """

    algorithm: Algorithm = AdamW()
    """The direction of a step."""
    schedule: Annotated[Schedule, Resume.ON_REQUEST] = Noam()
    """The learning rate of a step. Noam's depends on `model.d_model` and suits AdamW."""
    clip_norm: Annotated[PositiveFloat | None, Resume.ON_REQUEST] = 1.0
    """Largest joint Euclidean norm of all gradients; larger ones are scaled down to it. None: no clipping."""
    weight_decay: Annotated[NonNegativeFloat, Resume.ON_REQUEST] = 0.0
    """Fraction of a kernel or embedding subtracted at each step, times the rate. Norms, biases and frozen weights do not decay."""
    rates: dict[str, PositiveFloat] = field(default_factory=dict, hash=False)
    """Factors of the learning rate by patterns of parameter paths, such as {"encoder/*": 0.1, "*/layers/0/*": 0.5}; those of all
    patterns that match are multiplied."""
    layer_decay: PositiveShare = 1.0
    """Factor of the learning rate from the head to the highest layer, and from each layer to the one below it; embeddings are the
    lowest. 1: every layer has the same rate."""
    ema_decay: Annotated[Fraction | None, Resume.ON_REQUEST] = None
    """Weight of the old value in a moving average of the parameters, kept as a second set of them; None: no average."""

    def rate(self, *, total_steps: int, d_model: int) -> optax.Schedule:
        """Returns the learning rate as a function of the count, 0 for the first step.

        Raises: ValueError if the schedule does not fit into `total_steps`.
        """
        return self.schedule.build(total_steps=total_steps, d_model=d_model)

    def build(
        self, *, total_steps: int, d_model: int, num_layers: Mapping[str, int] | None = None
    ) -> optax.GradientTransformation:
        """Returns the optimizer. The structure of its state depends on the algorithm only, never on `total_steps`.

        num_layers: the model's layers by the name of their stack, `ModelConfig.num_layers`; `layer_decay` needs them.

        Raises: ValueError if the schedule does not fit into `total_steps`, or `num_layers` is missing.
        """
        if self.layer_decay != 1 and not num_layers:
            raise ValueError(
                f"optimizer.layer_decay is {self.layer_decay}, and num_layers is {num_layers}: give build the model's num_layers"
            )
        direction = self.algorithm.direction()
        decay = optax.add_decayed_weights(self.weight_decay, mask=decay_mask)
        if self.weight_decay and type(self.algorithm).direction not in TRAIN_ALL:
            # The stage stays: states with and without decay have one structure.
            direction = decaying(direction, self.weight_decay)
            decay = optax.masked(optax.identity(), decay_mask)
        limit = optax.identity() if self.clip_norm is None else clip(self.clip_norm)
        rate = optax.scale_by_learning_rate(self.rate(total_steps=total_steps, d_model=d_model))
        return optax.chain(
            limit, direction, decay, scaled_updates(rate, self.rates, self.layer_decay, num_layers or {})
        )
