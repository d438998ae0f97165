"""Rows have the special ids of their tokenizer, whichever these are."""

import jax

from flaxformer_lite.objectives import CausalLM, MaskedLM, Seq2Seq
from flaxformer_lite.text.characters import CharacterTokenizer
from tests.support.objectives import record, theirs, unmasked


class Theirs(CharacterTokenizer):
    """Characters with other special ids; the first four ids are free."""

    pad_id, unk_id, bos_id, eos_id, mask_id = 20, 21, 22, 23, 24


class NoBeginning(Theirs):
    """One that begins no text, as T5's."""

    bos_id = None


def test_rows_have_the_tokenizers_own_special_ids():
    tokenizer, plain = Theirs("abcdefghijklmnop"), NoBeginning("abcdefghijklmnop")
    text = record([], [4, 5, 6])
    batch = theirs(CausalLM(), [text], tokenizer)
    assert batch.inputs.target_tokens.tolist() == [[22, 4, 5, 6, 20, 20, 20, 20, 20]]
    assert batch.targets.tolist() == [[4, 5, 6, 23, 20, 20, 20, 20, 20]]
    assert theirs(CausalLM(), [text], plain).inputs.target_tokens.tolist() == [[4, 5, 6] + [20] * 6]
    batch = theirs(Seq2Seq(), [record([7, 8], [4, 5])], plain, start_id=20)
    assert batch.inputs.source_tokens.tolist() == [[7, 8, 23] + [20] * 6]
    assert batch.inputs.target_tokens.tolist() == [[20, 4, 5] + [20] * 6]
    assert batch.targets.tolist() == [[4, 5, 23] + [20] * 6]
    objective = MaskedLM(mask_rate=0.9)
    batch = theirs(objective, [record([], [4, 5, 6, 7, 8])], tokenizer)
    assert unmasked(jax.tree.map(lambda x: x[0], batch)) == [22, 4, 5, 6, 7, 8, 23, 20, 20]
    assert 24 in batch.inputs.source_tokens
    batch = theirs(objective, [record([], [4, 5, 6, 7, 8])], plain)
    assert unmasked(jax.tree.map(lambda x: x[0], batch)) == [4, 5, 6, 7, 8, 23, 20, 20, 20]
