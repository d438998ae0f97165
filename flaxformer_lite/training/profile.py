"""A trace of a few steps by JAX's profiler, for `train.profile`; docs/training.md says how to look at it."""

import jax

from flaxformer_lite.training.hooks import Hook, TrainingRun


class Profile(Hook):
    """Traces the steps after step `start`, up to step `stop`, into RUN/profile; `steps` is "start:stop"."""

    all_processes = True

    def __init__(self, steps: str) -> None:
        self.start, self.stop = map(int, steps.split(":"))
        self.active = False

    def before_step(self, run: TrainingRun, step: int) -> None:
        if self.active and step > self.stop:
            jax.block_until_ready(run.state)
            self.on_end(run)
        if not self.active and self.start < step <= self.stop:
            jax.profiler.start_trace(str(run.folder.path / "profile"))
            self.active = True

    def on_end(self, run: TrainingRun) -> None:
        if self.active:
            self.active = False
            jax.profiler.stop_trace()
            run.progress.say(f"step {run.step:>6}  a trace is in {run.folder.path / 'profile'}")
