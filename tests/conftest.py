"""What holds for every test: eight virtual CPU devices for the mesh laws, a compiler that saves its own time, one cache.

Nothing here runs long enough to be worth optimising, so programs (also those of commands that tests start) are compiled as
they stand. `JAX_DISABLE_MOST_OPTIMIZATIONS=0 pytest` tests with the compiler as users have it and takes about twice as long.
"""

import functools
import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from jaxlib.version import __version_info__ as version_info

os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # libtpu, which is installed for its compiler, would look for a TPU
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1":
    os.environ["XLA_FLAGS"] += " --xla_cpu_parallel_codegen_split_count=1"
    if version_info < (0, 11, 0):
        # The older code generator, which later versions lost: a small model's gradient compiles in 0.7 s instead of 2.1 s.
        # With optimisations it would take more than twice as long as the newer one.
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

import jax
import pytest
from jax._src.interpreters import mlir
from jax._src.lru_cache import LRUCache

import tests.support.type_checks  # noqa: F401  # before any module that it checks
from tests.support.experiments import use_one_device
from tests.support.quick import mark_rare

if TYPE_CHECKING:
    from tests.support.commands import Command


def put_whole(cache: LRUCache, key: str, value: bytes) -> None:
    """Writes a compiled program where no other worker sees a part of it."""
    part = cache.path / f"{key}.{os.getpid()}"
    part.write_bytes(value)
    part.replace(cache.path / f"{key}-cache")


if not hasattr(jax, "enable_x64"):  # its name before JAX 0.8
    jax.enable_x64 = getattr(jax.experimental, "enable_x64")  # noqa: B009
if hasattr(mlir, "make_ir_context"):
    # Each program is lowered in a context of its own, which takes 9 ms to make: a quarter of the time of one operation.
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)
LRUCache.put = put_whole  # type: ignore[method-assign]  # JAX writes into the file itself, of which another worker reads a part
gc.set_threshold(20_000, 20, 20)  # Python's own looks at each 700 new objects take a tenth of the time of tracing

CACHE = "FLAXFORMER_LITE_TEST_CACHE"
"""Names the environment variable with the folder of compiled programs: one for all workers, kept where the caller sets it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--skipped-before", metavar="FILE", help="mark the tests that a run with --list-skipped FILE skipped"
    )
    parser.addoption("--list-skipped", metavar="FILE", help="write the names of the tests that are skipped")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Lists what was skipped, of all workers."""
    if file := config.getoption("--list-skipped"):
        names = [report.nodeid for report in terminalreporter.stats.get("skipped", [])]
        Path(file).write_text("\n".join(names), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the folder of compiled programs, before any worker starts, unless the caller named one."""
    if CACHE not in os.environ:
        os.environ[CACHE] = tempfile.mkdtemp(prefix="flaxformer-lite-tests-")
        config.add_cleanup(functools.partial(shutil.rmtree, os.environ[CACHE], ignore_errors=True))
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ[CACHE]  # for the commands that tests start
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"  # most of theirs take less than JAX's usual second
    jax.config.update("jax_compilation_cache_dir", os.environ[CACHE])
    jax.config.update(
        "jax_persistent_cache_min_compile_time_secs", 0
    )  # one operation too: a third of all time is theirs


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what CI leaves out, and puts the folders first whose files take longest: the workers then end at the same time.

    It comes before pytest's own selection by marks.
    """
    mark_rare(items)
    if file := config.getoption("--skipped-before"):
        skipped = {*Path(file).read_text(encoding="utf-8").split("\n")}
        for item in items:
            if skipped & {item.nodeid, item.nodeid.partition("::")[0]}:
                item.add_marker("skipped")
    items.sort(key=lambda item: item.path.parent.name not in ("training", "multihost", "run", "laws"))


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from what the imports made, for the whole run: half of its time goes into that."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are trained and loaded on the first device alone."""
    use_one_device(monkeypatch)


@pytest.fixture
def own_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches and predictors are made anew: a test that counts programs, or asks another platform, shares none with others."""
    from flaxformer_lite.core.search import decoder
    from flaxformer_lite.tasks import jax_model

    for module, name in ((decoder, "search_of"), (decoder, "copies_of"), (jax_model, "bound_predictor")):
        monkeypatch.setattr(module, name, getattr(module, name).__wrapped__)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> "Command":
    from tests.support.commands import Command

    return Command(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def jax_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX answers where no engine is named, as without CTranslate2; `tests/engine` has what that answers."""
    monkeypatch.setattr("flaxformer_lite.engine.rules.is_installed", lambda: False)


@pytest.fixture(scope="module")
def float64() -> Iterator[None]:
    """64-bit numbers for a whole file."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def talkative() -> None:
    """Notes are written, whatever a command of another test was told."""
    logging.getLogger("flaxformer_lite").setLevel(logging.INFO)
