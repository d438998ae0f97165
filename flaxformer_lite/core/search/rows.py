"""A search in compiled parts, so that rows whose answers are done leave the batch, and only the others are computed on.

    rows    64 ━━━━━━━━━━━━━━━━┓ 48 are done
            16                 ┗━━━━━━┓ 60 are done    each line is a program of its own, compiled when it is first needed
             8                        ┗━━━━━━━━━━━━┫ all are done
    steps    0                16     21           40

The steps are those of `finish`. A step with another number of rows may round the last bit of a score differently, as in a batch
of another size.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Int, PyTree

from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.model.kernels import platform
from flaxformer_lite.core.placement.batches import padded_rows
from flaxformer_lite.core.placement.placement import ONE_DEVICE, Placement
from flaxformer_lite.core.search.search import (
    Decoded,
    Method,
    SearchInputs,
    SearchSettings,
    advance,
    grow_cache,
    stages,
)
from flaxformer_lite.core.search.settings import DecodeConfig

CHUNK_TOKENS = 4
"""The tokens of an answer that are generated before the host reads them."""


class Weights(NamedTuple):
    """The variables of each model of a search, as they are given and as its steps read them: a copy, owned by this value's holder.

    To make the copy takes as long as ten steps of one row: a third of the answer to one short sentence.
    """

    given: tuple[VariableDict, ...]
    laid_out: tuple[VariableDict, ...]


class Search:
    """The compiled parts of a search. Several models predict together, by beams only."""

    def __init__(self, models: tuple[Transformer, ...], method: Method, placement: Placement = ONE_DEVICE) -> None:
        self.models, self.method, self.placement = models, method, placement
        self.start = jax.jit(self._start, static_argnames="settings")
        self.advance = jax.jit(self._advance, static_argnames="config", donate_argnames="state")
        self.grow = jax.jit(self._grow, static_argnames="capacity")
        """For devices other than one CPU: see `resized`."""

    @property
    def compiled(self) -> tuple[Any, ...]:
        """The functions that JAX compiles for each shape."""
        return self.start, self.advance, self.grow

    def _start(
        self, variables: Sequence[VariableDict], batch: SearchInputs, settings: SearchSettings
    ) -> tuple[SearchInputs, Any]:
        """Returns the inputs of the steps, and the state before the first one, with room for those of the first stage."""
        started: tuple[SearchInputs, Any] = self.placement.by_rows(
            functools.partial(self.start_rows, settings=settings)
        )(variables, batch)
        return started

    def start_rows(
        self, variables: Sequence[VariableDict], batch: SearchInputs, settings: SearchSettings
    ) -> tuple[SearchInputs, Any]:
        """Returns the result of `start` for the rows of one group of devices."""
        inputs, state = self.method.start(self.models, variables, batch, settings)
        capacity = self.capacity(inputs, settings, stages(settings.max_new_tokens)[0])
        return inputs, state._replace(cache=grow_cache(state.cache, capacity))

    def _advance(
        self,
        variables: Sequence[VariableDict],
        inputs: SearchInputs,
        state: object,
        max_steps: Int[Array, ""],
        few: Int[Array, ""],
        config: DecodeConfig,
    ) -> tuple[Any, Decoded]:
        """Returns the state after `max_steps` steps, or when at most `few` rows are active; and the answers in it."""

        def of_group(
            variables: Sequence[VariableDict], inputs: SearchInputs, state: object, *limits: Int[Array, ""]
        ) -> tuple[Any, Decoded]:
            step = functools.partial(self.method.step, self.models, variables, inputs, config)
            state = advance(step, state, *limits)
            return state, self.method.answers(inputs, config, state)

        def outputs_for(inputs: SearchInputs, state: object, *limits: Int[Array, ""]) -> tuple[Any, Decoded]:
            return state, self.method.answers(inputs, config, state)

        function = self.placement.by_rows(of_group, outputs_for)
        advanced: tuple[Any, Decoded] = function(variables, inputs, state, max_steps, few)
        return advanced

    def _grow(self, cache: PyTree, capacity: int) -> PyTree:
        """Returns the cache with `capacity` slots."""
        return self.placement.by_rows(lambda _, cache: grow_cache(cache, capacity))((), cache)

    @property
    def on_one_cpu(self) -> bool:
        """Whether a step's time grows with the rows, so that rows whose answers are done leave the batch."""
        return self.placement.mesh is None and platform() == "cpu"

    def capacity(self, inputs: SearchInputs, settings: SearchSettings, steps: int) -> int:
        """Returns the slots of the cache that `steps` steps need."""
        return self.method.room(self.models[0], settings.config, inputs.prefill_length, steps)

    def __call__(
        self,
        weights: Weights,
        batch: SearchInputs,
        settings: SearchSettings,
        over: Bool[np.ndarray, "B"],
        chunks: bool = False,
    ) -> Iterator[Decoded]:
        """Yields the answers of all rows as they grow, and at last the whole ones, in the same arrays on the host.

        Between two yields the caller may end rows, by `over`. With `chunks` answers grow by one token, then by `CHUNK_TOKENS` at a
        time.
        """
        inputs, state = self.start(weights.given, batch, settings=settings)
        members = np.arange(len(over))
        active = np.asarray(batch.max_lengths) > 0
        step = 0
        pauses = iter(stages(settings.max_new_tokens))
        room = next(pauses)
        whole = None
        while whole is None or active.any():
            few = fewer_rows(len(active)) if self.on_one_cpu else 0
            most = room
            if chunks:
                most = min(room, step + CHUNK_TOKENS if step else 1)
            state, answers = self.advance(
                weights.laid_out, inputs, state, np.int32(most), np.int32(few), config=settings.config
            )
            answers, active, step = jax.device_get((answers, state.active, state.step))
            whole = whole or Decoded(*map(np.array, answers))  # type: ignore[arg-type]  # NumPy's, on the host
            for array, of_members in zip(whole, answers, strict=True):
                array[members] = of_members
            yield whole
            if over.any():
                active = active & ~over[members]
                state = state._replace(active=state.active & ~over[members])
            rows = len(active)
            full = step == room
            is_long = full and step >= LONG_STEPS and self.on_one_cpu
            if is_long or active.sum() <= few:
                rows = min(rows, max(1 if is_long else FEWEST_ROWS, padded_rows(int(active.sum()))))
            if active.any() and (full or rows < len(active)):
                room = next(pauses) if full else room
                order = np.argsort(~active, kind="stable")[:rows] if rows < len(active) else np.arange(rows)
                members, active = members[order], active[order]
                inputs, state = self.resized(inputs, state, order, self.capacity(inputs, settings, room))

    def resized(
        self, inputs: SearchInputs, state: Any, order: Int[np.ndarray, "_"], capacity: int
    ) -> tuple[SearchInputs, Any]:
        """Returns these rows, in this order, with `capacity` slots in the cache.

        All rows stay but on one CPU, where NumPy compiles nothing and copies rows only if some leave.
        """
        if not self.on_one_cpu:
            return inputs, state._replace(cache=self.grow(state.cache, capacity=capacity))
        place = state.step.sharding if state.step.committed else None
        if len(order) < len(state.active):
            host = jax.device_get((inputs, state))
            inputs, state = jax.tree.map(lambda x: jnp.asarray(x[order] if x.ndim else x), host)
        resized = inputs, state._replace(cache=grow_cache(state.cache, capacity, padded_on_host))
        # Arrays that are committed to a device stay committed: a program is compiled for each of the two kinds.
        return resized if place is None else jax.device_put(resized, place)

    def compile(self, weights: Weights, batch: SearchInputs, settings: SearchSettings) -> None:
        """Compiles the programs for this number of rows and every length of an answer; takes no step."""
        inputs, state = self.start(weights.given, batch, settings=settings)
        for steps in stages(settings.max_new_tokens):
            order = np.arange(len(batch.tokens))
            capacity = self.capacity(inputs, settings, steps)
            inputs, state = self.resized(inputs, state, order, capacity)
            state, _ = self.advance(weights.laid_out, inputs, state, np.int32(0), np.int32(0), config=settings.config)


FEWEST_ROWS = 8
"""The fewest rows that a batch keeps: fewer cost a CPU about as much, until the caches are long."""
LONG_STEPS = 32
"""Steps after which only the last row is computed. Most answers are shorter; one that does not end takes all the time."""


def fewer_rows(rows: int) -> int:
    """Returns the number of active rows at which the other rows leave a batch: a quarter; 0 for never.

    A batch of fewer rows needs a program of its own, so rows leave at a quarter, not at a half.
    """
    return rows // 4 if rows > FEWEST_ROWS else 0


def padded_on_host(x: Array, widths: Sequence[tuple[int, int]]) -> Array:
    """Returns the result of `jnp.pad`, without its compilation for each shape."""
    return jnp.asarray(np.pad(x, widths))
