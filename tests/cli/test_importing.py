"""Oracles: the four systems' own weights and decoded tokens, through the commands as a user types them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.core.data import Lengths
from flaxformer_lite.core.data.batch_plan import BatchPlan, make_buckets
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.interop import importing
from flaxformer_lite.metrics.translations import MetricConfig
from flaxformer_lite.run import load
from flaxformer_lite.workdir import RunFolder
from tests.support.commands import Command
from tests.support.oracles import ORACLES, load_case
from tests.support.paths import FIXTURES

pytestmark = pytest.mark.usefixtures("one_device")


def test_a_tensorflow_checkpoint_and_a_fixture_are_imported_as_they_are(tmp_path: Path, command: Command) -> None:
    folder = ORACLES / "002_bert_ckpt"
    for name, weights in (("a", folder / "bert_model.ckpt"), ("b", ORACLES / "002_bert_gelu.npz")):
        command("import", "bert-tf", weights, "--config", folder / "bert_config.json", tmp_path / name)
        command("export", "bert-tf", tmp_path / name, tmp_path / f"{name}.npz")
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        assert len(a.files) == 46 and all(a[name].tobytes() == b[name].tobytes() for name in a.files)


@pytest.mark.slow
def test_an_imported_run_translates_ids_as_its_own_system_does(tmp_path: Path, command: Command) -> None:
    """Greedy as far as the system went, through the command; beam search with its limit, through the library."""
    name = "001_decode_beam3"
    run = command.import_case(tmp_path, "nlp-in-action", name)
    with np.load(ORACLES / f"{name}.npz") as case:
        sources, greedy, best = case["in/src"], case["out/greedy/tokens"], case["out/beam3/tokens"]
    rows = "".join(" ".join(map(str, row)) + "\n" for row in sources) + "\n"
    lines = command("translate", run, "--ids", stdin=rows.encode()).lines
    assert len(lines) == len(sources) + 1 and lines[-1] == ""
    for line, expected in zip(lines, greedy, strict=False):
        answer = [2, *map(int, line.split()), 3]
        length = min(len(answer), len(expected))
        assert answer[:length] == expected[:length].tolist()
    options = {"beam_size": 3, "max_length_ratio": 0.0, "max_length_extra": 11}
    answers = load(run).hypotheses_of_ids([[int(i) for i in row] for row in sources], **options)
    for (first, *_), expected in zip(answers, best, strict=True):
        assert [2, *first.tokens, 3] == [int(i) for i in expected[: len(first.tokens) + 2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 x", "line 2: '1 x' is no list of token ids: write numbers separated by spaces"),
        ("21", "line 2 has 21, which is no token id: ids must be between 0 and 20"),
        ("1 " * 25, "line 2 has 25 ids but data.max_source_length is 24: shorten it"),
    ],
    ids=["x", "21", "25"],
)
def test_ids_that_are_none_are_named_and_the_others_answered(
    line: str, message: str, tmp_path: Path, command: Command
) -> None:
    run = command.import_case(tmp_path, "nlp-in-action", "001_decode_beam3")
    good, bad = (command("translate", run, "--ids", stdin=f"1 2\n{text}\n3\n".encode()) for text in ("4 5", line))
    assert bad.lines == [good.lines[0], "", good.lines[2]]
    assert f"warning: stdin, {message}" in bad.err and "; its answer is empty" in bad.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("paddle {npz} --config {config}", "the config's preprocess_cmd is missing"),
        ("bert-tf {config} --config {config}", "config.json"),
        ("bert-tf {npz} --config {npz}", "cannot be read as JSON"),
        ("bert-tf {text} --config {config}", "cannot be read as an .npz file"),
        ("bert {npz} --config {config}", "bert-tf"),
    ],
)
def test_bad_imports_are_one_line_and_leave_nothing(words: str, message: str, tmp_path: Path, command: Command) -> None:
    shutil.copy(ORACLES / "002_bert_gelu.npz", tmp_path / "bert.npz")
    shutil.copy(ORACLES / "002_bert_ckpt" / "bert_config.json", tmp_path / "config.json")
    (tmp_path / "text.npz").write_text("no archive")
    paths = {"npz": tmp_path / "bert.npz", "config": tmp_path / "config.json", "text": tmp_path / "text.npz"}
    assert message in command.mistake("import", *words.format(**paths).split(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_tokenizer_is_noted(tmp_path: Path, command: Command) -> None:
    run = command.import_case(tmp_path, "nlp-in-action", "001_decode_beam3")
    with pytest.raises(ValueError, match="has no tokenizer"):
        load(run).translate(["a"])
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    bert = command.import_case(encoder, "bert-tf", "002_bert_gelu")
    with pytest.raises(ValueError, match="so it cannot translate"):
        load(bert).hypotheses_of_ids([[1]])


def test_an_encoder_starts_with_batches_for_short_texts(tmp_path: Path, command: Command) -> None:
    """By hand: 100 texts of 14 tokens with their special ones are 2 batches of 64 rows, not one of 256 that is mostly padding."""
    shapes = {}
    for model in ("distilbert", "gpt2"):
        command("import", "hf", FIXTURES / f"hf/{model}/model", tmp_path / model)
        data = RunFolder(tmp_path / model).config().data
        shapes[model] = make_buckets((16, 32, 128), Lengths(512, 512), data.tokens_per_batch, data.rows_multiple)
    assert [bucket.rows for bucket in shapes["distilbert"]] == [64, 32, 8, 8]
    assert [bucket.rows for bucket in shapes["gpt2"]] == [256, 128, 64, 64]
    assert BatchPlan([Lengths(14, 0)] * 100, shapes["distilbert"], 0).batches_per_epoch == 2


def test_an_import_that_is_interrupted_leaves_nothing(tmp_path: Path, command: Command, monkeypatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flaxformer_lite.interop.importing.copy_companions", interrupted)
    theirs = FIXTURES / "hf/distilbert/model"
    status, _ = command.ended("import", "hf", theirs, tmp_path / "run")
    assert status == 130 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors", "all"])
def test_an_error_names_a_path_once(damage: str, tmp_path: Path, command: Command) -> None:
    folder = tmp_path / "theirs"
    if damage != "all":
        shutil.copytree(FIXTURES / "hf/distilbert/model", folder)
        (folder / damage).write_bytes(b"{")
    error = command.mistake("import", "hf", folder, tmp_path / "run")
    assert error.startswith(f"error: {folder}") and error.count(str(folder)) == 1
    if damage == "model.safetensors":
        (tmp_path / "config.json").write_text(json.dumps(load_case("002_bert_gelu")[0]))
        file = folder / damage
        error = command.mistake("import", "bert-tf", file, "--config", tmp_path / "config.json", tmp_path / "run")
        assert error.startswith(f"error: {file} cannot be read as safetensors") and error.count(str(file)) == 1


@pytest.mark.parametrize(
    ("settings", "name", "language"),
    [
        ({"target_lang": "zho"}, "x", "zh"),
        ({"target_lang": "jpn_Jpan"}, "opus-mt-en-de", "ja"),
        ({"tgt_lang": "th_TH"}, "x", "th"),
        ({}, "Helsinki-NLP/opus-mt-en-zh", "zh"),
        ({}, "/models/opus-mt-en-jap/", "ja"),
        ({}, "opus-mt-tc-big-en-ko", "ko"),
        ({}, f"hf://Helsinki-NLP/opus-mt-en-zh@{'0' * 40}", "zh"),
        ({"target_lang": "deu"}, "opus-mt-en-de", None),
        ({}, "llama-my", None),
        ({}, "opus-mt-en-mul", None),
    ],
)
def test_a_translation_model_says_its_target_language(settings: dict, name: str, language: str | None, tmp_path: Path):
    """Oracle: by hand, names and settings as on the hub; its tokenizer's settings come first."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    for source, config in ((name, {}), ("here", {"_name_or_path": name})):
        assert importing.target_language(tmp_path, source, ModelConfig(vocab_size=9), config) == language
    decoder = ModelConfig(vocab_size=9, num_encoder_layers=0)
    assert importing.target_language(tmp_path, name, decoder, {}) is None


def test_a_run_keeps_the_language_that_its_model_was_imported_with(tmp_path: Path, command: Command):
    folder = Path(shutil.copytree(FIXTURES / "hf" / "marian" / "shared", tmp_path / "opus-mt-en-zh"))
    command("import", "hf", folder, tmp_path / "run")
    assert load(tmp_path / "run").config.metrics == MetricConfig(language="zh")
