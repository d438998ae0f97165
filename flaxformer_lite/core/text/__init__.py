"""Token ids and the interface of a tokenizer; characters and bytes, which need no file; languages."""

from flaxformer_lite.core.text.characters import Bytes, Characters
from flaxformer_lite.core.text.languages import Languages, LanguageTokenizers
from flaxformer_lite.core.text.special_ids import DEFAULT_SPECIAL_IDS, EncodedText, SpecialIds
from flaxformer_lite.core.text.tokenizer import Tokenizer, Tokenizers

__all__ = [
    "DEFAULT_SPECIAL_IDS",
    "Bytes",
    "Characters",
    "EncodedText",
    "LanguageTokenizers",
    "Languages",
    "SpecialIds",
    "Tokenizer",
    "Tokenizers",
]
