"""The tokenizer in a Hugging Face folder, as a tokenizer of ours."""

from pathlib import Path
from typing import NamedTuple

from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.json_tokenizer import JsonTokenizer
from flaxformer_lite.tokenizer import SentencePieceTokenizer, Tokenizer


class Found(NamedTuple):
    """A tokenizer, or why there is none."""

    tokenizer: Tokenizer | None
    note: str = ""


def read_tokenizer(folder: Path, vocab_size: int) -> Found:
    """The folder's tokenizer, if it has one whose ids are those of a model with so many."""
    found = Found(None, "the folder has no tokenizer.json and no SentencePiece model")
    if (folder / "tokenizer.json").is_file():
        names = read_json(folder / "tokenizer_config.json") | read_json(folder / "special_tokens_map.json")
        try:
            description = (folder / "tokenizer.json").read_text(encoding="utf-8")
            found = Found(JsonTokenizer.of(description, names))
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder / 'tokenizer.json'}: {error}") from None
    elif (folder / "source.spm").is_file():
        return Found(
            None, "source.spm and target.spm give pieces whose ids stand in vocab.json, which is not implemented"
        )
    else:
        for name in ("spiece.model", "tokenizer.model"):
            if (folder / name).is_file():
                try:
                    found = Found(SentencePieceTokenizer.from_bytes((folder / name).read_bytes()))
                except (OSError, ValueError, RuntimeError) as error:
                    raise ValueError(f"{folder / name} is no SentencePiece model: {error}") from None
    if found.tokenizer is not None and found.tokenizer.vocab_size > vocab_size:
        return Found(None, f"the tokenizer has {found.tokenizer.vocab_size} ids, and the model reads {vocab_size}")
    return found
