"""Hand-worked cases of SentencePiece models with added tokens; test_tokenizer_folders.py compares with transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.text import SentencePiece
from flaxformer_lite.text.added_pieces import FLAGS, AddedPieces
from flaxformer_lite.text.kinds import load_tokenizer
from flaxformer_lite.text.subword_sampling import BPEDropout, SubwordSampler
from tests.support.tokenizers import TEXT, VOCAB_SIZE

PLAIN = SentencePiece(character_coverage=0.98).train(TEXT, VOCAB_SIZE)
FAR = VOCAB_SIZE + 5


def added(prefix: bool = True, **flags: Any) -> AddedPieces:
    """`<end>` has an id after a gap, `<new>` that of a piece of the model."""
    tokens = {FAR: "<end>", VOCAB_SIZE - 1: "<new>"}
    described = {i: {**dict.fromkeys(FLAGS, False), "content": text, **flags} for i, text in tokens.items()}
    return AddedPieces(PLAIN.to_bytes(), described, {"eos": FAR}, (True, False), prefix)


def test_ids_after_a_gap_and_ids_of_the_model_are_read_and_written() -> None:
    tokenizer, word = added(), TEXT[0].split()[0]
    ids = PLAIN.encode(word)
    assert tokenizer.encode(f"{word}<new>{word}<end>") == [*ids, VOCAB_SIZE - 1, *ids, FAR]
    assert tokenizer.decode([*ids, VOCAB_SIZE - 1, *ids]) == f"{word}<new> {word}"
    assert tokenizer.special[:4] == (0, 1, 2, FAR) and tokenizer.largest_id == FAR == tokenizer.vocab_size - 1
    assert [i for i in range(FAR + 2) if not tokenizer.has_piece(i)] == [*range(VOCAB_SIZE, FAR), FAR + 1]
    assert tokenizer.decode([*ids, FAR]) == word and tokenizer.piece(FAR) == "<end>"  # a role is dropped in any case
    assert added(special=True).decode([VOCAB_SIZE - 1, *ids]) == word


def test_only_a_text_begins_with_the_dummy_prefix_if_set() -> None:
    word = TEXT[0].split()[0]
    after = added(prefix=False).encode(f"<new>{word}")[1:]
    assert PLAIN.pieces(after)[0] == PLAIN.pieces(PLAIN.encode(word))[0].removeprefix("▁") or after != PLAIN.encode(
        word
    )
    assert added(prefix=False).encode(word) == PLAIN.encode(word) == added().encode(f"<new>{word}")[1:]


def test_characters_of_an_added_token_are_not_unknown() -> None:
    assert added().unknown_parts(["<new>#<end>"]) == ["#"] and added().encode("") == [] and added().decode([]) == ""


def test_a_sample_leaves_added_tokens_as_they_are() -> None:
    tokenizer, word = added(), max(TEXT[0].split(), key=len)
    ids = np.array(tokenizer.encode(f"{word} <new> {word}<end>"))
    sampler = SubwordSampler(tokenizer, BPEDropout(rate=0.9))
    drawn = sampler(ids, 100, np.random.default_rng(0)).tolist()
    assert len(drawn) > len(ids) and [i for i in drawn if i >= VOCAB_SIZE - 1] == [VOCAB_SIZE - 1, FAR]
    assert tokenizer.decode(drawn) == tokenizer.decode(ids)
    assert PLAIN.scored_pieces().keys() - tokenizer.scored_pieces().keys() == {VOCAB_SIZE - 1}


@pytest.mark.parametrize("damage", [("<new>", ""), ('"lstrip"', '"left"'), ('"prefix": true', '"prefix": 1')])
def test_a_damaged_file_is_refused(damage: tuple[str, str], tmp_path: Path) -> None:
    path = added().save(tmp_path)
    assert load_tokenizer(tmp_path).to_bytes() == path.read_bytes()
    path.write_text(path.read_text().replace(*damage))
    with pytest.raises(ValueError, match=r"tokenizer\.pieces\.json: not a whole tokenizer file"):
        load_tokenizer(tmp_path)
