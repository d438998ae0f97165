"""Records, documents and rows that the tests of several objectives share."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.model.inputs import Inputs, Outputs
from flaxformer_lite.core.objectives import BaseObjective, Batch
from flaxformer_lite.core.objectives.candidates import candidate_arrays
from flaxformer_lite.core.text.special_ids import BOS, DEFAULT_SPECIAL_IDS
from flaxformer_lite.core.text.tokenizer import Tokenizer
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.training.evaluation import merge_counts


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
