"""Laws on inputs that nobody chose: hypothesis draws them, the same ones in every run, and shrinks what breaks a law."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.core.data.batch_plan import PADDING_ROW, BatchPlan, make_buckets
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.packing import as_documents, overlapping_pieces, pack, packs, with_ends
from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.objectives import MaskedLM
from flaxformer_lite.core.optim.schedules import Constant
from flaxformer_lite.core.text.characters import ByteTokenizer, Characters
from flaxformer_lite.core.text.special_ids import BOS, DEFAULT_SPECIAL_IDS, EOS
from flaxformer_lite.interop.name_map import Layout, WeightName, from_params
from tests.support.experiments import tiny_config

few = settings(max_examples=25, deadline=None, derandomize=True, database=None)
texts = st.text(st.characters(codec="utf-8"), max_size=40)


@few
@given(
    steps=st.integers(1, 2**31 - 1),
    seed=st.integers(0, 2**32 - 1),
    rate=st.floats(1e-38, 1e30),
    dropout=st.just(0.0) | st.floats(1e-38, 1, exclude_max=True),
    name=texts,
    bounds=st.lists(st.integers(2, 40), min_size=1, max_size=5),
)
def test_a_config_comes_back_from_json(
    steps: int, seed: int, rate: float, dropout: float, name: str, bounds: list[int]
) -> None:
    """Every number to its last bit, every text."""
    config = tiny_config()
    model = dataclasses.replace(config.model, dropout=dataclasses.replace(config.model.dropout, residual_rate=dropout))
    train = dataclasses.replace(config.train, steps=steps, seed=seed, init_from=name)
    optimizer = dataclasses.replace(config.optimizer, schedule=Constant(peak_rate=rate))
    data = dataclasses.replace(config.data, bucket_lengths=tuple(bounds))
    config = dataclasses.replace(config, model=model, train=train, optimizer=optimizer, data=data)
    assert from_json(to_json(config)) == config


@few
@given(text=texts, others=st.lists(texts, min_size=1, max_size=5))
def test_tokenizers_give_a_text_back(text: str, others: list[str]) -> None:
    """Bytes any text, characters those that they were trained on; saved and loaded, the same ids."""
    for tokenizer in (ByteTokenizer(), Characters().train([*others, f"a{text}"], 300)):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text and all(
            len(DEFAULT_SPECIAL_IDS[:4]) <= i <= tokenizer.largest_id for i in ids
        )
        assert type(tokenizer).from_bytes(tokenizer.to_bytes()).encode(text) == ids


@few
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=30),
    most=st.integers(1, 12),
    seed=st.integers(0, 2**32 - 1),
    window=st.integers(1, 9),
)
def test_packs_hold_every_token_once(sizes: list[int], most: int, seed: int, window: int) -> None:
    """No row is too full, and what is predicted is each document and its end."""
    whole = [np.arange(4, 4 + size, dtype=np.int32) for size in sizes]
    found = as_documents([TokenPair(np.zeros(0, np.int32), document) for document in whole], "causal_lm")
    pieces, lengths = overlapping_pieces(found, most, DEFAULT_SPECIAL_IDS)
    spans, used = pack(pieces, lengths, 12, seed, window)
    make = packs(spans, functools.partial(with_ends, found, DEFAULT_SPECIAL_IDS))
    rows = [make(i) for i in range(len(used))]
    assert max(used) <= 12 and used.tolist() == [sum(len(piece) - 1 for piece in row.pieces) for row in rows]
    predicted = sorted(token for row in rows for piece in row.pieces for token in piece[1:].tolist())
    assert predicted == sorted(token for document in whole for token in [*document.tolist(), EOS])
    assert sum(piece[0] == BOS for row in rows for piece in row.pieces) == len(whole)


@few
@given(
    lengths=st.lists(st.tuples(st.integers(0, 45), st.integers(1, 45)), min_size=1, max_size=80),
    seed=st.integers(0, 2**32 - 1),
    start=st.integers(0, 50),
)
def test_an_epoch_has_every_example_once_and_a_run_continues_anywhere(
    lengths: list[tuple[int, int]], seed: int, start: int
) -> None:
    """Those that fit, each in a bucket that holds it; a plan made anew at any step, as after a stop, has the same batches."""
    buckets = make_buckets((8, 16), Lengths(40, 40), tokens_per_batch=64, rows_multiple=4)
    plan, again = (BatchPlan([Lengths(*pair) for pair in lengths], buckets, seed) for _ in range(2))
    n = plan.batches_per_epoch
    batches = [plan.batch(start * n + i) for i in range(n)]
    rows = [[int(i) for i in batch.examples if i != PADDING_ROW] for batch in batches]
    assert sorted(i for examples in rows for i in examples) == [i for i, pair in enumerate(lengths) if max(pair) <= 40]
    for batch, examples in zip(batches, rows, strict=True):
        assert len(batch.examples) == batch.bucket.rows and batch.bucket.rows % 4 == 0
        assert all(side <= most for i in examples for side, most in zip(lengths[i], batch.bucket.lengths, strict=True))
    if n:
        assert again.batch(start * n + n - 1).examples.tolist() == batches[-1].examples.tolist()


@few
@given(
    lengths=st.lists(st.integers(4, 20), min_size=1, max_size=30),
    owners=st.lists(st.integers(0, 3), min_size=32, max_size=32),
    seed=st.integers(0, 2**32 - 1),
    step=st.integers(0, 100),
)
def test_hosts_make_the_rows_of_one_batch(lengths: list[int], owners: list[int], seed: int, step: int) -> None:
    """Whichever rows a host has, with the random masks of the whole batch, and rows that only fill up."""
    data = dataclasses.replace(tiny_config().data, bucket_lengths=(8, 16), tokens_per_batch=64, rows_multiple=4)
    empty = np.zeros(0, np.int32)
    records = [TokenPair(empty, np.arange(4, 4 + length, dtype=np.int32)) for length in lengths]
    dataset = Dataset.training(
        records, MaskedLM(mask_token=39), data, seed, Characters().train(["0123456789abcdefghij"], 40)
    )
    whole = dataset.batch(step)
    hosts = np.array(owners[: len(whole.weights)])
    for host in set(hosts.tolist()):
        mine = np.flatnonzero(hosts == host)
        part = dataset.batch(step, lambda _, mine=mine: mine)
        jax.tree.map(lambda x, y, mine=mine: np.testing.assert_array_equal(x, y[mine]), part, whole)


@few
@given(
    shape=st.lists(st.integers(1, 4), min_size=2, max_size=2),
    layers=st.integers(1, 3),
    layout=st.sampled_from([Layout.SAME, Layout.TRANSPOSED]),
)
def test_layouts_go_there_and_back(shape: list[int], layers: int, layout: Layout) -> None:
    """Of stacked and single parameters: the layer's array of theirs, turned to ours, is what was exported."""
    kernel = np.random.default_rng(0).standard_normal((layers, *shape)).astype(np.float32)
    names = [WeightName("encoder/layers/kernel", tuple(f"l.{i}" for i in range(layers)), layout)]
    theirs = from_params({"encoder": {"layers": {"kernel": kernel}}}, names)
    assert [layout.to_ours(theirs[f"l.{i}"]).tobytes() for i in range(layers)] == [
        kernel[i].tobytes() for i in range(layers)
    ]
