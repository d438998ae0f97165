"""Training from Python: `flaxformer_lite.train(config, workdir)` returns the trained run."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flaxformer_lite.base.programs import keep_programs_of_python
from flaxformer_lite.config import Config, load_config
from flaxformer_lite.run.run import Run, load
from flaxformer_lite.training import Hook, loop
from flaxformer_lite.training.hooks import EachRow
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.bucket import bucket_to_train


def train(
    config: Config | str | Path,
    workdir: str | Path,
    *,
    hooks: Sequence[Hook] = (),
    on_row: Callable[[dict[str, Any]], None] | None = None,
    continue_with_changes: bool = False,
) -> Run:
    """Trains in the folder `workdir`, or continues the run in it; returns the run, as `load(workdir)` does.

    Ctrl-C, in a notebook its stop button, saves a checkpoint after the step in progress, and that run is returned; its `stopped` is
    True. The same call continues it.

    Args:
        config: A Config; or the path of a config file; or the name of a config that comes with the package, such as "quickstart".
        hooks: Called after steps, evaluations and checkpoints, beside those of `train.hooks` (docs/extending.md). If one raises an
            exception, the run saves a checkpoint, and the exception is raised.
        on_row: Called with each row of metrics.jsonl, a dict, once it is written, for example to draw a curve.
        continue_with_changes: Whether the run in `workdir` continues with other settings, as `--continue-with-changes` does.

    Raises: ValueError for a mistake in the config, the data or the folder; KeyboardInterrupt if Ctrl-C came before the first step;
        after SIGTERM and SIGHUP, once the run is saved, SystemExit with 143 or 129: a script trains nothing else in the time that a
        scheduler leaves it.
    """
    keep_programs_of_python()
    config = config if isinstance(config, Config) else load_config(str(config))
    of_rows = [] if on_row is None else [EachRow(on_row)]
    number = loop.train(config, workdir, [*hooks, *of_rows], with_changes=continue_with_changes)
    if number not in (0, signal.SIGINT):
        raise SystemExit(128 + number)
    bucket = bucket_to_train(workdir)
    if not (RunFolder(workdir).trained if bucket is None else bucket.reload().steps):
        raise KeyboardInterrupt
    return replace(load(workdir), stopped=bool(number))
