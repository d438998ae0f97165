"""Laws of a process that starts once more to keep memory: only with glibc, once, with its words; and of its cache."""

import asyncio
import gc
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from flaxformer_lite.cli import process
from flaxformer_lite.cli.process import (
    KEEP,
    has_tunables,
    keep_memory,
    may_need_no_jax,
    report_ignored,
    report_uncaught,
)
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("libc", "expected"),
    [("glibc 2.35", True), ("glibc 3.1", True), ("glibc 2.34", False), ("musl 2.36", False), (None, False)],
)
def test_memory_is_kept_by_a_glibc_that_can(monkeypatch: pytest.MonkeyPatch, libc: str | None, expected: bool):
    monkeypatch.setattr(os, "confstr", lambda name: libc)
    assert has_tunables() is expected


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The words with which processes are started in place of this one."""
    words: list[list[str]] = []
    monkeypatch.setattr(process, "has_tunables", lambda: True)
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, signals: None, raising=False)
    monkeypatch.setattr(os, "execv", lambda path, all: words.append([path, *all]))
    return words


@pytest.mark.parametrize("before", ["", "glibc.rtld.optional_static_tls=512"])
def test_it_starts_once_and_keeps_what_the_user_has_set(
    monkeypatch: pytest.MonkeyPatch, started: list[list[str]], before: str
):
    monkeypatch.setenv("GLIBC_TUNABLES", before)
    keep_memory()
    keep_memory()
    assert started == [[sys.executable, sys.executable, *sys.orig_argv[1:]]]
    assert os.environ["GLIBC_TUNABLES"] == ":".join(filter(None, [before, KEEP]))


def test_who_refuses_or_debugs_is_left_alone(monkeypatch: pytest.MonkeyPatch, started: list[list[str]]):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=4")
    keep_memory()
    monkeypatch.delenv("GLIBC_TUNABLES")
    monkeypatch.setattr(sys, "gettrace", lambda: print)
    keep_memory()
    assert not started


@pytest.mark.skipif(not has_tunables(), reason="this system has no glibc from 2.35 on")
def test_a_real_process_keeps_its_number_its_words_and_its_input():
    code = (
        "import os, sys; from flaxformer_lite.cli.process import keep_memory; print(os.getpid(), flush=True); "
        "keep_memory(); print(os.environ['GLIBC_TUNABLES'], sys.argv[1:], sys.stdin.read())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    answer = subprocess.run(
        [sys.executable, "-c", code, "a b", "--c"], input="line", env=environment, capture_output=True, text=True
    )
    first, second, last = answer.stdout.splitlines()
    assert (first, answer.stderr) == (second, "")
    assert last == f"{KEEP} ['a b', '--c'] line"


def test_threads_that_come_too_late_after_a_failed_save_print_nothing(capsys: pytest.CaptureFixture) -> None:
    """TensorStore calls the hook from a thread for each array of a checkpoint that a full disk cut short."""
    report_uncaught(RuntimeError, RuntimeError("Event loop is closed"), None)
    for error in (RuntimeError("Event loop is closed"), AttributeError("a loop has no attribute '_ssock'")):
        report_ignored(SimpleNamespace(exc_type=type(error), exc_value=error))  # type: ignore[arg-type]
    assert capsys.readouterr().err == ""
    report_uncaught(RuntimeError, RuntimeError("another"), None)
    assert capsys.readouterr().err.endswith("RuntimeError: another\n")


@pytest.mark.parametrize("start", [["train.py"], ["-m", "flaxformer_lite"]])
def test_ctrl_c_while_it_starts_once_more_ends_it_without_a_line(start: list[str]):
    """A SIGINT that waits from before the second start ends the process once it handles signals as it wants to."""

    def interrupted() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        os.kill(os.getpid(), signal.SIGINT)

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLIBC_TUNABLES": KEEP}
    process = subprocess.run(
        [sys.executable, *start, "--help"], preexec_fn=interrupted, cwd=ROOT, env=environment, capture_output=True
    )
    assert (process.returncode, process.stdout, process.stderr) == (-signal.SIGINT, b"", b"")


def test_ctrl_c_waits_for_the_second_start(monkeypatch: pytest.MonkeyPatch, started: list[list[str]]):
    masks: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(signal, "pthread_sigmask", lambda how, signals: masks.append((how, signals)))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    keep_memory()
    assert started and masks == [(signal.SIG_BLOCK, [signal.SIGINT])]


def test_ctrl_c_in_a_callback_of_the_garbage_collector_comes_again(capsys: pytest.CaptureFixture) -> None:
    """Python prints an exception there, and goes on; another exception is printed as ever."""

    def interrupted(phase: str, facts: dict[str, int]) -> None:
        gc.callbacks.remove(interrupted)
        raise KeyboardInterrupt

    before, sys.unraisablehook = sys.unraisablehook, report_ignored
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # the workers of the tests ignore it
    gc.collect()
    gc.freeze()  # a collection is over before the signal comes again: it must not come within C++ that swallows exceptions
    gc.callbacks.append(interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            print(gc.collect(0), time.sleep(5))  # the youngest alone: it is over in less than the 20 ms
        assert capsys.readouterr().err == ""
        gc.callbacks.append(lambda phase, facts: gc.callbacks.pop() and 1 / 0)
        gc.collect()
    finally:
        sys.unraisablehook = before
        signal.signal(signal.SIGINT, handler)
        gc.unfreeze()
    assert capsys.readouterr().err.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.slow
def test_ctrl_c_is_answered_while_c_code_computes():
    """A real process. OpenSSL computes for three seconds, as XLA's compiler does, and no handler of Python's runs meanwhile."""
    code = """if True:
        import hashlib, os, signal, threading, time
        from flaxformer_lite.cli import main, process
        def busy(words):
            signal.signal(signal.SIGINT, signal.default_int_handler)
            started, count = time.monotonic(), 10**5
            hashlib.pbkdf2_hmac("sha256", b"", b"", count)
            rounds = int(3 * count / (time.monotonic() - started))
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            hashlib.pbkdf2_hmac("sha256", b"", b"", rounds)
        main.main = busy
        process.program([])
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLIBC_TUNABLES": KEEP}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stderr.startswith("stopping after what is in progress") and "KeyboardInterrupt" in done.stderr


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import flaxformer_lite; looked.clear(); flaxformer_lite.ModelConfig; print(len(looked) < 3)", "True"),
        ("from flaxformer_lite.cli import process; process.program(['--version'])", f"{process.NEW_OBJECTS}"),
    ],
)
def test_imports_do_not_wait_for_looks_for_garbage(code: str, expected: str):
    """Law: the package's own imports have none, and those of a command few; afterwards Python looks again."""
    end = "import atexit, gc; looked = []; gc.callbacks.append(lambda phase, facts: looked.append(phase)); "
    end += "atexit.register(lambda: print(gc.isenabled(), gc.get_threshold()[0])); "
    done = subprocess.run([sys.executable, "-c", end + code], cwd=ROOT, capture_output=True, text=True, check=True)
    first, *_, last = done.stdout.splitlines()
    assert last.startswith("True ") and expected in (first, last.split()[1])


def test_failures_of_a_saves_arrays_are_not_logged_again():
    """Oracle: asyncio's own handler, with the context that a gathered future has when nobody has asked for its exception."""
    loop, heard = asyncio.new_event_loop(), []
    log = logging.getLogger("asyncio")
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign]
    log.addHandler(handler)
    log.addFilter(process.is_news)
    try:
        for name, place in (("_GatheringFuture", "a"), ("Task", "a"), ("Task", "orbax"), ("Future", "12.orbax-tmp")):
            message, future = f"{name} exception was never retrieved", Path("/lib", place, "serialization.py")
            loop.call_exception_handler({"message": message, "exception": ValueError("NOT_FOUND"), "future": future})
    finally:
        log.removeFilter(process.is_news)
        log.removeHandler(handler)
        loop.close()
    (record,) = heard
    assert record.getMessage() == f"Task exception was never retrieved\nfuture: {Path('/lib/a/serialization.py')!r}"


@pytest.mark.parametrize(
    ("words", "installed", "expected"),
    [
        (["translate", "run"], True, True),
        (["generate", "run", "a"], True, True),
        (["--quiet", "translate", "run"], True, True),
        (["translate", "run"], False, False),
        (["translate", "run", "--engine", "jax"], True, False),
        (["train", "config.py"], True, False),
    ],
)
def test_an_answer_that_may_need_no_jax_starts_once(
    words: list[str], installed: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    assert may_need_no_jax(words) is expected
