"""Oracles of beam search: plain Python over full passes, all sequences there are, hand-worked values."""

import itertools
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.search.beam import BEAM_SEARCH, cache_positions, log_mean_probs
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.special_ids import EOS
from tests.support import reference_search
from tests.support.limits import assert_close
from tests.support.reference_search import (
    ALONE,
    BEAMS,
    PROBABILITIES,
    SMALL,
    SOURCES,
    VOCAB,
    answers,
    assert_same,
    constant,
    decode,
    log_probs,
    model_of,
    reference_beam,
    reference_score,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", BEAMS)
def test_beam_search_equals_uncached_reference(name):
    """Oracle: the algorithm in plain Python over full passes; tokens equal, scores to 1e-5."""
    (model, params), settings = model_of(SMALL), BEAMS[name]
    found = answers(decode(BEAM_SEARCH, model, params, SOURCES, settings, 13))
    assert_same(found, [reference_beam(model, params, source, 13, settings) for source in SOURCES])


@pytest.mark.slow
@pytest.mark.parametrize("config", [SMALL, ALONE], ids=["source", "prompt"])
def test_wide_beam_equals_exhaustive_search(config):
    """Oracle: all 85 answers over five ids of at most three tokens, scored by a full pass and the printed formula."""
    model, params = model_of(replace(config, vocab_size=5))
    source, longest = [4, 1, EOS], 3
    settings = DecodeConfig(beam_size=89, num_hypotheses=89, alpha=0.7)
    cut = list(itertools.product([w for w in range(5) if w != EOS], repeat=longest))
    rows = log_probs(model, params, source, [answer[:-1] for answer in cut], longest)
    expected = {}
    for answer, row in zip(cut, rows, strict=True):
        sums = np.cumsum([0, *(row[i, token] for i, token in enumerate(answer))])
        expected[answer] = reference_score(sums[-1], longest, settings)
        for n in range(longest):
            expected[answer[:n]] = reference_score(sums[n] + row[n, EOS], n, settings)
    found = answers(decode(BEAM_SEARCH, model, params, [source], settings, longest, width=3))[0]
    found = [(tokens, score) for tokens, score in found if score > -math.inf]
    assert len(found) == len(expected) == 85
    assert_same([found], [sorted(expected.items(), key=lambda answer: -answer[1])])


@pytest.mark.slow
def test_one_token_may_be_all():
    """By hand, for the same model as below: the end has a probability of 0.3, `4` of 0.6."""
    model, params = model_of(SMALL)
    found = decode(BEAM_SEARCH, model, constant(params), SOURCES, DecodeConfig(beam_size=2, alpha=0.0), 1)
    assert_same(answers(found), 5 * [[((4,), math.log(0.6))]])


@pytest.mark.slow
def test_beams_beyond_the_possible_answers_give_no_answer():
    """By hand, for the same model: after one token there are as many answers as ids, the end among them; an end id counts once."""
    model, params = model_of(SMALL)
    config = DecodeConfig(beam_size=VOCAB + 4, num_hypotheses=VOCAB + 4, finish_at_limit=True, eos_ids=12 * (EOS,))
    scores = np.asarray(decode(BEAM_SEARCH, model, constant(params), SOURCES[:2], config, 1).scores)
    expected = [*sorted(np.log(PROBABILITIES), reverse=True), *4 * [-math.inf]]
    np.testing.assert_allclose(scores, 2 * [expected], atol=1e-5)


def test_the_positions_of_a_cache_by_hand():
    """Two steps of two beams after three positions; the last two of a prompt of three are in slots for a window."""
    assert cache_positions(3, 0, 2, 2).tolist() == [3, 3, 4, 4]
    assert cache_positions(3, 2, 2, 2).tolist() == [2, 1, 3, 3, 4, 4]


def test_answers_by_hand():
    """Oracle: worked by hand for a model with the probabilities 0.3 (end), 0.6 (`4`) and 0.05 (`0`) at every step."""
    model, params = model_of(SMALL)
    end, word = math.log(0.3), math.log(0.6)
    # Step 1: the end comes second, so "" is finished; `4`, `0` and another stay open.
    # Step 2: `4` and the end come second, after `4 4`, so "4" is finished. Step 3: so is "4 4", and three are enough.
    found = decode(BEAM_SEARCH, model, constant(params), SOURCES, BEAMS["early"], 13)
    assert_same(answers(found), 5 * [[((), end), ((4,), word + end), ((4, 4), 2 * word + end)]])


@pytest.mark.slow
def test_answers_at_the_limit_by_hand():
    """Oracle: worked by hand for the same model, where step 1 is the last."""
    model, params = model_of(SMALL)
    end, word, zero = math.log(0.3), math.log(0.6), math.log(0.05)
    # The open `4` and `0` are taken as they are; with the end that they lack they count two.
    found = decode(BEAM_SEARCH, model, constant(params), SOURCES, BEAMS["late"], 1, max_new_tokens=13)
    assert_same(answers(found), 5 * [[((4,), word / 2), ((), end), ((0,), zero / 2)]])


def test_the_mean_is_of_probabilities_not_of_their_logarithms():
    """Oracle: by hand. A single model's log-probabilities are passed on as they are."""
    first, second = np.float32([0.5, 0.25, 0.25]), np.float32([0.1, 0.8, 0.1])
    logs = [jnp.log(x)[None, None] for x in (first, second)]
    assert_close(np.exp(log_mean_probs(logs))[0, 0], [0.3, 0.525, 0.175])
    assert log_mean_probs(logs[:1]) is logs[0]


@pytest.mark.slow
def test_an_ensemble_searches_with_the_mean_of_all_probabilities(monkeypatch: pytest.MonkeyPatch):
    """Oracle: the algorithm in plain Python, with the mean of two models' full passes; the models differ in depth."""
    model, params = model_of(SMALL)
    other, other_params = model_of(replace(SMALL, num_decoder_layers=1), seed=5)

    def log_mean(_, __, *prefixes):
        return np.logaddexp(log_probs(model, params, *prefixes), log_probs(other, other_params, *prefixes)) - np.log(2)

    more = [(other, jax.tree.map(jnp.asarray, other_params))]
    found = answers(decode(BEAM_SEARCH, model, params, SOURCES, BEAMS["early"], 13, more=more))
    alone = answers(decode(BEAM_SEARCH, model, params, SOURCES, BEAMS["early"], 13))
    assert [row[0][0] for row in found] != [row[0][0] for row in alone]
    monkeypatch.setattr(reference_search, "log_probs", log_mean)
    assert_same(found, [reference_beam(model, params, source, 13, BEAMS["early"]) for source in SOURCES])
