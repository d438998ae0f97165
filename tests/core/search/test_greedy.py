"""Laws of greedy search."""

import math

import numpy as np
import pytest

from flaxformer_lite.core.search.beam import BEAM_SEARCH
from flaxformer_lite.core.search.greedy import GREEDY_SEARCH
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.special_ids import BOS, EOS
from tests.support.reference_search import (
    PROBABILITIES,
    SMALL,
    SOURCES,
    VOCAB,
    answers,
    assert_same,
    constant,
    decode,
    model_of,
)


@pytest.mark.slow
def test_beam_of_one_is_greedy():
    """Law: one beam that stops at its first end is greedy search, scores included."""
    model, params = model_of(SMALL)
    generator = np.random.default_rng(1)
    lengths = set()
    for start in range(0, 55, 5):  # five at a time, so that one compilation serves the tests below too
        sources = [[*generator.integers(4, VOCAB, 1 + i % 6), EOS] for i in range(start, start + 5)]
        found = [decode(search, model, params, sources, DecodeConfig(), 13) for search in (GREEDY_SEARCH, BEAM_SEARCH)]
        np.testing.assert_array_equal(found[0].tokens, found[1].tokens)
        np.testing.assert_array_equal(found[0].lengths, found[1].lengths)
        np.testing.assert_allclose(found[0].scores, found[1].scores, rtol=1e-5, atol=1e-5)
        lengths |= set(found[0].lengths[:, 0].tolist())
    assert len(lengths) > 2, "all answers are of one length: nothing was compared"


def test_an_answer_ends_where_the_rules_leave_no_token():
    """By hand: with no token twice, and no end, an answer has all others, most probable first; the score counts a missing end."""
    model, params = model_of(SMALL)
    config = DecodeConfig(no_repeat_ngram=1, min_new_tokens=30)
    others = sorted((i for i in range(VOCAB) if i not in (BOS, EOS)), key=lambda i: -PROBABILITIES[i])
    score = sum(math.log(PROBABILITIES[i]) for i in others) / (len(others) + 1)
    found = decode(GREEDY_SEARCH, model, constant(params), SOURCES, config, 15)
    assert_same(answers(found), 5 * [[(tuple(others), score)]])
