"""Writes one page about one run or several: curves, scores, translations, attention, data, settings. Needs no network to be read.

The page holds all it shows. With --png the charts are also written as files. Needs the extra `report`.
"""

import argparse
from pathlib import Path

from flaxformer_lite.base.console import Progress, note
from flaxformer_lite.cli.options import add_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "run folders; the first is the one to compare with"
    add_option(parser, "folders", decides=False, is_run=True, metavar="RUN", nargs="+", help=about)
    parser.add_argument("-o", "--output", metavar="FILE.html", default="report.html", help="default: report.html")
    parser.add_argument("--png", metavar="FOLDER", help="write every chart into this folder too")
    parser.add_argument(
        "--sentence",
        metavar="TEXT",
        action="append",
        default=[],
        help="a text whose attention is drawn; may be repeated; default: three of samples/ or of the data",
    )
    parser.add_argument(
        "--weights",
        help="weights whose attention is drawn: last, best, ema or average:N; default: each config's weights",
    )


def run(arguments: argparse.Namespace) -> None:
    output = Path(arguments.output)
    if output.is_dir():
        raise ValueError(f"--output is the folder {output}: give the name of a file, such as {output / 'report.html'}")
    with Progress() as progress:
        progress.update("reading the runs")
        from flaxformer_lite.tools.report import make_report, write_charts, write_page
        from flaxformer_lite.tools.report.plots import altair  # with JAX

        altair()
        report = make_report(arguments.folders, arguments.sentence, progress.of, arguments.weights)
        progress.update("writing the page")
        write_page(report, output)
        if arguments.png:
            write_charts(report, Path(arguments.png), progress.of)
    print(output)
    for tab, notes in report.notes.items():
        for line in notes:
            note(f"left out of {tab}: {line}")
