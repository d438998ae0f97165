"""Greedy search and sampling: one token at a time."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int, Key

from flaxformer_lite.inference.config import DecodeConfig, PromptAttention
from flaxformer_lite.inference.sampling import Read, forced_ids, process_logits, sample_token
from flaxformer_lite.inference.search import Decoded, DecodeInputs, decode_loop, is_end, prefill, unfinished, with_room
from flaxformer_lite.model.cache import LayerCache
from flaxformer_lite.model.numerics import accumulation_dtype
from flaxformer_lite.model.transformer import Transformer


class GreedyState(NamedTuple):
    step: Int[Array, ""]
    """New tokens so far."""
    tokens: Int[Array, "B P+R"]
    lengths: Int[Array, "B"]
    sums: Float[Array, "B"]
    active: Bool[Array, "B"]
    cache: LayerCache


def greedy(
    model: Transformer,
    variables: VariableDict,
    source_tokens: Int[Array, "B S"],
    source_mask: Bool[Array, "B S"],
    *,
    room: int,
    max_lengths: Int[Array, "B"],
    config: DecodeConfig,
    prompt_attention: PromptAttention = "causal",
    keys: Key[Array, "B"] | None = None,
) -> Decoded:
    """The answer that takes the most probable token at each step, the lowest id of equals; or, where `config` has a
    `sampling`, one that is drawn token by token, with the row's key.

    It ends with EOS, or is cut at `max_lengths` tokens (EOS counts), which may not be more than `room`. `config` gives the score,
    from the probabilities that the model itself gives the tokens; one that is forced counts as certain.
    """
    given, cache = prefill(model, variables, source_tokens, source_mask, config, prompt_attention)
    state = greedy_start(given, cache, room, max_lengths, config)
    step = functools.partial(
        greedy_step, model, variables, given=given, max_lengths=max_lengths, keys=keys, config=config
    )
    state = decode_loop(step, state, room, lambda steps: model.cache_room(given.width + steps))
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
    prompt_attention: PromptAttention = "causal",
) -> tuple[DecodeInputs, GreedyState]:
    """What `decode_chunk` goes on from, to give the answers of `greedy` some tokens at a time."""
    given, cache = prefill(model, variables, source_tokens, source_mask, config, prompt_attention)
    return given, greedy_start(given, with_room(cache, model.cache_room(given.width + room)), room, max_lengths, config)


def decode_chunk(
    model: Transformer,
    variables: VariableDict,
    given: DecodeInputs,
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
    given: DecodeInputs, cache: LayerCache, room: int, max_lengths: Int[Array, "B"], config: DecodeConfig
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
    given: DecodeInputs,
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
    scores = process_logits(logits, Read(state.tokens, given.start, place), state.step, last, config)
    token = sample_token(scores, config.sampling, keys, state.step)
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
