"""Terms in a beam search: texts that an answer must have before it may end. Pure functions of arrays.

A beam that has a term, or the beginning of one, has paid for it in probability. So a beam competes only within its bank, the beams
that are equally far. The K beams that go on are taken from all banks in turn:

    bank         0: no term    1: in a term    2: one term
    best         beam 2        beam 5          beam 1
    next         beam 4        –               beam 3         and so on

Reference: Post and Vilar 2018, arXiv:1804.06609; Hu et al. 2019, N19-1090.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.placement.batches import padded_length
from flaxformer_lite.core.search.forced import Forced, NeededTokens
from flaxformer_lite.core.search.sampling import top_k
from flaxformer_lite.core.search.search import is_end
from flaxformer_lite.core.search.settings import DecodeConfig


class RowTerms(NamedTuple):
    """The terms of each row; a term that is padding is needed 0 times."""

    tokens: Int[Array, "B M W"]
    """Token ids, padded with -1 on the right."""
    lengths: Int[Array, "B M"]
    times: Int[Array, "B M"]
    """Number of times that the answer must have the term; its places in other terms count too."""
    whole: Bool[Array, "B M"]
    """Whether no id of `going_on` may follow."""
    going_on: Bool[Array, "B V"]
    """True for the ids that go on with the word before them."""
    inside: Int[Array, "B M M"] | None = None
    """Number of times that each term (the first axis) stands in each one before it; None: no term is a part of another."""

    def missing(self, counts: Int[Array, "B *K M"]) -> Int[Array, "B *K M"]:
        """Returns how often each term must still be written, apart from its places in other missing terms."""
        axes = tuple(range(1, counts.ndim - 1))
        missing = jnp.maximum(jnp.expand_dims(self.times, axes) - counts, 0)
        if self.inside is None:
            return missing
        inside = jnp.expand_dims(self.inside, axes)
        apart = list[Array]()
        for i in range(missing.shape[-1]):
            of_others = sum((inside[..., i, j] * number for j, number in enumerate(apart)), jnp.int32(0))
            apart.append(jnp.maximum(missing[..., i] - of_others, 0))
        return jnp.stack(apart, -1)


def places_in(term: NeededTokens, other: NeededTokens, going_on: Bool[np.ndarray, "V"]) -> int:
    """Returns how often a term stands in another one. A term that must be whole stands only where the next token starts a word."""
    size, last = len(term.ids), len(other.ids)
    ends = [end for end in range(size, last + 1) if other.ids[end - size : end] == term.ids]
    if not term.whole:
        return len(ends)
    return sum(other.whole if end == last else not going_on[other.ids[end]] for end in ends)


def row_terms(rows: Sequence[Forced], batch: int, vocab_size: int) -> RowTerms:
    """Returns the terms of the rows of a batch, in arrays of few sizes."""
    longest = max(len(term.ids) for row in rows for term in row.terms)
    room = max(row.room for row in rows)
    tokens = np.full((batch, room, padded_length(longest)), -1, np.int32)
    lengths, times = np.zeros((2, batch, room), np.int32)
    whole, going_on = np.zeros((batch, room), bool), np.zeros((batch, vocab_size), bool)
    inside = np.zeros((batch, room, room), np.int32)
    for i, row in enumerate(rows):
        if row.going_on is not None:
            going_on[i] = row.going_on
        terms = sorted(row.terms, key=lambda term: -len(term.ids))  # a term comes before the terms in it
        for j, term in enumerate(terms):
            inside[i, j, :j] = [places_in(term, other, going_on[i]) for other in terms[:j]]
            tokens[i, j, : len(term.ids)] = term.ids
            lengths[i, j], whole[i, j] = len(term.ids), term.whole
            times[i, j] = term.times + inside[i, j, :j] @ [other.times for other in terms[:j]]
    nested = inside if inside.any() else None
    on_host = tokens, lengths, times, whole, going_on, nested
    return RowTerms(*on_host)  # type: ignore[arg-type]


class Choice(NamedTuple):
    """The continuations of beams that are chosen, best first."""

    beam: Int[Array, "B K"]
    token: Int[Array, "B K"]
    log_probs: Float[Array, "B K"]
    counts: Int[Array, "B K M"] | None = None
    """Number of times that each beam has each term."""
    complete: Bool[Array, "B K"] | None = None
    """Whether each beam has all terms."""


def begun(tokens: Int[Array, "B K R"], end: Int[Array, ""], first: int, terms: RowTerms) -> Bool[Array, "B K M Q"]:
    """Returns True at l, 0 … W, if the l tokens before `end` are the first l of a term and none of them is before `first`."""
    width = terms.tokens.shape[-1]
    lengths = jnp.arange(width + 1)[:, None]
    places = jnp.arange(width)
    newest = end - width + places
    recent = jnp.where(newest >= first, jnp.take(tokens, jnp.maximum(newest, 0), axis=-1), -2)
    last = recent[:, :, jnp.clip(width - lengths + places, 0, width - 1)]  # for each l, the last l tokens
    return ((last[:, :, None] == terms.tokens[:, None, :, None]) | (places >= lengths)).all(-1)


class TermBeams(NamedTuple):
    """The open beams of a search with terms."""

    log_probs: Float[Array, "B K"]
    counts: Int[Array, "B K M"]
    """Number of times that each beam has each term."""
    parts: Bool[Array, "B K M Q"]
    """The beginnings of terms at the end of each beam: see `begun`."""


class Continuations(NamedTuple):
    """The C continuations of each beam that may be chosen, and the terms that they have."""

    token: Int[Array, "B K C"]
    scores: Float[Array, "B K C"]
    """Log-probabilities; -inf for a repeated continuation, and for one that leaves no room for the terms."""
    counts: Int[Array, "B K C M"]
    ends: Bool[Array, "B K C"]
    bank: Int[Array, "B K C"]
    """Twice the number of terms that a continuation has, and one more inside a term."""


def choose(
    beams: TermBeams,
    next_log_probs: Float[Array, "B K V"],
    of_terms: Float[Array, "B K V"],
    left: Int[Array, "B"],
    terms: RowTerms,
    config: DecodeConfig,
) -> tuple[Choice, Choice]:
    """Returns the best K continuations that end, and the best K that stay open; missing ones have -inf.

    `next_log_probs`: under the rules of decoding. `of_terms`: without the rules, for the tokens of terms. `left`: the number of
    tokens that may still follow.
    """
    token, scores = continuations(beams, next_log_probs, of_terms, terms, config)
    return best_of(candidates(beams, token, scores, left, terms, config), terms)


def needed_for(counts: Int[Array, "B *K M"], terms: RowTerms) -> Int[Array, "B *K"]:
    """Returns the number of tokens of the terms that are missing at these counts."""
    lengths = jnp.expand_dims(terms.lengths, tuple(range(1, counts.ndim - 1)))
    return (terms.missing(counts) * lengths).sum(-1)


def at_risk(at_end: Bool[Array, "B *K M"], counts: Int[Array, "B *K M"], terms: RowTerms) -> Int[Array, "B *K"]:
    """Returns the number of tokens of terms that are missing again if their last word goes on."""
    whole = jnp.expand_dims(terms.whole, tuple(range(1, counts.ndim - 1)))
    return needed_for(counts - (at_end & whole), terms) - needed_for(counts, terms)


def ended_terms(parts: Bool[Array, "B K M Q"], terms: RowTerms) -> Bool[Array, "B K M"]:
    """Returns True for the terms whose last token is the newest one."""
    steps = jnp.arange(1, parts.shape[-1])
    return ((steps == terms.lengths[:, None, :, None]) & parts[..., 1:]).any(-1)


def continuations(
    beams: TermBeams,
    next_log_probs: Float[Array, "B K V"],
    of_terms: Float[Array, "B K V"],
    terms: RowTerms,
    config: DecodeConfig,
) -> tuple[Int[Array, "B K C"], Float[Array, "B K C"]]:
    """Returns tokens and scores of each beam: the next token of each missing term, the most probable ones, and the ends."""
    (batch, k, vocab_size), parts, counts = next_log_probs.shape, beams.parts, beams.counts
    steps = jnp.arange(1, parts.shape[-1])
    longest = jnp.where((steps < terms.lengths[:, None, :, None]) & parts[..., 1:], steps, 0).max(-1)
    # The next token of each missing term, or its first one if going on risks as many tokens of other terms.
    risk = at_risk(ended_terms(parts, terms), counts, terms)
    place = jnp.where(longest > risk[..., None], longest, 0)
    wanted = jnp.take_along_axis(terms.tokens[:, None], place[..., None], -1)[..., 0]
    forced = jnp.where(terms.missing(counts) > 0, jnp.take_along_axis(of_terms, wanted, -1), -jnp.inf)
    wanted = jnp.where(forced > -jnp.inf, wanted, -1)
    free, token = top_k(next_log_probs.reshape(batch * k, vocab_size), k + len({*config.eos_ids}))
    # The ends too: no other token may follow a term at the maximum length.
    ends = jnp.broadcast_to(jnp.asarray(config.eos_ids, jnp.int32), (batch, k, len(config.eos_ids)))
    ended = jnp.take_along_axis(next_log_probs, ends, -1)
    next_scores = jnp.concatenate([forced, free.reshape(batch, k, -1), ended], -1)
    return jnp.concatenate([wanted, token.reshape(batch, k, -1), ends], -1), beams.log_probs[..., None] + next_scores


def candidates(
    beams: TermBeams,
    token: Int[Array, "B K C"],
    scores: Float[Array, "B K C"],
    left: Int[Array, "B"],
    terms: RowTerms,
    config: DecodeConfig,
) -> Continuations:
    """Returns the continuations with the terms that each has; repeated ones, and those without room for all terms, have -inf."""
    batch = len(token)
    parts = beams.parts
    lengths = terms.lengths[:, None, None]
    steps = jnp.arange(1, parts.shape[-1])
    before = jnp.tri(token.shape[-1], k=-1, dtype=bool)
    again = ((token[..., None] == token[..., None, :]) & before).any(-1)
    goes_on = jnp.take_along_axis(terms.going_on, token.reshape(batch, -1), -1).reshape(token.shape)
    undone = ended_terms(parts, terms)[:, :, None] & terms.whole[:, None, None] & goes_on[..., None]
    grown = parts[:, :, None, :, :-1] & (terms.tokens[:, None, None] == token[..., None, None])
    reached = jnp.where(grown, steps, 0).max(-1)
    at_end = (reached == lengths) & (lengths > 0)
    counts = beams.counts[:, :, None] - undone + at_end
    reached = jnp.where((terms.missing(counts) > 0) & ~at_end, reached, 0).max(-1)
    needed = needed_for(counts, terms) - jnp.maximum(reached - at_risk(at_end, counts, terms), 0)
    ends = is_end(token, config)
    left = left[:, None, None]
    fits = needed <= jnp.where(ends, 0, jnp.maximum(left - 1, 0))
    return Continuations(
        token=token,
        scores=jnp.where(fits & ~again, scores, -jnp.inf),
        counts=counts,
        ends=ends | (config.finish_at_limit & (left == 0)),
        bank=2 * jnp.minimum(terms.times[:, None, None], counts).sum(-1) + (reached > 0),
    )


def best_of(among: Continuations, terms: RowTerms) -> tuple[Choice, Choice]:
    """Returns the best K that end, by score, and the best K that stay open, from all banks in turn."""
    batch, k, per_beam = among.token.shape
    token, scores, ends, bank = (x.reshape(batch, -1) for x in (among.token, among.scores, among.ends, among.bank))
    places = jnp.arange(scores.shape[-1])
    other = scores[:, None]
    one = scores[..., None]
    better = (other > one) | ((other == one) & (places < places[:, None]))
    rank = (better & (bank[:, None] == bank[..., None])).sum(-1)
    in_turn = jnp.where(ends | (scores == -jnp.inf), 2**30, rank * (bank.max() + 1) - bank)
    ended = jnp.where(ends & (rank < k), scores, -jnp.inf)

    def taken(order: Int[Array, "B K"], log_probs: Float[Array, "B C"]) -> Choice:
        counts = jnp.take_along_axis(among.counts.reshape(batch, len(places), -1), order[..., None], 1)
        return Choice(
            beam=order // per_beam,
            token=jnp.take_along_axis(token, order, 1),
            log_probs=jnp.take_along_axis(log_probs, order, 1),
            counts=counts,
            complete=(counts >= terms.times[:, None]).all(-1),
        )

    return (
        taken(jnp.argsort(-ended)[:, :k], ended),
        taken(jnp.argsort(in_turn)[:, :k], jnp.where(ends, -jnp.inf, scores)),
    )
