"""Reads tokenizers that older folders store in several files: those of Marian, BERT, RoBERTa, BART and GPT-2.

All but Marian's become the description of a `tokenizer.json`, as the library makes it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from flaxformer_lite.bounds import cut
from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.text import Tokenizers
from flaxformer_lite.text.json_tokenizer import JsonTokenizer
from flaxformer_lite.text.marian import MarianTokenizer
from flaxformer_lite.text.tokenizer import MOST_IDS

BERT = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}
ROBERTA = {
    **dict.fromkeys(("bos_token", "cls_token"), "<s>"),
    **dict.fromkeys(("eos_token", "sep_token"), "</s>"),
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": {"content": "<mask>", "lstrip": True},  # the space before it is part of it
}
GPT2 = dict.fromkeys(("unk_token", "bos_token", "eos_token"), "<|endoftext|>")
MARIAN = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}


def content(token: Any) -> str:
    """Returns the text of a token, which files store alone or in an object."""
    text = token.get("content") if isinstance(token, Mapping) else token
    if not isinstance(text, str):
        raise ValueError(f"a special token is {cut(repr(token))}: it must be a string, or an object with its content")
    return text


def marian(folder: Path, settings: Mapping[str, Any]) -> Tokenizers:
    """Reads `source.spm` and `target.spm` with `vocab.json`, or with a vocabulary for each side."""
    names = {name.removesuffix("_token"): content(settings.get(name) or token) for name, token in MARIAN.items()}
    vocabularies = ("vocab.json", "target_vocab.json" if settings.get("separate_vocabs") else "vocab.json")

    def side(model: str, vocabulary: str) -> MarianTokenizer:
        try:
            return MarianTokenizer((folder / model).read_bytes(), read_json(folder / vocabulary), **names)
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(f"{model} with {vocabulary}: {error}") from None

    return Tokenizers(side("source.spm", vocabularies[0]), side("target.spm", vocabularies[1]))


def word_pieces(folder: Path, settings: Mapping[str, Any]) -> JsonTokenizer:
    """Reads BERT's `vocab.txt`: words, in lower case if set, are split into the longest known pieces."""
    names = BERT | named_tokens(settings, BERT)
    found = Library(models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token=content(names["unk_token"])))
    found.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.decoder = decoders.WordPiece(prefix="##")
    add_tokens(found, folder, settings, names)
    (cls, _), (sep, _) = ends = [numbered(found, names[name]) for name in ("cls_token", "sep_token")]
    found.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0", pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1", special_tokens=ends
    )
    return JsonTokenizer.of(found.to_str(), names)


def roberta(folder: Path, settings: Mapping[str, Any]) -> JsonTokenizer:
    """Reads RoBERTa's and BART's `vocab.json` and `merges.txt`: byte-level BPE between <s> and </s>."""
    names = ROBERTA | named_tokens(settings, ROBERTA)
    found = byte_level_bpe(folder, settings)
    add_tokens(found, folder, settings, names)
    found.post_processor = processors.RobertaProcessing(
        numbered(found, names["sep_token"]),
        numbered(found, names["cls_token"]),
        trim_offsets=settings.get("trim_offsets", True),
        add_prefix_space=settings.get("add_prefix_space", False),
    )
    return JsonTokenizer.of(found.to_str(), names)


def gpt2(folder: Path, settings: Mapping[str, Any]) -> JsonTokenizer:
    """Reads GPT-2's `vocab.json` and `merges.txt`: byte-level BPE, after a BOS if `add_bos_token` is set."""
    names = GPT2 | named_tokens(settings, (*GPT2, "pad_token"))
    found = byte_level_bpe(folder, settings)
    add_tokens(found, folder, settings, names)
    if settings.get("add_bos_token"):
        bos, _ = numbered(found, names["bos_token"])
        found.post_processor = processors.TemplateProcessing(
            single=f"{bos}:0 $A:0",
            pair=f"{bos}:0 $A:0 {bos}:1 $B:1",
            special_tokens=[numbered(found, names["bos_token"])],
        )
    return JsonTokenizer.of(found.to_str(), names)


VOCAB_FILES: dict[str, tuple[tuple[str, ...], Callable[[Path, Mapping[str, Any]], JsonTokenizer]]] = {
    "BertTokenizer": (("vocab.txt",), word_pieces),
    "DistilBertTokenizer": (("vocab.txt",), word_pieces),
    "RobertaTokenizer": (("vocab.json", "merges.txt"), roberta),
    "BartTokenizer": (("vocab.json", "merges.txt"), roberta),
    "GPT2Tokenizer": (("vocab.json", "merges.txt"), gpt2),
}
"""The files of a tokenizer and the function that reads them, by `tokenizer_class`."""


def named_tokens(settings: Mapping[str, Any], names: Mapping[str, Any] | tuple[str, ...]) -> dict[str, Any]:
    """Returns the special tokens that the folder names."""
    return {name: settings[name] for name in names if settings.get(name)}


def byte_level_bpe(folder: Path, settings: Mapping[str, Any]) -> Library:
    """Returns a byte-level BPE tokenizer."""
    ids = read_json(folder / "vocab.json").values()
    if not all(isinstance(i, int) and 0 <= i < MOST_IDS for i in ids):
        raise ValueError(f"an id of the vocabulary is too large: each must be a whole number from 0 to {MOST_IDS - 1}")
    found = Library(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))
    found.decoder = decoders.ByteLevel()
    return found


def add_tokens(found: Library, folder: Path, settings: Mapping[str, Any], names: Mapping[str, Any]) -> None:
    """Adds the tokens that were added to the vocabulary, and the special tokens that are in it, as one piece each."""
    added = {int(i): token for i, token in settings.get("added_tokens_decoder", {}).items()}
    added = {i: {"content": token} for token, i in read_json(folder / "added_tokens.json").items()} | added
    for i, token in sorted(added.items()):
        found.add_tokens([described(token)])
        if found.token_to_id(content(token)) != i:
            raise ValueError(
                f"{cut(repr(content(token)))} should be the added token {i}: that id does not follow the vocabulary; copy the "
                "folder again"
            )
    known = {content(token) for token in added.values()}
    more = [settings.get(name) or [] for name in ("additional_special_tokens", "extra_special_tokens")]
    for token in (*names.values(), *(token for tokens in more if isinstance(tokens, list) for token in tokens)):
        if content(token) not in known and found.token_to_id(content(token)) is not None:
            found.add_special_tokens([described(token)])


def described(token: Any) -> AddedToken:
    """Returns a token as the files describe it; a token without a description is special."""
    if not isinstance(token, Mapping):
        return AddedToken(token, special=True)
    options = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(content(token), **{name: token[name] for name in options if name in token})


def numbered(found: Library, token: Any) -> tuple[str, int]:
    """Returns a special token and its id."""
    i = found.token_to_id(content(token))
    if i is None:
        raise ValueError(f"the vocabulary lacks the special token {cut(content(token))}: copy the folder again")
    return content(token), i
