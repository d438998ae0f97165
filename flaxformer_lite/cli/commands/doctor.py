"""Shows whether JAX uses this machine's devices, and the command that mends what is wrong; exit status 1 if something is.

It also shows versions, extras and caches, and times one matrix product and one compilation on the first device.
"""

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-timing", action="store_true", help="time nothing: it takes seconds")


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.tools.ops.diagnosis import collect, problems, report

    facts = collect(timing=not arguments.no_timing)
    print("\n".join(report(facts)))
    if any(problems(facts)):
        sys.stdout.flush()
        sys.exit(1)
