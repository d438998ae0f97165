"""A SentencePiece model as a `tokenizer.json`. Oracle: SentencePiece, on drawn texts."""

import random

import pytest

from flaxformer_lite.files.tokenizers import SentencePiece
from flaxformer_lite.files.tokenizers.described import as_described

WORDS = ["the", "cat", "sat", "on", "a", "hat", "die", "Katze", "saß", "1", "2", "3", "4", "5"]
LINES = [" ".join(random.Random(i).choices(WORDS, k=7)) for i in range(60)]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("options", [{}, {"byte_fallback": True}, {"split_digits": True}])
def test_a_described_model_reads_as_sentence_piece(kind: str, options: dict[str, bool]) -> None:
    size = 31 + 256 * bool(options.get("byte_fallback"))
    model = SentencePiece(model_type=kind, normalization="nmt_nfkc", user_symbols=("<de>",), **options)  # type: ignore[arg-type]
    old = model.train(LINES, size)
    new = as_described(old)
    draw = random.Random(2)
    texts = ["", " a  cat ", "\uff21 ﬁ ½", "日本 ß", "12 345", "Katzesa the"]
    texts += ["".join(draw.choices("".join(LINES) + "é", k=30)) for _ in range(300)]
    assert new.encode_batch(texts) == old.encode_batch(texts)
    ids = old.encode_batch(texts)
    assert [new.decode(row) for row in ids] == [old.decode(row) for row in ids]
    assert new.as_source([5]) == old.as_source([5]) and new.special[:5] == old.special[:5]
    assert new.encode("<de>")[-1] == old.encode("<de>")[-1]
