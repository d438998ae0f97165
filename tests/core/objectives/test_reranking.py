"""Oracles: sentence-transformers' losses of cross-encoders, and gradients; formulas, one pair at a time; rows and ranks by hand."""

import json
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import train
from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.data import BatchShapes, Lengths, TokenPair
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import POSITIVES
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.inputs import Inputs, Outputs
from flaxformer_lite.core.objectives import Batch, Reranking
from flaxformer_lite.core.objectives.reranking import CRITERIA
from flaxformer_lite.core.optim import AdamW, Constant, OptimizerConfig
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.text import Characters
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD
from flaxformer_lite.files.data import DataConfig, JSONLines
from flaxformer_lite.files.records import Candidates
from flaxformer_lite.training.evaluation import merge_counts
from tests.support import needs
from tests.support.objectives import candidate_record, example

SIZES = (3, 5, 2, 5)
"""The candidates of the rows of the batch below, of which the first is a positive."""


def drawn() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    scores, relevance = rng.normal(size=(4, 5)) * 3, rng.integers(0, 4, (4, 5)).astype(np.float64)
    return scores, np.where(np.arange(5) < np.array(SIZES)[:, None], relevance, 0)


def batch_of(relevance: np.ndarray, extra: tuple[np.ndarray, np.ndarray] | None = None) -> Batch:
    """A batch of rows with these numbers of candidates, and one padding row."""
    there = np.pad(np.arange(5) < np.array(SIZES)[:, None], ((0, 1), (0, 0)))
    inputs = Inputs(source_mask=jnp.asarray(there)[..., None].repeat(3, -1))
    weights = jnp.array([1.0] * 4 + [0.0])[:, None]
    return Batch(inputs, jnp.asarray(np.pad(relevance, ((0, 1), (0, 0)))), weights, None, extra)


def loss_and_gradient(criterion: str, scores: np.ndarray, relevance: np.ndarray) -> tuple[float, np.ndarray]:
    objective = Reranking(criterion=criterion)

    def loss(z: jax.Array) -> jax.Array:
        logits = jnp.concatenate([z, jnp.full((1, 5), 3.0)]).reshape(-1, 1)
        (term,) = objective.loss(Outputs(class_logits=logits), batch_of(relevance)).values()
        return term.sum / term.count

    with jax.enable_x64():
        value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(scores))
    return float(value), np.asarray(gradient)


def terms_of(criterion: str, z: np.ndarray, y: np.ndarray) -> list[float]:
    """The losses of a query, one candidate or pair at a time."""
    size = len(z)
    if criterion == "binary":
        return [np.log1p(np.exp(-z[i] if y[i] else z[i])) for i in range(size)]
    if criterion == "margin_mse":
        return [((z[0] - z[i]) - (y[0] - y[i])) ** 2 for i in range(1, size)]
    if criterion == "ranknet":
        return [np.log2(1 + np.exp(z[j] - z[i])) for i in range(size) for j in range(size) if y[i] > y[j]]
    assert criterion == "listnet"
    p, q = (np.exp(x) / np.exp(x).sum() for x in (z, y))
    return [-(q * np.log(p)).sum()]


def by_formula(criterion: str, scores: np.ndarray, relevance: np.ndarray) -> float:
    rows = zip(scores, relevance, SIZES, strict=True)
    return float(np.mean([loss for z, y, size in rows for loss in terms_of(criterion, z[:size], y[:size])]))


@pytest.mark.parametrize("criterion", CRITERIA)
def test_losses_equal_their_formulas(criterion: str):
    """Rows of 2 to 5 candidates and a padding row: the absent ones count nowhere, and get no gradient."""
    scores, relevance = drawn()
    relevance = np.minimum(relevance, 1) if criterion == "binary" else relevance
    value, gradient = loss_and_gradient(criterion, scores, relevance)
    assert value == pytest.approx(by_formula(criterion, scores, relevance), rel=1e-9)
    absent = np.arange(5) >= np.array(SIZES)[:, None]
    assert np.isfinite(gradient).all() and (gradient[absent] == 0).all() and (gradient[~absent] != 0).any()


@pytest.mark.slow
@needs.sentence_transformers
@pytest.mark.parametrize("criterion", CRITERIA)
def test_losses_and_gradients_are_those_of_sentence_transformers(criterion: str):
    """margin_mse has rows of equally many candidates there."""
    import torch
    from sentence_transformers.cross_encoder import CrossEncoder, losses

    scores, relevance = drawn()
    flat = torch.tensor(
        np.concatenate([row[:size] for row, size in zip(scores, SIZES, strict=True)]), requires_grad=True
    )

    class Given(CrossEncoder):
        """A model whose scores are given: a text is the number of a score."""

        num_labels, device = 1, torch.device("cpu")

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)

        def preprocess(self, pairs, **_):
            return {"numbers": torch.tensor([int(text) for _, text in pairs])}

        def forward(self, tokens):
            return {"scores": flat[tokens["numbers"]][:, None]}

    ends = np.cumsum(SIZES)
    texts = [list(map(str, range(end - size, end))) for size, end in zip(SIZES, ends, strict=True)]
    labels = [torch.tensor(row[:size]) for row, size in zip(relevance, SIZES, strict=True)]
    model = Given()
    if criterion == "binary":
        relevance = np.minimum(relevance, 1)
        pairs = [["q"] * len(flat), [text for row in texts for text in row]]
        theirs = losses.BinaryCrossEntropyLoss(model)(pairs, torch.cat(labels).clamp(max=1).double())
    elif criterion == "margin_mse":
        of_rows = [
            losses.MarginMSELoss(model)([["q"], *([text] for text in row)], of_row[None]) * (len(row) - 1)
            for row, of_row in zip(texts, labels, strict=True)
        ]
        theirs = sum(of_rows) / (len(flat) - len(texts))
    else:
        loss = {"ranknet": losses.RankNetLoss, "listnet": losses.ListNetLoss}[criterion](model)
        theirs = loss([["q"] * 4, texts], labels)
    theirs.backward()
    value, gradient = loss_and_gradient(criterion, scores, relevance)
    assert value == pytest.approx(theirs.item(), rel=1e-6)
    found = np.concatenate([row[:size] for row, size in zip(gradient, SIZES, strict=True)])
    np.testing.assert_allclose(found, flat.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_rows_have_the_query_before_each_candidate():
    """BOS query EOS candidate EOS with types 0 and 1, the longer text cut first; absent candidates are padding."""
    objective = Reranking(num_candidates=3, criterion="listnet")
    rows = objective.make_rows(
        [candidate_record([4, 5], [[6], [7, 8, 9, 10]]), candidate_record([4], [[6], [7]], 1, 2.5, -1)],
        Lengths(8, 0), 0, CharacterTokenizer("abcdefghijk"),
    )  # fmt: skip
    assert rows.lengths.tolist() == [[8, 0], [5, 0]]
    batch = example(objective, rows[0], Lengths(8, 0))
    assert batch.inputs.source_tokens.tolist() == [
        [BOS, 4, 5, EOS, 6, EOS, PAD, PAD],
        [BOS, 4, 5, EOS, 7, 8, 9, EOS],
        [PAD] * 8,
    ]
    assert batch.inputs.token_types.tolist() == [[0] * 4 + [1] * 2 + [0] * 2, [0] * 4 + [1] * 4, [0] * 8]
    assert batch.inputs.source_mask.sum(-1).tolist() == [6, 8, 0]
    assert (batch.targets.tolist(), batch.extra[0].tolist()) == ([1, 0, 0], [1, 0, 0])
    scored = example(objective, rows[1], Lengths(8, 0))
    assert (scored.targets.tolist(), scored.extra[0].tolist()) == ([2.5, -1, 0], [1, 0, 0])
    model = ModelConfig(vocab_size=29, num_decoder_layers=0, num_token_types=2, pooler=Pooler(num_classes=1))
    inputs = objective.inputs(jax.tree.map(lambda x: np.stack([x, x]), batch), model)
    assert inputs.source_tokens.shape == inputs.token_types.shape == (6, 8)
    assert inputs.source_tokens.tolist() == batch.inputs.source_tokens.tolist() * 2


def test_more_candidates_than_a_step_reads_are_drawn_with_a_positive():
    objective = Reranking(num_candidates=3)
    candidates = [[4 + number] for number in range(7)]
    (row,) = objective.make_rows(
        [candidate_record([4], candidates, 2)], Lengths(8, 0), 0, CharacterTokenizer("abcdefghijk")
    )
    seen, first = set(), set()
    for key in range(40):
        batch = example(objective, row, Lengths(8, 0), 0, key)
        read = batch.inputs.source_tokens[:, 3].tolist()
        assert len(set(read)) == 3 and read[0] in (4, 5)
        assert batch.extra[0].tolist() == batch.targets.tolist() == [float(token in (4, 5)) for token in read]
        seen.update(read)
        first.add(read[0])
    assert seen == set(range(4, 11)) and first == {4, 5}


def test_ranks_of_the_positives_by_hand():
    """Ranks 1, 3, 2 (a tie is lost) and 2 of one positive in each row; a padding row counts nowhere."""
    scores = np.array([[9, 1, 2, 7, 7], [1, 3, 2, 0, 0], [1, 1, 8, 8, 8], [2, 1, 3, 0, 1]], np.float32)
    positive = np.pad(np.eye(1, 5, dtype=np.float32).repeat(4, 0), ((0, 1), (0, 0)))
    objective = Reranking()
    places = np.pad(np.arange(5)[:, None], ((0, 0), (0, 1)))
    batch = batch_of(np.zeros((4, 5), np.float32), (positive, places))
    logits = jnp.asarray(np.pad(scores, ((0, 1), (0, 0)), constant_values=5.0)).reshape(-1, 1)
    counts = jax.device_get(jax.jit(objective.metrics)(Outputs(class_logits=logits), batch))
    found = objective.report({name: merge_counts([count]) for name, count in counts.items()})
    ranks = np.array([1, 3, 2, 2])
    assert found.keys() == set(objective.metric_names)
    assert found["mrr@10"] == pytest.approx((1 / ranks).mean())
    assert found["ndcg@10"] == pytest.approx((1 / np.log2(ranks + 1)).mean())


def ordered_records(number: int) -> tuple[list[TokenPair], list[np.ndarray], list[np.ndarray]]:
    """Queries with 2 to 12 candidates of one token each, of which the first are positives; the numbers of these tokens."""
    rng, records, relevance, tokens = np.random.default_rng(2), [], [], []
    for size in rng.integers(2, 13, number).tolist():
        positives = int(rng.integers(1, size))
        tokens.append(rng.permutation(np.arange(4, 24))[:size])
        relevance.append(rng.integers(0, 9, size).astype(np.float64))
        records.append(candidate_record([5], [[int(token)] for token in tokens[-1]], positives, *relevance[-1]))
    return records, tokens, relevance


@pytest.mark.parametrize(
    ("criterion", "read", "rows"),
    [("binary", 2, 1), *((criterion, 3, 4) for criterion in CRITERIA), ("listnet", 12, 8)],
)
def test_an_evaluation_ranks_all_candidates(criterion: str, read: int, rows: int):
    """Oracle: each query by itself. The figures are the same for any `num_candidates` and any batch; here of two sources."""
    objective, seen = Reranking(criterion=criterion, num_candidates=read), []
    metrics = jax.jit(objective.metrics)
    records, tokens, relevance = ordered_records(9)
    shapes = BatchShapes(bucket_lengths=(8,), max_source_length=8, tokens_per_batch=8 * rows, rows_multiple=rows)
    tokenizer = CharacterTokenizer("abcdefghijklmnopqrst")
    for first, some in ((0, records[:4]), (4, records[4:])):
        data = Dataset.evaluation(some, objective, shapes, tokenizer, first=first)
        for step in range(data.plan.batches_per_epoch):
            batch = data.batch(step)
            logits = np.sin(batch.inputs.source_tokens[..., 3]).reshape(-1, 1)
            seen.append(jax.device_get(metrics(Outputs(class_logits=jnp.asarray(logits)), batch)))
    found = objective.report({name: merge_counts([counts[name] for counts in seen]) for name in seen[0]})
    losses, counts, reciprocal = 0.0, 0, []
    for one, texts, of_teacher in zip(records, tokens, relevance, strict=True):
        positives, scores = len(one.arrays[POSITIVES]), np.sin(texts)
        wanted = (np.arange(len(texts)) < positives).astype(float) if criterion == "binary" else of_teacher
        terms = terms_of(criterion, scores, wanted)
        losses, counts = losses + sum(terms), counts + len(terms)
        reciprocal.append(1 / (1 + (scores[positives:] >= scores[:positives].max()).sum()))
    assert found["mrr@10"] == pytest.approx(np.mean([one if one >= 0.1 else 0 for one in reciprocal]))
    assert found["loss"] == pytest.approx(losses / counts, rel=1e-5)


def test_data_without_negatives_or_scores_is_refused():
    tokenizer = CharacterTokenizer("abcdefghijk")
    with pytest.raises(
        ValueError, match=r"^objective\.kind 'reranking' compares candidates, but no record of the data has a neg"
    ):
        Reranking().make_rows([candidate_record([4], [[5]])], Lengths(8, 0), 0, tokenizer)
    with pytest.raises(ValueError, match=r"record 1 of the data has none"):
        Reranking(criterion="margin_mse").make_rows([candidate_record([4], [[5], [6]])], Lengths(8, 0), 0, tokenizer)
    with pytest.raises(
        ValueError, match=r"^objective.pair_template alone has 8 tokens: data.max_source_length is 8; raise it"
    ):
        Reranking(pair_template="abc{query}de{document}fgh").make_rows(
            [candidate_record([4], [[5], [6]])], Lengths(8, 0), 0, tokenizer
        )
    scored = [candidate_record([4], [[5], [6]], 1, 3, 0.5)]
    notes = {kind: Reranking(criterion=kind).make_rows(scored, Lengths(8, 0), 0, tokenizer).note for kind in CRITERIA}
    binary = notes.pop("binary")
    assert binary.endswith("which objective.criterion 'binary' does not read") and not any(notes.values())


@pytest.mark.slow
def test_a_reranker_learns_which_candidate_has_the_letter_of_the_query(tmp_path: Path):
    """From the files to `Run.rank`: 0.64 is the nDCG of a random order of four."""
    draw, letters = random.Random(0), "abcdefgh"
    for name, number in (("train", 400), ("valid", 80)):
        lines = []
        for query in draw.choices(letters, k=number):
            others = letters.replace(query, "")
            negatives = ["".join(draw.sample(others, 2)) for _ in range(3)]
            lines.append(json.dumps({"query": query, "positive": draw.choice(others) + query, "negatives": negatives}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))

    def source(name: str) -> JSONLines:
        return JSONLines(path=str(tmp_path / f"{name}.jsonl"), record=Candidates())

    model = ModelConfig(
        vocab_size=32, d_model=32, num_heads=4, d_ff=64, num_encoder_layers=2, num_decoder_layers=0, num_token_types=2,
        head=None, pooler=Pooler(num_classes=1),
    )  # fmt: skip
    data = DataConfig(
        train=source("train"), eval=source("valid"), tokenizer=Characters(), tokens_per_batch=128, rows_multiple=16,
        bucket_lengths=(8,), max_source_length=8, max_target_length=8,
    )  # fmt: skip
    config = Config(
        model=model,
        objective=Reranking(criterion="listnet", num_candidates=4),
        data=data,
        optimizer=OptimizerConfig(algorithm=AdamW(), schedule=Constant(peak_rate=3e-3)),
        train=TrainConfig(steps=200, eval_every=200, best_metric="ndcg@10", text_metrics=()),
    )
    run = train(config, tmp_path / "run")
    assert run.evaluate("eval")["ndcg@10"] > 0.95
    assert run.rank("a", ["bc", "ba", "de"])[0].index == 1
