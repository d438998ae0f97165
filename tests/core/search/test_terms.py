"""Laws of answers with terms and beginnings: each has all of them, and sources without any are answered as before."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.search import DecodeConfig, Forced, NeededTokens, Request
from flaxformer_lite.core.search.beam import BeamState, extended
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.search import Decoded
from flaxformer_lite.core.search.terms import Choice, places_in, row_terms
from flaxformer_lite.core.text.special_ids import EOS
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
    return Forced(tuple({term.ids: term for term in found}.values()), beginning, GOING_ON)


def times(tokens: list[int], term: NeededTokens) -> int:
    """Returns how often an answer has a term, as whole words where it must."""
    ends = [i + len(term.ids) for i in range(len(tokens)) if tuple(tokens[i : i + len(term.ids)]) == term.ids]
    return sum(not (term.whole and end < len(tokens) and GOING_ON[tokens[end]]) for end in ends)


@pytest.mark.slow
def test_every_answer_has_its_terms_and_its_beginning():
    """Oracle: a count over the tokens of the answer, of a term also those that other terms have.

    Some maximum lengths leave room for the terms alone.
    """
    generator, (model, params) = np.random.default_rng(11), model_of(SMALL)
    decoder = Decoder(model, DecodeConfig(beam_size=3, num_hypotheses=2, max_new_tokens=24))
    sources = [[*generator.integers(4, VOCAB, 1 + n % 6).tolist(), EOS] for n in range(48)]
    forced = [drawn(generator, (0, 3)[n > 15]) for n in range(48)]
    limits = [min(24, one.length + 1 + (0, 1, 30)[n % 3]) for n, one in enumerate(forced)]
    forced = [one if one.length < limit else Forced() for one, limit in zip(forced, limits, strict=True)]
    asked = [
        Request(source, limit=limit, forced=one) for source, limit, one in zip(sources, limits, forced, strict=True)
    ]
    found = decoder.generate(params, asked)
    for one, answers, limit in zip(forced, found, limits, strict=True):
        for tokens, score in answers:
            assert np.isfinite(score) and len(tokens) <= limit
            assert tuple(tokens[: len(one.beginning)]) == one.beginning
            for term in one.terms:
                wanted = sum(other.times * places_in(term, other, GOING_ON) for other in one.terms)
                assert times(tokens, term) >= wanted >= term.times, (tokens, one)
    assert sum(len(one.terms) for one in forced) > 60, "few terms were drawn"
    free = [n for n, one in enumerate(forced) if one == Forced()]
    alone = decoder.generate(params, [asked[n] for n in free])
    assert [[h.tokens for h in found[n]] for n in free] == [[h.tokens for h in answers] for answers in alone]


def test_a_place_inside_another_term_is_counted_once():
    """By hand: 4 5 twice in a term and once at the end of another, of which each is needed; 5 is in all of them."""
    whole, glued = NeededTokens((6, 4, 5), 1, True), NeededTokens((4, 5), 2, True)
    long, inner = NeededTokens((4, 5, 4, 5, 7), 1, False), NeededTokens((5,), 1, False)
    rows = [Forced((glued, whole, inner, long), going_on=GOING_ON), Forced((glued,), going_on=GOING_ON)]
    terms = row_terms(rows, 3, VOCAB)
    assert terms.tokens[0, :, 0].tolist() == [4, 6, 4, 5] and terms.inside is not None
    assert terms.times.tolist() == [[1, 1, 2 + 1 + 2, 1 + 2 + 1 + 2], [2, 0, 0, 0], [0] * 4]
    counts = jnp.array([[[0, 0, 0, 0], [1, 0, 2, 3], [1, 1, 5, 5], [0, 1, 5, 6]]] * 3)
    # Of 4 5 the two places in the first term and the one in the second come with these.
    assert terms.missing(counts)[0].tolist() == [[1, 1, 2, 1], [0, 1, 2, 0], [0, 0, 0, 1], [1, 0, 0, 0]]
    apart = Forced((glued, NeededTokens((4, 6, 5), 1, True)), going_on=GOING_ON)
    assert row_terms([apart], 1, VOCAB).inside is None
    assert terms.going_on.tolist() == [GOING_ON.tolist()] * 2 + [[False] * VOCAB]
    before, behind = NeededTokens((4, 5, 8), 1, True), NeededTokens((6, 4, 5), 1, False)
    assert places_in(glued, before, GOING_ON) == places_in(glued, behind, GOING_ON) == 0, "8 may go on with it"
    assert places_in(glued._replace(whole=False), behind, GOING_ON) == 1


@pytest.mark.slow
def test_a_placeholder_behind_a_sign_and_behind_a_space_comes_twice():
    """Oracle: a count over the tokens. 6 is the space; the room is for both, and no token more."""
    model, params = model_of(SMALL)
    draw = np.random.default_rng(1)
    sources = [[*draw.integers(4, VOCAB, 6).tolist(), EOS] for _ in range(32)]
    forced = Forced((NeededTokens((4, 5), 1, False), NeededTokens((6, 4, 5), 1, False)))
    for limit in (6, 14):
        decoder = Decoder(model, DecodeConfig(beam_size=4, max_new_tokens=limit))
        asked = [Request(source, forced=forced) for source in sources]
        for best, *_ in decoder.generate(params, asked):
            assert times(best.tokens, forced.terms[0]) >= 2 and times(best.tokens, forced.terms[1]) >= 1
            assert np.isfinite(best.score) and len(best.tokens) <= limit


@pytest.mark.slow
def test_the_best_answers_are_the_same_however_many_are_asked_for():
    """Law: fewer answers are the first of more, and as many as are asked for come where the room suffices."""
    model, params = model_of(SMALL)
    draw = np.random.default_rng(1)
    sources = [[*draw.integers(4, VOCAB, 6).tolist(), EOS] for _ in range(48)]
    forced, found = Forced((NeededTokens((4, 6), 1, False),)), []
    asked = [Request(source, forced=forced) for source in sources]
    for number in (1, 2, 3, 5):
        decoder = Decoder(model, DecodeConfig(beam_size=5, num_hypotheses=number, max_new_tokens=14))
        answers = decoder.generate(params, asked)
        assert all(len(row) == number for row in answers)
        found.append([[answer.tokens for answer in row] for row in answers])
    for few, more in itertools.pairwise(found):
        assert [row[: len(own)] for own, row in zip(few, more, strict=True)] == few


@pytest.mark.slow
def test_later_answers_come_behind_those_that_were_enough():
    """By hand, of 4 beams: two answers are enough for one; for three the search goes on, and a better one comes third."""
    beams = jnp.arange(4)[None]

    def step(state: BeamState, ended: list[float], number: int) -> BeamState:
        choices = Choice(beams, beams + 4, jnp.array([ended]))
        open_ = Choice(beams, beams + 4, jnp.full((1, 4), -9.0), jnp.ones((1, 4, 1), int), jnp.ones((1, 4), bool))
        config = DecodeConfig(beam_size=4, num_hypotheses=number, length_penalty="none", max_new_tokens=9)
        return extended(state, choices, open_, jnp.array([-9.0]), jnp.array([9]), config)

    none, nothing = -np.inf, jnp.zeros((1, 4), jnp.int32)
    for number, later in ((1, [-3.0, -5.0]), (3, [-3.0, -5.0, -2.0])):
        state = BeamState(
            jnp.int32(0), jnp.zeros((1, 4, 12), jnp.int32), jnp.zeros((1, 4, 9), jnp.int32), jnp.zeros((1, 4)),
            Decoded(jnp.zeros((1, 4, 9), jnp.int32), nothing, jnp.full((1, 4), none)), jnp.array([True]), (),
            jnp.ones((1, 4, 1), int), jnp.array([0]),
        )  # fmt: skip
        state = step(state, [-3.0, -5.0, none, none], number)
        assert state.active.tolist() == [number > 2]
        state = step(state, [-2.0, none, none, none], number)
        assert not state.active.any() and state.finished.scores[0, : len(later)].tolist() == later


@pytest.mark.slow
def test_greedy_search_goes_on_from_a_beginning_and_terms_that_do_not_fit_have_a_reason():
    """Law: after its own first two tokens an answer is what it was. By hand: the reasons."""
    model, params = model_of(SMALL)
    decoder, source = Decoder(model, DecodeConfig(max_new_tokens=9)), [5, 7, 9, EOS]
    ((free,),) = decoder.generate(params, [source])
    begun = Request(source, forced=Forced((), tuple(free.tokens[:2])))
    ((again,),) = decoder.generate(params, [begun])
    assert [*itertools.chain(*decoder.stream(params, begun))] == again.tokens
    other = Request(source, forced=Forced((), (4, 4)))
    assert [*itertools.chain(*decoder.stream(params, other))] == decoder.generate(params, [other])[0][0].tokens
    with pytest.raises(ValueError, match=r"needs terms.*cannot be streamed"):
        next(decoder.stream(params, Request(source, forced=Forced((NeededTokens((4,), 1, False),)))))
    assert again.tokens == free.tokens and again.score > free.score
    term = NeededTokens((4, 5), 1, True)
    assert decoder.why_not(source, Forced((term,) * 4)) == ""
    assert "needs 11 tokens" in decoder.why_not(source, Forced((term,) * 5))
    assert "16 are the most" in decoder.why_not(source, Forced((term,) * 17))
