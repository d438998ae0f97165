"""Translations, and how good they are: sacreBLEU, chrF, exact match."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, PyTree
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from flaxformer_lite.data.dataset import Tokenizers
from flaxformer_lite.inference.decoder import Decoder


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


class Score(NamedTuple):
    """A figure, and what it takes for others to reproduce it (empty where its name says it all)."""

    value: float
    signature: str = ""
    hypothesis_words: int = 0
    reference_words: int = 0


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The share of hypotheses that equal their reference, 0 … 1."""
    return Score(sum(h == r for h, r in zip(hypotheses, references, strict=True)) / len(references))


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    tokenized: bool = False,
    lowercase: bool = False,
) -> Score:
    """Corpus BLEU, 0 … 100, with sacreBLEU's signature.

    Where words and punctuation stand apart already (`tokenized`), it splits at spaces only (sacreBLEU's tokeniser
    `none`); ordinary text is taken apart by `13a`, mteval's tokeniser.

    Reference: Papineni et al. 2002, ACL; Post 2018, arXiv:1804.08771.
    """
    # `force` only silences the warning that tokenised text looks tokenised.
    metric = BLEU(tokenize="none" if tokenized else "13a", lowercase=lowercase, force=tokenized)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(score.score, str(metric.get_signature()), score.sys_len, score.ref_len)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Corpus chrF2, 0 … 100, with sacreBLEU's signature. Reference: Popović 2015, WMT."""
    metric = CHRF()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(score.score, str(metric.get_signature()))


def text_metrics(
    names: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], *, tokenized: bool
) -> dict[str, float]:
    """The named metrics of the hypotheses."""
    functions = {
        "exact_match": exact_match,
        "bleu": lambda h, r: bleu(h, r, tokenized=tokenized),
        "chrf": chrf,
    }
    return {name: functions[name](hypotheses, references).value for name in names}
