"""The parameters of a run: selecting them by `weights`, and starting another run from them."""

import fnmatch
import functools
from dataclasses import replace
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh
from jaxtyping import PyTree

from flaxformer_lite.base.console import counted, warn
from flaxformer_lite.config.differences import flatten
from flaxformer_lite.config.experiment import Config, check_weights
from flaxformer_lite.config.settings import has_mark
from flaxformer_lite.core.base.annotations import Answers
from flaxformer_lite.core.model.layers import rounded_shapes
from flaxformer_lite.core.model.lora import ADAPTERS, merged
from flaxformer_lite.core.model.transformer import parameter_shapes
from flaxformer_lite.core.optim.selection import with_frozen_dtype
from flaxformer_lite.core.parallel import make_mesh
from flaxformer_lite.core.parallel.sharding import stored_sharding, with_shardings
from flaxformer_lite.workdir.checkpoints import Checkpoints, Retention
from flaxformer_lite.workdir.copies import open_run
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.frozen import Frozen, WithFrozen
from flaxformer_lite.workdir.manifest import check_seal, listed_params, seal

CLASS_PARAMETERS = ("pooler/classes/kernel", "pooler/classes/bias")
"""Parameters whose last axis has an item for each of the objective's classes."""


def open_checkpoints(config: Config, folder: RunFolder, *, read_only: bool) -> Checkpoints:
    """Opens the run's checkpoints with the config's rules on which to keep.

    Raises: ValueError if the config or a tokenizer is not the one that they were trained with.
    """
    check_seal(folder.path, config, resumed=not read_only, with_changes=folder.with_changes)
    train = config.train
    ranked = config.data.source("eval") is not None
    frozen = frozen_of(config)
    kind = Checkpoints if frozen is None else functools.partial(WithFrozen, frozen)
    return kind(
        folder.checkpoints,
        Retention(
            keep_latest=train.keep_latest,
            keep_best=train.keep_best if ranked else 0,
            best_metric=train.best_metric if ranked else None,
            best_mode=train.best_mode,
        ),
        read_only=read_only,
        bucket=folder.bucket,
        seal=lambda: seal(folder.path, folder.settled or config),
    )


def frozen_of(config: Config) -> Frozen | None:
    """Returns the parameters that the checkpoints of a run leave out: those of a LoRA run's `train.init_from`."""
    train = config.train
    if config.model.lora is None or train.init_from is None:
        return None

    def read(wanted: PyTree) -> PyTree:
        mesh = getattr(jax.tree.leaves(wanted)[0].sharding, "mesh", None)
        there = flatten_dict(start_params(config, mesh)[-1], sep="/")
        flat = flatten_dict(wanted, sep="/")
        if unlike := [path for path, x in flat.items() if path not in there or there[path].shape != x.shape]:
            raise ValueError(f"it has no {unlike[0]} of shape {flat[unlike[0]].shape}: restore it from a copy")
        return unflatten_dict(
            {path: jax.device_put(there[path].astype(x.dtype), x.sharding) for path, x in flat.items()}, sep="/"
        )

    return Frozen(train.init_from, config.trainable, train.init_fresh, read)


def abstract_saved_params(config: Config, mesh: Mesh | None = None, checkpoints: Checkpoints | None = None) -> PyTree:
    """Returns shapes, types and shardings of the saved parameters, on the mesh or by default replicated on all devices.

    checkpoints: of the run; if they are of this model, they have shapes and types, and none is traced, which takes most of a small
    run's load.
    """
    listed = None if checkpoints is None else listed_params(checkpoints.newest_manifest(), config)
    shapes = listed or jax.eval_shape(
        lambda params: with_frozen_dtype(params, config.trainable, config.train.frozen_dtype),
        parameter_shapes(config.model),
    )
    return with_shardings(shapes, stored_sharding(shapes, mesh or make_mesh()))


def restore_weights(
    checkpoints: Checkpoints,
    config: Config,
    weights: str | None,
    step: int | None,
    mesh: Mesh | None = None,
    dtype: str = "float32",
) -> tuple[int, PyTree]:
    """Returns the step and the parameters that `weights` selects, on the mesh or by default replicated on all devices.

    Args:
        weights: last, best, ema or average:N; None: the config's, without a step. If the run has fewer than N checkpoints, the
            config's average:N takes all of them, with a warning.
        step: a step to restore last or ema from; None: the newest whole one.
        dtype: type of the kernels and embedding tables, see `round_kernels`; those of one checkpoint are read in it.

    Raises: ValueError if the run does not have them.
    """
    if weights is None:
        weights = "last" if step is not None else available(checkpoints, config.weights)
    check_weights(weights, config)
    shapes = abstract_saved_params(config, mesh, checkpoints)
    if step is not None and weights not in ("last", "ema"):
        raise ValueError(
            f"weights {weights!r} choose their own step: leave out --step {step}, or set weights to last or ema"
        )
    if weights.startswith("average:"):
        step, params = checkpoints.average(shapes, int(weights.removeprefix("average:")))
    else:
        rounded = with_shardings(rounded_shapes(shapes, dtype), jax.tree.map(lambda x: x.sharding, shapes))
        field: Literal["params", "ema"] = "ema" if weights == "ema" else "params"

        def restore(chosen: int | None) -> tuple[int, PyTree]:
            if chosen is None:
                raise ValueError("no checkpoint has been evaluated yet, so weights 'best' has none: use --weights last")
            return chosen, checkpoints.restore_params(shapes, chosen, field=field, rounded=rounded)

        if step is not None or weights == "best":
            step, params = restore(checkpoints.best() if step is None else step)
        else:
            step, params = checkpoints.usable(lambda: restore(checkpoints.latest_whole()))
    # Frozen parameters may be saved in bfloat16; the model's own are float32.
    used = rounded_shapes(jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32), shapes), dtype)
    return step, jax.tree.map(lambda x, like: x.astype(like.dtype), params, used)


def available(checkpoints: Checkpoints, weights: str) -> str:
    """Returns the `weights` of a config; with a warning average:N with a lower N, or last, if the run has too few checkpoints.

    A run that was stopped before its first evaluation has no best ones.
    """
    if weights == "best" and checkpoints.steps() and checkpoints.best() is None:
        warn("weights is 'best', but no checkpoint has been evaluated yet: weights 'last' is used")
        return "last"
    kind, _, number = weights.partition(":")
    if kind != "average":
        return weights
    count = len(checkpoints.newest_regular(int(number)))
    if count == int(number) or not checkpoints.steps():  # without any, the message of last fits
        return weights if count else "last"
    instead = f"average:{count}" if count > 1 else "last"
    warn(
        f"weights is {weights!r}, but the run has {counted(count, 'checkpoint')} to average: weights {instead!r} is used"
    )
    return instead


def start_params(here: Config, mesh: Mesh | None) -> tuple[RunFolder, Config, int, PyTree]:
    """Returns the run `train.init_from`, with step and parameters that its `weights` choose; merged, if only it has adapters.

    Raises: ValueError if both have adapters, and not the same ones.
    """
    folder = open_run(str(here.train.init_from))
    config = folder.config()
    there, ours = config.model.lora, here.model.lora
    if there is not None and ours is not None and replace(there, dropout=ours.dropout) != ours:
        raise ValueError(
            f"model.lora is {ours}, but the run train.init_from {here.train.init_from} has {there}: take these adapters, or start "
            "from that run's merged weights, by `export hf` and `import hf`"
        )
    with open_checkpoints(config, folder, read_only=True) as checkpoints:
        step, params = restore_weights(checkpoints, config, None, None, mesh)
    if config.model.lora is not None and here.model.lora is None:
        params = merged(params, config.model.lora)
    return folder, config, step, in_class_order(params, config.objective.class_names, here.objective.class_names)


def in_class_order(params: PyTree, there: tuple[str, ...], here: tuple[str, ...]) -> PyTree:
    """Returns parameters for classes in the order `here`, from those in the order `there`; unchanged for classes of other names."""
    if there == here or {*there} != {*here}:
        return params
    order = np.array([there.index(name) for name in here])
    flat = flatten_dict(params, sep="/")
    return unflatten_dict({path: x[..., order] if path in CLASS_PARAMETERS else x for path, x in flat.items()}, sep="/")


def warm_start(params: PyTree, here_config: Config, mesh: Mesh | None = None) -> tuple[PyTree, str]:
    """Returns `params` with the values of the run `train.init_from`, on the mesh, and a line that reports their origin.

    `params` are arrays, or their shapes with shardings; those that stay fresh are returned as they are given.

    The line also lists model settings in which the two runs differ although all shapes are the same. Classes are matched by their
    names; if no name is the same, they keep their order, with a warning.

    Raises: ValueError with the parameters that are missing in that run, or have another shape or other classes, and match no
        pattern of `train.init_fresh`.
    """
    train = here_config.train
    folder, config, step, restored = start_params(here_config, mesh)
    here, there = flatten_dict(params, sep="/"), flatten_dict(restored, sep="/")
    theirs, ours = ({*one.objective.class_names} for one in (config, here_config))
    unlike = CLASS_PARAMETERS if theirs & ours and theirs != ours else ()
    misfits = [path for path, x in here.items() if path in unlike or path not in there or x.shape != there[path].shape]
    chosen, adapted = (
        {path for p in some for path in fnmatch.filter(here, p)} for some in (train.init_fresh, ADAPTERS)
    )
    fresh = sorted(chosen.union(misfits))
    unexpected = [path for path in fresh if path not in chosen | adapted]
    if unexpected:
        listed = ", ".join(
            f"{path} (missing in that run)"
            if path not in there
            else f"{path} ({there[path].shape} in that run, {here[path].shape} in this one)"
            if here[path].shape != there[path].shape
            else f"{path} (of other classes in that run: {', '.join(config.objective.class_names)})"
            for path in unexpected
        )
        raise ValueError(
            f"train.init_from {folder.called} does not fit: {listed}. Change the model, or start them fresh: add patterns that "
            "match their paths to train.init_fresh"
        )
    unused = sorted(set(there) - set(here))
    taken = {
        path: jax.device_put(there[path].astype(x.dtype), x.sharding) for path, x in here.items() if path not in fresh
    }
    if theirs and ours and not theirs & ours and taken.keys() & {*CLASS_PARAMETERS}:
        warn(
            f"the classes of train.init_from are {', '.join(config.objective.class_names)}, and those of the objective start from "
            "them in their order: if they mean others, set train.init_fresh to ('pooler/classes/*',)"
        )
    report = [f"{len(taken)} parameters from step {step} of {folder.called}"]
    adapters = [path for path in fresh if path.endswith("/lora_a/kernel")]
    others = [path for path in fresh if "/lora_" not in path]
    report += [f"fresh: {', '.join(others)}"] if others else []
    report += [counted(len(adapters), "fresh adapter")] if adapters else []
    report += [f"not used: {', '.join(unused)}"] if unused else []
    other = other_settings(config, here_config)
    report += [f"other settings in that run: {', '.join(other)}"] if other else []
    return unflatten_dict({**here, **taken}, sep="/"), "; ".join(report)


def other_settings(there: Config, here: Config) -> list[str]:
    """Returns the model settings that another run has with other values, except those that only affect training.

    The settings of a group that is None here are left out: its parameters are not used.
    """
    ours = flatten(here.model, "model")
    return [
        f"{setting} {value!r}"
        for setting, value in flatten(there.model, "model").items()
        if (setting in ours or setting.rpartition(".")[0] not in ours)
        and value != ours.get(setting)
        and not (
            has_mark(setting, Answers.SAME) or has_mark(setting, Answers.CHOSEN) or setting.startswith("model.lora")
        )
    ]
