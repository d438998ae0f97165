"""Translation: source token ids to target texts with scores."""

from collections.abc import Sequence

from jaxtyping import PyTree

from flaxformer_lite.inference.batches import ProgressCallback
from flaxformer_lite.inference.decoder import Decoder, ScoredText, check_translates
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

    Raises: ValueError if the model has no encoder, or no decoder.
    """
    check_translates(decoder.model.config)
    rows = [tokenizers.source.as_source(source) if len(source) else () for source in sources]
    answers = decoder.generate(
        {"params": params}, rows, progress, other_variables=tuple({"params": other} for other in other_params)
    )
    return [[ScoredText(tokenizers.target_text(h.tokens), h.score) for h in hypotheses] for hypotheses in answers]
