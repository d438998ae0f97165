"""Checkpoints of a run: Orbax's CheckpointManager behind one thin class.

One checkpoint is one folder named by its step:

    checkpoints/40/state/...             the arrays, written by Orbax
    checkpoints/40/state/digests.json    SHA-256 of each of those files
    checkpoints/40/meta/meta.json        meta, metrics, and the path, dtype and shape of every leaf

Orbax writes into a temporary folder and renames it at the very end, so a step either is there entirely or not at all.
Orbax does not see a flipped bit in the array data (the values carry no checksum), and its errors about damaged files
come with tracebacks from other threads; therefore the files are compared with their digests before Orbax reads them.
Both JSON files are sealed (`integrity.py`).
"""

import contextlib
import itertools
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from flaxformer_lite.workdir.digests import DamageError, difference, leaf_types, sealed
from flaxformer_lite.workdir.orbax import META, Quiet, make_manager, read_document, read_tree, why_damaged


class Checkpoints:
    """The checkpoints of one run: saved in the background, kept by age and by metric, restored onto any devices.

    Kept are the newest `keep_latest` and the `keep_best` best by `best_metric`; a checkpoint saved without metrics (or
    whose metric is NaN) counts among the newest only. Of equal metrics the earliest step is the better one. An interim
    checkpoint, saved because a run was stopped between two that it would have saved anyway, counts among neither and
    stays until the next one is complete: a run that was stopped keeps and averages what it would have without.

    Of several processes all call the same methods in the same order; the folder is then one they share.

    Args:
        folder: the folder of the checkpoints; made if it is missing, unless `read_only`.
        keep_latest: how many of the newest checkpoints stay, at least 1.
        keep_best: how many of the best checkpoints stay besides.
        best_metric: the name in `metrics` that ranks checkpoints; None ranks none.
        best_mode: whether the smallest ("min") or the largest ("max") value is the best.
        read_only: never write, delete or tidy up (for commands that look at a run that may be training).
        warn: receives one line for each damaged checkpoint passed over; by default the logger "flaxformer_lite".

    Raises:
        ValueError: for counts out of range, or `keep_best` without `best_metric`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_latest: int,
        keep_best: int,
        best_metric: str | None,
        best_mode: Literal["min", "max"],
        read_only: bool = False,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        if keep_latest < 1:
            raise ValueError(f"keep_latest is {keep_latest}: a run keeps at least one checkpoint; set it to 1 or more")
        if keep_best < 0 or (keep_best > 0 and best_metric is None):
            raise ValueError(f"keep_best is {keep_best}: must be 0 or more, and more than 0 needs a best_metric")
        if best_mode not in ("min", "max"):
            raise ValueError(f'best_mode is "{best_mode}": must be "min" or "max"')
        # Orbax hands the path to TensorStore, which wants it absolute.
        self._folder = Path(folder).absolute()
        self._keep_latest, self._keep_best = keep_latest, keep_best
        self._best_metric, self._best_mode = best_metric, best_mode
        self._read_only = read_only
        self._warn = warn or logging.getLogger("flaxformer_lite").warning
        self._metrics: dict[int, dict[str, float]] = {}
        self._interim: set[int] = set()
        self._damaged: dict[int, str] = {}
        self._whole: set[int] = set()  # steps whose files this process has compared with their digests
        self._known: set[int] = set()  # steps whose arrays this process has written or restored
        self._quiet = Quiet()
        logging.getLogger("absl").addFilter(self._quiet)
        self._manager: ocp.CheckpointManager | None = make_manager(self._folder, self._kept, read_only)
        for step in self._orbax.all_steps():
            with contextlib.suppress(DamageError):  # told when somebody wants to restore it
                self._note(step, read_document(self._folder, step))

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def save(
        self,
        step: int,
        state: PyTree,
        meta: dict[str, Any],
        metrics: dict[str, float] | None = None,
        *,
        interim: bool = False,
    ) -> None:
        """Starts saving; returns as soon as the state is copied, so the caller may donate or change it at once.

        Saving again at a step that this process has saved or restored replaces `meta`, and `metrics` where given, in
        one atomic step and leaves the arrays alone, because the state of a step is a function of the run. (So an
        evaluation that was interrupted can be made up for.) A regular one never becomes interim. A checkpoint found
        damaged is written anew.

        Args:
            step: the number of updates made.
            state: a tree of arrays.
            meta: anything JSON can hold; comes back as JSON gives it (tuples as lists).
            metrics: what an evaluation of this state found; must contain `best_metric`.
            interim: whether the run would not have saved this step had it not been stopped.

        Raises:
            ValueError: a folder opened for reading; `best_metric` missing from `metrics`; a step that is there already
                and that this process neither saved nor restored.
            OSError: this save could not begin, or the one before failed in the background.
        """
        if self._read_only:
            raise ValueError(f"{self._folder} is open for reading only: open it with read_only=False to save")
        if metrics is not None:
            metrics = {name: float(value) for name, value in metrics.items()}
            if self._best_metric is not None and self._best_metric not in metrics:
                names = ", ".join(sorted(metrics))
                raise ValueError(f'best_metric is "{self._best_metric}": the evaluation has only {names}; choose one')
        content = {"meta": meta, "metrics": metrics, "interim": interim, "leaves": leaf_types(state)}
        content = json.loads(json.dumps(content))  # a copy: the caller may change `meta` while it is being written
        self.wait()
        if step in self._damaged and step in self._orbax.all_steps():
            self._orbax.delete(step)
            del self._damaged[step]
        if step in self._orbax.all_steps():
            self._replace(step, content)
        else:
            self._note(step, content)
            items = ocp.args.Composite(state=ocp.args.PyTreeSave(state), meta=ocp.args.JsonSave(sealed(content)))
            # Without force, Orbax silently skips a step below its latest, as after falling back from a damaged one.
            self._orbax.save(step, args=items, force=True)
            self._known.add(step)

    def restore(self, abstract_state: PyTree, step: int | None = None) -> tuple[int, PyTree, dict[str, Any]]:
        """Returns (step, state, meta) of the newest whole checkpoint, or of `step`.

        Args:
            abstract_state: the state as `jax.ShapeDtypeStruct`s (or arrays) with the shardings wanted now, which need
                not be those of saving; a leaf without one goes to the first local device.
            step: None passes over damaged checkpoints, saying so.

        Raises:
            ValueError: no checkpoint; none that is whole; no such step; `step` damaged; a tree that does not fit.
        """
        self.wait()
        if step is None:
            step = self.latest_valid()
        else:
            self._require_whole(step)
        self._require_fit(step, leaf_types(abstract_state), "")
        state = read_tree(self._orbax, step, abstract_state)
        self._known.add(step)
        return step, state, self.meta(step)

    def restore_params(
        self, abstract_params: PyTree, step: int, *, field: Literal["params", "ema"] = "params"
    ) -> PyTree:
        """Returns only the parameters of checkpoint `step` (or, as `field`, their moving average).

        Raises:
            ValueError: no such step; a damaged one; one without that field; a tree that does not fit.
        """
        self.wait()
        self._require_whole(step)
        return self._read_field(step, field, abstract_params)

    def average(self, abstract_params: PyTree, n: int) -> tuple[int, PyTree]:
        """Returns the newest step of, and the mean of the parameters of, the newest `n` whole checkpoints, interim ones
        left out. It is summed in at least float32.

        Raises:
            ValueError: fewer than `n` whole checkpoints; a tree that does not fit.
        """
        self.wait()
        there = self._orbax.all_steps()
        steps = list(itertools.islice(self._whole_steps(self._regular(there)), max(n, 0)))
        if not 1 <= n == len(steps):
            whole = ", ".join(map(str, sorted(steps))) or "none"
            if apart := self._interim.intersection(there):
                whole += f" (without {max(apart)}, saved because the run was stopped)"
            raise ValueError(f"cannot average {n} checkpoints of {self._folder}: whole are {whole}; ask for that many")
        total = jax.tree.map(lambda x: jnp.zeros((), jnp.promote_types(x.dtype, jnp.float32)), abstract_params)
        for step in steps:
            total = jax.tree.map(jnp.add, total, self._read_field(step, "params", abstract_params))
        return steps[0], jax.tree.map(lambda x, like: (x / n).astype(like.dtype), total, abstract_params)

    def steps(self) -> list[int]:
        """Returns the steps there are, ascending, those being saved included and those found damaged left out."""
        return sorted(step for step in self._orbax.all_steps() if step not in self._damaged)

    def latest(self) -> int | None:
        """Returns the newest step, or None."""
        return max(self.steps(), default=None)

    def latest_valid(self) -> int:
        """Returns the newest step whose files are all as they were written, with a warning for each one passed over.

        Raises:
            ValueError: there is none.
        """
        self.wait()
        step = next(self._whole_steps(self._orbax.all_steps()), None)
        if step is None:
            damaged = "; ".join(f"{bad} is damaged ({reason})" for bad, reason in sorted(self._damaged.items()))
            raise ValueError(f"no checkpoint to restore in {self._folder}: {damaged or 'it has none'}")
        return step

    def best(self) -> int | None:
        """Returns the best step by `best_metric` among the checkpoints that have it, or None."""
        return next(iter(self._ranked(self._regular(self.steps()))), None)

    def metrics(self, step: int) -> dict[str, float] | None:
        """Returns the metrics saved with `step`, or None if it was saved without. Raises ValueError if not there."""
        self._require(step)
        return self._metrics.get(step)

    def interim(self, step: int) -> bool:
        """Returns whether `step` was saved only because the run was stopped. Raises ValueError if it is not there."""
        self._require(step)
        return step in self._interim

    def meta(self, step: int) -> dict[str, Any]:
        """Returns the meta saved with `step`. Raises ValueError if it is not there or not readable."""
        self.wait()
        self._require(step)
        try:
            meta: dict[str, Any] = read_document(self._folder, step)["meta"]
        except DamageError as damage:
            raise ValueError(f"checkpoint {step} in {self._folder} is damaged: {damage}") from None
        return meta

    def wait(self) -> None:
        """Returns when all that was saved is in its final place. Raises OSError, once, if a save failed."""
        try:
            self._orbax.wait_until_finished()
        except Exception as error:  # TensorStore raises a ValueError where a disk is full, Orbax what comes
            self._orbax.reload()  # it has taken steps off its list that it has not come to delete
            reason = str(error).partition("\n")[0]
            raise OSError(f"saving a checkpoint in {self._folder} failed: {reason}") from error

    def close(self) -> None:
        """Waits for what is being saved and lets go of the folder; a second call does nothing."""
        if self._manager is None:
            return
        try:
            self.wait()
        finally:
            self._manager.close()
            self._manager = None
            logging.getLogger("absl").removeFilter(self._quiet)

    @property
    def _orbax(self) -> ocp.CheckpointManager:
        if self._manager is None:
            raise ValueError(f"the checkpoints in {self._folder} are closed: open them again")
        return self._manager

    def _ranked(self, steps: list[int]) -> list[int]:
        """The steps that have the metric, the best first."""
        sign = 1 if self._best_mode == "min" else -1
        values = {step: self._metrics.get(step, {}).get(self._best_metric or "", math.nan) for step in steps}
        ranked = [step for step in sorted(steps) if not math.isnan(values[step])]
        return sorted(ranked, key=lambda step: sign * values[step])

    def _regular(self, steps: Iterable[int]) -> list[int]:
        """Those of the steps, in ascending order, that are not interim."""
        return sorted(step for step in steps if step not in self._interim)

    def _kept(self, steps: list[int]) -> set[int]:
        """The steps to keep of those there are: Orbax asks after each save."""
        steps = sorted(step for step in steps if step not in self._damaged)
        regular = self._regular(steps)
        return {*steps[-1:], *regular[-self._keep_latest :], *self._ranked(regular)[: self._keep_best]}

    def _note(self, step: int, content: dict[str, Any]) -> None:
        """Remembers what decides how long a checkpoint stays."""
        self._metrics.pop(step, None)
        if content["metrics"] is not None:
            self._metrics[step] = content["metrics"]
        (self._interim.add if content.get("interim") else self._interim.discard)(step)

    def _replace(self, step: int, content: dict[str, Any]) -> None:
        """Replaces meta and metrics of a whole checkpoint, atomically."""
        if step not in self._known:
            raise ValueError(f"checkpoint {step} is in {self._folder} already, from another run: use another folder")
        self._require_fit(step, content["leaves"], "")
        if content["metrics"] is None:
            content["metrics"] = self._metrics.get(step)
        content["interim"] = content["interim"] and step in self._interim
        self._note(step, content)
        if jax.process_index() == 0:
            path = self._folder / str(step) / "meta" / META
            new = path.with_suffix(".new")
            new.write_text(json.dumps(sealed(content)), encoding="utf-8")
            os.replace(new, path)
        multihost_utils.sync_global_devices(f"flaxformer_lite checkpoint {step} replaced")
        for other in set(self.steps()) - self._kept(self.steps()):
            self._orbax.delete(other)

    def _require(self, step: int) -> None:
        steps = sorted(self._orbax.all_steps())
        if step not in steps:
            there = ", ".join(map(str, steps)) or "none"
            raise ValueError(f"step {step} is not in {self._folder}: the steps there are {there}")

    def _require_whole(self, step: int) -> None:
        self._require(step)
        if not self._is_whole(step):
            raise ValueError(f"checkpoint {step} in {self._folder} is damaged: {self._damaged[step]}")

    def _require_fit(self, step: int, wanted: dict[str, str], prefix: str) -> None:
        leaves = read_document(self._folder, step)["leaves"]
        stored = {path: leaf for path, leaf in leaves.items() if path.startswith(prefix)}
        if stored != wanted:
            what = difference(stored, wanted)
            raise ValueError(f"checkpoint {step} in {self._folder} does not fit: {what}; use the run's configuration")

    def _is_whole(self, step: int) -> bool:
        """Whether every file is as it was written; the first process looks, once, and all agree."""
        if step in self._whole:
            return True
        reason = why_damaged(self._folder, step) if jax.process_index() == 0 else None
        if multihost_utils.broadcast_one_to_all(np.array(reason is not None)):
            self._damaged[step] = reason or "so the first process found"
        else:
            self._damaged.pop(step, None)
            self._whole.add(step)
        return step in self._whole

    def _whole_steps(self, steps: Iterable[int]) -> Iterator[int]:
        """The whole ones of the steps, newest first, with one warning for each damaged one in between."""
        passed: list[int] = []
        for step in sorted(steps, reverse=True):
            told = step in self._damaged
            if not self._is_whole(step):
                passed += [] if told else [step]
                continue
            for bad in passed if jax.process_index() == 0 else []:
                reason = self._damaged[bad]
                self._warn(f"checkpoint {bad} in {self._folder} is damaged ({reason}); using checkpoint {step} instead")
            passed.clear()
            yield step

    def _read_field(self, step: int, field: str, abstract: PyTree) -> PyTree:
        self._require_fit(step, leaf_types({field: abstract}), f"{field}/")
        return read_tree(self._orbax, step, {field: abstract}, partial=True)[field]
