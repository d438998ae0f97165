"""Attention maps: their labels, and the padding that lets texts share compiled programs."""

from pathlib import Path

import pytest

from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.run import attention
from flaxformer_lite.run.attention import apply_with_intermediates, labels
from tests.support.experiments import num_programs
from tests.support.limits import assert_close
from tests.support.served import runs
from tests.support.tokenizers import gapped


@pytest.mark.slow
def test_texts_share_a_program_and_padding_changes_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: texts of 3 to 6 tokens compile the model once; without padding the weights are the same."""
    run, before = runs(tmp_path)["pairs"], num_programs(apply_with_intermediates)
    run.attention("abcde", "b")
    found = run.attention("xyz", "abcdef")
    assert num_programs(apply_with_intermediates) == before + 1
    monkeypatch.setattr(attention, "padded_length", int)
    alone = run.attention("xyz", "abcdef")
    assert num_programs(apply_with_intermediates) == before + 2 and alone.cross.shape == (1, 2, 7, 4)
    for kind in alone.kinds:
        assert_close(getattr(found, kind), getattr(alone, kind))


def test_a_token_without_a_piece_is_a_masked_one_or_its_number():
    tokenizer = Characters().train(["ab"], 20)
    ids = [*tokenizer.encode("ba"), tokenizer.vocab_size]
    assert labels(tokenizer, ids) == ["b", "a", str(tokenizer.vocab_size)]
    assert labels(tokenizer, ids, "[MASK]") == ["b", "a", "[MASK]"]
    assert labels(gapped(), [7, 5, 9]) == ["c", "5", "9"]
