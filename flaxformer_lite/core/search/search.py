"""Shared by greedy search, sampling and beam search: the prompt in the cache (prefill), and the loop over new tokens.

A `Method` is one of the two searches, as pure functions of arrays: `rows.py` compiles them in parts, once a batch shape. A model
with an encoder answers a source; its decoder starts from BOS. A decoder-only model continues a prompt, padded on the left. Both
are P tokens here: the first P - 1 go into the cache at once (prefill), the last one is the input of the first step. R is the
number of new tokens that the arrays have room for.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.model import Inputs, Transformer
from flaxformer_lite.core.model.contexts import Caches, DecodeCache, map_own
from flaxformer_lite.core.model.fast import with_layout
from flaxformer_lite.core.model.transformer import step_copies
from flaxformer_lite.core.parallel.sharding import constrain_sharding
from flaxformer_lite.core.search.sampling import RowSampling
from flaxformer_lite.core.search.settings import DecodeConfig, PromptAttention


class Decoded(NamedTuple):
    """K answers of each row, best first; the score of an answer that does not exist is -inf."""

    tokens: Int[Array, "B K R"]
    """New tokens without the end, padded with `decode.pad_id` on the right."""
    lengths: Int[Array, "B K"]
    """Tokens of each answer without its end; the maximum length if the answer was cut."""
    scores: Float[Array, "B K"]


class SearchInputs(NamedTuple):
    """A padded batch, before and after `prefill`; a row without a source or prompt has a maximum length of 0."""

    tokens: Int[Array, "B P"]
    """Sources or prompts; after the prefill, the tokens that the decoder starts from: BOS or the prompt."""
    mask: Bool[Array, "B S"] | None
    """True at tokens; after the prefill None, unless the model has an encoder."""
    max_lengths: Int[Array, "B"]
    """The most tokens of each answer, its end included."""
    sampling: RowSampling | None = None
    """None: the most probable tokens are chosen."""
    repetition_penalty: Float[Array, "B"] | None = None
    """None: no row has any."""
    start: Int[Array, "B"] | None = None
    """The token that each answer to a source starts from; None: `decode.bos_id`."""
    first: Int[Array, "B"] | None = None
    """The forced first token of each answer; None: `decode.forced_bos_id`."""
    beginning: Int[Array, "B W"] | None = None
    """The tokens that each answer begins with, after `first`, padded with -1; None: no row has any."""
    terms: Any = None
    """The `RowTerms` of a beam search; None: no row has any."""
    left_padding: Int[Array, "B"] | None = None
    """Number of padding positions at the start of each prompt; None: no row has any."""

    @property
    def prefill_length(self) -> int:
        """The number of positions that go into the cache before the first step, P - 1."""
        return self.tokens.shape[1] - 1

    @property
    def first_positions(self) -> Int[Array, "#B"]:
        """The position of each row's first token."""
        return jnp.zeros(1, jnp.int32) if self.left_padding is None else self.left_padding


class SearchSettings(NamedTuple):
    """The constants of a compiled search."""

    config: DecodeConfig
    """Its temperature, top_p, min_p and repetition_penalty have no effect: those of `SearchInputs` count, and so do `start` and
    `first` where they are set."""
    max_new_tokens: int
    """Tokens that the arrays of answers have room for, at least the longest of `max_lengths`."""
    prompt_attention: PromptAttention = "causal"


class Method(NamedTuple):
    """A search by a model, or by several that predict together. Its state has at least `step`, `active` and `cache`."""

    start: Callable[
        [Sequence[Transformer], Sequence[VariableDict], SearchInputs, SearchSettings], tuple[SearchInputs, Any]
    ]
    """Returns the inputs of the steps, and the state before the first one; its cache has room for the prompt only."""
    step: Callable[[Sequence[Transformer], Sequence[VariableDict], SearchInputs, DecodeConfig, Any], Any]
    """Returns the state with one more token in each active answer. It reads the variables that `laid_out` returns."""
    answers: Callable[[SearchInputs, DecodeConfig, Any], Decoded]
    """Returns the answers that a state has."""
    room: Callable[[Transformer, DecodeConfig, int, int], int]
    """Returns the slots of the cache for a prefill of that many positions, and that many steps."""


Copies = tuple[dict[str, Any], ...]
"""The variables of each model that the steps of a search read in another layout."""


def step_layouts(models: Sequence[Transformer], variables: Sequence[VariableDict], num_ids: int | None) -> Copies:
    """Returns each model's variables that the steps of a search read in another layout. `num_ids`: see `step_copies`."""
    return tuple(step_copies(*member, num_ids) for member in zip(models, variables, strict=True))


def laid_out(variables: Sequence[VariableDict], copies: Copies) -> tuple[VariableDict, ...]:
    """Returns each model's variables as the steps of a search read them; those without a copy are the same arrays."""
    return tuple(with_layout(*member) for member in zip(variables, copies, strict=True))


def finish(
    method: Method,
    models: Sequence[Transformer],
    variables: Sequence[VariableDict],
    inputs: SearchInputs,
    state: Any,
    settings: SearchSettings,
) -> Decoded:
    """Returns the answers to a batch from the state that `method.start` returned. Its rows stay until the last one is done."""
    config = settings.config
    read = laid_out(variables, step_layouts(models, variables, config.num_ids))
    step = functools.partial(method.step, models, read, inputs, config)
    for max_steps in stages(settings.max_new_tokens):
        capacity = method.room(models[0], config, inputs.prefill_length, max_steps)
        state = advance(step, state._replace(cache=grow_cache(state.cache, capacity)), max_steps)
    return method.answers(inputs, config, state)


def prefill(
    model: Transformer, variables: VariableDict, batch: SearchInputs, settings: SearchSettings
) -> tuple[SearchInputs, DecodeCache]:
    """Returns the inputs of the steps, and the cache: the encoded source, or all of the prompt but its last token.

    The cache has no room for new tokens yet; see `grow_cache`. Under `prompt_attention` "full" the prompt's last token is part of
    the prefill, because the others attend to it. Its slot is dropped: the first step writes the same key and value again.
    """
    bound = model.bind(variables)
    tokens = batch.tokens
    mask = batch.mask
    if model.config.num_encoder_layers:
        start = jnp.full(len(tokens), settings.config.start_id, jnp.int32) if batch.start is None else batch.start
        memory = bound.encode(Inputs(source_tokens=tokens, source_mask=mask))
        return batch._replace(tokens=start[:, None]), bound.start_cache(memory, 0)
    assert mask is not None
    inputs = batch._replace(mask=None, left_padding=(~mask).sum(1))
    causal = settings.prompt_attention == "causal"
    tokens = tokens[:, :-1] if causal else tokens
    cache = bound.start_cache(None, tokens.shape[1], len(tokens))
    if inputs.prefill_length:
        _, cache = bound.decode_step(tokens, jnp.int32(0), cache, padded=inputs.left_padding, causal=causal)
    if not causal:
        cache = map_own(lambda x: x[..., : inputs.prefill_length, :], cache)
    return inputs, cache


def known_logits(logits: Float[Array, "*B V"], model: Transformer, config: DecodeConfig) -> Float[Array, "*B V"]:
    """Returns the logits with -inf for ids that no answer has: those of padded tables, and those from `decode.num_ids` on."""
    num_ids = model.config.output_size if config.num_ids is None else config.num_ids
    if logits.shape[-1] == num_ids:
        return logits
    return jnp.where(jnp.arange(logits.shape[-1]) < num_ids, logits, -jnp.inf)


def is_end(token: Int[Array, "*B"], config: DecodeConfig) -> Bool[Array, "*B"]:
    """Returns True for the tokens that end an answer."""
    return functools.reduce(jnp.logical_or, (token == i for i in config.eos_ids), jnp.zeros(token.shape, bool))


def stages(max_new_tokens: int) -> list[int]:
    """Returns the numbers of steps at which the cache of a search grows, and the maximum: each is a loop of its own.

    A step costs time for every slot of the cache, filled or not, and most answers are far shorter than the maximum.
    """
    return [*(steps for steps in (16, 32, 64, 128, 256, 512, 1024) if 2 * steps <= max_new_tokens), max_new_tokens]


def advance(
    step: Callable[[Any], Any], state: Any, max_steps: int | Int[Array, ""], few: int | Int[Array, ""] = 0
) -> Any:
    """Returns the state once `max_steps` steps are done, or at most `few` rows are active."""
    return jax.lax.while_loop(lambda state: (state.active.sum() > few) & (state.step < max_steps), step, state)


def grow_cache(cache: Caches, capacity: int, pad: Callable[..., Array] = jnp.pad) -> Caches:
    """Returns the cache, or each of several models' caches, with `capacity` slots for the decoder's own keys and values.

    `pad`: `jnp.pad`, or a function with its result.
    """

    def grow(x: Array) -> Array:
        widths = [(0, capacity - size if axis == x.ndim - 2 else 0) for axis, size in enumerate(x.shape)]
        return constrain_sharding(pad(x, widths), "B K S H")

    return map_own(grow, cache)


def answer_score(config: DecodeConfig, log_prob: Float[Array, "*B"], length: Int[Array, "*#B"]) -> Float[Array, "*B"]:
    """Returns the scores that rank answers; `length` is `len` in the formulas at `decode.length_penalty`.

    Reference: Wu et al. 2016, arXiv:1609.08144, equation 14 (gnmt, without the coverage term).
    """
    return log_prob if config.length_penalty == "none" else log_prob / config.divisor(length.astype(log_prob.dtype))
