"""The process of a command: its memory pages, Ctrl-C while it starts, and its end.

Imports nothing heavy by itself: the process may start once more, and that costs what was imported before.
"""

import contextlib
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import MutableMapping, Sequence
from types import TracebackType

HUGE_PAGES = "glibc.malloc.hugetlb"
"""The tunable of glibc's memory allocator that asks the kernel for huge pages; glibc reads it when a process starts."""
PAGES_SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"
"""The kernel's setting; "madvise" in brackets: huge pages are for programs that ask for them."""


def program(words: Sequence[str] | None = None) -> None:
    """Runs the whole process; Ctrl-C ends it without a line, at once while it starts, later by an exception."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    use_huge_pages()
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked by `use_huge_pages`
    from flaxformer_lite.cli.main import INTERRUPTED, main

    keep_programs(os.environ)
    sys.excepthook, sys.unraisablehook = report_uncaught, report_ignored
    logging.getLogger("asyncio").addFilter(is_news)
    warnings.filterwarnings("ignore", r"coroutine '.*' was never awaited", RuntimeWarning)  # of a save that failed
    try:
        main(words)
    except SystemExit as end:
        jax = sys.modules.get("jax")
        is_one_of_several = jax is not None and jax.distributed.is_initialized()
        if end.code != INTERRUPTED and not (end.code and is_one_of_several):
            raise
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, AttributeError):
                stream.flush()
        # Python's own end would crash what JAX is computing, and wait for the other processes of a run.
        os._exit(int(end.code))


def report_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an uncaught exception, but for those that `comes_too_late`."""
    if not comes_too_late(error):
        sys.__excepthook__(kind, error, trace)


def comes_too_late(error: BaseException | None) -> bool:
    """Returns whether TensorStore's threads or the end of asyncio raised it after a save or restore whose failure is reported."""
    closed = type(error) is RuntimeError and str(error) == "Event loop is closed"
    return closed or (type(error) is AttributeError and "'_ssock'" in str(error))


def is_news(record: logging.LogRecord) -> bool:
    """Returns whether asyncio logs anything but the failures of a save's arrays, of which the save reports the first one."""
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


def use_huge_pages() -> None:
    """Starts the process once more with huge pages for its arrays, unless `GLIBC_TUNABLES` says something about them.

    Without them a train step on a CPU takes new pages of 4 KiB for its arrays each time: docs/training.md has the figures.
    `GLIBC_TUNABLES=glibc.malloc.hugetlb=0` refuses. Changes nothing on systems without them, and under a debugger.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if HUGE_PAGES in tunables or sys.gettrace() is not None or not sys.executable or not has_huge_pages():
        return
    os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, [tunables, f"{HUGE_PAGES}=1"]))
    # The new process is interrupted once it has come so far again: Python itself would print a traceback while it starts.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    with contextlib.suppress(OSError):  # then it goes on as it is
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def has_huge_pages() -> bool:
    """Returns whether the kernel has huge pages for programs that ask, and the C library is a glibc that asks (from 2.35)."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        with open(PAGES_SETTING, encoding="ascii") as file:
            on_request = "[madvise]" in file.read()
        return on_request and name == "glibc" and tuple(map(int, version.split(".")[:2])) >= (2, 35)
    except (AttributeError, OSError, ValueError):  # not Linux, not glibc, or no such setting
        return False


def keep_programs(environment: MutableMapping[str, str]) -> None:
    """Sets a folder of the user's where JAX keeps compiled programs for the next start, unless `JAX_COMPILATION_CACHE_DIR` is set.

    Must be called before JAX is imported. Each kind of CPU has its own folder, since a program for one may not run on another.
    JAX removes what was not used longest; several processes may share the folder. `JAX_ENABLE_COMPILATION_CACHE=0` keeps none.
    """
    from flaxformer_lite.base.hardware import cpu_kind
    from flaxformer_lite.base.remote_files import cache_root

    if "JAX_COMPILATION_CACHE_DIR" in environment:
        return
    folder = cache_root() / "programs" / cpu_kind()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if os.access(folder, os.W_OK):
        environment["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        environment.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(2**31))  # bytes, for each kind of CPU
        environment.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")  # JAX itself says 1
