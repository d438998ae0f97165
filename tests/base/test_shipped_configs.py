"""Configs that come with the package, compared with the files of `configs/`; `.ci/run` looks for them in a wheel."""

import ast
from pathlib import Path

import pytest

from flaxformer_lite.base.shipped_configs import header, shipped_configs
from flaxformer_lite.config import load_config
from tests.support.commands import Command
from tests.support.paths import ROOT


def test_every_config_is_listed_with_its_first_line(command: Command):
    listed = dict(line.split(maxsplit=1) for line in command("configs").lines)
    files = {path.stem: path for path in (ROOT / "configs").glob("*.py") if path.stem != "__init__"}
    assert shipped_configs() == files and list(listed) == sorted(files)
    for name, path in files.items():
        assert listed[name] == header(path) == path.read_text(encoding="utf-8").split("\n")[0].removeprefix('"""')


def test_a_config_is_printed_as_it_stands(command: Command):
    assert command("configs", "quickstart").out == (ROOT / "configs" / "quickstart.py").read_text(encoding="utf-8")
    error = command.mistake("configs", "quickstrat")
    assert error.startswith("error: configs NAME is quickstrat: the names are bert_base, ")
    assert error.endswith("; perhaps you meant quickstart")


def test_a_name_is_a_shipped_config_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("quickstart") == load_config(str(ROOT / "configs" / "quickstart.py"))
    for typed in ("quickstrat", "configs/quickstart.py", "quickstart.py"):
        with pytest.raises(ValueError, match=f"there is no config file {typed}; perhaps you meant quickstart$"):
            load_config(typed)
    with pytest.raises(ValueError, match=r"there is no config file zz; there are bert_base, char_lm, "):
        load_config("zz")


@pytest.mark.parametrize("path", shipped_configs().values(), ids=lambda path: path.stem)
def test_a_config_imports_only_faces_of_rooms(path: Path):
    """Each name but position schemes is in a face, `from flaxformer_lite.ROOM import NAME`; core, files and tools have rooms of
    their own. A wheel has no `configs`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            parts = str(node.module).split(".")
            depth = 3 if parts[1] in ("tools", "core", "files") else 2
            depth += parts[1:] == ["core", "model", "positions"]
            assert parts[0] == "flaxformer_lite" and len(parts) == depth
