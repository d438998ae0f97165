"""Translation without JAX: the texts around a search, and CTranslate2 as the search of a CPU.

`texts.py` is what the translators of a `Run` and of an `EngineRun` have in common: texts to requests, answers to texts. `rules.py`
says which settings of decoding CTranslate2 obeys, `search.py` searches with it, `exports.py` makes and finds the folder that it
reads, once for each state of a run, and `engine_run.py` joins them.

JAX makes the folder, in a process of its own (`interop/engine_export.py`); no file here imports it.
"""

from typing import Literal, get_args

Engine = Literal["auto", "jax", "ctranslate2"]
"""auto: CTranslate2 on a CPU where it is installed and obeys all settings, else JAX."""
ENGINES: tuple[str, ...] = get_args(Engine)

__all__ = ["ENGINES", "Engine"]
