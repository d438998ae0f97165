"""The next token's logits under the rules of the settings, and the choice of a token: pure functions.

The alphabet of shapes is in `model/__init__.py`. A token whose logit is -inf cannot be chosen.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Float32, Int, Key, UInt32

from flaxformer_lite.core.parallel.sharding import tensor_parts
from flaxformer_lite.core.search.settings import DecodeConfig

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
    repetition_penalty: Float[Array, "*#B"] | None = None,
    first: Int[Array, "*#B"] | None = None,
    beginning: Int[Array, "*#B W"] | None = None,
) -> Float[Array, "*B V"]:
    """Returns the logits (or log-probabilities) under the rules of `config`, applied in the order of Hugging Face's library.

    `step`: the number of new tokens so far. `is_last`: True in a row whose next token is the last that its maximum length allows.
    `repetition_penalty`: the penalty of each row in place of the config's; None: no row has any. `first`, `beginning`: see
    `forced_ids`.
    """
    vocab_size = logits.shape[-1]
    if repetition_penalty is not None:
        seen = mark_ids(history.tokens, history.mask, vocab_size)
        logits = apply_repetition_penalty(logits, seen, repetition_penalty)
    if 0 < config.no_repeat_ngram <= history.tokens.shape[-1]:  # a longer one has no room to occur
        logits = jnp.where(banned_ngram_tokens(history, config.no_repeat_ngram, vocab_size), -jnp.inf, logits)
    if config.suppress_ids:
        logits = logits.at[..., jnp.asarray(config.suppress_ids)].set(-jnp.inf)
    if config.min_new_tokens and config.eos_ids:
        ends = (jnp.arange(vocab_size)[:, None] == jnp.asarray(config.eos_ids)).any(-1)
        logits = jnp.where(ends & (step < config.min_new_tokens), -jnp.inf, logits)
    forced = forced_ids(step, is_last, config, first, beginning)
    if forced is not None:
        only_forced = jnp.where(jnp.arange(vocab_size) == forced[..., None], 0.0, -jnp.inf).astype(logits.dtype)
        logits = jnp.where(forced[..., None] >= 0, only_forced, logits)
    if config.renormalize:
        total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
        logits = jnp.where(total > -jnp.inf, logits - total, logits)
    return logits


def forced_ids(
    step: Int[Array, ""],
    is_last: Bool[Array, "*B"],
    config: DecodeConfig,
    first: Int[Array, "*#B"] | None = None,
    beginning: Int[Array, "*#B W"] | None = None,
) -> Int[Array, "*B"] | None:
    """Returns the only token allowed in each row, -1 if the choice is free; None if no token at all is forced.

    `first`: the first token of each row's answer in place of the config's. `beginning`: the tokens after it, -1 for a free choice.
    """
    if config.forced_bos_id is config.forced_eos_id is None and beginning is None:
        return None
    forced = jnp.full(is_last.shape, -1, jnp.int32)
    if config.forced_bos_id is not None:
        forced = jnp.where(step == 0, config.forced_bos_id if first is None else first, forced)
    if beginning is not None:
        place = step - (config.forced_bos_id is not None)
        token = jnp.take(beginning, place, axis=-1, mode="fill", fill_value=-1)
        forced = jnp.where((place >= 0) & (token >= 0), token, forced)
    if config.forced_eos_id is not None:
        forced = jnp.where(is_last, config.forced_eos_id, forced)
    return forced


def mark_ids(ids: Int[Array, "*B W"], mask: Bool[Array, "*#B W"], vocab_size: int) -> Bool[Array, "*B V"]:
    """Returns True for the ids of the vocabulary that are in `ids` at a position of `mask`."""
    ids = jnp.where(mask, ids, vocab_size)
    rows = ids.reshape(-1, ids.shape[-1])
    marks = jnp.zeros((len(rows), vocab_size), bool)
    numbers = jnp.arange(len(rows))[:, None]
    marks = marks.at[numbers, rows].set(True, mode="drop")
    return marks.reshape(*ids.shape[:-1], vocab_size)


def apply_repetition_penalty(
    logits: Float[Array, "*B V"], seen: Bool[Array, "*B V"], penalty: Float[Array, "*#B"]
) -> Float[Array, "*B V"]:
    """Returns the logits with those of `seen` tokens divided by `penalty` if above 0, else multiplied."""
    factor = penalty.astype(logits.dtype)[..., None]
    return jnp.where(seen, logits * jnp.where(logits > 0, 1 / factor, factor), logits)


def banned_ngram_tokens(history: TokenHistory, n: int, vocab_size: int) -> Bool[Array, "*B V"]:
    """Returns True for the next tokens that would complete an n-gram that the history already contains."""
    tokens = history.tokens
    start = history.start[..., None]
    windows = tokens.shape[-1] - n + 1
    first = history.position - n + 2  # the first position of the n-gram that the next token would complete
    matches = (jnp.arange(windows) >= start) & (jnp.arange(windows) + n - 1 <= history.position)
    for i in range(n - 1):
        newest = jnp.take(tokens, jnp.maximum(first + i, 0), axis=-1)
        matches &= tokens[..., i : i + windows] == newest[..., None]
    return mark_ids(tokens[..., n - 1 :], matches, vocab_size)


# Choosing a token ---------------------------------------------------------------------------------------------------------


class RowSampling(NamedTuple):
    """The numbers of `Sampling` for each row, as inputs of a compiled search: other numbers compile nothing."""

    keys: Key[Array, "B"]
    temperature: Float[Array, "B"]
    """Above 0."""
    top_p: Float[Array, "B"]
    log_min_p: Float[Array, "B"]
    """Logarithm of min_p; -inf for a min_p of 0."""


def sample_keys(seeds: Int[Array, "*#B"], rows: Int[Array, "*B"], samples: Int[Array, "*B"]) -> Key[Array, "*B"]:
    """Returns one random key for each answer: a function of its seed, the index of its row, and the number of its sample."""
    fold = jax.vmap(lambda seed, row, sample: jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), row), sample))
    return fold(jnp.broadcast_to(seeds, rows.shape), rows, samples)


def sample_token(
    logits: Float[Array, "B V"], sampling: RowSampling | None, k: int, step: Int[Array, ""]
) -> Int[Array, "B"]:
    """Returns each row's most probable token, the lowest id of equals; with a `sampling`, one drawn with the row's key.

    `k`: the number of tokens to draw from, see `Sampling.top_k`.
    """
    if sampling is None:
        return top_k(logits, 1)[1][:, 0]
    step_keys = jax.vmap(lambda key: jax.random.fold_in(key, step))(sampling.keys)

    def draw(logits: Float[Array, "B V"]) -> Int[Array, "B"]:
        return jax.vmap(jax.random.categorical)(step_keys, logits).astype(jnp.int32)

    # Without filters the product of `scale_logits` and the sum in `draw` become one instruction, which rounds differently. So these
    # rows are drawn apart: a row's token depends on its own settings only. A batch with filters in all rows or in none draws once.
    filtered = (sampling.top_p < 1) | (sampling.log_min_p > -jnp.inf)
    nothing = functools.partial(jnp.zeros_like, filtered, jnp.int32)
    plain = jax.lax.cond(filtered.all(), nothing, lambda: draw(scale_logits(logits, sampling.temperature, k)))
    warped = jax.lax.cond(filtered.any(), lambda: draw(warp_logits(logits, sampling, k)), nothing)
    return jnp.where(filtered, warped, plain)


def warp_logits(logits: Float[Array, "B V"], sampling: RowSampling, k: int) -> Float[Array, "B V"]:
    """Returns the logits that tokens are drawn by: temperature, top-k, top-p, min-p, in this order."""
    logits = scale_logits(logits, sampling.temperature, k)
    return filter_min_p(filter_top_p(logits, sampling.top_p), sampling.log_min_p)


def scale_logits(logits: Float[Array, "B V"], temperature: Float[Array, "B"], k: int) -> Float[Array, "B V"]:
    """Returns the logits after temperature and top-k; a `k` of 0 keeps all."""
    logits = logits * (1 / temperature.astype(logits.dtype))[:, None]
    return filter_top_k(logits, k) if 0 < k < logits.shape[-1] else logits


def filter_top_k(logits: Float[Array, "B V"], k: int) -> Float[Array, "B V"]:
    """Returns the k largest logits and those equal to the smallest of them; -inf for the others."""
    return jnp.where(logits >= top_k(logits, k)[0][..., -1:], logits, -jnp.inf)


def filter_top_p(logits: Float[Array, "B V"], p: Float[Array, "B"]) -> Float[Array, "B V"]:
    """Returns the fewest largest logits whose probabilities sum to p or more, equal ones by their ids; -inf for the others.

    The bits of the smallest are found one after the other, by 32 sums over the row: a sort takes a CPU 20 times as long.
    """
    probabilities, bits = jax.nn.softmax(logits), ascending_bits(logits.astype(jnp.float32))
    # Sums that equal p up to rounding count; with a p of 1, so do logits whose probability is rounded to 0.
    enough = jnp.where(p < 1, p * (1 - 2**-20), jnp.inf)

    def mass(chosen: Bool[Array, "B V"]) -> Float[Array, "B"]:
        return jnp.where(chosen, probabilities, 0).sum(-1)

    num_bits = jnp.where((p < 1).any(), 32, 0)  # no step if no row filters: all logits stay
    least = largest_integer(lambda least: mass(bits >= least[:, None]) >= enough, len(p), num_bits)
    smallest = jnp.where(bits >= least[:, None], logits, jnp.inf).min(-1, keepdims=True)
    equal = logits == smallest

    def first_equals() -> Bool[Array, "B V"]:
        each = jnp.where(equal, probabilities, 0).max(-1)
        needed = jnp.where(p < 1, jnp.ceil((enough - mass(logits > smallest)) / each), jnp.inf)
        ids = jnp.arange(logits.shape[-1], dtype=jnp.uint32)

        def too_few_before(last: UInt32[Array, "B"]) -> Bool[Array, "B"]:
            return (equal & (ids < last[:, None])).sum(-1) < needed

        last = largest_integer(too_few_before, len(p), logits.shape[-1].bit_length())
        return equal & (ids <= last[:, None])

    equal = jax.lax.cond((equal.sum(-1) > 1).any(), first_equals, lambda: equal)
    return jnp.where((logits > smallest) | equal, logits, -jnp.inf)


def largest_integer(
    holds: Callable[[UInt32[Array, "B"]], Bool[Array, "B"]], rows: int, num_bits: int | Int[Array, ""]
) -> UInt32[Array, "B"]:
    """Returns for each row the largest integer of `num_bits` bits that `holds`; 0 if no integer does.

    If an integer holds, all smaller ones must.
    """

    def add_bit(i: Int[Array, ""], integer: UInt32[Array, "B"]) -> UInt32[Array, "B"]:
        larger = integer | (jnp.uint32(1) << (num_bits - 1 - i).astype(jnp.uint32))
        return jnp.where(holds(larger), larger, integer)

    return jax.lax.fori_loop(0, num_bits, add_bit, jnp.zeros(rows, jnp.uint32))


def ascending_bits(x: Float32[Array, "B V"]) -> UInt32[Array, "B V"]:
    """Returns integers in the order of the numbers, made of their bits; that of 0.0 comes after that of -0.0."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits & sign, ~bits, bits | sign)


def filter_min_p(logits: Float[Array, "B V"], log_p: Float[Array, "B"]) -> Float[Array, "B V"]:
    """Returns the logits of tokens at least p times as probable as the most probable one; -inf for the others."""
    return jnp.where(logits >= logits.max(-1, keepdims=True) + log_p[:, None], logits, -jnp.inf)


# The largest of many numbers --------------------------------------------------------------------------------------------------

BLOCK = 64
"""Numbers in a block: a row of 40,000 has 625 blocks, about as many as the 640 numbers that a search for ten then reads."""


def top_k(x: Float[Array, "B *K V"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Returns the k largest numbers of each row, largest first, and their indices; of equal numbers the first comes first.

    Indices count a row's numbers over all axes. Devices that divide the last axis search their own parts, and exchange k numbers.
    """
    parts = tensor_parts(x.shape[-1])
    size = x.shape[-1]
    if parts == 1:
        return top_k_of_rows(x.reshape(len(x), -1), k)

    def of_part(x: Float[Array, "B *K W"], part: Int[Array, "1"]) -> tuple[Array, Array]:
        width = x.shape[-1]
        values, places = top_k_of_rows(x.reshape(len(x), -1), min(k, math.prod(x.shape[1:])))
        indices = places // width * size + part * width + places % width
        gathered = (jax.lax.all_gather(each, "tensor", axis=1, tiled=True) for each in (-values, indices))
        negative, indices = jax.lax.sort(tuple(gathered), num_keys=2)
        return -negative[:, :k], indices[:, :k]

    divided, whole = PartitionSpec(*[None] * (x.ndim - 1), "tensor"), PartitionSpec()
    in_parts = jax.shard_map(
        of_part, in_specs=(divided, PartitionSpec("tensor")), out_specs=whole, axis_names={"tensor"}, check_vma=False
    )
    answer: tuple[Array, Array] = in_parts(x, jnp.arange(parts, dtype=jnp.int32))
    return answer


def top_k_of_rows(x: Float[Array, "B W"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Returns the result of `top_k` for rows that are whole.

    Only the k blocks with the largest maxima are searched: each has a number that comes before all numbers of the other blocks.
    """
    batch, width = x.shape
    num_blocks = width // BLOCK
    if num_blocks < 4 * k:
        return best(x, k)
    full = num_blocks * BLOCK
    maxima = x[:, :full].reshape(batch, num_blocks, BLOCK).max(-1)
    if full < width:
        maxima = jnp.concatenate([maxima, x[:, full:].max(-1, keepdims=True)], -1)
    # In the order of the row, so that the first of equal numbers still comes first.
    blocks = jnp.sort(best(maxima, k)[1], axis=-1)
    indices = (blocks[..., None] * BLOCK + jnp.arange(BLOCK, dtype=blocks.dtype)).reshape(batch, k * BLOCK)
    candidates = jnp.take_along_axis(x, indices, 1, mode="fill", fill_value=-jnp.inf)
    values, places = best(candidates, k)
    return values, jnp.take_along_axis(indices, places, 1)


def best(x: Float[Array, "B W"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Returns `jax.lax.top_k`, in the form that is fast on a CPU."""
    # Without barriers XLA sorts whole rows on a CPU; one for both arrays aborts JAX 0.10 on several devices.
    values, indices = map(jax.lax.optimization_barrier, jax.lax.top_k(x, k))
    return values, indices
