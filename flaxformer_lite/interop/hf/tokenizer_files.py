"""Reads the tokenizers of a Hugging Face folder."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Library

from flaxformer_lite.base.bounds import cut
from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.interop.hf.special_tokens import TokenizerSettings, add_tokens, check_ids, read_settings
from flaxformer_lite.interop.hf.vocab_files import MARIAN, NO_FILES, VOCAB_FILES, marian, sentence_pieces
from flaxformer_lite.text import Tokenizer, Tokenizers
from flaxformer_lite.text.json_tokenizer import JsonTokenizer, one_error
from flaxformer_lite.text.tokenizer import MOST_IDS

MARIAN_FILES = ("source.spm", "target.spm", "vocab.json")

CLASSES = {
    "bert": "BertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "roberta": "RobertaTokenizer",
    "bart": "BartTokenizer",
    "gpt2": "GPT2Tokenizer",
    "t5": "T5Tokenizer",
}
"""The class of the tokenizer in a folder that does not name it, by `model_type`."""
ENCODERS = ("bert", "distilbert", "roberta")
"""Types of models that read whole texts only."""


class Found(NamedTuple):
    """The tokenizers of both sides, or the reason for their absence."""

    tokenizers: Tokenizers | None
    note: str = ""
    """The reason."""
    notes: Sequence[str] = ()
    """Notes on tokenizers that were found."""


def read_tokenizers(folder: Path, config: Mapping[str, Any], vocab_sizes: tuple[int, int]) -> Found:
    """Returns the folder's tokenizers, unless they have more ids than the model; `vocab_sizes` are those of source and target.

    Tokens that the folder adds past the model's table are left out, with a note.

    Raises: ValueError where a file is damaged, or a token cannot get the id that the folder states.
    """
    found = find_tokenizers(folder, config, min(vocab_sizes))
    if found.tokenizers is not None:
        sides = (found.tokenizers.source, found.tokenizers.target)
        for tokenizer, size in zip(sides, vocab_sizes, strict=True):
            if (needed := tokenizer.largest_id + 1) > size:
                return Found(None, f"the tokenizer has {needed} ids, and the model reads {size}")
    return found


def find_tokenizers(folder: Path, config: Mapping[str, Any], size: int | None = None) -> Found:
    """Returns the tokenizers of the first kind whose files are all present, without added tokens whose ids are from `size` on."""
    named = read_json(folder / "tokenizer_config.json").get("tokenizer_class") or config.get("tokenizer_class")
    name = str(named or CLASSES.get(config.get("model_type", ""))).removesuffix("Fast")
    kind = next((file for file in ("tokenizer.json", "spiece.model", "tokenizer.model") if has(folder, file)), None)
    vocabulary = VOCAB_FILES.get(name, NO_FILES)
    try:
        if has(folder, *MARIAN_FILES):
            return Found(marian(folder, read_settings(folder, config, MARIAN)))
        settings = read_settings(folder, config, {} if kind else vocabulary.names)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    try:
        if kind == "tokenizer.json":
            return described((folder / kind).read_text(encoding="utf-8"), settings, size)
        if kind is not None:
            ends = config.get("model_type") in ENCODERS
            found, left_out = sentence_pieces((folder / kind).read_bytes(), settings, name, ends=ends, size=size)
            return joint(found, left_out, settings, size)
        if vocabulary.read is not None and has(folder, *vocabulary.files):
            return finished(vocabulary.read(folder, settings), settings, size)
    except Exception as error:  # the libraries raise nothing more precise
        what = {"tokenizer.json": "tokenizer", None: name}.get(kind, "SentencePiece model")
        file = folder / (kind or vocabulary.files[0])
        raise ValueError(f"{file} holds no {what} that can be read: {error}") from None
    if vocabulary.read is None and any(has(folder, file) for file in ("vocab.txt", "vocab.json")):
        return Found(None, f"the folder has no tokenizer.json, and a {name} in other files is not implemented")
    return Found(None, "the folder has no tokenizer.json, no SentencePiece model and no vocabulary")


@one_error()
def described(description: str, settings: TokenizerSettings, size: int | None) -> Found:
    """Returns the tokenizer of a `tokenizer.json`. Raises: ValueError with the name of a token that would get another id."""
    library, tokens = Library.from_str(description), json.loads(description).get("added_tokens") or []
    if (largest := max(library.get_vocab().values(), default=0)) >= MOST_IDS:  # it writes all ids to the largest
        raise ValueError(f"its vocabulary has the id {largest}: an id must be from 0 to {MOST_IDS - 1}")
    check_ids(library, ((token["id"], token["content"]) for token in tokens))
    add_tokens(library, settings)
    return finished(library, settings, size)


def finished(library: Library, settings: TokenizerSettings, size: int | None) -> Found:
    """Returns a tokenizer of the library for both sides, without the added tokens whose ids are from `size` on."""
    description = json.loads(library.to_str())
    tokens = description["added_tokens"]
    left_out = [token["content"] for token in tokens if size is not None and token["id"] >= size]
    description["added_tokens"] = tokens[: len(tokens) - len(left_out)]  # they are sorted by their ids
    text = json.dumps(description, ensure_ascii=False) if left_out else library.to_str()
    return joint(JsonTokenizer.of(text, settings.values, settings.model_ids), left_out, settings, size)


def joint(tokenizer: Tokenizer, left_out: Sequence[str], settings: TokenizerSettings, size: int | None) -> Found:
    """Returns one tokenizer for both sides, with notes on the tokens that are left out and on the end of a text."""
    notes, end, ends = [], tokenizer.eos_id, settings.model_ids["eos"]
    if left_out:
        names = ", ".join(map(quoted, left_out[:3])) + (f" and {len(left_out) - 3} more" if left_out[3:] else "")
        notes.append(
            f"left out of the tokenizer, so that a text with it is read piece by piece: {names} (the model has no row for an id "
            f"from {size} on)"
        )
    if end is not None and ends and end not in ends:
        notes.append(
            f"the tokenizer ends a text with {quoted(tokenizer.piece(end))}, id {end}, but eos_token_id is "
            f"{', '.join(map(str, ends))}: answers end there; set decode.eos_ids if they should end with that token too"
        )
    return Found(Tokenizers(tokenizer, tokenizer), notes=notes)


def quoted(text: str) -> str:
    return cut(repr(text))


def has(folder: Path, *names: str) -> bool:
    """Returns whether all these files are present."""
    return all((folder / name).is_file() for name in names)
