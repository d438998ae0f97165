"""`--engine`: whether CTranslate2 answers a command, decided and done without JAX."""

import argparse

from flaxformer_lite.base.console import note
from flaxformer_lite.cli.options import typed_settings
from flaxformer_lite.cli.translation import in_direction
from flaxformer_lite.engine.engine_run import EngineRun, open_engine
from flaxformer_lite.engine.exports import RunWeights, has_run, own_settings
from flaxformer_lite.engine.rules import INSTEAD, is_installed, not_obeyed, obstacles, uses_cpu

FOR_JAX = {
    **{name: f"--{name.replace('_', '-')}" for name in ("ensemble", "terms", "placeholders", "prefix")},
    **{name: f"--{name.replace('_', '-')}" for name in ("minimum_risk", "samples", "temperature")},
    **{f"mesh.{axis}": f"--mesh.{axis}" for axis in ("tensor", "fsdp")},
}
"""Options, by their names, that only JAX obeys."""


def without_jax(arguments: argparse.Namespace) -> EngineRun | None:
    """Returns the run of `RUN` as CTranslate2 reads it; None: JAX answers. A line says which, and `engine` too.

    Raises: ValueError if CTranslate2 is asked for, by name or by int8, and cannot answer; OSError.
    """
    asked, chosen = arguments.engine, arguments.engine != "auto" or arguments.weights_dtype == "int8"
    arguments.engine = "jax"
    if asked == "jax" or not has_run(arguments.folder) or not (chosen or (uses_cpu() and is_installed())):
        return None
    try:
        run = opened(arguments)
    except (ValueError, OSError) as error:
        if chosen:
            raise
        note(f"engine jax: {str(error).removesuffix(INSTEAD)}")
        return None
    arguments.engine = "ctranslate2"
    note(f"engine ctranslate2: {arguments.weights_dtype}, step {run.step:,}")
    return run


def opened(arguments: argparse.Namespace) -> EngineRun:
    """Returns the run, exported if need be. Raises: ValueError if CTranslate2 cannot answer; OSError."""
    if typed := [option for name, option in FOR_JAX.items() if vars(arguments)[name]]:
        raise ValueError(f"CTranslate2 does not obey {', '.join(typed)}: leave it out{INSTEAD}")
    if wrong := obstacles(own_settings(arguments.folder).changed(typed_settings(arguments))):
        raise ValueError(not_obeyed(wrong))
    wanted = RunWeights(arguments.folder, arguments.weights, None, arguments.weights_dtype, tuple(arguments.imports))
    return in_direction(open_engine(wanted), arguments)
