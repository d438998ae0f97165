"""Writes the tokenizers of a run as the files of a Hugging Face folder, if the library has a counterpart."""

import base64
import json
from pathlib import Path
from typing import Any

from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.text import Languages, LanguageTokenizers, Tokenizer, Tokenizers
from flaxformer_lite.files.tokenizers.json_tokenizer import SPECIAL_NAMES, JsonTokenizer
from flaxformer_lite.files.tokenizers.subwords import AddedPieces, MarianTokenizer, SentencePieceTokenizer


def write_tokenizers(folder: Path, tokenizers: Tokenizers | None, model: ModelConfig, max_length: int) -> list[str]:
    """Writes the files into a folder; `max_length` is that of a text, in tokens. Returns notes for the user."""
    if tokenizers is None:
        if model.positions.max_positions:
            return []
        return [f"data.max_source_length is {max_length}, which a folder without a tokenizer does not state"]
    source, target = tokenizers.source, tokenizers.target
    if isinstance(source, MarianTokenizer) and isinstance(target, MarianTokenizer):
        files = marian(source, target)
    elif source.to_bytes() != target.to_bytes():
        return ["the tokenizer is not in the folder: only Marian has one for each side"]
    elif isinstance(source, JsonTokenizer):
        files = described(source, model)
        if isinstance(tokenizers, LanguageTokenizers):
            files["tokenizer_config.json"] |= language_settings(source, tokenizers.languages)
    elif isinstance(source, SentencePieceTokenizer):
        files = pieces(source, model)
    else:
        return [f"the tokenizer is not in the folder: it is a {type(source).__name__}, which the library does not have"]
    files["tokenizer_config.json"]["model_max_length"] = max_length
    for name, content in files.items():
        document = json.dumps(content, indent=2, ensure_ascii=False) + "\n" if isinstance(content, dict) else None
        (folder / name).write_bytes(content if document is None else document.encode())
    return [sentence_piece_note(model)] if isinstance(source, SentencePieceTokenizer) else []


def described(tokenizer: JsonTokenizer, model: ModelConfig) -> dict[str, Any]:
    """Returns the description for the tokenizers library, and the names of the special ids."""
    names = special_tokens(tokenizer, SPECIAL_NAMES)
    inputs = ["input_ids", *(["token_type_ids"] if model.num_token_types else []), "attention_mask"]
    settings = names | {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
    return {
        "tokenizer.json": tokenizer.description.encode(),
        "tokenizer_config.json": settings,
        "special_tokens_map.json": names,
    }


FAIRSEQ_IDS = (1, 3, 0, 2)
"""The ids of <pad>, <unk>, <s> and </s> in the classes below, which have them fixed."""
LANGUAGE_CLASSES = {
    ("bpe", "before", "first"): "NllbTokenizer",
    ("bpe", "behind", "first"): "NllbTokenizer",
    ("unigram", "before", "first"): "MBart50Tokenizer",
    ("unigram", "behind", "start"): "MBartTokenizer",
}
"""The classes with `src_lang`, by the kind of the model and the places of the languages' tokens."""


def language_settings(tokenizer: JsonTokenizer, languages: Languages) -> dict[str, Any]:
    """Returns the class that puts a language's token into its place, with the tokens; {} where no class reads these texts."""
    kind = tokenizer.model_type
    theirs = LANGUAGE_CLASSES.get((kind, languages.source, languages.target))
    normalizer = json.loads(tokenizer.description)["normalizer"]
    unlike = kind == "bpe" and normalizer is not None and "Precompiled" not in json.dumps(normalizer)
    if theirs is None or tokenizer.special[:4] != FAIRSEQ_IDS or unlike:
        return {}
    pair = languages.direction or languages.codes[:1] * 2
    source, target = (languages.token.replace("{}", code) for code in pair)
    legacy = {"legacy_behaviour": languages.source == "behind"} if theirs == "NllbTokenizer" else {}
    named = {"src_lang": source, "tgt_lang": target, "extra_special_tokens": list(languages.tokens)}
    return {"tokenizer_class": theirs, **named, **legacy}


def pieces(tokenizer: SentencePieceTokenizer, model: ModelConfig) -> dict[str, Any]:
    """Returns the SentencePiece model, with the file name and class that add the special ids the model reads."""
    settings = special_tokens(tokenizer, {role: (role,) for role in ("pad", "unk", "bos", "eos")}) | {"legacy": False}
    # A decoder continues a text, unless it is there to classify it or to make a vector of it.
    around = (True, not model.num_decoder_layers or model.pooler is not None or model.sentence_embedding is not None)
    if isinstance(tokenizer, AddedPieces):
        around = tokenizer.around
        tokens = {str(i): token for i, token in tokenizer.added.items()}
        settings |= {"legacy": tokenizer.prefix, "added_tokens_decoder": tokens}
    if model.num_encoder_layers and model.num_decoder_layers:
        settings |= {"tokenizer_class": "T5Tokenizer", "extra_ids": 0}
        return {"spiece.model": tokenizer.model, "tokenizer_config.json": settings}
    settings |= {"add_bos_token": around[0], "add_eos_token": around[1]}
    settings |= {"tokenizer_class": "LlamaTokenizer"} if model.num_decoder_layers else {}
    return {"tokenizer.model": tokenizer.model, "tokenizer_config.json": settings}


def sentence_piece_note(model: ModelConfig) -> str:
    """Returns a note: whether the library's classes read the file as SentencePiece does."""
    if not model.num_decoder_layers:
        return (
            "tokenizer.model is in the folder, but the library reads no SentencePiece model with an encoder-only model"
        )
    if not model.num_encoder_layers:
        return "the library reads tokenizer.model as it is read here if it is of the kind bpe, but spaces one by one"
    return "the library reads spiece.model as it is read here if it is of the kind unigram"


def marian(source: MarianTokenizer, target: MarianTokenizer) -> dict[str, Any]:
    """Returns both SentencePiece models, and one vocabulary or one for each side."""
    sides = [json.loads(side.to_bytes()) for side in (source, target)]
    separate = sides[0]["ids"] != sides[1]["ids"]
    settings = {f"{name}_token": token for name, token in sides[0]["special"].items()}
    files = {
        "source.spm": base64.b64decode(sides[0]["model"]),
        "target.spm": base64.b64decode(sides[1]["model"]),
        "vocab.json": sides[0]["ids"],
        "tokenizer_config.json": settings | {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate},
    }
    return files | ({"target_vocab.json": sides[1]["ids"]} if separate else {})


def special_tokens(tokenizer: Tokenizer, roles: dict[str, tuple[str, ...]]) -> dict[str, object]:
    """Returns the text of the special tokens, by the names that their roles have in the library."""
    ids = tokenizer.special._asdict()
    tokens = dict[str, Any]()
    for role, names in roles.items():
        if ids[role] is not None:
            (piece,) = tokenizer.pieces([ids[role]])
            tokens |= {f"{name}_token": piece for name in names}
    return tokens
