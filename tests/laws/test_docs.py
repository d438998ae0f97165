"""Law: the Python code in README.md and docs/ can be run as it stands: it parses, its imports exist, and configs are valid."""

import ast
import builtins
import importlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from flaxformer_lite.config import Config, TrainConfig, load_config, to_json
from flaxformer_lite.core.text import Languages
from flaxformer_lite.interop import FAMILIES
from flaxformer_lite.interop.hf.multimodal import HALVES
from flaxformer_lite.run.run import Run
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S))
]


def missing_imports(tree: ast.Module) -> list[str]:
    """Returns the modules and names of this package that code imports and that do not exist."""
    missing = []
    for node in ast.walk(tree):
        imports: list[tuple[str, str | None]] = []
        if isinstance(node, ast.Import):
            imports = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports = [(str(node.module), alias.name) for alias in node.names]
        for module, name in imports:
            if module.split(".")[0] == "flaxformer_lite" and not exists(module, name):
                missing.append(f"{module} {name or ''}".strip())
    return missing


def exists(module: str, name: str | None) -> bool:
    try:
        found = importlib.import_module(module)
        return name is None or hasattr(found, name) or exists(f"{module}.{name}", None)
    except ModuleNotFoundError as error:  # a package of an extra that is not installed says nothing about the module
        return not str(error.name).startswith("flaxformer_lite")


@pytest.mark.parametrize("block", BLOCKS)
def test_code_parses_and_its_imports_exist(block: str):
    missing = missing_imports(ast.parse(block))
    assert not missing, f"nothing in this package is called {missing}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_uses_is_imported_there(page: Path):
    """An example that begins with `flaxformer_lite.load` and no import fails where a reader types it."""
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S))
    nodes = list(ast.walk(ast.parse(code)))
    bound = {(alias.asname or alias.name).split(".")[0] for node in nodes for alias in getattr(node, "names", [])}
    bound |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    used = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    assert used <= bound | {*dir(builtins)}, f"import {used - bound} in the example"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_has_lines_that_an_editor_shows_whole(page: Path):
    """Law: at most 140 characters a line, outside of tables and code; the README at most 140 lines."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    prose = [line for line in text.splitlines() if not line.startswith(("|", "    ", "![", "**`cli"))]
    assert [line for line in prose if len(line) > 140] == []
    assert page.name != "README.md" or page.parent != ROOT or page.read_text(encoding="utf-8").count("\n") <= 140


def test_the_manual_is_short_enough_to_be_read():
    """Law: README.md and docs/ have at most 29,000 words, as `wc -w` counts, and CHANGELOG.md has one page, 800 words."""
    words = {str(page.relative_to(ROOT)): len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert sum(words.values()) <= 29_000, sorted(words.items(), key=lambda page: -page[1])
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split()) <= 800


def test_a_missing_import_is_found():
    code = "import flaxformer_lite.pooler\nfrom flaxformer_lite.core.model import Poolers, positions, Rotary"
    assert missing_imports(ast.parse(code)) == ["flaxformer_lite.pooler", "flaxformer_lite.core.model Poolers"]


def test_configs_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A config in the docs starts from another run, such as `runs/bert`; here a config stands in its place."""
    languages = Languages(codes=("xyz_Latn", "eng_Latn", "deu_Latn"))
    for name, config in (("bert", "bert_base"), ("new", "transformer_base_wmt14")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        found = load_config(str(ROOT / "configs" / f"{config}.py"))
        if name == "new":
            data = replace(found.data, train=None, eval=None, test=None, languages=languages)
            found = replace(found, data=data, train=TrainConfig(), weights="last")
        (folder / "config.json").write_text(to_json(found), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    sections = [section for page in PAGES for section in page.read_text(encoding="utf-8").split("\n## ")]
    configs = [re.findall(r"^```python\n(.*?)^```", section, re.M | re.S) for section in sections]
    configs = [blocks for blocks in configs if any("def get_config" in block for block in blocks)]
    assert configs
    for number, blocks in enumerate(configs):  # the imports and classes of an example stand above its config
        file = tmp_path / f"config{number}.py"
        file.write_text("\n".join(blocks), encoding="utf-8")
        assert isinstance(load_config(str(file)), Config)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_methods_of_runs_exist(page: Path):
    missing = [
        name for name in re.findall(r"\brun\.(\w+)\(", page.read_text(encoding="utf-8")) if not hasattr(Run, name)
    ]
    assert not missing


PROMISES = re.findall(r"^\| (.*) \| (`.*) \|$", (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"), re.M)


def files_of(tested: str) -> list[Path]:
    return [ROOT / "tests" / name for name in re.findall(r"`([^`]+)`", tested)]


def test_every_promise_names_tests_that_exist():
    assert len(PROMISES) > 40 and not [file for _, tested in PROMISES for file in files_of(tested) if not file.exists()]


def usual_tests(file: Path) -> list[str]:
    """Returns the tests that `pytest` runs of a file: those that neither it nor their own marks call slow; of a folder all."""
    if file.is_dir():
        return [name for path in sorted(file.rglob("test_*.py")) for name in usual_tests(path)]
    body = ast.parse(file.read_text(encoding="utf-8")).body
    of_all = [line for line in body if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "pytestmark"]
    tests = [line for line in body if isinstance(line, ast.FunctionDef) and line.name.startswith("test_")]
    marks = {test.name: " ".join(map(ast.unparse, [*of_all, *test.decorator_list])) for test in tests}
    return [name for name, mark in marks.items() if "mark.slow" not in mark]


def test_a_part_of_every_promise_is_tested_each_time_or_its_row_says_why_not():
    """Law: a promise that `pytest -m slow` alone tests is broken for days; and no reason stands where there is such a test."""
    for promise, tested in PROMISES:
        assert ("slow: " in tested) == (not any(map(usual_tests, files_of(tested)))), promise


def test_slow_tests_are_told_from_the_others(tmp_path: Path):
    marks = {"x": "@pytest.mark.slow", "y": "", "z": "@pytest.mark.parametrize('a', [1])"}
    tests = [f"{mark}\ndef test_{name}(): ..." for name, mark in marks.items()]
    (tmp_path / "test_a.py").write_text("\n".join(tests))
    (tmp_path / "test_b.py").write_text("import pytest\npytestmark = [pytest.mark.slow]\ndef test_x(): ...\n")
    assert usual_tests(tmp_path) == ["test_y", "test_z"] and usual_tests(tmp_path / "test_b.py") == []


def test_the_map_of_questions_names_files_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = {name for name in re.findall(r"`(\w+/[\w/]+\.py)", text) if not re.search("FAMILY|SYSTEM|TASK", name)}
    missing = [
        name for name in files if not any((folder / name).exists() for folder in (ROOT, ROOT / "flaxformer_lite"))
    ]
    assert files and not missing


def test_the_page_names_every_family_and_the_readme_says_how_many():
    """A row of the page begins with its families."""
    page = (ROOT / "docs/systems/huggingface.md").read_text(encoding="utf-8")
    _, _, rows = page.partition("| `model_type` | such as |")
    families = re.findall(r"^\|( `[^|]*)\|", rows.partition("\n\n")[0], re.M)
    named = {name for row in families for name in re.findall(r"`([\w-]+)`", row)}
    assert named == {*FAMILIES, *HALVES}
    for file in ("README.md", "CHANGELOG.md"):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.findall(r"(\d+) model types", text) == [str(len(named))], file
