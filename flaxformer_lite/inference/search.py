"""Greedy and beam search, and drawing at random, with a cache: pure functions of arrays, compiled once a shape. `decoding.py` is
their host side.

A model with an encoder answers a source, from BOS on. One without goes on with a prompt, whose rows are filled up on the left.
Either way P tokens are given: all but the last go into the cache first, and then one at a time is read.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int, Key

from flaxformer_lite.inference.config import DecodeConfig
from flaxformer_lite.inference.sampling import Read, adjust, draw, forced_ids
from flaxformer_lite.model.blocks import Context
from flaxformer_lite.model.cache import KeyValue, LayerCache, latest_places
from flaxformer_lite.model.inputs import Inputs
from flaxformer_lite.model.masks import combine_masks, padding, padding_mask
from flaxformer_lite.model.numerics import accumulation_dtype
from flaxformer_lite.model.transformer import Transformer


class Decoded(NamedTuple):
    """Answers, best first. The score of one that does not exist is -inf. R is the room."""

    tokens: Int[Array, "B K R"]
    """Without what they start from and without their end, filled up with PAD."""
    lengths: Int[Array, "B K"]
    """Tokens of each answer, without its end; `max_lengths` where it was cut."""
    scores: Float[Array, "B K"]


class Given(NamedTuple):
    """What each row is answered from. It stays the same while the answer is written."""

    tokens: Int[Array, "B P"]
    """What the answer follows on from."""
    padded: Int[Array, "B"] | None
    """How many places at the start of each row hold no token; None: none does."""
    memory_mask: Bool[Array, "B S"] | None
    """Which places of the memory hold a token; None: there is no memory."""

    @property
    def width(self) -> int:
        """The places that go into the cache before the search, P - 1."""
        return self.tokens.shape[1] - 1

    @property
    def start(self) -> Int[Array, "#B"]:
        """The place of each row's first token."""
        return jnp.zeros(1, jnp.int32) if self.padded is None else self.padded


class GreedyState(NamedTuple):
    step: Int[Array, ""]
    """New tokens so far."""
    tokens: Int[Array, "B P+R"]
    lengths: Int[Array, "B"]
    sums: Float[Array, "B"]
    active: Bool[Array, "B"]
    cache: LayerCache


class BeamState(NamedTuple):
    """K open beams a sentence: K queries over one cache, which has first the places that they share, P - 1 or the last of these
    that a window needs, and then the beams' own keys, those of step t at t*K … t*K + K-1.

    Where beams are dropped and others split, no key or value moves. `slots` says, for each step in which a beam has
    read, which of the K keys there is its own or its ancestor's; it is -1 at the others.
    """

    step: Int[Array, ""]
    """New tokens so far."""
    tokens: Int[Array, "B K P+R"]
    slots: Int[Array, "B K R"]
    sums: Float[Array, "B K"]
    finished: Decoded
    active: Bool[Array, "B"]
    cache: LayerCache


State = TypeVar("State", GreedyState, BeamState)


def begin(
    model: Transformer,
    variables: VariableDict,
    source_tokens: Int[Array, "B S"],
    source_mask: Bool[Array, "B S"],
    config: DecodeConfig,
) -> tuple[Given, LayerCache]:
    """What is given, and the cache that decoding starts from, with no room yet for what is new."""
    bound, batch = model.bind(variables), len(source_tokens)
    if model.config.num_encoder_layers:
        given = Given(jnp.full((batch, 1), config.bos_id, jnp.int32), None, source_mask)
        return given, bound.start_cache(bound.encode(Inputs(source_tokens=source_tokens, source_mask=source_mask)), 0)
    given = Given(source_tokens, (~source_mask).sum(1), None)
    cache = bound.start_cache(None, given.width, batch)
    if given.width:
        _, cache = bound.decode_step(source_tokens[:, :-1], jnp.int32(0), cache, padded=given.padded)
    return given, cache


# One token at a time ----------------------------------------------------------------------------------------------------


def greedy(
    model: Transformer,
    variables: VariableDict,
    source_tokens: Int[Array, "B S"],
    source_mask: Bool[Array, "B S"],
    *,
    room: int,
    max_lengths: Int[Array, "B"],
    config: DecodeConfig,
    keys: Key[Array, "B"] | None = None,
) -> Decoded:
    """The answer that takes the most probable token at each step, the lowest id of equals; or, where `config` has a
    `sampling`, one that is drawn token by token, with the row's key.

    It ends with EOS, or is cut at `max_lengths` tokens (EOS counts), which may not be more than `room`. `config` gives the score,
    from the probabilities that the model itself gives the tokens; one that is forced counts as certain.
    """
    given, cache = begin(model, variables, source_tokens, source_mask, config)
    state = greedy_start(given, cache, room, max_lengths, config)
    step = functools.partial(
        greedy_step, model, variables, given=given, max_lengths=max_lengths, keys=keys, config=config
    )
    state = run(step, state, room, lambda steps: model.cache_room(given.width + steps))
    lengths = state.lengths + 1 if config.at_limit == "cut" else jnp.minimum(state.lengths + 1, max_lengths)
    scores = config.score(state.sums, lengths)
    return Decoded(state.tokens[:, None, given.width + 1 :], state.lengths[:, None], scores[:, None])


def open_stream(
    model: Transformer,
    variables: VariableDict,
    source_tokens: Int[Array, "B S"],
    source_mask: Bool[Array, "B S"],
    *,
    room: int,
    max_lengths: Int[Array, "B"],
    config: DecodeConfig,
) -> tuple[Given, GreedyState]:
    """What `advance` goes on from, to give the answers of `greedy` some tokens at a time."""
    given, cache = begin(model, variables, source_tokens, source_mask, config)
    return given, greedy_start(given, with_room(cache, model.cache_room(given.width + room)), room, max_lengths, config)


def advance(
    model: Transformer,
    variables: VariableDict,
    given: Given,
    state: GreedyState,
    *,
    most: Int[Array, ""],
    max_lengths: Int[Array, "B"],
    config: DecodeConfig,
    keys: Key[Array, "B"] | None = None,
) -> GreedyState:
    """The state after `most` further tokens, or when no row is active any more."""
    step = functools.partial(
        greedy_step, model, variables, given=given, max_lengths=max_lengths, keys=keys, config=config
    )
    return jax.lax.while_loop(functools.partial(unfinished, state.step + most), step, state)


def greedy_start(
    given: Given, cache: LayerCache, room: int, max_lengths: Int[Array, "B"], config: DecodeConfig
) -> GreedyState:
    batch = len(given.tokens)
    return GreedyState(
        step=jnp.int32(0),
        tokens=jnp.pad(given.tokens, ((0, 0), (0, room)), constant_values=config.pad_id),
        lengths=jnp.zeros(batch, jnp.int32),
        sums=jnp.zeros(batch, accumulation_dtype(cache.own.key)),
        active=max_lengths > 0,
        cache=cache,
    )


def greedy_step(
    model: Transformer,
    variables: VariableDict,
    state: GreedyState,
    *,
    given: Given,
    max_lengths: Int[Array, "B"],
    keys: Key[Array, "B"] | None,
    config: DecodeConfig,
) -> GreedyState:
    """The state with one more token in the rows that are active."""
    place, last = given.width + state.step, state.step + 1 == max_lengths
    logits, cache = model.bind(variables).decode_step(
        state.tokens[:, place, None], place, state.cache, given.memory_mask, given.padded
    )
    logits = logits[:, 0].astype(accumulation_dtype(logits))
    scores = adjust(logits, Read(state.tokens, given.start, place), state.step, last, config)
    token = draw(scores, config.sampling, keys, state.step)
    log_prob = jnp.take_along_axis(logits, token[:, None], 1)[:, 0] - jax.nn.logsumexp(logits, -1)
    if (forced := forced_ids(state.step, last, config)) is not None:
        log_prob = jnp.where(forced >= 0, 0, log_prob)
    word = state.active & ~is_end(token, config)
    return GreedyState(
        step=state.step + 1,
        tokens=state.tokens.at[:, place + 1].set(jnp.where(word, token, config.pad_id)),
        lengths=state.lengths + word,
        sums=state.sums + jnp.where(state.active, log_prob, 0),
        active=word & ~last,
        cache=cache,
    )


# Beams ------------------------------------------------------------------------------------------------------------------


def beam_search(
    model: Transformer,
    variables: VariableDict,
    source_tokens: Int[Array, "B S"],
    source_mask: Bool[Array, "B S"],
    *,
    room: int,
    max_lengths: Int[Array, "B"],
    config: DecodeConfig,
) -> Decoded:
    """The `config.num_hypotheses` best answers that a beam of K = `config.beam_size` finds.

    Each step takes the best 2K continuations of the K open beams, by the sum of log-probabilities (3K where there are two ids
    that end an answer, and so on). One that ends is finished if it is among the first K, else dropped; the best K others stay
    open. Of the finished answers the K with the best scores are kept. A sentence is done when it has K of them and either
    `early_stopping` is True or the worst is no worse than the best continuation would be, ending now (where that would be better
    and `early_stopping` is never: as late as it may). At `max_lengths` tokens (EOS counts; at most `room`) `at_limit` says what
    becomes of the open beams: cut, they join the finished answers of a sentence that is not done; else they have ended like
    others. Ties go to the earlier answer, then to the better beam, then to the lowest id.
    """
    k = config.beam_size
    given, cache = begin(model, variables, source_tokens, source_mask, config)
    (batch, width), shared = given.tokens.shape, cache.own.key.shape[2]

    def step(state: BeamState) -> BeamState:
        state = state._replace(slots=state.slots.at[..., state.step].set(jnp.arange(k, dtype=jnp.int32)))
        log_probs, cache = beam_log_probs(model.bind(variables), state, given, shared)
        read = Read(state.tokens, given.start[:, None], given.width + state.step)
        last = (state.step + 1 == max_lengths)[:, None]
        log_probs = adjust(log_probs, read, state.step, last, config)
        return select(state._replace(cache=cache), log_probs, max_lengths, config)

    zeros = jnp.zeros((batch, k), accumulation_dtype(cache.own.key))
    nothing = Decoded(
        jnp.full((batch, k, room), config.pad_id, jnp.int32), jnp.zeros((batch, k), jnp.int32), zeros - jnp.inf
    )
    tokens = jnp.pad(given.tokens, ((0, 0), (0, room)), constant_values=config.pad_id)
    state = BeamState(
        step=jnp.int32(0),
        tokens=jnp.broadcast_to(tokens[:, None], (batch, k, width + room)),
        slots=jnp.full((batch, k, room), -1, jnp.int32),
        sums=zeros.at[:, 1:].set(-jnp.inf),  # all beams start alike: only the first counts
        finished=nothing,
        active=max_lengths > 0,
        cache=cache,
    )
    state = run(step, state, room, lambda steps: shared + steps * k)
    return Decoded(*(x[:, : config.num_hypotheses] for x in state.finished))


def beam_log_probs(
    model: Transformer, state: BeamState, given: Given, shared: int
) -> tuple[Float[Array, "B K V"], LayerCache]:
    """Log-probabilities of the token after each beam's last, and the cache with that one in it; `model` is bound.

    The first `shared` keys in the cache are those of all beams.
    """
    batch, k, _ = state.slots.shape
    steps = (state.cache.own.key.shape[2] - shared) // k
    place, first = given.width + state.step, given.start[:, None]
    places = given.width + jnp.arange(steps * k) // k
    if shared:
        places = jnp.concatenate([latest_places(jnp.int32(given.width - 1), shared), places])
    own = (state.slots[..., :steps, None] == jnp.arange(k)).reshape(batch, 1, k, steps * k)
    own = jnp.concatenate([jnp.ones((batch, 1, k, shared), bool), own], -1)
    started = padding_mask(places >= first)

    def mask(window: int | None) -> Bool[Array, "B 1 K S"] | None:
        return combine_masks(own, started, None if window is None else place - places < window)

    context = Context(
        **model.masks("mask", mask),
        memory_mask=padding(given.memory_mask),
        key_positions=places - first,
        index=shared + state.step * k,
    )
    embedded = model.embed(state.tokens[..., place], model.target_table)
    hidden, cache = model.decoder(embedded, jnp.broadcast_to(place - first, (len(first), k)), context, state.cache)
    assert cache is not None
    logits = model.logits(hidden)
    return jax.nn.log_softmax(logits.astype(accumulation_dtype(logits))), cache


def select(
    state: BeamState, log_probs: Float[Array, "B K V"], max_lengths: Int[Array, "B"], config: DecodeConfig
) -> BeamState:
    """The state after the step that gave these log-probabilities. Sentences that are not active find nothing more."""
    batch, k, vocab_size = log_probs.shape
    width, length = state.tokens.shape[-1] - state.slots.shape[-1], state.step + 1
    candidates = (state.sums[..., None] + log_probs).reshape(batch, k * vocab_size)
    # Without barriers XLA sorts the whole vocabulary on a CPU; one for both arrays aborts JAX 0.10 on several devices.
    best = jax.lax.top_k(candidates, (1 + len(config.end_ids)) * k)
    sums, flat = map(jax.lax.optimization_barrier, best)
    beam, token = flat // vocab_size, flat % vocab_size
    end, limit = is_end(token, config), (length == max_lengths)[:, None]

    def found(where: Bool[Array, "B K"], beam: Array, token: Array, sums: Array, counted: Array) -> Decoded:
        end = is_end(token, config)
        tokens = take_beams(state.tokens, beam).at[..., width + state.step].set(jnp.where(end, config.pad_id, token))
        scores = jnp.where(where & state.active[:, None], config.score(sums, counted), -jnp.inf)
        return Decoded(tokens[..., width:], length - end, scores)

    ends = end if config.at_limit == "cut" else end | limit
    finished = best_of(state.finished, found(ends[:, :k], beam[:, :k], token[:, :k], sums[:, :k], length))
    # A beam has one way to end for each end id, hence at least K go on; the stable sort keeps their order.
    go_on = jnp.argsort(end, axis=-1, stable=True)[:, :k]
    best_sum = sums[:, 0] if config.at_limit == "cut" else jnp.take_along_axis(sums, go_on, 1)[:, 0]
    worst = finished.scores[:, -1]
    reach: Int[Array, "#B"] = length[None]
    if config.early_stopping == "never" and config.alpha > 0:
        reach = max_lengths + (config.at_limit == "cut")
    done = (worst > -jnp.inf) & ((config.early_stopping is True) | (worst >= config.score(best_sum, reach)))
    beam, token, sums = (jnp.take_along_axis(x, go_on, 1) for x in (beam, token, sums))
    if config.at_limit == "cut":
        finished = best_of(finished, found(~done[:, None] & limit, beam, token, sums, length + 1))
    return state._replace(
        step=length,
        tokens=take_beams(state.tokens, beam).at[..., width + state.step].set(token),
        slots=take_beams(state.slots, beam),
        sums=sums,
        finished=finished,
        active=state.active & ~done & (length < max_lengths),
    )


def best_of(first: Decoded, second: Decoded) -> Decoded:
    """The best K of two times K answers, in order; ties go to the first, then to the earlier."""
    both = Decoded(*(jnp.concatenate(pair, 1) for pair in zip(first, second, strict=True)))
    _, order = jax.lax.top_k(both.scores, first.scores.shape[1])
    return Decoded(*(take_beams(x, order) for x in both))


def take_beams(x: Array, beams: Int[Array, "B K"]) -> Array:
    """Of each sentence the given beams, in the given order; beams are the second axis of `x`."""
    return jax.vmap(lambda x, beams: x[beams])(x, beams)


# For both ---------------------------------------------------------------------------------------------------------------


def is_end(token: Int[Array, "*B"], config: DecodeConfig) -> Bool[Array, "*B"]:
    """Which of the tokens end an answer."""
    return functools.reduce(jnp.logical_or, (token == i for i in config.end_ids), jnp.zeros(token.shape, bool))


def run(step: Callable[[State], State], state: State, room: int, keys: Callable[[int], int]) -> State:
    """The state when no sentence is active any more; `keys` says how many keys there are in the cache after so many steps.

    A step costs time for all the room in the cache, used or not, and most answers are far shorter than they may be.
    So the room grows in stages, each a loop of its own: compiling takes longer, decoding half the time.
    """
    stages: list[int] = [steps for steps in (16, 32, 64, 128, 256, 512, 1024) if 2 * steps <= room]
    for steps in (*stages, room):
        state = state._replace(cache=with_room(state.cache, keys(steps)))
        state = jax.lax.while_loop(functools.partial(unfinished, steps), step, state)
    return state


def unfinished(steps: int | Int[Array, ""], state: State) -> Bool[Array, ""]:
    return state.active.any() & (state.step < steps)


def with_room(cache: LayerCache, room: int) -> LayerCache:
    """The cache with room for more positions of the decoder's own."""

    def grow(x: Array) -> Array:
        return jnp.pad(x, [(0, room - size if axis == 2 else 0) for axis, size in enumerate(x.shape)])

    return LayerCache(own=KeyValue(*map(grow, cache.own)), memory=cache.memory)
