"""Draws the attention of a model while it reads a source and writes a target: a PNG file, or a page with every head.

Without TARGET it is the run's own translation, or the continuation of a prompt by at most 20 tokens, decoded as its config says. An
encoder alone has no TARGET. Needs the extra `report`.
"""

import argparse
from pathlib import Path

from flaxformer_lite.base.console import Progress
from flaxformer_lite.cli.options import add_weights, chosen_weights

KINDS = ("cross", "encoder", "decoder")
ENDINGS = (".png", ".html")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument("source", metavar="SOURCE", help="the text that the model reads, or a prompt")
    parser.add_argument("target", metavar="TARGET", nargs="?", help="the text that the decoder writes")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="ends in .png or .html")
    parser.add_argument(
        "--kind", choices=KINDS, help="of a PNG file: the attention to draw; default: cross, if it is there"
    )
    parser.add_argument("--layer", type=int, metavar="N", help="of a PNG file: counted from 1; default: the last")
    parser.add_argument("--head", type=int, metavar="N", help="of a PNG file: counted from 1; default: the mean of all")
    add_weights(parser)


def run(arguments: argparse.Namespace) -> None:
    output = Path(arguments.output)
    if output.suffix not in ENDINGS:
        raise ValueError(f"--output is {output}: it must end in {' or '.join(ENDINGS)}")
    chosen = {name: getattr(arguments, name) for name in ("kind", "layer", "head")}
    if output.suffix == ".html" and any(value is not None for value in chosen.values()):
        raise ValueError("--kind, --layer and --head are for .png: the page has all of them, leave them out")
    with Progress() as progress:
        progress.update(f"loading {arguments.folder}")
        from flaxformer_lite.run import load
        from flaxformer_lite.tools.report import Report, write_page, write_png
        from flaxformer_lite.tools.report.attention import Attended, attention_title
        from flaxformer_lite.tools.report.charts import altair  # with JAX
        from flaxformer_lite.tools.report.plots import attention_chart

        altair()
        loaded = load(arguments.folder, **chosen_weights(arguments))
        progress.update("decoding")
        target = loaded.own_targets([arguments.source])[0] if arguments.target is None else arguments.target
        progress.update("computing attention")
        weights = loaded.attention(arguments.source, target)
        progress.update(f"drawing {output}")
        if output.suffix == ".png":
            write_png(attention_chart(weights, chosen["kind"], chosen["layer"], chosen["head"]), output)
        else:
            title, about = attention_title(arguments.source, target), f"weights of step {loaded.step}"
            runs = [{"name": loaded.folder.path.name, "folder": arguments.folder, "about": about}]
            write_page(Report(title=title, runs=runs, attention=[Attended(title, weights)]), output)
    print(output)
