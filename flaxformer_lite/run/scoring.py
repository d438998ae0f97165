"""Scores of a run on its evaluation or test data, or on files: `Run.evaluate`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PyTree

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.console import Progress, counted, note, warn
from flaxformer_lite.base.stores import StoreError
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.groups import groups_of
from flaxformer_lite.core.base.progress import no_progress
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.objectives import Batch, Counts
from flaxformer_lite.core.reading.objectives import reads_texts
from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.core.text import EncodedText
from flaxformer_lite.engine.rules import is_chosen
from flaxformer_lite.files.chats.asking import Asking
from flaxformer_lite.files.data import ParallelText
from flaxformer_lite.files.data.held_out import SPLITS, Split
from flaxformer_lite.files.data.mixture import open_parts
from flaxformer_lite.files.data.refused import Origin
from flaxformer_lite.metrics.translations import (
    MetricConfig,
    of_parts,
    resolve,
    text_report,
    with_language,
    with_references,
)
from flaxformer_lite.run.choosing import best_first, candidate_settings
from flaxformer_lite.tasks import scored_by
from flaxformer_lite.tasks.task import TextModel

TEST_SCORES = Path("data", "scores.json")
"""The scores on the test that `fit` and `pair` made, in a run folder; RUN/evaluations has those of the newest evaluation."""


class ScoredData(NamedTuple):
    name: str
    pairs: list[Pair]
    parts: dict[str, slice]
    """The pairs of each source of a mixture, by its name."""
    metrics: MetricConfig
    """Settings of BLEU and chrF for these targets."""
    origin: Origin | None = None


def scored_data(
    config: Config,
    split: Split | None = None,
    source: str | None = None,
    target: str | None = None,
    bleu_tokenizer: Any = None,
    file: str | None = None,
) -> ScoredData:
    """Returns the data to score: of a split (by default data.test if there is one, else data.eval), or of two files.

    file: another file that is read as the run's own data.

    Raises: ValueError, before anything is translated, if there is no such split or file, or BLEU cannot be computed.
    """
    if file:
        if split or source or target:
            raise ValueError("--data is for one file of labelled data: leave out --split, --source and --target")
        data = config.data.alike(file, config.objective.reads)
        if data is None or (config.objective.translates and not data.record.has_source):
            has_data = any(config.data.source(known) is not None for known in SPLITS)
            remedy = "give a file of the kind of its data" if has_data else other_data(config)
            raise ValueError(f"{file}: the run's data has no fields for such a file: {remedy}")
        name = Path(file).name
        pairs = list(data.open())
        parts = dict[str, slice]()
    elif source or target:
        if split or not (source and target):
            raise ValueError("source, target and split do not go together: give both files, or only split")
        if not answers_texts(config):
            raise ValueError(
                f"source and target are for translations, which this run does not make: {other_data(config)}"
            )
        data = ParallelText(source=source, target=target)
        name = "files"
        pairs = list(data.open())
        parts = {}
    else:
        usual: Split = "eval" if config.data.source("test") is None else "test"
        name = split = split or usual
        data = config.data.source(split)
        if data is None:
            raise ValueError(f"data.{split} is None in the config: {other_data(config)}")
        pairs, parts = open_parts(data, f"data.{split}")
        if not pairs:
            raise ValueError(f"data.{split} has no rows: correct it, or {other_data(config)}")
    metrics = with_language(config.metrics, data.target_names())
    if bleu_tokenizer is not None:
        metrics = replace(metrics, bleu_tokenizer=bleu_tokenizer)
    if config.objective.translates or name == "files":
        resolved = resolve(metrics, [pair.target for pair in pairs])
        metrics = metrics if parts else resolved  # the parts of a mixture may be of several languages
    setting = f"data.{name}" if name in SPLITS else None
    return ScoredData(name, pairs, parts, metrics, Origin(data, setting))


def other_data(config: Config) -> str:
    """Returns the remedy for a run whose config has not the data that is to be scored."""
    if config.objective.translates:
        return "give source and target, or set data.test in the config"
    remedy = "set data.test in the config"
    reads_files = config.data.alike("data.jsonl", config.objective.reads) is not None
    return f"give --data FILE, or {remedy}" if reads_files else remedy


def answers_texts(config: Config) -> bool:
    """Returns whether a run's model answers texts: a decoder also needs a chat template."""
    return config.objective.translates or config.model.continues_texts


def makes_translations(run: Any) -> bool:
    """Returns whether a `Run` answers texts: by its objective, or by its chat template."""
    return run.config.objective.translates or isinstance(run.translator.form, Asking)


def asked_pairs(run: Any, pairs: Sequence[Pair]) -> Sequence[Pair]:
    """Returns pairs as texts to show: of a conversation its last answer, where the run answers conversations."""
    if run.config.objective.reads != "conversations":
        return pairs
    asked = list[Pair]()
    for pair, question in zip(pairs, run.translator.form.questions(pairs), strict=True):
        asked.append(Pair(pair.source, "" if question is None else question.reference))
    return asked


def rated_pairs(run: Any, data: ScoredData) -> list[Pair]:
    """Returns the pairs as their answers are compared. Raises: ValueError if a pair has no source or no answer."""
    if data.name == "files" or run.config.objective.reads != "conversations":
        return data.pairs
    pairs = list(asked_pairs(run, data.pairs))
    others = sum(not (pair.source and pair.target) for pair in pairs)
    if others:
        raise ValueError(
            f"--metric and --best-by rate translations, but data.{data.name} has {counted(others, 'row')} without a source, "
            "without an answer, or with a prompt that does not fit: take them out, or give --source and --target"
        )
    return pairs


def score(
    run: Any,
    data: ScoredData,
    decode: Mapping[str, Any],
    *,
    asks: Sequence[str] = (),
) -> tuple[dict[str, Any], list[str] | None]:
    """Returns the scores of a `Run`, over all pairs and over each part of a mixture, and its translations if it makes any.

    decode: options of `Run.hypotheses`; of a run without translations only `engine` and `weights_dtype`. asks: names of further
    options that need translations. A run of conversations answers its data if `asks`, `decode`, CTranslate2 by name, or
    `train.text_metrics` is given.

    Raises: ValueError if an option is for translations, and the run makes no translations.
    """
    by = {name: decode[name] for name in ("engine", "weights_dtype") if name in decode}
    settings_given = [name for name in decode if name not in by]
    given = [*settings_given, *asks]
    if given and not makes_translations(run):
        raise ValueError(f"{', '.join(given)}: for translations, which this run does not make: leave them out")
    best_by = decode.get("best_by")
    decode = candidate_settings(run.translator.form.decode, **decode)
    if not isinstance(best_by, str | None):
        rated_pairs(run, data)  # raises
    name, pairs, parts, settings, origin = data
    objective, languages = run.config.objective, run.config.data.languages
    reader = run.text_model if makes_translations(run) else run.answering(by, reads_texts(objective.kind))
    trainable = languages is None or languages.trainable
    converses = objective.reads == "conversations"
    if not trainable:
        note("the loss is left out: data.languages puts language tokens where answers need them, not where a loss does")
    with Progress(len(pairs)) as progress:
        scores: dict[str, Any] = {}
        answers_files = name == "files" and not objective.translates
        if not run.others and trainable and (converses or not answers_files):
            progress.within("evaluating")
            scores = run.metrics(
                pairs,
                parts=parts,
                origin=origin,
                reader=reader,
                progress=progress.within,
                warn=lambda line: warn(f"{name}: {line}"),
            )
        task = scored_by(objective)
        if task is not None:
            texts = task.texts(reader, pairs, progress=progress.within, warn=lambda line: None)
            scores |= task.scores(pairs, texts, parts)
        by_name = is_chosen(by.get("engine", "jax"), by.get("weights_dtype"))
        wants_texts = given or run.config.train.text_metrics or by_name
        if not (objective.translates or answers_files or (converses and wants_texts)):
            return {objective.unit: len(pairs), **scores, "engine": reader.engine}, None
        references: list[str | None] = [pair.target for pair in pairs]
        if objective.translates or answers_files:
            answers = translations(run, data, decode, progress)
        else:
            progress.update("answering", 0)
            answers, references = run.translator.answers(pairs, progress.within, **decode)
    sources = [pair.source for pair in pairs]
    answers = best_first(best_by, sources, answers, settings)
    hypotheses = [best[0].text for best in answers]

    def figures(texts: list[str], references: list[str | None]) -> dict[str, Any]:
        compared, known_references = with_references(texts, references)
        if not compared:
            return {}
        report = text_report(compared, known_references, settings)
        return report | objective.text_metrics(compared, known_references)

    scores = figures(hypotheses, references) | scores | {"engine": run.translator.engine_of(decode)}
    signatures = {value for name, value in scores.items() if name.endswith("_signature")}
    of_sources = of_parts(figures, parts, hypotheses, references)
    scores |= {name: value for name, value in of_sources.items() if value not in signatures}
    return scores, hypotheses


@dataclass(frozen=True)
class EngineRunner:
    """Counts an objective's metrics, as the evaluation step of a `Runner`, for texts that CTranslate2 reads."""

    model: TextModel
    config: Config

    @cached_property
    def metrics(self) -> Any:
        return jax.jit(self.config.objective.metrics)

    def local_rows(self, num_rows: int) -> Int[np.ndarray, "R"]:
        return np.arange(num_rows)

    def shard_batch(self, batch: Batch) -> Batch:
        return jax.tree.map(jnp.asarray, batch)

    def eval_step(self, params: PyTree, batch: Batch) -> Counts:
        """Returns the counts of a batch. The outputs of padding rows are 0, and of absent texts in a row of several."""
        objective = self.config.objective
        inputs = objective.inputs(batch, self.config.model)
        tokens = np.asarray(inputs.source_tokens)
        mask = np.asarray(inputs.source_mask)
        types = np.zeros_like(tokens) if inputs.token_types is None else np.asarray(inputs.token_types)
        is_read = np.asarray(mask.any(1))
        is_read[0] = True  # one answer says the shape of all
        if len(batch.weights) == len(tokens):
            is_read |= np.asarray(batch.weights).any(1)  # a text without a token
        places = np.flatnonzero(is_read)
        rows = [EncodedText(tokens[i][mask[i]].tolist(), types[i][mask[i]].tolist()) for i in places]
        kind: Literal["class_logits", "vectors"] = "class_logits" if objective.rows_independent else "vectors"
        answers = self.model.read(kind, rows, no_progress)
        *_, width = answers[0].shape
        by_token = tokens.shape[1 : answers[0].ndim]
        outputs: Any = np.zeros((len(tokens), *by_token, width), np.float32)
        for i, answer in zip(places, answers, strict=True):
            outputs[i, : len(answer)] = answer[: outputs.shape[1]]
        read = Outputs(class_logits=outputs, embedding=outputs, log_scale=params.get("log_scale"))
        return self.metrics(read, batch)


def translations(
    run: Any, data: ScoredData, decode: Mapping[str, object], progress: Progress
) -> list[list[ScoredText]]:
    """Returns the translations of the sources of all pairs, each in the direction of its languages."""
    pairs = data.pairs
    before = 0
    progress.update("translating", 0)
    # `metrics` has already warned of sources that are too long, but not of terms that a translation cannot have.
    forced = decode.keys() & {"terms", "placeholders", "prefix"}
    answers: list[list[ScoredText]] = [[]] * len(pairs)
    for languages, numbers in groups_of(pair.languages for pair in pairs).items():
        directed = run.between(*languages) if languages else run
        answered = directed.hypotheses(
            [pairs[i].source for i in numbers],
            progress=lambda _, done, total, before=before: progress.update("translating", before + done),
            warn=lambda line: warn(f"{data.name}: {line}") if forced else None,
            **decode,
        )
        for i, answer in zip(numbers, answered, strict=True):
            answers[i] = answer
        before += len(numbers)
    return answers


Ratings = dict[str, list[float]]
"""The number of each sentence, by the name of the metric."""


def rate(metrics: Mapping[str, Any], data: ScoredData, hypotheses: Sequence[str]) -> tuple[Ratings, dict[str, float]]:
    """Returns the ratings by the runs in `metrics`, and their means over all sentences and each part of a mixture."""
    ratings, means = Ratings(), dict[str, float]()
    sources = [pair.source for pair in data.pairs]
    references = [pair.target for pair in data.pairs]
    for name, metric in metrics.items():
        given = references if True in metric.rates_with else None
        with Progress(len(data.pairs)) as progress:
            numbers = metric.rate(sources, hypotheses, given, progress=progress.within)
        ratings[name] = numbers.tolist()
        means[name] = float(numbers.mean())
        means |= of_parts(lambda some, name=name: {name: float(some.mean())}, data.parts, numbers)
    return ratings, means


RESULTS = (
    ("evaluations", ".json"),
    ("evaluations", "-ratings.jsonl"),
    ("hypotheses", ".txt"),
    ("hypotheses", ".source"),
    ("hypotheses", ".reference"),
    ("samples", ".txt"),
)
"""The folders and endings of the files that `save_scores` writes."""


def save_scores(
    run: Any, report: dict[str, object], pairs: list[Pair], hypotheses: list[str] | None, ratings: Ratings | None = None
) -> None:
    """Writes the report, the translations and their ratings to the folder of a `Run`; a warning if that fails."""
    name = report["split"]
    file = run.folder.path / "evaluations" / f"{name}-ratings.jsonl"
    try:
        if hypotheses is not None:
            file.unlink(missing_ok=True)  # of earlier translations
            pairs = list(asked_pairs(run, pairs))
            run.folder.write_hypotheses(name, pairs, hypotheses)
            run.folder.write_references(name, pairs)
        report_text = json.dumps(report, indent=2, ensure_ascii=False)
        write_whole(run.folder.path / "evaluations" / f"{name}.json", report_text + "\n")
        if ratings:
            rows = (dict(zip(ratings, row, strict=True)) for row in zip(*ratings.values(), strict=True))
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            write_whole(file, lines)
        run.folder.publish(*(f"{folder}/{name}{ending}" for folder, ending in RESULTS))
    except (OSError, StoreError) as error:
        reason = getattr(error, "strerror", None) or error
        warn(f"nothing was saved in {run.folder.name} ({reason}): the printed scores are all there is")
