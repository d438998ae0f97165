"""Laws of packed documents, and rows worked by hand."""

import numpy as np
import pytest

from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import Lengths, Pack
from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD
from flaxformer_lite.files.data.config import DataConfig
from tests.support.objectives import assert_packs_lose_what_their_pieces_lose, example, record, some_documents


def test_a_pack_by_hand():
    """A document's second piece, which begins with the last token of its first, and a short document."""
    pack = Pack((np.array([8, 9, 10, EOS], np.int32), np.array([BOS, 5, EOS], np.int32)))
    inputs, targets, weights, _, _ = example(CausalLM(), pack, Lengths(0, 7))
    assert inputs.target_tokens.tolist() == [8, 9, 10, BOS, 5, PAD, PAD]
    assert targets.tolist() == [9, 10, EOS, 5, EOS, PAD, PAD]
    assert inputs.target_positions.tolist() == [0, 1, 2, 0, 1, 0, 0]
    assert inputs.target_segments.tolist() == [1, 1, 1, 2, 2, 0, 0]
    assert inputs.target_mask.tolist() == [True] * 5 + [False] * 2
    assert weights.tolist() == [1] * 5 + [0] * 2


def test_every_token_is_predicted_exactly_once_an_epoch():
    """Oracle: the multiset of (token before, token) over all documents, and over all positions that count in an epoch."""
    documents = some_documents()
    data = DataConfig(max_target_length=7, tokens_per_batch=35, rows_multiple=5)
    dataset = Dataset.training(documents, CausalLM(), data, seed=3)
    assert dataset.dropped == 0
    wanted = sorted(
        pair for d in documents for pair in zip([BOS, *d.target.tolist()], [*d.target.tolist(), EOS], strict=True)
    )
    positions = 0
    for epoch in range(2):
        found = []
        for step in range(epoch * dataset.plan.batches_per_epoch, (epoch + 1) * dataset.plan.batches_per_epoch):
            batch = dataset.batch(step)
            assert batch.targets.shape == (5, 7)
            counts = batch.weights > 0
            positions += counts.size
            found += zip(batch.inputs.target_tokens[counts].tolist(), batch.targets[counts].tolist(), strict=True)
        assert sorted(found) == wanted
    assert dataset.padding == pytest.approx(1 - 2 * len(wanted) / positions)


@pytest.mark.slow
def test_packed_documents_lose_what_they_lose_on_their_own():
    packs = CausalLM().make_rows(some_documents(11), Lengths(0, 11), 0)
    alone = [Pack((piece,)) for pack in packs for piece in pack.pieces]
    assert_packs_lose_what_their_pieces_lose(CausalLM(), packs, alone, Lengths(0, 11), 29, 1e-5)
    assert sum(len(pack.pieces[0]) - 1 for pack in alone) == sum(len(d.target) + 1 for d in some_documents(11))


def test_pairs_are_no_documents():
    with pytest.raises(ValueError, match=r"objective\.kind is 'causal_lm'.*record 1 "):
        Dataset.training([record([4], [5])], CausalLM(), DataConfig(), seed=0)
