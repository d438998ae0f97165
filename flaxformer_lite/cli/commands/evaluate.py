"""Scores a run on its test data, or on files, as JSON on stdout.

These are the objective's figures (loss, accuracy, F1 and the like), and for translations BLEU, chrF and exact match. The
translations are kept in RUN/hypotheses/, the scores in RUN/evaluations/.
"""

import argparse
import json
import sys
from typing import Any

from flaxformer_lite.atomic_files import write_whole
from flaxformer_lite.cli.options import add_setting, typed_settings
from flaxformer_lite.console import Progress, warn
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.text_files import ParallelText
from flaxformer_lite.inference.metrics import bleu, chrf, exact_match
from flaxformer_lite.run import Run, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument(
        "--split", choices=("eval", "test"), help="data.eval or data.test; by default test, where the config has one"
    )
    parser.add_argument("--source", metavar="FILE", help="score this file instead, with --target")
    parser.add_argument("--target", metavar="FILE", help="its reference translation, line by line")
    beam = "beam size; by default the config's decode.beam_size"
    add_setting(parser, "--beam", "beam_size", int, "N", beam)
    parser.add_argument("--weights", help="last, best, ema or average:N; by default the config's weights")


def run(arguments: argparse.Namespace) -> None:
    loaded = load(arguments.folder, weights=arguments.weights)
    name, pairs = chosen_pairs(loaded, arguments)
    decode = typed_settings(arguments)
    if loaded.config.objective.translates:
        scores = evaluate(loaded, pairs, name, decode)
    elif decode:
        raise ValueError("--beam is for translations, and this run makes none: leave it out")
    else:
        with Progress(len(pairs)) as progress:
            scores = {
                loaded.config.objective.unit: len(pairs),
                **loaded.metrics(pairs, progress=lambda *_: progress.update("scoring")),
            }
    weights = arguments.weights or loaded.config.weights
    report = json.dumps(
        {"run": str(loaded.folder.path), "split": name, "weights": weights, "step": loaded.step, **decode, **scores},
        indent=2,
        ensure_ascii=False,
    )
    write_whole(loaded.folder.path / "evaluations" / f"{name}.json", report + "\n")
    print(report)


def chosen_pairs(loaded: Run, arguments: argparse.Namespace) -> tuple[str, list[Pair]]:
    """What to score, and a name for it. Raises: ValueError where the config has no such split, or a file is missing."""
    if arguments.source or arguments.target:
        if arguments.split or not (arguments.source and arguments.target):
            raise ValueError("give --source and --target together and no --split, or --split alone")
        if not loaded.config.objective.translates:
            raise ValueError("--source and --target are for translations: name the data with data.test in the config")
        return "files", list(ParallelText(source=arguments.source, target=arguments.target).open())
    data = loaded.config.data
    split = arguments.split or ("test" if data.test is not None else "eval")
    source = getattr(data, split)
    if source is None:
        raise ValueError(f"the config has no data.{split}: give --source and --target, or another --split")
    return split, list(source.open(f"data.{split}"))


def evaluate(loaded: Run, pairs: list[Pair], name: str, decode: dict[str, Any]) -> dict[str, Any]:
    """All scores of the run's translations of `pairs`."""
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    with Progress(len(pairs)) as progress:
        metrics = loaded.metrics(
            pairs, progress=lambda done, of: progress.update("scoring"), warn=lambda line: warn(f"{name}: {line}")
        )
        # Sources that are too long have been named by now.
        answers = loaded.hypotheses(
            sources, progress=lambda done, of: progress.update("translating", done), warn=lambda line: None, **decode
        )
    hypotheses = [best[0].text for best in answers]
    loaded.folder.write_hypotheses(name, pairs, hypotheses)
    tokenized = loaded.config.data.tokenized
    scores = {
        "bleu": bleu(hypotheses, references, tokenized=tokenized),
        "bleu_lowercase": bleu(hypotheses, references, tokenized=tokenized, lowercase=True),
        "chrf": chrf(hypotheses, references),
    }
    for metric, score in scores.items():
        print(f"{metric} {score.value:.2f}  {score.signature}", file=sys.stderr)
    return {
        "sentences": len(pairs),
        "exact_match": exact_match(hypotheses, references).value,
        **{metric: score.value for metric, score in scores.items()},
        **{f"{metric}_signature": score.signature for metric, score in scores.items()},
        "reference_words": scores["bleu"].reference_words,
        "hypothesis_words": scores["bleu"].hypothesis_words,
        **metrics,
    }
