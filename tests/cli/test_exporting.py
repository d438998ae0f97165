"""Oracles: the four systems' own weights, which `export` gives back as `import` read them; and mistakes in one line."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import flaxformer_lite
from tests.support.commands import Command
from tests.support.oracles import WHOLE
from tests.support.paths import FIXTURES

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.mark.slow
@pytest.mark.parametrize("system", WHOLE)
def test_exported_weights_equal_the_imported_ones_bit_for_bit(system: str, tmp_path: Path, command: Command) -> None:
    run = command.import_case(tmp_path, system, WHOLE[system])
    command("export", system, run, tmp_path / "back.npz")
    with np.load(tmp_path / "back.npz") as back, np.load(tmp_path / "weights.npz") as weights:
        assert sorted(back.files) == sorted(weights.files)
        assert all(back[name].tobytes() == weights[name].tobytes() for name in weights.files)
        assert all(back[name].shape == weights[name].shape for name in weights.files)
    command("inspect", run)


@pytest.mark.slow
def test_from_python_as_from_the_shell(tmp_path: Path, command: Command) -> None:
    """Law: the functions write what the commands write, byte for byte."""
    theirs, made = FIXTURES / "hf/marian/shared", {}
    command("import", "hf", theirs, tmp_path / "run")
    command("export", "hf", tmp_path / "run", tmp_path / "shell" / "out")
    command("export", "ctranslate2", tmp_path / "run", tmp_path / "shell" / "ct2")
    shutil.rmtree(tmp_path / "run")
    run = flaxformer_lite.import_hf(theirs, tmp_path / "run")
    flaxformer_lite.export_hf(run, tmp_path / "python" / "out")
    flaxformer_lite.export_ctranslate2(run, tmp_path / "python" / "ct2")
    for way in ("shell", "python"):
        files = [file for file in (tmp_path / way).rglob("*") if file.is_file()]
        made[way] = {file.relative_to(tmp_path / way): file.read_bytes() for file in files}
    assert made["shell"] == made["python"] and len(made["shell"]) > 6


@pytest.mark.slow
def test_folders_above_are_made_and_nothing_is_overwritten(tmp_path: Path, command: Command, monkeypatch) -> None:
    """Law: all commands that make something treat what is there, and what is not, alike; and they do so before the work."""
    theirs = FIXTURES / "hf/distilbert/model"
    run, file, folder = tmp_path / "a/b/run", tmp_path / "c/d/out.npz", tmp_path / "e/f/out"
    bert = command.import_case(tmp_path, "bert-tf", "002_bert_gelu")
    makers = [("import", "hf", theirs, run), ("export", "hf", run, folder), ("export", "bert-tf", bert, file)]
    for words in makers:
        command(*words)
        assert words[-1].exists() and len(list(words[-1].parent.iterdir())) == 1
    content = file.read_bytes()
    above = ("import", "hf", theirs, file / "run"), ("export", "hf", run, file / "out")
    monkeypatch.setattr("flaxformer_lite.interop.exporting.load", None)
    for *words, output in (*makers, *above, ("embed", run, "--output", file)):
        reason = f"cannot be created: {file} is no folder" if output.parent == file else "exists already: give a f"
        assert command.mistake(*words, output).startswith(f"error: {output} {reason}")
    assert file.read_bytes() == content and len(list(folder.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "imported.json is not the file that checkpoint 0 was trained with"),
        (("--family", "elmo"), "error: family is elmo: choose one of gpt2, "),
    ],
)
def test_an_export_that_cannot_be_is_one_line(words: tuple, message: str, tmp_path: Path, command: Command) -> None:
    run = command.import_case(tmp_path, "bert-tf", "002_bert_gelu")
    (run / "imported.json").write_text("{")
    assert message in command.mistake("export", "hf", run, tmp_path / "out", *words)
