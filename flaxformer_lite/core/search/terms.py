"""Terms in a beam search: texts that an answer must have, so that it may not end before. Pure functions of arrays.

A beam that has a term, or the beginning of one, has paid for it in probability. So beams compete with those alone that are as far,
in one bank; the K beams that go on are taken from all banks in turn:

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

from flaxformer_lite.core.search.batches import padded_length
from flaxformer_lite.core.search.forced import Forced, NeededTokens
from flaxformer_lite.core.search.sampling import top_k
from flaxformer_lite.core.search.search import is_end
from flaxformer_lite.core.search.settings import DecodeConfig


class RowTerms(NamedTuple):
    """The terms of each row; one that is padding is needed 0 times."""

    tokens: Int[Array, "B M W"]
    """Token ids, padded with -1 on the right."""
    lengths: Int[Array, "B M"]
    times: Int[Array, "B M"]
    """Number of times that the answer has it, as a part of other terms too."""
    whole: Bool[Array, "B M"]
    """Whether no id of `going_on` may follow."""
    going_on: Bool[Array, "B V"]
    """True for the ids that go on with the word before them; the same in all rows."""
    inside: Int[Array, "B M M"] | None = None
    """Number of times that each term (the first axis) stands in each one before it; None: no term is a part of another."""

    def missing(self, counts: Int[Array, "B *K M"]) -> Int[Array, "B *K M"]:
        """Returns how often each term is to be written yet, apart from its places in other terms that are missing."""
        axes = tuple(range(1, counts.ndim - 1))
        missing = jnp.maximum(jnp.expand_dims(self.times, axes) - counts, 0)
        if self.inside is None:
            return missing
        inside, apart = jnp.expand_dims(self.inside, axes), list[Array]()
        for i in range(missing.shape[-1]):
            of_others = sum((inside[..., i, j] * number for j, number in enumerate(apart)), jnp.int32(0))
            apart.append(jnp.maximum(missing[..., i] - of_others, 0))
        return jnp.stack(apart, -1)


def places_in(term: NeededTokens, other: NeededTokens, going_on: Bool[np.ndarray, "V"]) -> int:
    """Returns how often a term stands in another one, where the token behind it, if it has to be whole, never goes on with it."""
    size, last = len(term.ids), len(other.ids)
    ends = [end for end in range(size, last + 1) if other.ids[end - size : end] == term.ids]
    return sum(not term.whole or (other.whole if end == last else not going_on[other.ids[end]]) for end in ends)


def row_terms(rows: Sequence[Forced], batch: int, going_on: Bool[np.ndarray, "V"]) -> RowTerms:
    """Returns the terms of the rows of a batch, in arrays of few sizes."""
    longest = max(len(term.ids) for row in rows for term in row.terms)
    room = max(row.room for row in rows)
    shape, inside = (batch, room), np.zeros((batch, room, room), np.int32)
    tokens, (lengths, times), whole = (
        np.full((*shape, padded_length(longest)), -1, np.int32),
        np.zeros((2, *shape), np.int32),
        np.zeros(shape, bool),
    )
    for i, row in enumerate(rows):
        terms = sorted(row.terms, key=lambda term: -len(term.ids))  # one that has another comes before it
        for j, term in enumerate(terms):
            inside[i, j, :j] = [places_in(term, other, going_on) for other in terms[:j]]
            tokens[i, j, : len(term.ids)] = term.ids
            lengths[i, j], whole[i, j] = len(term.ids), term.whole
            times[i, j] = term.times + inside[i, j, :j] @ [other.times for other in terms[:j]]
    nested = inside if inside.any() else None
    on_host = tokens, lengths, times, whole, np.broadcast_to(going_on, (batch, len(going_on))), nested
    return RowTerms(*on_host)  # type: ignore[arg-type]


class Choice(NamedTuple):
    """The continuations of beams that are chosen, best first."""

    beam: Int[Array, "B K"]
    token: Int[Array, "B K"]
    log_probs: Float[Array, "B K"]
    counts: Int[Array, "B K M"] | None = None
    """Number of times that each has each term."""
    complete: Bool[Array, "B K"] | None = None
    """Whether it has all terms."""


def begun(tokens: Int[Array, "B K R"], end: Int[Array, ""], first: int, terms: RowTerms) -> Bool[Array, "B K M Q"]:
    """Returns True at l (Q = W + 1 of them) where the l tokens before `end` are the first l of a term; none is before `first`."""
    width = terms.tokens.shape[-1]
    lengths, places = jnp.arange(width + 1)[:, None], jnp.arange(width)
    newest = end - width + places
    recent = jnp.where(newest >= first, jnp.take(tokens, jnp.maximum(newest, 0), axis=-1), -2)
    last = recent[:, :, jnp.clip(width - lengths + places, 0, width - 1)]  # for each l, the last l tokens
    return ((last[:, :, None] == terms.tokens[:, None, :, None]) | (places >= lengths)).all(-1)


def choose(
    log_probs: Float[Array, "B K"],
    counts: Int[Array, "B K M"],
    parts: Bool[Array, "B K M Q"],
    next_log_probs: Float[Array, "B K V"],
    of_terms: Float[Array, "B K V"],
    left: Int[Array, "B"],
    terms: RowTerms,
    config: DecodeConfig,
) -> tuple[Choice, Choice]:
    """Returns the best K continuations that end, and the best K that stay open; -inf where there are fewer.

    `log_probs`, `counts`: those of the beams, and how often each has each term. `parts`: see `begun`. `next_log_probs`: under the
    rules of decoding; `of_terms`: those of tokens of terms, which obey no rule. `left`: tokens that may still follow.
    """
    batch, k, vocab_size = next_log_probs.shape
    steps, lengths, times, whole = (x[:, None] for x in (jnp.arange(1, parts.shape[-1])[None], *terms[1:4]))

    def needed_for(counts: Int[Array, "B *K M"]) -> Int[Array, "B *K"]:
        """Returns the number of tokens of missing terms."""
        return (terms.missing(counts) * lengths).sum(-1)

    def at_risk(at_end: Bool[Array, "B *K M"], counts: Int[Array, "B *K M"]) -> Int[Array, "B *K"]:
        """Returns the number of tokens of terms that are missing again if their last word goes on."""
        return needed_for(counts - (at_end & whole)) - needed_for(counts)

    at_end = ((steps == lengths[..., None]) & parts[..., 1:]).any(-1)
    part = jnp.where((steps < lengths[..., None]) & parts[..., 1:], steps, 0).max(-1)
    # The next token of each missing term, or its first one where to go on might cost other terms as much.
    place = jnp.where(part > at_risk(at_end, counts)[..., None], part, 0)
    wanted = jnp.take_along_axis(terms.tokens[:, None], place[..., None], -1)[..., 0]
    forced = jnp.where(terms.missing(counts) > 0, jnp.take_along_axis(of_terms, wanted, -1), -jnp.inf)
    wanted = jnp.where(forced > -jnp.inf, wanted, -1)
    free, token = top_k(next_log_probs.reshape(batch * k, vocab_size), k + len({*config.eos_ids}))
    # The ends too: no other token may follow a term at the maximum length.
    ends = jnp.broadcast_to(jnp.asarray(config.eos_ids, jnp.int32), (batch, k, len(config.eos_ids)))
    token = jnp.concatenate([wanted, token.reshape(batch, k, -1), ends], -1)
    ended = jnp.take_along_axis(next_log_probs, ends, -1)
    scores = log_probs[..., None] + jnp.concatenate([forced, free.reshape(batch, k, -1), ended], -1)
    before = jnp.tri(token.shape[-1], k=-1, dtype=bool)
    again = ((token[..., None] == token[..., None, :]) & before).any(-1)

    # For each candidate (C of them): how often it has each term, and how many tokens it still needs.
    lengths, times, whole = lengths[:, None], times[:, None], whole[:, None]
    goes_on = jnp.take_along_axis(terms.going_on, token.reshape(batch, -1), -1).reshape(token.shape)
    grown = parts[:, :, None, :, :-1] & (terms.tokens[:, None, None] == token[..., None, None])
    reached = jnp.where(grown, steps[:, None, None], 0).max(-1)
    counts = counts[:, :, None] - (at_end[:, :, None] & whole & goes_on[..., None])
    at_end = (reached == lengths) & (lengths > 0)
    counts += at_end
    reached = jnp.where((terms.missing(counts) > 0) & ~at_end, reached, 0).max(-1)
    needed = needed_for(counts) - jnp.maximum(reached - at_risk(at_end, counts), 0)
    left = left[:, None, None]
    ends = is_end(token, config)
    fits = needed <= jnp.where(ends, 0, jnp.maximum(left - 1, 0))
    scores = jnp.where(fits & ~again, scores, -jnp.inf)
    ends |= config.finish_at_limit & (left == 0)
    bank = 2 * jnp.minimum(times, counts).sum(-1) + (reached > 0)

    scores, ends, bank = (x.reshape(batch, -1) for x in (scores, ends, bank))
    places = jnp.arange(scores.shape[-1])
    other, one = scores[:, None], scores[..., None]
    better = (other > one) | ((other == one) & (places < places[:, None]))
    rank = (better & (bank[:, None] == bank[..., None])).sum(-1)
    in_turn = jnp.where(ends | (scores == -jnp.inf), 2**30, rank * (bank.max() + 1) - bank)
    ended = jnp.where(ends & (rank < k), scores, -jnp.inf)

    def taken(order: Int[Array, "B K"], scores: Float[Array, "B C"]) -> Choice:
        """Returns these candidates."""
        own, log_probs = (jnp.take_along_axis(x, order, 1) for x in (token.reshape(batch, -1), scores))
        found = jnp.take_along_axis(counts.reshape(batch, len(places), -1), order[..., None], 1)
        return Choice(order // token.shape[-1], own, log_probs, found, (found >= terms.times[:, None]).all(-1))

    chosen = jnp.where(ends, -jnp.inf, scores)
    return taken(jnp.argsort(-ended)[:, :k], ended), taken(jnp.argsort(in_turn)[:, :k], chosen)
