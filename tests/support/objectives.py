"""Every objective with the smallest model that it accepts; records, documents and rows that the tests of several share."""

import itertools
import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import Lengths, Pack, TokenPair, candidate_arrays
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.inputs import Inputs, Outputs
from flaxformer_lite.core.model.transformer import Transformer
from flaxformer_lite.core.objectives import BaseObjective, Batch, Objectives
from flaxformer_lite.core.reading.heads import Pooler, SentenceEmbedding
from flaxformer_lite.core.text.special_ids import BOS, DEFAULT_SPECIAL_IDS
from flaxformer_lite.core.text.tokenizer import Tokenizer
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.training.evaluation import merge_counts

SETTINGS = {
    "masked_lm": {"mask_token": 36, "mask_rate": 0.5},
    "span_corruption": {"first_sentinel": 36, "num_sentinels": 7},
    "classification": {"classes": ("1", "2")},
    "token_labels": {"labels": ("O", "B-A")},
}
"""The settings of objectives that have no default for all of them, or whose default is for a tokenizer from elsewhere."""
OBJECTIVES = [kind(**SETTINGS.get(kind.kind, {})) for kind in typing.get_args(Objectives)]


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


def record(source: list[int], target: list[int]) -> TokenPair:
    return TokenPair(np.asarray(source, np.int32), np.asarray(target, np.int32))


def labelled(source: list[int], target: list[int], label: str) -> TokenPair:
    return record(source, target)._replace(label=label)


def candidate_record(query: list[int], candidates: list[list[int]], positives: int = 1, *scores: float) -> TokenPair:
    """A query with its candidates, of which the first are positives."""
    arrays = candidate_arrays([*map(len, candidates)], positives, scores)
    return record(query, [i for text in candidates for i in text])._replace(arrays=arrays)


def some_documents(number: int = 23, vocab_size: int = 29) -> list[TokenPair]:
    rng = np.random.default_rng(5)
    return [record([], rng.integers(4, vocab_size, rng.integers(0, 31)).tolist()) for _ in range(number)]


def outputs(logits: np.ndarray) -> Outputs:
    return Outputs(logits=jnp.asarray(logits), hidden=jnp.zeros((1, 1, 1)), memory=jnp.zeros((1, 1, 1)))


def generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=list(key)))


def example(objective: BaseObjective, record: Any, lengths: Lengths, *key: int) -> Batch:
    """The row of one record, with the random numbers of `key`."""
    return objective.example(record, lengths, generator(*key or (0, 0)), DEFAULT_SPECIAL_IDS)


def unmasked(batch: Batch) -> list[int]:
    """Returns the row of a masked batch with its targets put back."""
    tokens = np.asarray(batch.inputs.source_tokens).copy()
    counts = batch.weights > 0
    tokens[batch.inputs.predict_positions[counts]] = batch.targets[counts]
    return tokens.tolist()


def theirs(objective: BaseObjective, documents: list[TokenPair], tokenizer: Tokenizer, start_id: int = BOS) -> Batch:
    """The first batch of the documents, one row of 9 positions, with a tokenizer from elsewhere."""
    data = DataConfig(
        max_source_length=9, max_target_length=9, tokens_per_batch=9, rows_multiple=1, bucket_lengths=(9,)
    )
    return Dataset.evaluation(documents, objective, data, tokenizer, start_id).batch(0)


def in_batches(objective, scores: np.ndarray, targets: np.ndarray, size: int) -> dict[str, float]:
    """What is reported of texts scored so, counted in batches whose last has rows of weight 0."""
    found, measure = [], jax.jit(objective.metrics)
    for start in range(0, len(scores), size):
        rows = slice(start, start + size)
        lacking = size - len(scores[rows])
        batch = Batch(
            Inputs(),
            jnp.asarray(np.pad(targets[rows].reshape(size - lacking, -1), ((0, lacking), (0, 0)))),
            jnp.asarray(np.pad(np.ones(size - lacking, np.float32), (0, lacking)))[:, None],
        )
        logits = jnp.asarray(np.pad(scores[rows], ((0, lacking), (0, 0)), constant_values=3.0))
        found.append(jax.device_get(measure(Outputs(class_logits=logits), batch)))
    return objective.report({name: merge_counts([counted[name] for counted in found]) for name in found[0]})


def assert_packs_lose_what_their_pieces_lose(
    objective: BaseObjective, packs: Any, alone: list[Pack], longest: Lengths, vocab_size: int, rtol: float
) -> None:
    """Law: the sums of the loss and of right tokens over packs are those over rows of one piece each."""
    assert len(packs) < len(alone)
    sizes = {"d_model": 6, "num_heads": 3, "d_ff": 7, "num_encoder_layers": 0, "num_decoder_layers": 2}
    decoder = Transformer(ModelConfig(vocab_size=vocab_size, **sizes))
    params = jax.jit(decoder.init)(jax.random.key(1), Inputs(target_tokens=jnp.zeros((1, 1), jnp.int32)))
    params = jax.tree.map(lambda x: 3 * x, params)

    @jax.jit
    def measure(batch: Batch) -> Any:
        return objective.metrics(decoder.apply(params, batch.inputs), batch)

    sums = []
    for rows in (packs, alone):
        found = measure(jax.tree.map(lambda *x: jnp.stack(x), *(example(objective, row, longest) for row in rows)))
        sums.append([float(number) for name in ("loss", "accuracy") for number in found[name][:2]])
    assert sums[0][1] == sums[1][1]
    np.testing.assert_allclose(sums[0], sums[1], rtol=rtol)
