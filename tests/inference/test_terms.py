"""Laws of answers with terms and beginnings: each has all of them, and sources without any are answered as before."""

import numpy as np
import pytest

from flaxformer_lite.inference.config import DecodeConfig
from flaxformer_lite.inference.decoder import Decoder
from flaxformer_lite.inference.terms import Forced
from flaxformer_lite.text.special_ids import EOS
from flaxformer_lite.text.terms import NeededTokens
from tests.support.reference_search import SMALL, VOCAB, model_of

GOING_ON = np.isin(np.arange(VOCAB), [1, 5, 8, 9, 10])
"""Ids that go on with the word before them: no term begins with one."""


def drawn(generator: np.random.Generator, terms: int) -> Forced:
    """Returns tokens that an answer must have: terms that may be parts of each other, some of them twice."""
    beginning = tuple(generator.integers(4, VOCAB, generator.integers(0, 3)).tolist())
    found = [
        NeededTokens(
            (int(generator.choice([4, 6, 7])), *generator.choice([4, 5, 6, 9], generator.integers(0, 3)).tolist()),
            int(generator.integers(1, 3)),
            bool(generator.integers(2)),
        )
        for _ in range(terms)
    ]
    return Forced(tuple({term.ids: term for term in found}.values()), beginning)


def times(tokens: list[int], term: NeededTokens) -> int:
    """Returns how often an answer has a term, as whole words where it must."""
    ends = [i + len(term.ids) for i in range(len(tokens)) if tuple(tokens[i : i + len(term.ids)]) == term.ids]
    return sum(not (term.whole and end < len(tokens) and GOING_ON[tokens[end]]) for end in ends)


@pytest.mark.slow
def test_every_answer_has_its_terms_and_its_beginning():
    """Oracle: a count over the tokens of the answer. Some maximum lengths leave room for the terms alone."""
    generator, (model, params) = np.random.default_rng(11), model_of(SMALL)
    decoder = Decoder(model, DecodeConfig(beam_size=3, num_hypotheses=2, max_new_tokens=24))
    sources = [[*generator.integers(4, VOCAB, 1 + n % 6).tolist(), EOS] for n in range(48)]
    forced = [drawn(generator, (0, 3)[n > 15]) for n in range(48)]
    limits = [min(24, one.length + 1 + (0, 1, 30)[n % 3]) for n, one in enumerate(forced)]
    forced = [one if one.length < limit else Forced() for one, limit in zip(forced, limits, strict=True)]
    found = decoder.generate(params, sources, forced=forced, limits=limits, going_on=GOING_ON)
    for one, answers, limit in zip(forced, found, limits, strict=True):
        for tokens, score in answers:
            assert np.isfinite(score) and len(tokens) <= limit
            assert tuple(tokens[: len(one.beginning)]) == one.beginning
            assert all(times(tokens, term) >= term.times for term in one.terms), (tokens, one)
    assert sum(len(one.terms) for one in forced) > 60, "few terms were drawn"
    free = [n for n, one in enumerate(forced) if one == Forced()]
    alone = decoder.generate(params, [sources[n] for n in free], limits=[limits[n] for n in free])
    assert [[h.tokens for h in found[n]] for n in free] == [[h.tokens for h in answers] for answers in alone]


def test_greedy_search_goes_on_from_a_beginning_and_terms_that_do_not_fit_have_a_reason():
    """Law: after its own first two tokens an answer is what it was. By hand: the reasons."""
    model, params = model_of(SMALL)
    decoder, source = Decoder(model, DecodeConfig(max_new_tokens=9)), [5, 7, 9, EOS]
    ((free,),) = decoder.generate(params, [source])
    ((again,),) = decoder.generate(params, [source], forced=[Forced((), tuple(free.tokens[:2]))])
    assert again.tokens == free.tokens and again.score > free.score
    term = NeededTokens((4, 5), 1, True)
    assert decoder.why_not(source, Forced((term,) * 4)) == ""
    assert "needs 11 tokens" in decoder.why_not(source, Forced((term,) * 5))
    assert "16 are the most" in decoder.why_not(source, Forced((term,) * 17))
