"""Scores a run on its test data or on files, and writes the scores as JSON.

The scores are the objective's metrics (loss, accuracy, F1, …) and, for translations, BLEU, chrF and exact match. Translations are
saved in RUN/hypotheses/, scores in RUN/evaluations/. With --ensemble, the objective's metrics are left out.
"""

import argparse
import json
import sys
from typing import Any

from flaxformer_lite.atomic_files import write_whole
from flaxformer_lite.cli.options import add_ensemble, add_setting, load_typed, typed_settings
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
    beam = "beam size; default: decode.beam_size of the config"
    add_setting(parser, "--beam", "beam_size", int, "N", beam)
    add_ensemble(parser)
    parser.add_argument("--weights", help="last, best, ema or average:N; by default the config's weights")


def run(arguments: argparse.Namespace) -> None:
    loaded = load_typed(arguments)
    name, pairs = chosen_pairs(loaded, arguments)
    name += "-ensemble" * bool(arguments.ensemble)
    decode = typed_settings(arguments)
    hypotheses: list[str] | None = None
    if loaded.config.objective.translates:
        hypotheses, scores = evaluate(loaded, pairs, name, decode)
    elif decode:
        raise ValueError("--beam is for translations, but this run does not translate: leave it out")
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
            **({"ensemble": arguments.ensemble} if arguments.ensemble else {}),
            "split": name,
            "weights": weights,
            "step": loaded.step,
            **decode,
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


def evaluate(loaded: Run, pairs: list[Pair], name: str, decode: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
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
    hypotheses = [best[0].text for best in answers]
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
