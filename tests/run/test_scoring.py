"""Scores by CTranslate2. Oracle: those of the same runs by JAX."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.objectives import AnswerSpans, Classification, MaskedLM, SentenceEmbeddings
from flaxformer_lite.core.predictions.encoder import BatchPredictor
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.runners import MeshRunner
from flaxformer_lite.metrics.translations import MetricConfig
from flaxformer_lite.run import load
from flaxformer_lite.run.scoring import ScoredData, score
from tests.support import needs
from tests.support.encoder_runs import BERT, exports_here, write_encoder
from tests.support.text_runs import LETTERS, NAMES

__all__ = ["exports_here"]
pytestmark = [needs.ctranslate2, pytest.mark.usefixtures("one_device", "exports_here")]
SCORED: dict[str, tuple[Any, list[Pair]]] = {
    "classes": (
        Classification(classes=NAMES),
        [Pair("", text, NAMES[i % 3]) for i, text in enumerate(["abc", "hello", "y", "x" * 9, "the fox"])],
    ),
    "vectors": (
        SentenceEmbeddings(prompts=(("query", "q"),)),
        [Pair("abc", "hello"), Pair("y", "x" * 9), Pair("fox", "ran")],
    ),
    "answers": (
        AnswerSpans(overlap=2, unanswerable=True),
        [Pair("fox", "the fox ran " * 4, "[[4, 7]]"), Pair("a", "ran", "[]")],
    ),
}


@pytest.mark.parametrize(
    "name", ["vectors", *(pytest.param(one, marks=pytest.mark.slow) for one in SCORED if one != "vectors")]
)
def test_scores_are_those_of_jax_and_name_their_engine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: CTranslate2 by name leaves no text of the data to JAX."""
    objective, pairs = SCORED[name]
    model = BERT
    if name == "answers":
        pooler = Pooler(token="each", activation=None, num_classes=2)
        model = dataclasses.replace(BERT, head=None, pooler=pooler, sentence_embedding=None)
    run = load(write_encoder(tmp_path / "run", model, f"{LETTERS} ", objective=objective))
    data = ScoredData("test", pairs, {"first": slice(0, 1), "others": slice(1, None)}, MetricConfig())
    wanted, _ = score(run, data, {})
    assert wanted["engine"] == "jax"
    for owner, method in ((MeshRunner, "eval_step"), (BatchPredictor, "predict")):
        monkeypatch.setattr(owner, method, lambda *given, **named: pytest.fail("JAX has read a text"))
    found, _ = score(run, data, {"engine": "ctranslate2"})
    assert found.pop("engine") == "ctranslate2" and found.keys() == wanted.keys() - {"engine"}
    for key, value in found.items():
        assert value == pytest.approx(wanted[key], rel=1e-5, abs=1e-6), key
    eight, _ = score(run, data, {"engine": "ctranslate2", "weights_dtype": "int8"})
    assert eight["loss"] != found["loss"] and np.isfinite(eight["loss"])


def test_scores_of_masks_are_by_jax_or_refused(tmp_path: Path):
    run = load(write_encoder(tmp_path / "run", objective=MaskedLM(mask_token=29)))
    data = ScoredData("test", [Pair("", "abcdefgh")] * 3, {}, MetricConfig())
    assert score(run, data, {"engine": "auto"})[0]["engine"] == "jax"
    with pytest.raises(ValueError, match="fills no masks, or choose engine jax"):
        score(run, data, {"engine": "ctranslate2"})
