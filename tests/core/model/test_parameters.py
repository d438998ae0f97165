"""Oracles: a golden list of names and shapes; Glorot's bounds and other statistics of first values."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model import PRE_NORM, ModelConfig, Transformer
from flaxformer_lite.core.model.layers import XavierUniform
from tests.support.small_models import CONFIGS, NOTHING_SHARED, F, V, arrays, initial, inputs_of, shapes

BFLOAT16 = dataclasses.replace(CONFIGS[NOTHING_SHARED], residual=PRE_NORM, activation="swiglu", dtype="bfloat16")

# Names, shapes and types ---------------------------------------------------------------------------------------------

ATTENTION: dict[str, tuple[int, ...]] = {
    **{f"{role}/kernel": (7, 6) for role in ("query", "key")},
    **{f"{role}/bias": (6,) for role in ("query", "key")},
    "value/kernel": (7, 15),
    "value/bias": (15,),
    "out/kernel": (15, 7),
    "out/bias": (7,),
}
FEED_FORWARD: dict[str, tuple[int, ...]] = {"up/kernel": (7, 17), "gate/kernel": (7, 17), "down/kernel": (17, 7)}
FEED_FORWARD |= {"up/bias": (17,), "gate/bias": (17,), "down/bias": (7,)}
NORM: dict[str, tuple[int, ...]] = {"bias": (7,), "scale": (7,)}
PARTS = {"attention": ATTENTION, "cross_attention": ATTENTION, "feed_forward": FEED_FORWARD}
TABLES = {"head/kernel": (7, 19), "source_embedding/embedding": (13, 7), "target_embedding/embedding": (19, 7)}


def golden() -> dict:
    """By hand: three layers of the encoder and two of the decoder, each part behind its norm, and what is beside them."""
    found: dict = {**TABLES}
    for stack, number, parts in (("encoder", 3, PARTS.keys() - {"cross_attention"}), ("decoder", 2, PARTS)):
        found |= {f"{stack}/positions/embedding": (23, 7)} | {
            f"{stack}/final_norm/{name}": x for name, x in NORM.items()
        }
        for part in parts:
            for place, shapes_of in ((part, PARTS[part]), (f"{part}_pre_norm", NORM)):
                found |= {f"{stack}/layers/{place}/{name}": (number, *x) for name, x in shapes_of.items()}
    return found


def test_the_parameter_tree_is_the_golden_list():
    """And its numbers are float32, though the model computes in bfloat16."""
    found = leaves_by_path(shapes(BFLOAT16))
    assert {path: leaf.shape for path, leaf in found.items()} == golden()
    assert {leaf.dtype for leaf in found.values()} == {jnp.dtype("float32")}


def test_post_norm_moves_the_norms_and_has_no_final_one():
    """The golden list without the gates, each `pre_norm` called `post_norm`; float32 also where computing in float64."""
    expected = {
        path.replace("_pre_norm", "_post_norm"): shape
        for path, shape in golden().items()
        if "gate" not in path and "final_norm" not in path
    }
    with jax.enable_x64(True):
        found = leaves_by_path(shapes(CONFIGS[NOTHING_SHARED]))
    assert {path: leaf.shape for path, leaf in found.items()} == expected
    assert {leaf.dtype for leaf in found.values()} == {jnp.dtype("float32")}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pre_norm_all_shared", {"embedding/embedding": (V, 10)}),
        (
            "post_norm_nothing_shared",
            {"source_embedding/embedding": (V, 7), "target_embedding/embedding": (19, 7), "head/kernel": (7, 19)},
        ),
        ("rms_gated_own_head", {"embedding/embedding": (V, 7), "head/kernel": (7, V)}),
        ("two_tables_tied_output", {"source_embedding/embedding": (V, 7), "target_embedding/embedding": (19, 7)}),
    ],
)
def test_sharing_decides_the_tables(name, expected):
    with jax.enable_x64(True):
        found = leaves_by_path(shapes(CONFIGS[name]))
    tables = {path: leaf.shape for path, leaf in found.items() if path.split("/")[0] not in ("encoder", "decoder")}
    assert tables == expected


def test_a_bfloat16_model_computes_in_bfloat16_and_weighs_in_float32():
    """Traced from inputs that hold shapes, as `jax.eval_shape` returns them and `jax.jit(…).lower` takes them."""
    inputs = jax.eval_shape(lambda: inputs_of(*arrays(BFLOAT16)))
    run = functools.partial(Transformer(BFLOAT16).apply, mutable=["intermediates"])
    outputs, sown = jax.eval_shape(run, {"params": shapes(BFLOAT16)}, inputs)
    assert outputs.logits.shape == (2, 5, 19)
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype("bfloat16")}
    for path, leaf in leaves_by_path(sown).items():
        assert leaf.dtype == (jnp.float32 if "weights" in path else jnp.bfloat16)


# First values --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaled(XavierUniform):
    """Kernels twice and tables three times the usual: who does not ask the initializer is found out."""

    def kernel(self):
        return lambda *args: 2 * XavierUniform.kernel(self)(*args)

    def embedding(self, d_model: int):
        return lambda *args: 3 * XavierUniform.embedding(self, d_model)(*args)


@pytest.fixture(scope="module")
def first_values() -> dict:
    """By path, of a model with two layers in the encoder and one in the decoder."""
    shape = {"vocab_size": 101, "d_model": 12, "num_heads": 2, "d_ff": F}
    layers = {"num_encoder_layers": 2, "num_decoder_layers": 1}
    config = ModelConfig(**shape, **layers, share_target_output=False, initializer=Scaled())
    return jax.tree.map(np.asarray, leaves_by_path(jax.jit(initial(config))(jax.random.key(6))))


def test_kernels_start_as_the_initializer_says_layer_by_layer(first_values):
    """They fill ± twice sqrt(6 / (fan-in + fan-out)): a largest value under 4/5 of it has chance 0.8^144 at most."""
    kernels = {path: value for path, value in first_values.items() if path.endswith("kernel")}
    for path, kernel in kernels.items():
        for layer in kernel.reshape(-1, *kernel.shape[-2:]):
            bound = 2 * math.sqrt(6 / sum(layer.shape))
            assert 0.8 * bound < np.abs(layer).max() <= bound, path
    by_value = {layer.tobytes() for x in kernels.values() for layer in x.reshape(-1, *x.shape[-2:])}
    assert len(by_value) == 2 * (4 + 2) + 1 * (8 + 2) + 1  # no two layers, and no two kernels, start alike


def test_other_first_values_are_zeros_ones_and_a_normal_table(first_values):
    """The table has standard deviation 3 d_model^-0.5, within 6 standard errors of 1,212 numbers (twice in 10^9 by chance)."""
    values = {path: value for path, value in first_values.items() if not path.endswith("kernel")}
    table = values.pop("embedding/embedding") / 3
    assert abs((table**2).mean() * 12 - 1) < 6 * math.sqrt(2 / table.size)
    assert abs(table.mean()) * math.sqrt(12) < 6 / math.sqrt(table.size)
    for path, value in values.items():
        assert (value == (1 if path.endswith("scale") else 0)).all(), path
