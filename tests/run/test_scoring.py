"""Scores by CTranslate2. Oracle: those of the same runs by JAX."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model import Inputs
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.objectives import AnswerSpans, Batch, Classification, MaskedLM, SentenceEmbeddings
from flaxformer_lite.core.placement.batches import pad_rows
from flaxformer_lite.core.predictions.encoder import BatchPredictor
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.runners import MeshRunner
from flaxformer_lite.metrics.translations import MetricConfig
from flaxformer_lite.run import load
from flaxformer_lite.run.scoring import EngineRunner, ScoredData, score
from tests.support import needs
from tests.support.encoder_runs import BERT, exports_here, write_encoder
from tests.support.limits import assert_close
from tests.support.text_runs import LETTERS, NAMES, text_run

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


def test_a_row_without_a_token_is_read_unless_it_is_padding():
    """Law: the counts are those of the model's own outputs, also of a batch in which no row has a token."""
    run = text_run()
    runner = EngineRunner(run.text_model, run.config)
    for texts in (["abc", "", "hello"], ["", ""]):
        rows, size = [*map(run.required_tokenizers.source.encode, texts)], (4, 8)
        tokens, mask = pad_rows(rows, size), pad_rows([[1] * len(row) for row in rows], size).astype(bool)
        given: Any = Inputs(source_tokens=tokens, source_mask=mask, token_types=np.zeros_like(tokens))  # type: ignore[arg-type]
        given = Batch(given, np.ones((4, 1), np.int32), np.float32(pad_rows([[1]] * len(texts), (4, 1))))
        batch = runner.shard_batch(given)
        outputs: Any = jax.jit(run.model.apply)({"params": run.params}, batch.inputs)
        wanted = runner.metrics(Outputs(class_logits=outputs.class_logits, embedding=outputs.class_logits), batch)
        assert float(wanted["loss"].count) == len(texts)
        jax.tree.map(assert_close, runner.eval_step(run.params, batch), wanted)


def test_scores_of_masks_are_by_jax_or_refused(tmp_path: Path):
    run = load(write_encoder(tmp_path / "run", objective=MaskedLM(mask_token=29)))
    data = ScoredData("test", [Pair("", "abcdefgh")] * 3, {}, MetricConfig())
    assert score(run, data, {"engine": "auto"})[0]["engine"] == "jax"
    with pytest.raises(ValueError, match="fills no masks, or choose engine jax"):
        score(run, data, {"engine": "ctranslate2"})
