"""Runs of real processes that are disturbed, and the undisturbed run that each must equal in the end."""

import dataclasses
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from flaxformer_lite.files.data import Dates, ParallelText
from flaxformer_lite.files.tokenizers.subwords import SentencePiece
from tests.support.experiments import tiny_config, with_train, write_config_file
from tests.support.final_state import assert_same_run
from tests.support.paths import ROOT

TINY = tiny_config()
NEVER_SAID = ("Traceback", "Exception ignored", "Fatal Python error", "Segmentation fault", "terminate called")
"""Parts of messages of Python and C++ that no user should see."""


class Scene:
    """A config, the undisturbed run of it, and the folders of the disturbed ones.

    Args:
        processes: how many train together.
    """

    def __init__(self, folder: Path, processes: int) -> None:
        self.folder, self.processes = folder, processes
        folder.mkdir()
        for name, data in (("train", Dates(num_examples=300)), ("eval", Dates(split="held_out", num_examples=20))):
            pairs = [pair for pair in data.open(name) if pair.source.isascii()]
            for side in ("source", "target"):
                lines = "".join(getattr(pair, side) + "\n" for pair in pairs)
                (folder / f"{name}.{side}").write_text(lines, encoding="utf-8")
        files = {
            name: ParallelText(source=str(folder / f"{name}.source"), target=str(folder / f"{name}.target"))
            for name in ("train", "eval")
        }
        config = dataclasses.replace(
            TINY,
            model=dataclasses.replace(TINY.model, vocab_size=120, num_encoder_layers=1, num_decoder_layers=1),
            data=dataclasses.replace(
                TINY.data, **files, tokenizer=SentencePiece(), bucket_lengths=(40,), store=str(folder / "no_store")
            ),
        )
        config = with_train(config, steps=36, eval_every=18, checkpoint_every=6, log_every=2)
        self.config = write_config_file(folder / "config.json", config)
        self.whole = folder / "whole"
        self.run_undisturbed(self.whole)  # fills the cache

    @functools.cached_property
    def seconds(self) -> float:
        """The time of an undisturbed run whose programs are compiled."""
        started = time.monotonic()
        self.run_undisturbed(self.folder / "again")
        seconds = time.monotonic() - started
        assert_same_run(self.folder / "again", self.whole)
        return seconds

    def run_undisturbed(self, run: Path) -> None:
        started = self.start(run)
        assert [process.wait(300) for process in started] == [0] * self.processes, self.said(run)

    def start(self, run: Path, prepare: Callable[[], None] = lambda: None) -> list[subprocess.Popen]:
        """Starts or continues a run; `prepare` is called in each new process before the command.

        A process is a job in the foreground: all signals at their defaults, though the tests run under nohup, and its own group.
        """

        def as_in_a_shell() -> None:
            os.setpgid(0, 0)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            prepare()

        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "XLA_FLAGS": re.sub("device_count=8", "device_count=1", os.environ["XLA_FLAGS"]),
        }
        command = [sys.executable, str(ROOT / "train.py"), str(self.config), "--workdir", str(run)]
        command += ["--data.store", f"{run}.store"]
        if self.processes > 1:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                command += ["--coordinator", f"127.0.0.1:{probe.getsockname()[1]}", "--join-seconds", "20"]
            command += ["--num-processes", str(self.processes)]
        started = []
        for number in range(self.processes):
            own = ["--process-id", str(number)] if self.processes > 1 else []
            with open(self.log(run, number), "w") as stderr:
                process = subprocess.Popen(
                    [*command, *own], env=environment, cwd=ROOT, stderr=stderr, stdout=stderr, preexec_fn=as_in_a_shell
                )
            started.append(process)
        return started

    def said(self, run: Path) -> str:
        """Returns what the processes of the last start wrote."""
        return "".join(self.log(run, number).read_text() for number in range(self.processes))

    def log(self, run: Path, number: int) -> Path:
        """Returns the file of what a process writes: not beside the run, whose disk may be full."""
        return self.folder / f"{run.name}.{number}.err"

    def assert_undisturbed(self, run: Path) -> None:
        assert_same_run(run, self.whole)
