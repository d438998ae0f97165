"""The numbers of translations: of an estimator by vectors, or of a regression. They have no command: `evaluate --metric` asks."""

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from jaxtyping import Float

from flaxformer_lite.core.base.bounds import with_places
from flaxformer_lite.core.text.special_ids import EncodedText, cut_warning, truncated
from flaxformer_lite.engine.texts import check_list
from flaxformer_lite.tasks.embed.answers import Embed
from flaxformer_lite.tasks.rank.answers import Relevance, scores_pairs
from flaxformer_lite.tasks.task import Report, Reporting, TextModel, scaled

RATED_AT_ONCE = 256
"""Translations whose vectors are read together: a shape that is compiled once."""


def rates_with(model: TextModel) -> tuple[bool, ...]:
    """Whether `rate` reads a reference: (True,) needs one, (False,) reads none, (True, False) reads one if it is given.

    Raises: ValueError if the run rates no translations.
    """
    estimator, rating = model.config.model.estimator, model.config.objective.rating
    if estimator is not None:
        return (estimator.reference,)
    if rating is not None and scores_pairs(model):
        texts = {True: rating.with_reference, False: rating.without_reference}
        return tuple(given for given, text in texts.items() if text) or (False,)
    raise ValueError(
        f"the run {model.path} rates no translations: use an imported MetricX or COMET, or a run of the objective "
        "'regression' on sources with their translations"
    )


def rated(
    model: TextModel,
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str] | None = None,
    **reporting: Unpack[Reporting],
) -> Float[np.ndarray, "N"]:
    """Returns the number of each translation: `Run.rate`."""
    if (references is not None) not in rates_with(model):
        given, remedy = ("None", "give them") if references is None else ("given", "leave them out")
        raise ValueError(f"references are {given}, but the run {model.path} rates translations otherwise: {remedy}")
    sides = (sources, translations, *([] if references is None else [references]))
    for name, texts in zip(("sources", "translations", "references"), sides, strict=False):
        check_list(name, texts)
        if len(texts) != len(sources):
            raise ValueError(f"there are {len(texts)} {name} for {len(sources)} sources: give one for each")
    if not sources:
        return np.zeros(0, np.float32)
    rating = model.config.objective.rating
    report = Report.of(len(sources), reporting)
    assert rating is not None  # by the import, or `rates_with`
    wording = rating.without_reference if references is None else rating.with_reference
    if model.config.model.estimator is not None:
        ratings = estimated(model, sides, report)
    elif wording:
        names = ("source", "translation", "reference")
        filled = [with_places(wording, dict(zip(names, texts, strict=False))) for texts in zip(*sides, strict=True)]
        ratings = class_number(model, filled, report)
    else:
        pairs = list(zip(sources, translations, strict=True))
        ratings = np.array(Relevance().answers(model, pairs, **reporting), np.float32)
    return np.clip(ratings, *rating.bounds)


def estimated(model: Any, sides: Sequence[Sequence[str]], report: Report) -> Float[np.ndarray, "N"]:
    """Returns the numbers of a model's estimator, which JAX has, by the vectors of all texts. Each text is read once."""
    number = len(sides[0])
    ratings = []
    vectors = Embed().sides(model, sides, report._replace(progress=scaled(report.progress, number)))
    for start in range(0, number, RATED_AT_ONCE):
        rows = [side[start : start + RATED_AT_ONCE] for side in vectors]
        filled = [np.pad(side, ((0, RATED_AT_ONCE - len(side)), (0, 0))) for side in rows]
        ratings.append(model.ratings(filled)[: len(rows[0])])
    return np.concatenate(ratings)


def class_number(model: TextModel, texts: Sequence[str], report: Report) -> Float[np.ndarray, "N"]:
    """Returns the single class logit of each text, read without special ids."""
    model.unknown.report(texts, report.warn)
    most, rows = model.config.data.max_source_length, list[list[EncodedText]]()
    for line, ids in zip(report.lines, model.tokenizer.encode_batch(texts), strict=True):
        kept = truncated(ids, most, "text", "max_source_length", cut_warning(report.warn, line))
        rows.append([EncodedText(list(kept), [0] * len(kept))])
    return np.array(model.class_logits(rows, report))[:, 0, 0]
