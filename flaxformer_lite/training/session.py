"""The session of a training: its processes, folder, lock, signals, live view, checkpoints and hooks."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.training.hooks import Hook, Hooks
from flaxformer_lite.training.multihost.agreement import Processes
from flaxformer_lite.training.multihost.meeting import exit_on_error
from flaxformer_lite.training.profile import Profile
from flaxformer_lite.training.signals import StopRequest
from flaxformer_lite.training.trackers import Trackers
from flaxformer_lite.training.view import View
from flaxformer_lite.workdir import Checkpoints, RunFolder, open_checkpoints
from flaxformer_lite.workdir.bucket import bucket_to_train


@dataclass(frozen=True, kw_only=True)
class Session:
    """The values that are open while a run is trained."""

    config: Config
    """As it was typed, with the facts of the data that a continued run was trained on."""
    processes: Processes
    folder: RunFolder
    stop: StopRequest
    progress: Progress
    checkpoints: Checkpoints
    hooks: Hooks


@contextlib.contextmanager
def session(
    config: Config, workdir: str | Path, hooks: Sequence[Hook], *, with_changes: bool = False
) -> Iterator[Session]:
    """Opens the session of a training of `config` in the folder `workdir`; closes its values in the opposite order.

    A process that fails ends all others before it closes its checkpoints, as the close would wait for them.

    Raises: ValueError for a folder that another process trains in, or a hook that is not one.
    """
    processes = Processes()
    bucket = bucket_to_train(workdir, processes.index)
    folder = RunFolder(workdir, silent=not processes.is_first, with_changes=with_changes, bucket=bucket)
    stop = processes.stop_request()
    config = replace(config, resolved=None)
    with exit_on_error(), processes.lock(folder, config), session_in(folder, config, hooks, processes, stop) as opened:
        yield opened


@contextlib.contextmanager
def session_in(
    folder: RunFolder, config: Config, hooks: Sequence[Hook], processes: Processes, stop: StopRequest
) -> Iterator[Session]:
    """Opens the session in a folder that this process has locked."""
    config = folder.continued(config)
    folder.settle(config)
    with (
        stop.listening(),
        Progress(config.concrete.train.steps, folder.path / "train.log", silent=not processes.is_first) as progress,
        open_checkpoints(config, folder, read_only=False) as checkpoints,
        exit_on_error(),
    ):
        yield Session(
            config=config,
            processes=processes,
            folder=folder,
            stop=stop,
            progress=progress,
            checkpoints=checkpoints,
            hooks=Hooks([*hooks_of(config.train), *hooks], processes.is_first, stop),
        )


def hooks_of(train: TrainConfig) -> Iterator[Hook]:
    """Yields the hooks of the settings, the user's own last."""
    yield View()
    if train.profile is not None:
        yield Profile(train.profile)
    if train.trackers:
        yield Trackers(train.trackers)
    yield from cast(tuple[Hook, ...], train.hooks)
