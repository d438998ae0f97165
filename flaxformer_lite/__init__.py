"""A readable library of Transformer modules in JAX/Flax, and one trainer for all of them."""

import functools
import gc
import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flaxformer_lite.core.data.dataset import Dataset
    from flaxformer_lite.core.model import Inputs, ModelConfig, Transformer
    from flaxformer_lite.core.search import Request
    from flaxformer_lite.core.search.decoder import Decoder
    from flaxformer_lite.core.step import TrainTask, train_step
    from flaxformer_lite.interop.exporting import export_ctranslate2, export_hf
    from flaxformer_lite.interop.importing import import_hf
    from flaxformer_lite.run import Run, load, train
    from flaxformer_lite.tools.fit import fit
    from flaxformer_lite.tools.report.plots import plot_attention, plot_curves, plot_lengths

__version__ = "0.1.0"
__all__ = [
    "Dataset",
    "Decoder",
    "Inputs",
    "ModelConfig",
    "Request",
    "Run",
    "TrainTask",
    "Transformer",
    "export_ctranslate2",
    "export_hf",
    "fit",
    "import_hf",
    "load",
    "plot_attention",
    "plot_curves",
    "plot_lengths",
    "train",
    "train_step",
]

# Before any room imports JAX; a command that started itself once more has the answer already.
if "JAX_PLATFORMS" not in os.environ and importlib.util.find_spec("libtpu") is not None:
    from flaxformer_lite.base.hardware import skip_missing_tpu

    skip_missing_tpu(os.environ)


ROOMS = {
    "Dataset": "core.data.dataset",
    "Decoder": "core.search.decoder",
    "Request": "core.search",
    **dict.fromkeys(("Inputs", "ModelConfig", "Transformer"), "core.model"),
    **dict.fromkeys(("TrainTask", "train_step"), "core.step"),
    **dict.fromkeys(("Run", "load", "train"), "run"),
    "import_hf": "interop.importing",
    "fit": "tools.fit",
    **dict.fromkeys(("export_hf", "export_ctranslate2"), "interop.exporting"),
    **dict.fromkeys(("plot_attention", "plot_curves", "plot_lengths"), "tools.report.plots"),
}
"""The room of each name."""


if not TYPE_CHECKING:  # a type checker would take any name for one of the module's

    def __getattr__(name: str) -> Any:
        """Imports a name's room when the name is first used: commands answer a mistake or Ctrl-C before JAX is imported."""
        if name not in ROOMS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        collects = gc.isenabled()
        gc.disable()  # to look for garbage again and again takes half of the time of these imports
        try:
            value = getattr(importlib.import_module(f"{__name__}.{ROOMS[name]}"), name)
        finally:
            if collects:
                gc.enable()
        return of_models(value) if name == "load" else value

    @functools.cache
    def of_models(load: object) -> object:
        """Returns `load` for runs and for models of others, which are imported first."""

        @functools.wraps(load)
        def load_model(path: object, **options: object) -> object:
            from flaxformer_lite.base.model_names import is_foreign

            if is_foreign(str(path)):
                from flaxformer_lite.interop.loading import imported

                path = imported(str(path))
            return load(path, **options)

        return load_model

    def __dir__() -> list[str]:
        """Lists the public names for their completion, though no room is imported."""
        return [*__all__, "__version__"]
