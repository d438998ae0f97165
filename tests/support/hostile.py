"""A process of its own that runs commands on files made to do harm, and reports how each of them ended."""

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.paths import ROOT

SECONDS, MEGABYTES = 10.0, 700
"""What a command may take on a small file: of the processor, and of memory above what the process has at its start."""
PATIENCE = 90
"""Seconds of the clock after which a command is stopped: the machine may be busy."""


PANIC = ("thread '", "no entry found", "Onig: ", "note: run with", "called `")
"""What Rust libraries write of themselves when they panic; the error follows."""


class Ending(NamedTuple):
    """How a command ended."""

    status: int | None
    """Its exit status; None if it was stopped after `PATIENCE`, or ended the whole process."""
    stderr: str
    seconds: float
    megabytes: float
    """The most memory that it had at a time, above that of the process before it."""

    def complaint(self) -> str:
        """Returns what is wrong with this ending: nothing if it ended well, or refused in one line and in bounds."""
        lines = [line for line in self.stderr.splitlines() if line and not line.startswith(PANIC)]
        refused = self.status == 2 and lines[-1].startswith("error: ") and sum("warning: " not in x for x in lines) == 1
        if not (self.status == 0 or refused) or "Traceback" in self.stderr:
            return f"status {self.status}: {self.stderr[-1500:]!r}"
        if max(map(len, lines), default=0) > 3000:
            return f"a line of {max(map(len, lines))} characters: {self.stderr[:300]!r}"
        if self.seconds > SECONDS or self.megabytes > MEGABYTES:
            return f"{self.seconds:.1f} s and {self.megabytes:.0f} MB"
        return ""


class Victim:
    """Runs commands, one after the other, in a process that is started again where a command ends it."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Victim":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def run(self, *words: str | Path) -> Ending:
        """Returns how the command ended."""
        if self.process is None:
            environment = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "JAX_PLATFORMS": "cpu",
                "XLA_FLAGS": "",
                "RUST_BACKTRACE": "0",
            }
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.hostile"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
                env=environment,
            )
            self.answer(120)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(word) for word in words]).encode() + b"\n")
        self.process.stdin.flush()
        answer = self.answer(PATIENCE)
        if answer is None:
            gone = self.process.poll()
            self.stop()
            return Ending(None, "it ran on" if gone is None else f"the process ended with {gone}", PATIENCE, 0.0)
        return Ending(**answer)

    def answer(self, seconds: float) -> Any:
        """Returns the next answer; None if there is none in time."""
        assert self.process is not None and self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else b""
        return json.loads(line) if line.endswith(b"\n") else None


# Within the process ---------------------------------------------------------------------------------------------------


def memory(field: str) -> float:
    """Returns a field of this process's status in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def run_here(words: list[str]) -> dict[str, Any]:
    """Runs a command and returns the fields of an `Ending`."""
    from flaxformer_lite.cli.main import main

    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, started = memory("VmRSS"), time.process_time()
    with tempfile.TemporaryFile("w+b") as output:
        kept = os.dup(2)
        os.dup2(output.fileno(), 2)
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        try:
            main(words)
            status: Any = 0
        except SystemExit as end:
            status = end.code
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"[:1000]
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
        output.seek(0)
        text = output.read().decode(errors="backslashreplace")
    seconds, megabytes = time.process_time() - started, memory("VmHWM") - before
    return {"status": status, "stderr": text[-100_000:], "seconds": seconds, "megabytes": megabytes}


def serve() -> None:
    """Answers every command on stdin with one line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_DATA, (6 * 2**30, 6 * 2**30))
    with contextlib.suppress(SystemExit):
        run_here(["inspect", "/nonexistent"])
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(run_here(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    serve()
