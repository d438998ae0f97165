"""Answers of several devices: those of one device, by programs that exchange nothing but activations."""

import re
from dataclasses import replace

import jax
import numpy as np
import pytest

from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.placement.batches import InputBatch
from flaxformer_lite.core.placement.placement import ONE_DEVICE, Placement, Prepared
from flaxformer_lite.core.search import DecodeConfig, Sampling
from flaxformer_lite.core.search.decoder import Decoder, Row
from flaxformer_lite.core.search.request import requests_in_order
from flaxformer_lite.core.text.special_ids import EOS
from tests.support.placements import assert_same_bits, parameters, placed

SIZES = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_decoder_layers": 2}
PAIR = ModelConfig(vocab_size=61, num_encoder_layers=2, **SIZES)  # 61 ids: no mesh divides them
ALONE = replace(PAIR, num_encoder_layers=0)
DECODE = DecodeConfig(max_new_tokens=40, max_length_ratio=0, batch_tokens=128)


def answers(config: ModelConfig, decode: DecodeConfig, placement: Placement, number: int = 40):
    model, variables = parameters(config, placement)
    rng, end = np.random.default_rng(0), [EOS] * (config.num_encoder_layers > 0)
    sources = [[*rng.integers(4, config.vocab_size, rng.integers(8, 14)).tolist(), *end] for _ in range(number)]
    return Decoder(model, decode, placement=placement).generate(variables, requests_in_order(sources, seed=7))


SHORT = replace(DECODE, max_new_tokens=16)
SEARCHES = {
    "greedy": (PAIR, SHORT),
    "beam": (PAIR, replace(SHORT, beam_size=4, num_hypotheses=4)),
    "sampling": (ALONE, replace(SHORT, sampling=Sampling(temperature=1.5, top_p=0.9), num_hypotheses=2)),
}


SLOW = pytest.mark.slow


@SLOW
@pytest.mark.parametrize(("name", "groups"), [("beam", 2), *((name, groups) for name in SEARCHES for groups in (4, 8))])
def test_the_number_of_groups_changes_no_bit(name: str, groups: int):
    config, decode = SEARCHES[name]
    expected = answers(config, decode, ONE_DEVICE)
    assert len({tuple(best.tokens) for best, *_ in expected}) > 20
    assert_same_bits(answers(config, decode, placed(groups, 1)), expected)


def test_batches_of_one_form_are_answered_together_in_order():
    """Oracle: worked by hand; a group without a batch has the filler, and answers to padding rows are dropped."""
    batches = [InputBatch([3, 0], 2, 8), InputBatch([1], 2, 8), InputBatch([4], 2, 8), InputBatch([2], 1, 8)]
    prepared = [Prepared(batch, np.full(batch.rows, sum(batch.members))) for batch in batches]
    placement, calls = placed(2, 1), []

    def answer(call: list[Prepared]) -> list[int]:
        joined = placement.joined([one.arrays for one in call], filler=lambda x: x - 100)
        calls.append(joined.tolist())
        return [i for batch, *_ in call for i in [*batch.members, -1][: batch.rows]]

    told: list[tuple] = []
    assert placement.map(answer, prepared, "counting", 5, lambda *each: told.append(each)) == {i: i for i in range(5)}
    assert calls == [[3, 3, 1, 1], [4, 4, -96, -96], [2, -98]]
    assert told == [("counting", 3, 5), ("counting", 4, 5), ("counting", 5, 5)]


# The programs of the steps ------------------------------------------------------------------------------------------------

COLLECTIVE = re.compile(
    r"= (\(?[^=]*?) (all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\(", re.MULTILINE
)


def compiled_search(placement: Placement, decode: DecodeConfig, config: ModelConfig = PAIR):
    """Returns a search's inputs and state after `start`, its weights, and its compiled `advance`."""
    model, variables = parameters(config, placement)
    decoder = Decoder(model, decode, placement=placement)
    weights, source = decoder.lay_out(variables), [5, 6, 7, EOS]
    (batch,) = decoder.batches([len(source)] * 8)
    row = Row(source, decode, decoder.max_length(source))
    inputs, settings = decoder.inputs([row] * 8, batch)
    joined = decoder.joined([inputs] * placement.groups)
    inputs, state = decoder.search.start(weights.given, joined, settings=settings)
    lowered = decoder.search.advance.lower(
        weights.laid_out, inputs, state, np.int32(8), np.int32(0), config=settings.config
    )
    return decoder.search, weights, inputs, state, settings, lowered.compile()


def collectives(text: str) -> list[tuple[str, list[int]]]:
    """Returns the kinds of collectives of a compiled program, and the sizes of their results in elements."""
    answer = []
    for types, kind in COLLECTIVE.findall(text):
        shapes = re.findall(r"\w+\[([\d,]*)\]", types)
        answer.append((kind, [int(np.prod([int(n) for n in shape.split(",") if n] or [1])) for shape in shapes]))
    return answer


@pytest.mark.parametrize("beams", [pytest.param(1, marks=SLOW), 4])
def test_groups_exchange_nothing_but_the_number_of_steps(beams: int):
    *_, compiled = compiled_search(placed(8, 1), replace(DECODE, beam_size=beams))
    assert collectives(compiled.as_text()) == [("all-reduce", [1])]


@SLOW
@pytest.mark.parametrize("beams", [1, 4])
def test_devices_of_a_group_exchange_no_weights_and_no_logits(beams: int):
    """Law: no operand has the size of a matrix or of the logits of a row; before the loop neither."""
    config = replace(PAIR, vocab_size=1021, d_model=64)
    *_, compiled = compiled_search(placed(2, 4), replace(DECODE, beam_size=beams), config)
    sizes = [size for _, of_one in collectives(compiled.as_text()) for size in of_one]
    assert sizes and max(sizes) <= 8 * beams * config.d_model


@pytest.mark.parametrize(("data", "tensor"), [pytest.param(8, 1, marks=SLOW), (2, 4)])
@pytest.mark.parametrize("beams", [pytest.param(1, marks=SLOW), 4])
def test_the_cache_keeps_its_sharding_and_the_state_is_donated(data: int, tensor: int, beams: int):
    search, weights, inputs, state, settings, compiled = compiled_search(
        placed(data, tensor), replace(DECODE, beam_size=beams)
    )

    def held(state) -> set[tuple[int, ...]]:
        arrays = jax.tree.leaves(state.cache)
        return {tuple(n // m for n, m in zip(x.shape, x.sharding.shard_shape(x.shape), strict=True)) for x in arrays}

    assert held(state) == {(data, tensor, 1, 1)}
    donated = compiled.memory_analysis().alias_size_in_bytes
    arrays = jax.tree.leaves(state)
    assert donated == sum(np.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in arrays)
    state, _ = search.advance(weights.laid_out, inputs, state, np.int32(8), np.int32(0), config=settings.config)
    assert held(state) == {(data, tensor, 1, 1)}
    _, state = search.resized(inputs, state, np.arange(8 * data), search.capacity(inputs, settings, 40))
    assert held(state) == {(data, tensor, 1, 1)}
