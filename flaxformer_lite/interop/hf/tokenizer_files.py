"""Reads the tokenizers of a Hugging Face folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.interop.hf.vocab_files import VOCAB_FILES, marian
from flaxformer_lite.text import Tokenizer, Tokenizers
from flaxformer_lite.text.json_tokenizer import JsonTokenizer
from flaxformer_lite.text.subwords import SentencePieceTokenizer

MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")

CLASSES = {
    "bert": "BertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "roberta": "RobertaTokenizer",
    "bart": "BartTokenizer",
    "gpt2": "GPT2Tokenizer",
}
"""The class of the tokenizer in a folder that does not name it, by `model_type`."""


class Found(NamedTuple):
    """The tokenizers of both sides, or the reason for their absence."""

    tokenizers: Tokenizers | None
    note: str = ""


def read_tokenizers(folder: Path, config: Mapping[str, Any], vocab_sizes: tuple[int, int]) -> Found:
    """Returns the folder's tokenizers, unless they have more ids than the model; `vocab_sizes` are those of source and target.

    Raises: ValueError where a file is damaged.
    """
    found = find_tokenizers(folder, config)
    if found.tokenizers is not None:
        sides = (found.tokenizers.source, found.tokenizers.target)
        for tokenizer, size in zip(sides, vocab_sizes, strict=True):
            if (needed := tokenizer.largest_id + 1) > size:
                return Found(None, f"the tokenizer has {needed} ids, and the model reads {size}")
    return found


def find_tokenizers(folder: Path, config: Mapping[str, Any]) -> Found:
    """Returns the tokenizers of the first kind whose files are all present."""
    settings = read_json(folder / "tokenizer_config.json") | read_json(folder / "special_tokens_map.json")
    if has(folder, *MARIAN_FILES):
        try:
            return Found(marian(folder, settings))
        except ValueError as error:
            raise ValueError(f"{folder}: {error}") from None
    if has(folder, "tokenizer.json"):
        try:
            description = (folder / "tokenizer.json").read_text(encoding="utf-8")
            return joint(JsonTokenizer.of(description, settings))
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder / 'tokenizer.json'}: {error}") from None
    for name in ("spiece.model", "tokenizer.model"):
        if has(folder, name):
            try:
                return joint(SentencePieceTokenizer.from_bytes((folder / name).read_bytes()))
            except (OSError, ValueError, RuntimeError) as error:
                raise ValueError(f"{folder / name} is no SentencePiece model: {error}") from None
    return from_vocab_files(folder, config, settings)


def from_vocab_files(folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]) -> Found:
    """Returns the tokenizer in `vocab.txt`, or in `vocab.json` and `merges.txt`: its class decides how to read them."""
    named = (
        settings.get("tokenizer_class") or config.get("tokenizer_class") or CLASSES.get(config.get("model_type", ""))
    )
    files, reader = VOCAB_FILES.get(str(named).removesuffix("Fast"), ((), None))
    if reader is not None and has(folder, *files):
        try:
            return joint(reader(folder, settings))
        except Exception as error:  # the tokenizers library raises nothing more precise
            raise ValueError(f"{folder / files[0]} holds no {named} that can be read: {error}") from None
    if reader is None and any(has(folder, name) for name in ("vocab.txt", "vocab.json")):
        return Found(None, f"the folder has no tokenizer.json, and a {named} in other files is not implemented")
    return Found(None, "the folder has no tokenizer.json, no SentencePiece model and no vocabulary")


def has(folder: Path, *names: str) -> bool:
    """Returns whether all these files are present."""
    return all((folder / name).is_file() for name in names)


def joint(tokenizer: Tokenizer) -> Found:
    """Returns one tokenizer for both sides."""
    return Found(Tokenizers(tokenizer, tokenizer))
