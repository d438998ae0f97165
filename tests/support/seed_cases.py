"""The cases of the four systems, built from each case's own config out of this package's modules.

`compute(case)` answers with everything that the case's kind can be asked for, under the names of the fixtures: `out/…`,
`grad/…` (by the system's parameter names) and `grad_in/…`. It knows no file names.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import unflatten_dict

from flaxformer_lite.core.model.attention import DotProduct, MultiHeadAttention, SharedProjection
from flaxformer_lite.core.model.layers import FeedForward, apply_dropout
from flaxformer_lite.core.model.masks import Replace, causal_mask, combine_masks, padding_mask
from flaxformer_lite.core.model.norms import DeviationNorm, LayerNorm, Normalize
from flaxformer_lite.core.model.transformer import apply_commands
from flaxformer_lite.core.objectives.losses import cross_entropy
from flaxformer_lite.interop.name_map import Layout, WeightName, from_params
from flaxformer_lite.interop.systems import matrix_view
from flaxformer_lite.interop.systems.bert_attention import AttentionLayer

Arrays = dict[str, Any]
ACCURATE = {"xla_cpu_use_fusion_emitters": True} if jax.__version_info__ < (0, 11) else None


class Case(NamedTuple):
    """One fixture; its inputs are in the type that is computed in, its parameters as they came."""

    config: Mapping[str, Any]
    params: Arrays
    inputs: Arrays
    dtype: Any

    @property
    def mask(self) -> Any:
        return as_mask(self.inputs.get("mask"))


def as_mask(x: Any) -> Any:
    return None if x is None else jnp.asarray(x) != 0


def differentiated(
    forward: Callable[[Any, Arrays], Arrays], params: Any, floats: Arrays, names: list[WeightName]
) -> Arrays:
    """Everything `forward(params, floats)` names, and the gradients of its `loss` where it has one."""
    forward = jax.jit(forward)  # traced once, although it is asked for twice

    def loss(params: Any, floats: Arrays) -> tuple[Any, Arrays]:
        found = forward(params, floats)
        return found.get("loss", jnp.zeros(())), found

    if "loss" not in jax.eval_shape(forward, params, floats):
        return {f"out/{name}": x for name, x in forward(params, floats).items()}
    # In float32 the fixtures' own rounding takes up to 9e-6 of the 1e-5 allowed: the accurate code generator, then.
    options = ACCURATE if jax.tree.leaves(floats)[0].dtype == np.float32 else None
    gradients = jax.jit(jax.grad(loss, (0, 1), has_aux=True), compiler_options=options)
    (by_param, by_input), found = gradients(params, floats)
    return (
        {f"out/{name}": x for name, x in found.items()}
        | {f"grad/{name}": x for name, x in from_params(by_param, names).items()}
        | {f"grad_in/{name}": x for name, x in by_input.items()}
    )


def dot_loss(case: Case, found: Arrays, name: str = "output") -> Arrays:
    """`found` with the loss of the fixtures: the output weighed by their cotangent, if they have one."""
    if "cotangent" not in case.inputs:
        return found
    return found | {"loss": (found[name] * case.inputs["cotangent"]).sum()}


def standalone(case: Case, names: list[WeightName]) -> Any:
    """Parameters of a lone module, by its name map."""
    return unflatten_dict(
        {w.path: jnp.asarray(w.layout.to_ours(case.params[w.names[0]]), case.dtype) for w in names}, sep="/"
    )


def floats_of(case: Case, *names: str) -> Arrays:
    return {name: case.inputs[name] for name in names if name in case.inputs}


def sown(state: Any, *path: str) -> Any:
    for part in path:
        state = state[part]
    return state[0]


# Single modules -------------------------------------------------------------------------------------------------------


def norm_case(
    kind: type[LayerNorm] | type[DeviationNorm], epsilon: float, scale: str, bias: str
) -> Callable[[Case], Arrays]:
    """A lone norm; `epsilon` is the system's own where the case does not give one."""

    def compute(case: Case) -> Arrays:
        norm = kind(epsilon=case.config.get("eps", epsilon))
        names = [WeightName("scale", (scale,)), WeightName("bias", (bias,))]

        def forward(params: Any, floats: Arrays) -> Arrays:
            return dot_loss(case, {"output": Normalize(norm).apply({"params": params}, floats["x"])})

        return differentiated(forward, standalone(case, names), floats_of(case, "x"), names)

    return compute


class Commands(nn.Module):
    """The residual commands alone, with the first system's norm and dropout."""

    commands: str
    rate: float

    @nn.compact
    def __call__(self, x: Any, residual: Any) -> Any:
        norm = Normalize(LayerNorm(epsilon=1e-5), name="norm")
        return apply_commands(
            self.commands, x, residual, norm=norm, dropout=lambda x: apply_dropout(self, x, self.rate, "evaluation")
        )


def paddle_commands(case: Case) -> Arrays:
    c = case.config
    module = Commands(c["process_cmd"], c["dropout_rate"])
    names = [WeightName(f"norm/{x}", (f"{c['name']}_layer_norm_{x}",)) for x in ("scale", "bias")]
    names = names if "n" in c["process_cmd"] else []

    def forward(params: Any, floats: Arrays) -> Arrays:
        return dot_loss(case, {"output": module.apply({"params": params}, floats["x"], floats.get("residual"))})

    return differentiated(forward, standalone(case, names), floats_of(case, "x", "residual"), names)


def linear(ours: str, theirs: str, ends: tuple[str, str], layout: Layout = Layout.SAME) -> list[WeightName]:
    return [WeightName(f"{ours}/kernel", (theirs + ends[0],), layout), WeightName(f"{ours}/bias", (theirs + ends[1],))]


def paddle_feed_forward(case: Case) -> Arrays:
    c = case.config
    module = FeedForward(c["d_model"], c["d_inner_hid"], c["hidden_act"], dtype=case.dtype)
    names = [w for i, ours in enumerate(("up", "down")) for w in linear(ours, f"{c['name']}_fc_{i}", (".w_0", ".b_0"))]

    def forward(params: Any, floats: Arrays) -> Arrays:
        return dot_loss(case, {"output": module.apply({"params": params}, floats["x"])})

    return differentiated(forward, standalone(case, names), floats_of(case, "x"), names)


def paddle_attention(case: Case) -> Arrays:
    c = case.config
    variant = DotProduct(d_key=c["d_key"], d_value=c["d_value"])
    module = MultiHeadAttention(c["d_model"], c["n_head"], variant, dtype=case.dtype)
    names = [
        w
        for ours, theirs in (("query", "query"), ("key", "key"), ("value", "value"), ("out", "output"))
        for w in linear(ours, f"{c['name']}_{theirs}_fc", (".w_0", ".b_0"))
    ]

    def forward(params: Any, floats: Arrays) -> Arrays:
        output, state = module.apply(
            {"params": params},
            floats["queries"],
            floats.get("keys"),
            floats.get("values"),
            bias=case.inputs.get("attn_bias"),
            mutable=["intermediates"],
        )
        return dot_loss(case, {"output": output, "weights": sown(state["intermediates"], "weights")})

    return differentiated(forward, standalone(case, names), floats_of(case, "queries", "keys", "values"), names)


def bert_attention(case: Case) -> Arrays:
    c, given = case.config, case.inputs
    options = ("num_attention_heads", "size_per_head", "query_act", "key_act", "value_act", "do_return_2d_tensor")
    module = AttentionLayer(**{name: c[name] for name in options}, dtype=case.dtype)
    sizes = {name: c[name] for name in ("batch_size", "from_seq_length", "to_seq_length")}
    names = [w for role in ("query", "key", "value") for w in linear(role, role, ("/kernel", "/bias"))]

    def forward(params: Any, floats: Arrays) -> Arrays:
        output, state = module.apply(
            {"params": params},
            floats["from_tensor"],
            floats.get("to_tensor", floats["from_tensor"]),
            given.get("attention_mask"),
            **sizes,
            mutable=["intermediates"],
        )
        found = state["intermediates"]
        return dot_loss(
            case,
            {
                "output": output,
                "attention_probs": sown(found, "attention_probs"),
                "scores_after_mask": sown(found, "scores"),
            },
        )

    return differentiated(forward, standalone(case, names), floats_of(case, "from_tensor", "to_tensor"), names)


def matrix_view_variant(width: int) -> SharedProjection:
    return SharedProjection(scale=width**-0.5, masking=Replace(value=-1e20))


def matrix_view_attention(case: Case) -> Arrays:
    c = case.config
    module = MultiHeadAttention(c["embed_size"], c["heads"], matrix_view_variant(c["embed_size"]), dtype=case.dtype)
    roles = (("query", "queries"), ("key", "keys"), ("value", "values"))
    names = [WeightName(f"{ours}/kernel", (f"{theirs}.weight",), Layout.TRANSPOSED) for ours, theirs in roles]
    names += linear("out", "fc_out", (".weight", ".bias"), Layout.TRANSPOSED)

    def forward(params: Any, floats: Arrays) -> Arrays:
        output, state = module.apply(
            {"params": params},
            floats["query"],
            floats["keys"],
            floats["values"],
            mask=case.mask,
            mutable=["intermediates"],
        )
        return dot_loss(case, {"output": output, "attention_0": sown(state["intermediates"], "weights")})

    return differentiated(forward, standalone(case, names), floats_of(case, "query", "keys", "values"), names)


class AttentionAndFeedForward(nn.Module):
    """A post-norm block whose queries, keys and values come from outside."""

    width: int
    num_heads: int
    d_ff: int
    dtype: Any

    @nn.compact
    def __call__(self, query: Any, key: Any, value: Any, mask: Any) -> Any:
        def post(name: str, x: Any, residual: Any) -> Any:
            norm = Normalize(LayerNorm(epsilon=1e-5), name=f"{name}_post_norm")
            return apply_commands("an", x, residual, norm=norm, dropout=lambda x: x)

        variant = matrix_view_variant(self.width)
        attention = MultiHeadAttention(self.width, self.num_heads, variant, dtype=self.dtype, name="attention")
        x = post("attention", attention(query, key, value, mask=mask), query)
        return post("feed_forward", FeedForward(self.width, self.d_ff, dtype=self.dtype, name="feed_forward")(x), x)


def matrix_view_block(case: Case) -> Arrays:
    c = case.config
    module = AttentionAndFeedForward(c["embed_size"], c["heads"], c["embed_size"] * c["forward_expansion"], case.dtype)
    names = []
    for ours, theirs in matrix_view.ENCODER_LAYER.items():
        if "norm" in ours:
            names += [
                WeightName(f"{ours}/scale", (f"{theirs}.weight",)),
                WeightName(f"{ours}/bias", (f"{theirs}.bias",)),
            ]
        else:
            names += linear(ours, theirs, (".weight", ".bias"), Layout.TRANSPOSED)
    names = [weight for weight in names if weight.names[0] in case.params]  # queries, keys and values have no bias

    def forward(params: Any, floats: Arrays) -> Arrays:
        output, state = module.apply(
            {"params": params}, floats["query"], floats["key"], floats["value"], case.mask, mutable=["intermediates"]
        )
        return dot_loss(case, {"output": output, "attention_0": sown(state["intermediates"], "attention", "weights")})

    return differentiated(forward, standalone(case, names), floats_of(case, "query", "key", "value"), names)


def masks(case: Case) -> Arrays:
    is_source, is_target = (jnp.asarray(case.inputs[x]) != case.config["pad_idx"] for x in ("src", "tgt"))
    causal = causal_mask(is_target.shape[1])
    found = {"src_mask": padding_mask(is_source), "tgt_mask": combine_masks(padding_mask(is_target), causal)}
    integers = {f"{name}_int": x.astype(int) for name, x in found.items()}
    return {f"out/{name}": x for name, x in (found | integers | {"subsequent": causal.astype(int)}).items()}


def smoothed_loss(logits: Any, labels: Any, smoothing: float, pad: int) -> Any:
    term = cross_entropy(logits, labels, (labels != pad).astype(logits.dtype), label_smoothing=smoothing)
    return term.sum / term.count


def label_smoothing(case: Case) -> Arrays:
    c, labels = case.config, jnp.asarray(case.inputs["labels"])
    found: Arrays = {}
    for share in c["label_smoothing"]:
        loss, gradient = jax.value_and_grad(smoothed_loss)(case.inputs["logits"], labels, share, c["pad_idx"])
        found |= {f"out/loss_{share:g}": loss, f"grad_in/logits_{share:g}": gradient}
    nothing = jnp.full_like(labels, c["pad_idx"])
    return found | {"out/loss_all_pad": smoothed_loss(case.inputs["logits"], nothing, 0.1, c["pad_idx"])}


MODULES: dict[tuple[str, str], Callable[[Case], Arrays]] = {
    ("000", "PrePostProcessLayer"): paddle_commands,
    ("000", "PositionwiseFeedForwardLayer"): paddle_feed_forward,
    ("000", "MultiHeadAttentionLayer"): paddle_attention,
    ("001", "LayerNorm"): norm_case(DeviationNorm, 1e-6, "gamma", "beta"),
    ("001", "LabelSmoothingLoss"): label_smoothing,
    ("001", "masks"): masks,
    ("002", "attention_layer"): bert_attention,
    ("002", "layer_norm"): norm_case(LayerNorm, 1e-12, "LayerNorm/gamma", "LayerNorm/beta"),
    ("003", "SelfAttention"): matrix_view_attention,
    ("003", "LayerNorm"): norm_case(LayerNorm, 1e-5, "norm.weight", "norm.bias"),
    ("003", "TransformerBlock"): matrix_view_block,
}
"""By system and kind: single modules. Whole models are in `seed_models.py`; what trains, decodes or raises in `seed_runs.py`."""
