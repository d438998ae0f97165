"""Models of others in the place of runs. Oracle: the run that `import_hf` makes of the same folder; test_hub.py has the hub's."""

import errno
import inspect
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite import import_hf, load, run
from flaxformer_lite.interop import loading
from flaxformer_lite.interop.hf.folder import WEIGHTS
from tests.support.commands import Command
from tests.support.experiments import use_one_device
from tests.support.hf_folders import DATA

MINILM = DATA / "minilm/hub_layout"


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the library, and an empty cache."""
    use_one_device(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(MINILM, tmp_path / "mini-lm")


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of all imports."""
    done: list[Path] = []

    def recorded(source: Any, run: Path) -> Path:
        done.append(run)
        return import_hf(source, run)

    monkeypatch.setattr(loading, "import_hf", recorded)
    return done


def cached(tmp_path: Path) -> list[str]:
    """The folders in the cache, unfinished ones included."""
    models = tmp_path / "cache/flaxformer_lite/models"
    return sorted(path.name for path in models.glob("*") if path.is_dir()) if models.is_dir() else []


def test_a_folder_is_imported_once_for_each_version(theirs: Path, imports: list[Path], tmp_path: Path):
    texts = ["a text", "another one"]
    vectors = load(import_hf(theirs, tmp_path / "run")).embed(texts)
    for path in (theirs, str(theirs), "mini-lm"):
        np.testing.assert_array_equal(load(path).embed(texts), vectors)
    assert len(imports) == 1 and imports[0].is_absolute() and cached(tmp_path) == [imports[0].name]
    assert imports[0].name.startswith("mini-lm-")
    os.utime(theirs / WEIGHTS, ns=(1, 1))
    load(theirs, weights="last")
    assert len(imports) == 2 and len(cached(tmp_path)) == 2


def test_a_command_takes_the_folder_in_the_place_of_a_run(theirs: Path, imports: list[Path], command: Command):
    (Path("in.txt")).write_text("a text\n")
    first, second = (command("embed", "mini-lm", "in.txt") for _ in range(2))
    assert first.out == second.out != "" and len(imports) == 1
    assert first.notes[0].startswith("importing mini-lm, once for this version of it: ") and not second.notes[:1]
    assert "embed" in command("inspect", theirs).out


@pytest.mark.parametrize("typed", ["none", "mini-lm/none", "./mini/none"])
def test_what_is_neither_is_one_message(typed: str, theirs: Path, imports: list[Path]):
    with pytest.raises(ValueError, match=r"the run folder \S+ does not exist: .* ORG/NAME RUN`, and name RUN$"):
        load(typed)
    assert not imports


def test_a_folder_that_cannot_be_imported_says_why(theirs: Path, tmp_path: Path):
    (theirs / WEIGHTS).write_bytes(b"no tensors")
    with pytest.raises(ValueError, match="mini-lm"):
        load(theirs)
    assert cached(tmp_path) == []


def test_an_import_that_ends_in_its_middle_leaves_no_run(
    theirs: Path, imports: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A full disk, and a process that was killed after half of it: its unfinished folder goes with the next import."""
    with monkeypatch.context() as patch:

        def full(*words: Any, **options: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", "x")

        patch.setattr("flaxformer_lite.run.write.open_checkpoints", full)
        with pytest.raises(OSError, match="No space left"):
            load(theirs)
    assert cached(tmp_path) == []
    (place,) = imports
    (place.parent / f".{place.name}.0123.unfinished").mkdir(parents=True)
    load(theirs)
    assert cached(tmp_path) == [place.name]


def test_of_two_at_once_one_imports(theirs: Path, imports: list[Path]):
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(loading.imported("mini-lm"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names) == 3 and len({*names}) == len(imports) == 1


def test_the_front_door_has_this_one():
    """With the signature and the documentation of the one that reads runs alone."""
    assert (
        inspect.signature(flaxformer_lite.load) == inspect.signature(run.load) and flaxformer_lite.load is not run.load
    )
