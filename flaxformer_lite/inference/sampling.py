"""Filters on the scores of the next token, and draws from what they leave: pure functions. The alphabet is in `model/__init__.py`.

A token whose score is -inf cannot be chosen.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from flaxformer_lite.inference.config import DecodeConfig, Sampling

# What the settings demand -----------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """What a row has read when its next token is chosen: the tokens at the places `start` … `position`."""

    tokens: Int[Array, "*B W"]
    start: Int[Array, "*#B"]
    position: Int[Array, ""]

    @property
    def present(self) -> Bool[Array, "*#B W"]:
        """Which places hold a token that has been read."""
        places = jnp.arange(self.tokens.shape[-1])
        return (places >= self.start[..., None]) & (places <= self.position)


def process_logits(
    scores: Float[Array, "*B V"], read: Read, step: Int[Array, ""], last: Bool[Array, "*#B"], config: DecodeConfig
) -> Float[Array, "*B V"]:
    """The scores as `config` changes them, in the order of Hugging Face's library.

    `step` is the number of new tokens so far, `last` says where one more is all there may be.
    """
    if config.repetition_penalty != 1:
        scores = apply_repetition_penalty(
            scores, occurring(read.tokens, read.present, scores.shape[-1]), config.repetition_penalty
        )
    if config.no_repeat_ngram:
        scores = jnp.where(banned_ngram_tokens(read, config.no_repeat_ngram, scores.shape[-1]), -jnp.inf, scores)
    if config.suppress_ids:
        scores = scores.at[..., jnp.asarray(config.suppress_ids)].set(-jnp.inf)
    if config.min_new_tokens and config.end_ids:
        unended = scores.at[..., jnp.asarray(config.end_ids)].set(-jnp.inf)
        scores = jnp.where(step < config.min_new_tokens, unended, scores)
    if (forced := forced_ids(step, last, config)) is not None:
        only = jnp.where(jnp.arange(scores.shape[-1]) == forced[..., None], 0.0, -jnp.inf).astype(scores.dtype)
        scores = jnp.where(forced[..., None] >= 0, only, scores)
    if config.renormalize:
        total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
        scores = jnp.where(total > -jnp.inf, scores - total, scores)
    return scores


def forced_ids(step: Int[Array, ""], last: Bool[Array, "*B"], config: DecodeConfig) -> Int[Array, "*B"] | None:
    """The only token that is allowed, with a log-probability of 0; -1 where there is a choice, None where there always is."""
    if config.forced_bos_id is config.forced_eos_id is None:
        return None
    forced = jnp.full(last.shape, -1, jnp.int32)
    if config.forced_bos_id is not None:
        forced = jnp.where(step == 0, config.forced_bos_id, forced)
    if config.forced_eos_id is not None:
        forced = jnp.where(last, config.forced_eos_id, forced)
    return forced


def occurring(ids: Int[Array, "*B W"], where: Bool[Array, "*#B W"], vocab_size: int) -> Bool[Array, "*B V"]:
    """Which ids of the vocabulary are among those."""
    ids = jnp.where(where, ids, vocab_size)
    rows = ids.reshape(-1, ids.shape[-1])
    found = jnp.zeros((len(rows), vocab_size), bool).at[jnp.arange(len(rows))[:, None], rows].set(True, mode="drop")
    return found.reshape(*ids.shape[:-1], vocab_size)


def apply_repetition_penalty(
    scores: Float[Array, "*B V"], seen: Bool[Array, "*B V"], penalty: float
) -> Float[Array, "*B V"]:
    """Scores above 0 of what has been seen are divided by the penalty, the others multiplied."""
    return jnp.where(seen, jnp.where(scores > 0, scores / penalty, scores * penalty), scores)


def banned_ngram_tokens(read: Read, n: int, vocab_size: int) -> Bool[Array, "*B V"]:
    """Which next tokens would end n tokens in a row that have been read before."""
    tokens, start = read.tokens, read.start[..., None]
    windows = max(0, tokens.shape[-1] - n + 1)
    first = read.position - n + 2  # of the tokens that the next one would join
    same = (jnp.arange(windows) >= start) & (jnp.arange(windows) + n - 1 <= read.position)
    for i in range(n - 1):
        own = jnp.take(tokens, jnp.maximum(first + i, 0), axis=-1)
        same &= tokens[..., i : i + windows] == own[..., None]
    return occurring(tokens[..., n - 1 :], same, vocab_size)


# Draws ------------------------------------------------------------------------------------------------------------------


def row_keys(seed: Int[Array, ""], rows: Int[Array, "B"], samples: Int[Array, "B"]) -> Key[Array, "B"]:
    """A key for each answer: a function of the seed, the number of its row, and which of that row's answers it is."""
    key = jax.random.key(seed)
    return jax.vmap(lambda row, sample: jax.random.fold_in(jax.random.fold_in(key, row), sample))(rows, samples)


def sample_token(
    scores: Float[Array, "B V"], sampling: Sampling | None, keys: Key[Array, "B"] | None, step: Int[Array, ""]
) -> Int[Array, "B"]:
    """The best token of each row, the lowest id of equals; or, with a `sampling`, one drawn from what its filters leave."""
    if sampling is None or sampling.temperature == 0:
        return jax.lax.top_k(scores, 1)[1][:, 0]  # on a CPU argmax takes several times as long
    assert keys is not None
    now = jax.vmap(lambda key: jax.random.fold_in(key, step))(keys)
    return jax.vmap(jax.random.categorical)(now, warp_logits(scores, sampling)).astype(jnp.int32)


def warp_logits(scores: Float[Array, "B V"], sampling: Sampling) -> Float[Array, "B V"]:
    """The scores that tokens are drawn by, at a temperature above 0."""
    scores = scores / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        scores = keep_top_k(scores, sampling.top_k)
    if sampling.top_p < 1:
        scores = keep_top_p(scores, sampling.top_p)
    if sampling.min_p > 0:
        scores = keep_min_p(scores, sampling.min_p)
    return scores


def keep_top_k(scores: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """The k best scores and those that equal the last of them; -inf for the others."""
    return jnp.where(scores >= jax.lax.top_k(scores, k)[0][..., -1:], scores, -jnp.inf)


def keep_top_p(scores: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """The best scores whose tokens are together at least as probable as p, and those that equal the last of them."""
    best_first = -jnp.sort(-scores, axis=-1)
    probabilities = jax.nn.softmax(best_first)
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    worst = jnp.where(before < p, best_first, jnp.inf).min(-1, keepdims=True)
    return jnp.where(scores >= worst, scores, -jnp.inf)


def keep_min_p(scores: Float[Array, "B V"], p: float) -> Float[Array, "B V"]:
    """The scores of tokens that are at least p times as probable as the best."""
    return jnp.where(scores >= scores.max(-1, keepdims=True) + jnp.log(p), scores, -jnp.inf)
