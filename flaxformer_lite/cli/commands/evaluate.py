"""Scores a run on its test data or on files, and writes the scores as JSON.

The scores are the objective's metrics (loss, accuracy, F1, …) and, for translations, BLEU, chrF and exact match, over all the data
and over each source of a mixture, such as de/bleu. With --metric, also the mean rating by a neural metric. Translations are saved
in RUN/hypotheses/, scores, and the ratings of all sentences, in RUN/evaluations/. With --ensemble, the objective's metrics are left
out. Translations of further runs are compared with those of the first: BLEU, chrF and ratings with 95 % intervals, and p by paired
bootstrap of 1,000 resamples.

With --search, a run finds documents by its vectors, or orders the --candidates that another run found. Its results are saved in
RUN/hypotheses/, in TREC's form.
"""

import argparse
import json
from functools import partial
from typing import TYPE_CHECKING

from flaxformer_lite.base.console import note
from flaxformer_lite.cli.options import (
    TranslationOptions,
    add_option,
    add_run,
    add_translation,
    add_weights,
    chosen_weights,
    typed,
    typed_engine,
    typed_for_translations,
    typed_options,
    typed_settings,
)

if TYPE_CHECKING:
    from flaxformer_lite.config import Config
    from flaxformer_lite.run import Run
    from flaxformer_lite.run.scoring import ScoredData
    from flaxformer_lite.tools.scores import Scoring


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    others = "other runs, compared with the first"
    add_option(parser, "others", decides=False, is_run=True, metavar="RUN2", nargs="*", default=[], help=others)
    parser.add_argument(
        "--split", choices=("eval", "test"), help="data.eval or data.test; default: test, if the config has it"
    )
    parser.add_argument("--data", metavar="FILE", help="score this labelled file instead, read as the data of the run")
    parser.add_argument("--source", metavar="FILE", help="translate this file instead; needs --target")
    parser.add_argument("--target", metavar="FILE", help="the reference translations of --source, line by line")
    parser.add_argument(
        "--search",
        metavar="FOLDER",
        help="search the corpus of FOLDER: nDCG, MRR and recall by its corpus.jsonl, queries.jsonl and qrels/test.tsv",
    )
    parser.add_argument(
        "--candidates",
        metavar="FILE",
        help="order these results of another search of FOLDER, as TREC writes them, such as RUN/hypotheses/NAME.trec",
    )
    add_option(
        parser,
        "--metric",
        decides=False,
        is_run=True,
        dest="metrics",
        metavar="RUN",
        action="append",
        default=[],
        help="rate the translations by this run too, such as an imported MetricX or COMET; may be repeated",
    )
    add_translation(parser)
    parser.add_argument(
        "--bleu-tokenizer", metavar="NAME", help="sacreBLEU's tokenizer; default: metrics.bleu_tokenizer of the config"
    )
    add_weights(parser, engine="auto")


def run(arguments: argparse.Namespace) -> None:
    if arguments.search is not None or arguments.candidates is not None:
        score_search(arguments)
    elif arguments.others:
        compare_with_run(arguments)
    else:
        score_runs(arguments)


def score_runs(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.metrics.translations import METRICS  # with JAX
    from flaxformer_lite.run.scoring import save_scores

    scoring = scoring_of(arguments)
    loaded = opened_to_score(arguments, scoring, arguments.folder)
    data = data_of(arguments, loaded.config)
    if arguments.ensemble:
        data = data._replace(name=f"{data.name}-ensemble")
    report, hypotheses, ratings = scoring.scored(loaded, data)
    for metric in METRICS:
        signature = report.get(f"{metric}_signature")
        if signature:
            note(f"{metric} {report[metric]:.2f}  {signature}")
    print_json(report)
    save_scores(loaded, report, data.pairs, hypotheses, ratings)


def compare_with_run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.tools.scores import compare_runs  # with JAX

    if arguments.ensemble:
        raise ValueError("several RUNs are compared: leave --ensemble out")
    scoring = scoring_of(arguments)
    paths = [arguments.folder, *arguments.others]
    load = partial(opened_to_score, arguments, scoring)
    report, compared = compare_runs(paths, scoring, partial(data_of, arguments), load)
    width = max(map(len, paths))
    for line in compared:
        p = "" if line.p_value is None else f"   p = {line.p_value:.4f}"
        note(f"{line.metric:<6} {line.system:<{width}}  {line.rounded}{p}")
    for signature in dict.fromkeys(f"{line.metric}|{line.signature}" for line in compared):
        note(signature)
    print_json(report)


def opened_to_score(arguments: argparse.Namespace, scoring: "Scoring", path: str) -> "Run":
    """Returns a run as it is scored."""
    from flaxformer_lite.cli.translation import load_runs  # with JAX
    from flaxformer_lite.run.scoring import makes_translations

    run = load_runs(path, typed(TranslationOptions, arguments), chosen_weights(arguments), scoring.decode)
    given = typed_for_translations(arguments)
    if given and not makes_translations(run):
        raise ValueError(f"{', '.join(given)}: for translations, which this run does not make: leave them out")
    return run


def scoring_of(arguments: argparse.Namespace) -> "Scoring":
    """Returns the way in which runs are scored."""
    from flaxformer_lite.tools.scores import Scoring, metrics_in  # with JAX

    wanted = typed(TranslationOptions, arguments)
    settings = typed_settings(arguments)
    weights = {"weights": arguments.weights} if arguments.weights else {}
    told = weights | {"weights_dtype": arguments.weights_dtype} | settings | wanted.typed
    decode = settings | wanted.choice() | wanted.forced() | typed_engine(arguments)
    asks = ["--bleu-tokenizer"] if arguments.bleu_tokenizer else []
    return Scoring(decode, metrics_in(arguments.metrics), asks, told)


def data_of(arguments: argparse.Namespace, config: "Config") -> "ScoredData":
    """Returns the data that is scored. Raises: ValueError also for languages that it names itself."""
    from flaxformer_lite.run.scoring import scored_data  # with JAX

    typed = (arguments.split, arguments.source, arguments.target, arguments.bleu_tokenizer, arguments.data)
    data = scored_data(config, *typed)
    if any(pair.languages for pair in data.pairs) and (arguments.source_language or arguments.target_language):
        raise ValueError(
            f"--from and --to are typed, but the sources of data.{data.name} name their languages: leave them out"
        )
    return data


def score_search(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.run import load  # with JAX
    from flaxformer_lite.tools.search import evaluate_search, read_results, read_search_folder, save_search

    if arguments.search is None:
        raise ValueError("--candidates is for a search: add --search FOLDER, or leave it out")
    data = (arguments.split, arguments.source, arguments.target, arguments.data, arguments.bleu_tokenizer)
    others = [*filter(None, data), *arguments.metrics, *arguments.others]
    if others or typed_options(arguments) or typed(TranslationOptions, arguments).typed:
        raise ValueError("--search takes one RUN, --candidates and the options of weights: leave the other options out")
    folder = read_search_folder(arguments.search)
    candidates = None if arguments.candidates is None else read_results(arguments.candidates, folder)
    loaded = load(arguments.folder, **chosen_weights(arguments))
    told = {"candidates": arguments.candidates}
    by = typed_engine(arguments)
    report, results = evaluate_search(loaded, folder, candidates, told, by)
    print_json(report)
    save_search(loaded, report, results)


def print_json(report: dict[str, object]) -> None:
    print(json.dumps(report, indent=2, ensure_ascii=False), flush=True)
