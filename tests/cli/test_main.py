"""The frame around every command: help, mistakes, what the machine refuses; each in one line, and without JAX if possible."""

import errno
import importlib
import io
import subprocess
import sys

import pytest

import flaxformer_lite
from flaxformer_lite.cli.main import COMMANDS, main
from tests.support.paths import ROOT


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Types a command, with a line on stdin; returns (exit status, stdout, stderr)."""

    def typed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n"), encoding="utf-8"))
        status = 0
        try:
            main(words)
        except SystemExit as exit:
            status = int(exit.code or 0)
        return status, *capsys.readouterr()

    return typed


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."),
            "allocating 9 bytes.): give shorter texts",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "error: No space left on device\n"),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "error: a/b: Permission denied\n"),
    ],
)
def test_what_the_machine_refuses_is_one_line(error: Exception, words: str, command, monkeypatch):
    def failing(path: str, weights: None) -> None:
        raise error

    monkeypatch.setattr("flaxformer_lite.cli.commands.translate.load", failing)
    status, out, err = command("translate", "run")
    assert (status, out, err.count("\n")) == (2, "", 1) and words in err


def test_every_command_has_a_file_and_the_help_lists_it(command):
    files = {path.stem for path in (ROOT / "flaxformer_lite" / "cli" / "commands").glob("*.py")} - {"__init__"}
    assert set(COMMANDS.values()) == files
    status, out, err = command("--help")
    assert (status, err) == (0, "")
    listed = dict(line.split(maxsplit=1) for line in out.split("commands:\n")[1].splitlines()[: len(COMMANDS)])
    for name, file in COMMANDS.items():
        assert listed[name] == importlib.import_module(f"flaxformer_lite.cli.commands.{file}").__doc__.splitlines()[0]
        assert command(name, "--help")[0] == 0


def test_help_and_mistakes_need_no_jax():
    """A real process, for help of all and of one command, an unknown command and a missing argument."""
    for words, status in ((["--help"], 0), (["train", "--help"], 0), (["trin"], 2), ([], 2), (["train"], 2)):
        code = f"import sys; from flaxformer_lite.cli.main import main\ntry: main({words})\n"
        code += "except SystemExit as end: sys.exit(100 * ('jax' in sys.modules) + (end.code or 0))"
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == status


def test_the_package_has_what_it_names():
    assert {getattr(flaxformer_lite, name).__name__ for name in flaxformer_lite.__all__} == {"Run", "load", "train"}
    with pytest.raises(AttributeError, match="has no attribute 'lod'"):
        flaxformer_lite.lod  # noqa: B018
