"""Quality of translations: sacreBLEU, chrF, exact match."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from jaxtyping import Float

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.core.base.bounds import Checked, NonNegativeInt, PositiveInt
from flaxformer_lite.files.text.words import SCRIPTS

BleuTokenizer = Literal["13a", "none", "intl", "zh", "char", "ja-mecab", "ko-mecab", "spm", "flores101", "flores200"]


@dataclass(frozen=True, kw_only=True)
class MetricConfig(Checked, at="metrics"):
    """BLEU and chrF of translations: in training, in the command `evaluate`, in reports, and as utility of --minimum-risk."""

    language: str | None = None
    """Code of the target language, such as zh, ja_XX or tha_Thai, which chooses the tokenizer of BLEU. None: the language that the
    name of the target file, field or column ends in (train.zh.gz, translation.ja), else the one of the references' script."""
    bleu_tokenizer: BleuTokenizer | None = None
    """sacreBLEU's tokenizer; "none" splits only at spaces, for text whose words and punctuation are already split. None: zh for
    Chinese; ja-mecab and ko-mecab for Japanese and Korean, or char where they are not installed; char for other languages written
    without spaces; else 13a."""
    chrf_char_order: PositiveInt = 6
    """Longest n-gram of characters in chrF."""
    chrf_word_order: NonNegativeInt = 0
    """Longest n-gram of words in chrF; 2 is chrF++."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.language is not None and not re.fullmatch(r"[A-Za-z]{2,3}([-_]\w+)?", self.language):
            raise ValueError(
                f"metrics.language is {self.language!r}: it must be a code of two or three letters, such as zh, ja_XX or tha_Thai"
            )


if TYPE_CHECKING:  # imported where texts are scored: commands that only decode start sooner
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

BY_LANGUAGE: dict[str, BleuTokenizer] = {
    "zh": "zh",
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz"), "char"),
}
"""Tokenizer of languages that are written without spaces, and of Korean: sacreBLEU's own choice, else characters."""

SAME_LANGUAGE = {
    **dict.fromkeys(("zho", "chi", "cmn", "yue", "wuu", "lzh"), "zh"), "jpn": "ja", "jap": "ja", "kor": "ko", "tha": "th",
    "lao": "lo", "khm": "km", "mya": "my", "bur": "my", "bod": "bo", "tib": "bo", "dzo": "dz",
}  # fmt: skip
"""Codes of ISO 639-2 and 639-3, and `jap` of OPUS-MT → code of ISO 639-1."""

DEFAULT_METRICS = MetricConfig()

TOKENIZER_PACKAGES = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
"""The package that a tokenizer needs besides sacreBLEU."""


class Score(NamedTuple):
    """The value of a metric, with sacreBLEU's signature, with which others reproduce it (empty if its name is enough)."""

    value: float
    signature: str = ""
    hypothesis_words: int = 0
    reference_words: int = 0


# The tokenizer of BLEU ------------------------------------------------------------------------------------------------


def language_of(code: str) -> str | None:
    """Returns the language of `BY_LANGUAGE` that a code stands for, such as `zh` for `zho_Hans`; None for any other text."""
    code = re.split("[-_]", code)[0].lower()
    code = SAME_LANGUAGE.get(code, code)
    return code if code in BY_LANGUAGE else None


def with_language(config: MetricConfig, target_names: Sequence[str]) -> MetricConfig:
    """Returns the settings with the language that the names of all target files or fields end in, unless they have one."""
    ends = (re.sub(r"\.(gz|bz2|xz|zst)$", "", name).rpartition(".")[2] for name in target_names)
    languages = {language_of(end) for end in ends}
    return replace(config, language=languages.pop()) if config.language is None and len(languages) == 1 else config


def resolve(config: MetricConfig, texts: Sequence[str]) -> MetricConfig:
    """Returns the settings with the tokenizer of BLEU for such texts, and without the language.

    Raises: ValueError if the settings name a tokenizer that is not installed.
    """
    text = "\n".join(texts)
    letters = {language: len(re.findall(f"[{script}]", text)) for language, script in SCRIPTS.items()}
    if letters["ja"] > letters["zh"] / 9:  # kana stand between the ideographs of any Japanese text
        letters["ja"] += letters.pop("zh")
    number = sum(letters.values())
    others = (sum(map(str.isalpha, text)) - number) / 5  # words, where a letter of these scripts counts as one
    language: str | None = None
    if config.language is not None:
        language = language_of(config.language)
    elif number > others:
        language = max(letters, key=letters.__getitem__)
    name = config.bleu_tokenizer or BY_LANGUAGE.get(language or "", "13a")
    name = "flores101" if name == "spm" else name  # its old name; sacreBLEU's class of that name fails in Python 3.13
    try:
        check_installed(name)
    except ValueError:
        if config.bleu_tokenizer is not None:
            raise
        warn_once(
            f"BLEU splits texts into characters (char), as sacreBLEU's tokenizer {name} is not installed: pip install "
            f"'{TOKENIZER_PACKAGES[name]}', or set metrics.bleu_tokenizer to 'char'"
        )
        name = "char"
    return replace(config, language=None, bleu_tokenizer=name)


@functools.cache
def check_installed(name: BleuTokenizer) -> None:
    """Raises: ValueError with the package that a tokenizer needs, or the file that it could not get."""
    from sacrebleu.metrics.bleu import BLEU

    try:
        BLEU(tokenize=name)
    except (RuntimeError, ImportError, OSError, SystemExit) as error:
        remedy = f"pip install '{TOKENIZER_PACKAGES.get(name, 'sentencepiece')}', or choose another one"
        if isinstance(error, OSError | SystemExit):
            remedy = f"sacreBLEU could not download its model ({error}); copy ~/.sacrebleu from a machine that has it"
        raise ValueError(f"metrics.bleu_tokenizer is {name!r}, which is not installed: {remedy}") from error


def make_bleu(config: MetricConfig, *, lowercase: bool = False, effective_order: bool = False) -> "BLEU":
    """Returns sacreBLEU's metric for settings that `resolve` returned."""
    from sacrebleu.metrics.bleu import BLEU

    # `force` only silences the warning that tokenised text looks tokenised.
    name = config.bleu_tokenizer
    return BLEU(tokenize=name, force=name == "none", lowercase=lowercase, effective_order=effective_order)


def make_chrf(config: MetricConfig) -> "CHRF":
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(char_order=config.chrf_char_order, word_order=config.chrf_word_order)


# The metrics ----------------------------------------------------------------------------------------------------------


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Returns the fraction of hypotheses that equal their reference, 0 … 1."""
    return Score(sum(h == r for h, r in zip(hypotheses, references, strict=True)) / len(references))


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    config: MetricConfig = DEFAULT_METRICS,
    *,
    lowercase: bool = False,
) -> Score:
    """Returns corpus BLEU, 0 … 100, with sacreBLEU's signature; the settings and the references choose the tokenizer.

    Reference: Papineni et al. 2002, ACL; Post 2018, arXiv:1804.08771.
    """
    metric = make_bleu(resolve(config, references), lowercase=lowercase)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(score.score, str(metric.get_signature()), score.sys_len, score.ref_len)


def chrf(hypotheses: Sequence[str], references: Sequence[str], config: MetricConfig = DEFAULT_METRICS) -> Score:
    """Returns corpus chrF2, 0 … 100, with sacreBLEU's signature. Reference: Popović 2015, WMT; 2017, WMT (words)."""
    metric = make_chrf(config)
    score = metric.corpus_score(list(hypotheses), [list(references)])
    return Score(score.score, str(metric.get_signature()))


METRICS: dict[str, Callable[[Sequence[str], Sequence[str], MetricConfig], Score]] = {
    "exact_match": lambda hypotheses, references, _: exact_match(hypotheses, references),
    "bleu": bleu,
    "bleu_lowercase": functools.partial(bleu, lowercase=True),
    "chrf": chrf,
}
"""The metrics of texts by their names: an evaluation in training computes those of `train.text_metrics`, `evaluate` all."""


def text_scores(
    names: Iterable[str], hypotheses: Sequence[str], references: Sequence[str], config: MetricConfig
) -> dict[str, Score]:
    """Returns the named metrics of the hypotheses."""
    return {name: METRICS[name](hypotheses, references, config) for name in names}


def text_report(hypotheses: Sequence[str], references: Sequence[str], config: MetricConfig) -> dict[str, object]:
    """Returns all metrics of translations, with their signatures."""
    scores = text_scores(METRICS, hypotheses, references, config)
    return {
        "sentences": len(references),
        **{metric: score.value for metric, score in scores.items()},
        **{f"{metric}_signature": score.signature for metric, score in scores.items() if score.signature},
        "reference_words": scores["bleu"].reference_words,
        "hypothesis_words": scores["bleu"].hypothesis_words,
    }


def with_references(hypotheses: Sequence[str], references: Sequence[str | None]) -> tuple[list[str], list[str]]:
    """Returns the hypotheses that have a reference, and their references."""
    both = [(text, right) for text, right in zip(hypotheses, references, strict=True) if right is not None]
    return [text for text, _ in both], [right for _, right in both]


def of_parts(figures: Callable[..., Mapping[str, Any]], parts: Mapping[str, slice], *columns: Any) -> dict[str, Any]:
    """Returns the figures of each source of a mixture, from its rows of the columns, by names such as `de/bleu`."""
    named = dict[str, Any]()
    for source, rows in parts.items():
        of_source = figures(*(column[rows] for column in columns))
        named |= {f"{source}/{name}": value for name, value in of_source.items()}
    return named


MEAN_RATING = "mean rating of the sentences"
"""The signature of a comparison of ratings."""


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

    @property
    def rounded(self) -> str:
        """The score with its interval; ratings with four digits, as COMET's lie near each other."""
        digits = 4 if self.signature == MEAN_RATING else 2
        return f"{self.score:6.{digits}f} ± {self.interval:.{digits}f}"


def compare_systems(
    systems: Mapping[str, Sequence[str]], references: Sequence[str], config: MetricConfig = DEFAULT_METRICS
) -> list[Comparison]:
    """Returns BLEU and chrF of each system's hypotheses, each system compared with the first, by 1,000 resamples.

    Reference: Koehn 2004, EMNLP; sacreBLEU's paired bootstrap.
    """
    from sacrebleu.significance import PairedTest

    plus = "+" * config.chrf_word_order
    metrics = {"BLEU": make_bleu(resolve(config, references)), f"chrF2{plus}": make_chrf(config)}
    test = PairedTest(list(systems.items()), metrics, [list(references)], test_type="bs", n_samples=1000)
    signatures, scores = cast(tuple[dict[str, Any], dict[str, list[Any]]], test())
    comparisons = []
    for metric in metrics:
        first = scores[metric][0]
        for name, result in zip(systems, scores[metric], strict=True):
            # sacreBLEU counts larger differences only: without any difference it would report its smallest p, not its largest.
            p = 1.0 if result is not first and result.score == first.score else result.p_value
            comparisons.append(Comparison(name, metric, result.score, float(result.ci), p, str(signatures[metric])))
    return comparisons


def compare_ratings(ratings: Mapping[str, Sequence[float]], metric: str) -> list[Comparison]:
    """Returns the mean rating of each system's sentences, each system compared with the first as in `compare`."""
    comparisons: list[Comparison] = []
    base: Float[np.ndarray, R] = np.zeros(0)
    for name, values in ratings.items():
        chosen = np.random.default_rng(12345).integers(len(values), size=(1000, len(values)))  # sacreBLEU's seed
        score = float(np.mean(values))
        means = np.array(values)[chosen].mean(1)
        low, *_, high = np.sort(means)[25:-25]
        p = None
        if comparisons:
            differences = abs(means - base)
            p = float((differences - differences.mean() > abs(score - comparisons[0].score)).sum() + 1) / 1001
            p = 1.0 if score == comparisons[0].score else p
        else:
            base = means
        comparisons.append(Comparison(name, metric, score, float(high - low) / 2, p, MEAN_RATING))
    return comparisons
