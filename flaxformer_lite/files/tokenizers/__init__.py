"""Text to token ids and back, by files.

A tokenizer config (`SentencePiece`, `Characters`, `Bytes`, `FromRun`) trains a `Tokenizer`; `save_tokenizer` writes a trained one
into the run folder, `load_tokenizer` reads it. One file a kind → `kinds` (all of them).
"""

from flaxformer_lite.files.tokenizers.kinds import (
    FromRun,
    TokenizerConfig,
    load_tokenizer,
    load_tokenizers,
    save_tokenizer,
    save_tokenizers,
)
from flaxformer_lite.files.tokenizers.subwords import SentencePiece

__all__ = [
    "FromRun",
    "SentencePiece",
    "TokenizerConfig",
    "load_tokenizer",
    "load_tokenizers",
    "save_tokenizer",
    "save_tokenizers",
]
