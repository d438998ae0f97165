"""Beam search: K open beams a row, whose keys and values share one cache and never move.

The slots of the cache, for each row of the batch (K = `decode.beam_size`):

    [ prompt | step 0: beams 0…K-1 | step 1: beams 0…K-1 | … ]

`prompt` holds the positions that all beams share: P - 1, or the last of these if every layer has a sliding window. Step t writes K
keys, one a beam. `BeamState.ancestors` says which of them a beam attends to: when beams are dropped and others split, only these
indices are reordered. For K = 2, if both beams of step 2 continue beam 1 of step 1, which continued beam 0 of step 0:

    slots         | prompt | step 0: b0 b1 | step 1: b0 b1 | step 2: b0 b1 |
    beam 0 reads  | all    |         x     |            x  |         x     |  ancestors [0, 1, 0]
    beam 1 reads  | all    |         x     |            x  |            x  |  ancestors [0, 1, 1]
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.model.contexts import DecodeCache, StepContext, masks_by_window, slot_positions
from flaxformer_lite.core.model.layers import accumulation_dtype
from flaxformer_lite.core.model.masks import AttentionMask, combine_masks, padding_mask
from flaxformer_lite.core.search.sampling import TokenHistory, forced_ids, process_logits, top_k
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
from flaxformer_lite.core.search.terms import Choice, TermBeams, begun, choose


class BeamState(NamedTuple):
    """The state between two steps: the open beams, the best finished answers, and the cache."""

    step: Int[Array, ""]
    """Steps done, which is the number of new tokens in every open beam."""
    tokens: Int[Array, "B K P+R"]
    ancestors: Int[Array, "B K R"]
    """For each step, the beam whose key of that step is this beam's own or its ancestor's; -1 for later steps."""
    log_probs: Float[Array, "B K"]
    """Sum of the new tokens' log-probabilities; -inf for a beam that does not exist."""
    finished: Decoded
    active: Bool[Array, "B"]
    cache: tuple[DecodeCache, ...]
    """The cache of each model: of one, or of all members of an ensemble."""
    counts: Int[Array, "B K M"] | None = None
    """Number of times that each beam has each of `SearchInputs.terms`."""
    settled: Int[Array, "B"] | None = None
    """With terms: the number of finished answers that keep their places, as `enough` were found."""


def start_beams(
    models: Sequence[Transformer], variables: Sequence[VariableDict], batch: SearchInputs, settings: SearchSettings
) -> tuple[SearchInputs, BeamState]:
    """Returns the inputs of the steps, and the state before the first one; its caches have room for the prompt only."""
    filled = [prefill(*member, batch, settings) for member in zip(models, variables, strict=True)]
    inputs = filled[0][0]
    return inputs, init_beam_state(inputs, tuple(cache for _, cache in filled), settings)


def beams_room(model: Transformer, config: DecodeConfig, prefill_length: int, steps: int) -> int:
    """Returns the slots of the cache that `steps` steps need: the slots that the beams share, and K for each step."""
    return model.cache_room(prefill_length) + steps * config.beam_size


def beam_answers(inputs: SearchInputs, config: DecodeConfig, state: BeamState) -> Decoded:
    """Returns the best finished answers."""
    return Decoded(*(x[:, : config.num_hypotheses] for x in state.finished))


def beams_step(
    models: Sequence[Transformer],
    variables: Sequence[VariableDict],
    inputs: SearchInputs,
    config: DecodeConfig,
    state: BeamState,
) -> BeamState:
    """Returns the state with one more token in each beam, by the mean probabilities of all models."""
    ancestors = state.ancestors.at[..., state.step].set(jnp.arange(config.beam_size, dtype=jnp.int32))
    state = state._replace(ancestors=ancestors)
    shared = models[0].cache_room(inputs.prefill_length)
    predictions = [
        beam_log_probs(model.bind(variables), state, cache, inputs, shared, config)
        for model, variables, cache in zip(models, variables, state.cache, strict=True)
    ]
    token_log_probs = log_mean_probs([log_probs for log_probs, _ in predictions])
    history = TokenHistory(state.tokens, inputs.first_positions[:, None], inputs.prefill_length + state.step)
    is_last = (state.step + 1 == inputs.max_lengths)[:, None]
    penalty, *forced = (
        None if x is None else x[:, None] for x in (inputs.repetition_penalty, inputs.first, inputs.beginning)
    )
    model_log_probs = token_log_probs
    token_log_probs = process_logits(token_log_probs, history, state.step, is_last, config, penalty, *forced)
    state = state._replace(cache=tuple(cache for _, cache in predictions))
    if inputs.terms is None:
        return beam_step(state, token_log_probs, inputs.max_lengths, config)
    certain = forced_ids(state.step, is_last, config, *forced)
    if certain is not None:
        model_log_probs = jnp.where(certain[..., None] >= 0, -jnp.inf, model_log_probs)
    first = inputs.prefill_length + 1
    parts = begun(state.tokens, first + state.step, first, inputs.terms)
    left = inputs.max_lengths - state.step - 1
    assert state.counts is not None
    beams = TermBeams(state.log_probs, state.counts, parts)
    ended, chosen = choose(beams, token_log_probs, model_log_probs, left, inputs.terms, config)
    assert chosen.complete is not None
    best_open = jnp.where(chosen.complete, chosen.log_probs, -jnp.inf).max(-1)
    return extended(state, ended, chosen, best_open, inputs.max_lengths, config)


def log_mean_probs(log_probs: Sequence[Float[Array, "B K V"]]) -> Float[Array, "B K V"]:
    """Returns the logarithm of the mean probability over the members of an ensemble."""
    if len(log_probs) == 1:
        return log_probs[0]
    return jax.nn.logsumexp(jnp.stack(log_probs), axis=0) - math.log(len(log_probs))


def init_beam_state(inputs: SearchInputs, caches: tuple[DecodeCache, ...], settings: SearchSettings) -> BeamState:
    """Returns the state before the first step: K equal beams (only the first one counts) and no finished answer."""
    config, max_new_tokens = settings.config, settings.max_new_tokens
    (batch, width), k = inputs.tokens.shape, config.beam_size
    zeros = jnp.zeros((batch, k), accumulation_dtype(caches[0][0].own.key))
    tokens = jnp.pad(inputs.tokens, ((0, 0), (0, max_new_tokens)), constant_values=config.pad_id)
    return BeamState(
        step=jnp.int32(0),
        tokens=jnp.broadcast_to(tokens[:, None], (batch, k, width + max_new_tokens)),
        ancestors=jnp.full((batch, k, max_new_tokens), -1, jnp.int32),
        log_probs=zeros.at[:, 1:].set(-jnp.inf),
        finished=Decoded(
            tokens=jnp.full((batch, k, max_new_tokens), config.pad_id, jnp.int32),
            lengths=jnp.zeros((batch, k), jnp.int32),
            scores=zeros - jnp.inf,
        ),
        active=inputs.max_lengths > 0,
        cache=caches,
        counts=None if inputs.terms is None else jnp.zeros((batch, k, inputs.terms.times.shape[1]), jnp.int32),
        settled=None if inputs.terms is None else jnp.zeros(batch, jnp.int32),
    )


def cache_positions(prefill_length: int, shared: int, num_steps: int, k: int) -> Int[Array, "S"]:
    """Returns the position stored in each cache slot: `shared` slots of the prompt, then K slots for each step.

    Negative for a slot of the prompt that is empty.
    """
    positions = prefill_length + jnp.arange(num_steps * k) // k
    if not shared:
        return positions
    return jnp.concatenate([slot_positions(jnp.int32(prefill_length - 1), shared), positions])


def beam_log_probs(
    model: Transformer,
    state: BeamState,
    cache: DecodeCache,
    inputs: SearchInputs,
    shared: int,
    config: DecodeConfig,
) -> tuple[Float[Array, "B K V"], DecodeCache]:
    """Returns a model's log-probabilities of each beam's next token, and its cache with each beam's newest token in it.

    `model` is bound and `cache` is its own; the first `shared` slots of the cache hold the prompt.
    """
    batch, k, _ = state.ancestors.shape
    num_steps = (cache[0].room - shared) // k
    position = inputs.prefill_length + state.step
    first = inputs.first_positions[:, None]
    key_positions = cache_positions(inputs.prefill_length, shared, num_steps, k)
    lineage = (state.ancestors[..., :num_steps, None] == jnp.arange(k)).reshape(batch, 1, k, num_steps * k)
    lineage = jnp.concatenate([jnp.ones((batch, 1, k, shared), bool), lineage], -1)
    started = padding_mask(key_positions >= first)

    def mask(window: int | None) -> AttentionMask:
        near = None if window is None else position - key_positions < window
        return AttentionMask(combine_masks(lineage, started, near))

    context = StepContext(
        positions=jnp.broadcast_to(position - first, (len(first), k)),
        key_positions=key_positions - first,
        masks=masks_by_window(model.config.sliding_window, mask),
        memory_mask=AttentionMask(padding_mask(inputs.mask)),
        first_slot=shared + state.step * k,
    )
    embedded = model.embed(state.tokens[..., position], model.target_table)
    hidden, new_cache = model.decoder.step(embedded, cache, context)
    logits = known_logits(model.logits(hidden), model, config)
    return jax.nn.log_softmax(logits.astype(accumulation_dtype(logits))), new_cache


def beam_step(
    state: BeamState, token_log_probs: Float[Array, "B K V"], max_lengths: Int[Array, "B"], config: DecodeConfig
) -> BeamState:
    """Returns the state after one more token a beam, by the log-probabilities of the beams' next tokens."""
    k, vocab_size = token_log_probs.shape[1:]
    length = state.step + 1
    candidates = state.log_probs[..., None] + token_log_probs
    log_probs, flat = top_k(candidates, (1 + len({*config.eos_ids})) * k)
    beam, token = flat // vocab_size, flat % vocab_size
    end = is_end(token, config)
    limit = (length == max_lengths)[:, None]

    ends = end if not config.finish_at_limit else end | limit
    ended = Choice(beam[:, :k], token[:, :k], jnp.where(ends[:, :k], log_probs[:, :k], -jnp.inf))
    # A beam can end in one way for each end id, so at least K stay open; the stable sort keeps their order.
    open_ = jnp.argsort(end, axis=-1, stable=True)[:, :k]
    best_open = log_probs[:, 0] if not config.finish_at_limit else jnp.take_along_axis(log_probs, open_, 1)[:, 0]
    chosen = Choice(*(jnp.take_along_axis(x, open_, 1) for x in (beam, token, log_probs)))
    return extended(state, ended, chosen, best_open, max_lengths, config)


def extended(
    state: BeamState,
    ended: Choice,
    chosen: Choice,
    best_open: Float[Array, "B"],
    max_lengths: Int[Array, "B"],
    config: DecodeConfig,
) -> BeamState:
    """Returns the state after a step: beams that have `ended` are finished, and those that are `chosen` go on.

    Rows that are not active finish nothing more.
    """
    length = state.step + 1
    limit = (length == max_lengths)[:, None]
    exists = ended.log_probs != -jnp.inf
    ending = continued(state, exists, ended.beam, ended.token, ended.log_probs, length, config)
    finished = merge_best(state.finished, ending, state.settled)
    settled = state.settled
    bound_length: Int[Array, "#B"] = length[None]
    if config.early_stopping == "never" and config.alpha > 0:
        bound_length = max_lengths + (not config.finish_at_limit)
    # Only some of the beams of a search with terms have all terms.
    enough = config.beam_size if settled is None else max(1, config.beam_size // 2)
    worst = finished.scores[:, enough - 1]
    beaten = (config.early_stopping is True) | (worst >= answer_score(config, best_open, bound_length))
    done = (worst > -jnp.inf) & beaten
    if settled is not None:
        done |= settled > 0
        settled = jnp.where(done, (finished.scores > -jnp.inf).sum(-1, dtype=jnp.int32), 0)
        done &= settled >= config.num_hypotheses
    beam, token, log_probs, counts, _ = chosen
    if not config.finish_at_limit:
        cut = continued(state, ~done[:, None] & limit, beam, token, log_probs, length + 1, config)
        finished = merge_best(finished, cut, settled)
    position = state.tokens.shape[-1] - state.ancestors.shape[-1] + state.step
    return state._replace(
        step=length,
        tokens=gather_beams(state.tokens, beam).at[..., position].set(token),
        ancestors=gather_beams(state.ancestors, beam),
        log_probs=log_probs,
        finished=finished,
        active=state.active & ~done & (length < max_lengths),
        counts=counts,
        settled=settled,
    )


def continued(
    state: BeamState,
    where: Bool[Array, "B #K"],
    beam: Int[Array, "B K"],
    token: Int[Array, "B K"],
    log_probs: Float[Array, "B K"],
    scored_length: Int[Array, ""],
    config: DecodeConfig,
) -> Decoded:
    """Returns the answers that are beams continued by one token; an end id is dropped.

    The score is -inf where `where` is False, and in rows that are not active. `scored_length` is `len` in the score's formula.
    """
    width = state.tokens.shape[-1] - state.ancestors.shape[-1]
    end = is_end(token, config)
    tokens = gather_beams(state.tokens, beam).at[..., width + state.step].set(jnp.where(end, config.pad_id, token))
    scores = jnp.where(where & state.active[:, None], answer_score(config, log_probs, scored_length), -jnp.inf)
    return Decoded(tokens[..., width:], state.step + 1 - end, scores)


def merge_best(first: Decoded, second: Decoded, settled: Int[Array, "B"] | None = None) -> Decoded:
    """Returns the best K of two times K answers, best first; ties go to `first`, then to the earlier answer.

    settled: the number of answers in `first` that keep their places.
    """
    both = Decoded(*(jnp.concatenate(pair, 1) for pair in zip(first, second, strict=True)))
    scores = both.scores
    k = first.scores.shape[1]
    if settled is not None:
        scores = jnp.where(jnp.arange(2 * k) < settled[:, None], jnp.inf, scores)
    _, order = jax.lax.top_k(scores, k)
    return Decoded(*(gather_beams(x, order) for x in both))


def gather_beams(x: Array, beams: Int[Array, "B K"]) -> Array:
    """Returns the given beams of each row, in the given order; beams are the second axis of `x`."""
    return jax.vmap(lambda x, beams: x[beams])(x, beams)


BEAM_SEARCH = Method(start_beams, beams_step, beam_answers, beams_room)
"""The `config.num_hypotheses` best answers that a beam of K = `config.beam_size` finds; `config` is that of `SearchSettings`.

Each step takes the best 2K continuations of the K open beams by their log-probability (3K with two end ids, and so on). A
continuation that ends is finished if it is among the best K, else dropped. The best K of the others stay open. The K finished
answers with the best scores are kept.

A row is done when it has K finished answers and `early_stopping` is True, or no open beam can beat the worst of them: scored as
if it ended now, or with early_stopping "never" as if it ended as late as allowed. At `SearchInputs.max_lengths` tokens (EOS
counts) open beams join the finished answers: without `finish_at_limit` only in a row that is not done.

Ties go to the earlier answer, then to the better beam, then to the lowest id.

Several models have an encoder and the same vocabulary each; the probabilities of the next token are the mean of all.

With `SearchInputs.terms` an answer has all its terms, and beams compete as terms.py says. Only open beams with all terms count for
`early_stopping`. Half of K finished answers are enough then. If more answers are asked for, the search goes on, and later ones come
behind. So the best answers do not depend on the number that is asked for.
"""
