"""Beam search over one cache."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.inference.config import DecodeConfig, PromptAttention
from flaxformer_lite.inference.sampling import Read, process_logits
from flaxformer_lite.inference.search import Decoded, DecodeInputs, decode_loop, is_end, prefill
from flaxformer_lite.model.blocks import LayerContext
from flaxformer_lite.model.cache import LayerCache, slot_positions
from flaxformer_lite.model.masks import combine_masks, padding, padding_mask
from flaxformer_lite.model.numerics import accumulation_dtype
from flaxformer_lite.model.transformer import Transformer


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


def beam_search(
    model: Transformer,
    variables: VariableDict,
    source_tokens: Int[Array, "B S"],
    source_mask: Bool[Array, "B S"],
    *,
    room: int,
    max_lengths: Int[Array, "B"],
    config: DecodeConfig,
    prompt_attention: PromptAttention = "causal",
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
    given, cache = prefill(model, variables, source_tokens, source_mask, config, prompt_attention)
    (batch, width), shared = given.tokens.shape, cache.own.key.shape[2]

    def step(state: BeamState) -> BeamState:
        state = state._replace(slots=state.slots.at[..., state.step].set(jnp.arange(k, dtype=jnp.int32)))
        log_probs, cache = beam_log_probs(model.bind(variables), state, given, shared)
        read = Read(state.tokens, given.start[:, None], given.width + state.step)
        last = (state.step + 1 == max_lengths)[:, None]
        log_probs = process_logits(log_probs, read, state.step, last, config)
        return beam_step(state._replace(cache=cache), log_probs, max_lengths, config)

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
    state = decode_loop(step, state, room, lambda steps: shared + steps * k)
    return Decoded(*(x[:, : config.num_hypotheses] for x in state.finished))


def beam_log_probs(
    model: Transformer, state: BeamState, given: DecodeInputs, shared: int
) -> tuple[Float[Array, "B K V"], LayerCache]:
    """Log-probabilities of the token after each beam's last, and the cache with that one in it; `model` is bound.

    The first `shared` keys in the cache are those of all beams.
    """
    batch, k, _ = state.slots.shape
    steps = (state.cache.own.key.shape[2] - shared) // k
    place, first = given.width + state.step, given.start[:, None]
    places = given.width + jnp.arange(steps * k) // k
    if shared:
        places = jnp.concatenate([slot_positions(jnp.int32(given.width - 1), shared), places])
    own = (state.slots[..., :steps, None] == jnp.arange(k)).reshape(batch, 1, k, steps * k)
    own = jnp.concatenate([jnp.ones((batch, 1, k, shared), bool), own], -1)
    started = padding_mask(places >= first)

    def mask(window: int | None) -> Bool[Array, "B 1 K S"] | None:
        return combine_masks(own, started, None if window is None else place - places < window)

    context = LayerContext(
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


def beam_step(
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
