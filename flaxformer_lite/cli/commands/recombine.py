"""Writes new sentences that are made of those of a text: `flaxformer-lite recombine FILE -n 58000 > new.en`.

Some have words of other sentences that stand between the same two words; others are halves of two sentences that meet in three
equal words. A teacher translates them (`translate`), and a student learns from both. FILE has a sentence a line, its words between
spaces.
"""

import argparse
import itertools


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a text file, plain or gzipped")
    parser.add_argument("-n", "--number", type=int, required=True, metavar="N", help="number of new sentences")
    parser.add_argument("--seed", type=int, default=0, help="other seeds write other sentences; default: 0")


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.data.recombination import recombined
    from flaxformer_lite.text.files import line_chunks

    if arguments.number < 1:
        raise ValueError(f"--number is {arguments.number}: it must be at least 1")
    lines = list(itertools.chain.from_iterable(line_chunks(arguments.file)))
    for line in recombined(lines, arguments.number, arguments.seed):
        print(line)
