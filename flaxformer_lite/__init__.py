"""A small, readable library of Transformer modules in JAX/Flax, and one trainer for all of them."""

from flaxformer_lite.run import Run, load

__all__ = ["Run", "load"]
