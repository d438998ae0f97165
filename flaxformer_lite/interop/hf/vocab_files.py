"""Reads tokenizers that folders store in other files than `tokenizer.json`: SentencePiece models, and vocabularies.

Those of BERT, RoBERTa, BART and GPT-2 become the description of a `tokenizer.json`, as the library makes it.
"""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from flaxformer_lite.base.bounds import cut
from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.interop.hf.special_tokens import TokenizerSettings, add_tokens, content, wrong_id
from flaxformer_lite.text import Tokenizers
from flaxformer_lite.text.added_pieces import FLAGS, AddedPieces
from flaxformer_lite.text.json_tokenizer import ROLES, token_text
from flaxformer_lite.text.marian import LANGUAGE, MarianTokenizer
from flaxformer_lite.text.subwords import SentencePieceTokenizer
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


def marian(folder: Path, settings: TokenizerSettings) -> Tokenizers:
    """Reads `source.spm` and `target.spm` with `vocab.json`, or with a vocabulary for each side."""
    values = settings.values
    names = {name.removesuffix("_token"): content(values[name]) for name in MARIAN}
    vocabularies = ("vocab.json", "target_vocab.json" if values.get("separate_vocabs") else "vocab.json")
    for token in (*settings.added.values(), *settings.special):
        if token.content not in names.values() and not LANGUAGE.fullmatch(token.content):
            raise ValueError(f"the added token {cut(repr(token.content))} is not implemented for Marian: remove it")

    def side(model: str, vocabulary: str) -> MarianTokenizer:
        try:
            return MarianTokenizer((folder / model).read_bytes(), read_json(folder / vocabulary), **names)
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(f"{model} with {vocabulary}: {error}") from None

    return Tokenizers(side("source.spm", vocabularies[0]), side("target.spm", vocabularies[1]))


def word_pieces(folder: Path, settings: TokenizerSettings) -> Library:
    """Reads BERT's `vocab.txt`: words, in lower case if set, are split into the longest known pieces."""
    values = settings.values
    found = Library(models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token=content(values["unk_token"])))
    found.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=values.get("tokenize_chinese_chars", True),
        strip_accents=values.get("strip_accents"),
        lowercase=values.get("do_lower_case", True),
    )
    found.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    found.decoder = decoders.WordPiece(prefix="##")
    add_tokens(found, settings)
    (cls, _), (sep, _) = ends = [numbered(found, settings, name) for name in ("cls_token", "sep_token")]
    found.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0", pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1", special_tokens=ends
    )
    return found


def roberta(folder: Path, settings: TokenizerSettings) -> Library:
    """Reads RoBERTa's and BART's `vocab.json` and `merges.txt`: byte-level BPE between <s> and </s>."""
    found = byte_level_bpe(folder, settings.values)
    add_tokens(found, settings)
    found.post_processor = processors.RobertaProcessing(
        numbered(found, settings, "sep_token"),
        numbered(found, settings, "cls_token"),
        trim_offsets=settings.values.get("trim_offsets", True),
        add_prefix_space=settings.values.get("add_prefix_space", False),
    )
    return found


def gpt2(folder: Path, settings: TokenizerSettings) -> Library:
    """Reads GPT-2's `vocab.json` and `merges.txt`: byte-level BPE, between the special tokens that are set to be added."""
    found = byte_level_bpe(folder, settings.values)
    add_tokens(found, settings)
    before, after = (
        [numbered(found, settings, name)] if settings.values.get(f"add_{name}") else []
        for name in ("bos_token", "eos_token")
    )

    def template(text: str, side: int) -> list[str]:
        return [f"{part}:{side}" for part in (*dict(before), text, *dict(after))]

    one, two = template("$A", 0), template("$B", 1)
    found.post_processor = processors.TemplateProcessing(single=one, pair=one + two, special_tokens=before + after)
    return found


class VocabFiles(NamedTuple):
    """The files of a tokenizer, and the way to read them."""

    files: tuple[str, ...]
    read: Callable[[Path, TokenizerSettings], Library] | None
    names: Mapping[str, Any]
    """The special tokens that the class names itself."""


NO_FILES = VocabFiles((), None, {})
BART = VocabFiles(("vocab.json", "merges.txt"), roberta, ROBERTA)
VOCAB_FILES = {
    "BertTokenizer": VocabFiles(("vocab.txt",), word_pieces, BERT),
    "DistilBertTokenizer": VocabFiles(("vocab.txt",), word_pieces, BERT),
    "RobertaTokenizer": BART,
    "BartTokenizer": BART,
    "GPT2Tokenizer": VocabFiles(("vocab.json", "merges.txt"), gpt2, GPT2),
}
"""By `tokenizer_class`."""


def byte_level_bpe(folder: Path, settings: Mapping[str, Any]) -> Library:
    """Returns a byte-level BPE tokenizer."""
    ids = read_json(folder / "vocab.json").values()
    if not all(isinstance(i, int) and 0 <= i < MOST_IDS for i in ids):
        raise ValueError(f"an id of the vocabulary is too large: each must be a whole number from 0 to {MOST_IDS - 1}")
    found = Library(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))
    found.decoder = decoders.ByteLevel()
    return found


def numbered(found: Library, settings: TokenizerSettings, name: str) -> tuple[str, int]:
    """Returns a special token and its id. Raises: ValueError where neither the vocabulary nor the folder states the id."""
    text = content(settings.values[name])
    i = found.token_to_id(text)
    if i is None or (i not in settings.added and found.model.token_to_id(text) is None):
        raise ValueError(f"the vocabulary lacks the special token {cut(text)}: copy the folder again")
    return text, i


def sentence_pieces(
    model: bytes, settings: TokenizerSettings, name: str, *, ends: bool, size: int | None
) -> tuple[AddedPieces, list[str]]:
    """Reads `spiece.model` or `tokenizer.model`. Returns also the tokens that are left out: those with ids from `size` on.

    Args:
        model: The content of the file.
        settings: The folder's settings.
        name: The tokenizer's class. T5's ends each text and adds sentinels, 100 by default; others begin each text with BOS.
        ends: Whether EOS ends a text where the folder does not say.
        size: The rows of the model's table; None: any number.

    Raises: ValueError with the name of a token that has another id in the model.
    """
    plain, values, is_t5 = SentencePieceTokenizer(model), settings.values, name == "T5Tokenizer"
    ids = {piece: i for i, piece in enumerate(plain.pieces(range(plain.vocab_size)))}
    for i, token in settings.added.items():
        if ids.setdefault(token.content, i) != i:
            raise wrong_id(i, token.content)
    # A text may contain the model's own special tokens, as everywhere in the library.
    own = {i: piece for piece, i in ids.items() if i < plain.vocab_size and plain.is_control(i)}
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(values.get("extra_ids", 100)))] if is_t5 else []
    own |= {ids.setdefault(text, plain.vocab_size + number): text for number, text in enumerate(sentinels)}
    added = {i: AddedToken(text, special=True) for i, text in own.items()} | settings.added
    unknown = [] if values.get("unk_token") else [AddedToken(plain.pieces([plain.unk_id or 0])[0], special=True)]
    free = itertools.count(max(ids.values()) + 1)
    for token in (*settings.special, *unknown):
        if token.content not in ids:
            ids[token.content] = next(free)
        added.setdefault(ids[token.content], token)
    kept = {i: token for i, token in added.items() if size is None or i < size}
    known = {text: i for text, i in ids.items() if i < plain.vocab_size or i in kept}
    special = {}
    for role, (first, *other) in ROLES.items():
        names = [first] if getattr(plain, f"{role}_id") is not None else [first, *other]
        texts = [token_text(key, values.get(key)) for key in (f"{name}_token" for name in names)]
        special[role] = next((known[text] for text in texts if text in known), None)
    return AddedPieces(
        model,
        {i: {flag: getattr(token, flag) for flag in ("content", *FLAGS)} for i, token in kept.items()},
        {role: i for role, i in special.items() if i is not None},
        (not is_t5 and bool(values.get("add_bos_token", True)), is_t5 or bool(values.get("add_eos_token", ends))),
        is_t5 or bool(values.get("legacy", name != "LlamaTokenizer")),
    ), [token.content for i, token in sorted(added.items()) if i not in kept]
