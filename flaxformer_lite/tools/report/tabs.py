"""The parts of a report: what each tab shows, made from the files of the runs and, for attention, from their weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flaxformer_lite.config.differences import changed, flatten
from flaxformer_lite.run.description import describe_stacks, run_names
from flaxformer_lite.tools.report import plots
from flaxformer_lite.tools.report.attention import Attended, attended
from flaxformer_lite.tools.report.facts import MOST_RECORDS, RunFacts, shown_steps, text_lengths
from flaxformer_lite.tools.report.plots import Chart
from flaxformer_lite.tools.report.recorded import near_table, spike_parts, spikes
from flaxformer_lite.tools.report.scores import Table, score_tables, shown, significance_tables
from flaxformer_lite.workdir import open_run

ShowCallback = Callable[[str, int, int], None]
"""Receives the name of the part that is made now, the number of parts that are done, and their number in all."""

Figures = dict[str, Chart]
"""Charts by their names, which are unique on the page."""


@dataclass
class Report:
    """All that the page shows, as plain data and charts."""

    title: str
    runs: list[dict[str, str]]
    """For each run its name, its folder and a line on what it is."""
    curves: Figures = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    translations: list[Table] = field(default_factory=list)
    attention: list[Attended] = field(default_factory=list)
    data: Figures = field(default_factory=dict)
    recorded: list[Table] = field(default_factory=list)
    """Near duplicates of the evaluation data, and the rows of batches whose loss was a spike."""
    settings: list[dict[str, Any]] = field(default_factory=list)
    """For each setting its path, its value in each run, and whether the values differ."""
    changes: list[Table] = field(default_factory=list)
    """The settings that were changed while a run trained; one table, or none."""
    notes: dict[str, list[str]] = field(default_factory=dict)
    """By tab the parts that could not be made, and why."""

    def add_recorded(self, charts: Figures, tables: Sequence[Table]) -> None:
        """Adds parts that the flight recorder has made."""
        self.data.update(charts)
        self.recorded.extend(tables)

    def figures(self) -> Figures:
        """Returns every chart, for files."""
        found = {**self.curves, **self.data}
        for number, sentence in enumerate(self.attention, 1):
            found |= {f"{name} {number}": chart for name, chart in sentence.charts()}
        return found


def make_report(
    paths: Sequence[str], sentences: Sequence[str], show: ShowCallback, weights: str | None = None
) -> Report:
    """Returns the report on runs in folders or at URLs. A part that a run lacks the files for is a note of its tab.

    sentences: the sources whose attention is drawn; none: the first ones of samples/, else of the data.
    weights: the parameters whose attention is drawn, as of `load`; None: each config's.

    Raises: ValueError if a folder holds no run.
    """
    folders = [open_run(path) for path in paths]
    runs = [RunFacts(*parts) for parts in zip(run_names(folders), map(str, paths), folders, strict=True)]
    report = Report(
        title=", ".join(run.name for run in runs),
        runs=[{"name": run.name, "folder": run.path, "about": about(run)} for run in runs],
        settings=settings_of(runs),
        changes=change_tables(runs),
    )
    parts: list[tuple[str, str, Callable[[], object]]] = [
        ("curves", "curves", lambda: report.curves.update(curve_charts(runs))),
        ("scores", "evaluations", lambda: report.tables.extend(score_tables(runs))),
        ("scores", "significance", lambda: report.tables.extend(significance_tables(runs))),
        ("translations", "samples", lambda: report.translations.extend(translation_tables(runs))),
    ]
    for run in runs:
        parts += [
            ("data", f"{run.name}: lengths", lambda run=run: report.data.update(data_charts(run))),
            (
                "attention",
                f"{run.name}: attention",
                lambda run=run: report.attention.extend(attended(run, sentences, len(runs) > 1, weights)),
            ),
        ]
        if run.config.data.source("eval") is not None and run.config.data.source("train") is not None:
            near = f"{run.name}: near duplicates"
            parts.append(("data", near, lambda run=run: report.recorded.append(near_table(run))))
        if spikes(run):
            rows = f"{run.name}: loss spikes"
            parts.append(("data", rows, lambda run=run: report.add_recorded(*spike_parts(run))))
    for done, (tab, part, make) in enumerate(parts):
        show(part, done, len(parts))
        try:
            make()
        except (ValueError, OSError) as error:
            report.notes.setdefault(tab, []).append(f"{part}: {error}")
    return report


def about(run: RunFacts) -> str:
    """Returns a line on a run: its model, its data, its steps."""
    config, model = run.config, run.config.model
    data = "no data" if config.data.train is None else config.data.train.kind
    step = max((row["step"] for row in run.rows), default=0)
    trained = f"{config.objective.kind} on {data}; {step:,} of {config.train.steps:,} steps"
    return f"{describe_stacks(model)}, d_model {model.d_model}; {trained}"


def curve_charts(runs: Sequence[RunFacts]) -> Figures:
    """Returns for each metric the curves of all runs that have it."""
    found = plots.curves_of({run.name: run.rows for run in runs})
    return {metric: plots.line_chart(metric, curves) for metric, curves in found.items()}


def translation_tables(runs: Sequence[RunFacts]) -> list[Table]:
    """Returns for each sentence of samples/ a table of its translations by run and step."""
    sentences: dict[tuple[str, str], list[list[str]]] = {}
    for run in runs:
        for step in shown_steps(list(run.samples)):
            for sample in run.samples[step]:
                lines = sentences.setdefault((sample.source, sample.reference), [])
                right = "✓" if sample.hypothesis == sample.reference else ""
                lines.append([run.name, f"{step:,}", sample.hypothesis, right])
    return [
        Table(source, ["run", "step", "translation", ""], lines, reference and f"reference: {reference}")
        for (source, reference), lines in sentences.items()
    ]


def data_charts(run: RunFacts) -> Figures:
    """Returns the lengths of training texts and the padding of their batches."""
    config = run.config
    if config.data.tokenizer is None:
        raise ValueError("data.tokenizer is None: texts are not tokens without one")
    lengths = text_lengths(config, run.folder.load_tokenizers(config.data, config.model.vocab_sizes))
    read = (
        f"the first {lengths.records:,} records" if lengths.records == MOST_RECORDS else f"{lengths.records:,} records"
    )
    dropped = f", {lengths.dropped:,} rows dropped" if lengths.dropped else ""
    return {
        f"{run.name}: lengths": plots.histogram(
            f"{run.name}: lengths", lengths.counts, "tokens", f"of {read}{dropped}"
        ),
        f"{run.name}: padding": plots.bars(f"{run.name}: padding by shape of a batch", lengths.padding, "padding"),
    }


def settings_of(runs: Sequence[RunFacts]) -> list[dict[str, Any]]:
    """Returns every setting with its value in each run; settings that differ come first."""
    flat = [flatten(run.config) for run in runs]
    differing = {path for other in flat[1:] for path in changed(flat[0], other, absent="–")}
    paths = dict.fromkeys(path for settings in flat for path in settings)
    lines = [
        {
            "path": path,
            "values": [shown(settings.get(path, "–")) for settings in flat],
            "differs": path in differing,
        }
        for path in paths
    ]
    return sorted(lines, key=lambda line: not line["differs"])


def change_tables(runs: Sequence[RunFacts]) -> list[Table]:
    """Returns the settings with which runs were continued, with the step after which they hold; none without any."""
    lines = [
        [run.name, shown(row["step"]), setting, shown(old), shown(new)]
        for run in runs
        for row in run.rows
        if row["split"] == "change"
        for setting, (old, new) in row["settings"].items()
    ]
    return (
        [Table("Changed while it trained", ["run", "after step", "setting", "before", "then"], lines)] if lines else []
    )
