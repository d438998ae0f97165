"""Checkpoints of a LoRA run: they leave out the frozen parameters, those of the run that it starts from, and refer to them.

    checkpoints/40/meta/meta.json    "base": {"run": train.init_from, "sha256": `parameter_digest` of what is left out}

The parameters that train are saved, and those that match `train.init_fresh`. A LoRA run without `train.init_from` saves all.
"""

import hashlib
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.optim.selection import merge_trees, trained_layers
from flaxformer_lite.workdir.checkpoints import Checkpoints


def parameter_digest(params: PyTree) -> str:
    """Returns the SHA-256, as 64 hexadecimal digits, over all parameters.

    The hash runs over the leaves in the order of their paths (compared as strings). A path is the names from the root
    to the leaf joined by "/", as in "encoder/layers/attention/query/kernel". Each leaf contributes, in UTF-8, the line

        PATH SPACE DTYPE SPACE SIZES NEWLINE

    where DTYPE is the NumPy name ("float32", "bfloat16") and SIZES the shape in decimal joined by "," (nothing for a
    scalar), and then its elements in row-major order, each little-endian. A float32 matrix of 3 rows and 5 columns
    called "out/kernel" contributes the 23 bytes "out/kernel float32 3,5\\n" and 60 bytes of numbers.

    Processes that hold parts of an array call this together.
    """
    digest = hashlib.sha256()
    for path, leaf in sorted(leaves_by_path(params).items()):
        whole = getattr(leaf, "is_fully_addressable", True)
        array = np.asarray(leaf if whole else multihost_utils.process_allgather(leaf, tiled=True))
        array = array if sys.byteorder == "little" else array.byteswap()
        digest.update(f"{path} {array.dtype.name} {','.join(map(str, array.shape))}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


class Frozen:
    """The frozen parameters, which the checkpoints of a run leave out.

    Args:
        run: `train.init_from`.
        trainable: patterns of the parameters that train.
        fresh: patterns of parameters that are not the base's.
        read: returns the base's values of parameters that are given by shapes, types and shardings.
    """

    def __init__(
        self, run: str, trainable: tuple[str, ...], fresh: tuple[str, ...], read: Callable[[PyTree], PyTree]
    ) -> None:
        self.run, self._trainable, self._fresh, self._read = run, trainable, fresh, read
        self._reference: dict[str, str] | None = None

    def divide(self, params: PyTree) -> tuple[PyTree, PyTree]:
        """Returns the parameters that are saved, and those that are left out: two trees without each other's leaves."""

        def is_saved(path: str, x: object) -> bool:
            is_fresh = any(fnmatchcase(path, pattern) for pattern in self._fresh)
            return is_fresh or bool(trained_layers(path, x, self._trainable).any())

        flat = flatten_dict(params, sep="/")
        saved = {path: x for path, x in flat.items() if is_saved(path, x)}
        left_out = {path: x for path, x in flat.items() if path not in saved}
        return unflatten_dict(saved, sep="/"), unflatten_dict(left_out, sep="/")

    def saved(self, params: PyTree) -> PyTree:
        return self.divide(params)[0]

    def without(self, state: Any) -> Any:
        """Returns a state with only those parameters, and averages of them, that are saved."""
        return state._replace(params=self.saved(state.params), ema=None if state.ema is None else self.saved(state.ema))

    def reference(self, state: Any) -> dict[str, str]:
        """Returns the reference to the base, by the parameters of a whole state; they are hashed once."""
        if self._reference is None:
            self._reference = {"run": self.run, "sha256": parameter_digest(self.divide(state.params)[1])}
        return self._reference

    def complete(self, saved: PyTree, abstract: PyTree, reference: dict[str, str]) -> PyTree:
        """Returns whole parameters: the saved ones and the base's, on the devices of `abstract`.

        Raises: ValueError if the base is missing, or its parameters are not those of the reference.
        """
        left_out = self.divide(abstract)[1]
        try:
            values = self._read(left_out) if left_out else {}
        except ValueError as error:
            raise ValueError(
                f"train.init_from is {self.run!r}, the base of this LoRA run, whose checkpoints hold only what was trained: {error}"
            ) from None
        if (digest := parameter_digest(values)) != reference["sha256"]:
            raise ValueError(
                f"train.init_from is {self.run!r}, and its parameters are not those that this LoRA run was trained on (SHA-256 "
                f"{digest[:12]}…, was {reference['sha256'][:12]}…): restore the base from a copy, or import it again"
            )
        self._reference = reference
        return merge_trees(saved, values)

    def complete_state(self, state: PyTree, abstract: PyTree, reference: dict[str, str]) -> PyTree:
        """Returns the whole state for a state of `without`. The base's parameters are constant, and so are their own averages."""
        params = self.complete(state.params, abstract.params, reference)
        if state.ema is None:
            return state._replace(params=params)
        copies = jax.tree.map(jnp.copy, self.divide(params)[1])  # a step gives away the memory of each array once
        return state._replace(params=params, ema=merge_trees(state.ema, copies))


class WithFrozen(Checkpoints):
    """Checkpoints without the frozen parameters. Callers give and get whole parameters."""

    def __init__(self, frozen: Frozen, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._frozen = frozen

    def save(self, step: int, state: Any, *arguments: Any, **options: Any) -> None:
        self.further = {"base": self._frozen.reference(state)}
        super().save(step, self._frozen.without(state), *arguments, **options)

    def restore(self, abstract_state: object, step: int | None = None) -> tuple[int, PyTree, dict[str, Any]]:
        step, state, meta = super().restore(self._frozen.without(abstract_state), step)
        return step, self._frozen.complete_state(state, abstract_state, self.reference(step)), meta

    def restore_params(
        self, abstract_params: PyTree, step: int, *, rounded: PyTree | None = None, **options: Any
    ) -> PyTree:
        options["rounded"] = None if rounded is None else self._frozen.saved(rounded)
        params = super().restore_params(self._frozen.saved(abstract_params), step, **options)
        return self._frozen.complete(params, abstract_params, self.reference(step))

    def average(self, abstract_params: PyTree, n: int) -> tuple[int, PyTree]:
        step, mean = super().average(self._frozen.saved(abstract_params), n)
        return step, self._frozen.complete(mean, abstract_params, self.reference(step))

    def reference(self, step: int) -> dict[str, str]:
        """Returns a checkpoint's reference to the parameters that it leaves out."""
        return self.manifest(step)["base"]
