"""Oracles: averages in float32, the plain loss over all logits, the sizes in the compiled program itself."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from flaxformer_lite.core.model import DropoutRates, Inputs, LanguageModelHead, ModelConfig, Transformer
from flaxformer_lite.core.objectives import Batch, CausalLM
from flaxformer_lite.core.optim import SGD, AdamW, Constant, Lion, Muon, OptimizerConfig

KEY = jax.random.key(3)

PLAIN = ModelConfig(
    vocab_size=11,
    d_model=8,
    num_heads=2,
    d_ff=24,
    num_encoder_layers=0,
    num_decoder_layers=1,
    dropout=DropoutRates(residual_rate=0.2, attention_rate=0.1),
)

# The optimizer's averages ----------------------------------------------------------------------------------------------


def descend(algorithm, steps: int = 40) -> tuple[dict, list]:
    """A matrix, an embedding and a bias on the way to where they should be; and the types and sizes that the optimizer keeps."""
    optimizer = OptimizerConfig(algorithm=algorithm, schedule=Constant(peak_rate=0.02, warmup_steps=0)).build(
        total_steps=steps, d_model=8
    )
    rng = np.random.default_rng(4)
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "up": {"kernel": (7, 5), "bias": (5,)},
        "embedding": {"embedding": (11, 7)},
    }
    params, wanted = (
        {
            module: {name: jnp.asarray(rng.normal(size=shape), "float32") for name, shape in leaves.items()}
            for module, leaves in shapes.items()
        }
        for _ in range(2)
    )
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        updates, state = optimizer.update(jax.tree.map(jnp.subtract, params, wanted), state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params, [(str(x.dtype), x.size) for x in jax.tree.leaves(state) if x.ndim]


@pytest.mark.parametrize("algorithm", [AdamW(), Lion(), Muon(), SGD(momentum=0.9)], ids=lambda a: a.kind)
def test_averages_in_bfloat16_take_half_the_room_and_lead_to_the_same_place(algorithm):
    """The averages of squares stay float32: steps of less than 1/256 would be lost on them."""
    narrow = dataclasses.replace(algorithm, moment_dtype="bfloat16")
    (plain, plain_kept), (found, kept) = descend(algorithm), descend(narrow)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=0.05), found, plain)
    assert {dtype for dtype, _ in plain_kept} == {"float32"}
    assert [size for _, size in kept] == [size for _, size in plain_kept]
    numbers = 7 * 5 + 5 + 11 * 7
    assert sum(size for dtype, size in kept if dtype == "bfloat16") == numbers
    squares = {"adamw": numbers, "muon": numbers - 7 * 5 + 3}  # Muon's coefficients are 3 more
    assert sum(size for dtype, size in kept if dtype == "float32") == squares.get(algorithm.kind, 0)


# Losses that never hold all logits --------------------------------------------------------------------------------------

V, P = 29, 13


@functools.cache
def largest_arrays(chunk: int | None, train: bool) -> tuple[int, int]:
    """The most elements that one array has in the compiled program, of float32 and of any type; parameters are smaller."""
    rows, length, vocabulary = 4, 24, 211
    config = dataclasses.replace(
        PLAIN, vocab_size=vocabulary, dtype="bfloat16", head=LanguageModelHead(loss_chunk=chunk)
    )
    objective, model, tokens = CausalLM(z_loss=0.1), Transformer(config), jnp.zeros((rows, length), jnp.int32)
    batch = Batch(Inputs(target_tokens=tokens), tokens, jnp.ones((rows, length)))
    params = jax.eval_shape(model.init, KEY, batch.inputs)["params"]

    def loss(params):
        outputs = model.apply({"params": params}, batch.inputs)
        return sum(t.sum for t in (objective.loss if train else objective.metrics)(outputs, batch).values())

    text = jax.jit(jax.grad(loss) if train else loss).lower(params).compile().as_text()
    sizes = [(kind, math.prod(map(int, shape.split(",")))) for kind, shape in re.findall(r"(\w+)\[([\d,]+)\]", text)]
    return max(size for kind, size in sizes if kind == "f32"), max(size for _, size in sizes)


@pytest.mark.slow
@pytest.mark.parametrize("train", [True, False])
def test_no_array_of_the_program_is_as_large_as_all_logits(train):
    """Neither on the way there nor back; without chunks there is one."""
    assert largest_arrays(None, train)[0] == 4 * 24 * 211
    assert largest_arrays(6, train)[1] < 4 * 24 * 211 / 2
