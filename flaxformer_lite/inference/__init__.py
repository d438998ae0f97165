"""A model and a tokenizer to answers: decoding, predictions for whole texts, forward passes, metrics of translations.

`config.py` has the settings. `search.py`, `greedy.py`, `beam.py` and `sampling.py` are pure functions of arrays; `rows.py` compiles
them in parts, once a batch shape. `batches.py` sorts, cuts and pads on the host. `decoder.py` joins them to a `Decoder` of token
ids; `generation.py` adds text. `encoder.py` does the same for models that predict instead of decode, `forward.py` is one pass over
given arrays, `metrics.py` compares translations with references.
"""

from flaxformer_lite.inference.config import DecodeConfig, MetricConfig, Sampling
from flaxformer_lite.inference.decoder import Decoder, Hypothesis, ScoredText
from flaxformer_lite.inference.encoder import BatchPredictor
from flaxformer_lite.inference.forward import ModelOutput
from flaxformer_lite.inference.generation import generate_texts, stream_text, translate

__all__ = [
    "BatchPredictor",
    "DecodeConfig",
    "Decoder",
    "Hypothesis",
    "MetricConfig",
    "ModelOutput",
    "Sampling",
    "ScoredText",
    "generate_texts",
    "stream_text",
    "translate",
]
