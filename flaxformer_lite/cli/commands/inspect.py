"""Shows what a run is, in a few lines, then parameters with shapes and counts, checkpoints with metrics, and a SHA-256.

For a folder of tokens (`data.store`, or RUN/.tokens) it shows what was tokenized, and whether it is whole. With --verify it
compares every file of a run, its token store included, or of a folder of tokens, with what was written; the exit status is 1 if
one is damaged or missing.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flaxformer_lite.base.console import Failure
from flaxformer_lite.base.remote_files import is_url
from flaxformer_lite.cli.options import add_run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser, "the run folder, or a folder of tokens")
    parser.add_argument("--step", type=int, help="the checkpoint to show; default: the newest")
    parser.add_argument("--weights", help="last, best, ema or average:N; default: last")
    parser.add_argument("--verify", action="store_true", help="compare every file with what was written")
    parser.add_argument("--json", action="store_true", help="write JSON")


def run(arguments: argparse.Namespace) -> None:
    from flaxformer_lite.files.data.store import list_stores  # with JAX
    from flaxformer_lite.tools.ops.inspection import describe, verify
    from flaxformer_lite.workdir.folder import finite

    folder, weights, step = arguments.folder, arguments.weights, arguments.step
    if arguments.verify:
        if step is not None or weights is not None:
            raise ValueError("--step and --weights choose parameters, but --verify reads all: leave them out")
        tell_damage(folder, verify(folder), arguments.json)
        return
    stores = [] if is_url(folder) else list_stores(Path(folder))
    if stores:
        print(json.dumps(stores, indent=2))
    else:
        report = describe(folder, weights or "last", step)
        print(json.dumps(finite(report), indent=2) if arguments.json else facts_in_words(report))


def tell_damage(folder: str, parts: Mapping[str, str | None], as_json: bool) -> None:
    """Prints what is wrong with each part of a run or of a folder of tokens, if anything. Raises: Failure if something is."""
    if as_json:
        print(json.dumps(parts, indent=2))
    else:
        print("\n".join(f"{name}: {complaint or 'as it was written'}" for name, complaint in parts.items()))
    damaged = [name for name, complaint in parts.items() if complaint]
    if damaged:
        raise Failure(f"{folder}: {len(damaged)} of {len(parts)} parts are damaged or missing: {', '.join(damaged)}")


def facts_in_words(report: Mapping[str, Any]) -> str:
    """Returns the facts about a run as they are printed."""
    width = max(len(one["path"]) for one in report["parameters"])
    lines = [f"{report['description']}\n", f"{'parameter':<{width}}  {'shape':<18} {'type':<9} {'count':>12}"]
    for one in report["parameters"]:
        lines.append(f"{one['path']:<{width}}  {tuple(one['shape'])!s:<18} {one['dtype']:<9} {one['count']:>12,}")
    lines.append(f"{'total':<{width}}  {'':<18} {'':<9} {report['total']:>12,}\n")
    for checkpoint in report["checkpoints"]:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in (checkpoint["metrics"] or {}).items())
        best = " (best)" if checkpoint["best"] else ""
        lines.append(f"checkpoint {checkpoint['step']}: {metrics or 'not evaluated'}{best}")
    if report["step"] is not None:
        lines.append(f"\nparameters of {report['weights']} (step {report['step']})\nSHA-256 {report['sha256']}")
    return "\n".join(lines)
