"""`--engine`: whether CTranslate2 answers a command, decided and done without JAX."""

from collections.abc import Mapping, Sequence
from typing import Any

from flaxformer_lite.base.console import note
from flaxformer_lite.engine.engine_run import EngineRun, open_engine
from flaxformer_lite.engine.exports import RunWeights, own_settings
from flaxformer_lite.engine.rules import CannotAnswer, check_obeyed, is_chosen, is_installed, uses_cpu


def without_jax(
    wanted: RunWeights, engine: str, decode: Mapping[str, Any], jax_alone: Sequence[str]
) -> EngineRun | None:
    """Returns the run as CTranslate2 reads it; None: JAX answers. A line says which.

    engine: as it was typed. jax_alone: the typed options that only JAX obeys.

    Raises: CannotAnswer if CTranslate2 is asked for, by name or by int8, and cannot answer; ValueError for a mistake that JAX would
        report too; OSError.
    """
    asked = engine != "jax" and is_chosen(engine, wanted.dtype)
    if not (asked or (engine == "auto" and uses_cpu() and is_installed())):
        return None
    try:
        run = opened(wanted, decode, jax_alone)
    except (CannotAnswer, OSError) as error:
        if asked:
            raise
        note(f"engine jax: {getattr(error, 'reason', error)}")
        return None
    if run is not None:
        note(f"engine ctranslate2: {wanted.dtype}, step {run.step:,}")
    return run


def opened(wanted: RunWeights, decode: Mapping[str, Any], jax_alone: Sequence[str]) -> EngineRun | None:
    """Returns the run as CTranslate2 reads it; None: the folder has no run, which JAX reports. Raises: as `without_jax`."""
    if (settings := own_settings(wanted.run)) is None:
        return None
    if jax_alone:
        raise CannotAnswer(f"CTranslate2 does not obey {', '.join(jax_alone)}: leave it out")
    check_obeyed(settings.changed(decode))
    return open_engine(wanted)
