"""The frame around every command: help, mistakes, what the machine refuses; each in one line, and without JAX if possible."""

import errno
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite import interop
from flaxformer_lite.base.console import LOGGER
from flaxformer_lite.base.hardware import has_nvidia_device
from flaxformer_lite.cli.commands import export
from flaxformer_lite.cli.main import COMMANDS
from flaxformer_lite.cli.options import SYSTEMS
from flaxformer_lite.tasks import TASK_FOLDERS
from tests.support.commands import Command
from tests.support.experiments import tiny_config, with_train, write_config_file
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."),
            "allocating 9 bytes.): give shorter texts",
        ),
        (MemoryError(), "error: not enough memory (the system gives no more): give shorter texts"),
        (RuntimeError("can't start new thread"), "no more threads: raise `ulimit -v`"),
        (
            RuntimeError(
                "Unable to initialize backend 'rocm': it is none of:\n['cpu', 'tpu']. (set JAX_PLATFORMS='' to …)"
            ),
            "error: JAX_PLATFORMS is cuda: Unable to initialize backend 'rocm': it is none of: ['cpu', 'tpu']. (set",
        ),
        (
            AssertionError(),
            "error: JAX_PLATFORMS is cuda, and this machine shows no NVIDIA GPU: unset it, or set it to cpu",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "error: No space left on device"),
        (PermissionError(errno.EACCES, "Permission denied", "a/b"), "error: a/b: Permission denied"),
    ],
)
def test_what_the_machine_refuses_is_one_line(error: Exception, words: str, command: Command, monkeypatch):
    def failing(path: str, **weights: str) -> None:
        raise error

    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr("flaxformer_lite.base.hardware.has_nvidia_device", lambda: False)
    monkeypatch.setattr("flaxformer_lite.run.run.load", failing)
    assert words in command.mistake("translate", "run", stdin=b"a\n")


@pytest.mark.slow
@pytest.mark.parametrize("platforms", ["cuda", "nowhere", "cpu,nowhere"])
def test_devices_that_are_not_there_are_one_line(platforms: str, tmp_path: Path):
    """Real processes, on a machine without a GPU; `doctor` says what is wrong with status 1."""
    if platforms == "cuda" and has_nvidia_device():
        pytest.skip("there is an NVIDIA GPU")
    environment = os.environ | {"JAX_PLATFORMS": platforms}
    for words, status in ((["doctor"], 1), (["train", "quickstart", "--workdir", str(tmp_path / "run")], 2)):
        command = [sys.executable, "-m", "flaxformer_lite", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
        said = (done.stdout if words == ["doctor"] else done.stderr).splitlines()
        assert done.returncode == status and "Traceback" not in done.stderr
        assert [line for line in said if "JAX_PLATFORMS" in line and platforms.split(",")[-1] in line] and len(
            done.stderr.splitlines()
        ) < 2


def test_every_command_has_a_file_and_the_help_lists_it(command):
    files = {path.stem for path in (ROOT / "flaxformer_lite" / "cli" / "commands").glob("*.py")}
    files -= {"__init__", "task"}
    assert {file for name, file in COMMANDS.items() if name not in TASK_FOLDERS} == files
    out, err = command("--help")
    assert not err
    listed = dict(line.split(maxsplit=1) for line in out.split("commands:\n")[1].splitlines()[: len(COMMANDS)])
    for name in COMMANDS:
        out, err = command(name, "--help")
        assert not err and listed[name] in out.split("\n\n")[1]


def test_help_has_its_text_in_a_python_that_drops_docstrings():
    said = subprocess.run(
        [sys.executable, "-OO", "-m", "flaxformer_lite", "doctor", "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert "Shows whether JAX uses this machine's devices" in said.stdout and said.returncode == 0


def test_the_version_is_the_packages(command: Command):
    assert command("--version") == (f"flaxformer-lite {flaxformer_lite.__version__}\n", "")


def test_quiet_is_said_for_one_command(command: Command):
    assert command("configs", "--quiet") and not LOGGER.isEnabledFor(logging.INFO)
    assert command("configs") and LOGGER.isEnabledFor(logging.INFO)


def test_rows_of_a_training_are_json_lines_on_stdout(command: Command, monkeypatch: pytest.MonkeyPatch):
    rows = [{"step": 1, "split": "train", "loss": 0.5}, {"step": 1, "split": "eval", "note": "ü"}]
    monkeypatch.setattr(
        "flaxformer_lite.training.loop.train",
        lambda config, workdir, hooks, **_: [hook.on_row(None, row) for hook in hooks for row in rows],
    )
    out, err = command("train", "quickstart", "--workdir", "run", "--json")
    assert (err, [json.loads(line) for line in out.splitlines()]) == ("", rows)


def test_help_and_mistakes_of_every_command_need_no_jax():
    """A real process, for help of all and of each command, a wrong option of each, no and an unknown command, a missing word."""
    code = "import sys; from flaxformer_lite.cli.main import COMMANDS, main\n"
    code += "helps, mistakes = [['--help']], [[], ['trin'], ['train']]\n"
    code += "for name in COMMANDS: helps.append([name, '--help']); mistakes.append([name, '--wrong'])\n"
    code += "for words in helps + mistakes:\n"
    code += (
        "    try: main(words)\n    except SystemExit as end: assert (end.code or 0) == 2 * (words in mistakes), words\n"
    )
    code += "    assert 'jax' not in sys.modules, words"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr.count("error: ") == len(COMMANDS) + 3, done.stderr


def test_names_that_the_help_has_without_jax_are_those_there_are():
    assert tuple(sorted(interop.SYSTEMS)) == SYSTEMS
    assert ", ".join(interop.FAMILIES) == export.FAMILIES


def test_the_package_has_what_it_names():
    assert {getattr(flaxformer_lite, name).__name__ for name in flaxformer_lite.__all__} == {*flaxformer_lite.__all__}
    assert {*flaxformer_lite.__all__, "__version__"} == {*dir(flaxformer_lite)}  # which is what a notebook completes
    with pytest.raises(AttributeError, match="has no attribute 'lod'"):
        getattr(flaxformer_lite, "lod")  # noqa: B009


TRAINING = """\
N training pairs in N batches an epoch, N shapes, N% padding
N parameters on N DEVICE
step N epoch N loss N N tokens/s rate N
step N eval accuracy N loss N perplexity N * best so far

all N steps are done; --train.steps can be raised to train on.
 last (step N): accuracy N, loss N, perplexity N
 best (step N): accuracy N, loss N, perplexity N
 commands use weights 'last': step N, also the best by loss
 the run is in RUN: metrics.jsonl, samples/, checkpoints/
 use it: flaxformer-lite translate RUN
 look at it: flaxformer-lite inspect RUN
"""
NUMBERS_AND_NAMES = {r"\d+([.,]\d+)*(e[-+]\d+)?": "N", " +": " ", r"(cpu|gpu|tpu) devices?.*": "DEVICE"}


@pytest.mark.slow  # CI runs it where libtpu is installed
def test_no_library_writes_to_the_stderr_of_who_did_nothing_wrong(tmp_path):
    """Real processes that choose their device by themselves: a training, and translations with its run, also from Python."""
    config = with_train(tiny_config(), steps=1, eval_every=1, checkpoint_every=1, log_every=1, text_metrics=())
    path, folder = write_config_file(tmp_path / "tiny.json", config), tmp_path / "run"
    kept = {k: v for k, v in os.environ.items() if not k.startswith("TPU_") and k not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    kept |= {"JAX_COMPILATION_CACHE_DIR": os.environ["FLAXFORMER_LITE_TEST_CACHE"]}

    def typed(*words: str | Path, stdin: str = "") -> tuple[int, str, str]:
        command = [sys.executable, "-m", "flaxformer_lite", *map(str, words)]
        done = subprocess.run(command, env=kept, cwd=ROOT, input=stdin, text=True, capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr

    status, out, err = typed("train", path, "--workdir", folder)
    assert (status, out) == (0, "")
    err = re.sub(r"(?m)^[a-z]+: [\d,]+/.*\n", "", err)  # how far it is, every 30 seconds of a slow machine
    err = re.sub(r"attention is computed by .*\n", "", err)  # where the device leaves a choice; a CPU has none
    for pattern, word in NUMBERS_AND_NAMES.items():
        err = re.sub(pattern, word, err.replace(str(folder), "RUN"))
    assert err == TRAINING
    status, out, err = typed("translate", folder, "--engine", "jax", stdin="20 nov 2026\n")
    assert (status, out.count("\n"), err) == (0, 1, "")
    code = f"import flaxformer_lite.config; flaxformer_lite.load({str(folder)!r}).translate(['20 nov 2026'])"
    done = subprocess.run([sys.executable, "-c", code], env=kept, cwd=ROOT, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
