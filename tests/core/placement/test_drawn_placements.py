"""Answers of groups of devices, for models, settings, forced tokens and meshes drawn by a seed. Oracle: one device.

Groups give its bits. Devices that divide a model sum in another order: those draws are in float64, where no tie is decided by it.
Other seeds: `FLAXFORMER_LITE_SEED=7 pytest -m slow` with this file.
"""

import os
from dataclasses import replace
from typing import NamedTuple

import jax
import numpy as np
import pytest

from flaxformer_lite.core.model import DotProduct, LayerNorm, LoRA, RMSNorm
from flaxformer_lite.core.model.config import LanguageModelHead, ModelConfig, SlidingWindow
from flaxformer_lite.core.model.positions import ALiBi, Learned, NoPositions, RelativeBias, Rotary, Sinusoidal
from flaxformer_lite.core.placement.placement import ONE_DEVICE, Placement
from flaxformer_lite.core.search import DecodeConfig, Forced, NeededTokens, Request, Sampling
from flaxformer_lite.core.search.answers import Hypothesis
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.text.special_ids import EOS
from tests.support.placements import assert_same_bits, parameters, placed

FIRST = 100 * int(os.environ.get("FLAXFORMER_LITE_SEED", "0"))
MESHES = ((2, 1), (4, 1), (8, 1), (1, 2), (4, 2), (2, 4), (1, 4))


class Draw(NamedTuple):
    models: list[ModelConfig]
    """Several of them are an ensemble."""
    decode: DecodeConfig
    requests: list[Request]
    mesh: tuple[int, int]


def draw(seed: int) -> Draw:
    rng = np.random.default_rng(seed)
    one_of = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    alone, vocab_size = bool(rng.integers(3) == 0), int(rng.integers(40, 90))
    config = ModelConfig(
        vocab_size=vocab_size,
        d_model=32,
        num_heads=one_of(4, 8),
        d_ff=48,
        num_encoder_layers=0 if alone else int(rng.integers(1, 3)),
        num_decoder_layers=int(rng.integers(1, 3)),
        attention=DotProduct(num_kv_heads=4, bias=one_of(True, False)),
        positions=one_of(Sinusoidal(), Learned(max_positions=64), RelativeBias(), NoPositions())
        if not alone
        else one_of(Rotary(), ALiBi(), Learned(max_positions=64)),
        sliding_window=one_of(SlidingWindow(size=5), SlidingWindow(size=4, layers=(0,)), None) if alone else None,
        norm=one_of(LayerNorm(), RMSNorm()),
        activation=one_of("relu", "swiglu", "gelu_tanh"),
        head=LanguageModelHead(bias=one_of(True, False)),
        share_target_output=one_of(True, False),
        lora=one_of(None, LoRA(rank=2)),
    )
    if not alone and one_of(True, False):
        config = replace(config, share_source_target=False, target_vocab_size=vocab_size + 3)
    beams = one_of(1, 1, 4, 5)
    sampled = alone and beams == 1 and one_of(True, False)
    decode = DecodeConfig(
        beam_size=beams,
        num_hypotheses=2 if sampled else int(rng.integers(1, beams + 1)),
        sampling=Sampling(temperature=1.3, top_p=one_of(0.8, 1.0), top_k=one_of(0, 7)) if sampled else None,
        max_new_tokens=one_of(9, 20, 40),
        max_length_ratio=0,
        batch_tokens=64,
        length_penalty=one_of("average", "gnmt", "none"),
        repetition_penalty=one_of(1.0, 1.0, 1.4),
        no_repeat_ngram=one_of(0, 3),
        suppress_ids=one_of((), (7, 9)),
        min_new_tokens=one_of(0, 4),
        num_ids=one_of(None, vocab_size - 3),
    )
    with_terms, beginnings = beams > 1 and one_of(True, False), one_of(True, False)

    def request(index: int) -> Request:
        source = [int(i) for i in rng.integers(4, 36, rng.integers(1, 12))] + [EOS] * (not alone)
        terms = (NeededTokens((11, 12), 1, False), NeededTokens((13,), 1, False)) if with_terms and index % 3 else ()
        beginning = (15, 16) if beginnings and index % 2 else ()
        limit = None if terms or beginning else one_of(None, 5)
        return Request(source, limit=limit, seed=seed, index=index, forced=Forced(terms, beginning))

    ensemble = [replace(config, d_ff=64)] if not alone and not sampled and one_of(True, False, False) else []
    return Draw([config, *ensemble], decode, [request(i) for i in range(24)], one_of(*MESHES))


def answers_of(drawn: Draw, placement: Placement) -> list[list[Hypothesis]]:
    made = [parameters(config, placement, seed) for seed, config in enumerate(drawn.models)]
    decoder = Decoder(tuple(model for model, _ in made), drawn.decode, placement=placement)
    return decoder.generate(decoder.lay_out(*(variables for _, variables in made)), drawn.requests)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FIRST, FIRST + 24))
def test_drawn_searches_answer_as_on_one_device(seed: int):
    drawn = draw(seed)
    groups_alone = drawn.mesh[1] == 1
    if not groups_alone:
        drawn = drawn._replace(models=[replace(config, dtype="float64") for config in drawn.models])
    with jax.enable_x64(not groups_alone):
        expected, given = answers_of(drawn, ONE_DEVICE), answers_of(drawn, placed(*drawn.mesh))
    jax.clear_caches()
    if groups_alone:
        assert_same_bits(given, expected)
        return
    assert [[one.tokens for one in of_row] for of_row in given] == [
        [one.tokens for one in of_row] for of_row in expected
    ]
    scores = ([one.score for of_row in answers for one in of_row] for answers in (given, expected))
    np.testing.assert_allclose(*scores, rtol=1e-9, atol=1e-12)
