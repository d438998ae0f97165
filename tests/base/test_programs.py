"""Where compiled programs are kept, by the environment of a command and from Python."""

import subprocess
import sys
from pathlib import Path

import pytest

from flaxformer_lite.base import programs
from flaxformer_lite.base.programs import keep_programs
from tests.support.paths import ROOT


def test_compiled_programs_are_kept_below_the_users_cache_for_each_kind_of_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folders = []
    for kind in ("x86_64-12345678", "aarch64"):
        monkeypatch.setattr(programs, "cpu_kind", lambda kind=kind: kind)
        environment = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "7"}
        keep_programs(environment)
        assert environment["JAX_COMPILATION_CACHE_MAX_SIZE"] == str(2 * 2**30)
        assert environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "7"
        folders.append(Path(environment["JAX_COMPILATION_CACHE_DIR"]))
    assert folders == [tmp_path / "flaxformer_lite/programs" / kind for kind in ("x86_64-12345678", "aarch64")]
    assert all(folder.is_dir() for folder in folders)


@pytest.mark.parametrize(
    ("seconds", "kept_from"), [({}, "0.3"), ({"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "7"}, "7")]
)
def test_a_folder_of_the_users_choice_stays_without_a_limit_and_keeps_short_programs_too(
    seconds: dict[str, str], kept_from: str
):
    """Oracle: the environment by hand. JAX alone keeps no program that compiles in less than a second."""
    keep_programs(environment := {"JAX_COMPILATION_CACHE_DIR": "", **seconds})
    assert environment == {"JAX_COMPILATION_CACHE_DIR": "", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": kept_from}


def test_a_home_that_cannot_be_written_keeps_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep_programs(environment := {})
    assert "JAX_COMPILATION_CACHE_DIR" not in environment


SCRIPT = """
import jax, jax.numpy as jnp, os, sys
jax.jit(lambda x: x + 1)(1.0)  # before the folder is known
from flaxformer_lite.base.programs import keep_programs_of_python
if sys.argv[1:]:
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
before = dict(os.environ)
for _ in range(2):
    keep_programs_of_python()
assert dict(os.environ) == before
jax.jit(lambda x: jnp.sin(x) * 3)(1.0)
print(jax.config.jax_compilation_cache_max_size)
"""


@pytest.mark.parametrize("own", [False, True])
def test_python_keeps_programs_where_commands_do_or_where_its_user_says(tmp_path: Path, own: bool):
    environment = {
        "PATH": "",
        "XDG_CACHE_HOME": str(tmp_path / "home"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    words = [str(tmp_path / "own")] if own else []
    said = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        env=environment | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    kept = [path.name for path in tmp_path.rglob("jit_*")]
    assert any("lambda" in name for name in kept), said.stderr
    assert (tmp_path / ("own" if own else "home")).exists() and not (tmp_path / ("home" if own else "own")).exists()
    assert said.stdout.split() == ["-1" if own else str(2**31)]
