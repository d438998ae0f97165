"""Law: a run with a class of a config file or a module is read where that file or module was imported, and only there."""

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from flaxformer_lite.base.console import Progress
from flaxformer_lite.cli.main import COMMANDS, READ_NO_RUN, command_of, main
from flaxformer_lite.config import from_json, load_config, outside, to_json
from flaxformer_lite.config.outside import import_options
from flaxformer_lite.training.summary import summarize
from flaxformer_lite.workdir import Checkpoints, RunFolder
from tests.support.experiments import tiny_config

OWN = '''"""A config whose schedule is defined in the file itself."""
import dataclasses
from pathlib import Path
from dataclasses import dataclass
from flaxformer_lite.config.serialize import from_json
from flaxformer_lite.core.optim.schedules import Constant

@dataclass(frozen=True, kw_only=True)
class Mine(Constant):
    twice: bool = False

def get_config():
    config = from_json((Path(__file__).parent / "base.json").read_text())
    return dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, schedule=Mine(peak_rate=0.1)))
'''


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch):
    """Forgets what was imported, as a new process has; afterwards everything is as before."""
    before = set(sys.modules)

    def forget() -> None:
        monkeypatch.setattr(outside, "IMPORTED", {})
        for name in set(sys.modules) - before:
            if name.startswith(("config_", "mine_")):
                del sys.modules[name]

    forget()
    yield forget
    forget()


@pytest.fixture
def run(tmp_path: Path, forget: Callable[[], None]) -> Path:
    """The folder of a run of the config file `own.py` beside it, as a new process finds it."""
    (tmp_path / "base.json").write_text(to_json(tiny_config()))
    (tmp_path / "own.py").write_text(OWN)
    config = load_config(str(tmp_path / "own.py"), ["--train.steps", "15"])
    assert (type(config.optimizer.schedule).__name__, config.train.steps) == ("Mine", 15)
    assert from_json(to_json(config)) == config
    assert import_options(config) == f" --import {tmp_path}/own.py" and import_options(tiny_config()) == ""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(to_json(config))
    forget()
    return tmp_path / "run"


def typed(capsys: pytest.CaptureFixture, *words: object) -> tuple[int, str]:
    """Types a command; returns its status and its last line on stderr."""
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        return int(str(end.code or 0)), capsys.readouterr().err
    return 0, capsys.readouterr().err


def test_a_run_folder_alone_imports_nothing(run: Path, capsys: pytest.CaptureFixture):
    shutil.copy(run.parent / "own.py", run / "own.py")
    status, message = typed(capsys, "inspect", run)
    assert status == 2 and "no imported module config_own_" in message
    assert (
        "add --import FILE.py, any file that has a class Mine, such as the config file own.py; from Python, call "
        in message
    )


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - READ_NO_RUN))
def test_every_command_that_reads_a_run_imports_what_is_named(
    command: str, run: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """The file was renamed: a class of the name in config.json serves."""
    shutil.move(run.parent / "own.py", run.parent / "renamed.py")
    read: list[str] = []

    def reading(arguments: Any) -> None:
        read.append(type(RunFolder(run).config().optimizer.schedule).__module__)

    monkeypatch.setattr(command_of(command), "run", reading)
    words = {
        "export": ["hf", run, "out"],
        "import": ["hf", run, "out"],
        "fit": [run, "rows.csv", "-o", "out"],
        "pair": ["a.en", "a.de", "-o", "out", "--teacher", run],
        "plan": [run, "--topology", "v5e:1x1"],
        "mine": [run, "rows.jsonl", "--corpus", "corpus", "-o", "out.jsonl"],
        "rows": [run, 1],
        "rerun": [run, 1, "--without", 0],
        "sync": [run, "copy"],
        "trim": [run, "--text", "a.txt", "-o", "new"],
        "extend": [run, "new", "--language", "xyz", "--like", "eng", "--pieces", 9, "--from", "new.txt"],
    }
    status, message = typed(capsys, command, *words.get(command, [run]), "--import", run.parent / "renamed.py")
    assert (status, message) == (0, "") and re.fullmatch(r"config_renamed_[0-9a-f]{8}", read[0])


def test_a_run_continues_and_is_planned_with_the_option(run: Path, capsys: pytest.CaptureFixture):
    """From the option to the real commands' reading of config.json; nothing is compiled."""
    words = ["plan", run, "--devices", 1, "--import", run.parent / "own.py"]
    assert typed(capsys, *words) == (0, "")
    status, message = typed(
        capsys, "train", run / "config.json", "--train.steps", "0", "--import", run.parent / "own.py"
    )
    assert status == 2 and "train.steps is 0" in message


def test_a_module_is_imported_by_name_or_by_file(run: Path, capsys, monkeypatch: pytest.MonkeyPatch):
    folder = run.parent / "elsewhere"
    folder.mkdir()
    shutil.move(run.parent / "own.py", folder / "mine_schedules.py")
    (run / "config.json").write_text(re.sub(r"config_own_\w+:", "mine_schedules:", (run / "config.json").read_text()))
    words = ["plan", run, "--devices", 1, "--import"]
    status, message = typed(capsys, *words[:-1])
    assert status == 2 and "or --import mine_schedules; from Python, call load_config(FILE.py) or import the" in message
    status, message = typed(capsys, *words, "mine_schedules")
    assert status == 2 and "--import mine_schedules: No module named 'mine_schedules'; name its file, or" in message
    monkeypatch.syspath_prepend(folder)
    assert typed(capsys, *words, "mine_schedules") == (0, "")
    assert import_options(RunFolder(run).config()) == " --import mine_schedules"


def test_mistakes_in_what_is_imported_are_one_line(run: Path, capsys: pytest.CaptureFixture):
    (run.parent / "half_done.py").write_text("x = 1\n1 / 0\n")
    for name, words in (
        ("none.py", "there is no file "),
        ("half_done.py", "half_done.py, line 2: ZeroDivisionError: "),
    ):
        status, message = typed(capsys, "generate", run, "--import", run.parent / name)
        assert (status, message.count("\n")) == (2, 1) and words in message
    assert not [name for name in sys.modules if name.startswith("config_half_done_")]


def test_files_of_one_name_are_two_modules(run: Path):
    other = run.parent / "other" / "own.py"
    other.parent.mkdir()
    shutil.copy(run.parent / "base.json", other.parent)
    other.write_text(OWN.replace("twice: bool = False", "thrice: bool = True"))
    first, second = load_config(str(run.parent / "own.py")), load_config(str(other))
    for config, field in ((first, "twice"), (second, "thrice")):
        assert hasattr(from_json(to_json(config)).optimizer.schedule, field)
    with pytest.raises(
        ValueError, match=r"own\.py and .*/other/own\.py each have a class Mine: import only one of them$"
    ):
        from_json(re.sub(r"config_own_\w+:", "config_own:", to_json(first)))


def test_the_end_of_the_training_prints_commands_with_the_option(run: Path):
    config, progress, checkpoints = load_config(str(run.parent / "own.py")), Mock(Progress), Mock(Checkpoints)
    checkpoints.latest.return_value = checkpoints.best.return_value = None
    summarize(config, RunFolder(run), checkpoints, "all 15 steps are done", progress)
    printed = re.findall(r"flaxformer-lite (.*)", progress.say.call_args.args[0])
    assert printed == [f"{command} {run} --import {run.parent}/own.py" for command in ("translate", "inspect")]
