"""A model to answers, as token ids: searches, sampling, predictions for whole texts, forward passes.

`settings.py` has the settings, `request.py` what is asked, `forced.py` what an answer must have. `search.py`, `greedy.py`,
`beam.py` and `sampling.py` are pure functions of arrays; `rows.py` compiles them in parts, once a batch shape. `batches.py`
sorts, cuts and pads on the host; `placement.py` knows of devices, which `devices.py` chooses. `decoder.py` joins them to a
`Decoder` of token ids; `generation.py` adds text. `encoder.py`
does the same for models that predict instead of decode, `forward.py` is one pass over given arrays. This face has no name that
needs JAX.
"""

from flaxformer_lite.core.search.forced import Forced, NeededTokens
from flaxformer_lite.core.search.request import Request
from flaxformer_lite.core.search.settings import DecodeConfig, Sampling

__all__ = ["DecodeConfig", "Forced", "NeededTokens", "Request", "Sampling"]
