"""Which engine answers a command, and the line that says so. Oracle: the options by hand."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flaxformer_lite.cli import engines
from flaxformer_lite.cli.commands import translate
from flaxformer_lite.cli.options import run_by_engine, typed_settings
from flaxformer_lite.engine import engine_run, rules
from flaxformer_lite.engine.rules import CannotAnswer
from tests.support.engine_runs import write_random_run

FOUND = SimpleNamespace(origin=[(6, "", "")])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def chosen(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Types options of `translate RUN` and gives the engine, and what is written; a machine with a CPU and CTranslate2."""
    monkeypatch.setattr(rules, "is_installed", lambda: True)
    monkeypatch.setattr(rules, "uses_cpu", lambda: True)
    monkeypatch.setattr(engine_run, "open_engine", lambda wanted, kind: FOUND)

    def typed(*options: str) -> tuple[str, str]:
        import argparse

        parser = argparse.ArgumentParser()
        translate.add_arguments(parser)
        arguments = parser.parse_args([str(folder), *options], argparse.Namespace(imports=[]))
        changed = lambda own: own.changed(typed_settings(arguments))  # noqa: E731
        found = run_by_engine(arguments, functools.partial(engine_run.open_obeying, "Translator", changed))
        assert (found is None) == (arguments.engine != "ctranslate2")
        return arguments.engine, capsys.readouterr().err.strip()

    return typed


def test_auto_takes_ctranslate2_where_it_can_answer(chosen: Any, monkeypatch: pytest.MonkeyPatch):
    assert chosen() == ("ctranslate2", "engine ctranslate2: float32, step 6")
    assert chosen("--weights-dtype", "int8") == ("ctranslate2", "engine ctranslate2: int8, step 6")
    assert chosen("--engine", "jax") == ("jax", "")
    monkeypatch.setattr(rules, "uses_cpu", lambda: False)
    assert chosen() == ("jax", "")
    assert chosen("--engine", "ctranslate2")[0] == "ctranslate2"
    monkeypatch.setattr(rules, "uses_cpu", lambda: True)
    monkeypatch.setattr(rules, "is_installed", lambda: False)
    assert chosen() == ("jax", "")


@pytest.mark.parametrize(
    "options",
    [
        *(["--ensemble", "other"], ["--terms", "file"], ["--placeholders"], ["--prefix", "a"], ["--mesh.tensor", "1"]),
        *(["--minimum-risk", "chrf"], ["--minimum-risk", "chrf", "--samples", "4"], ["--mesh.fsdp", "1"]),
    ],
)
def test_options_that_only_jax_obeys_are_its_own_or_refused(chosen: Any, options: list[str]):
    engine, line = chosen(*options)
    assert engine == "jax" and line.startswith("engine jax: CTranslate2 does not obey --") and options[0] in line
    with pytest.raises(ValueError, match=rf"{options[0]}.*: leave it out, or choose engine jax"):
        chosen("--engine", "ctranslate2", *options)


def test_settings_that_it_does_not_obey_are_known_before_an_export(chosen: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_run, "open_engine", lambda wanted, kind: pytest.fail("an export was made"))
    engine, line = chosen("--beam-size", "3", "--n-best", "2")
    assert engine == "jax" and line.startswith(
        "engine jax: CTranslate2 does not obey decode.num_hypotheses 2 as JAX does"
    )
    with pytest.raises(ValueError, match=r"decode\.num_hypotheses 2"):
        chosen("--weights-dtype", "int8", "--beam-size", "3", "--n-best", "2")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CannotAnswer("CTranslate2 has no such norm"), "CTranslate2 has no such norm"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
    ],
)
def test_an_export_that_fails_leaves_the_answer_to_jax(
    chosen: Any, error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
):
    def fail(wanted: object, kind: str) -> None:
        raise error

    monkeypatch.setattr(engine_run, "open_engine", fail)
    engine, line = chosen()
    assert engine == "jax" and line == f"engine jax: {reason}" and len(line.splitlines()) == 1
    with pytest.raises(type(error)):
        chosen("--engine", "ctranslate2")


def test_a_folder_without_a_run_is_left_to_whom_reads_runs(chosen: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engines, "own_config", lambda run: None)
    assert chosen() == ("jax", "")
    assert chosen("--weights-dtype", "int8") == ("jax", "")


def test_a_mistake_is_told_once_and_by_no_engine(chosen: Any, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match=r"decode\.beam_size is 0"):
        chosen("--beam-size", "0")
    monkeypatch.setattr(
        engine_run, "open_engine", lambda wanted, kind: (_ for _ in ()).throw(ValueError("no such weights"))
    )
    with pytest.raises(ValueError, match="no such weights"):
        chosen("--weights", "average:9")
