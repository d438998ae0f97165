"""The devices that answer: the one place of searches and predictions that knows of them.

    mesh data 2, tensor 2     ┌ device 0 ┬ device 1 ┐   group 0: one batch; each device has a half of the heads, widths and ids
                              ├ device 2 ┼ device 3 ┤   group 1: another batch of the same shape
                              └──────────┴──────────┘

A group computes what a single device computes for a batch of that shape, so the number of groups changes no answer. Groups exchange
nothing while they search: each ends by itself. Devices of a group exchange activations, never weights.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.core.parallel.compiler import quick_options
from flaxformer_lite.core.parallel.mesh import make_mesh, row_groups
from flaxformer_lite.core.parallel.sharding import MESH_AXES, ROW_AXES, within_mesh
from flaxformer_lite.core.placement.batches import InputBatch

AnswerT = TypeVar("AnswerT")


class Prepared(NamedTuple):
    """A batch with the arrays that a compiled function reads for it."""

    batch: InputBatch
    arrays: Any
    """A tree of arrays with a leading axis of rows."""
    settings: Any = None
    """Constants of the compiled function."""

    @property
    def form(self) -> Any:
        """The part that batches have in common if one call answers them."""
        leaves, structure = jax.tree.flatten(self.arrays)
        return self.settings, structure, [(x.shape, x.dtype) for x in leaves]


@dataclass(frozen=True)
class Placement:
    """Groups of devices with a batch each."""

    mesh: Mesh | None = None
    """The axis `data` has the groups, `tensor` the devices of a group. None: one device, which the arrays themselves name."""

    @property
    def groups(self) -> int:
        """The number of batches that are answered side by side."""
        return 1 if self.mesh is None else row_groups(self.mesh)

    @property
    def tensor(self) -> int:
        """The number of devices of a group."""
        return 1 if self.mesh is None else int(self.mesh.shape["tensor"])

    def jitted(self, function: Callable[..., Any], **how: Any) -> jax.stages.Wrapped:
        """Returns the function as `jax.jit` makes it, with the options with which these devices compile quickly."""
        mesh = self.mesh or make_mesh(devices=jax.local_devices()[:1])
        return jax.jit(function, compiler_options=quick_options(mesh), **how)

    def in_words(self) -> str:
        """Returns one line on the devices that answer, in groups that divide the model."""
        groups = "one group" if self.groups == 1 else f"{self.groups} groups, each with rows of its own"
        return f"{self.groups * self.tensor} devices answer in {groups}: mesh.tensor {self.tensor} divides the model"

    def calls(self, prepared: Iterable[Prepared]) -> Iterator[list[Prepared]]:
        """Yields batches that are answered by one call: consecutive ones of one form, at most one for each group."""
        for _, alike in itertools.groupby(prepared, key=lambda one: one.form):
            while members := list(itertools.islice(alike, self.groups)):
                yield members

    def map(
        self,
        answer: Callable[[list[Prepared]], Iterable[AnswerT]],
        prepared: Iterable[Prepared],
        activity: str,
        total: int,
        progress: ProgressCallback,
    ) -> dict[int, AnswerT]:
        """Returns the answer to each sequence of the batches, by its index.

        `answer` returns one answer for each row of the batches of a call; those of padding rows are dropped. `progress` receives
        the activity, the number of answers after each call, and `total`.
        """
        answers: dict[int, AnswerT] = {}
        for call in self.calls(prepared):
            of_rows = list(answer(call))
            answers.update((i, of_rows[row]) for row, i in rows_of(call))
            progress(activity, len(answers), total)
        return answers

    def joined(self, arrays: Sequence[object], filler: Callable[[Any], Any]) -> Any:
        """Returns the arrays of a call's batches as one batch, on the devices.

        `filler` makes those of a group that has no batch.
        """
        if self.mesh is None:
            return arrays[0]
        rest = [filler(arrays[0])] * (self.groups - len(arrays))
        joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *arrays, *rest)
        return jax.device_put(joined, NamedSharding(self.mesh, PartitionSpec(ROW_AXES)))

    def by_rows(
        self, function: Callable[..., Any], outputs_for: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        """Returns a function of variables and of arrays with rows, which each group applies to its own rows; for use in a jit.

        A number without rows is the same in all groups; of the returned ones the largest of all groups counts. `outputs_for`
        returns a tree like that of the function for the same arrays; None: the function is traced once more for it.
        """
        if self.mesh is None:
            return function
        mesh = self.mesh
        manual = MESH_AXES if self.tensor == 1 else ROW_AXES

        def mapped(variables: PyTree, *arrays: PyTree) -> PyTree:
            def of_group(variables: PyTree, *arrays: PyTree) -> PyTree:
                outputs = function(variables, *arrays)
                return jax.tree.map(lambda x: x if x.ndim else jax.lax.pmax(x, ROW_AXES), outputs)

            known = outputs_for or functools.partial(function, variables)
            outputs = jax.eval_shape(known, *arrays)
            return jax.shard_map(
                of_group,
                mesh=mesh,
                in_specs=(PartitionSpec(), *row_specs(arrays)),
                out_specs=row_specs(outputs),
                axis_names=set(manual),
                check_vma=False,
            )(variables, *arrays)

        return mapped

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that the compiler divides over the mesh as shardings say; for use in a jit."""
        if self.mesh is None:
            return function
        mesh = self.mesh

        def whole(*arguments: object) -> Any:
            with within_mesh(mesh):
                return function(*arguments)

        return whole


ONE_DEVICE = Placement()


def rows_of(call: Sequence[Prepared]) -> Iterator[tuple[int, int]]:
    """Yields the row of each sequence in the batches of a call, and the sequence's index; rows of padding have none."""
    for group, (batch, *_) in enumerate(call):
        for row, member in enumerate(batch.members):
            yield group * batch.rows + row, member


def row_specs(arrays: PyTree) -> PyTree:
    """Returns the axes that divide the rows of each array; none for a number."""
    return jax.tree.map(lambda x: PartitionSpec(ROW_AXES) if jnp.ndim(x) else PartitionSpec(), arrays)
