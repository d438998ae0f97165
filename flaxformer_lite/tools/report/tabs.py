"""The parts of a report: what each tab shows, made from the files of the runs and, for attention, from their weights."""

import base64
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from flaxformer_lite.config.differences import changed, flatten
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.run import AttentionWeights, load
from flaxformer_lite.run.attention import AttentionKind, attention_axes, own_targets
from flaxformer_lite.run.description import describe_stacks, run_names
from flaxformer_lite.run.recording import open_recording
from flaxformer_lite.tools.recorder.rerun import row_loss
from flaxformer_lite.tools.report import plots
from flaxformer_lite.tools.report.facts import MOST_READ, RunFacts, shown_steps, text_lengths
from flaxformer_lite.tools.report.plots import Chart, attention_chart, piece_labels
from flaxformer_lite.tools.report.scores import ReportTable, score_tables, shown, significance_tables
from flaxformer_lite.workdir import open_run

Charts = dict[str, Chart]
"""Charts by their names, which are unique on the page."""

MOST_SENTENCES = 3
"""Sentences whose attention is drawn by default."""
MOST_CHARACTERS = 40
"""Characters of such a sentence where it is the beginning of a text of the data."""
MOST_LINES = 20
"""Lines of a table."""
MOST_SPIKES = 3
"""Spikes whose rows are shown, the newest ones."""


class Attended(NamedTuple):
    """The attention weights of a run for one text, or for a source and its target."""

    title: str
    weights: AttentionWeights

    def charts(self) -> Iterator[tuple[str, Chart]]:
        """Yields name and chart of each attention's last layer, with the mean of its heads."""
        for kind in self.weights.kinds:
            yield f"{kind} attention", attention_chart(self.weights, kind, None, None)

    def packed(self) -> dict[str, object]:
        """Returns all weights for the page: labels, and 16 bits for each weight, 65,535 for 1."""
        return {"title": self.title, "kinds": {kind: packed(self.weights, kind) for kind in self.weights.kinds}}


@dataclass
class ReportContent:
    """All that the page shows, as plain data and charts."""

    title: str
    runs: list[dict[str, str]]
    """For each run its name, its folder and a line on what it is."""
    curves: Charts = field(default_factory=dict)
    tables: list[ReportTable] = field(default_factory=list)
    translations: list[ReportTable] = field(default_factory=list)
    attention: list[Attended] = field(default_factory=list)
    data: Charts = field(default_factory=dict)
    recorded: list[ReportTable] = field(default_factory=list)
    """Near duplicates of the evaluation data, and the rows of batches whose loss was a spike."""
    settings: list[dict[str, Any]] = field(default_factory=list)
    """For each setting its path, its value in each run, and whether the values differ."""
    changes: list[ReportTable] = field(default_factory=list)
    """The settings that were changed while a run trained; one table, or none."""
    notes: dict[str, list[str]] = field(default_factory=dict)
    """By tab the parts that could not be made, and why."""

    def add_recorded(self, charts: Charts, tables: Sequence[ReportTable]) -> None:
        """Adds parts that the flight recorder has made."""
        self.data.update(charts)
        self.recorded.extend(tables)

    def figures(self) -> Charts:
        """Returns every chart, for files."""
        charts = {**self.curves, **self.data}
        for number, sentence in enumerate(self.attention, 1):
            charts |= {f"{name} {number}": chart for name, chart in sentence.charts()}
        return charts


def make_report(
    paths: Sequence[str], sentences: Sequence[str], progress: ProgressCallback, weights: str | None = None
) -> ReportContent:
    """Returns the report on runs in folders or at URLs. A part that a run lacks the files for is a note of its tab.

    sentences: the sources whose attention is drawn; none: the first ones of samples/, else of the data.
    weights: the parameters whose attention is drawn, as of `load`; None: each config's.

    Raises: ValueError if a folder holds no run.
    """
    folders = [open_run(path) for path in paths]
    runs = [RunFacts(*parts) for parts in zip(run_names(folders), map(str, paths), folders, strict=True)]
    report = ReportContent(
        title=", ".join(run.name for run in runs),
        runs=[{"name": run.name, "folder": run.path, "about": run_line(run)} for run in runs],
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
        if spikes(run):
            rows = f"{run.name}: loss spikes"
            parts.append(("data", rows, lambda run=run: report.add_recorded(*spike_parts(run))))
    for done, (tab, title, make) in enumerate(parts):
        progress(title, done, len(parts))
        try:
            make()
        except (ValueError, OSError) as error:
            report.notes.setdefault(tab, []).append(f"{title}: {error}")
    return report


def run_line(run: RunFacts) -> str:
    """Returns a line on a run: its model, its data, its steps."""
    config, model = run.config, run.config.model
    data = "no data" if config.data.train is None else config.data.train.kind
    step = max((row["step"] for row in run.rows), default=0)
    trained = f"{config.objective.kind} on {data}; {step:,} of {config.train.steps:,} steps"
    return f"{describe_stacks(model)}, d_model {model.d_model}; {trained}"


def curve_charts(runs: Sequence[RunFacts]) -> Charts:
    """Returns for each metric the curves of all runs that have it."""
    curves_of_metrics = plots.curves_of({run.name: run.rows for run in runs})
    return {metric: plots.line_chart(metric, curves) for metric, curves in curves_of_metrics.items()}


def translation_tables(runs: Sequence[RunFacts]) -> list[ReportTable]:
    """Returns for each sentence of samples/ a table of its translations by run and step."""
    sentences: dict[tuple[str, str], list[list[str]]] = {}
    for run in runs:
        for step in shown_steps(list(run.samples)):
            for sample in run.samples[step]:
                lines = sentences.setdefault((sample.source, sample.reference), [])
                right = "✓" if sample.hypothesis == sample.reference else ""
                lines.append([run.name, f"{step:,}", sample.hypothesis, right])
    return [
        ReportTable(source, ["run", "step", "translation", ""], lines, reference and f"reference: {reference}")
        for (source, reference), lines in sentences.items()
    ]


def data_charts(run: RunFacts) -> Charts:
    """Returns the lengths of training texts and the padding of their batches."""
    config = run.config
    if config.data.tokenizer is None:
        raise ValueError("data.tokenizer is None: texts are not tokens without one")
    lengths = text_lengths(config, run.folder.load_tokenizers(config.data, config.model.vocab_sizes))
    read = f"the first {lengths.records:,} records" if lengths.records == MOST_READ else f"{lengths.records:,} records"
    dropped = f", {lengths.dropped:,} rows dropped" if lengths.dropped else ""
    return {
        f"{run.name}: lengths": plots.histogram(
            f"{run.name}: lengths", lengths.counts, "tokens", f"of {read}{dropped}"
        ),
        f"{run.name}: padding": plots.bars(f"{run.name}: padding by shape of a batch", lengths.padding, "padding"),
    }


def settings_of(runs: Sequence[RunFacts]) -> list[dict[str, object]]:
    """Returns every setting with its value in each run; settings that differ come first."""
    flat = [flatten(run.config) for run in runs]
    differing = set[str]()
    for other in flat[1:]:
        differing.update(changed(flat[0], other, absent="–"))
    paths = dict.fromkeys(itertools.chain.from_iterable(flat))
    lines = [
        {
            "path": path,
            "values": [shown(settings.get(path, "–")) for settings in flat],
            "differs": path in differing,
        }
        for path in paths
    ]
    return sorted(lines, key=lambda line: not line["differs"])


def change_tables(runs: Sequence[RunFacts]) -> list[ReportTable]:
    """Returns the settings with which runs were continued, with the step after which they hold; none without any."""
    lines = list[list[str]]()
    for run in runs:
        for row in run.rows:
            changes = row["settings"] if row["split"] == "change" else {}
            for setting, (old, new) in changes.items():
                lines.append([run.name, shown(row["step"]), setting, shown(old), shown(new)])
    if not lines:
        return []
    return [ReportTable("Changed while it trained", ["run", "after step", "setting", "before", "then"], lines)]


# Attention -----------------------------------------------------------------------------------------------------------


def packed(weights: AttentionWeights, kind: AttentionKind) -> dict[str, object]:
    """Returns the labels, sizes and weights of one attention."""
    array: Float[np.ndarray, "L N T S"] = getattr(weights, kind)
    queries, keys = attention_axes(weights, kind)
    numbers = np.round(np.asarray(array, np.float64) * 65_535).astype("<u2")
    return {
        "layers": array.shape[0],
        "heads": array.shape[1],
        "queries": piece_labels(queries),
        "keys": piece_labels(keys),
        "weights": base64.b64encode(numbers.tobytes()).decode("ascii"),
    }


def attended(run: RunFacts, sentences: Sequence[str], several: bool, weights: str | None = None) -> list[Attended]:
    """Returns the weights for the sentences, by default `default_sentences`, each with the run's own translation or continuation.

    weights: the parameters that `load` takes; None: the config's.

    Raises: ValueError if the run has no weights or no sentences.
    """
    sentences = sentences or default_sentences(run)
    if not sentences:
        raise ValueError("the run has neither samples nor data: choose sentences by --sentence")
    loaded = load(run.path, weights=weights)
    attended = []
    for source, target in zip(sentences, own_targets(loaded, sentences), strict=True):
        title = source if target is None else f"{source} → {target}"
        attended.append(Attended(f"{run.name}: {title}" if several else title, loaded.attention(source, target)))
    return attended


def default_sentences(run: RunFacts) -> list[str]:
    """Returns the first sources of samples/, or without samples the first words of the first texts of the data."""
    if run.samples:
        return [sample.source for sample in list(run.samples.values())[-1][:MOST_SENTENCES]]
    for split in ("eval", "train"):
        data = run.config.data.source(split)
        if data is not None:
            first = itertools.islice(data.open(f"data.{split}"), MOST_SENTENCES)
            texts = [pair.source or pair.target for pair in first]
            return [shorten(text, MOST_CHARACTERS, placeholder="") or text[:MOST_CHARACTERS] for text in texts]
    return []


# The flight recorder -------------------------------------------------------------------------------------------------


def spikes(run: RunFacts) -> list[tuple[int, int]]:
    """Returns step and batch of the newest loss spikes in train.log, each once."""
    log = run.folder.path / "train.log"
    text = log.read_text(encoding="utf-8") if log.is_file() else ""
    reported = re.findall(r"step +(\d+)  a loss spike on batch (\d+):", text)
    return list(dict.fromkeys((int(step), int(batch)) for step, batch in reported))[-MOST_SPIKES:]


def spike_parts(run: RunFacts) -> tuple[dict[str, Chart], list[ReportTable]]:
    """Returns the losses of each batch whose loss was a spike beside those of the batch before, and its rows, highest loss first.

    A single bad row is seen by itself in the picture. If both batches look alike, no row was to blame, but an update before.
    """
    recording = open_recording(run.folder)
    at, loss_of = row_loss(recording)
    note = f"each row by itself, by the parameters of step {at}, without dropout"
    jumps = spikes(run)
    steps = dict[int, int]()
    for step, batch in jumps:
        steps |= {number: step for number in (batch - 1, batch) if number >= 0}
    rows = [(loss_of(row.example), row) for row in recording.rows_of_batches(steps)]
    rows = sorted((pair for pair in rows if not math.isnan(pair[0])), key=lambda pair: -pair[0])
    charts, tables = dict[str, Chart](), list[ReportTable]()
    for step, batch in jumps:
        title = f"{run.name}: rows of batch {batch}, whose loss was a spike at step {step}"
        of_batch = {number: [(loss, row) for loss, row in rows if row.batch == number] for number in (batch - 1, batch)}
        counts = {f"batch {number}": Counter(loss for loss, _ in pairs) for number, pairs in of_batch.items() if pairs}
        charts[title] = plots.histogram(title, counts, "loss", note, items="rows", least=0)
        lines = [
            [f"{loss:.3f}", str(row.row), ", ".join(map(str, row.places)), row.source, row.target]
            for loss, row in of_batch[batch][:MOST_LINES]
        ]
        tables.append(ReportTable(title, ["loss", "row", "place", "source", "target"], lines, note))
    return charts, tables
