"""Greedy and beam search with a cache, compiled once a shape, and the `Decoder` that feeds them sentences.

`greedy` and `beam_search` are pure functions of arrays. `Decoder.generate` is their host side: it sorts the sentences by
length, cuts them into batches whose shapes come from a small set, and returns the answers in the order of the sentences.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.layers import accumulation_dtype
from flaxformer_lite.tokenizer import BOS, EOS, PAD
from flaxformer_lite.transformer import Context, LayerCache, Transformer, padding

# Settings -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DecodeConfig:
    """How answers are searched for, scored and batched."""

    beam_size: int = 1
    """Answers kept open at each step; 1 is greedy search."""
    length_penalty: Literal["none", "average", "gnmt"] = "average"
    """Score of an answer with log-probability `sum`: none: sum; average: sum / len^alpha; gnmt: sum / ((5 + len) / 6)^alpha. `len`
    counts the answer's tokens and one more for its end, whether it came or the answer was cut at the greatest length."""
    alpha: float = 1.0
    """Exponent of the length penalty: 0 is no penalty, more favours longer answers."""
    early_stopping: bool = True
    """Stop once `beam_size` answers are finished. False: go on until no open one could still beat them at the present length."""
    num_hypotheses: int = 1
    """Answers returned for each sentence, best first; at most beam_size."""
    max_length_ratio: float = 2.0
    """The longest answer has `max_length_ratio` * source tokens + `max_length_extra` tokens; both count the end of sentence."""
    max_length_extra: int = 10
    """See max_length_ratio."""
    batch_tokens: int = 2048
    """Source tokens decoded at once, padding included: short sentences go in large batches, memory stays the same."""
    weights: str = "last"
    """Which weights answer: last, best, ema, or average:N, the mean of the last N checkpoints."""

    def __post_init__(self) -> None:
        for name, least in (("beam_size", 1), ("alpha", 0), ("max_length_ratio", 0), ("max_length_extra", 0), ("batch_tokens", 1)):
            if not least <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"decode.{name} is {value}: give a finite number, at least {least}")
        if self.length_penalty not in ("none", "average", "gnmt"):
            raise ValueError(f"decode.length_penalty is {self.length_penalty!r}: choose none, average or gnmt")
        if self.length_penalty == "none" and self.alpha != 1:
            raise ValueError(
                f"decode.alpha is {self.alpha}, but decode.length_penalty none has no exponent: "
                "leave decode.alpha at 1.0, or choose average or gnmt"
            )
        if not 1 <= self.num_hypotheses <= self.beam_size:
            raise ValueError(
                f"decode.num_hypotheses is {self.num_hypotheses}: give 1 to decode.beam_size, which is {self.beam_size}"
            )
        if self.max_length_ratio == self.max_length_extra == 0:
            raise ValueError("decode.max_length_ratio and decode.max_length_extra are both 0: no answer fits, raise one of them")

    def max_length(self, source_length: int) -> int:
        """Most tokens in the answer to a source of that many, each with its end of sentence; at least 1."""
        return max(1, int(self.max_length_ratio * source_length) + self.max_length_extra)

    def score(self, log_prob: Float[Array, "..."], length: Int[Array, "..."]) -> Float[Array, "..."]:
        """What answers are ranked by; `length` is `len` in the formulas of `length_penalty`.

        Reference: Wu et al. 2016, arXiv:1609.08144, equation 14 (gnmt, without the coverage term).
        """
        length = length.astype(log_prob.dtype)
        if self.length_penalty == "none":
            return log_prob
        return log_prob / (length if self.length_penalty == "average" else (5 + length) / 6) ** self.alpha


# Search: compiled -----------------------------------------------------------------------------------------------------


class Decoded(NamedTuple):
    """Answers, best first. One that was cut has length `max_lengths`; the score of one that does not exist is -inf."""

    tokens: Int[Array, "B K R"]
    """Without BOS and EOS, filled up with PAD; R is the room."""
    lengths: Int[Array, "B K"]
    """Tokens of each answer, without BOS and EOS."""
    scores: Float[Array, "B K"]


class GreedyState(NamedTuple):
    index: Int[Array, ""]
    tokens: Int[Array, "B R+1"]
    lengths: Int[Array, "B"]
    sums: Float[Array, "B"]
    active: Bool[Array, "B"]
    cache: LayerCache


def greedy(
    model: Transformer,
    params: VariableDict,
    source_tokens: Int[Array, "B S"],
    source_mask: Bool[Array, "B S"],
    *,
    room: int,
    max_lengths: Int[Array, "B"],
    config: DecodeConfig,
) -> Decoded:
    """The answers that take the most probable token at each step; of `config` only the score is used.

    A sentence ends with EOS or after `max_lengths` tokens, EOS included, at most `room`. Equal logits: the lowest id wins.
    """
    cache = start_cache(model, params, source_tokens, source_mask, room)

    def step(state: GreedyState) -> GreedyState:
        index, active = state.index, state.active
        logits, cache = model.apply(
            params, state.tokens[:, index], index, state.cache, source_mask, method="decode_step"
        )
        logits = logits.astype(accumulation_dtype(logits))
        best, token = (x[:, 0] for x in jax.lax.top_k(logits, 1))  # on a CPU argmax takes several times as long
        word = active & (token != EOS)
        return GreedyState(
            index=index + 1,
            tokens=state.tokens.at[:, index + 1].set(jnp.where(word, token, PAD)),
            lengths=state.lengths + word,
            sums=state.sums + jnp.where(active, best - jax.nn.logsumexp(logits, -1), 0),
            active=word & (index + 1 < max_lengths),
            cache=cache,
        )

    batch = source_tokens.shape[0]
    state = GreedyState(
        index=jnp.int32(0),
        tokens=jnp.full((batch, room + 1), PAD, jnp.int32).at[:, 0].set(BOS),
        lengths=jnp.zeros(batch, jnp.int32),
        sums=jnp.zeros(batch, accumulation_dtype(cache.own.key)),
        active=max_lengths > 0,
        cache=cache,
    )
    state = jax.lax.while_loop(lambda state: state.active.any(), step, state)
    scores = config.score(state.sums, state.lengths + 1)
    return Decoded(state.tokens[:, None, 1:], state.lengths[:, None], scores[:, None])


class BeamState(NamedTuple):
    """K beams a sentence. They are K queries over one cache, in which position t of all beams stands at t*K … t*K + K-1.

    When beams are dropped and others split, no key or value moves: `slots` remembers in which of the K places of a position
    the beam, or the ancestor it had at that time, has written.
    """

    index: Int[Array, ""]
    tokens: Int[Array, "B K R+1"]
    slots: Int[Array, "B K R"]
    sums: Float[Array, "B K"]
    finished: Decoded
    done: Bool[Array, "B"]
    cache: LayerCache


def beam_search(
    model: Transformer,
    params: VariableDict,
    source_tokens: Int[Array, "B S"],
    source_mask: Bool[Array, "B S"],
    *,
    room: int,
    max_lengths: Int[Array, "B"],
    config: DecodeConfig,
) -> Decoded:
    """The `config.num_hypotheses` best answers that a beam of K = `config.beam_size` finds.

    Each step takes the best 2K continuations of the K open beams by the sum of their log-probabilities. One that ends in EOS is
    finished if it is among the first K, else dropped; the best K others stay open. The K finished answers with the best
    scores are kept. A sentence is done when it has K and either `early_stopping` or none of the 2K sums would score higher,
    were it to end now. At `max_lengths` tokens (EOS included, at most `room`) the open beams of a sentence that is not done
    join the finished answers as they are. Ties go to the answer found first, then to the better beam, then to the lowest id.
    """
    k = config.beam_size
    batch = source_tokens.shape[0]
    cache = start_cache(model, params, source_tokens, source_mask, room * k)
    zeros = jnp.zeros((batch, k), accumulation_dtype(cache.own.key))
    tokens = jnp.full((batch, k, room + 1), PAD, jnp.int32).at[..., 0].set(BOS)
    nothing = Decoded(jnp.full((batch, k, room), PAD, jnp.int32), jnp.zeros((batch, k), jnp.int32), zeros - jnp.inf)
    state = BeamState(
        index=jnp.int32(0),
        tokens=tokens,
        slots=jnp.full((batch, k, room), -1, jnp.int32),
        sums=zeros.at[:, 1:].set(-jnp.inf),  # all beams start alike: only the first counts
        finished=nothing,
        done=jnp.zeros(batch, bool),
        cache=cache,
    )

    def active(state: BeamState) -> Bool[Array, "B"]:
        return ~state.done & (state.index < max_lengths)

    def step(state: BeamState) -> BeamState:
        state = state._replace(slots=state.slots.at[..., state.index].set(jnp.arange(k)))
        log_probs, cache = model.apply(params, state, source_mask, method=beam_log_probs)
        new = select(state, log_probs, config)._replace(cache=cache)
        keep = functools.partial(where_rows, active(state))
        return new._replace(
            tokens=keep(new.tokens, state.tokens),
            sums=keep(new.sums, state.sums),
            finished=Decoded(*map(keep, new.finished, state.finished)),
            done=keep(new.done, state.done),
        )

    state = jax.lax.while_loop(lambda state: active(state).any(), step, state)
    lengths = jnp.broadcast_to(max_lengths[:, None], (batch, k))
    cut = Decoded(state.tokens[..., 1:], lengths, config.score(state.sums, lengths + 1))
    cut = cut._replace(scores=jnp.where(state.done[:, None], -jnp.inf, cut.scores))
    return Decoded(*(x[:, : config.num_hypotheses] for x in best_of(state.finished, cut)))


def select(state: BeamState, log_probs: Float[Array, "B K V"], config: DecodeConfig) -> BeamState:
    """The state after the step whose log-probabilities are given; the cache is left as it is."""
    batch, k, vocab_size = log_probs.shape
    candidates = state.sums[..., None] + log_probs
    # All 2K are used below: XLA on a CPU sorts the whole vocabulary if only a slice of what top_k returns is.
    sums, flat = jax.lax.optimization_barrier(jax.lax.top_k(candidates.reshape(batch, k * vocab_size), 2 * k))
    beam, token = flat // vocab_size, flat % vocab_size
    length = state.index + 1

    ends = (token == EOS)[:, :k]
    ended = Decoded(
        tokens=take_beams(state.tokens, beam[:, :k])[..., 1:],
        lengths=jnp.full((batch, k), state.index),
        scores=jnp.where(ends, config.score(sums[:, :k], length), -jnp.inf),
    )
    finished = best_of(state.finished, ended)
    worst, bound = finished.scores[:, -1], config.score(sums[:, 0], length)
    full = worst > -jnp.inf
    done = full if config.early_stopping else full & (worst >= bound)

    # A beam ends in one way only, hence at least K of the 2K go on; a stable sort keeps their order.
    going_on = jnp.argsort(token == EOS, axis=-1, stable=True)[:, :k]
    parent, token, sums = (jnp.take_along_axis(x, going_on, 1) for x in (beam, token, sums))
    return state._replace(
        index=length,
        tokens=take_beams(state.tokens, parent).at[..., length].set(token),
        slots=take_beams(state.slots, parent),
        sums=sums,
        finished=finished,
        done=state.done | done,
    )


def beam_log_probs(
    model: Transformer, state: BeamState, source_mask: Bool[Array, "B S"]
) -> tuple[Float[Array, "B K V"], LayerCache]:
    """Log-probabilities of the token after each beam's last, and the cache with that last one in it."""
    batch, k, room = state.slots.shape
    tokens = state.tokens[..., state.index]
    own_slots = state.slots[..., None] == jnp.arange(k)
    context = Context(
        mask=own_slots.reshape(batch, 1, k, room * k), memory_mask=padding(source_mask), index=state.index * k
    )
    embedded = model.embed(tokens, model.target_table)
    hidden, cache = model.decoder(embedded, jnp.full_like(tokens, state.index), context, state.cache)
    logits = model.logits(hidden)
    return jax.nn.log_softmax(logits.astype(accumulation_dtype(logits))), cache


def best_of(first: Decoded, second: Decoded) -> Decoded:
    """The best K of two times K answers, in order; ties go to the first, then to the earlier."""
    both = Decoded(*(jnp.concatenate(pair, 1) for pair in zip(first, second, strict=True)))
    _, order = jax.lax.top_k(both.scores, first.scores.shape[1])
    return Decoded(*(take_beams(x, order) for x in both))


def take_beams(x: Array, beams: Int[Array, "B K"]) -> Array:
    """Of each sentence the given beams, in the given order; beams are the second axis of `x`."""
    return jax.vmap(lambda x, beams: x[beams])(x, beams)


def where_rows(condition: Bool[Array, "B"], x: Array, y: Array) -> Array:
    return jnp.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y)


def start_cache(
    model: Transformer,
    params: VariableDict,
    source_tokens: Int[Array, "B S"],
    source_mask: Bool[Array, "B S"],
    room: int,
) -> LayerCache:
    memory = model.apply(params, source_tokens, source_mask, method="encode")
    return model.apply(params, memory, room, method="start_cache")


# The host side --------------------------------------------------------------------------------------------------------


class Hypothesis(NamedTuple):
    """One answer: its token ids without EOS, and its score by `decode.length_penalty`."""

    tokens: list[int]
    score: float


class Batch(NamedTuple):
    """Sentences that are decoded at once: their numbers, and the shape they are filled up to."""

    sentences: list[int]
    rows: int
    source_length: int


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[Batch]:
    """Sentences of these lengths in batches, longest first.

    To keep the shapes few, source lengths are rounded up to a power of two (at least 8), rows to 1, 8, 64, … or the most
    that `batch_tokens` allows.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches = []
    while order:
        source_length = max(8, 1 << (lengths[order[0]] - 1).bit_length())
        most = max(1, batch_tokens // source_length)
        sentences, order = order[:most], order[most:]
        rows = 1
        while rows < len(sentences):
            rows *= 8
        batches.append(Batch(sentences, min(rows, most), source_length))
    return batches


class Decoder:
    """Answers sentences with a model. Keep it: what it compiled serves later calls too, also with other parameters."""

    def __init__(self, model: Transformer, config: DecodeConfig) -> None:
        self.model, self.config = model, config
        search = greedy if config.beam_size == 1 and config.early_stopping else beam_search
        self.search = jax.jit(functools.partial(search, model, config=config), static_argnames="room")

    def generate(
        self,
        params: VariableDict,
        sources: Sequence[Sequence[int]],
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[list[Hypothesis]]:
        """The answers to each source (token ids with EOS), best first, in the order of the sources.

        After every batch `progress` is told how many sentences are done, of how many.

        Raises: ValueError where a source is longer than the model has positions for.
        """
        limit = getattr(self.model.config.positions, "max_positions", None)
        for i, source in enumerate(sources):
            if limit is not None and len(source) > limit:
                raise ValueError(
                    f"source {i} has {len(source)} tokens, but model.positions.max_positions is {limit}: shorten the sentence"
                )
        answers: list[list[Hypothesis]] = [[] for _ in sources]
        done = 0
        for batch in plan_batches([len(source) for source in sources], self.config.batch_tokens):
            found = self.answer(params, [sources[i] for i in batch.sentences], batch, limit)
            for i, hypotheses in zip(batch.sentences, found, strict=True):
                answers[i] = hypotheses
            done += len(batch.sentences)
            progress(done, len(sources))
        return answers

    def answer(
        self, params: VariableDict, sources: Sequence[Sequence[int]], batch: Batch, limit: int | None
    ) -> list[list[Hypothesis]]:
        """The answers to one batch; rows without a sentence have a maximum length of 0 and so are done at once."""
        width = min(batch.source_length, limit or batch.source_length)
        room = min(self.config.max_length(batch.source_length), limit or math.inf)
        tokens = np.full((batch.rows, width), PAD, np.int32)
        mask = np.zeros((batch.rows, width), bool)
        max_lengths = np.zeros(batch.rows, np.int32)
        for row, source in enumerate(sources):
            tokens[row, : len(source)] = source
            mask[row, : len(source)] = True
            max_lengths[row] = min(room, self.config.max_length(len(source)))
        decoded = jax.device_get(self.search(params, tokens, mask, room=room, max_lengths=max_lengths))
        return [
            [Hypothesis(t[:n].tolist(), float(score)) for t, n, score in zip(*row, strict=True) if score > -math.inf]
            for row in zip(*(x[: len(sources)] for x in decoded), strict=True)
        ]
