"""A search in compiled parts, so that rows whose answers are done leave the batch, and the others are computed alone.

    rows    64 ━━━━━━━━━━━━━━━━┓ 48 are done
            16                 ┗━━━━━━┓ 60 are done    each line is a program of its own, compiled when it is first needed
             8                        ┗━━━━━━━━━━━━┫ all are done
    steps    0                16     21           40

The steps are those of `decode_loop`. A step of other rows may round the last bit of a score otherwise, as it does for a batch of
another size.
"""

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Int

from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.model.kernels import platform
from flaxformer_lite.core.model.transformer import step_variables
from flaxformer_lite.core.search.batches import padded_rows
from flaxformer_lite.core.search.beam import BeamState, beam_answers, beams_room, beams_step, start_beams
from flaxformer_lite.core.search.greedy import GreedyState, greedy_answers, greedy_room, greedy_step, init_greedy_state
from flaxformer_lite.core.search.search import (
    Decoded,
    SearchInputs,
    SearchSettings,
    advance,
    grow_cache,
    prefill,
    stages,
)
from flaxformer_lite.core.search.settings import DecodeConfig

State = GreedyState | BeamState
CHUNK_TOKENS = 4
"""The tokens of an answer between two looks at it."""


class Layouts:
    """The variables of the last search as its steps read them, kept for the next one as long as all its parameters live.

    The copy takes as long as ten steps of one row: a third of the answer to one short sentence.
    """

    def __init__(self) -> None:
        self.last: tuple[list[weakref.ref[Array]], dict[Any, list[VariableDict]]] = ([], {})

    def of(
        self, variables: Sequence[VariableDict], key: Any, lay_out: Callable[[], list[VariableDict]]
    ) -> list[VariableDict]:
        """Returns what `lay_out` returns; `key` tells apart the layouts of the same variables."""
        leaves, (owners, kept) = jax.tree.leaves(variables), self.last
        if not all(isinstance(leaf, jax.Array) for leaf in leaves):
            return lay_out()  # NumPy's arrays may change
        if [id(owner()) for owner in owners] != [id(leaf) for leaf in leaves]:
            kept = {}
            # A train step replaces the parameters: then the copy goes too.
            self.last = [weakref.ref(leaf, lambda gone, kept=kept: kept.clear()) for leaf in leaves], kept
        if (found := kept.get(key)) is None:
            found = kept[key] = lay_out()
        return found


LAYOUTS = Layouts()


class Search:
    """The compiled parts of greedy search, or with `beams` of beam search. Several models predict together, by beams only."""

    def __init__(self, models: tuple[Transformer, ...], *, beams: bool) -> None:
        self.models, self.beams = models, beams
        self.copy = jax.jit(self._copy, static_argnums=1)
        self.start = jax.jit(self._start, static_argnames="settings")
        self.advance = jax.jit(self._advance, static_argnames="config", donate_argnames="state")
        self.resize = jax.jit(resize, static_argnames="capacity")
        """Serves other devices than a CPU: see `resized`."""

    def lay_out(self, variables: Sequence[VariableDict], num_ids: int | None) -> list[VariableDict]:
        """Returns each model's variables as the steps read them, for `decode.num_ids`; on a CPU, whose memory has room, kept."""
        if platform() != "cpu":
            return self.copy(variables, num_ids)
        return LAYOUTS.of(variables, (self.models, num_ids), lambda: self.copy(variables, num_ids))

    def _copy(self, variables: Sequence[VariableDict], num_ids: int | None) -> list[VariableDict]:
        return [step_variables(*member, num_ids) for member in zip(self.models, variables, strict=True)]

    def _start(
        self, variables: Sequence[VariableDict], batch: SearchInputs, settings: SearchSettings
    ) -> tuple[SearchInputs, State]:
        """Returns the inputs of the steps, and the state before the first one, with room for those of the first stage."""
        state: Any
        if self.beams:
            inputs, state = start_beams(self.models, variables, batch, settings)
        else:
            inputs, cache = prefill(self.models[0], variables[0], batch, settings)
            state = init_greedy_state(inputs, cache, settings)
        capacity = self.capacity(inputs, settings, stages(settings.max_new_tokens)[0])
        return inputs, state._replace(cache=grow_cache(state.cache, capacity))

    def _advance(
        self,
        variables: Sequence[VariableDict],
        inputs: SearchInputs,
        state: Any,
        max_steps: Int[Array, ""],
        few: Int[Array, ""],
        config: DecodeConfig,
    ) -> tuple[State, Decoded]:
        """Returns the state once so many steps are done, or no more than `few` rows are active; and the answers that it has."""
        if self.beams:
            beams = functools.partial(beams_step, self.models, variables, inputs, config)
            state = advance(beams, state, max_steps, few)
            return state, beam_answers(inputs, config, state)
        step = functools.partial(greedy_step, self.models[0], variables[0], inputs, config)
        state = advance(step, state, max_steps, few)
        return state, greedy_answers(inputs, config, state)

    def capacity(self, inputs: SearchInputs, settings: SearchSettings, steps: int) -> int:
        """Returns the slots of the cache that so many steps need."""
        if self.beams:
            return beams_room(self.models[0], settings.config, inputs.prefill_length, steps)
        return greedy_room(self.models[0], inputs.prefill_length, steps)

    def __call__(
        self,
        variables: Sequence[VariableDict],
        laid_out: Sequence[VariableDict],
        batch: SearchInputs,
        settings: SearchSettings,
        over: Bool[np.ndarray, "B"],
        chunks: bool = False,
    ) -> Iterator[Decoded]:
        """Yields the answers of all rows as they grow, in the same arrays on the host, and at last as they are.

        Between two of them the caller may end rows, by `over`. With `chunks` they grow by one token, then by `CHUNK_TOKENS` at a
        time. `laid_out`: see `lay_out`.
        """
        inputs, state = self.start(variables, batch, settings=settings)
        members, active, step = np.arange(len(over)), np.asarray(batch.max_lengths) > 0, 0
        pauses = iter(stages(settings.max_new_tokens))
        room, whole = next(pauses), None
        while whole is None or active.any():
            few = fewer_rows(len(active))
            most = min(room, step + CHUNK_TOKENS if step else 1) if chunks else room
            state, found = self.advance(laid_out, inputs, state, np.int32(most), np.int32(few), config=settings.config)
            found, active, step = jax.device_get((found, state.active, state.step))
            whole = whole or Decoded(*map(np.array, found))  # type: ignore[arg-type]  # NumPy's, on the host
            for array, part in zip(whole, found, strict=True):
                array[members] = part
            yield whole
            if over.any():
                active = active & ~over[members]
                state = state._replace(active=state.active & ~over[members])
            rows, full = len(active), step == room
            is_long = full and step >= LONG_STEPS and platform() == "cpu"
            if is_long or active.sum() <= few:
                rows = min(rows, max(1 if is_long else FEWEST_ROWS, padded_rows(int(active.sum()))))
            if active.any() and (full or rows < len(active)):
                room = next(pauses) if full else room
                order = np.argsort(~active, kind="stable")[:rows] if rows < len(active) else np.arange(rows)
                members, active = members[order], active[order]
                inputs, state = self.resized(inputs, state, order, self.capacity(inputs, settings, room))

    def resized(
        self, inputs: SearchInputs, state: Any, order: Int[np.ndarray, "_"], capacity: int
    ) -> tuple[SearchInputs, State]:
        """Returns what `resize` does; on a CPU by NumPy, which compiles nothing and leaves alone what keeps its rows."""
        found: tuple[SearchInputs, State]
        if platform() != "cpu":
            found = self.resize(inputs, state, order, capacity=capacity)
            return found
        place = state.step.sharding if state.step.committed else None
        if len(order) < len(state.active):
            host = jax.device_get((inputs, state))
            inputs, state = jax.tree.map(lambda x: jnp.asarray(x[order] if x.ndim else x), host)
        found = inputs, state._replace(cache=grow_cache(state.cache, capacity, padded_on_host))
        # Arrays that are bound to a device stay so: a program is compiled for either kind.
        return found if place is None else jax.device_put(found, place)

    def compile(self, variables: Sequence[VariableDict], batch: SearchInputs, settings: SearchSettings) -> None:
        """Compiles the programs of so many rows, for every length of an answer, and takes no step."""
        laid_out = self.lay_out(variables, settings.config.num_ids)
        inputs, state = self.start(variables, batch, settings=settings)
        for steps in stages(settings.max_new_tokens):
            order, capacity = np.arange(len(batch.tokens)), self.capacity(inputs, settings, steps)
            inputs, state = self.resized(inputs, state, order, capacity)
            state, _ = self.advance(laid_out, inputs, state, np.int32(0), np.int32(0), config=settings.config)


FEWEST_ROWS = 8
"""The rows that a batch keeps at least: fewer cost a CPU about as much, until the caches are long."""
LONG_STEPS = 32
"""Steps after which the last row is computed alone. Most answers are shorter; one that does not end takes all the time."""


def fewer_rows(rows: int) -> int:
    """Returns how many active rows of a batch are so few that the others leave it: a quarter; 0 for never.

    Fewer rows are a program of their own, which is compiled once: so not half of them, and only on a CPU, whose time goes with
    the rows.
    """
    return rows // 4 if rows > FEWEST_ROWS and platform() == "cpu" else 0


def padded_on_host(x: Array, widths: Sequence[tuple[int, int]]) -> Array:
    """Returns what `jnp.pad` does, which is compiled for each shape."""
    return jnp.asarray(np.pad(x, widths))


def resize(inputs: SearchInputs, state: Any, order: Int[Array, "_"], capacity: int) -> tuple[SearchInputs, Any]:
    """Returns these rows of a search, in this order, with so many slots in the cache."""
    inputs, state = jax.tree.map(lambda x: x[order] if x.ndim else x, (inputs, state))
    return inputs, state._replace(cache=grow_cache(state.cache, capacity))
