"""Greedy search and sampling: one token at a time."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.model.contexts import DecodeCache
from flaxformer_lite.core.model.layers import accumulation_dtype
from flaxformer_lite.core.search.sampling import TokenHistory, forced_ids, process_logits, sample_token
from flaxformer_lite.core.search.search import (
    Decoded,
    Method,
    SearchInputs,
    SearchSettings,
    answer_score,
    is_end,
    known_logits,
    prefill,
)
from flaxformer_lite.core.search.settings import DecodeConfig


class GreedyState(NamedTuple):
    """The state between two steps: one answer a row."""

    step: Int[Array, ""]
    """Steps done, which is the number of new tokens in an active row."""
    tokens: Int[Array, "B P+R"]
    lengths: Int[Array, "B"]
    """New tokens without the end."""
    log_probs: Float[Array, "B"]
    """Sum of the new tokens' log-probabilities."""
    active: Bool[Array, "B"]
    cache: DecodeCache


def start_greedy(
    models: Sequence[Transformer], variables: Sequence[VariableDict], batch: SearchInputs, settings: SearchSettings
) -> tuple[SearchInputs, GreedyState]:
    """Returns the inputs of the steps, and the state before the first one; its cache has room for the prompt only."""
    inputs, cache = prefill(models[0], variables[0], batch, settings)
    size = len(inputs.tokens)
    room = ((0, 0), (0, settings.max_new_tokens))
    return inputs, GreedyState(
        step=jnp.int32(0),
        tokens=jnp.pad(inputs.tokens, room, constant_values=settings.config.pad_id),
        lengths=jnp.zeros(size, jnp.int32),
        log_probs=jnp.zeros(size, accumulation_dtype(cache[0].own.key)),
        active=inputs.max_lengths > 0,
        cache=cache,
    )


def greedy_room(model: Transformer, config: DecodeConfig, prefill_length: int, steps: int) -> int:
    """Returns the slots of the cache that `steps` steps need."""
    return model.cache_room(prefill_length + steps)


def greedy_answers(inputs: SearchInputs, config: DecodeConfig, state: GreedyState) -> Decoded:
    """Returns one answer a row; its score is that of the tokens so far."""
    lengths = state.lengths + 1 if not config.finish_at_limit else jnp.minimum(state.lengths + 1, inputs.max_lengths)
    scores = answer_score(config, state.log_probs, lengths)
    return Decoded(state.tokens[:, None, inputs.prefill_length + 1 :], state.lengths[:, None], scores[:, None])


def greedy_step(
    models: Sequence[Transformer],
    variables: Sequence[VariableDict],
    inputs: SearchInputs,
    config: DecodeConfig,
    state: GreedyState,
) -> GreedyState:
    """Returns the state with one more token in each active row."""
    position = inputs.prefill_length + state.step
    is_last = state.step + 1 == inputs.max_lengths
    token = state.tokens[:, position, None]
    model = models[0].bind(variables[0])
    logits, cache = model.decode_step(token, position, state.cache, inputs.mask, inputs.left_padding)
    logits = known_logits(logits[:, 0].astype(accumulation_dtype(logits)), models[0], config)
    history = TokenHistory(state.tokens, inputs.first_positions, position)
    forced = inputs.first, inputs.beginning
    processed = process_logits(logits, history, state.step, is_last, config, inputs.repetition_penalty, *forced)
    top_k = config.sampling.top_k if config.sampling else 0
    token = sample_token(processed, inputs.sampling, top_k, state.step)
    log_prob = jnp.take_along_axis(logits, token[:, None], 1)[:, 0] - jax.nn.logsumexp(logits, -1)
    certain = forced_ids(state.step, is_last, config, *forced)
    if certain is not None:
        log_prob = jnp.where(certain >= 0, 0, log_prob)
    is_left = jnp.take_along_axis(processed, token[:, None], 1)[:, 0] != -jnp.inf  # else the rules leave no token
    extends = state.active & is_left & ~is_end(token, config)
    return GreedyState(
        step=state.step + 1,
        tokens=state.tokens.at[:, position + 1].set(jnp.where(extends, token, config.pad_id)),
        lengths=state.lengths + extends,
        log_probs=state.log_probs + jnp.where(state.active & is_left, log_prob, 0),
        active=extends & ~is_last,
        cache=cache,
    )


GREEDY_SEARCH = Method(start_greedy, greedy_step, greedy_answers, greedy_room)
"""One answer a row, by one model: the most probable token at each step, or a sampled one if `SearchInputs.sampling` is set.

An answer ends with EOS, at `SearchInputs.max_lengths` tokens (EOS counts), or where the rules leave no token. Its score is made of
the model's own log-probabilities, before `process_logits`; a forced token counts as certain. The lowest id of equal tokens wins.
"""
