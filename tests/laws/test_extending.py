"""Law: the code in docs/extending.md is that of the tests that it names, and each union is in its file."""

import ast
import json
import re
import smtplib
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

import flaxformer_lite
from flaxformer_lite.cli.main import main
from flaxformer_lite.config import load_config
from flaxformer_lite.training.loop import train
from tests.support.paths import ROOT

GUIDE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = [section for section in GUIDE.split("\n## ")[1:] if "From\n[tests/" in section or "From [tests/" in section]
ROWS = [row.split(" | ") for row in re.findall(r"^\| \[.*$", GUIDE.split("\n## ")[0], re.MULTILINE)]
"""The part, its contract and its union."""


def undefined_or_unused(code: str) -> dict[str, set[str]]:
    """Returns the names that code uses without a definition (F821) and imports without use (F401), by the linter."""
    options = "check --isolated --select F821,F401 --output-format json -"
    command = [sys.executable, "-m", "ruff", *options.split()]
    found = json.loads(subprocess.run(command, input=code, capture_output=True, text=True, check=False).stdout)
    names: dict[str, set[str]] = {"F821": set(), "F401": set()}
    for item in found:
        names[item["code"]].add(item["message"].split("`")[1])
    return names


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_the_guide_shows_tested_code(section: str):
    (name,) = re.findall(r"From\s\[.*?\]\(\.\./(tests/[^)]+)\)", section)
    test = (ROOT / name).read_text(encoding="utf-8")
    block = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    code = block.split("\n\n\n", 1)[1] if "\n\n\n" in block else block.split("\n\n")[-1]
    assert code in test
    names = undefined_or_unused(block)
    assert not names["F401"]
    # The rest of the example stands above it in the test.
    above = {target.id for node in ast.parse(test[: test.index(code)]).body for target in assigned(node)}
    assert names["F821"] <= above, "an import is missing"


def test_every_union_of_the_guide_is_in_the_file_that_it_names():
    unions = [(contract, union) for _, contract, union in ROWS if union.startswith("`")]
    assert len(unions) == 9
    for contract, union in unions:
        name, files = union.split("`")[1], re.findall(r"\(\.\./([^)]+)\)", contract + union)
        assert re.search(rf"^{name} = ", (ROOT / files[-1]).read_text(encoding="utf-8"), re.MULTILINE), name


@pytest.mark.slow
def test_the_config_of_the_guide_trains_and_drops_nothing(
    tmp_path: Path, one_device: None, capfd: pytest.CaptureFixture
):
    file = write_code("An objective", tmp_path / "prefix.py")
    small = ["--train.steps", "4", "--optimizer.schedule.warmup-steps", "1", "--data.eval.num-examples", "50"]
    small += ["--model.d-model", "16", "--model.d-ff", "16", "--model.scan-unroll", "1"]
    train(load_config(str(file), small), tmp_path / "run")
    assert "76,800 training pairs" in (log := capfd.readouterr().err) and "dropped" not in log
    assert flaxformer_lite.load(tmp_path / "run").generate(["20 November 2026"])


@pytest.mark.slow
def test_the_hook_of_the_guide_mails_from_a_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: from the command to the mail; a later command reads the run with `--import`."""
    mails: list[Any] = []
    server = MagicMock()
    server.return_value.__enter__.return_value.send_message = mails.append
    monkeypatch.setattr(smtplib, "SMTP", server)
    file, run = str(write_code("A hook", tmp_path / "mail.py")), str(tmp_path / "run")
    small = ["--train.steps", "2", "--optimizer.schedule.warmup-steps", "1", "--data.eval.num-examples", "20"]
    main(["train", file, "--workdir", run, *small])
    assert [mail["Subject"] for mail in mails] == ["run, step 2"]
    main(["train", f"{run}/config.json", "--import", file, "--train.steps", "3"])
    assert [mail["Subject"] for mail in mails] == ["run, step 2", "run, step 3"]


def write_code(title: str, file: Path) -> Path:
    """Writes the blocks of Python of a section of the guide as one file."""
    (section,) = (section for section in SECTIONS if section.startswith(f"{title}\n"))
    file.write_text("\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL)), encoding="utf-8")
    return file


def assigned(node: ast.stmt) -> list[ast.Name]:
    """Returns the names that a statement of a module defines by `=` or `def`."""
    if isinstance(node, ast.Assign):
        return [target for target in node.targets if isinstance(target, ast.Name)]
    return [ast.Name(node.name)] if isinstance(node, ast.FunctionDef) else []
