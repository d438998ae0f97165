"""Sentence embeddings. Oracle: float64 NumPy that goes through queries and candidates one by one; sentence-transformers."""

import dataclasses
import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data.batch_plan import Mixing
from flaxformer_lite.core.data.dataset import Dataset, MixedRecords
from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.core.model import ModelConfig, SentenceEmbedding, Transformer
from flaxformer_lite.core.model.inputs import Inputs, Outputs
from flaxformer_lite.core.objectives import Batch, SentenceEmbeddings
from flaxformer_lite.core.optim import Constant, OptimizerConfig
from flaxformer_lite.core.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.core.runners import MeshRunner
from flaxformer_lite.core.step import TrainTask, eval_step, gradient, joint_outputs
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.special_ids import BOS, EOS
from flaxformer_lite.files.data.config import DataConfig
from tests.support.objectives import candidate_record, example, record
from tests.support.small_models import NO_DROPOUT

TOKENIZER = CharacterTokenizer("abcdefghijklmnop")
DATA = DataConfig(
    tokens_per_batch=7 * 11, rows_multiple=7, bucket_lengths=(11,), max_source_length=11, max_target_length=11
)
ROWS, TEXTS, WIDTH = 5, 4, 7
MARGIN = {"criterion": "margin_mse", "num_negatives": 2}
VARIANTS: dict[str, dict[str, Any]] = {
    "forward": {},
    "both": {"directions": "both"},
    "widths": {"directions": "both", "widths": (7, 3, 2), "width_weights": (1.0, 0.5, 0.25)},
    "margin": MARGIN,
    "margin_widths": MARGIN | {"widths": (5, 2)},
}


def objective_of(variant: str, **settings: Any) -> SentenceEmbeddings:
    return SentenceEmbeddings(**{"temperature": 0.3, "num_negatives": 2, **VARIANTS[variant], **settings})


def vectors_and_scores() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    return rng.normal(size=(ROWS, TEXTS, WIDTH)), rng.normal(size=(ROWS, TEXTS - 1)) * 3


def loss_of(
    objective: SentenceEmbeddings, vectors: Any, scores: Any, present: np.ndarray | None = None, **more: Any
) -> Any:
    """The training loss of vectors [B, K, D], whose last row is padding if `present` says so."""
    mask = np.ones(vectors.shape[:2], bool) if present is None else present
    digests = np.arange(mask.size, dtype=np.int32).reshape(mask.shape)
    batch = Batch(
        Inputs(source_mask=jnp.asarray(mask)[..., None]),
        jnp.asarray(scores),
        jnp.asarray(mask[:, :1], float),
        extra=(digests, digests[:, 1:2]),
    )
    terms = objective.loss(Outputs(embedding=vectors.reshape(-1, vectors.shape[-1]), **more), batch)
    return sum(term.weight * term.sum / term.count for term in terms.values())


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(objective: SentenceEmbeddings, vectors: Any, *given: Any) -> Any:
    return jax.value_and_grad(lambda vectors: loss_of(objective, vectors, *given))(vectors)


def by_hand(objective: SentenceEmbeddings, vectors: np.ndarray, scores: np.ndarray, present: np.ndarray) -> float:
    """The same, pair by pair."""
    loss = 0.0
    weights = objective.width_weights or [1.0] * len(objective.widths)
    for width, weight in zip(objective.widths, weights, strict=True) if objective.widths else [(None, 1.0)]:
        cut = vectors[..., :width]
        unit = cut / np.linalg.norm(cut, axis=-1, keepdims=True)
        rows = [i for i in range(len(vectors)) if present[i, 0]]
        if objective.criterion == "margin_mse":
            used = cut if width is None else unit
            errors = []
            for i in rows:
                products = [used[i, 0] @ used[i, k] / objective.temperature for k in range(1, TEXTS)]
                errors += [
                    ((products[0] - products[k]) - (scores[i, 0] - scores[i, k])) ** 2
                    for k in range(1, TEXTS - 1)
                    if present[i, k + 1]
                ]
            loss += weight * np.mean(errors)
            continue
        documents = [unit[j, k] for k in range(1, TEXTS) for j in rows if present[j, k]]
        forward = []
        for place, i in enumerate(rows):
            logits = np.array([unit[i, 0] @ document for document in documents]) / objective.temperature
            forward.append(np.log(np.exp(logits).sum()) - logits[place])
        backward = []
        for place, i in enumerate(rows):
            logits = np.array([unit[i, 1] @ unit[j, 0] for j in rows]) / objective.temperature
            backward.append(np.log(np.exp(logits).sum()) - logits[place])
        both = objective.directions == "both"
        loss += weight * ((np.mean(forward) + np.mean(backward)) / 2 if both else np.mean(forward))
    return float(loss)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("lacks", [False, True], ids=["whole", "lacking"])
def test_losses_and_gradients_are_those_of_one_by_one(variant: str, lacks: bool):
    """Negatives that a row lacks, and a row of padding, change nothing; the gradient is that of differences."""
    vectors, scores = vectors_and_scores()
    present = np.ones((ROWS, TEXTS), bool)
    if lacks:
        present[1, 3] = present[2, 2] = present[2, 3] = False
        present[4] = False
    objective = objective_of(variant)
    with jax.enable_x64(True):
        found, grads = loss_and_gradient(objective, jnp.asarray(vectors), scores, present)
    assert float(found) == pytest.approx(by_hand(objective, vectors, scores, present), rel=1e-9)
    for place in ((0, 0, 0), (1, 1, 1), (3, 2, 1), (2, 3, 0), (4, 1, 0)):
        step = np.zeros_like(vectors)
        step[place] = 1e-5
        around = [by_hand(objective, vectors + sign * step, scores, present) for sign in (1, -1)]
        assert float(grads[place]) == pytest.approx((around[0] - around[1]) / 2e-5, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("variant", ["both", "margin"])
def test_a_learned_temperature_is_a_factor_of_the_first_one(variant: str):
    """Oracle: the loss of a fixed temperature, at a few values, and its slope; it is at least 0.01."""
    vectors, scores = vectors_and_scores()

    def fixed(log_scale: float) -> float:
        objective = objective_of(variant, temperature=max(0.3 * np.exp(-log_scale), 0.01))
        return by_hand(objective, vectors, scores, np.ones((ROWS, TEXTS), bool))

    with jax.enable_x64(True):
        given = jnp.asarray(vectors), jnp.asarray(scores)
        learned = jax.jit(jax.value_and_grad(lambda s: loss_of(objective_of(variant), *given, log_scale=s)))
        for log_scale in (-0.5, 0.0, 1.0, 9.0):
            found, slope = learned(jnp.asarray(log_scale))
            assert float(found) == pytest.approx(fixed(log_scale), rel=1e-8)
            assert float(slope) == pytest.approx((fixed(log_scale + 1e-5) - fixed(log_scale - 1e-5)) / 2e-5, rel=1e-5)


def test_a_row_has_a_positive_and_drawn_negatives():
    """Each positive and each set of negatives occurs; what a record lacks is masked; scores follow their candidates."""
    objective = SentenceEmbeddings(criterion="margin_mse", num_negatives=2)
    several = candidate_record([4], [[5, 5], [6], [7], [8], [9]], 2, 0.5, 1.5, 2.5, 3.5, 4.5)
    single = candidate_record([4, 4], [[5], [6]], 1, 7, -7)
    rows = objective.make_rows([several, single], Lengths(9, 0), 0, TOKENIZER)
    assert rows.lengths.tolist() == [[4, 0], [4, 0]]
    drawn = set()
    for key in range(200):
        batch = example(objective, rows[0], Lengths(5, 0), key, 1)
        assert batch.inputs.source_mask.sum(1).tolist() in ([3, 4, 3, 3], [3, 3, 3, 3])
        texts = [row[1] for row in batch.inputs.source_tokens.tolist()]
        assert (np.array(texts[1:]) - 4.5).tolist() == batch.targets.tolist()
        drawn.add((texts[1], frozenset(texts[2:])))
    assert drawn == {(p, frozenset(n)) for p in (5, 6) for n in ((7, 8), (7, 9), (8, 9))}
    batch = example(objective, rows[1], Lengths(5, 0))
    assert batch.inputs.source_tokens[:3].tolist() == [[BOS, 4, 4, EOS, 0], [BOS, 5, EOS, 0, 0], [BOS, 6, EOS, 0, 0]]
    assert batch.inputs.source_mask[3].sum() == 0 and batch.targets.tolist() == [7, -7, 0]


RELATED = [
    # Two queries with one answer, one query in two rows, and answers of a query of which its row has one.
    *(([4, 4], [[7]], [[8]]), ([5], [[7]], [[9]]), ([6], [[10]], [[7]]), ([6], [[11]], [[12]])),
    *(([13], [[14], [15]], [[16]]), ([17], [[15]], [[18, 5]]), ([8], [[14]], [[16]])),
    # A query that is an answer, and negatives that are a query or its answer.
    *(([7], [[18, 5]], [[7]]), ([19], [[19, 4]], [[19, 4]])),
]
"""Queries, their positives and their negatives."""


@pytest.mark.parametrize("variant", ["forward", "both"])
def test_what_answers_a_query_is_no_negative_of_it(variant: str):
    """Oracle: the loss text by text, over what may be compared by the records; a row of padding changes nothing."""
    records = [candidate_record(query, [*yes, *no], len(yes)) for query, yes, no in RELATED]
    data = dataclasses.replace(DATA, rows_multiple=10)
    batch = Dataset.evaluation(records, objective := objective_of(variant, num_negatives=1), data, TOKENIZER).batch(0)
    tokens = np.where(batch.inputs.source_mask, batch.inputs.source_tokens, 0).tolist()
    texts = [[[i for i in ids if i not in (0, BOS, EOS)] for ids in row] for row in tokens]
    vectors = np.random.default_rng(5).normal(size=(10, 3, WIDTH))
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    known = {tuple(query): yes for query, yes, _ in RELATED}
    rows = [i for i in range(10) if texts[i][0]]
    assert len(rows) == 9

    def compared(i: int, j: int, k: int) -> bool:
        (query, *_), other = texts[i], texts[j][k]
        is_known = other == query or other in [*known[tuple(query)], texts[i][1]] or (k == 1 and texts[j][0] == query)
        return (i, k) == (j, 1) or not is_known

    def nats(pairs: list[tuple[int, int]], own: float, of: Any) -> float:
        logits = np.array([of(*pair) for pair in pairs]) / objective.temperature
        return np.log(np.exp(logits).sum()) - own / objective.temperature

    forward, backward = 0.0, 0.0
    for i in rows:
        own = unit[i, 0] @ unit[i, 1]
        others = [(j, k) for j in rows for k in (1, 2) if compared(i, j, k)]
        forward += nats(others, own, lambda j, k, i=i: unit[i, 0] @ unit[j, k]) / 9
        queries = [(j, 0) for j in rows if compared(j, i, 1)]
        backward += nats(queries, own, lambda j, k, i=i: unit[i, 1] @ unit[j, 0]) / 9
    wanted = (forward + backward) / 2 if variant == "both" else forward
    with jax.enable_x64(True):
        terms = jax.jit(objective.loss)(Outputs(embedding=jnp.asarray(vectors.reshape(-1, WIDTH))), batch)
        found = sum(term.weight * term.sum / term.count for term in terms.values())
    assert float(found) == pytest.approx(wanted, rel=1e-6)


def test_an_evaluation_reads_candidates_of_several_lengths():
    data = DataConfig(tokens_per_batch=9, rows_multiple=1, bucket_lengths=(9,), max_source_length=9)
    objective = SentenceEmbeddings(num_negatives=1)
    batch = Dataset.evaluation([candidate_record([4], [[5], [6, 7, 8]])], objective, data, TOKENIZER).batch(0)
    assert batch.inputs.source_mask.sum(-1).tolist() == [[3, 3, 5]]


def test_an_evaluation_draws_by_the_row_alone():
    """Law: the same negatives at every step and place, also of candidates of different lengths."""
    rng = np.random.default_rng(3)
    records = [some_record(rng) for _ in range(7)]
    objective = SentenceEmbeddings(num_negatives=1)
    found = [
        Dataset.evaluation(some, objective, DATA, TOKENIZER).batch(0).inputs.source_tokens
        for some in (records, records, records[::-1])
    ]
    np.testing.assert_array_equal(found[0], found[1])
    assert {row.tobytes() for row in found[0]} == {row.tobytes() for row in found[2]}


def test_plain_pairs_are_evaluated_beside_negatives_in_training():
    """Oracle: the rows where no negatives are read; further texts are absent. One source of a mixture may have pairs alone."""
    pairs = [record([4, i], [i, 5]) for i in range(6, 10)]
    plain, masked = (
        Dataset.evaluation(pairs, SentenceEmbeddings(num_negatives=number), DATA, TOKENIZER).batch(0).inputs
        for number in (0, 2)
    )
    np.testing.assert_array_equal(masked.source_tokens[:, :2], plain.source_tokens)
    assert plain.source_mask.any() and not masked.source_mask[:, 2:].any()
    parts = [TokenArrays.of(pairs), TokenArrays.of([candidate_record([4], [[5], [6]])])]
    Dataset.training(MixedRecords(parts, Mixing(None, 1.0)), SentenceEmbeddings(num_negatives=1), DATA, 0, TOKENIZER)


def test_data_that_does_not_fit_is_refused_or_told():
    pair, with_negative = record([4], [5]), candidate_record([4], [[5], [6]])
    for objective in (SentenceEmbeddings(num_negatives=3), SentenceEmbeddings(**MARGIN)):
        scored = candidate_record([4], [[5]], 1, 0.5)
        with pytest.raises(ValueError, match=r"num_negatives is [23], but no record of the data has a negative"):
            Dataset.training([scored], objective, DATA, 0, TOKENIZER)
    with pytest.raises(ValueError, match=r"scores of a teacher, but record 1 of the data has none: name their fields"):
        SentenceEmbeddings(**MARGIN).make_rows([with_negative], Lengths(9, 0), 0, TOKENIZER)
    rows = SentenceEmbeddings().make_rows([pair, with_negative], Lengths(9, 0), 0, TOKENIZER)
    assert rows.note == "the data has 1 negatives, which are not read: objective.num_negatives is 0"
    scored = candidate_record([4], [[5], [6]], 1, 3, 0.5)
    rows = SentenceEmbeddings(num_negatives=1).make_rows([pair, scored], Lengths(9, 0), 0, TOKENIZER)
    assert rows.note.endswith("which objective.criterion 'in_batch_negatives' does not read")
    assert SentenceEmbeddings(**MARGIN).make_rows([scored], Lengths(9, 0), 0, TOKENIZER).note == ""


def test_a_width_is_at_most_that_of_the_vectors():
    with pytest.raises(ValueError, match=r"objective\.widths is \(9, 4\), but vectors have the width 8"):
        SentenceEmbeddings(widths=(9, 4)).check_model(model_of(d_model=8))


def test_a_learned_temperature_begins_in_its_range():
    model = dataclasses.replace(model_of(), sentence_embedding=SentenceEmbedding(learned_temperature=True))
    SentenceEmbeddings(temperature=0.01).check_model(model)
    with pytest.raises(ValueError, match=r"objective\.temperature is 0\.005, but .* has at least 0\.01: raise it"):
        SentenceEmbeddings(temperature=0.005).check_model(model)


# One micro-batch in memory at a time ----------------------------------------------------------------------------------


def model_of(**settings: Any) -> ModelConfig:
    sizes = {
        "vocab_size": 29,
        "num_heads": 2,
        "d_ff": 16,
        "num_encoder_layers": 2,
        "num_decoder_layers": 0,
        "d_model": 8,
    }
    return ModelConfig(**{**sizes, "head": None, "sentence_embedding": SentenceEmbedding(), **settings})


def some_record(rng: np.random.Generator) -> TokenPair:
    query, *candidates = (rng.integers(4, 20, rng.integers(1, 9)).tolist() for _ in range(4))
    return candidate_record(query, candidates)


def task_of(number: int, **settings: Any) -> TrainTask:
    objective = SentenceEmbeddings(num_negatives=2, directions="both", widths=(8, 3))
    optimizer = OptimizerConfig(schedule=Constant(peak_rate=1e-2)).build(total_steps=9, d_model=8)
    return TrainTask(
        model=Transformer(model_of(**settings)),
        objective=objective,
        optimizer=optimizer,
        seed=0,
        num_micro_batches=number,
    )


def batch_of(objective: SentenceEmbeddings, rows: int) -> Batch:
    """A batch whose last row is padding."""
    rng = np.random.default_rng(3)
    records = [some_record(rng) for _ in range(rows - 1)]
    data = DataConfig(
        tokens_per_batch=rows * 11, rows_multiple=rows, bucket_lengths=(11,), max_source_length=11, max_target_length=11
    )
    return Dataset.training(records, objective, data, 3, TOKENIZER).batch(0)


@pytest.mark.slow
def test_micro_batches_have_the_gradient_of_the_whole_batch():
    """Law: loss, gradient and metrics of 1 and 6 micro-batches are equal without dropout; the last row is padding."""
    found = []
    with jax.enable_x64(True):
        for number in (1, 6):
            task = task_of(
                number,
                dropout=NO_DROPOUT,
                dtype="float64",
                sentence_embedding=SentenceEmbedding(learned_temperature=True),
            )
            batch, params = batch_of(task.objective, 12), jax.jit(task.initialize)().params
            assert batch.weights[:, 0].tolist().count(0) == 1
            gradients = jax.jit(functools.partial(gradient, task))(params, batch, jax.random.key(1))
            assert abs(gradients[2]["log_scale"]) > 1e-3
            found.append((gradients, jax.jit(functools.partial(eval_step, task))(params, batch)))
        for one, other in zip(*map(jax.tree.leaves, found), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6, rtol=1e-6)


@pytest.mark.slow
def test_each_micro_batch_has_dropout_of_its_own():
    """Law: with all rows equal, vectors of one micro-batch differ by dropout, and those of two micro-batches too."""
    task = task_of(2)
    batch = jax.tree.map(lambda x: np.repeat(x[:1], 4, 0), batch_of(task.objective, 12))
    params = jax.jit(task.initialize)().params
    vectors = np.asarray(joint_outputs(task, params, batch, jax.random.key(0)).embedding).reshape(4, -1)
    assert len(np.unique(vectors, axis=0)) == 4
    assert len(np.unique(np.asarray(joint_outputs(task, params, batch).embedding).reshape(4, -1), axis=0)) == 1


@pytest.mark.slow
def test_a_large_batch_trains_in_the_memory_of_a_micro_batch():
    """Law: 1,024 rows in micro-batches of 32 take the scratch memory of 32 rows and the logits, with their gradient."""
    bytes_ = []
    for rows, number in ((32, 1), (1024, 32), (1024, 1)):
        task = dataclasses.replace(task_of(number, d_model=32, d_ff=512), objective=SentenceEmbeddings())
        state, batch = jax.eval_shape(task.initialize), batch_of(task.objective, 4)
        shapes = jax.tree.map(lambda x, rows=rows: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), batch)
        compiled = jax.jit(functools.partial(gradient, task)).lower(state.params, shapes, jax.random.key(0)).compile()
        bytes_.append(compiled.memory_analysis().temp_size_in_bytes)
    logits = 1024 * 1024 * 4
    assert bytes_[1] < 1.2 * bytes_[0] + 3 * logits and bytes_[2] > 8 * bytes_[1], bytes_


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_eight_devices_are_one(number: int):
    """Law: three steps on a mesh of eight devices have the losses of one device: negatives are those of all devices."""
    task, found = task_of(number, dropout=NO_DROPOUT), []
    batch = batch_of(task.objective, 32)
    for mesh in (make_mesh(MeshConfig(), jax.devices()[:1]), make_mesh(MeshConfig())):
        runner = MeshRunner(task, mesh)
        state, losses = runner.init(), []
        for _ in range(3):
            rows = jax.tree.map(lambda x, runner=runner: x[runner.local_rows(32)], batch)
            state, measured = runner.train_step(state, runner.shard_batch(rows))
            losses.append(float(measured["loss"]))
        found.append(losses)
    np.testing.assert_allclose(*found, rtol=1e-5)


# As sentence-transformers ---------------------------------------------------------------------------------------------

HAS_LIBRARY = importlib.util.find_spec("sentence_transformers") is not None


def their_loss(variant: str, vectors: np.ndarray, scores: np.ndarray, temperature: float) -> tuple[float, np.ndarray]:
    """Loss and gradient by sentence-transformers, of columns of vectors that a model returns as they are."""
    import torch
    from sentence_transformers.sentence_transformer import losses

    class AsGiven(torch.nn.Module):
        def forward(self, features: Any) -> Any:
            return {"sentence_embedding": features["x"]}

        def __getitem__(self, place: int) -> Any:
            return self

        def get_embedding_dimension(self) -> int:
            return WIDTH

    model: Any = AsGiven()
    given = torch.tensor(vectors, requires_grad=True)

    def scaled(a: Any, b: Any) -> Any:
        return (a * b).sum(-1) / temperature

    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    one: Any = {
        "forward": lambda: losses.MultipleNegativesRankingLoss(model, scale=1 / temperature),
        "both": lambda: losses.MultipleNegativesRankingLoss(model, scale=1 / temperature, **both),
        "margin": lambda: losses.MarginMSELoss(model, similarity_fct=scaled),
        "cached": lambda: losses.CachedMultipleNegativesRankingLoss(model, scale=1 / temperature, mini_batch_size=2),
    }[variant.replace("_widths", "").replace("widths", "both")]()
    if "widths" in variant:
        widths, weights = VARIANTS[variant]["widths"], VARIANTS[variant].get("width_weights")
        one = losses.MatryoshkaLoss(model, one, list(widths), list(weights) if weights else None)
    columns = [{"x": given[:, i]} for i in range(given.shape[1])]
    loss = one(columns, torch.tensor(scores))
    loss.backward()
    assert given.grad is not None
    return loss.item(), given.grad.numpy()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_LIBRARY, reason="sentence-transformers is not installed")
@pytest.mark.parametrize("variant", [*VARIANTS, "cached"])
def test_losses_and_gradients_are_those_of_sentence_transformers(variant: str):
    """Oracle: the library, in float64, on the same vectors; its `scale` is 1 / temperature."""
    vectors, scores = vectors_and_scores()
    objective = objective_of(variant.replace("cached", "forward"))
    loss, grads = their_loss(variant, vectors, scores, objective.temperature)
    with jax.enable_x64(True):
        found = loss_and_gradient(objective, jnp.asarray(vectors), scores)
    assert float(found[0]) == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(found[1], grads, rtol=1e-6, atol=1e-9)
