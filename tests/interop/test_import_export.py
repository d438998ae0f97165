"""Oracles: the four systems' own weights and decoded tokens, through the commands as a user types them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.run import load
from tests.support.commands import type_command
from tests.support.experiments import use_one_device
from tests.support.oracles import ORACLES, WHOLE, load_case
from tests.support.paths import FIXTURES
from tests.support.quick import quick


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    use_one_device(monkeypatch)


def import_case(monkeypatch: pytest.MonkeyPatch, folder: Path, system: str, name: str) -> Path:
    config, weights = load_case(name)
    (folder / "config.json").write_text(json.dumps(config))
    np.savez(folder / "weights.npz", **weights)
    options = ("--config", folder / "config.json", folder / "run")
    type_command(monkeypatch, "import", system, folder / "weights.npz", *options)
    return folder / "run"


@pytest.mark.parametrize("system", quick(WHOLE, "bert-tf".__eq__))
def test_exported_weights_equal_the_imported_ones_bit_for_bit(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = import_case(monkeypatch, tmp_path, system, WHOLE[system])
    type_command(monkeypatch, "export", system, run, tmp_path / "back.npz")
    with np.load(tmp_path / "back.npz") as back, np.load(tmp_path / "weights.npz") as weights:
        assert sorted(back.files) == sorted(weights.files)
        assert all(back[name].tobytes() == weights[name].tobytes() for name in weights.files)
        assert all(back[name].shape == weights[name].shape for name in weights.files)
    type_command(monkeypatch, "inspect", run)


def test_a_tensorflow_checkpoint_and_a_fixture_are_imported_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ORACLES / "002_bert_ckpt"
    options = ("--config", folder / "bert_config.json")
    type_command(monkeypatch, "import", "bert-tf", folder / "bert_model.ckpt", *options, tmp_path / "a")
    type_command(monkeypatch, "import", "bert-tf", ORACLES / "002_bert_gelu.npz", *options, tmp_path / "b")
    type_command(monkeypatch, "export", "bert-tf", tmp_path / "a", tmp_path / "a.npz")
    type_command(monkeypatch, "export", "bert-tf", tmp_path / "b", tmp_path / "b.npz")
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert len(a.files) == 46 and all(a[name].tobytes() == b[name].tobytes() for name in a.files)


@pytest.mark.slow
def test_an_imported_run_translates_ids_as_its_own_system_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Greedy as far as the system went, through the command; beam search with its limit, through the library."""
    name = "001_decode_beam3"
    run = import_case(monkeypatch, tmp_path, "nlp-in-action", name)
    with np.load(ORACLES / f"{name}.npz") as case:
        sources, greedy, best = case["in/src"], case["out/greedy/tokens"], case["out/beam3/tokens"]
    file = tmp_path / "sources.ids"
    file.write_text("".join(" ".join(map(str, row)) + "\n" for row in sources) + "\n")
    type_command(monkeypatch, "translate", run, file, "--ids")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(sources) + 1 and lines[-1] == ""
    for line, expected in zip(lines, greedy, strict=False):
        answer = [2, *map(int, line.split()), 3]
        length = min(len(answer), len(expected))
        assert answer[:length] == expected[:length].tolist()
    options = {"beam_size": 3, "max_length_ratio": 0.0, "max_length_extra": 11}
    answers = load(run).hypotheses_of_ids([[int(i) for i in row] for row in sources], **options)
    for answer, expected in zip(answers, best, strict=True):
        assert [2, *answer[0].tokens, 3] == [int(i) for i in expected[: len(answer[0].tokens) + 2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 x", "line 1: '1 x' is no list of token ids"),
        ("1\n21", "line 2 has 21, which is no token id: ids must be between 0 and 20"),
    ],
)
def test_ids_that_are_none_are_named(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run = import_case(monkeypatch, tmp_path, "nlp-in-action", "001_decode_beam3")
    (tmp_path / "sources.ids").write_text(text)
    with pytest.raises(SystemExit) as end:
        type_command(monkeypatch, "translate", run, "--ids", tmp_path / "sources.ids")
    assert end.value.code == 2 and message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("paddle", "{npz}", "--config", "{config}"), "the config's preprocess_cmd is missing"),
        (("bert-tf", "{config}", "--config", "{config}"), "config.json"),
        (("bert-tf", "{npz}", "--config", "{npz}"), "cannot be read as JSON"),
        (("bert-tf", "{text}", "--config", "{config}"), "cannot be read as an .npz file"),
        (("bert", "{npz}", "--config", "{config}"), "bert-tf"),
    ],
)
def test_bad_imports_are_one_line_and_leave_nothing(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    shutil.copy(ORACLES / "002_bert_gelu.npz", tmp_path / "bert.npz")
    shutil.copy(ORACLES / "002_bert_ckpt" / "bert_config.json", tmp_path / "config.json")
    (tmp_path / "text.npz").write_text("no archive")
    paths = {"npz": tmp_path / "bert.npz", "config": tmp_path / "config.json", "text": tmp_path / "text.npz"}
    with pytest.raises(SystemExit) as end:
        type_command(monkeypatch, "import", *(word.format(**paths) for word in words), tmp_path / "run")
    error = capsys.readouterr().err
    assert end.value.code == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_tokenizer_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run = import_case(monkeypatch, tmp_path, "nlp-in-action", "001_decode_beam3")
    with pytest.raises(ValueError, match="has no tokenizer"):
        load(run).translate(["a"])
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    bert = import_case(monkeypatch, encoder, "bert-tf", "002_bert_gelu")
    with pytest.raises(ValueError, match="so it cannot translate"):
        load(bert).hypotheses_of_ids([[1]])


def test_folders_above_are_made_and_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Law: all commands that make something treat what is there, and what is not, alike; and they do so before the work."""
    theirs = FIXTURES / "hf/distilbert/model"
    run, file, folder = tmp_path / "a/b/run", tmp_path / "c/d/out.npz", tmp_path / "e/f/out"
    bert = import_case(monkeypatch, tmp_path, "bert-tf", "002_bert_gelu")
    makers = [("import", "hf", theirs, run), ("export", "hf", run, folder), ("export", "bert-tf", bert, file)]
    for words in makers:
        type_command(monkeypatch, *words)
        assert words[-1].exists() and len(list(words[-1].parent.iterdir())) == 1
    capsys.readouterr()
    content = file.read_bytes()
    above = ("import", "hf", theirs, file / "run"), ("export", "hf", run, file / "out")
    monkeypatch.setattr("flaxformer_lite.cli.exporting.load", None)
    for *words, output in (*makers, *above, ("average", run, folder), ("embed", run, "--output", file)):
        reason = f"cannot be created: {file} is no folder" if output.parent == file else "exists already: give a f"
        with pytest.raises(SystemExit) as end:
            type_command(monkeypatch, *words, output)
        error = capsys.readouterr().err
        assert end.value.code == 2 and error.startswith(f"error: {output} {reason}") and error.count("\n") == 1
    assert file.read_bytes() == content and len(list(folder.parent.iterdir())) == 1


def test_an_import_that_is_interrupted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flaxformer_lite.cli.importing.copy_companions", interrupted)
    theirs = FIXTURES / "hf/distilbert/model"
    with pytest.raises(SystemExit) as end:
        type_command(monkeypatch, "import", "hf", theirs, tmp_path / "run")
    assert end.value.code == 130 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors", "all"])
def test_an_error_names_a_path_once(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "theirs"
    if damage != "all":
        shutil.copytree(FIXTURES / "hf/distilbert/model", folder)
        (folder / damage).write_bytes(b"{")
    with pytest.raises(SystemExit):
        type_command(monkeypatch, "import", "hf", folder, tmp_path / "run")
    error = capsys.readouterr().err
    assert error.startswith(f"error: {folder}") and error.count(str(folder)) == 1
    if damage == "model.safetensors":
        (tmp_path / "config.json").write_text(json.dumps(load_case("002_bert_gelu")[0]))
        file = folder / damage
        with pytest.raises(SystemExit):
            type_command(monkeypatch, "import", "bert-tf", file, "--config", tmp_path / "config.json", tmp_path / "run")
        error = capsys.readouterr().err
        assert error.startswith(f"error: {file} cannot be read as safetensors") and error.count(str(file)) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "imported.json cannot be read as JSON"),
        (("--family", "elmo"), "error: --family is elmo: choose one of gpt2, "),
    ],
)
def test_an_export_that_cannot_be_is_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    run = import_case(monkeypatch, tmp_path, "bert-tf", "002_bert_gelu")
    (run / "imported.json").write_text("{")
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        type_command(monkeypatch, "export", "hf", run, tmp_path / "out", *words)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
