"""Text to token ids and back.

A tokenizer config (`SentencePiece`, `Characters`, `Bytes`, `FromRun`) trains a `Tokenizer`; `save_tokenizer` writes a trained one
into the run folder, `load_tokenizer` reads it. `special_ids` → `tokenizer` (the base class) → one file a kind → `kinds` (all of
them). `files` reads text files; `normal_form` is the form in which texts are compared; `chat` writes and reads conversations by a
model's chat template.
"""

from flaxformer_lite.text.characters import Bytes, Characters
from flaxformer_lite.text.kinds import (
    FromRun,
    TokenizerConfig,
    load_tokenizer,
    load_tokenizers,
    save_tokenizer,
    save_tokenizers,
)
from flaxformer_lite.text.languages import Languages, LanguageTokenizers
from flaxformer_lite.text.special_ids import DEFAULT_SPECIAL_IDS, EncodedText, SpecialIds
from flaxformer_lite.text.subwords import SentencePiece
from flaxformer_lite.text.tokenizer import Tokenizer, Tokenizers

__all__ = [
    "DEFAULT_SPECIAL_IDS",
    "Bytes",
    "Characters",
    "EncodedText",
    "FromRun",
    "LanguageTokenizers",
    "Languages",
    "SentencePiece",
    "SpecialIds",
    "Tokenizer",
    "TokenizerConfig",
    "Tokenizers",
    "load_tokenizer",
    "load_tokenizers",
    "save_tokenizer",
    "save_tokenizers",
]
