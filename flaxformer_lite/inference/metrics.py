"""Quality of translations: sacreBLEU, chrF, exact match."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


class Score(NamedTuple):
    """The value of a metric, with sacreBLEU's signature by which others reproduce it (empty if its name is enough)."""

    value: float
    signature: str = ""
    hypothesis_words: int = 0
    reference_words: int = 0


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Returns the fraction of hypotheses that equal their reference, 0 … 1."""
    return Score(sum(h == r for h, r in zip(hypotheses, references, strict=True)) / len(references))


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    tokenized: bool = False,
    lowercase: bool = False,
) -> Score:
    """Returns corpus BLEU, 0 … 100, with sacreBLEU's signature.

    Text that is `tokenized` already is split at spaces (sacreBLEU's tokenizer `none`), other text by mteval's tokenizer, `13a`.

    Reference: Papineni et al. 2002, ACL; Post 2018, arXiv:1804.08771.
    """
    # `force` only silences the warning that tokenised text looks tokenised.
    metric = BLEU(tokenize="none" if tokenized else "13a", lowercase=lowercase, force=tokenized)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(score.score, str(metric.get_signature()), score.sys_len, score.ref_len)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Returns corpus chrF2, 0 … 100, with sacreBLEU's signature. Reference: Popović 2015, WMT."""
    metric = CHRF()
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(score.score, str(metric.get_signature()))


def text_metrics(
    names: Sequence[str], hypotheses: Sequence[str], references: Sequence[str], *, tokenized: bool
) -> dict[str, float]:
    """Returns the named metrics (exact_match, bleu, chrf) of the hypotheses."""
    functions = {
        "exact_match": exact_match,
        "bleu": lambda h, r: bleu(h, r, tokenized=tokenized),
        "chrf": chrf,
    }
    return {name: functions[name](hypotheses, references).value for name in names}
