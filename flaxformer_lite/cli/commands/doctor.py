"""Shows whether JAX uses this machine's devices, and the command that mends what is wrong; exit status 1 if something is."""

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds no options: the command only inspects this machine."""


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.tools.ops.diagnosis import collect, diagnosis, problems

    facts = collect()
    print("\n".join(diagnosis(facts)))
    if any(problems(facts)):
        sys.stdout.flush()
        sys.exit(1)
