"""Weights and settings of other systems, in and out.

Both go by two-way tables: `options.py` pairs options of another system with our settings, `name_map.py` pairs arrays with our
parameters, and `differences.py` tells what a system cannot express. `importing.py` makes a run with them, `exporting.py` a folder
or a file of a run; `check.py` compares what was written with the other system itself.

`systems/` has the five older systems and `hf/` the families of Hugging Face, a file each: a template, a table of options, a table
of weights. `ctranslate2.py` writes folders for CTranslate2. `weight_files.py` and `tf_checkpoint.py` read and write files. `hub.py`
downloads models of the Hugging Face hub by name, and pushes them; `loading.py` makes runs of models that are named in their place.
"""

from flaxformer_lite.interop.hf.families import FAMILIES
from flaxformer_lite.interop.hf.family import Family
from flaxformer_lite.interop.hf.import_folder import Imported, read_folder
from flaxformer_lite.interop.name_map import WeightName, from_params, to_params
from flaxformer_lite.interop.options import Entry, Options, option, required
from flaxformer_lite.interop.systems import SYSTEMS
from flaxformer_lite.interop.systems.system import System

__all__ = [
    "FAMILIES",
    "SYSTEMS",
    "Entry",
    "Family",
    "Imported",
    "Options",
    "System",
    "WeightName",
    "from_params",
    "option",
    "read_folder",
    "required",
    "to_params",
]
