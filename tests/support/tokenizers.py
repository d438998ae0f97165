"""Tokenizers and texts that several tests use."""

import random

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer

VOCAB_SIZE = 307
"""Enough for the made-up text in every kind of tokenizer."""


def made_up_text(num_lines: int = 401) -> list[str]:
    """Lines of words from a small random vocabulary with umlauts, a CJK character and an emoji."""
    rng = random.Random(7)
    letters = "abcdefghijklmnoprstuwäöüß日🙂"
    words = ["".join(rng.choices(letters, k=rng.randint(1, 7))) for _ in range(397)]
    return [" ".join(rng.choices(words, k=rng.randint(1, 11))) for _ in range(num_lines)]


TEXT = made_up_text()

NAMES = {
    "pad_token": "<pad>",
    "bos_token": "<s>",
    "cls_token": {"content": "<s>"},
    "eos_token": "</s>",
    "mask_token": None,
}
"""The special tokens of `bytes_joined`, as a folder names them."""


def word_pieces() -> tokenizers.Tokenizer:
    """BERT's kind, with padding and truncation on, as published files have them."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "##c"]
    found = tokenizers.Tokenizer(models.WordPiece({word: i for i, word in enumerate(vocabulary)}, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    found.decoder = decoders.WordPiece()
    found.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    found.enable_truncation(3)
    found.enable_padding(length=8)
    return found


def bytes_joined() -> tokenizers.Tokenizer:
    """RoBERTa's kind."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {word: i for i, word in enumerate(["<s>", "<pad>", "</s>", *alphabet])}
    found = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    found.pre_tokenizer, found.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    found.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return found


def gapped() -> JsonTokenizer:
    """Two pieces with a gap between them: "b" has id 0, "c" 7, and no other id has a piece."""
    return JsonTokenizer.of(tokenizers.Tokenizer(models.BPE(vocab={"b": 0, "c": 7}, merges=[])).to_str(), {})
