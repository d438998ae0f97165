"""A student's losses and data: worked by hand, and a float64 reference of the cross-entropy with a teacher."""

import contextlib
import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.base.console import Progress
from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.model import LanguageModelHead, ModelConfig, Transformer
from flaxformer_lite.core.objectives import Apply
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.tools.research.distillation import Distillation, soft_cross_entropy
from flaxformer_lite.tools.research.predictions import Predictions, SoftTargets, TaughtPair, pair_key
from flaxformer_lite.training.data import RunData, read_data
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.experiments import tiny_config
from tests.support.objectives import example, outputs, record

V = 7


@pytest.mark.parametrize("top", [11, 4])
def test_soft_cross_entropy_equals_the_float64_reference(top: int, float64: None):
    """Oracle: the whole distribution of the teacher, one class at a time; what is not among its K tokens is spread evenly."""
    rng = np.random.default_rng(1)
    logits, weights = 3 * rng.normal(size=(2, 3, 11)), np.array([[1.0, 0.5, 0.0], [2.0, 0.0, 0.25]])
    teacher = np.random.default_rng(2).dirichlet(np.ones(11), (2, 3))
    ids = np.argsort(-teacher, -1)[..., :top]
    probs = np.take_along_axis(teacher, ids, -1)
    probs[0, 1] = 0  # a position that the teacher did not read
    want = 0.0
    for row in np.ndindex(2, 3):
        partition = math.log(sum(math.exp(z) for z in logits[row]))
        wanted = np.full(11, (1 - probs[row].sum()) / 11)
        wanted[ids[row]] += probs[row]
        want -= weights[row] * (probs[row].sum() > 0) * (wanted * (logits[row] - partition)).sum()
    run = jax.jit(functools.partial(soft_cross_entropy, weight=0.3))
    term = run(jnp.asarray(logits), SoftTargets(ids, probs), jnp.asarray(weights))
    assert float(term.sum) == pytest.approx(want, rel=1e-13)
    assert float(term.count) == 3.75 and term.weight == 0.3


def test_a_student_reads_all_logits():
    model = ModelConfig(vocab_size=11, d_model=4, num_heads=2, d_ff=6, head=LanguageModelHead(loss_chunk=8))
    with pytest.raises(ValueError, match=r"model\.head\.loss_chunk is 8, .* set it to None"):
        Distillation(predictions="a.npz").check_model(model)


def test_a_student_learns_from_words_and_from_its_teacher():
    """Oracle: by hand. The teacher read the first of two pairs; the second learns from its words alone."""
    objective = Distillation(label_smoothing=0.0, weight=0.25, predictions="a.npz")
    ids, probs = np.array([[5, 6], [3, 4]]), np.array([[0.5, 0.5], [1.0, 0.0]], np.float32)
    rows = [
        example(objective, TaughtPair(*pair[:2], soft), Lengths(2, 3))
        for pair, soft in (
            (record([4], [5]), SoftTargets(ids, probs)),
            (record([4], [6, 5]), SoftTargets(ids[:0], probs[:0])),
        )
    ]
    batch = jax.tree.map(lambda *x: jnp.stack(x), *rows)
    logits = np.random.default_rng(3).normal(size=(2, 3, V)).astype(np.float32)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    terms = jax.jit(objective.loss)(outputs(logits), batch)
    words = -0.75 * (logs[0, 0, 5] + logs[0, 1, 3]) - (logs[1, 0, 6] + logs[1, 1, 5] + logs[1, 2, 3])
    soft = -0.5 * (logs[0, 0, 5] + logs[0, 0, 6]) - logs[0, 1, 3]
    np.testing.assert_allclose([float(terms[name].sum) for name in terms], [words, soft], rtol=1e-5)
    assert list(terms) == ["cross_entropy", "distillation"]
    assert [term.weight for term in terms.values()] == [1.0, 0.25]
    assert [float(term.count) for term in terms.values()] == [5.0, 5.0]


@pytest.mark.parametrize(
    ("of", "vocab_size", "complaint"),
    [
        ("the data", 149, None),
        ("the data", 151, "of a vocabulary of 151 tokens, but the model's has 149: write it for this config"),
        ("others", 149, "which has none of the training pairs: write it for this config"),
    ],
)
def test_predictions_are_those_of_the_training_data(tmp_path: Path, of: str, vocab_size: int, complaint: str | None):
    """Batches of training have soft targets where the teacher read the pair; those of the evaluation have none."""

    def data_of(objective: Distillation, name: str) -> RunData:
        with Progress(silent=True) as progress:
            config = tiny_config(objective=objective)
            return read_data(config, RunFolder(tmp_path / name), progress)

    objective = Distillation(predictions=str(tmp_path / "teacher.npz"))
    with Progress(silent=True) as progress:
        pairs = read_data(tiny_config(), RunFolder(tmp_path / "other"), progress).records
    keys = [pair_key(pair) if of == "the data" else number for number, pair in enumerate(pairs)]
    soft = {
        key: SoftTargets(np.zeros((len(pair.target) + 1, 1)), np.ones((len(pair.target) + 1, 1)))
        for key, pair in zip(keys, pairs, strict=True)
    }
    Predictions.of(soft, vocab_size).write(tmp_path / "teacher.npz")
    with contextlib.nullcontext() if complaint is None else pytest.raises(ValueError, match=complaint):
        data = data_of(objective, "run")
        assert data.eval is not None
        batch = data.train.batch(0)
        np.testing.assert_array_equal(batch.extra.probs[..., 0], batch.weights)
        assert data.eval.dataset.batch(0).extra is None
        apply = Apply(Transformer(tiny_config().model), {}, DecodeConfig())
        if vocab_size != 149:
            objective.terms(apply, batch, jax.random.key(0))
