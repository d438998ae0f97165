"""Oracle: what a real bash, zsh and fish complete with the script, worked by hand for a few words."""

import os
import pty
import select
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from flaxformer_lite.cli.commands.completion import script, setting_options
from flaxformer_lite.cli.main import COMMANDS
from flaxformer_lite.config import load_config

pytestmark = pytest.mark.slow  # all configs are loaded


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "script"
    path.write_text(script("bash") + "\n")
    return path


COMPLETED = {
    "ev": "evaluate",
    "train quick": "quickstart",
    "train quickstart --train.ste": "--train.steps",
    "train quickstart --model.attention.num-kv": "--model.attention.num-kv-heads",
    "train --sw": "--sweep-index",
    "--quiet translate --ensem": "--ensemble",
    "translate --imp": "--import",
    "translate nothing": "",
    "train quickstart --model.activation r": "relu reglu",
    "train quickstart --objective.kind q": "",
    "train quickstart --train.steps quick": "",
    "train quickstart --data.bucket-lengths 8 quick": "",
    "train quickstart --dry-run quick": "",
    "train --json quick": "quickstart",
    "translate --minimum-risk c": "chrf",
    "translate --beam q": "",
}
"""The words after `flaxformer-lite`, and what the last one becomes."""


@pytest.mark.parametrize(("words", "expected"), COMPLETED.items())
def test_bash_completes_commands_configs_options_and_settings(bash: Path, words: str, expected: str):
    line = f"COMP_WORDS=(flaxformer-lite {words}); COMP_CWORD={len(words.split())}; _flaxformer_lite; echo ${{COMPREPLY[*]}}"
    found = subprocess.run(["bash", "-c", f"source {bash}; {line}"], capture_output=True, text=True, check=True)
    assert (found.stdout.strip(), found.stderr) == (expected, "")


def shell(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize(("words", "expected"), COMPLETED.items())
def test_fish_completes_them_too(words: str, expected: str, tmp_path: Path):
    (tmp_path / "script").write_text(script("fish"))
    line = f"source script; complete -C 'flaxformer-lite {words}'"
    found = subprocess.run(
        [shell("fish"), "--no-config", "-c", line],
        env=os.environ | {"HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    completed = sorted(line.partition("\t")[0] for line in found.stdout.splitlines())
    assert (completed, found.stderr) == (sorted(expected.split()), "")


def read_until(text: str, fd: int) -> str:
    """Returns what a terminal shows up to a text, or in ten seconds."""
    shown, ends = "", time.monotonic() + 10
    while text not in shown and time.monotonic() < ends:
        if select.select([fd], [], [], 0.1)[0]:
            shown += os.read(fd, 65536).decode(errors="replace")
    return shown


@pytest.mark.parametrize("words", ["ev", "train quick", "train quickstart --train.ste", "translate --imp"])
def test_zsh_completes_them_at_the_first_tab(words: str, tmp_path: Path):
    """In a new shell that finds the script in a folder of `fpath`, and loads it when it is asked first."""
    (tmp_path / "_flaxformer-lite").write_text(script("zsh") + "\n")
    environment = os.environ | {"HOME": str(tmp_path), "TERM": "dumb"}
    command = [shell("zsh"), "-f", "-i"]
    fd, terminal = pty.openpty()
    with subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, env=environment, start_new_session=True
    ) as process:
        os.close(terminal)
        try:
            os.write(fd, b"fpath=($PWD $fpath); autoload -Uz compinit; compinit -u -D; PS1='rea''dy: '\n")
            assert "ready: " in read_until("ready: ", fd)
            os.write(fd, f"flaxformer-lite {words}".encode())
            assert words in read_until(words, fd)
            os.write(fd, b"\t")
            rest = COMPLETED[words].removeprefix(words.split()[-1]) + " "
            shown = read_until(rest, fd)
        finally:
            process.kill()  # else it waits for its terminal
    os.close(fd)
    assert shown == rest


def test_the_other_shells_have_the_same_words(bash: Path):
    zsh, fish = script("zsh"), script("fish")
    assert zsh.startswith("#compdef flaxformer-lite\n") and bash.read_text().rstrip("\n") in zsh
    for name in COMMANDS:
        assert f"-n __fish_use_subcommand -f -a {name} -d '" in fish
    assert "'__fish_seen_subcommand_from train' -l train.steps -r\n" in fish
    assert all(line.startswith("complete -c flaxformer-lite -n ") for line in fish.splitlines())


def test_a_completed_setting_is_one_that_a_config_takes():
    """Law: the settings of a config, typed with its own values, change nothing."""
    options, config = setting_options(), load_config("quickstart")
    assert "--train.mesh.data" in options and len(options) > 100
    assert (
        options["--model.activation"]
        and not options["--train.steps"]
        and options["--model.share-source-target"] is None
    )
    typed = ["--train.steps", str(config.train.steps), "--model.d-model", str(config.model.d_model)]
    assert load_config("quickstart", typed) == config and set(typed[::2]) <= set(options)
