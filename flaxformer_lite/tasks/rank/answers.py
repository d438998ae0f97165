"""The order of candidates for a query, by the number of a cross-encoder, or by the cosine of vectors."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from flaxformer_lite.engine.texts import check_list
from flaxformer_lite.tasks.classify.answers import Classify, check_classes
from flaxformer_lite.tasks.commands import use_command
from flaxformer_lite.tasks.embed.answers import Compare
from flaxformer_lite.tasks.task import Report, Task, Text, TextModel, scaled


class Query(NamedTuple):
    """A query with its candidates."""

    query: Text
    candidates: list[Text]


class RankedText(NamedTuple):
    """A candidate in the order of a query."""

    index: int  # type: ignore[assignment]  # tuples have a method of that name
    """Its place among the given candidates, from 0."""
    score: float


def in_order(scores: Sequence[float] | Float[np.ndarray, "K"], sign: int = 1) -> list[RankedText]:
    """Returns the candidates of a query by their scores, best first; equal ones stay in their order. sign: see `sign`."""
    best_first = np.argsort(-sign * np.asarray(scores), kind="stable").tolist()
    return [RankedText(i, float(scores[i])) for i in best_first]


def sign(model: TextModel) -> int:
    """Returns 1, or -1 where the lowest number is the best (`objective.best`)."""
    rating = model.config.objective.rating
    return 1 if rating is None else rating.sign


def scores_pairs(model: TextModel) -> bool:
    """Returns whether the model gives a pair of texts one number: a cross-encoder."""
    pooler = model.config.model.pooler
    one_number = pooler is not None and pooler.num_classes == 1 and pooler.token != "each"
    return one_number and model.config.objective.label_threshold is None


def scorer(model: TextModel) -> Classify | Compare:
    """Returns the task that gives a pair of texts a number, by `scores_pairs`."""
    return Classify() if scores_pairs(model) else Compare()


@dataclass(frozen=True)
class Relevance(Task[tuple[str, str], float]):
    """The worth of the second text of each pair as an answer to the first: a cross-encoder's number, else a cosine."""

    field = "pairs"

    def check(self, model: TextModel) -> None:
        config = model.config.model
        if config.estimator is not None:
            raise ValueError(
                f"the run {model.path} rates translations: use Run.rate, or evaluate --metric {model.path}"
            )
        if scores_pairs(model):
            check_classes(model)
        elif config.sentence_embedding is None:
            raise ValueError(
                f"the run {model.path} gives pairs of texts no score (model.pooler.num_classes is not 1) and makes no vectors "
                f"(model.sentence_embedding is None), so it cannot rank: use {use_command(model.config)}, or a reranker, or a "
                "run that embeds"
            )
        else:
            Compare().check(model)

    def refusal(self, model: TextModel, asked: tuple[str, str]) -> str:
        return scorer(model).refusal(model, asked)

    def lengths(self, model: TextModel, asked: tuple[str, str]) -> list[int]:
        return scorer(model).lengths(model, asked)

    def answered(self, model: TextModel, asked: Sequence[tuple[str, str]], report: Report) -> list[float]:
        answers = scorer(model).answered(model, asked, report)
        return [one if isinstance(one, float) else one.score for one in answers]


@dataclass(frozen=True)
class Rank(Task[Query, list[RankedText]]):
    """The candidates of each query, best first."""

    name = "rank"
    reads = "candidates"
    asked = Query
    field = ""

    def check(self, model: TextModel) -> None:
        Relevance().check(model)

    def count(self, asked: Query) -> int:
        return len(asked.candidates)

    def lengths(self, model: TextModel, asked: Query) -> list[int]:
        lengths = list[int]()
        for pair in pairs_of(asked):
            lengths += Relevance().lengths(model, pair)
        return lengths

    def refusal(self, model: TextModel, asked: Query) -> str:
        check_list("candidates", asked.candidates)
        return Relevance().refusal(model, (asked.query, ""))

    def answered(self, model: TextModel, asked: Sequence[Query], report: Report) -> list[list[RankedText]]:
        sizes = [len(one.candidates) for one in asked]
        lines = np.repeat(np.array(report.lines, int), sizes).tolist()
        report = Report(scaled(report.progress, len(asked)), report.warn, lines)
        pairs = list(itertools.chain.from_iterable(map(pairs_of, asked)))
        scores = Relevance().answered(model, pairs, report)
        of_queries = np.split(np.array(scores, np.float32), np.cumsum(sizes[:-1], dtype=int))
        return [in_order(of_query, sign(model)) for _, of_query in zip(asked, of_queries, strict=False)]


def pairs_of(asked: Query) -> list[tuple[str, str]]:
    """Returns the query with each of its candidates."""
    return [(asked.query, text) for text in asked.candidates]
