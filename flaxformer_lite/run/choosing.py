"""The best of several candidates of a translation, by `best_by`: a run that rates translations, or minimum Bayes risk."""

import itertools
from collections.abc import Sequence
from typing import Any, cast, get_args

from flaxformer_lite.core.search import DecodeConfig, Sampling
from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.metrics.minimum_bayes_risk import Utility, minimum_bayes_risk
from flaxformer_lite.metrics.translations import MetricConfig, resolve

AnswerLists = list[list[ScoredText]]
"""The answers to each source."""


BestBy = Any
"""The way to choose the best candidate. A `Run`: it rates translations, without a reference, as MetricX does. chrf or bleu: the
best is the candidate that is most like all candidates (minimum Bayes risk). None: the score of the search."""


def candidate_settings(
    config: DecodeConfig,
    best_by: BestBy = None,
    samples: int | None = None,
    temperature: float | None = None,
    **decode: Any,
) -> dict[str, Any]:
    """Returns the settings of decoding under which `best_by` has candidates: the answers of the beam, or samples.

    Raises: ValueError if the arguments do not go together, or `best_by` cannot choose.
    """
    if best_by is None and samples is not None:
        raise ValueError("samples are candidates of best_by: add best_by, or leave samples out")
    if samples is None and temperature is not None:
        raise ValueError("temperature is for samples: add samples, or leave temperature out")
    if best_by is None:
        return decode
    if isinstance(best_by, str):
        if best_by not in get_args(Utility):
            raise ValueError(
                f"best_by is {best_by!r}: give {' or '.join(get_args(Utility))}, or a run that rates translations"
            )
    elif False not in best_by.rates_with:
        raise ValueError(f"{best_by.path} needs references to rate translations: choose by a metric that reads none")
    if samples is not None:
        sampling = Sampling(temperature=1.0 if temperature is None else temperature)
        decode |= {"sampling": sampling, "beam_size": 1, "num_hypotheses": samples}
    else:
        decode = {"num_hypotheses": decode.get("beam_size", config.beam_size), **decode}
    if decode["num_hypotheses"] < 2:
        raise ValueError(
            f"a choice needs several candidates, but there is only {decode['num_hypotheses']}: raise decode.num_hypotheses, "
            "decode.beam_size or the number of samples"
        )
    return decode


def best_first(
    best_by: BestBy,
    sources: Sequence[str],
    answers: AnswerLists,
    metrics: MetricConfig,
    *,
    first_line: int = 1,
    **report: Any,
) -> AnswerLists:
    """Returns the answers to each source, the best first, with the numbers that chose them in place of their scores.

    metrics: the settings of chrF and BLEU. Those of BLEU, if they name no tokenizer, get the one for all these answers.
    first_line: the number of the first source in messages. report: further arguments of `Run.rate`.
    """
    if best_by is None:
        return answers
    if best_by in get_args(Utility):
        texts = [[text for text, _ in of_source] for of_source in answers]
        if best_by == "bleu":
            metrics = resolve(metrics, list(itertools.chain.from_iterable(texts)))
        return [minimum_bayes_risk(of_source, cast(Utility, best_by), metrics) for of_source in texts]
    lines, rated_sources, translations = list[int](), list[str](), list[str]()
    for line, (source, of_source) in enumerate(zip(sources, answers, strict=True), first_line):
        lines += [line] * len(of_source)
        rated_sources += [source] * len(of_source)
        translations += [answer.text for answer in of_source]
    ratings = iter(best_by.rate(rated_sources, translations, lines=lines, **report).tolist())
    highest = best_by.sign == 1
    ordered = []
    for of_source in answers:
        rated = [ScoredText(answer.text, next(ratings)) for answer in of_source]
        ordered.append(sorted(rated, key=lambda answer: answer.score, reverse=highest))
    return ordered
