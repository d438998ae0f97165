"""Scores of runs, as `evaluate` writes them: the report on a run, with ratings by metrics, and comparisons of several runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flaxformer_lite.config import Config
from flaxformer_lite.metrics.translations import Comparison, compare_ratings, compare_systems
from flaxformer_lite.run import Run, load
from flaxformer_lite.run.description import run_names
from flaxformer_lite.run.scoring import (
    Ratings,
    ScoredData,
    answers_texts,
    rate,
    rated_pairs,
    save_scores,
    score,
    scored_data,
)
from flaxformer_lite.workdir import open_run
from flaxformer_lite.workdir.folder import finite


@dataclass(frozen=True)
class Scoring:
    """A way to score runs."""

    decode: Mapping[str, Any] = field(default_factory=dict)
    """Options of `Run.hypotheses`, such as `best_by`."""
    metrics: Mapping[str, Run] = field(default_factory=dict)
    """Runs that rate the translations, by the names of their numbers (`metrics_in`)."""
    asks: Sequence[str] = ()
    """Names of further options that need translations: see `score`."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """Further facts for the reports."""

    def scored(self, run: Run, data: ScoredData) -> tuple[dict[str, Any], list[str] | None, Ratings]:
        """Returns the report on a run, and its translations with their ratings if it makes any. Raises: ValueError, as `score`."""
        rated = rated_pairs(run, data) if self.metrics else data.pairs
        asks = [*self.asks, "--metric"] if self.metrics else self.asks
        scores, hypotheses = score(run, data, self.decode, asks=asks)
        wanted = run.read and run.read.wanted
        report: dict[str, Any] = {
            "run": run.folder.called,
            "split": data.name,
            "weights": (wanted and wanted.weights) or run.config.weights,
            "weights_dtype": wanted.dtype if wanted else "float32",
            "step": run.step,
        }
        ratings, means = rate(self.metrics, data._replace(pairs=rated), hypotheses or [])
        return finite({**report, **self.told, **means, **scores}), hypotheses, ratings


def metrics_in(paths: Sequence[str]) -> dict[str, Run]:
    """Returns runs that rate translations by the names of their folders. Raises: ValueError for one that rates none."""
    metrics = [load(path) for path in paths]
    for metric in metrics:
        metric.rates_with  # noqa: B018  # raises
    return dict(zip(run_names([metric.folder for metric in metrics]), metrics, strict=True))


def compare_runs(
    paths: Sequence[str],
    scoring: Scoring = Scoring(),
    data: Callable[[Config], ScoredData] = scored_data,
    load: Callable[[str], Run] = load,
) -> tuple[dict[str, Any], list[Comparison]]:
    """Returns reports on runs, scored on the same sentences, and the comparisons of each with the first by paired bootstrap.

    Saves scores and translations.

    data: returns what a run of this config is scored on, by default the test data.

    Raises: ValueError, before anything is translated, if the runs cannot be compared.
    """
    if len(set(paths)) < len(paths):
        raise ValueError("several RUNs are compared: name each once")
    same, reports, systems, rated = same_data(paths, data), [], {}, dict[str, Ratings]()
    for path in paths:
        run = load(path)
        report, hypotheses, ratings = scoring.scored(run, same)
        save_scores(run, report, same.pairs, hypotheses, ratings)
        reports.append(report)
        systems[path], rated[path] = hypotheses or [], ratings
    compared = compare_systems(systems, [pair.target for pair in same.pairs], same.metrics)
    for name in scoring.metrics:
        compared += compare_ratings({path: ratings[name] for path, ratings in rated.items()}, name)
    comparison = [line._asdict() for line in compared]
    return {"split": same.name, "sentences": len(same.pairs), "runs": reports, "comparison": comparison}, compared


def same_data(paths: Sequence[str], data: Callable[[Config], ScoredData]) -> ScoredData:
    """Returns the data that all runs are scored on.

    Raises: ValueError naming the first run that does not translate, or that has other sentences or metrics.
    """
    datasets = list[ScoredData]()
    for path in paths:
        config = open_run(path).config()
        chosen = data(config) if answers_texts(config) else None
        if chosen is None or not (config.objective.translates or chosen.name == "files"):
            raise ValueError(f"{path} makes no translations, which are what is compared: evaluate it by itself")
        datasets.append(chosen)
        for name in ("name", "pairs", "parts", "metrics"):
            if getattr(chosen, name) != getattr(datasets[0], name):
                raise ValueError(
                    f"the {name} of the data of {path} and {paths[0]} differ: give the same files to all by --source and "
                    "--target, another --split, or a --bleu-tokenizer"
                )
    return datasets[0]
