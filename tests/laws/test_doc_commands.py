"""Law: the commands in README.md and docs/ run as they stand there.

All of them are parsed by the parser of their command, and their settings read into a config. `-m slow` runs them on toy runs in a
folder of its own; those that this machine cannot run are in `NOT_RUN`, with the reason.
"""

import argparse
import dataclasses
import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flaxformer_lite
from flaxformer_lite.cli import main as cli
from flaxformer_lite.config import Config, load_config
from tests.support import needs
from tests.support.doc_commands import PAGES, DocCommand, commands_of, python_blocks
from tests.support.experiments import use_one_device
from tests.support.paths import ROOT

COMMANDS = {str(page.relative_to(ROOT)): list(dict.fromkeys(commands_of(page))) for page in PAGES}
COMMANDS = {page: commands for page, commands in COMMANDS.items() if commands}

LIKE_QUICKSTART = ("CONFIG", "CONFIG.py", "RUN/config.json", "runs/mine/config.json", "configs/mine.py", "my_config.py")
STAND_IN = dict.fromkeys((*LIKE_QUICKSTART, "prefix.py", "sentiment.py", "xyz.py"), "quickstart")
STAND_IN |= dict.fromkeys(("runs/en-de/config.json", "mine.py"), "multi30k_en_de_raw")
STAND_IN |= dict.fromkeys(("chats.py", "llama_1b.py"), "llama_1b")
"""Config files that a page describes and the repository does not have, and one that takes the same settings."""

WORDS = {"RUN": "runs/quickstart", "STEP": "2", "ROW": "1", "SYSTEM": "paddle", "S": "1", "$i": "0", "ID": "mit"}
WORDS |= {"FAMILY": "marian"}
"""Words in capitals that stand for a value, and a value."""


class Parsed(Exception):
    """Ends a command once it is parsed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments


def stop(arguments: argparse.Namespace) -> None:
    raise Parsed(arguments)


def parsed(command: DocCommand, monkeypatch: pytest.MonkeyPatch) -> tuple[argparse.Namespace, bool]:
    """Returns the arguments that a command was called with, and whether its options are settings too."""
    words = [WORDS.get(word, word) for word in command.words if word not in ("--help", "overrides")]
    module = cli.command_of(words[0])
    monkeypatch.setattr(module, "run", stop)
    monkeypatch.setattr(cli, "import_typed", lambda arguments: None)
    with pytest.raises(Parsed) as found:
        cli.main(words)
    return found.value.arguments, hasattr(module, "TAKES_SETTINGS")


def check(command: DocCommand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises: ValueError or SystemExit if a command, an option, a setting or a config file does not exist."""
    arguments, takes_settings = parsed(command, monkeypatch)
    named = getattr(arguments, "config", "quickstart")  # of `fit`, the settings of any config
    config = STAND_IN.get(named or "", named)
    monkeypatch.chdir(ROOT)
    if takes_settings:
        load_config(str(config), arguments.flags)


@pytest.mark.parametrize("page", COMMANDS)
def test_every_command_is_one_with_its_options_and_settings(page: str, monkeypatch: pytest.MonkeyPatch):
    for command in COMMANDS[page]:
        try:
            check(command, monkeypatch)
        except (ValueError, SystemExit) as error:
            pytest.fail(f"{page}: {command.text}: {error}")


@pytest.mark.parametrize(
    "words",
    [
        "train quickstart --train.stops 3",
        "translate RUN --beams 4",
        "plan bert_base --topology v5e:1x1 --model.dtyp float32",
    ],
)
def test_a_wrong_option_is_found(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    with pytest.raises((ValueError, SystemExit)):
        check(DocCommand("README.md", f"flaxformer-lite {words}"), monkeypatch)


# Running them ---------------------------------------------------------------------------------------------------------

OF_THE_HUB = r"ORG/N|google-bert|facebook/|--push"
NOT_RUN = {
    OF_THE_HUB: "needs the hub; tests/interop/test_hub.py runs it against a server on this machine",
    r"(gs|s3)://": "needs a bucket; tests/training/test_runs_in_buckets.py trains in a store of files",
    r"/content/|/shared/": "names a folder of Colab or of a cluster; the same command with a local folder is run",
    r"--topology|--devices": "compiles or lays out a model of full size; tests/tools/planning runs it on small ones",
    r" (mine|rank|label|answer) |--search|search_topics|label_code_names": "needs a run that does it, with its "
    "data; tests/tools/search, tests/tasks/test_rank.py, test_label.py and test_answer.py run it",
    r"planted_errors|(read|rate)_translations": "needs Multi30k; tests/laws/test_recipes.py runs it on small files",
    r"--coordinator": "needs several processes; tests/training/multihost runs them",
    r"(configs|runs)/(multi30k|llama)": "trains for an hour or needs data; tests/laws/test_contracts.py lowers its step",
    r"mine\.py --(model|workdir|train)|data/multi30k|runs/mine-0": "reads files of the reader; tests/data and tests/config run it",
    r"\bfit |runs/(reviews|docstrings)": "reads files of the reader; tests/tools/fit/test_fit.py runs it",
    r"\bpair |runs/en-de|runs/longer": "reads files of the reader; tests/tools/pair/test_pair.py runs it",
    r"metricx|comet|runs/ours": "needs a metric's checkpoint; tests/tasks/test_rate.py and tests/cli/test_scoring.py run it",
    r"my_config\.py": "is the example of that page; tests/config/test_outside.py runs it",
    r"prefix\.py|runs/prefix": "is an example of that page; tests/laws/test_extending.py trains it",
    r"sentiment|runs/bert\b|bert_model\.ckpt": "needs a downloaded BERT; tests/interop runs it on small ones",
    r"chats\.py|runs/(base|chats)\b": "needs a downloaded decoder; tests/core/objectives/test_instruction.py trains a small one",
    r"--from": "needs a run of several languages; tests/interop/hf/test_languages.py runs it",
    r"xyz|CODE": "needs a run of several languages; tests/run/test_extending.py adds one to it",
    r" sync ": "copies a run to another place; tests/workdir/test_copies.py runs it",
    r" trim ": "needs a run with a table of subwords; tests/run/test_trimming.py cuts one",
    r"minilm|MiniLM|classify_docstrings": "needs a downloaded encoder; tests/interop/hf imports small ones",
    r"chat_dates_lora|dates_before_1900": "needs its base and files; tests/laws/test_recipes.py trains both on small bases",
    r"ADAPTERS|runs/adapted": "needs adapters of PEFT; tests/interop/hf/test_peft.py reads and writes small ones",
    r"configs/mine\.py|SYSTEM|torch-transformer": "reads weights of another system; tests/interop/systems runs it on theirs",
    r"runs/mine/config|--help": "is read by the fast test alone",
}
"""Patterns of commands that are not run, and why; the fast test parses them."""

SHORT = "--train.steps 3 --train.checkpoint-every 1 --train.eval-every 3 --optimizer.schedule.warmup-steps 0 --model.d-model 16"
SHORT += " --model.d-ff 16 --model.scan-unroll 1"
TEXTS = SHORT + " --data.rows-multiple 32 --data.tokens-per-batch 2048"
TOY = SHORT + " --data.train.num-examples 640 --data.eval.num-examples 64 --data.bucket-lengths 40"

PROGRAMS_OF_TEXT = ("configs/char_lm.py", "configs/tiny_mlm.py", "configs/tiny_modernbert.py")
"""Configs whose data are Python's help topics."""

PYTHON_TOO = ("README.md", "docs/report.md")
"""Pages whose Python lines read the toy runs. Others have configs and classes, which test_docs.py and test_extending.py run."""


def reason(command: DocCommand) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command.text)), None)


def words_to_type(command: DocCommand) -> list[str]:
    """Returns a command's words with values for those in capitals; a training is a toy's."""
    values = WORDS | {"CONFIG": "quickstart", "NAME": "quickstart", "FILE": "map.html", "/data/tokens": "tokens"}
    values |= {"SOURCE": "20 nov 2026", "TARGET": "2026-11-20"}
    if command.words[0] == "import":
        values |= {"RUN": "runs/other", "FOLDER": "hf-model"}
    elif command.words[:2] == ["export", "hf"]:
        values |= {"RUN": "runs/lm", "FAMILY": "llama"}
    words = [values.get(word, word) for word in command.words if word != "overrides"]
    if words[:2] == ["train", "RUN/config.json"]:
        words[1] = "runs/quickstart/config.json"
        return words
    if words[0] == "serve":
        return [*words, "--port", "0"]
    toy = TEXTS if words[-1] in PROGRAMS_OF_TEXT else TOY
    if "--sweep" in words:  # two runs, not twelve
        words = [re.sub("=0,0.1$", "=0", word) for word in words]
        words[words.index("--seeds") + 1] = "1"
    return words + toy.split() * (words[0] in ("train", "prepare"))


def runnable() -> dict[str, list[DocCommand]]:
    """Returns by page the commands that are run, each once, on the first page that has it."""
    pages: dict[str, list[DocCommand]] = {}
    seen: set[str] = set()
    for page, commands in COMMANDS.items():
        for command in commands:
            typed = " ".join(words_to_type(command))
            if reason(command) is None and typed not in seen:
                seen.add(typed)
                pages.setdefault(page, []).append(command)
    return pages


def test_every_reason_is_needed():
    """And most commands of use are run."""
    everything = [command for commands in COMMANDS.values() for command in commands]
    for pattern in NOT_RUN:
        assert any(re.search(pattern, command.text) for command in everything), f"no command has {pattern}"
    run = {command.words[0] for commands in runnable().values() for command in commands}
    assert run >= {"train", "translate", "evaluate", "inspect", "report", "configs", "doctor"}
    assert run >= {"import", "export", "generate", "prepare", "serve"}


def small_llama() -> Config:
    """Returns a language model that fits a Hugging Face family, on Python's help topics."""
    texts = load_config("tiny_mlm", TEXTS.split())
    llama = load_config(
        "llama_1b", ["--model.d-model=16", "--model.d-ff=16", "--model.num-heads=4", "--model.num-decoder-layers=1"]
    )
    model = dataclasses.replace(llama.model, vocab_size=texts.model.vocab_size, dtype="float32")
    lengths = {"bucket_lengths": (32,), "max_source_length": 32, "max_target_length": 32}
    sources = {"train": texts.data.train, "eval": texts.data.eval}
    data = dataclasses.replace(llama.data, tokens_per_batch=1024, rows_multiple=32, **lengths, **sources)
    return dataclasses.replace(llama, model=model, data=data, train=texts.train, optimizer=texts.optimizer)


def serve(words: list[str]) -> int:
    """Returns the status of a server that is stopped once it listens."""
    environment = os.environ | {"XLA_FLAGS": "", "FLAXFORMER_LITE_TOKEN": "0123456789abcdef", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "flaxformer_lite", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in iter(process.stderr.readline, ""):
            if " at http://" in line:
                break
        process.terminate()
        process.communicate(timeout=60)
    return process.returncode


def run_command(words: list[str]) -> int:
    """Returns the status of a command."""
    if words[0] == "serve":
        return serve(words)
    if words[0] == "import":
        shutil.rmtree(words[3], ignore_errors=True)
    try:
        cli.main(words)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with toy runs under the names that the pages use, and their input files."""
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        write_runs(folder)
    shutil.copy(ROOT / "configs" / "quickstart.py", folder / "mine.py")
    (folder / "configs").symlink_to(ROOT / "configs")
    (folder / "terms.tsv").write_text("November\t11\n", encoding="utf-8")
    (folder / "new.en").write_text("20 November 2026\n", encoding="utf-8")
    (folder / "corpus.en.gz").write_bytes(gzip.compress(b"20 November 2026\n"))
    return folder


def write_runs(folder: Path) -> None:
    config = load_config("quickstart", TOY.split())
    flaxformer_lite.train(config, folder / "runs" / "quickstart")
    for name in ("first", "second", "one_layer", "mine"):
        shutil.copytree(folder / "runs" / "quickstart", folder / "runs" / name)
    for name in ("char_lm", "tiny_mlm"):
        flaxformer_lite.train(load_config(name, TEXTS.split()), folder / "runs" / name)
    shutil.copytree(folder / "runs" / "char_lm", folder / "runs" / "language_model")
    flaxformer_lite.train(small_llama(), folder / "runs" / "lm")
    cli.main(["export", "hf", str(folder / "runs" / "lm"), str(folder / "hf-model")])
    cli.main(["import", "hf", str(folder / "hf-model"), str(folder / "runs" / "imported")])


@pytest.mark.slow
@needs.altair
@pytest.mark.parametrize("page", runnable())
def test_commands_run(
    page: str, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """On a copy of the runs for each page, in the page's order; a status other than 0 is a failure."""
    shutil.copytree(workspace, tmp_path / "here", symlinks=True)
    monkeypatch.chdir(tmp_path / "here")
    if page != "docs/devices.md":
        use_one_device(monkeypatch)  # a program for eight takes twice as long to compile
    for command in runnable()[page]:
        shutil.rmtree("FOLDER", ignore_errors=True)
        with open("new.en", encoding="utf-8") as stdin, monkeypatch.context() as patched:
            patched.setattr("sys.stdin", stdin)
            assert run_command(words_to_type(command)) == 0, f"{command.text}: {capsys.readouterr().err}"
    if page in PYTHON_TOO:
        for block in python_blocks(ROOT / page):
            if not re.search(OF_THE_HUB, block):
                exec(block, {})
