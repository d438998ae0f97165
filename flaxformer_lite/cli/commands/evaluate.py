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

from flaxformer_lite.cli.options import add_run, add_translation, add_weights


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("others", metavar="RUN2", nargs="*", default=[], help="other runs, compared with the first")
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
    parser.add_argument(
        "--metric",
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
    add_weights(parser, engine="jax")


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.cli import scoring  # with JAX

    scoring.run(arguments)
