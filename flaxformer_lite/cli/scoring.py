"""The work of `evaluate`: scores of one run, and comparisons of several."""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.console import Progress, note, warn
from flaxformer_lite.base.remote_files import is_url
from flaxformer_lite.cli.options import chosen_weights
from flaxformer_lite.cli.translation import chosen, decode_settings, load_runs, used_settings
from flaxformer_lite.config import Config
from flaxformer_lite.data import DataSource, Pair, ParallelText
from flaxformer_lite.data.held_out import Split
from flaxformer_lite.data.mixture import open_parts
from flaxformer_lite.inference import MetricConfig
from flaxformer_lite.inference.metrics import Comparison, bleu, chrf, compare, exact_match, resolve, with_language
from flaxformer_lite.run import Run, load
from flaxformer_lite.workdir import open_run
from flaxformer_lite.workdir.folder import finite


class ScoredData(NamedTuple):
    """The data that a run is scored on."""

    name: str
    pairs: list[Pair]
    parts: dict[str, slice]
    """The pairs of each source of a mixture, by its name."""
    metrics: MetricConfig
    """Settings of BLEU and chrF for these targets."""


def run(arguments: argparse.Namespace) -> None:
    if arguments.others:
        report = compare_runs(arguments)
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return
    loaded = load_runs(arguments)
    if arguments.tune_alpha is not None:
        tune_alpha(loaded, arguments)
        return
    data = chosen_data(loaded.config, arguments)
    data = data._replace(name=data.name + "-ensemble" * bool(arguments.ensemble))
    report, hypotheses = score(loaded, data, arguments)
    for metric in ("bleu", "bleu_lowercase", "chrf") if hypotheses is not None else ():
        note(f"{metric} {report[metric]:.2f}  {report[f'{metric}_signature']}")
    print(json.dumps(report, indent=2, ensure_ascii=False), flush=True)
    save(loaded, report, data.pairs, hypotheses)


def score(loaded: Run, data: ScoredData, arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str] | None]:
    """Returns the report on a run, over all pairs and over each part of a mixture, and its translations if it makes any."""
    decode = decode_settings(loaded, arguments)
    hypotheses: list[str] | None = None
    if loaded.config.objective.translates:
        hypotheses, scores = evaluate(loaded, data, decode, arguments)
    elif decode or arguments.bleu_tokenizer:
        raise ValueError(
            "--beam-size, --alpha and --bleu-tokenizer are for translations, which this run does not make: leave them out"
        )
    else:
        with Progress(len(data.pairs)) as progress:
            progress.within("scoring")
            scores = {
                loaded.config.objective.unit: len(data.pairs),
                **loaded.metrics(data.pairs, parts=data.parts, progress=partial(show_batches, progress)),
            }
    report = {
        "run": str(loaded.folder.path),
        "split": data.name,
        "weights": arguments.weights or loaded.config.weights,
        "weights_dtype": arguments.weights_dtype,
        "step": loaded.step,
    }
    return finite(report | used_settings(arguments) | scores), hypotheses


def save(loaded: Run, report: dict[str, Any], pairs: list[Pair], hypotheses: list[str] | None) -> None:
    """Writes the report and the translations to the run folder; a warning if that fails."""
    name = report["split"]
    try:
        if hypotheses is not None:
            loaded.folder.write_hypotheses(name, pairs, hypotheses)
            loaded.folder.write_references(name, pairs)
        report_text = json.dumps(report, indent=2, ensure_ascii=False)
        write_whole(loaded.folder.path / "evaluations" / f"{name}.json", report_text + "\n")
    except OSError as error:
        warn(f"nothing was saved in {loaded.folder.path} ({error.strerror}): the printed scores are all there is")


# Several runs ---------------------------------------------------------------------------------------------------------


def compare_runs(arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores runs on the same sentences, and compares each with the first by paired bootstrap; returns reports and comparisons.

    Raises: ValueError, before anything is translated, if the runs cannot be compared.
    """
    paths = [arguments.folder, *arguments.others]
    if arguments.ensemble or arguments.tune_alpha is not None:
        raise ValueError("--ensemble and --tune-alpha are for one RUN: leave them out, or the other runs")
    check_different(paths)
    data = same_data(paths, arguments)
    reports, systems = [], {}
    for path in paths:
        loaded = load(path, **chosen_weights(arguments))
        report, hypotheses = score(loaded, data, arguments)
        save(loaded, report, data.pairs, hypotheses)
        reports.append(report)
        systems[path] = hypotheses or []
    compared = compare(systems, [pair.target for pair in data.pairs], data.metrics)
    note_table(compared)
    comparison = [found._asdict() for found in compared]
    return {"split": data.name, "sentences": len(data.pairs), "runs": reports, "comparison": comparison}


def check_different(paths: list[str]) -> None:
    """Raises: ValueError if two paths are names of one folder, or one URL."""
    found: dict[str, str] = {}
    for path in paths:
        place = path.rstrip("/") if is_url(path) else str(Path(path).resolve())
        if place in found:
            raise ValueError(f"{found[place]} and {path} are the same run: name each of them once")
        found[place] = path


def same_data(paths: list[str], arguments: argparse.Namespace) -> ScoredData:
    """Returns the data that all runs are scored on.

    Raises: ValueError naming the first run that does not translate, or that has other sentences.
    """
    found: ScoredData | None = None
    for path in paths:
        config = open_run(path).config()
        if not config.objective.translates:
            raise ValueError(f"{path} makes no translations, which are what is compared: evaluate it by itself")
        here = chosen_data(config, arguments)
        if found is not None and here._replace(metrics=found.metrics) != found:
            raise ValueError(
                f"{path} and {paths[0]} differ in data.{here.name}: {difference(found.pairs, here.pairs)}. Scores on different "
                "data cannot be compared: give the same files to all by --source and --target, or another --split"
            )
        if found is not None and here != found:
            raise ValueError(
                f"metrics of {path} are {here.metrics}, but those of {paths[0]} are {found.metrics}: make them equal in "
                "config.json, or add --bleu-tokenizer NAME"
            )
        found = found or here
    assert found is not None
    return found


def difference(first: list[Pair], second: list[Pair]) -> str:
    """Returns in words how the pairs of two runs differ."""
    if len(first) != len(second):
        return f"{len(second):,} sentences, not {len(first):,}"
    number = next((i for i, (a, b) in enumerate(zip(first, second, strict=True), 1) if a != b), 0)
    return f"sentence {number} is another one" if number else "another split"


def note_table(compared: list[Comparison]) -> None:
    """Writes the comparison as a table: score, half of its 95 % confidence interval, and p against the first run."""
    width = max(len(found.system) for found in compared)
    for found in compared:
        p = "" if found.p_value is None else f"   p = {found.p_value:.4f}"
        note(f"{found.metric:<6} {found.system:<{width}}  {found.score:6.2f} ± {found.interval:.2f}{p}")
    for signature in dict.fromkeys(f"{found.metric}|{found.signature}" for found in compared):
        note(signature)


# One run --------------------------------------------------------------------------------------------------------------


def show_batches(progress: Progress, done: int, total: int) -> None:
    """Shows how many batches are scored."""
    progress.within("scoring", done / total, f"{done:,}/{total:,} batches")


def chosen_data(config: Config, arguments: argparse.Namespace) -> ScoredData:
    """Returns the data to score.

    Raises: ValueError if there is no such split or file.
    """
    if arguments.source or arguments.target:
        if arguments.split or not (arguments.source and arguments.target):
            raise ValueError("--source, --target and --split do not go together: give both files, or --split alone")
        if not config.objective.translates:
            raise ValueError(
                "--source and --target are for translations, which this run does not make: set data.test in the config"
            )
        files = ParallelText(source=arguments.source, target=arguments.target)
        return scored_data("files", list(files.open()), {}, config, arguments, files)
    data = config.data
    split: Split = arguments.split or ("test" if data.source("test") is not None else "eval")
    source = data.source(split)
    if source is None:
        raise ValueError(f"data.{split} is None in the config: give --source and --target, or another --split")
    pairs, parts = open_parts(source, f"data.{split}")
    if not pairs:
        raise ValueError(f"data.{split} has no rows: correct it, or give --source and --target, or another --split")
    return scored_data(split, pairs, parts, config, arguments, source)


def scored_data(
    name: str,
    pairs: list[Pair],
    parts: dict[str, slice],
    config: Config,
    arguments: argparse.Namespace,
    source: DataSource,
) -> ScoredData:
    """Returns the data with its metrics. Raises: ValueError, before anything is translated, if BLEU cannot be computed."""
    metrics = with_language(config.metrics, source.target_names())
    if arguments.bleu_tokenizer is not None:
        metrics = replace(metrics, bleu_tokenizer=arguments.bleu_tokenizer)
    if config.objective.translates:
        resolved = resolve(metrics, [pair.target for pair in pairs])
        metrics = metrics if parts else resolved  # the parts of a mixture may be of several languages
    return ScoredData(name, pairs, parts, metrics)


def tune_alpha(loaded: Run, arguments: argparse.Namespace) -> None:
    """Prints BLEU of the translations of `data.eval` for each value of `--tune-alpha`, and the best value.

    Only evaluation data is used: an exponent chosen on the test data would flatter its score.

    Raises: ValueError for a value that is no number, or together with other data.
    """
    try:
        alphas = [float(alpha) for alpha in arguments.tune_alpha.split(",")]
    except ValueError:
        raise ValueError(
            f"--tune-alpha is {arguments.tune_alpha!r}: write numbers with commas, such as 0.6,1,1.4"
        ) from None
    if arguments.alpha is not None or arguments.source or arguments.target or arguments.minimum_risk:
        raise ValueError(
            "--tune-alpha is for the beam on data.eval: leave out --alpha, --source, --target, --minimum-risk"
        )
    if arguments.split == "test":
        raise ValueError("--split is test, but --tune-alpha chooses on data.eval: leave --split out")
    arguments.split = "eval"
    name, pairs, _, metrics = chosen_data(loaded.config, arguments)
    decode, scores = decode_settings(loaded, arguments), []
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    for alpha in alphas:
        with Progress(len(pairs)) as progress:
            progress.update(f"alpha {alpha:g}", 0)
            answers = loaded.hypotheses(
                sources,
                progress=lambda done, of, alpha=alpha: progress.update(f"alpha {alpha:g}", done),
                warn=lambda line: None,
                **decode | {"alpha": alpha},
            )
        score = bleu([best[0].text for best in answers], references, metrics)
        scores.append({"alpha": alpha, "bleu": score.value, "hypothesis_words": score.hypothesis_words})
        note(f"alpha {alpha:g}  BLEU {score.value:.2f}  words {score.hypothesis_words:,}")
    best = max(scores, key=lambda found: found["bleu"])
    report = {"run": str(loaded.folder.path), "split": name, "step": loaded.step, **used_settings(arguments)}
    report |= {"reference_words": score.reference_words, "signature": score.signature, "alphas": scores, "best": best}
    print(json.dumps(report, indent=2))


def evaluate(
    loaded: Run, data: ScoredData, decode: dict[str, Any], arguments: argparse.Namespace
) -> tuple[list[str], dict[str, Any]]:
    """Returns the run's translations of the data, and all their scores."""
    name, pairs, parts, settings = data
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    with Progress(len(pairs)) as progress:
        metrics = {}
        if not loaded.others:
            progress.within("scoring")
            metrics = loaded.metrics(
                pairs,
                parts=parts,
                progress=partial(show_batches, progress),
                warn=lambda line: warn(f"{name}: {line}"),
            )
        progress.update("translating", 0)
        # `metrics` has already warned of sources that are too long.
        answers = loaded.hypotheses(
            sources, progress=lambda done, of: progress.update("translating", done), warn=lambda line: None, **decode
        )
    hypotheses = [best[0].text for best in chosen(answers, arguments, settings)]
    own = loaded.config.objective.text_metrics
    scores = text_scores(hypotheses, references, settings) | own(hypotheses, references) | metrics
    for part, where in parts.items():
        of_part = text_scores(hypotheses[where], references[where], settings)
        of_part |= own(hypotheses[where], references[where])
        scores |= {
            f"{part}/{metric}": score
            for metric, score in of_part.items()
            if not (metric.endswith("_signature") and score == scores[metric])
        }
    return hypotheses, scores


def text_scores(hypotheses: list[str], references: list[str], config: MetricConfig) -> dict[str, Any]:
    """Returns the text metrics of translations, with their signatures."""
    scores = {
        "bleu": bleu(hypotheses, references, config),
        "bleu_lowercase": bleu(hypotheses, references, config, lowercase=True),
        "chrf": chrf(hypotheses, references, config),
    }
    return {
        "sentences": len(references),
        "exact_match": exact_match(hypotheses, references).value,
        **{metric: score.value for metric, score in scores.items()},
        **{f"{metric}_signature": score.signature for metric, score in scores.items()},
        "reference_words": scores["bleu"].reference_words,
        "hypothesis_words": scores["bleu"].hypothesis_words,
    }
