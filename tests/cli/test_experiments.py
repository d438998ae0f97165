"""Laws of the config and the mesh that are typed: a file, a run folder or a name; sizes of axes."""

from pathlib import Path

import pytest

from flaxformer_lite.cli.experiments import config_of, parse_mesh
from flaxformer_lite.config import load_config
from flaxformer_lite.config.serialize import to_json
from flaxformer_lite.parallel import MeshConfig


def test_a_mesh_is_read_or_refused():
    assert parse_mesh("fsdp=4,tensor=2") == MeshConfig(data=-1, fsdp=4, tensor=2)
    for wrong in ("fsdp", "model=2", "fsdp=4;tensor=2", ""):
        with pytest.raises(ValueError, match="give sizes of data, fsdp, tensor"):
            parse_mesh(wrong)
    assert parse_mesh("fsdp=-1") == MeshConfig(data=1, fsdp=-1)
    assert parse_mesh("tensor=2,fsdp=-1") == MeshConfig(data=1, fsdp=-1, tensor=2)
    with pytest.raises(ValueError, match=r"'data=2,data=4', which has an axis twice"):
        parse_mesh("data=2,data=4")


def test_a_run_folder_stands_for_its_config(tmp_path: Path):
    config = load_config("configs/char_lm.py", ["--train.steps", "700"])
    (tmp_path / "config.json").write_text(to_json(config))
    assert config_of(str(tmp_path)) == config
    assert config_of(str(tmp_path), ["--train.steps", "800"]).train.steps == 800
    with pytest.raises(ValueError, match="does not exist"):
        config_of(str(tmp_path / "none"))


def test_a_name_stands_for_a_config_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expected = load_config("configs/char_lm.py")
    monkeypatch.chdir(tmp_path)
    assert config_of("char_lm") == expected
