"""BLEU of a run in CTranslate2, with weights of eight bits."""

from pathlib import Path
from typing import Any

from flaxformer_lite.run import Run
from flaxformer_lite.run.scoring import ScoredData, text_report


def score_int8(run: Run, folder: Path, data: ScoredData) -> dict[str, Any]:
    """Returns the scores of the translations that CTranslate2 makes of the data, by the run's own beam."""
    import ctranslate2

    tokenizers, decode = run.required_tokenizers, run.config.decode
    longest = run.config.data.max_source_length
    sources = [ids[: longest - 1] for ids in tokenizers.source.encode_batch([pair.source for pair in data.pairs])]
    translator = ctranslate2.Translator(str(folder), compute_type="int8")
    answers = translator.translate_batch(
        [tokenizers.source.pieces(ids) for ids in sources],
        beam_size=decode.beam_size,
        length_penalty=decode.alpha,
        max_decoding_length=decode.max_length(longest),
        min_decoding_length=0,
        max_batch_size=64,
    )
    numbers = {piece: i for i, piece in enumerate(tokenizers.target.pieces(range(tokenizers.target.vocab_size)))}
    texts = [tokenizers.target_text([numbers[piece] for piece in answer.hypotheses[0]]) for answer in answers]
    return text_report(texts, [pair.target for pair in data.pairs], data.metrics)
