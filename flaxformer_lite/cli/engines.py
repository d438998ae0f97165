"""`--engine`: whether CTranslate2 answers a command, decided and done without JAX."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flaxformer_lite.base.console import note
from flaxformer_lite.engine.exports import OwnConfig, RunWeights, own_config
from flaxformer_lite.engine.rules import CannotAnswer, chosen_engine

OpenedT = TypeVar("OpenedT", bound=Any)


def without_jax(
    wanted: RunWeights, engine: str, opened: Callable[[RunWeights, OwnConfig], OpenedT], jax_alone: Sequence[str]
) -> OpenedT | None:
    """Returns the run as CTranslate2 reads it; None: JAX answers. A line says which.

    opened: checks the run's config, and opens the run. jax_alone: the options that were typed and that only JAX obeys.

    Raises: CannotAnswer if CTranslate2 is asked for, by name or by int8, and cannot answer; ValueError for a mistake that JAX would
        report too; OSError.
    """

    def read() -> OpenedT | None:
        config = own_config(wanted.run)
        if config is None:
            return None  # the folder has no run, which JAX reports
        if jax_alone:
            raise CannotAnswer(f"CTranslate2 does not obey {', '.join(jax_alone)}: leave it out")
        return opened(wanted, config)

    run = None if engine == "jax" else chosen_engine(engine, wanted.dtype, read, note)
    if run is not None:
        note(f"engine ctranslate2: {wanted.dtype}, step {run.origin[0][0]:,}")
    return run
