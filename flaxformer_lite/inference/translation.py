"""Translation: source token ids to target texts with scores."""

from collections.abc import Sequence

from jaxtyping import PyTree

from flaxformer_lite.inference.batches import ProgressCallback
from flaxformer_lite.inference.decoder import Decoder, ScoredText
from flaxformer_lite.text import Tokenizers


def translate(
    decoder: Decoder,
    params: PyTree,
    sources: Sequence[Sequence[int]],
    tokenizers: Tokenizers,
    progress: ProgressCallback,
    other_params: Sequence[PyTree] = (),
) -> list[list[ScoredText]]:
    """Returns the `decode.num_hypotheses` best translations of each source, best first.

    `sources`: token ids without special ids. An empty source has one empty translation, with a score of 0. `other_params`: those of
    the other models of an ensemble.

    Raises: ValueError if the model has no encoder.
    """
    if not decoder.has_encoder:
        raise ValueError(
            "the model has no encoder (model.num_encoder_layers is 0), so it cannot translate: use generate"
        )
    filled = [i for i, source in enumerate(sources) if len(source)]
    rows = [tokenizers.source.as_source(sources[i]) for i in filled]
    answers = decoder.generate(
        {"params": params}, rows, progress, other_variables=tuple({"params": other} for other in other_params)
    )
    translations = [[ScoredText("", 0.0)] for _ in sources]
    for i, hypotheses in zip(filled, answers, strict=True):
        translations[i] = [ScoredText(tokenizers.target_text(h.tokens), h.score) for h in hypotheses]
    return translations
