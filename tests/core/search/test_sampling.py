"""Oracles: filters written again as loops in plain Python, frequencies of many draws against their probabilities, and laws."""

import itertools
import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.search.decoder import with_setting_numbers
from flaxformer_lite.core.search.sampling import (
    BLOCK,
    TokenHistory,
    process_logits,
    sample_keys,
    sample_token,
    top_k,
    warp_logits,
)
from flaxformer_lite.core.search.search import SearchInputs
from flaxformer_lite.core.search.settings import DecodeConfig, Sampling
from tests.support.reference_search import reference_process_logits

V = 11
processed_by_program = jax.jit(process_logits, static_argnames="config")
warp = jax.jit(warp_logits, static_argnames="k")
sample = jax.jit(sample_token, static_argnames="k")
SCORES = 2 * np.random.default_rng(0).normal(size=(7, V)).astype(np.float32)


def numbers(configs, count, keys=None):
    """Returns the inputs of a search that hold the numbers of these settings."""
    return with_setting_numbers(SearchInputs(np.zeros((count, 1)), None, None), configs, keys)


def warped(scores, *samplings):
    """Returns the scores that tokens are drawn by: under one setting, or one for each row."""
    configs = [DecodeConfig(sampling=sampling) for sampling in samplings * (len(scores) // len(samplings))]
    keys = jax.random.split(jax.random.key(0), len(scores))
    return warp(jnp.asarray(scores), numbers(configs, len(scores), keys).sampling, k=samplings[0].top_k)


def drawn(scores, sampling, keys, step):
    """Returns a token for each row, by settings as `Decoder` passes them: none for a temperature of 0."""
    config = DecodeConfig(sampling=sampling)
    if config.program.sampling is None:
        return sample(jnp.asarray(scores), None, 0, jnp.int32(step))
    rows = numbers([config] * len(scores), len(scores), keys).sampling
    return sample(jnp.asarray(scores), rows, sampling.top_k, jnp.int32(step))


def processed(scores, history, step, last, config):
    found = numbers([config] * len(scores), len(scores))
    of_rows = (
        None if x is None else x.reshape(-1, *[1] * (scores.ndim - 2)) for x in (found.repetition_penalty, found.first)
    )
    return processed_by_program(scores, history, step, last, config.program, *of_rows)


def reference_filtered(row, sampling):
    """One row, token by token. No two scores are equal."""
    row = np.float64(row) / sampling.temperature
    order = sorted(range(len(row)), key=lambda i: -row[i])
    kept = set(order[: sampling.top_k or len(row)])
    for_p, total = set(), 0.0
    weight = sum(math.exp(row[i]) for i in kept)
    for i in order:
        if i in kept and (total < sampling.top_p or sampling.top_p == 1):
            for_p.add(i)
            total += math.exp(row[i]) / weight
    best = math.exp(row[order[0]])
    return [row[i] if i in for_p and math.exp(row[i]) >= sampling.min_p * best else -math.inf for i in range(len(row))]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.7),
        Sampling(top_k=4),
        Sampling(top_k=1),
        Sampling(top_k=V + 5),
        Sampling(top_p=0.6),
        Sampling(top_p=1e-9),
        Sampling(min_p=0.2),
        Sampling(min_p=1.0),
        Sampling(temperature=1.8, top_k=6, top_p=0.8, min_p=0.1),
        Sampling(temperature=0.4, top_k=3, top_p=0.9, min_p=0.01),
    ],
    ids=str,
)
def test_filters_equal_loops(sampling):
    """Oracle: the loops above; a filter that keeps all tokens changes no score."""
    found = np.asarray(warped(SCORES, sampling))
    np.testing.assert_allclose(found, [reference_filtered(row, sampling) for row in SCORES], rtol=1e-6)
    if sampling == Sampling():
        np.testing.assert_array_equal(found, SCORES)
    assert (found.max(-1) > -np.inf).all()


def fewest(row, p):
    """Returns True for the tokens that top-p keeps, by a stable sort in float64, and a p in the middle of the last one's share."""
    weights = np.exp(np.float64(row) - row.max())
    order = np.argsort(-row, kind="stable")
    sums = np.cumsum(weights[order]) / weights.sum()
    last = int(np.searchsorted(sums, p))
    kept = np.isin(np.arange(len(row)), order[: last + 1])
    return kept, (sums[last] + (sums[last - 1] if last else 0)) / 2


@pytest.mark.parametrize("p", [1e-6, 0.3, 0.9, 0.999])
def test_top_p_keeps_the_fewest_and_of_equal_scores_the_lowest_ids(p):
    """Oracle: a stable sort in float64; zeros of either sign are equal."""
    rng = np.random.default_rng(1)
    rows = [
        rng.integers(-12, 6, 4_000) / 4,
        np.where(rng.random(4_000) < 0.9, -np.inf, rng.integers(-3, 3, 4_000)),
        np.where(np.arange(4_000) % 2, 0.0, -0.0),
        rng.standard_normal(4_000) * 1e4,
        np.zeros(4_000),
    ]
    scores = np.stack(rows).astype(np.float32)
    kept, middles = zip(*(fewest(row, p) for row in scores), strict=True)
    found = warped(scores, *(Sampling(top_p=middle) for middle in middles))
    np.testing.assert_array_equal(found, np.where(kept, scores, -np.inf))


@pytest.mark.parametrize(
    ("size", "p", "kept"), [(200, 0.05, 10), (1_000, 0.3, 300), (10, 0.9, 9), (50_257, 0.5, 25_129)]
)
def test_a_top_p_that_equal_scores_sum_to(size, p, kept):
    """By hand: a sum that is p but for its rounding is enough."""
    found = np.asarray(warped(np.full((1, size), -2.5, np.float32), Sampling(top_p=p)))
    assert np.flatnonzero(found > -np.inf).tolist() == list(range(kept))


def test_filters_at_their_edges_change_nothing():
    """Law: a top_p of 1 keeps tokens too whose probability is rounded to 0, beside rows with another; so do a top_k of the whole
    vocabulary, a min_p of 0, and a temperature of 1. A token less is dropped, and the smallest p and k keep the best alone."""
    scores = np.stack([1e4 * SCORES[0], SCORES[1], SCORES[2]])
    kept = warped(scores, Sampling(top_p=1.0, top_k=V), Sampling(top_p=1e-38, top_k=V), Sampling(top_p=0.999, top_k=V))
    np.testing.assert_array_equal(kept[0], scores[0])
    assert (kept > -np.inf).sum(-1).tolist() == [V, 1, V]
    for sampling in (Sampling(top_k=V), Sampling(top_k=V + 1), Sampling(min_p=0.0), Sampling(temperature=1.0)):
        np.testing.assert_array_equal(warped(scores, sampling), scores)
    assert (warped(scores, Sampling(top_k=V - 1)) > -np.inf).sum(-1).tolist() == 3 * [V - 1]
    assert (warped(scores, Sampling(top_k=1)) > -np.inf).sum(-1).tolist() == 3 * [1]


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 2}], ids=str)
def test_temperatures_at_the_edge_of_float32(filters):
    """Law: the smallest takes the best token, the largest any that is left; a token of no probability stays so."""
    scores = np.array([[5, 7, 6, -np.inf], [-5, -3, -4, -np.inf]], np.float32)
    keys = sample_keys(jnp.int32(1), jnp.arange(200), jnp.zeros(200, jnp.int32))
    for row in scores:
        rows = np.broadcast_to(row, (200, 4))
        assert set(drawn(rows, Sampling(temperature=1e-38, **filters), keys, 0).tolist()) == {1}
        left = {1, 2} if filters.keys() & {"top_p", "top_k"} else {0, 1, 2}
        assert set(drawn(rows, Sampling(temperature=3e38, **filters), keys, 0).tolist()) == left


def test_rows_have_settings_of_their_own():
    """Law: a row is filtered by its own numbers, as it would be alone."""
    samplings = [Sampling(), Sampling(temperature=0.7), Sampling(top_p=0.6), Sampling(min_p=0.2, temperature=1.8)]
    found = warped(SCORES[:4], *samplings)
    for i, sampling in enumerate(samplings):
        np.testing.assert_array_equal(found[i], warped(SCORES[:4], sampling)[i])


@pytest.mark.slow
def test_a_draw_is_independent_of_the_settings_of_other_rows():
    """Law: a row draws the same token beside rows of other settings as beside rows of its own.

    All sums of logit and noise are equal but for their rounding, so a sum that is rounded otherwise draws another token. The
    compiler optimizes as for users: the tests' own makes no sum and product one instruction.
    """
    filters = ({}, {"top_p": 0.4}, {"min_p": 0.001}, {"top_p": 0.9, "min_p": 0.2})
    kinds = [DecodeConfig(sampling=Sampling(temperature=t, **f)) for t in (0.3, 0.7, 1.9) for f in filters]
    rows, step = 16 * len(kinds), jnp.int32(2)
    options = {"xla_backend_optimization_level": 1}
    draw = jax.jit(lambda scores, sampling: sample_token(scores, sampling, 0, step), compiler_options=options)
    keys = sample_keys(jnp.arange(rows), jnp.arange(rows), jnp.zeros(rows, jnp.int32))
    noise = jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, step), (V,)))(keys)
    each = numbers(kinds * 16, rows, keys).sampling
    scores = (3 - noise) * each.temperature[:, None]
    together = np.asarray(draw(scores, each)).reshape(16, -1)
    for i, config in enumerate(kinds):
        alone = np.asarray(draw(scores, numbers([config] * rows, rows, keys).sampling)).reshape(16, -1)
        np.testing.assert_array_equal(together[:, i], alone[:, i], str(config.sampling))


def test_equal_scores_at_the_edge_of_a_filter():
    """Oracle: Hugging Face's TopKLogitsWarper, MinPLogitsWarper keep all of them, TopPLogitsWarper the fewest."""
    scores = jnp.log(jnp.asarray([[0.1, 0.3, 0.3, 0.1, 0.2]]))
    for sampling, kept in (
        (Sampling(top_k=4), [0, 1, 2, 3, 4]),
        (Sampling(top_k=1), [1, 2]),
        (Sampling(min_p=0.999), [1, 2]),
        (Sampling(top_p=0.2), [1]),
        (Sampling(top_p=0.6), [1, 2]),
        (Sampling(top_p=0.85), [0, 1, 2, 4]),
    ):
        assert np.flatnonzero(warped(scores, sampling)[0] > -jnp.inf).tolist() == kept


def test_no_draw_sorts_the_vocabulary():
    """Law: no program has a sort of rows, which takes a CPU 10 times as long as the filters and the draw."""
    sampling = numbers([DecodeConfig(sampling=Sampling(top_k=10))], 8, jax.random.split(jax.random.key(0), 8)).sampling
    compiled = sample.lower(jnp.zeros((8, 4_000)), sampling, k=10, step=jnp.int32(0)).compile().as_text()
    assert "f32[8,4000]" in compiled and not re.search(r"f32\[8,4000\]\S* sort\(", compiled)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.6, top_p=0.9), Sampling(top_k=3)], ids=str)
def test_draws_have_their_probabilities(sampling):
    """Oracle: chi-square of 20,000 draws against the softmax of the loops; filtered tokens are never drawn."""
    draws, row = 20_000, SCORES[0, :6]
    keys = sample_keys(jnp.int32(5), jnp.arange(draws), jnp.zeros(draws, jnp.int32))
    tokens = drawn(jnp.broadcast_to(row, (draws, len(row))), sampling, keys, 3)
    counts = np.bincount(tokens, minlength=len(row))
    weights = np.exp(reference_filtered(row, sampling))
    expected = draws * weights / weights.sum()
    assert (counts[expected == 0] == 0).all()
    there = expected > 0
    chi_square = ((counts - expected)[there] ** 2 / expected[there]).sum()
    assert chi_square < 25, "5 degrees of freedom at most exceed this once in 7,000 times"


def test_temperature_0_takes_the_best():
    """Law: temperature 0 takes the best token, the lowest id of equals, whatever the other filters."""
    scores = np.concatenate([SCORES, np.zeros((1, V), np.float32)])
    keys = sample_keys(jnp.int32(1), jnp.arange(8), jnp.arange(8))
    for sampling in (None, Sampling(temperature=0), Sampling(temperature=0, top_p=0.3)):
        assert drawn(scores, sampling, keys, 0).tolist() == scores.argmax(-1).tolist()


def test_keys_depend_on_seed_row_and_sample_only():
    """Law: a row has its key in any batch; another seed, row, sample or step has another draw."""
    rows, samples = jnp.asarray([4, 0, 4, 9]), jnp.asarray([0, 0, 1, 0])
    keys = sample_keys(jnp.int32(3), rows, samples)
    alone = [sample_keys(jnp.int32(3), rows[i : i + 1], samples[i : i + 1])[0] for i in range(4)]
    data = [
        tuple(jax.random.key_data(key).tolist()) for key in (*keys, *alone, sample_keys(jnp.int32(4), rows, samples)[0])
    ]
    assert data[:4] == data[4:8] and len(set(data)) == 5
    scores = jnp.zeros((4, 10_007))
    at = [drawn(scores, Sampling(), keys, step).tolist() for step in (0, 1, 0)]
    assert at[0] == at[2] and not set(at[0]) & set(at[1]) and len(set(at[0])) == 4


# Rules of the settings   -----------------------------------------------------------------------------------------------


SETTINGS = [
    DecodeConfig(),
    DecodeConfig(repetition_penalty=1.7),
    DecodeConfig(repetition_penalty=0.6),
    DecodeConfig(no_repeat_ngram=1),
    DecodeConfig(no_repeat_ngram=2),
    DecodeConfig(no_repeat_ngram=3, repetition_penalty=1.2),
    DecodeConfig(no_repeat_ngram=9),
    DecodeConfig(no_repeat_ngram=12),
    DecodeConfig(suppress_ids=(1, 7), min_new_tokens=4, eos_ids=(3, 9)),
    DecodeConfig(forced_bos_id=6, forced_eos_id=3, suppress_ids=(6,)),
    DecodeConfig(forced_bos_id=6),
    DecodeConfig(forced_eos_id=0),
    DecodeConfig(renormalize=True, forced_eos_id=3, suppress_ids=(1, 7)),
    DecodeConfig(eos_ids=(), min_new_tokens=4),
]


@pytest.mark.parametrize("config", SETTINGS, ids=range(len(SETTINGS)))
def test_processed_logits_equal_plain_python(config):
    """Oracle: plain Python, on tokens of few kinds, so that they repeat; tokens before and after a row's own do not count."""
    generator = np.random.default_rng(2)
    width, start = 9, np.array([0, 2, 5, 3, 0, 6, 1])
    changed = 0
    for position, step in ((6, 0), (6, 3), (7, 4)):
        tokens, last = generator.integers(0, 3, (7, width)), np.arange(7) % 2 == 0
        history = TokenHistory(tokens, start, jnp.int32(position))
        found = np.asarray(processed(SCORES, history, jnp.int32(step), last, config=config))
        rows = [tokens[i, start[i] : position + 1].tolist() for i in range(7)]
        expected = [reference_process_logits(SCORES[i], rows[i], step, last[i], config) for i in range(7)]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        changed += (found != SCORES).sum()
    idle = config in (DecodeConfig(), SETTINGS[-1]) or config.no_repeat_ngram >= 9
    assert (changed == 0) == idle


def test_beams_are_processed_alike():
    """Law: a row of beams is processed as each beam would be alone."""
    config = replace(SETTINGS[5], forced_eos_id=3)
    tokens = np.random.default_rng(3).integers(0, 3, (3, 2, 9))
    start, last, scores = np.array([[1], [4], [0]]), np.array([[True], [False], [False]]), SCORES[:6].reshape(3, 2, V)
    found = processed(scores, TokenHistory(tokens, start, jnp.int32(7)), jnp.int32(2), last, config=config)
    for b, k in itertools.product(range(3), range(2)):
        alone = TokenHistory(tokens[b, k][None], start[b], jnp.int32(7))
        expected = processed(scores[b, k][None], alone, jnp.int32(2), last[b], config=config)
        np.testing.assert_array_equal(found[b, k], expected[0])


@pytest.mark.parametrize("width", [7, 40 * BLOCK, 41 * BLOCK + 5])
def test_the_largest_numbers_and_their_places(width):
    """Oracle: `jax.lax.top_k`, bit for bit, with ties, infinities and rows that are no whole number of blocks."""
    rng = np.random.default_rng(width)
    rows = [
        rng.standard_normal(width),
        rng.integers(0, 3, width),  # ties inside blocks and between them
        np.where(np.arange(width) == width - 1, 1.0, -np.inf),  # the last number of the last block
        np.full(width, -np.inf),
        np.where(rng.random(width) < 0.1, np.inf, 0.0),
    ]
    x = np.stack(rows).astype(np.float32)
    found, expected = jax.jit(top_k, static_argnums=1)(x, 5), jax.lax.top_k(x, 5)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
