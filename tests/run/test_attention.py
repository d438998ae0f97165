"""By hand: the labels of attention maps."""

from flaxformer_lite.run.attention import labels
from flaxformer_lite.text.characters import Characters


def test_a_token_without_a_piece_is_a_masked_one_or_its_number():
    tokenizer = Characters().train(["ab"], 20)
    ids = [*tokenizer.encode("ba"), tokenizer.vocab_size]
    assert labels(tokenizer, ids) == ["b", "a", str(tokenizer.vocab_size)]
    assert labels(tokenizer, ids, "[MASK]") == ["b", "a", "[MASK]"]
