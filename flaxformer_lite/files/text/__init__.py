"""Text to token ids and back, by files.

A tokenizer config (`SentencePiece`, `Characters`, `Bytes`, `FromRun`) trains a `Tokenizer`; `save_tokenizer` writes a trained one
into the run folder, `load_tokenizer` reads it. One file a kind → `kinds` (all of them). `files` reads text files, `tables` those
with columns; `normal_form` is the form in which texts are compared; `chat` writes and reads conversations by a model's chat
template.
"""

from flaxformer_lite.files.text.kinds import (
    FromRun,
    TokenizerConfig,
    load_tokenizer,
    load_tokenizers,
    save_tokenizer,
    save_tokenizers,
)
from flaxformer_lite.files.text.subwords import SentencePiece

__all__ = [
    "FromRun",
    "SentencePiece",
    "TokenizerConfig",
    "load_tokenizer",
    "load_tokenizers",
    "save_tokenizer",
    "save_tokenizers",
]
