"""The next token's logits as the settings change them, and the token that is chosen: pure functions.

The alphabet of shapes is in `model/__init__.py`. A token whose logit is -inf cannot be chosen.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from flaxformer_lite.inference.config import DecodeConfig, Sampling
from flaxformer_lite.inference.top_k import top_k

# Processing: rules of `DecodeConfig` --------------------------------------------------------------------------------------


class TokenHistory(NamedTuple):
    """The tokens that precede a row's next token: those at the positions `start` … `position`, both included."""

    tokens: Int[Array, "*B W"]
    start: Int[Array, "*#B"]
    position: Int[Array, ""]

    @property
    def mask(self) -> Bool[Array, "*#B W"]:
        """True at the positions of the history."""
        positions = jnp.arange(self.tokens.shape[-1])
        return (positions >= self.start[..., None]) & (positions <= self.position)


def process_logits(
    logits: Float[Array, "*B V"],
    history: TokenHistory,
    step: Int[Array, ""],
    is_last: Bool[Array, "*#B"],
    config: DecodeConfig,
) -> Float[Array, "*B V"]:
    """Returns the logits (or log-probabilities) under the rules of `config`, applied in the order of Hugging Face's library.

    `step`: the number of new tokens so far. `is_last`: True in a row whose next token is the last that its maximum length allows.
    """
    vocab_size = logits.shape[-1]
    if config.repetition_penalty != 1:
        seen = mark_ids(history.tokens, history.mask, vocab_size)
        logits = apply_repetition_penalty(logits, seen, config.repetition_penalty)
    if config.no_repeat_ngram:
        logits = jnp.where(banned_ngram_tokens(history, config.no_repeat_ngram, vocab_size), -jnp.inf, logits)
    if config.suppress_ids:
        logits = logits.at[..., jnp.asarray(config.suppress_ids)].set(-jnp.inf)
    if config.min_new_tokens and config.eos_ids:
        ends = (jnp.arange(vocab_size)[:, None] == jnp.asarray(config.eos_ids)).any(-1)
        logits = jnp.where(ends & (step < config.min_new_tokens), -jnp.inf, logits)
    if (forced := forced_ids(step, is_last, config)) is not None:
        only_forced = jnp.where(jnp.arange(vocab_size) == forced[..., None], 0.0, -jnp.inf).astype(logits.dtype)
        logits = jnp.where(forced[..., None] >= 0, only_forced, logits)
    if config.renormalize:
        total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        logits = jnp.where(total > -jnp.inf, logits - total, logits)
    return logits


def forced_ids(step: Int[Array, ""], is_last: Bool[Array, "*B"], config: DecodeConfig) -> Int[Array, "*B"] | None:
    """Returns the only token allowed in each row, -1 if the choice is free; None if `config` forces no token at all."""
    if config.forced_bos_id is config.forced_eos_id is None:
        return None
    forced = jnp.full(is_last.shape, -1, jnp.int32)
    if config.forced_bos_id is not None:
        forced = jnp.where(step == 0, config.forced_bos_id, forced)
    if config.forced_eos_id is not None:
        forced = jnp.where(is_last, config.forced_eos_id, forced)
    return forced


def mark_ids(ids: Int[Array, "*B W"], mask: Bool[Array, "*#B W"], vocab_size: int) -> Bool[Array, "*B V"]:
    """Returns True for the ids of the vocabulary that are in `ids` at a position of `mask`."""
    ids = jnp.where(mask, ids, vocab_size)
    rows = ids.reshape(-1, ids.shape[-1])
    found = jnp.zeros((len(rows), vocab_size), bool).at[jnp.arange(len(rows))[:, None], rows].set(True, mode="drop")
    return found.reshape(*ids.shape[:-1], vocab_size)


def apply_repetition_penalty(
    logits: Float[Array, "*B V"], seen: Bool[Array, "*B V"], penalty: float
) -> Float[Array, "*B V"]:
    """Returns the logits with those of `seen` tokens divided by `penalty` if above 0, else multiplied."""
    return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def banned_ngram_tokens(history: TokenHistory, n: int, vocab_size: int) -> Bool[Array, "*B V"]:
    """Returns True for the next tokens that would complete an n-gram that the history already contains."""
    tokens, start = history.tokens, history.start[..., None]
    windows = max(0, tokens.shape[-1] - n + 1)
    first = history.position - n + 2  # the first position of the n-gram that the next token would complete
    matches = (jnp.arange(windows) >= start) & (jnp.arange(windows) + n - 1 <= history.position)
    for i in range(n - 1):
        newest = jnp.take(tokens, jnp.maximum(first + i, 0), axis=-1)
        matches &= tokens[..., i : i + windows] == newest[..., None]
    return mark_ids(tokens[..., n - 1 :], matches, vocab_size)


# Choosing a token ---------------------------------------------------------------------------------------------------------


def sample_keys(seeds: Int[Array, "*#B"], rows: Int[Array, "*B"], samples: Int[Array, "*B"]) -> Key[Array, "*B"]:
    """Returns one random key for each answer: a function of its seed, the index of its row, and the number of its sample."""
    fold = jax.vmap(lambda seed, row, sample: jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), row), sample))
    return fold(jnp.broadcast_to(seeds, rows.shape), rows, samples)


def sample_token(
    logits: Float[Array, "B V"], sampling: Sampling | None, keys: Key[Array, "B"] | None, step: Int[Array, ""]
) -> Int[Array, "B"]:
    """Returns each row's most probable token, the lowest id of equals; with a `sampling`, one drawn with the row's key."""
    if sampling is None or sampling.temperature == 0:
        return top_k(logits, 1)[1][:, 0]
    assert keys is not None
    step_keys = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
    return jax.vmap(jax.random.categorical)(step_keys, warp_logits(logits, sampling)).astype(jnp.int32)


def warp_logits(logits: Float[Array, "B V"], sampling: Sampling) -> Float[Array, "B V"]:
    """Returns the logits that tokens are drawn by: temperature (above 0), top-k, top-p, min-p, in this order."""
    logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = filter_top_k(logits, sampling.top_k)
    if sampling.top_p < 1:
        logits = filter_top_p(logits, sampling.top_p)
    if sampling.min_p > 0:
        logits = filter_min_p(logits, sampling.min_p)
    return logits


def filter_top_k(logits: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """Returns the k largest logits and those equal to the smallest of them; -inf for the others."""
    return jnp.where(logits >= jax.lax.top_k(logits, k)[0][..., -1:], logits, -jnp.inf)


def filter_top_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """Returns the fewest largest logits whose probabilities sum to p or more, and those equal to the smallest of them."""
    descending = -jnp.sort(-logits, axis=-1)
    probabilities = jax.nn.softmax(descending)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    smallest = jnp.where(before < p, descending, jnp.inf).min(-1, keepdims=True)
    return jnp.where(logits >= smallest, logits, -jnp.inf)


def filter_min_p(logits: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """Returns the logits of tokens at least p times as probable as the most probable one; -inf for the others."""
    return jnp.where(logits >= logits.max(-1, keepdims=True) + jnp.log(p), logits, -jnp.inf)
