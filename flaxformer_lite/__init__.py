"""A small, readable library of Transformer modules in JAX/Flax, and one trainer for all of them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flaxformer_lite.run import Run, load

__version__ = "0.1.0"
__all__ = ["Run", "load"]


def __getattr__(name: str) -> Any:
    """`Run` and `load`, imported when they are asked for: the commands answer a mistake or Ctrl-C before JAX is there."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flaxformer_lite import run

    return getattr(run, name)
