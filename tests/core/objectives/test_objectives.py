"""The contract of an objective, for every one in the union: a new objective is held to it by being named there.

Each gets the smallest model that it accepts, and pairs of texts, or texts alone where it reads documents.
"""

import dataclasses
import itertools
import typing

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data.dataset import Dataset, zero_batch
from flaxformer_lite.core.data.records import TokenPair
from flaxformer_lite.core.model.config import ModelConfig, Pooler, SentenceEmbedding
from flaxformer_lite.core.model.transformer import Transformer
from flaxformer_lite.core.objectives import BaseObjective, Batch, LossTerm, Objectives
from flaxformer_lite.core.objectives.answer_spans import ANSWER
from flaxformer_lite.core.objectives.base import HeadObjective
from flaxformer_lite.core.objectives.candidates import NEGATIVES, POSITIVES
from flaxformer_lite.core.objectives.token_labels import PIECE_LABELS
from flaxformer_lite.core.step import total
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.pairs import ANSWERS
from flaxformer_lite.core.text.special_ids import SpecialIds
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.records import READERS
from flaxformer_lite.training.evaluation import merge_counts
from tests.support.objectives import outputs

SETTINGS = {
    "masked_lm": {"mask_token": 36, "mask_rate": 0.5},
    "span_corruption": {"first_sentinel": 36, "num_sentinels": 7},
    "classification": {"classes": ("1", "2")},
    "token_labels": {"labels": ("O", "B-A")},
}
"""The settings of objectives that have no default for all of them, or whose default is for a tokenizer from elsewhere."""
OBJECTIVES = [kind(**SETTINGS.get(kind.kind, {})) for kind in typing.get_args(Objectives)]
TOKENIZER = CharacterTokenizer("abcdefghijklmnop")
DATA = DataConfig(
    tokens_per_batch=4 * 13, rows_multiple=4, bucket_lengths=(13,), max_source_length=13, max_target_length=13
)


def smallest_model(objective: BaseObjective) -> ModelConfig:
    """Returns the first model that the objective accepts, the plainest first."""
    for extra, stacks in itertools.product(
        (
            {},
            {"pooler": Pooler(num_classes=1), "head": None},
            {"pooler": Pooler(num_classes=2), "head": None},
            {"pooler": Pooler(token="each", num_classes=2), "head": None},
            {"sentence_embedding": SentenceEmbedding(pooling="mean"), "head": None},
        ),
        ((1, 1), (1, 0), (0, 1)),
    ):
        config = ModelConfig(
            vocab_size=37, d_model=6, num_heads=3, d_ff=7, num_encoder_layers=stacks[0], num_decoder_layers=stacks[1],
            **extra,
        )  # fmt: skip
        try:
            objective.check_model(config)
        except ValueError:
            continue
        return config
    raise AssertionError(f"no model for {objective.kind}: add what it needs to the candidates")


def some_rows(objective: BaseObjective, *, trains: bool = True) -> Dataset:
    """Returns a data set of pairs with the labels 1 and 2, or of texts or conversations if the objective refuses pairs."""
    rng = np.random.default_rng(6)
    texts = [rng.integers(4, 20, rng.integers(2, 11)).astype(np.int32) for _ in range(16)]
    pairs = [TokenPair(*texts[i : i + 2], label=str(1 + i % 4 // 2)) for i in range(0, 16, 2)]
    if objective.reads == "conversations":
        pairs = [TokenPair(text[:0], text, arrays={ANSWERS: np.arange(len(text)) % 3 > 0}) for text in texts]
    if objective.reads == "words":
        pairs = [TokenPair(text[:0], text, arrays={PIECE_LABELS: np.arange(len(text)) % 5}) for text in texts]
    if objective.kind == "answer_spans":
        pairs = [pair._replace(arrays={ANSWER: np.array([1, 1])}) for pair in pairs]
    if objective.kind == "reranking":
        sizes = [np.bincount(np.arange(len(pair.target)) // 2) for pair in pairs]
        arrays = [{POSITIVES: of_record[:1], NEGATIVES: of_record[1:]} for of_record in sizes]
        pairs = [pair._replace(arrays=of_record) for pair, of_record in zip(pairs, arrays, strict=True)]

    def make(records: list[TokenPair]) -> Dataset:
        if trains:
            return Dataset.training(records, objective, DATA, 3, TOKENIZER)
        return Dataset.evaluation(records, objective, DATA, TOKENIZER)

    try:
        return make(pairs)
    except ValueError:
        return make([TokenPair(text[:0], text) for text in texts])


@pytest.fixture(scope="module", params=OBJECTIVES, ids=lambda objective: objective.kind)
def objective(request: pytest.FixtureRequest) -> BaseObjective:
    return request.param


def test_a_batch_has_the_shapes_of_a_zero_batch(objective: BaseObjective):
    dataset = some_rows(objective)
    (bucket,) = dataset.plan.buckets
    chex.assert_trees_all_equal_shapes_and_dtypes(dataset.batch(0), zero_batch(objective, bucket))
    assert (dataset.lengths <= objective.longest_row(DATA.longest)).all()
    for same in (dataset, some_rows(objective)):
        chex.assert_trees_all_equal(dataset.batch(1), same.batch(1))
    evaluation = some_rows(objective, trains=False)
    chex.assert_trees_all_equal(
        evaluation.example(0, bucket.lengths, 1, 2), evaluation.example(0, bucket.lengths, 3, 4)
    )


def test_a_row_fills_the_lengths_that_batches_are_planned_by(objective: BaseObjective):
    """Law: every example, without its padding, is as long on each side as `Dataset.lengths` says."""
    dataset = some_rows(objective)
    (bucket,) = dataset.plan.buckets
    for i, expected in enumerate(dataset.lengths.tolist()):
        inputs = dataset.example(i, bucket.lengths, 0, 0).inputs
        masks = (inputs.source_mask, inputs.target_mask)
        assert [0 if mask is None else mask.sum(-1).max() for mask in masks] == expected


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda it: it.kind, indirect=True)
def test_losses_and_metrics_are_sums_over_rows_with_a_gradient(objective: BaseObjective):
    """Law: batches with one row each and zeros in the others add up to the whole batch, unless rows depend on each other."""
    model, batch = Transformer(smallest_model(objective)), some_rows(objective).batch(0)
    assert (batch.weights.sum(-1) > 0).all()
    params = jax.jit(lambda batch: model.init(jax.random.key(0), objective.inputs(batch, model.config)))(batch)
    assert set(objective.metric_names) >= {"loss"}

    @jax.jit
    def measure(params, batch: Batch):
        def loss(params):
            outputs = model.apply(params, objective.inputs(batch, model.config))
            terms = objective.loss(outputs, batch)
            counts = {name: term.count for name, term in terms.items()}
            return total(terms, counts), (terms, objective.metrics(outputs, batch))

        return jax.value_and_grad(loss, has_aux=True)(params)

    (loss, (terms, metrics)), gradient = measure(params, batch)
    chex.assert_tree_all_finite((loss, terms, metrics, gradient))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(gradient))
    figures = objective.report({name: merge_counts([counted]) for name, counted in jax.device_get(metrics).items()})
    assert set(figures) == set(objective.metric_names) and np.isfinite(list(figures.values())).all()

    alone = [
        measure(params, jax.tree.map(lambda x, i=i: np.where(only(i, x), x, 0).astype(x.dtype), batch))[0][1]
        for i in range(len(batch.weights))
    ]
    whole = {**{f"loss/{name}": term for name, term in terms.items()}, **metrics}
    parts = [{**{f"loss/{name}": term for name, term in found.items()}, **more} for found, more in alone]
    differs = False
    for name, term in whole.items():
        if isinstance(term, LossTerm):
            sums = [sum(np.asarray(part[name][i], np.float64) for part in parts) for i in (0, 1)]
            np.testing.assert_allclose(sums[1], term.count, rtol=1e-6)
            differs |= not np.allclose(sums[0], term.sum, rtol=1e-5, atol=1e-6)
    assert differs != objective.rows_independent


def test_every_head_has_smoothing_and_z_loss(objective: BaseObjective):
    """Oracle: both formulas in float64, for random logits. Evaluation has neither."""
    if not isinstance(objective, HeadObjective):
        pytest.skip("no cross-entropy of a head")
    batch = jax.tree.map(jnp.asarray, some_rows(objective).batch(0))
    weights, targets = np.asarray(batch.weights, np.float64), np.asarray(batch.targets)
    z = 3 * np.random.default_rng(5).normal(size=(*targets.shape, 37))
    of_classes = z if objective.reads == "words" else z[:, 0]
    scores = outputs(z.astype(np.float32))._replace(class_logits=jnp.asarray(of_classes, jnp.float32))
    normalizer = np.log(np.exp(z).sum(-1))
    nats = normalizer - np.take_along_axis(z, targets[..., None], -1)[..., 0]
    smoothed = 0.7 * nats + 0.3 * (normalizer - z.mean(-1))
    terms = dataclasses.replace(objective, label_smoothing=0.3, z_loss=0.5).loss(scores, batch)
    expected = {"cross_entropy": (smoothed, 1), "z_loss": (normalizer**2, 0.5)}
    assert terms.keys() == expected.keys()
    for name, (values, weight) in expected.items():
        np.testing.assert_allclose(terms[name].sum, (values * weights).sum(), rtol=1e-5)
        assert (float(terms[name].count), terms[name].weight) == (weights.sum(), weight)
    found = dataclasses.replace(objective, label_smoothing=0.3).metrics(scores, batch)["loss"]
    np.testing.assert_allclose(found.sum, (nats * weights).sum(), rtol=1e-5)
    assert dataclasses.replace(objective, label_smoothing=0.0).loss(scores, batch).keys() == {"cross_entropy"}


def only(row: int, x: np.ndarray) -> np.ndarray:
    """Returns where an array `[B, …]` has that row."""
    return (np.arange(len(x)) == row).reshape(-1, *(1,) * (x.ndim - 1))


def test_what_it_says_of_itself_is_known_elsewhere(objective: BaseObjective):
    """The constants name things that exist: a record, special ids, a way to read prompts."""
    assert objective.reads in READERS
    assert set(objective.decoder_special_ids) <= set(SpecialIds._fields)
    assert objective.prompt_attention in ("causal", "full")
    assert dataclasses.replace(objective) == objective and objective.kind == type(objective).kind
