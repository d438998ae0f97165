"""Makes a new run folder that has only the tokens that texts need: `flaxformer-lite trim RUN -o NEW --text a.en a.de`.

Special and added tokens stay, those of languages, bytes, digits, signs, the letters of ASCII and of the texts' scripts, and the
words of the run's own prompts and chat template. A text whose tokens all stay has the answer that it had. The share of new lines
that need another token is estimated from every tenth line of the texts.
"""

import argparse

from flaxformer_lite.cli.options import add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("-o", "--output", metavar="NEW", required=True, help="the new run folder")
    parser.add_argument(
        "--text",
        metavar="FILE",
        nargs="+",
        required=True,
        help="text that the run is for, files or patterns, a line each",
    )
    parser.add_argument("--keep-ids", metavar="ID", nargs="+", type=int, default=[], help="further ids that stay")
    parser.add_argument("--weights", help="last, best, ema or average:N; by default the config's weights")


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.run.trimming import trim  # with JAX

    given = {name: getattr(arguments, name) for name in ("text", "keep_ids", "weights")}
    trim(arguments.folder, arguments.output, **given)
