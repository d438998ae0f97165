"""Checkpoints of a run: a class around a manager (`managers/`), which writes them by Orbax in a folder, or in a bucket.

A checkpoint is a folder named by its step; `manifest.py` has its layout. It is *whole* if all its files are as they were written,
otherwise *damaged*. It is *regular* unless it was saved only because the run was stopped.

Orbax writes into a temporary folder and renames it at the end, so a step exists completely or not at all. Orbax detects no
flipped bit in the array data, which carries no checksum, and reports damaged files by tracebacks from other threads. So the
files are compared with their digests before TensorStore reads them: without Orbax a command starts sooner. In a bucket
the chunks of arrays have checksums, which are compared as they are read.
"""

import contextlib
import errno
import functools
import itertools
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import chex
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.console import Failure, Quiet, counted, warn
from flaxformer_lite.base.hardware import check_platforms
from flaxformer_lite.base.sealed_files import DamageError, sealed
from flaxformer_lite.base.stores import ConflictError, StoreError, Unreachable, in_one_line
from flaxformer_lite.config.train import standing
from flaxformer_lite.workdir.arrays import in_folder, read_tree
from flaxformer_lite.workdir.bucket import RunBucket
from flaxformer_lite.workdir.hosts import agreed, barrier, share
from flaxformer_lite.workdir.manifest import META, difference, leaf_types, read_manifest, steps_in, why_damaged

QUIET = Quiet("orbax")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Retention:
    """Rules on which checkpoints are kept: the newest step, the newest regular ones, and the best ones.

    Args:
        keep_latest: number of newest regular checkpoints to keep, at least 1.
        keep_best: number of best checkpoints to keep besides.
        best_metric: the name in `metrics` that ranks checkpoints; None ranks none.
        best_mode: whether the smallest ("min") or the largest ("max") value is the best.
    """

    keep_latest: int
    keep_best: int
    best_metric: str | None
    best_mode: Literal["min", "max"]

    def ranked(self, manifests: dict[int, dict[str, Any]]) -> list[int]:
        """Returns the regular steps that have the metric and no NaN for it, the best first, as `standing` compares them."""
        rows = [{**(manifests[step].get("metrics") or {}), "step": step} for step in regular(manifests)]
        standings = (standing(row, self.best_metric, self.best_mode) for row in rows)
        return [step for *_, step in sorted(filter(None, standings), reverse=True)]

    def kept(self, manifests: dict[int, dict[str, Any]]) -> set[int]:
        newest = sorted(manifests)[-1:]
        return {*newest, *regular(manifests)[-self.keep_latest :], *self.ranked(manifests)[: self.keep_best]}


def regular(manifests: dict[int, dict[str, Any]]) -> list[int]:
    """Returns the steps of the regular checkpoints, ascending."""
    return sorted(step for step, manifest in manifests.items() if not manifest.get("interim"))


class Unusable(DamageError):
    """A checkpoint in a bucket turned out to be damaged, or was deleted, when its arrays were read."""


class Checkpoints:
    """The checkpoints of one run: saved in the background, kept by age and by metric, restored onto any devices.

    A checkpoint that is not regular is kept until the next one is complete and counts nowhere, so a stopped run keeps and averages
    the same checkpoints as one that was not stopped.

    All processes call the same methods in the same order. They share the folder or the bucket; each writes its shards.

    Args:
        folder: the folder of the checkpoints; made if it is missing, unless `read_only`.
        retention: which checkpoints are kept.
        read_only: never write or delete: for commands that read a run which may be training.
        bucket: the bucket of the run, whose working copy has `folder`; None: the run is in a folder.
        seal: returns the seal of the run, as JSON; called at the first save.
        warn: called with one line for each damaged checkpoint that is skipped.
    """

    def __init__(
        self,
        folder: Path,
        retention: Retention,
        *,
        read_only: bool = False,
        bucket: RunBucket | None = None,
        seal: Callable[[], dict[str, Any] | None] = lambda: None,
        warn: Callable[[str], object] = warn,
    ) -> None:
        # Orbax hands the path to TensorStore, which wants it absolute.
        self._folder, self._retention = Path(folder).absolute(), retention
        self._bucket, self._seal, self._warn = bucket, functools.cache(seal), warn
        self._place = str(self._folder) if bucket is None else f"{bucket.store.url}/checkpoints"  # as messages name it
        self._manifests: dict[int, dict[str, Any]] = {}  # of the steps that have a readable one
        self._damage: dict[int, str | None] = {}  # why a step is damaged, None: its files are as they were written
        self._reported: set[int] = set()  # the damaged steps that the user knows of
        self._ours: set[int] = set()  # steps whose arrays this process has written or restored
        self.further: dict[str, Any] = {}  # further facts of a manifest, as JSON
        self._saved: int | None = None  # the step that was saved last, which may be incomplete
        for logger in ("absl", "asyncio"):  # asyncio logs the exceptions of tasks that Orbax left behind
            logging.getLogger(logger).addFilter(QUIET)
        self._orbax: Any = None  # a `managers.manager.Manager`, whose import takes a second
        if not read_only:
            check_platforms()
            from flaxformer_lite.workdir.managers import make_manager

            self._orbax = make_manager(self._folder, self, bucket)
        self._look()

    def _look(self) -> None:
        """Reads the manifests of all complete steps."""
        self._there = steps_in(self._folder) if self._orbax is None else []
        for step in self._all_steps():
            with contextlib.suppress(DamageError):  # reported when it is to be restored
                self._manifests[step] = read_manifest(self._folder, step)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(
        self,
        step: int,
        state: PyTree,
        meta: dict[str, object],
        metrics: dict[str, float] | None = None,
        *,
        regular: bool = True,
    ) -> None:
        """Starts saving. Returns once the state is copied, so the caller may donate or change it at once.

        Saving a step that this process has saved or restored replaces only `meta` and, if not None, `metrics`, atomically: the
        state of a step is a function of the run. So a resumed run can repeat an interrupted evaluation. A regular checkpoint
        stays regular. A damaged checkpoint is written anew.

        Args:
            meta: any JSON value; it is read back as JSON (tuples as lists).
            metrics: the results of evaluating this state, with `best_metric`.

        Raises:
            ValueError: the step exists, and this process neither saved nor restored it.
            OSError: this save could not start, or the one before failed in the background.
        """
        values = None if metrics is None else {name: float(value) for name, value in metrics.items()}
        content = {
            "meta": meta,
            "metrics": values,
            "interim": not regular,
            "leaves": leaf_types(state),
            "seal": self._seal(),
            **self.further,
        }
        content = json.loads(json.dumps(content))  # a copy: the caller may change `meta` while it is being written
        try:
            self.wait()
        except TimeoutError as error:  # the state of that step is gone; this one is the next try
            self._warn(f"{error}: saving step {step} instead")
        if self._damage.get(step) and step in self._all_steps():
            self._delete(step)
        if step in self._all_steps():
            self._replace(step, content)
        else:
            self._manifests[step] = content
            self._saved = step
            self._orbax.save(step, state, sealed(content))
            self._ours.add(step)

    def restore(self, abstract_state: PyTree, step: int | None = None) -> tuple[int, PyTree, dict[str, Any]]:
        """Returns (step, state, meta) of the newest whole checkpoint, or of `step`.

        Args:
            abstract_state: the state as `jax.ShapeDtypeStruct`s (or arrays) with the shardings to restore to, which may differ
                from those it was saved with; a leaf without sharding goes to the first local device.
            step: None skips damaged checkpoints, with a warning for each.

        Raises:
            ValueError: there is no whole checkpoint, or not that step; `step` is damaged; the trees differ.
        """
        if step is None:
            return self.usable(lambda: self._restore(abstract_state, self.latest_whole()))
        return self._restore(abstract_state, step)

    def _restore(self, abstract_state: PyTree, step: int) -> tuple[int, PyTree, dict[str, Any]]:
        self.wait()
        self._require_whole(step)
        self._require_same_tree(step, leaf_types(abstract_state), "")
        state = self._read(step, abstract_state)
        chex.assert_trees_all_equal_shapes_and_dtypes(state, abstract_state)
        self._ours.add(step)
        return step, state, self.meta(step)

    def usable(self, read: Callable[[], Result]) -> Result:
        """Returns the result of `read`, which chooses a step itself, and is called again if that step in a bucket is unusable."""
        while True:
            with contextlib.suppress(Unusable):
                return read()

    def set_damaged(self, step: int, reason: str) -> None:
        """Counts `step` as damaged from now on, for a reason that its files do not show: the one before it is used instead."""
        self._damage[step] = reason

    def delete_after(self, step: int) -> None:
        """Deletes all checkpoints after `step`, so that the run can save these steps again with other numbers."""
        self.wait()
        for later in [other for other in self._all_steps() if other > step]:
            self._delete(later)

    def _delete(self, step: int) -> None:
        self._orbax.delete(step)
        self._ours.discard(step)
        self._damage.pop(step, None)

    def restore_params(
        self,
        abstract_params: PyTree,
        step: int,
        *,
        field: Literal["params", "ema"] = "params",
        rounded: PyTree | None = None,
    ) -> PyTree:
        """Returns only the parameters of checkpoint `step`, or their moving average.

        rounded: `abstract_params` with the types that they are rounded to as they are read; None: their own.

        Raises:
            ValueError: there is no such step; it is damaged, or without that field; the trees differ.
        """
        self.wait()
        self._require_whole(step)
        return self._read_field(step, field, abstract_params, rounded)

    def average(self, abstract_params: PyTree, n: int) -> tuple[int, PyTree]:
        """Returns the newest step and the mean of the parameters of the newest `n` whole, regular checkpoints.

        The mean is summed in at least float32.

        Raises: ValueError if there are fewer than `n` such checkpoints, or the trees differ.
        """
        return self.usable(lambda: self._average(abstract_params, n))

    def _average(self, abstract_params: PyTree, n: int) -> tuple[int, PyTree]:
        steps = self.newest_regular(n)
        if len(steps) < n:
            listed = (
                f" ({'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, sorted(steps)))})" if steps else ""
            )
            remedy = f"average at most {len(steps)}, or use weights last" if len(steps) > 1 else "use weights last"
            raise ValueError(
                f"cannot average {counted(n, 'checkpoint')} of {self._place}: the run has "
                f"{counted(len(steps), 'whole checkpoint')}{listed}, without one that was saved because it was stopped; {remedy}"
            )
        total = jax.tree.map(lambda x: jnp.zeros((), jnp.promote_types(x.dtype, jnp.float32)), abstract_params)
        for step in steps:
            total = jax.tree.map(jnp.add, total, self._read_field(step, "params", abstract_params))
        return steps[0], jax.tree.map(lambda x, like: (x / n).astype(like.dtype), total, abstract_params)

    def steps(self) -> list[int]:
        """Returns all steps, ascending: with those being saved, without those found damaged."""
        return sorted(step for step in self._all_steps() if not self._damage.get(step))

    def latest(self) -> int | None:
        return max(self.steps(), default=None)

    def latest_whole(self) -> int:
        """Returns the newest whole step, with a warning for each damaged one that is newer. Raises: ValueError without one."""
        self.wait()
        step = next(self._whole_steps(self._all_steps()), None)
        if step is None:
            damaged = "; ".join(f"{bad} is damaged ({why})" for bad, why in sorted(self._damage.items()) if why)
            damaged = damaged or "it has none; train the run first"
            raise ValueError(f"no checkpoint to restore in {self._place}: {damaged}")
        return step

    def newest_regular(self, n: int, before: float = math.inf) -> list[int]:
        """Returns the newest `n` whole regular steps before `before`, or fewer if there are fewer, the newest first."""
        self.wait()
        steps = regular(self._with_manifests(self._all_steps()))
        return list(itertools.islice(self._whole_steps(step for step in steps if step < before), n))

    def best(self) -> int | None:
        """Returns the best step by `best_metric` among the checkpoints with that metric, or None."""
        return next(iter(self._retention.ranked(self._with_manifests(self.steps()))), None)

    def metrics(self, step: int) -> dict[str, float] | None:
        """Returns the metrics saved with `step`, or None if it was saved without. Raises ValueError if the step does not exist."""
        self._require(step)
        return self._manifests.get(step, {}).get("metrics")

    def is_regular(self, step: int) -> bool:
        """Returns whether `step` would have been saved without a stop of the run. Raises ValueError if it does not exist."""
        self._require(step)
        return bool(regular(self._with_manifests([step])))

    def meta(self, step: int) -> dict[str, Any]:
        """Returns the meta saved with `step`. Raises ValueError if it does not exist or is damaged."""
        self.wait()
        self._require_whole(step)
        return self.manifest(step)["meta"]

    def manifest(self, step: int) -> dict[str, Any]:
        """Returns the manifest of a whole checkpoint, as it was written: see manifest.py."""
        return read_manifest(self._folder, step)

    def newest_manifest(self) -> dict[str, object]:
        """Returns the newest manifest that can be read, of a whole or a damaged checkpoint; {} if there is none."""
        return self._manifests.get(max(self._manifests, default=-1), {})

    def wait(self) -> None:
        """Waits until the checkpoint in progress is complete. Raises OSError, once, if saving it failed."""
        if self._orbax is None:
            return
        try:
            self._orbax.wait()
        except ConflictError as error:
            raise Failure(f"{error}: this one stops and leaves all checkpoints as they are") from None
        except Exception as error:  # on a full disk TensorStore raises a ValueError, Orbax others
            reason = str(error).partition("\n")[0]
            before = [self._folder / str(step) for step in self._all_steps() if step != self._saved]
            # Each part of Orbax and TensorStore has its own words for that. A save may have made the folder anew.
            is_gone = not self._folder.is_dir() or (before and not any(folder.is_dir() for folder in before))
            if self._bucket is None and is_gone:
                reason = f"{os.strerror(errno.ENOENT)}: the folder was moved, deleted or unmounted"
            self._orbax.reload()  # its list lacks steps that it has not deleted yet
            kind = TimeoutError if isinstance(error, TimeoutError) else OSError
            raise kind(f"saving a checkpoint in {self._place} failed: {reason}") from error

    def close(self) -> None:
        """Waits until the checkpoint in progress is complete and closes the folder."""
        try:
            self.wait()
        finally:
            if self._orbax is not None:
                self._orbax.close()

    def _all_steps(self) -> Sequence[int]:
        """Returns the complete steps: those of the first look, if the folder is only read."""
        return self._there if self._orbax is None else self._orbax.steps()

    def _with_manifests(self, steps: Iterable[int]) -> dict[int, dict[str, object]]:
        return {step: self._manifests.get(step, {}) for step in steps}

    def _kept(self, steps: Iterable[int]) -> set[int]:
        return self._retention.kept(self._with_manifests(step for step in steps if not self._damage.get(step)))

    def should_preserve(self, checkpoints: Any, *, context: object) -> list[bool]:
        """Chooses after each save which checkpoints are kept, as Orbax's preservation policy.

        Orbax's own `BestN` reads the metrics of all checkpoints when a folder is opened, so one damaged file would stop it. It
        also knows no damaged checkpoints and no NaN.
        """
        del context
        kept = self._kept([info.step for info in checkpoints])
        return [info.step in kept for info in checkpoints]

    def _replace(self, step: int, content: dict[str, Any]) -> None:
        """Replaces meta and metrics of a checkpoint, atomically."""
        if step not in self._ours:
            raise ValueError(f"checkpoint {step} is in {self._place} already, from another run: save in another folder")
        if content["metrics"] is None:
            content["metrics"] = self.metrics(step)
        content["interim"] = content["interim"] and not self.is_regular(step)
        self._manifests[step] = content
        barrier(f"checkpoint {step} to be replaced")  # after a rollback others may still read its meta
        if jax.process_index() == 0 or self._bucket is not None:  # of a bucket each process has a working copy
            write_whole(self._folder / str(step) / "meta" / META, json.dumps(sealed(content)))
        barrier(f"checkpoint {step} replaced")
        for other in set(self.steps()) - self._kept(self.steps()):
            self._orbax.delete(other)

    def _require(self, step: int) -> None:
        steps = sorted(self._all_steps())
        if step not in steps:
            there = ", ".join(map(str, steps)) or "none"
            raise ValueError(f"step {step} is not in {self._place}: the steps there are {there}")

    def _require_whole(self, step: int) -> None:
        self._require(step)
        if not self._is_whole(step):
            raise ValueError(f"checkpoint {step} in {self._place} is damaged: {self._damage[step]}")

    def _require_same_tree(self, step: int, wanted: dict[str, str], prefix: str) -> None:
        leaves = read_manifest(self._folder, step)["leaves"]
        stored = {path: leaf for path, leaf in leaves.items() if path.startswith(prefix)}
        if stored != wanted:
            what = difference(stored, wanted)
            raise ValueError(f"checkpoint {step} in {self._place} has another tree: {what}; use the config of the run")

    def _is_whole(self, step: int) -> bool:
        """Returns whether every file is as it was written: each process compares its part of them, once. Arrays in a bucket are
        compared when they are read."""
        if step not in self._damage:
            has_digests = self._bucket is None
            self._damage[step] = agreed(why_damaged(self._folder, step, share() if has_digests else None))
        return self._damage[step] is None

    def _whole_steps(self, steps: Iterable[int]) -> Iterator[int]:
        """Yields the whole steps, newest first, with one warning for each damaged one in between."""
        skipped: list[int] = []
        for step in sorted(steps, reverse=True):
            if not self._is_whole(step):
                skipped.append(step)
                continue
            for bad in sorted(set(skipped) - self._reported, reverse=True) if jax.process_index() == 0 else []:
                reason = self._damage[bad]
                self._warn(f"checkpoint {bad} in {self._place} is damaged ({reason}); using checkpoint {step} instead")
            self._reported.update(skipped)
            skipped.clear()
            yield step

    def _read_field(self, step: int, field: str, abstract: PyTree, rounded: PyTree | None = None) -> PyTree:
        self._require_same_tree(step, leaf_types({field: abstract}), f"{field}/")
        return self._read(step, {field: rounded or abstract})[field]

    def _read(self, step: int, abstract: PyTree) -> PyTree:
        """Returns arrays of a step.

        Raises: Unusable, in all processes, if arrays in a bucket are damaged, or a training has deleted them meanwhile.
        """
        if self._bucket is None:
            return read_tree(in_folder(self._folder / str(step) / "state"), abstract)
        state, reason = None, None
        try:
            with in_one_line(f"{self._place}/{step}"):
                state = read_tree(self._bucket.arrays(step), abstract)
        except Unreachable:
            raise
        except StoreError as error:
            reason = str(error)
        if (reason := agreed(reason)) is None:
            return state
        if self._orbax is None:
            self._bucket.pull()
            self._look()
        if step in self._all_steps():
            self.set_damaged(step, reason)
        raise Unusable(f"checkpoint {step} in {self._place} is damaged: {reason}")
