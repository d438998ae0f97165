"""Oracles of beam search: plain Python over full passes, all sequences there are, hand-worked values."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from flaxformer_lite.inference.beam import beam_search
from flaxformer_lite.inference.config import DecodeConfig
from flaxformer_lite.text.special_ids import EOS
from tests.support.quick import quick
from tests.support.reference_search import (
    ALONE,
    BEAMS,
    SMALL,
    SOURCES,
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
    found = answers(decode(beam_search, model, params, SOURCES, settings, 13))
    assert_same(found, [reference_beam(model, params, source, 13, settings) for source in SOURCES])


@pytest.mark.parametrize("config", quick([SMALL, ALONE], ALONE.__eq__), ids=["source", "prompt"])
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
    found = answers(decode(beam_search, model, params, [source], settings, longest, width=3))[0]
    found = [(tokens, score) for tokens, score in found if score > -math.inf]
    assert len(found) == len(expected) == 85
    assert_same([found], [sorted(expected.items(), key=lambda answer: -answer[1])])


def test_answers_by_hand():
    """Oracle: worked by hand for a model with the probabilities 0.3 (end), 0.6 (`4`) and 0.05 (`0`) at every step."""
    model, params = model_of(SMALL)
    end, word, zero = math.log(0.3), math.log(0.6), math.log(0.05)
    # Step 1: the end comes second, so "" is finished; `4`, `0` and another stay open.
    # Step 2: `4` and the end come second, after `4 4`, so "4" is finished. Step 3: so is "4 4", and three are enough.
    found = decode(beam_search, model, constant(params), SOURCES, BEAMS["early"], 13)
    assert_same(answers(found), 5 * [[((), end), ((4,), word + end), ((4, 4), 2 * word + end)]])
    # Where step 1 is the last, the open `4` and `0` are taken as they are; with the end that they lack they count two.
    found = decode(beam_search, model, constant(params), SOURCES, BEAMS["late"], 1, max_new_tokens=13)
    assert_same(answers(found), 5 * [[((4,), word / 2), ((), end), ((0,), zero / 2)]])
