"""Laws of the pipeline: batches hold exactly the examples of the plan, and only long pairs are dropped or cut."""

import collections
import dataclasses
import itertools
import math

import chex
import jax
import numpy as np
import pytest

from flaxformer_lite.core.data import Lengths, Pair, TokenPair
from flaxformer_lite.core.data.batch_plan import PADDING_ROW, Mixing
from flaxformer_lite.core.data.dataset import Dataset, MixedRecords, zero_batch
from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.data.reading import samplers_of, tokenize
from flaxformer_lite.files.tokenizers import SentencePiece
from flaxformer_lite.files.tokenizers.subword_sampling import BPEDropout
from tests.support.experiments import tiny_config
from tests.support.tokenizers import TEXT, VOCAB_SIZE

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    pairs = CONFIG.data.train.open()
    tokenizer = CONFIG.data.tokenizer.train((line for pair in pairs for line in pair[:2]), CONFIG.model.vocab_size)
    return Tokenizers(tokenizer, tokenizer)


@pytest.fixture(scope="module")
def dataset(tokenizers: Tokenizers) -> Dataset:
    return Dataset.training(tokenize(CONFIG.data.train.open(), tokenizers), CONFIG.objective, CONFIG.data, seed=7)


def test_a_batch_is_the_plans_pairs_shifted_and_padded(dataset: Dataset):
    """Oracle: rows built here by hand from the records."""
    for step in (0, 3):
        batch, planned = dataset.batch(step), dataset.plan.batch(step)
        for row, example in enumerate(planned.examples):
            source, target = ([], []) if example == PADDING_ROW else map(list, dataset.rows[example][:2])
            real = 0 if example == PADDING_ROW else 1
            s, t = planned.bucket.lengths
            assert batch.inputs.source_tokens[row].tolist() == (source + [EOS] * real + [PAD] * s)[:s]
            assert batch.inputs.target_tokens[row].tolist() == ([BOS] * real + target + [PAD] * t)[:t]
            assert batch.targets[row].tolist() == (target + [EOS] * real + [PAD] * t)[:t]
            assert batch.weights[row].sum() == real * (len(target) + 1)
            assert batch.inputs.source_mask[row].sum() == real * (len(source) + 1)
            np.testing.assert_array_equal(batch.inputs.target_mask[row], batch.weights[row] > 0)


def test_padding_is_the_share_of_positions_without_a_token(dataset: Dataset):
    """Oracle: counted in the batches of an epoch."""
    positions = tokens = 0
    for step in range(dataset.plan.batches_per_epoch):
        inputs = dataset.batch(step).inputs
        positions += inputs.source_tokens.size + inputs.target_tokens.size
        tokens += int(inputs.source_mask.sum() + inputs.target_mask.sum())
    assert dataset.padding == pytest.approx(1 - tokens / positions)


def test_longer_pairs_are_dropped_and_counted():
    records = [TokenPair(np.zeros(n, np.int32), np.zeros(3, np.int32)) for n in (4, 39, 41, 40)]
    assert Dataset.training(records, CONFIG.objective, CONFIG.data, seed=0).dropped == 2
    message = r"^none of the 2 records fits in data\.max_source_length 40 and .*_target_length \d+: the shortest needs 41 and 4;"
    with pytest.raises(ValueError, match=message):
        Dataset.training(records[-2:], CONFIG.objective, CONFIG.data, seed=0)
    with pytest.raises(ValueError, match=r"^the data has no records"):
        Dataset.training([], CONFIG.objective, CONFIG.data, seed=0)


def test_the_fingerprint_changes_with_the_data(dataset: Dataset, tokenizers: Tokenizers):
    pairs = list(CONFIG.data.train.open())
    same = Dataset.training(tokenize(pairs, tokenizers), CONFIG.objective, CONFIG.data, seed=8)
    swapped = Dataset.training(
        tokenize([pairs[1], pairs[0], *pairs[2:]], tokenizers), CONFIG.objective, CONFIG.data, seed=7
    )
    assert same.fingerprint == dataset.fingerprint != swapped.fingerprint


def test_the_fingerprint_knows_where_lines_end():
    """Oracle: the same tokens in the same order, cut into sides and lines in every way there is for two pairs."""
    tokens = np.arange(4, 9, dtype=np.int32)
    found = set()
    for ends in itertools.combinations_with_replacement(range(6), 3):
        sides = np.split(tokens, ends)
        found.add(TokenArrays.of([TokenPair(*sides[:2]), TokenPair(*sides[2:])]).fingerprint())
    assert len(found) == math.comb(8, 3)


def test_a_zero_batch_has_the_shapes_and_types_of_a_real_one(dataset: Dataset):
    bucket = dataset.plan.batch(0).bucket
    zeros = zero_batch(CONFIG.objective, bucket)
    chex.assert_trees_all_equal_shapes_and_dtypes(zeros, dataset.batch(0))
    assert not zeros.weights.any()


def test_a_process_reads_its_rows_of_a_batch_only():
    """Law: some rows are those of the whole batch, also those that only fill up."""
    generator = np.random.default_rng(0)
    tokens = [generator.integers(4, 99, 3).astype(np.int32) for _ in range(5)]
    data = Dataset.training([TokenPair(t, t) for t in tokens], CONFIG.objective, CONFIG.data, 0)
    whole = data.batch(0)
    for rows in (np.arange(0, 4), np.array([3, 1, 7])):
        part = data.batch(0, lambda _, rows=rows: rows)
        jax.tree.map(lambda x, y, rows=rows: np.testing.assert_array_equal(x, y[rows]), part, whole)
    empty = np.flatnonzero(~whole.weights.any(1))[-1]
    assert not data.batch(0, lambda _: np.array([empty])).weights.any()


@pytest.fixture(scope="module")
def subwords() -> Tokenizers:
    tokenizer = SentencePiece().train(TEXT, VOCAB_SIZE)
    return Tokenizers(tokenizer, tokenizer)


def test_sampled_subwords_keep_the_shapes_and_the_texts_and_differ_by_epoch(subwords: Tokenizers):
    """Laws: a batch is a function of (seed, step), whichever rows a process reads."""
    config = dataclasses.replace(CONFIG.data, subword_sampling=BPEDropout(rate=0.5, room=0.3))
    pairs = [Pair(*lines) for lines in zip(TEXT[:120], TEXT[120:240], strict=True)]
    records = tokenize(pairs, subwords)
    samplers = samplers_of(config.subword_sampling, subwords)
    first, again = (
        Dataset.training(records, CONFIG.objective, config, 7, subwords.target, samplers=samplers) for _ in range(2)
    )
    steps = range(2 * first.plan.batches_per_epoch)
    batches = [first.batch(step) for step in steps]
    chex.assert_trees_all_equal(batches[3], again.batch(3))
    chex.assert_trees_all_equal(
        jax.tree.map(lambda leaf: leaf[5:6], batches[3]), again.batch(3, lambda rows: np.array([5]))
    )
    seen = collections.defaultdict(set)
    for step, batch in zip(steps, batches, strict=True):
        planned = first.plan.batch(step)
        assert batch.inputs.source_tokens.shape == (len(planned.examples), planned.bucket.lengths.source)
        for row, example in enumerate(planned.examples):
            if example != PADDING_ROW:
                target = [int(token) for token in batch.targets[row]]
                assert subwords.target.decode(target) == subwords.target.decode(records[example].target)
                assert target.count(EOS) == 1
                seen[example].add(tuple(target))
    assert np.mean([len(targets) for targets in seen.values()]) > 1.5
    assert first.dropped == Dataset.training(records, CONFIG.objective, CONFIG.data, 7).dropped, "not for the room"


def test_an_objective_that_does_not_tell_its_records_is_asked_in_vain():
    """Law: rows that are fewer than the records of a source, or of one of two, name none of them."""

    class Halves(type(CONFIG.objective)):
        def make_rows(self, records, longest, seed, tokenizer=None):
            return [records[i] for i in range(0, len(records), 2)]

        def lengths(self, record):
            return Lengths(len(record.source) + 1, len(record.target) + 1)

    objective = Halves()
    records = TokenArrays.of([TokenPair(np.arange(4, 7, dtype=np.int32), np.arange(4, 6, dtype=np.int32))] * 8)
    for given in (records, MixedRecords([records, records], Mixing())):
        data = Dataset.training(given, objective, CONFIG.data, 7)
        for ask in (lambda data=data: data.made.rows_of([0]), lambda data=data: data.records_read(0, 0, 0)):
            with pytest.raises(ValueError, match=r"does not tell which records are in a row: .*Rows with spans"):
                ask()
