"""Oracle: what a real bash completes with the script, worked by hand for a few words."""

import subprocess
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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ev", "evaluate"),
        ("train quick", "quickstart"),
        ("train quickstart --train.ste", "--train.steps"),
        ("train quickstart --model.attention.num-kv", "--model.attention.num-kv-heads"),
        ("train --sw", "--sweep-index"),
        ("--quiet translate --ensem", "--ensemble"),
        ("translate --imp", "--import"),
        ("translate nothing", ""),
    ],
)
def test_bash_completes_commands_configs_options_and_settings(bash: Path, words: str, expected: str):
    line = f"COMP_WORDS=(flaxformer-lite {words}); COMP_CWORD={len(words.split())}; _flaxformer_lite; echo ${{COMPREPLY[*]}}"
    found = subprocess.run(["bash", "-c", f"source {bash}; {line}"], capture_output=True, text=True, check=True)
    assert (found.stdout.strip(), found.stderr) == (expected, "")


def test_the_other_shells_have_the_same_words(bash: Path):
    zsh, fish = script("zsh"), script("fish")
    assert zsh.startswith("#compdef flaxformer-lite\n") and bash.read_text().rstrip("\n") in zsh
    for name in COMMANDS:
        assert f"-n __fish_use_subcommand -f -a {name} -d '" in fish
    assert "'__fish_seen_subcommand_from train' -l train.steps\n" in fish
    assert all(line.startswith("complete -c flaxformer-lite -n ") for line in fish.splitlines())


def test_a_completed_setting_is_one_that_a_config_takes():
    """Law: the settings of a config, typed with its own values, change nothing."""
    options, config = setting_options(), load_config("quickstart")
    assert "--train.mesh.data" in options and len(options) > 100
    typed = ["--train.steps", str(config.train.steps), "--model.d-model", str(config.model.d_model)]
    assert load_config("quickstart", typed) == config and set(typed[::2]) <= set(options)
