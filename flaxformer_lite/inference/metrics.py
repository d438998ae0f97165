"""Quality of translations: sacreBLEU, chrF, exact match."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest


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


class Comparison(NamedTuple):
    """The score of one system, and its comparison with the first one by paired bootstrap resampling."""

    system: str
    metric: str
    score: float
    interval: float
    """Half the width of the 95 % confidence interval of the score."""
    p_value: float | None
    """Probability of so large a difference from the first system if both were equally good; None for the first itself."""
    signature: str


def compare(systems: Mapping[str, Sequence[str]], references: Sequence[str], *, tokenized: bool) -> list[Comparison]:
    """Returns BLEU and chrF of each system's hypotheses, each system compared with the first, by 1,000 resamples.

    Reference: Koehn 2004, EMNLP; sacreBLEU's paired bootstrap.
    """
    metrics = {"BLEU": BLEU(tokenize="none" if tokenized else "13a", force=tokenized), "chrF2": CHRF()}
    test = PairedTest(list(systems.items()), metrics, [list(references)], test_type="bs", n_samples=1000)
    signatures, scores = cast(tuple[dict[str, Any], dict[str, list[Any]]], test())
    found = []
    for metric in metrics:
        first = scores[metric][0]
        for name, result in zip(systems, scores[metric], strict=True):
            # sacreBLEU counts larger differences only: without any difference it would report its smallest p, not its largest.
            p = 1.0 if result is not first and result.score == first.score else result.p_value
            found.append(Comparison(name, metric, result.score, float(result.ci), p, str(signatures[metric])))
    return found


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
