"""Ending: an error in one process ends all of them, each with a message and exit status 2, and none hangs."""

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, NoReturn

import jax

from flaxformer_lite.base.console import Failure

GONE = "another process of this run is gone, or cannot be reached"
REMEDY = "All stop; the same command on every host continues from the last checkpoint"

ABORT_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
"""The type of a signal handler in C. JAX ends by SIGABRT from a thread of its own, where no handler of Python's would run."""


class SharedError(ValueError):
    """An error that all processes raise at the same point: the first one reports it, all end."""


def on_abort(handler: Any) -> None:
    """Sets the C handler of SIGABRT, or resets it with None. The caller keeps a reference to the handler."""
    ctypes.CDLL(None).signal(signal.SIGABRT, handler)


def _explain_abort(_: int) -> None:
    # Asks JAX for nothing: while its devices are not there yet, or no longer, it would wait for the process that is gone.
    report(f"JAX has ended it, for the reason above. Most likely {GONE}. {REMEDY}")
    exit_at_once(2)


EXPLAIN_ABORT = ABORT_HANDLER(_explain_abort)
"""Handles SIGABRT once the processes have met: the first process, or a heartbeat, is missing."""


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Ends this process, one of several, at once on any exception, with a message: the others notice, and end too.

    An orderly exit would wait for the other processes, which wait for this one.
    """
    try:
        yield
    except KeyboardInterrupt:
        exit_process(130)
    except (SharedError, Failure) as error:
        if jax.process_index() == 0:
            print(f"error: {error}", file=sys.stderr, flush=True)
            time.sleep(1)  # the others end first: their connection ends with this process
        else:
            report(
                f"this run {'was refused' if isinstance(error, SharedError) else 'has failed'}; process 0 reports why"
            )
        exit_process(1 if isinstance(error, Failure) else 2)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        report(f"{GONE} ({reason}). {REMEDY}")
        exit_process(2)
    except (ValueError, OSError) as error:
        report(str(error))
        exit_process(2)
    except BaseException:
        traceback.print_exc()
        exit_process(2)


_name = "one of several processes"


def call_this_process(name: str) -> None:
    """Sets what `report` calls this process: it cannot ask JAX, which may wait for the others before it answers."""
    global _name
    _name = name


def report(line: str) -> None:
    """Writes an error message of this process."""
    print(f"error: {_name}: {line}", file=sys.stderr, flush=True)


def exit_process(status: int) -> NoReturn:
    """Ends the process. One of several does not wait for the others, as Python's own exit would."""
    if jax.distributed.is_initialized():
        exit_at_once(status)
    sys.exit(status)


def exit_at_once(status: int) -> NoReturn:
    """Ends the process without Python's own exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
