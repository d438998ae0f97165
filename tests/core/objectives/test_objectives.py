"""The contract of an objective, for every one of `OBJECTIVES`, of which each in the union is one: a new one is held to it.

Each gets the smallest model that it accepts, and pairs of texts, or texts alone where it reads documents.
"""

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data.dataset import Dataset, zero_batch
from flaxformer_lite.core.data.records import NEGATIVES, POSITIVES, TokenPair
from flaxformer_lite.core.model import ModelConfig, Transformer
from flaxformer_lite.core.objectives import (
    AnswerSpans,
    BaseObjective,
    Batch,
    CausalLM,
    Classification,
    LossTerm,
    MaskedLM,
    Regression,
    Reranking,
    SentenceEmbeddings,
    Seq2Seq,
    SpanCorruption,
    TokenLabels,
)
from flaxformer_lite.core.objectives.base import HeadObjective
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.reading.objectives import ANSWER, PIECE_LABELS
from flaxformer_lite.core.step import total
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.pairs import ANSWER_FLAGS
from flaxformer_lite.core.text.special_ids import SpecialIds
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.records import READERS
from flaxformer_lite.training.evaluation import merge_counts
from tests.support.objectives import OBJECTIVES, outputs, smallest_model

TOKENIZER = CharacterTokenizer("abcdefghijklmnop")
DATA = DataConfig(
    tokens_per_batch=4 * 13, rows_multiple=4, bucket_lengths=(13,), max_source_length=13, max_target_length=13
)


def some_rows(objective: BaseObjective, *, trains: bool = True) -> Dataset:
    """Returns a data set of pairs with the labels 1 and 2, or of texts or conversations if the objective refuses pairs."""
    rng = np.random.default_rng(6)
    texts = [rng.integers(4, 20, rng.integers(2, 11)).astype(np.int32) for _ in range(16)]
    pairs = [TokenPair(*texts[i : i + 2], label=str(1 + i % 4 // 2)) for i in range(0, 16, 2)]
    if objective.reads == "conversations":
        pairs = [TokenPair(text[:0], text, arrays={ANSWER_FLAGS: np.arange(len(text)) % 3 > 0}) for text in texts]
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


MARGIN = {"criterion": "margin_mse", "num_negatives": 2}
THREE = {"classes": ("art", "law", "sea")}
SEVERAL = THREE | {"labels": "several"}
SETTINGS: dict[type[BaseObjective], list[tuple[dict[str, Any], str]]] = {
    MaskedLM: [({"mask_token": 3}, "objective.mask_token is 3")],
    CausalLM: [({"z_loss": -1}, "objective.z_loss is -1")],
    SpanCorruption: [({"first_sentinel": 99, "num_sentinels": 96}, "objective.num_sentinels is 96")],
    Classification: [
        ({"classes": ("a",)}, r"^objective\.classes is \('a',\): it must be at least 2 names"),
        ({"classes": ("a", "a")}, r"objective\.classes is \('a', 'a'\)"),
        (SEVERAL | {"classes": ("a", "a")}, r"^objective\.classes is \('a', 'a'\): it must be at least 1 names"),
        (
            THREE | {"class_weights": (1.0,)},
            r"^objective\.class_weights has 1 numbers, but objective\.classes 3 names: give",
        ),
        (THREE | {"class_weights": (1.0, 0.0, 1.0)}, r"^objective\.class_weights is "),
        (
            THREE | {"threshold": 0.3},
            r"\.threshold is 0\.3, but objective\.labels is 'one', .*leave it out, or set labels",
        ),
        (SEVERAL | {"threshold": 1.0}, r"^objective\.threshold is 1\.0"),
        (
            SEVERAL | {"label_smoothing": 0.1},
            r"^objective\.label_smoothing is 0\.1, but objective\.labels is 'several'",
        ),
        (SEVERAL | {"z_loss": 1e-4}, r"^objective\.z_loss is 0\.0001, but objective\.labels is 'several'"),
    ],
    SentenceEmbeddings: [
        ({"prompts": (("a", "b"), ("a", "c"))}, r"objective\.prompts is .*: it must be pairs of a name and a text"),
        (
            {"prompts": (("query", "b"),), "query_prompt": "quary"},
            "query_prompt is 'quary': .* 'query'; perhaps you meant",
        ),
        (
            {"default_prompt": "a"},
            r"default_prompt is 'a': the prompts are none: leave it out, or set objective\.prompts",
        ),
        ({"document_prompt": "x"}, r"objective\.document_prompt is 'x': the prompts are none"),
        ({"widths": (3, 2), "width_weights": (1.0,)}, r"width_weights is \(1\.0,\), but objective\.widths is \(3, 2\)"),
        ({"criterion": "margin_mse"}, r"objective\.num_negatives is 0, but objective\.criterion 'margin_mse'"),
        (MARGIN | {"directions": "both"}, r"objective\.directions is 'both', but objective\.criterion 'margin_mse'"),
    ],
    AnswerSpans: [
        (
            {"threshold": 0.5},
            r"threshold is 0\.5, but objective\.unanswerable is False, so each .*: leave it out, or set unanswerable to True$",
        ),
    ],
    TokenLabels: [
        (
            {"labels": ("O", "B-A"), "class_weights": (1.0,)},
            r"^objective\.class_weights has 1 numbers, but objective\.labels 2 n",
        ),
        ({"labels": ()}, r"objective\.labels is \(\): it must be at least 1 label, all different"),
        ({"labels": ("O", "O")}, "all different"),
        (
            {"labels": ("O", "PER")},
            r"labels has 'PER', but objective\.scheme is 'bio', whose labels are O, B-TYPE, I-TYPE",
        ),
        ({"labels": ("O", "S-PER")}, "set the scheme to 'plain'"),
        ({"labels": ("O", "X-PER"), "scheme": "bioes"}, "labels are O, B-TYPE, I-TYPE, E-TYPE, S-TYPE: rename it"),
    ],
    Reranking: [({"num_candidates": 1}, r"^objective\.num_candidates is 1")],
}


@pytest.mark.parametrize(("kind", "settings", "message"), [(kind, *row) for kind in SETTINGS for row in SETTINGS[kind]])
def test_settings_that_do_not_fit_are_refused(kind: type[BaseObjective], settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        kind(**settings)


ENCODER, DECODER = {"num_decoder_layers": 0}, {"num_encoder_layers": 0}
YES_NO, POOLER = Classification(classes=("yes", "no")), Pooler(num_classes=2)
MODELS: list[tuple[BaseObjective, dict[str, Any], str]] = [
    (CausalLM(), {}, r"^model\.num_encoder_layers is 6, but .*'causal_lm'.* without encoder: set it to 0"),
    (CausalLM(), DECODER | {"head": None}, r"^model\.head is None.*'causal_lm'"),
    (Seq2Seq(), DECODER, r"^model\.num_encoder_layers is 0, but .*'seq2seq'.* with encoder: set it to at least 1"),
    (MaskedLM(mask_token=29), ENCODER, r"\.mask_token is 29, which is no token id: .* between 0 and 28"),
    (SpanCorruption(first_sentinel=29, num_sentinels=2), {}, r"\.first_sentinel is 29, which .*: .* between 0 and 28"),
    (YES_NO, ENCODER, r"^model\.pooler is None, but .*'classification' needs 2: .*Pooler\(num_classes=2\)"),
    (YES_NO, ENCODER | {"pooler": Pooler(num_classes=3)}, r"^model\.pooler is one of 3 classes, but"),
    (YES_NO, {}, "^the model has an encoder and a decoder .* needs a model with one of them: set one of the two to 0$"),
    (Regression(), ENCODER | {"pooler": POOLER}, r"^model\.pooler is one of 2 classes, .* needs 1"),
    (Reranking(), ENCODER | {"pooler": POOLER}, r"^model\.pooler is one of 2 classes, but .*'reranking' needs 1"),
    (SentenceEmbeddings(), ENCODER, r"^model\.sentence_embedding is None, but objective\.kind 'sentence_embeddings'"),
    (
        AnswerSpans(),
        ENCODER | {"head": None, "pooler": POOLER},
        r'needs 2 of each token: set model\.pooler to Pooler\(token="each", activation=None, num_classes=2\)',
    ),
    (
        TokenLabels(labels=("O", "B-A")),
        ENCODER | {"head": None, "pooler": POOLER},
        r"^model\.pooler is one of 2 classes, but objective\.kind 'token_labels' needs 2 of each token: set model\.pooler to "
        r'Pooler\(token="each", activation=None, num_classes=2\)$',
    ),
    (YES_NO, ENCODER | {"pooler": dataclasses.replace(POOLER, token="each")}, "is one of 2 classes of each token, but"),
]


@pytest.mark.parametrize(("objective", "model", "message"), MODELS)
def test_a_model_that_does_not_fit_is_refused_in_one_line(
    objective: BaseObjective, model: dict[str, Any], message: str
):
    with pytest.raises(ValueError, match=message) as caught:
        objective.check_model(ModelConfig(vocab_size=29, **model))
    assert "\n" not in str(caught.value)
