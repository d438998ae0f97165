"""Laws of encoders by CTranslate2. Oracle: the same runs in JAX."""

import dataclasses
import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.model.config import ModelConfig, SlidingWindow
from flaxformer_lite.core.model.norms import DeviationNorm
from flaxformer_lite.core.objectives import (
    AnswerSpans,
    Classification,
    MaskedLM,
    Regression,
    SentenceEmbeddings,
    TokenLabels,
)
from flaxformer_lite.core.reading.heads import DenseLayer, Pooler, SentenceEmbedding
from flaxformer_lite.core.text import EncodedText
from flaxformer_lite.engine import exports, rules
from flaxformer_lite.engine.exports import RunWeights, own_config
from flaxformer_lite.files.data.text_files import TSV
from flaxformer_lite.files.records import Classes
from flaxformer_lite.run import load
from flaxformer_lite.tasks import engine_model
from flaxformer_lite.tasks.embed.answers import Embed
from flaxformer_lite.tasks.engine_model import open_model
from tests.support import needs
from tests.support.commands import Command
from tests.support.encoder_runs import BERT, ENCODERS, exports_here, write_encoder
from tests.support.limits import assert_close
from tests.support.paths import ROOT
from tests.support.text_runs import LETTERS, TEXTS

__all__ = ["exports_here"]
pytestmark = [needs.ctranslate2, pytest.mark.usefixtures("one_device", "exports_here")]
PAIRS = [*itertools.pairwise(TEXTS), ("", "abc"), ("a", "a" * 30)]
LISTED = "; print(*sorted({m.split('.')[0] for m in sys.modules} & {'jax', 'jaxlib', 'flax'}))"
QUERIES = [("abc", TEXTS), ("fox", [])]


def close(found: Any, wanted: Any) -> None:
    """Asserts that answers are equal but for numbers, which differ by 1e-5 of the largest."""
    if isinstance(wanted, float):
        assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    elif isinstance(wanted, np.ndarray):
        assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        close([*found.values()], [*wanted.values()])
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            close(one, other)
    else:
        assert found == wanted


@pytest.mark.parametrize(
    "name", ["BERT", *(pytest.param(name, marks=pytest.mark.slow) for name in ENCODERS if name != "BERT")]
)
def test_vectors_and_classes_are_those_of_jax(name: str, tmp_path: Path):
    run = load(write_encoder(tmp_path / "run", ENCODERS[name]))
    close(run.embed(TEXTS, engine="ctranslate2"), run.embed(TEXTS))
    close(run.classify([*TEXTS, *PAIRS], engine="ctranslate2"), run.classify([*TEXTS, *PAIRS]))
    for text in TEXTS[:4]:
        close(run.embed([text], engine="ctranslate2"), run.embed([text]))
    assert run.embed([], engine="ctranslate2").shape == (0, 12)


@pytest.mark.parametrize("source", [None, 0])
def test_rows_have_as_many_texts_as_those_of_the_training(source: int | None, tmp_path: Path):
    data = TSV(path="nowhere", record=Classes(source=source, text=1, label=2))
    run = load(write_encoder(tmp_path / "run", BERT, train=data))
    right, wrong = (["abc"], [("a", "b")]) if source is None else ([("a", "b")], ["abc"])
    close(run.classify(right, engine="ctranslate2"), run.classify(right))
    for engine in ("jax", "ctranslate2"):
        with pytest.raises(ValueError, match="but this run was trained on"):
            run.classify(wrong, engine=engine)


RUNS: dict[str, tuple[dict[str, Any], Any]] = {
    "prompts": (
        {"objective": SentenceEmbeddings(prompts=(("query", "q"), ("x", "abc")), default_prompt="x")},
        lambda run, **by: (
            *(run.embed(TEXTS, prompt=prompt, width=5, **by) for prompt in (None, "", "query")),
            run.similarity(PAIRS, **by),
        ),
    ),
    "several labels": (
        {"objective": Classification(classes=("a", "b", "c"), labels="several")},
        lambda run, **by: run.classify(TEXTS, **by),
    ),
    "ratings": (
        {"objective": Regression(best="lowest", bounds=(-0.2, 0.2))},
        lambda run, **by: (run.rate(TEXTS, TEXTS[::-1], **by), run.relevance(PAIRS, **by), run.rankings(QUERIES, **by)),
    ),
    "labels": (
        {"objective": TokenLabels(labels=("O", "B-A", "I-A"))},
        lambda run, **by: run.label(["ab cde", "a " * 40, "", ["fox", "ran"]], **by),
    ),
    "answers": (
        {"objective": AnswerSpans(overlap=2, unanswerable=True)},
        lambda run, **by: run.answer([("fox", "the fox ran " * 4), ("a", ""), ("", "abc")], **by),
    ),
}


def each(classes: int) -> ModelConfig:
    """The model with classes of each token."""
    pooler = Pooler(token="each", activation=None, num_classes=classes)
    return dataclasses.replace(BERT, head=None, pooler=pooler, sentence_embedding=None)


@pytest.mark.parametrize(
    "name",
    [
        "labels",
        "answers",
        *(pytest.param(name, marks=pytest.mark.slow) for name in RUNS if name not in ("labels", "answers")),
    ],
)
def test_each_task_answers_as_with_jax(name: str, tmp_path: Path):
    parts, answered = RUNS[name]
    objective, model = parts["objective"], BERT
    if isinstance(objective, TokenLabels | AnswerSpans):
        model = each(len(getattr(objective, "labels", "ab")))
    if isinstance(objective, Regression):
        model = dataclasses.replace(model, pooler=Pooler(num_classes=1, activation="gelu"))
    run = load(write_encoder(tmp_path / "run", model, f"{LETTERS} ", **parts))
    told: dict[str, list[str]] = {"jax": [], "ctranslate2": []}
    answers = {engine: answered(run, engine=engine, warn=lines.append) for engine, lines in told.items()}
    close(answers["ctranslate2"], answers["jax"])
    assert told["ctranslate2"] == told["jax"]


def test_a_model_without_jax_is_that_of_the_run(tmp_path: Path):
    vector = SentenceEmbedding(dense=(DenseLayer(width=4, activation="tanh"),))
    folder = write_encoder(tmp_path / "run", dataclasses.replace(BERT, sentence_embedding=vector))
    run, own = load(folder), own_config(str(folder))
    assert own is not None
    model = open_model(RunWeights(str(folder)), own)
    assert model.origin == run.origin and model.origin[0][0] == 3 and model.vector_width == 4
    close(np.array(Embed().answers(model, TEXTS)), run.embed(TEXTS))
    eight = run.embed(TEXTS[:1] + TEXTS[2:], engine="ctranslate2", weights_dtype="int8")
    assert not np.array_equal(eight, run.embed(TEXTS[:1] + TEXTS[2:]))
    assert len([*(folder / "engine").glob("*/model.bin")]) == 1


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        (dataclasses.replace(BERT, norm=DeviationNorm()), "model.norm"),
        (dataclasses.replace(BERT, sliding_window=SlidingWindow(size=3)), "model.sliding_window"),
        (dataclasses.replace(BERT, scale_embeddings=True), "model.num_token_types"),
        (dataclasses.replace(BERT, pooler=Pooler(num_classes=3, norm=True)), "model.pooler.norm"),
    ],
)
def test_what_the_encoder_lacks_is_refused_by_name(model: ModelConfig, setting: str, tmp_path: Path):
    run = load(write_encoder(tmp_path / "run", model))
    with pytest.raises(ValueError, match=rf"{setting}.*, or choose engine jax"):
        run.embed(TEXTS, engine="ctranslate2")
    if setting == "model.norm":  # JAX answers in its place, whatever it lacks
        assert_close(run.embed(TEXTS, engine="auto"), run.embed(TEXTS))


@pytest.mark.parametrize("name", ["embed", "label"])
def test_a_task_without_its_head_is_refused_before_an_export(
    name: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """Law: the mistake is the one line, whichever engine would answer."""
    monkeypatch.setattr(rules, "is_installed", lambda: True)
    monkeypatch.setattr(exports, "run_exporter", lambda *given: pytest.fail("an export was made"))
    folder = write_encoder(tmp_path / "run", dataclasses.replace(BERT, sentence_embedding=None))
    refused = {engine: command.mistake(name, folder, "--engine", engine) for engine in ("jax", "auto", "ctranslate2")}
    assert {*refused.values()} == {refused["jax"]} and str(folder) in refused["jax"]


def test_texts_that_it_reads_otherwise_are_for_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    told = list[str]()
    monkeypatch.setattr(engine_model, "note_once", told.append)
    run = load(write_encoder(tmp_path / "run", ENCODERS["RoBERTa"]))
    model: Any = run.answering({"engine": "ctranslate2"})
    rows = [EncodedText([2, 5, 3], [0, 0, 0]), EncodedText([2, 1, 6, 3], [0] * 4), EncodedText([], [])]
    for wanted in ("vectors", "class_logits"):
        close(model.read(wanted, rows, print), run.text_model.read(wanted, rows, print))
    assert told[0].startswith("engine jax, in float32, for such a text: a text has no token, or padding")
    with pytest.raises(ValueError, match=r"a text has no token, or padding \(model\.position_padding_id\) within"):
        dataclasses.replace(model, otherwise=None).read("vectors", rows, print)
    with pytest.raises(ValueError, match=r"text 0 has 24 tokens, but model\.positions\.max_positions is 23"):
        model.read("vectors", [EncodedText([5] * 24, [0] * 24)], print)


def test_masks_and_models_with_a_decoder_are_for_jax(tmp_path: Path):
    run = load(write_encoder(tmp_path / "run", objective=MaskedLM(mask_token=9)))
    with pytest.raises(ValueError, match="only by encoders, and fills no masks, or choose engine jax"):
        run.fill_mask(["[MASK]"], engine="ctranslate2")
    assert run.fill_mask(["a[MASK]"], engine="auto") == run.fill_mask(["a[MASK]"])


COMMANDS = {
    "embed": ({}, BERT, "abc"),
    "classify": ({}, BERT, "abc"),
    "rank": (
        {"objective": Regression()},
        dataclasses.replace(BERT, pooler=Pooler(num_classes=1)),
        '{"query": "a", "candidates": ["b"]}',
    ),
    "label": ({"objective": TokenLabels(labels=("O", "B-A"))}, each(2), "ab cd"),
    "answer": ({"objective": AnswerSpans()}, each(2), "a\tb"),
}


@pytest.mark.slow
def test_no_command_needs_jax(tmp_path: Path):
    """Law: the process that finds the exports of all runs has neither JAX nor Flax among its modules."""
    calls = []
    for name, (parts, model, line) in COMMANDS.items():
        folder = write_encoder(tmp_path / name, model, f"{LETTERS} ", **parts)
        (tmp_path / f"{name}.txt").write_text(f"{line}\n")
        calls.append([name, str(folder), str(tmp_path / f"{name}.txt"), "--engine"])
    printed = {}
    for engine, modules in (("ctranslate2", ""), ("jax", "flax jax jaxlib")):
        code = f"import sys\nfrom flaxformer_lite.cli.main import main\nfor words in {calls}:\n    main([*words, '{engine}'])\n"
        done = subprocess.run(
            [sys.executable, "-c", f"{code}pass{LISTED}"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        *printed[engine], found = done.stdout.split("\n")[:-1]
        assert found == modules
    for lines in zip(*printed.values(), strict=True):
        numbers = [[float(x) for x in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", line)] for line in lines]
        assert_close(*numbers)
    assert len(re.findall(r"\d\.\d", "".join(printed["jax"]))) >= len(COMMANDS)
