"""Greedy and beam search, and drawing at random, with a cache: pure functions of arrays, compiled once a shape. `decoding.py` is
their host side.

A model with an encoder answers a source, from BOS on. One without goes on with a prompt, whose rows are filled up on the left.
Either way P tokens are given: all but the last go into the cache first, and then one at a time is read.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.inference.config import DecodeConfig, PromptAttention
from flaxformer_lite.model.cache import KeyValue, LayerCache
from flaxformer_lite.model.inputs import Inputs
from flaxformer_lite.model.transformer import Transformer


class Decoded(NamedTuple):
    """Answers, best first. The score of one that does not exist is -inf. R is the room."""

    tokens: Int[Array, "B K R"]
    """Without what they start from and without their end, filled up with PAD."""
    lengths: Int[Array, "B K"]
    """Tokens of each answer, without its end; `max_lengths` where it was cut."""
    scores: Float[Array, "B K"]


class DecodeInputs(NamedTuple):
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


@runtime_checkable
class SearchState(Protocol):
    """What the loop needs of a search: how far it is, which sentences are not done, and the cache."""

    @property
    def step(self) -> Int[Array, ""]: ...
    @property
    def active(self) -> Bool[Array, "B"]: ...
    @property
    def cache(self) -> LayerCache: ...
    def _replace(self, *, cache: LayerCache) -> Any: ...


State = TypeVar("State", bound=SearchState)


def prefill(
    model: Transformer,
    variables: VariableDict,
    source_tokens: Int[Array, "B S"],
    source_mask: Bool[Array, "B S"],
    config: DecodeConfig,
    prompt_attention: PromptAttention = "causal",
) -> tuple[DecodeInputs, LayerCache]:
    """What is given, and the cache that decoding starts from, with no room yet for what is new.

    Under `prompt_attention` "full" the prompt's last token is read too, because the others attend to it. Its slot is then dropped:
    the first step reads it again, with the same key and value, as it does under "causal".
    """
    bound, batch = model.bind(variables), len(source_tokens)
    if model.config.num_encoder_layers:
        given = DecodeInputs(jnp.full((batch, 1), config.bos_id, jnp.int32), None, source_mask)
        return given, bound.start_cache(bound.encode(Inputs(source_tokens=source_tokens, source_mask=source_mask)), 0)
    given = DecodeInputs(source_tokens, (~source_mask).sum(1), None)
    causal = prompt_attention == "causal"
    tokens = source_tokens[:, :-1] if causal else source_tokens
    cache = bound.start_cache(None, tokens.shape[1], batch)
    if given.width:
        _, cache = bound.decode_step(tokens, jnp.int32(0), cache, padded=given.padded, causal=causal)
    return given, cache if causal else cache._replace(own=KeyValue(*(x[:, :, : given.width] for x in cache.own)))


def is_end(token: Int[Array, "*B"], config: DecodeConfig) -> Bool[Array, "*B"]:
    """Which of the tokens end an answer."""
    return functools.reduce(jnp.logical_or, (token == i for i in config.end_ids), jnp.zeros(token.shape, bool))


def decode_loop(step: Callable[[State], State], state: State, room: int, keys: Callable[[int], int]) -> State:
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
