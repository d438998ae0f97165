"""Scores of runs side by side: evaluations in training, reports of `evaluate`, and paired bootstrap between runs."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from flaxformer_lite.files.data.held_out import Split
from flaxformer_lite.metrics.translations import (
    Comparison,
    MetricConfig,
    compare_ratings,
    compare_systems,
    with_language,
)
from flaxformer_lite.run.scoring import Ratings
from flaxformer_lite.tools.report.facts import RunFacts

SPLITS: tuple[Split, ...] = ("test", "eval")
"""Splits whose references the config names."""


class ReportTable(NamedTuple):
    title: str
    head: list[str]
    rows: list[list[str]]
    note: str = ""


def shown(value: object) -> str:
    """Returns a value as a table shows it; numbers with five digits."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def score_shown(value: object) -> str:
    """Returns a score as a table shows it; – for a missing one."""
    return "–" if value is None else shown(value)


def score_tables(runs: Sequence[RunFacts]) -> list[ReportTable]:
    """Returns the evaluations in training and the reports of `evaluate`, as far as there are any."""
    return [table for table in (training_table(runs), evaluate_table(runs)) if table is not None]


def training_table(runs: Sequence[RunFacts]) -> ReportTable | None:
    """Returns the best and the last evaluation of each run; None without any."""
    lines, names = [], dict[str, None]()
    for run in runs:
        rows = [row for row in run.rows if row["split"] == "eval"]
        best = run.config.train.best_row(rows)
        if best:
            lines.append((run.name, f"best {run.config.train.best_metric}", best))
        if rows:
            lines.append((run.name, "last", rows[-1]))
        for row in rows:
            names |= dict.fromkeys(name for name in row if name not in ("step", "split"))
    if not lines:
        return None
    rows_shown = []
    for name, which, row in lines:
        rows_shown.append([name, which, *(score_shown(row.get(metric)) for metric in ("step", *names))])
    return ReportTable("Evaluations in training", ["run", "evaluation", "step", *names], rows_shown)


def evaluate_table(runs: Sequence[RunFacts]) -> ReportTable | None:
    """Returns the reports of `evaluate`; None without any."""
    reports = [(run.name, report) for run in runs for report in run.evaluations]
    hidden = ("run", "split", "weights", "step")
    names, signatures = dict[str, None](), dict[str, None]()
    for _, report in reports:
        for name, value in report.items():
            if not name.endswith("_signature"):
                if name not in hidden:
                    names[name] = None
            elif value:
                signatures[str(value)] = None
    if not reports:
        return None
    columns = [*hidden[1:], *names]
    rows = [[name, *(score_shown(report.get(column)) for column in columns)] for name, report in reports]
    return ReportTable("Reports of the command evaluate", ["run", *columns], rows, "; ".join(signatures))


def significance_tables(runs: Sequence[RunFacts]) -> list[ReportTable]:
    """Returns for each split BLEU and chrF of the runs, compared with the first run that has hypotheses for its sentences.

    Only runs whose config names the same references, as many as there are hypotheses, are compared: by `metrics` of the first.
    """
    tables = []
    for split in SPLITS:
        systems: dict[str, list[str]] = {}
        files: list[str] = []
        rated: dict[str, Ratings] = {}
        references: list[str] | None = None
        metrics: MetricConfig | None = None
        for run in runs:
            named = run.hypotheses(split)
            source = run.config.data.source(split)
            if named is None or source is None or not run.config.objective.translates:
                continue
            targets = [pair.target for pair in source.open(f"data.{split}")]
            if len(targets) != len(named[1]) or references not in (None, targets):
                continue
            references = targets
            metrics = metrics or with_language(run.config.metrics, source.target_names())
            systems[run.name] = named[1]
            files.append(f"{run.name}: hypotheses/{named[0]}.txt")
            rated[run.name] = run.ratings(named[0], len(targets))
        if references and metrics:
            compared = compare_systems(systems, references, metrics)
            for name in dict.fromkeys(itertools.chain.from_iterable(rated.values())):
                of_runs = {run: ratings[name] for run, ratings in rated.items() if name in ratings}
                compared += compare_ratings(of_runs, name)
            tables.append(comparison_table(split, compared, files, len(references)))
    return tables


def comparison_table(split: str, compared: Sequence[Comparison], files: Sequence[str], sentences: int) -> ReportTable:
    """Returns the table of one split; p is a column of several runs only."""
    head = ["metric", "run", "score"]
    rows = [[c.metric, c.system, c.rounded.strip()] for c in compared]
    note = f"{sentences:,} sentences of data.{split}; {'; '.join(files)}. ± is the 95 % interval (bootstrap, 1,000 resamples)"
    if len(files) > 1:
        head.append("p")
        rows = [[*row, "–" if c.p_value is None else f"{c.p_value:.4f}"] for row, c in zip(rows, compared, strict=True)]
        note += "; p is the probability of so large a difference from the first run by chance (paired bootstrap)"
    signatures = "; ".join(dict.fromkeys(f"{c.metric}|{c.signature}" for c in compared))
    return ReportTable(f"Translations of data.{split}", head, rows, f"{note}. {signatures}")
