"""A model to answers, as token ids: searches over tokens, and sampling.

`settings.py` has the settings, `request.py` what is asked, `forced.py` what an answer must have. `search.py`, `greedy.py`,
`beam.py` and `sampling.py` are pure functions of arrays; `rows.py` compiles them in parts, once a batch shape. `decoder.py` joins
them to a `Decoder` of token ids; `generation.py` adds text; `devices.py` chooses devices by a search's memory. This face has no
name that needs JAX.
"""

from flaxformer_lite.core.search.forced import Forced, NeededTokens
from flaxformer_lite.core.search.request import Request
from flaxformer_lite.core.search.settings import DecodeConfig, Sampling

__all__ = ["DecodeConfig", "Forced", "NeededTokens", "Request", "Sampling"]
