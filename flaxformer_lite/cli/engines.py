"""`--engine`: whether CTranslate2 answers a command, decided and done without JAX."""

import argparse

from flaxformer_lite.base.console import note
from flaxformer_lite.cli.options import typed_settings
from flaxformer_lite.cli.translation import in_direction
from flaxformer_lite.engine.engine_run import EngineRun, open_engine
from flaxformer_lite.engine.exports import RunWeights, own_settings
from flaxformer_lite.engine.rules import CannotAnswer, check_obeyed, is_chosen, is_installed, uses_cpu


def without_jax(arguments: argparse.Namespace) -> EngineRun | None:
    """Returns the run of `RUN` as CTranslate2 reads it; None: JAX answers. A line says which, and `engine` too.

    Raises: CannotAnswer if CTranslate2 is asked for, by name or by int8, and cannot answer; ValueError for a mistake that JAX would
        report too; OSError.
    """
    if arguments.engine == "jax":
        return None
    asked = is_chosen(arguments.engine, arguments.weights_dtype)
    if not (asked or (uses_cpu() and is_installed())):
        arguments.engine = "jax"
        return None
    wanted = RunWeights(arguments.folder, arguments.weights, None, arguments.weights_dtype, tuple(arguments.imports))
    try:
        if (settings := own_settings(arguments.folder)) is None:
            return None
        check_options(arguments)
        check_obeyed(settings.changed(typed_settings(arguments)))
        run = open_engine(wanted)
    except (CannotAnswer, OSError) as error:
        if asked:
            raise
        arguments.engine = "jax"
        note(f"engine jax: {getattr(error, 'reason', error)}")
        return None
    arguments.engine = "ctranslate2"
    note(f"engine ctranslate2: {arguments.weights_dtype}, step {run.step:,}")
    return in_direction(run, arguments)


def check_options(arguments: argparse.Namespace) -> None:
    """Raises: CannotAnswer that lists the typed options that only JAX obeys."""
    if typed := [mark.option for name, mark in arguments.marks.items() if mark.of_jax and vars(arguments)[name]]:
        raise CannotAnswer(f"CTranslate2 does not obey {', '.join(typed)}: leave it out")
