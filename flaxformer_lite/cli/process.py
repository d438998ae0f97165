"""The process of a command: how it keeps memory, Ctrl-C while it starts, and its end.

Imports nothing heavy by itself: the process may start once more, and that costs what was imported before.
"""

import contextlib
import gc
import importlib.util
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from types import TracebackType

TUNABLES = "GLIBC_TUNABLES"
"""The variable that glibc's memory allocator reads when a process starts."""
KEEP = f"glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold={2**40}:glibc.malloc.trim_threshold={2**40}"
"""Freed arrays stay with the process for its next ones. With more than one arena, large arrays of other threads bypass the heap."""

NEW_OBJECTS = 5_000
"""The objects after which Python looks for garbage. After 700, its own number, that takes a third of the time of a start."""
BY_ENGINE = {"translate", "generate", "classify", "label", "embed", "rank", "answer"}
"""The commands that CTranslate2 may answer, and JAX as fast without a second start."""


def program(words: Sequence[str] | None = None) -> None:
    """Runs the whole process; Ctrl-C ends it without a line, at once while it starts, later by an exception."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not may_need_no_jax(sys.argv[1:] if words is None else words):
        keep_memory()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked by `keep_memory`
    gc.set_threshold(NEW_OBJECTS)
    from flaxformer_lite.base.programs import keep_programs
    from flaxformer_lite.cli.main import main

    keep_programs(os.environ)
    sys.excepthook, sys.unraisablehook = report_uncaught, report_ignored
    logging.getLogger("asyncio").addFilter(is_news)
    warnings.filterwarnings("ignore", r"coroutine '.*' was never awaited", RuntimeWarning)  # of a save that failed
    with watching_ctrl_c():
        try:
            main(words)
        except SystemExit as end:
            leave(end)


@contextlib.contextmanager
def watching_ctrl_c() -> Iterator[None]:
    """Within it, `tell_of_ctrl_c` waits for Ctrl-C."""
    numbers, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    ended = threading.Event()
    threading.Thread(target=tell_of_ctrl_c, args=(numbers, ended), daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def leave(end: SystemExit) -> None:
    """Ends the process at once after Ctrl-C, or a failure beside other processes. Raises: `end` otherwise."""
    from flaxformer_lite.cli.main import INTERRUPTED

    jax = sys.modules.get("jax")
    is_one_of_several = jax is not None and jax.distributed.is_initialized()
    if end.code != INTERRUPTED and not (end.code and is_one_of_several):
        raise end
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError):
            stream.flush()
    # Python's own end would crash what JAX is computing, and wait for the other processes of a run.
    os._exit(int(str(end.code)))


def tell_of_ctrl_c(numbers: int, ended: threading.Event) -> None:
    """Writes a line if the command goes on a second after Ctrl-C: while a program compiles, Python calls no handler."""
    from flaxformer_lite.base.console import note

    while os.read(numbers, 1) != bytes([signal.SIGINT]):
        pass
    if not ended.wait(1):
        note("stopping after what is in progress: a step, a save, or a program that is compiled")


def report_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an uncaught exception, but for those that `comes_too_late`."""
    if not comes_too_late(error):
        sys.__excepthook__(kind, error, trace)


def comes_too_late(error: BaseException | None) -> bool:
    """Returns whether TensorStore's threads or the end of asyncio raised it after a save or restore whose failure is reported."""
    closed = type(error) is RuntimeError and str(error) == "Event loop is closed"
    return closed or (type(error) is AttributeError and "'_ssock'" in str(error))


def is_news(record: logging.LogRecord) -> bool:
    """Returns False for asyncio's logs of failed arrays of a save: the save itself reports the first failure."""
    message = record.getMessage()
    of_a_save = (
        message.startswith("_GatheringFuture") or "orbax" in message
    )  # in the path of the code or the checkpoint
    return not (of_a_save and "exception was never retrieved" in message)


def report_ignored(ignored: "sys.UnraisableHookArgs") -> None:
    """Prints an exception that Python ignores where it was raised; Ctrl-C comes again there, a moment later.

    JAX has a callback of the garbage collector in which it would be lost.
    """
    if ignored.exc_type is KeyboardInterrupt:
        again = threading.Timer(0.02, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT])
        again.daemon = True
        again.start()
    elif not comes_too_late(ignored.exc_value):
        sys.__unraisablehook__(ignored)


def may_need_no_jax(words: Sequence[str]) -> bool:
    """Returns whether CTranslate2 may answer a command: a second start would be a tenth of its time, and JAX answers as fast."""
    return bool(BY_ENGINE & {*words}) and "jax" not in words and importlib.util.find_spec("ctranslate2") is not None


def keep_memory() -> None:
    """Starts the process once more with an allocator that keeps memory, unless `GLIBC_TUNABLES` says something about it.

    Without it a train step on a CPU gets its arrays from the kernel each time, cleared page by page: docs/training.md has the
    figures. Changes nothing without glibc 2.35 or later, and under a debugger.
    """
    tunables = os.environ.get(TUNABLES, "")
    if "glibc.malloc." in tunables or sys.gettrace() is not None or not sys.executable or not has_tunables():
        return
    os.environ[TUNABLES] = ":".join(filter(None, [tunables, KEEP]))
    # The new process is interrupted once it has come so far again: Python itself would print a traceback while it starts.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    with contextlib.suppress(OSError):  # then it goes on as it is
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def has_tunables() -> bool:
    """Returns whether the C library is a glibc that takes such a threshold for `mmap` (from 2.35)."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return name == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 35)
    except (AttributeError, OSError, ValueError):  # not Linux, or not glibc
        return False
