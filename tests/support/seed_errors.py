"""Prints the largest errors against the four systems' fixtures as a Markdown table: `python -m tests.support.seed_errors`."""

import json
import sys
from collections import defaultdict

import jax
import numpy as np

from tests.laws.test_seed_systems import CASES, KINDS, compute
from tests.support.seed_models import SYSTEM_OF


def main() -> None:
    errors: dict[tuple[str, str], float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    entries_of: dict[str, int] = defaultdict(int)
    for number, file in enumerate(CASES, start=1):
        print(f"\r{number} of {len(CASES)} cases", end="", file=sys.stderr)
        with np.load(file) as archive:
            arrays = dict(archive)
        config = json.loads(str(arrays.pop("config")))
        system = SYSTEM_OF[config["system"]]
        counts[system] += 1
        for dtype, prefix in ((np.float32, ""), (np.float64, "f64/")):
            entries = {
                key for key in arrays if key.startswith(tuple(f"{prefix}{x}" for x in ("out/", "grad/", "grad_in/")))
            }
            found = compute(config, arrays, dtype) if entries else {}
            for key in entries:
                entry = key.removeprefix(prefix)
                difference = np.abs(np.nan_to_num(found[entry].astype(np.float64) - arrays[key])).max(initial=0)
                kind = "outputs" if entry.startswith("out/") else "gradients"
                column = f"{kind}, {np.dtype(dtype).name}"
                errors[system, column] = max(errors[system, column], float(difference))
                entries_of[system] += 1
    columns = ["outputs, float32", "gradients, float32", "outputs, float64", "gradients, float64"]
    print(f"\n| system | cases | entries | {' | '.join(columns)} |\n|---|---|---|{'---|' * len(columns)}")
    for system in sorted(counts):
        row = [f"{errors[system, column]:.1e}" if (system, column) in errors else "none given" for column in columns]
        print(f"| `{system}` | {counts[system]} | {entries_of[system]} | {' | '.join(row)} |")
    print(f"\nJAX {jax.__version__} on {jax.devices()[0].platform}; {len(KINDS)} kinds of cases.")


if __name__ == "__main__":
    main()
