"""Scores a run on its test data or on files, and writes the scores as JSON.

The scores are the objective's metrics (loss, accuracy, F1, …) and, for translations, BLEU, chrF and exact match. Translations are
saved in RUN/hypotheses/, scores in RUN/evaluations/. With --ensemble, the objective's metrics are left out.
"""

import argparse
import json
import sys
from typing import Any

from flaxformer_lite.atomic_files import write_whole
from flaxformer_lite.cli import translation
from flaxformer_lite.cli.translation import chosen, decode_settings, load_runs, used_settings
from flaxformer_lite.console import Progress, warn
from flaxformer_lite.data import Pair, ParallelText
from flaxformer_lite.inference.metrics import bleu, chrf, exact_match
from flaxformer_lite.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument(
        "--split", choices=("eval", "test"), help="data.eval or data.test; default: test, if the config has it"
    )
    parser.add_argument("--source", metavar="FILE", help="translate this file instead; needs --target")
    parser.add_argument("--target", metavar="FILE", help="the reference translations of --source, line by line")
    translation.add_arguments(parser)
    parser.add_argument(
        "--tune-alpha",
        metavar="A,B,…",
        help="translate data.eval once with each exponent of the length penalty, and print BLEU of each",
    )
    parser.add_argument("--weights", help="last, best, ema or average:N; by default the config's weights")


def run(arguments: argparse.Namespace) -> None:
    loaded = load_runs(arguments)
    if arguments.tune_alpha is not None:
        tune_alpha(loaded, arguments)
        return
    name, pairs = chosen_pairs(loaded, arguments)
    name += "-ensemble" * bool(arguments.ensemble)
    decode = decode_settings(loaded, arguments)
    hypotheses: list[str] | None = None
    if loaded.config.objective.translates:
        hypotheses, scores = evaluate(loaded, pairs, name, decode, arguments)
    elif decode:
        raise ValueError("--beam and --alpha are for translations, which this run does not make: leave them out")
    else:
        with Progress(len(pairs)) as progress:
            scores = {
                loaded.config.objective.unit: len(pairs),
                **loaded.metrics(pairs, progress=lambda *_: progress.update("scoring")),
            }
    weights = arguments.weights or loaded.config.weights
    report = json.dumps(
        {
            "run": str(loaded.folder.path),
            "split": name,
            "weights": weights,
            "step": loaded.step,
            **used_settings(arguments),
            **scores,
        },
        indent=2,
        ensure_ascii=False,
    )
    print(report, flush=True)
    try:
        if hypotheses is not None:
            loaded.folder.write_hypotheses(name, pairs, hypotheses)
        write_whole(loaded.folder.path / "evaluations" / f"{name}.json", report + "\n")
    except OSError as error:
        warn(f"nothing was saved in {loaded.folder.path} ({error.strerror}): the scores above are all there is")


def chosen_pairs(loaded: Run, arguments: argparse.Namespace) -> tuple[str, list[Pair]]:
    """Returns a name for the data to score, and its pairs. Raises: ValueError if there is no such split or file."""
    if arguments.source or arguments.target:
        if arguments.split or not (arguments.source and arguments.target):
            raise ValueError("--source, --target and --split do not go together: give both files, or --split alone")
        if not loaded.config.objective.translates:
            raise ValueError(
                "--source and --target are for translations, which this run does not make: set data.test in the config"
            )
        return "files", list(ParallelText(source=arguments.source, target=arguments.target).open())
    data = loaded.config.data
    split = arguments.split or ("test" if data.test is not None else "eval")
    source = getattr(data, split)
    if source is None:
        raise ValueError(f"data.{split} is None in the config: give --source and --target, or another --split")
    return split, list(source.open(f"data.{split}"))


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
    name, pairs = chosen_pairs(loaded, arguments)
    decode, scores = decode_settings(loaded, arguments), []
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    for alpha in alphas:
        with Progress(len(pairs)) as progress:
            answers = loaded.hypotheses(
                sources,
                progress=lambda done, of, alpha=alpha: progress.update(f"alpha {alpha:g}", done),
                warn=lambda line: None,
                **decode | {"alpha": alpha},
            )
        score = bleu([best[0].text for best in answers], references, tokenized=loaded.config.data.tokenized)
        scores.append({"alpha": alpha, "bleu": score.value, "hypothesis_words": score.hypothesis_words})
        print(f"alpha {alpha:g}  BLEU {score.value:.2f}  words {score.hypothesis_words:,}", file=sys.stderr)
    best = max(scores, key=lambda found: found["bleu"])
    report = {"run": str(loaded.folder.path), "split": name, "step": loaded.step, **used_settings(arguments)}
    report |= {"reference_words": score.reference_words, "signature": score.signature, "alphas": scores, "best": best}
    print(json.dumps(report, indent=2))


def evaluate(
    loaded: Run, pairs: list[Pair], name: str, decode: dict[str, Any], arguments: argparse.Namespace
) -> tuple[list[str], dict[str, Any]]:
    """Returns the run's translations of `pairs`, and all their scores."""
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    with Progress(len(pairs)) as progress:
        metrics = {}
        if not loaded.others:
            metrics = loaded.metrics(
                pairs, progress=lambda done, of: progress.update("scoring"), warn=lambda line: warn(f"{name}: {line}")
            )
        # `metrics` has already warned of sources that are too long.
        answers = loaded.hypotheses(
            sources, progress=lambda done, of: progress.update("translating", done), warn=lambda line: None, **decode
        )
    hypotheses = [best[0].text for best in chosen(loaded, answers, arguments)]
    tokenized = loaded.config.data.tokenized
    scores = {
        "bleu": bleu(hypotheses, references, tokenized=tokenized),
        "bleu_lowercase": bleu(hypotheses, references, tokenized=tokenized, lowercase=True),
        "chrf": chrf(hypotheses, references),
    }
    for metric, score in scores.items():
        print(f"{metric} {score.value:.2f}  {score.signature}", file=sys.stderr)
    return hypotheses, {
        "sentences": len(pairs),
        "exact_match": exact_match(hypotheses, references).value,
        **{metric: score.value for metric, score in scores.items()},
        **{f"{metric}_signature": score.signature for metric, score in scores.items()},
        "reference_words": scores["bleu"].reference_words,
        "hypothesis_words": scores["bleu"].hypothesis_words,
        **metrics,
    }
