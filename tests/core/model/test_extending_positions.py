"""A position scheme written here, outside the package, is decoded as those inside: no other file knows it.

Oracles: decoding with a cache equals the full pass; its limit is one for all commands.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model.inputs import Inputs
from flaxformer_lite.core.model.positions import PositionScheme, sinusoids
from flaxformer_lite.core.model.transformer import Transformer, parameter_shapes
from flaxformer_lite.core.search import DecodeConfig, Request
from flaxformer_lite.core.search.decoder import Decoder
from tests.support.experiments import tiny_config


@dataclass(frozen=True, kw_only=True)
class LearnedWaves(PositionScheme):
    """Sinusoids times a learned factor, and a learned slope of the scores for each head; up to `max_positions`."""

    kind: Literal["learned_waves"] = "learned_waves"
    max_positions: int = 40

    def embed(self, x, positions, param):
        amplitude = param("amplitude", jax.nn.initializers.ones, (), jnp.float32)
        return x + (amplitude * sinusoids(positions, x.shape[-1], "interleaved")).astype(x.dtype)

    def bias(self, queries, keys, num_heads, causal, param):
        slope = param("slope", jax.nn.initializers.constant(0.1), (num_heads,), jnp.float32)
        return -slope[:, None, None] * jnp.abs(queries[:, None, :, None] - keys[:, None, None, :])


CONFIG = tiny_config(
    model=dataclasses.replace(tiny_config().model, positions=LearnedWaves(), num_encoder_layers=1, num_decoder_layers=1)
)


@pytest.mark.slow
def test_cached_decoding_equals_the_full_pass_and_knows_the_limit():
    """With parameters by chance, those of the scheme too."""
    model, generator = Transformer(CONFIG.model), np.random.default_rng(4)
    shapes = parameter_shapes(CONFIG.model)
    params = jax.tree.map(lambda x: jnp.asarray(generator.normal(0, 0.3, x.shape), x.dtype), shapes)
    for stack in ("encoder", "decoder"):
        assert {f"{stack}/positions/amplitude", f"{stack}/position_bias/slope"} <= leaves_by_path(params).keys()
    source = list(range(5, 12))
    decoder = Decoder(model, DecodeConfig(beam_size=1, eos_ids=(), max_new_tokens=5))
    (((answer, _),),) = decoder.generate({"params": params}, [source])
    tokens = jnp.array([[decoder.config.bos_id, *answer]])
    inputs = Inputs(source_tokens=jnp.array([source]), target_tokens=tokens)
    logits = jax.jit(model.apply)({"params": params}, inputs).logits
    assert logits[0, :-1].argmax(-1).tolist() == answer
    with pytest.raises(ValueError, match=r"has 41 tokens, but model\.positions\.max_positions is 40"):
        decoder.check([Request(source * 5 + source[:6])])


def test_config_checks_lengths_against_the_limit_and_json_names_the_class():
    assert from_json(to_json(CONFIG)) == CONFIG
    model = dataclasses.replace(CONFIG.model, positions=LearnedWaves(max_positions=39))
    with pytest.raises(ValueError, match=r"max_positions 39 is less than data\.max_source_length 40"):
        tiny_config(model=model)
