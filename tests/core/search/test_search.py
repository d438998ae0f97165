"""Laws of greedy and beam search alike. Oracle: the same searches in plain Python over full passes of the model."""

import math
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import SlidingWindow, Transformer
from flaxformer_lite.core.model.contexts import CachedKeyValue, DecodeCache, LayerCache
from flaxformer_lite.core.model.inputs import example_inputs
from flaxformer_lite.core.parallel import make_mesh, replicated
from flaxformer_lite.core.search.beam import BEAM_SEARCH
from flaxformer_lite.core.search.greedy import GREEDY_SEARCH
from flaxformer_lite.core.search.search import Decoded, Method, SearchInputs, SearchSettings, finish, prefill
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.special_ids import EOS
from tests.support.quick import quick
from tests.support.reference_search import (
    ALONE,
    BEAMS,
    LIKE_THEIRS,
    OTHER,
    SMALL,
    SOURCES,
    VOCAB,
    WINDOW,
    answers,
    assert_same,
    constant,
    decode,
    model_of,
    reference_beam,
    reference_greedy,
    search_whole,
)

each_search = pytest.mark.parametrize(
    "search", quick([GREEDY_SEARCH, BEAM_SEARCH], lambda search: search is BEAM_SEARCH)
)

LONG = {
    "greedy": (GREEDY_SEARCH, reference_greedy, DecodeConfig(length_penalty="gnmt", alpha=0.6)),
    "beam": (
        BEAM_SEARCH,
        reference_beam,
        DecodeConfig(beam_size=5, num_hypotheses=5, length_penalty="gnmt", alpha=0.6),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_long_answers_equal_uncached_reference(name):
    """Oracle: the same in float64, to 1e-10, for a model whose answers make the cache grow."""
    search, reference, settings = LONG[name]
    with jax.enable_x64(True):
        model, params = model_of(OTHER, seed=0)
        sources = SOURCES[2::2]
        decoded = decode(search, model, params, sources, settings, 37)
        assert decoded.scores.dtype == np.float64 and decoded.tokens.dtype == decoded.lengths.dtype == np.int32
        expected = [reference(model, params, source, 37, settings) for source in sources]
        assert_same(answers(decoded), expected, tolerance=1e-10)
        assert decoded.lengths.min() < 16 < decoded.lengths.max(), "16 is all that the first stage of the cache holds"


PROCESSED = {
    "source": (SMALL, replace(LIKE_THEIRS, forced_bos_id=8, forced_eos_id=EOS)),
    "prompt": (WINDOW, LIKE_THEIRS),
    "prompt_never": (WINDOW, replace(LIKE_THEIRS, early_stopping="never", no_repeat_ngram=3)),
    "prompt_early": (WINDOW, replace(LIKE_THEIRS, early_stopping=True, alpha=-0.5, no_repeat_ngram=3)),
}


RULES = [(name, beam_size) for name in PROCESSED for beam_size in (1, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule[0]}-{rule[1]}")
def test_rules_for_answers_equal_uncached_reference(rule):
    """Oracle: the same search in plain Python over full passes and lists of tokens, to 1e-5; prompts are longer than the window."""
    (config, settings), beam_size = PROCESSED[rule[0]], rule[1]
    with jax.enable_x64(config is WINDOW):
        model, params = model_of(config, seed=4 if config is SMALL else 1)
        settings = replace(settings, beam_size=beam_size, num_hypotheses=beam_size)
        search, reference = (GREEDY_SEARCH, reference_greedy) if beam_size == 1 else (BEAM_SEARCH, reference_beam)
        found = answers(decode(search, model, params, SOURCES, settings, 9))
        assert_same(found, [reference(model, params, source, 9, settings) for source in SOURCES])
        assert len({len(row[0][0]) for row in found}) > 1


@each_search
def test_without_end_ids_answers_have_their_maximum_length(search):
    """Oracle: the lengths, for a model whose most probable token is the end."""
    model, params = model_of(SMALL)
    settings = replace(LIKE_THEIRS, eos_ids=(), beam_size=1 if search is GREEDY_SEARCH else 3)
    likely_end = [0.9 if i == EOS else 0.01 for i in range(VOCAB)]
    found = decode(search, model, constant(params, likely_end), SOURCES, replace(settings, no_repeat_ngram=0), 5)
    assert found.lengths.tolist() == 5 * [[5]] and (np.asarray(found.tokens)[:, 0, :5] == EOS).all()


@pytest.mark.slow
@each_search
def test_left_padding_changes_nothing(search):
    """Law: prompts are answered alike in rows of any width, also where the cache keeps a window only; in float64, to 1e-10."""
    settings = DecodeConfig() if search is GREEDY_SEARCH else BEAMS["late"]
    with jax.enable_x64(True):
        model, params = model_of(WINDOW, seed=1)
        found = [answers(decode(search, model, params, SOURCES, settings, 13, width=width)) for width in (7, 12)]
        assert_same(*found, tolerance=1e-10)


def test_cache_is_as_wide_as_the_window():
    """Oracle: the shapes; a cache has a slot for every token if a layer has no window."""
    for config, capacity in (
        (WINDOW, 3),
        (ALONE, 50),
        (replace(ALONE, sliding_window=SlidingWindow(size=3, layers=(1,))), 50),
    ):
        with jax.enable_x64(config is WINDOW):
            model, params = model_of(config)
            cache = model.apply(params, None, 50, 2, method="start_cache")
        assert {(x.shape[0], x.shape[2]) for layer in cache for x in layer.own} == {(2, capacity)}
        assert len(cache) == 2


@each_search
def test_no_step_cuts_a_layer_from_the_array_of_all(search):
    """Oracle: the shapes that the loops read; on a CPU a step would copy each layer's parameters."""
    model, params = model_of(SMALL)
    inputs = SearchInputs(np.zeros((5, 7), np.int32), np.ones((5, 7), bool), np.full(5, 13))
    settings = SearchSettings(DecodeConfig(), 13)
    program = jax.make_jaxpr(search_whole, static_argnums=(0, 1, 4))(search, (model,), (params,), inputs, settings)
    read = {x.aval.shape for loop in program.eqns if loop.primitive.name == "while" for x in loop.invars}
    of_all = {x.shape for x in jax.tree.leaves(params["params"]["decoder"]["layers"])}
    assert {shape[1:] for shape in of_all} <= read and not of_all & read


@each_search
def test_neighbours_change_nothing(search):
    """Law: an answer is the same beside other sentences with other maximum lengths as beside empty rows."""
    model, params = model_of(SMALL)
    settings = DecodeConfig() if search is GREEDY_SEARCH else BEAMS["late"]
    limits = np.array([11, 2, 5, 1, 8], np.int32)
    together = decode(search, model, params, SOURCES, settings, limits, max_new_tokens=13)
    assert (together.lengths <= limits[:, None]).all()
    for i, source in enumerate(SOURCES):
        sources = [[EOS]] * 5
        sources[-i] = source
        alone = decode(
            search, model, params, sources, settings, np.where(np.arange(5) == -i % 5, limits[i], 0), max_new_tokens=13
        )
        assert_same([answers(alone)[-i]], [answers(together)[i]])
        assert all(score in (0, -math.inf) for score in np.delete(alone.scores, -i, 0).flat), "an empty row was active"


@pytest.mark.slow
@each_search
def test_parameters_on_several_devices_answer_alike(search):
    """Law: parameters replicated over several devices, as in a loaded run, give the answers of one device."""
    model, params = model_of(SMALL)
    settings = DecodeConfig() if search is GREEDY_SEARCH else BEAMS["late"]
    everywhere = jax.device_put(params, replicated(make_mesh()))
    expected, found = (decode(search, model, p, SOURCES, settings, 13) for p in (params, everywhere))
    assert_same(answers(found), answers(expected))


@each_search
def test_weights_of_nan_still_answer(search):
    """Law: every sentence has an answer, also from weights that are NaN."""
    model, params = model_of(SMALL)
    settings = DecodeConfig() if search is GREEDY_SEARCH else BEAMS["late"]
    params = jax.tree.map(lambda p: p * np.nan, params)
    decoded = decode(search, model, params, SOURCES, settings, 13)
    assert (decoded.scores[:, 0] != -math.inf).all()


class Counter(NamedTuple):
    """A state that only counts its steps, with a cache of one slot a step."""

    step: jax.Array
    active: jax.Array
    cache: DecodeCache


def counter() -> Counter:
    cache = (LayerCache(own=CachedKeyValue(*(jnp.zeros((1, 1, 1, 1)) for _ in range(2))), memory=None),)
    return Counter(jnp.int32(0), jnp.ones(1, bool), cache)


def counted(step, state, most, room=lambda n: n):
    """Answers of a search that takes these steps: as long as its cache, and of so many tokens as it took steps."""

    def answers(inputs, config, state):
        tokens = jnp.zeros((1, 1, state.cache[0].room), jnp.int32)
        return Decoded(tokens, state.step[None, None], jnp.zeros((1, 1)))

    method = Method(
        start=lambda *_: None,
        step=lambda models, variables, inputs, config, state: step(state),
        answers=answers,
        room=lambda model, config, prefill_length, steps: room(steps),
    )
    model, params = model_of(SMALL)
    params = jax.tree.map(jnp.asarray, params)
    inputs = SearchInputs(jnp.zeros((1, 1), jnp.int32), None, jnp.ones(1, jnp.int32))
    return finish(method, (model,), (params,), inputs, state, SearchSettings(DecodeConfig(), most))


@pytest.mark.parametrize(("ends", "steps"), [(5, 5), (20, 20), (99, 40)])
def test_a_search_ends_with_its_last_row_or_at_the_maximum(ends, steps):
    def step(state):
        return state._replace(step=state.step + 1, active=state.active & (state.step + 1 < ends))

    assert jax.jit(lambda state: counted(step, state, 40))(counter()).lengths == steps


@pytest.mark.parametrize(
    ("maximum", "stages"), [(31, [31]), (32, [16, 32]), (200, [16, 32, 64, 200]), (2048, [2**n for n in range(4, 12)])]
)
def test_the_cache_grows_in_stages_of_twice_the_length(maximum, stages):
    """Law: a stage for each power of two from 16 on whose double is not above the maximum; then the maximum."""
    asked = []
    state = counter()

    def run(state):
        return counted(lambda s: s._replace(step=s.step + 1), state, maximum, lambda n: asked.append(n) or n)

    found = jax.eval_shape(run, state)
    assert asked == stages
    assert found.tokens.shape[-1] == maximum


@pytest.mark.parametrize(
    ("length", "attention", "read"), [(4, "causal", [3]), (1, "causal", []), (4, "full", [4]), (1, "full", [])]
)
def test_all_of_a_prompt_but_its_last_token_is_in_the_cache(monkeypatch, length, attention, read):
    """By hand: the last token of a prompt is read too where the others attend to it, but gets no slot."""
    model, shapes = Transformer(ALONE), []
    original = Transformer.decode_step

    def recorded(self, tokens, *rest, **options):
        shapes.append(tokens.shape[1])
        return original(self, tokens, *rest, **options)

    params = jax.eval_shape(model.init, jax.random.key(0), example_inputs(ALONE))
    monkeypatch.setattr(Transformer, "decode_step", recorded)
    batch = SearchInputs(jnp.ones((2, length), jnp.int32), jnp.ones((2, length), bool), jnp.ones(2, jnp.int32))
    settings = SearchSettings(DecodeConfig(), 3, attention)
    inputs, cache = jax.eval_shape(lambda params: prefill(model, params, batch, settings), params)
    assert shapes == read
    assert cache[0].room == inputs.tokens.shape[1] - 1 == length - 1
