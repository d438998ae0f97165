"""Oracle: pieces and ids worked out by hand. Published vocabularies are in tests/interop/hf/test_tokenizers.py."""

from pathlib import Path

import sentencepiece

from flaxformer_lite.text.kinds import load_tokenizer
from flaxformer_lite.text.marian import MarianTokenizer
from flaxformer_lite.text.subwords import SentencePiece

WORDS = ["hello world", "world of words", "a word"] * 9


def test_saved_and_loaded_is_the_same_and_the_language_is_one_piece(tmp_path: Path) -> None:
    model = SentencePiece().train(WORDS, 20).to_bytes()
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    pieces = ["</s>", "<unk>", ">>fra<<", *(processor.id_to_piece(i) for i in range(4, 20)), "<pad>"]
    tokenizer = MarianTokenizer(model, {piece: i for i, piece in enumerate(pieces)})
    tokenizer.save(tmp_path)
    for found in (tokenizer, load_tokenizer(tmp_path)):
        ids = found.encode(">>fra<<a word")
        assert ids[0] == 2 and found.decode(ids[1:]) == "a word"
        assert found.special[:4] == (len(pieces) - 1, 1, None, 0)
        assert found.as_source(ids) == [*ids, 0]


def test_pieces_outside_the_vocabulary_are_reported():
    model = SentencePiece().train(WORDS, 20).to_bytes()
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    pieces = [processor.id_to_piece(i) for i in range(4, 20)]
    ids = {piece: i for i, piece in enumerate(["<pad>", "<unk>", "</s>", *pieces])}
    tokenizer = MarianTokenizer(model, ids)
    assert tokenizer.unknown_parts(["hello world", ">>fra<< woßrld"]) == [">>fra<<", "ß"]
    fewer = {piece: i for i, piece in enumerate(ids) if "w" not in piece}
    assert "".join(MarianTokenizer(model, fewer).unknown_parts(["of words"])).startswith("w")
