"""The tokenizers in a Hugging Face folder, as tokenizers of ours."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.interop.hf.vocab_files import VOCAB_FILES, marian
from flaxformer_lite.text.json_tokenizer import JsonTokenizer
from flaxformer_lite.text.subwords import SentencePieceTokenizer
from flaxformer_lite.text.tokenizer import Tokenizer, Tokenizers

MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")

CLASSES = {
    "bert": "BertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "roberta": "RobertaTokenizer",
    "bart": "BartTokenizer",
    "gpt2": "GPT2Tokenizer",
}
"""By `model_type`: the class of a tokenizer where the folder does not say."""


class Found(NamedTuple):
    """The tokenizers of the two sides, or why there are none."""

    tokenizers: Tokenizers | None
    note: str = ""


def read_tokenizers(folder: Path, config: Mapping[str, Any], vocab_sizes: tuple[int, int]) -> Found:
    """The folder's tokenizers, if it has some whose ids are those of a model with so many a side.

    Raises: ValueError where a file is damaged.
    """
    found = find_tokenizers(folder, config)
    if found.tokenizers is not None:
        sides = (found.tokenizers.source, found.tokenizers.target)
        for tokenizer, size in zip(sides, vocab_sizes, strict=True):
            if tokenizer.vocab_size > size:
                return Found(None, f"the tokenizer has {tokenizer.vocab_size} ids, and the model reads {size}")
    return found


def find_tokenizers(folder: Path, config: Mapping[str, Any]) -> Found:
    """The tokenizers, whatever the model reads: the first kind whose files are all there."""
    settings = read_json(folder / "tokenizer_config.json") | read_json(folder / "special_tokens_map.json")
    if has(folder, *MARIAN_FILES):
        return Found(marian(folder, settings))
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
    """The tokenizer in `vocab.txt`, or in `vocab.json` and `merges.txt`, which only its class tells how to read."""
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
    """Whether all these files are there."""
    return all((folder / name).is_file() for name in names)


def joint(tokenizer: Tokenizer) -> Found:
    """One tokenizer for both sides."""
    return Found(Tokenizers(tokenizer, tokenizer))
