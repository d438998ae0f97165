"""The work of `evaluate`: scores of one run, and comparisons of several."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flaxformer_lite.base.console import counted, note
from flaxformer_lite.cli.options import chosen_engine, chosen_weights, typed_options
from flaxformer_lite.cli.translation import (
    chosen,
    decode_settings,
    forced_texts,
    in_direction,
    load_rater,
    load_runs,
    used_settings,
)
from flaxformer_lite.config import Config
from flaxformer_lite.core.data import Pair
from flaxformer_lite.metrics.translations import METRICS, compare, compare_ratings
from flaxformer_lite.run import Run, load
from flaxformer_lite.run.description import run_names
from flaxformer_lite.run.scoring import (
    Ratings,
    ScoredData,
    answers_texts,
    asked_pairs,
    makes_translations,
    rate,
    save_scores,
    score,
    scored_data,
)
from flaxformer_lite.tools.search import read_folder, read_results, search_report, write_results
from flaxformer_lite.workdir import open_run
from flaxformer_lite.workdir.folder import finite


def run(arguments: argparse.Namespace) -> None:
    if arguments.search is not None or arguments.candidates is not None:
        report_search(arguments)
        return
    if arguments.others:
        print(json.dumps(compare_runs(arguments), indent=2, ensure_ascii=False))
        return
    loaded = load_runs(arguments)
    data = chosen_data(loaded.config, arguments)
    if arguments.ensemble:
        data = data._replace(name=f"{data.name}-ensemble")
    report, hypotheses, ratings = scored(loaded, data, arguments, load_metrics(arguments), load_rater(arguments))
    for metric in METRICS:
        if signature := report.get(f"{metric}_signature"):
            note(f"{metric} {report[metric]:.2f}  {signature}")
    print(json.dumps(report, indent=2, ensure_ascii=False), flush=True)
    save_scores(loaded, report, data.pairs, hypotheses, ratings)


def load_metrics(arguments: argparse.Namespace) -> dict[str, Run]:
    """Returns the runs of --metric by the names of their folders. Raises: ValueError for one that rates no translations."""
    metrics = [load(path) for path in arguments.metrics]
    for metric in metrics:
        metric.rates_with  # noqa: B018  # raises
    return dict(zip(run_names([metric.folder for metric in metrics]), metrics, strict=True))


def chosen_data(config: Config, arguments: argparse.Namespace) -> ScoredData:
    typed = (arguments.split, arguments.source, arguments.target, arguments.bleu_tokenizer, arguments.data)
    return scored_data(config, *typed)


def scored(
    loaded: Run, data: ScoredData, arguments: argparse.Namespace, metrics: Mapping[str, Run], rater: Run | None
) -> tuple[dict[str, Any], list[str] | None, Ratings]:
    """Returns the report on a run, and its translations with their ratings if it makes any."""
    if any(pair.languages for pair in data.pairs) and (arguments.source_language or arguments.target_language):
        raise ValueError(
            f"--from and --to are typed, but the sources of data.{data.name} name their languages: leave them out"
        )
    decode = decode_settings(loaded, arguments)
    if not makes_translations(loaded) and (decode or arguments.bleu_tokenizer or metrics):
        raise ValueError(
            "--beam-size, --alpha, --bleu-tokenizer and --metric are for translations, which this run does not make: leave them out"
        )
    rated = rated_pairs(loaded, data) if metrics or rater is not None else data.pairs
    scores, hypotheses = score(
        loaded,
        data,
        decode | forced_texts(loaded, arguments) | chosen_engine(arguments),
        lambda answers, sources, settings: chosen(answers, sources, arguments, settings, rater),
        asks=bool(metrics or arguments.bleu_tokenizer),
    )
    report = {
        "run": str(loaded.folder.path),
        "split": data.name,
        "weights": arguments.weights or loaded.config.weights,
        "weights_dtype": arguments.weights_dtype,
        "step": loaded.step,
    }
    ratings, means = rate(metrics, data._replace(pairs=rated), hypotheses or [])
    return finite(report | used_settings(arguments) | means | scores), hypotheses, ratings


def rated_pairs(loaded: Run, data: ScoredData) -> list[Pair]:
    """Returns the pairs as their answers are compared. Raises: ValueError for those of which none is a translation."""
    if data.name == "files" or loaded.config.objective.reads != "conversations":
        return data.pairs
    pairs = list(asked_pairs(loaded, data.pairs))
    if others := sum(not (pair.source and pair.target) for pair in pairs):
        raise ValueError(
            f"--metric and --best-by rate translations, but data.{data.name} has {counted(others, 'row')} without a source, "
            "without an answer, or with a prompt that does not fit: take them out, or give --source and --target"
        )
    return pairs


def report_search(arguments: argparse.Namespace) -> None:
    """Prints the figures of a search, and saves them with its results. Raises: ValueError for options that are not for it."""
    if arguments.search is None:
        raise ValueError("--candidates is for a search: add --search FOLDER, or leave it out")
    typed = (
        "split",
        "source",
        "target",
        "data",
        "bleu_tokenizer",
        "metrics",
        "source_language",
        "target_language",
        "terms",
        "prefix",
    )
    others = [
        name for name in (*typed, "placeholders", "minimum_risk", "ensemble", "others") if getattr(arguments, name)
    ]
    if others or typed_options(arguments):
        raise ValueError("--search takes one RUN, --candidates and the options of weights: leave the other options out")
    folder = read_folder(arguments.search)
    candidates = None if arguments.candidates is None else read_results(arguments.candidates, folder)
    loaded, place = load(arguments.folder, **chosen_weights(arguments)), Path(arguments.search).resolve()
    name = f"search-{place.name}"
    kept = loaded.folder.path / "evaluations" / f"{name}.json"
    if kept.is_file() and (other := json.loads(kept.read_bytes()).get("folder", str(place))) != str(place):
        raise ValueError(f"{kept} has the figures of {other}: rename one of the two folders, or remove this file")
    figures, results = search_report(loaded, folder, candidates)
    about = {"run": str(loaded.folder.path), "split": name, "folder": str(place), "step": loaded.step}
    report = finite(about | {"candidates": arguments.candidates} | figures)
    print(json.dumps(report, indent=2, ensure_ascii=False), flush=True)
    save_scores(loaded, report, [], None)
    write_results(loaded.folder.path / "hypotheses" / f"{name}.trec", results, loaded.folder.path.name)


# Several runs ---------------------------------------------------------------------------------------------------------


def compare_runs(arguments: argparse.Namespace) -> dict[str, Any]:
    """Scores runs on the same sentences, and compares each with the first by paired bootstrap; returns reports and comparisons.

    Raises: ValueError, before anything is translated, if the runs cannot be compared.
    """
    paths = [arguments.folder, *arguments.others]
    if arguments.ensemble or len(set(paths)) < len(paths):
        raise ValueError("several RUNs are compared: name each once, and leave --ensemble out")
    data = same_data(paths, arguments)
    metrics, rater = load_metrics(arguments), load_rater(arguments)
    reports, systems, rated = [], {}, dict[str, Ratings]()
    for path in paths:
        loaded = in_direction(load(path, **chosen_weights(arguments)), arguments)
        report, hypotheses, ratings = scored(loaded, data, arguments, metrics, rater)
        save_scores(loaded, report, data.pairs, hypotheses, ratings)
        reports.append(report)
        systems[path], rated[path] = hypotheses or [], ratings
    compared = compare(systems, [pair.target for pair in data.pairs], data.metrics)
    for name in metrics:
        compared += compare_ratings({path: ratings[name] for path, ratings in rated.items()}, name)
    width = max(map(len, paths))
    for line in compared:
        p = "" if line.p_value is None else f"   p = {line.p_value:.4f}"
        note(f"{line.metric:<6} {line.system:<{width}}  {line.rounded}{p}")
    for signature in dict.fromkeys(f"{line.metric}|{line.signature}" for line in compared):
        note(signature)
    comparison = [line._asdict() for line in compared]
    return {"split": data.name, "sentences": len(data.pairs), "runs": reports, "comparison": comparison}


def same_data(paths: list[str], arguments: argparse.Namespace) -> ScoredData:
    """Returns the data that all runs are scored on.

    Raises: ValueError naming the first run that does not translate, or that has other sentences or metrics.
    """
    datasets = []
    for path in paths:
        config = open_run(path).config()
        if not config.objective.translates and not (answers_texts(config) and arguments.source):
            raise ValueError(f"{path} makes no translations, which are what is compared: evaluate it by itself")
        datasets.append(chosen_data(config, arguments))
        for name in ("name", "pairs", "parts", "metrics"):
            if getattr(datasets[-1], name) != getattr(datasets[0], name):
                raise ValueError(
                    f"the {name} of the data of {path} and {paths[0]} differ: give the same files to all by --source and "
                    "--target, another --split, or a --bleu-tokenizer"
                )
    return datasets[0]
