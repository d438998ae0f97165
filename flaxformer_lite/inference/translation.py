"""Sentences in, translations out."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, PyTree

from flaxformer_lite.inference.decoder import Decoder
from flaxformer_lite.text.tokenizer import Tokenizers


class Translation(NamedTuple):
    """One hypothesis: its text, and the score that ranks it (`decode.length_penalty` says by which formula)."""

    text: str
    score: float


def translate(
    decoder: Decoder,
    params: PyTree,
    sources: Sequence[Int[np.ndarray, "_"]],
    tokenizers: Tokenizers,
    progress: Callable[[int, int], None],
) -> list[list[Translation]]:
    """The `decode.num_hypotheses` best translations of each source, best first; one empty one for an empty source.

    Sources are token ids without special ones. `progress` is told how many are done, of how many.
    """
    if not decoder.reads_sources:
        raise ValueError(
            "the model has no encoder (model.num_encoder_layers is 0), so it cannot translate: use generate"
        )
    filled = [i for i, source in enumerate(sources) if len(source)]
    rows = [tokenizers.source.as_source(sources[i].tolist()) for i in filled]
    answers = decoder.generate({"params": params}, rows, progress)
    translations = [[Translation("", 0.0)] for _ in sources]
    for i, hypotheses in zip(filled, answers, strict=True):
        translations[i] = [Translation(tokenizers.target_text(h.tokens), h.score) for h in hypotheses]
    return translations
