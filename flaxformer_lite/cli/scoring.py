"""The work of `evaluate`: scores of one run, and comparisons of several."""

import argparse
import json
from pathlib import Path
from typing import Any

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.console import Progress, note, warn
from flaxformer_lite.base.remote_files import is_url
from flaxformer_lite.cli.options import chosen_weights
from flaxformer_lite.cli.translation import chosen, decode_settings, load_runs, used_settings
from flaxformer_lite.config import Config
from flaxformer_lite.data import Pair
from flaxformer_lite.inference.metrics import Comparison, bleu, compare
from flaxformer_lite.run import Run, load
from flaxformer_lite.run.scoring import ScoredData, score, scored_data
from flaxformer_lite.workdir import open_run
from flaxformer_lite.workdir.folder import finite


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
    report, hypotheses = scored(loaded, data, arguments)
    for metric in ("bleu", "bleu_lowercase", "chrf") if hypotheses is not None else ():
        note(f"{metric} {report[metric]:.2f}  {report[f'{metric}_signature']}")
    print(json.dumps(report, indent=2, ensure_ascii=False), flush=True)
    save(loaded, report, data.pairs, hypotheses)


def scored(loaded: Run, data: ScoredData, arguments: argparse.Namespace) -> tuple[dict[str, Any], list[str] | None]:
    """Returns the report on a run, and its translations if it makes any."""
    decode = decode_settings(loaded, arguments)
    if not loaded.config.objective.translates and (decode or arguments.bleu_tokenizer):
        raise ValueError(
            "--beam-size, --alpha and --bleu-tokenizer are for translations, which this run does not make: leave them out"
        )
    scores, hypotheses = score(loaded, data, decode, lambda answers, metrics: chosen(answers, arguments, metrics))
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
        report, hypotheses = scored(loaded, data, arguments)
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


def chosen_data(config: Config, arguments: argparse.Namespace) -> ScoredData:
    """Returns the data to score."""
    return scored_data(config, arguments.split, arguments.source, arguments.target, arguments.bleu_tokenizer)


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
