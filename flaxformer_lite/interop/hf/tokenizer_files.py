"""Reads the tokenizers of a Hugging Face folder: the first kind whose files are all present.

`tokenizer.json`, a SentencePiece model, Marian's pair of them, or the vocabularies of BERT, RoBERTa, BART and GPT-2, which become
the description of a `tokenizer.json`, as the library makes it. The files beside a vocabulary add tokens, merged as transformers
5.24 does: `tokenizer_config.json` has them in `added_tokens_decoder`; only in older folders without it, `special_tokens_map.json`
and `added_tokens.json` count too. The class of the tokenizer decides the rest (`tokenizer_classes.py`).
"""

import functools
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.text.languages import codes_in
from flaxformer_lite.core.text.tokenizer import MOST_IDS, Tokenizer, Tokenizers
from flaxformer_lite.files.tokenizers.json_tokenizer import SPECIAL_NAMES, JsonTokenizer, one_error, token_text
from flaxformer_lite.files.tokenizers.subwords import (
    FLAGS,
    LANGUAGE,
    AddedPieces,
    MarianTokenizer,
    SentencePieceTokenizer,
    VocabularyPieces,
)
from flaxformer_lite.interop.hf.families import FAMILIES
from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.interop.hf.tokenizer_classes import (
    CLASSES,
    NOT_READ,
    PLAIN,
    SHIFTED,
    TokenizerClass,
    class_name,
    stated_class,
)

NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The settings that name special tokens. Tokens that the vocabulary lacks get the next free ids in this order."""


class Found(NamedTuple):
    """The tokenizers of both sides, or the reason for their absence."""

    tokenizers: Tokenizers | None
    note: str = ""
    """The reason."""
    notes: Sequence[str] = ()
    """Notes on tokenizers that were found."""


def read_tokenizers(folder: Path, config: Mapping[str, object], vocab_sizes: tuple[int, int]) -> Found:
    """Returns the folder's tokenizers, unless they have more ids than the model; `vocab_sizes` are those of source and target.

    Tokens that the folder adds past the model's table are left out, with a note.

    Raises: ValueError where a file is damaged, or a token cannot get the id that the folder states.
    """
    taken = find_tokenizers(folder, config, min(vocab_sizes))
    if taken.tokenizers is not None:
        sides = (taken.tokenizers.source, taken.tokenizers.target)
        for tokenizer, size in zip(sides, vocab_sizes, strict=True):
            needed = tokenizer.largest_id + 1
            if needed > size:
                return Found(None, f"the tokenizer has {needed} ids, and the model reads {size}")
    return taken


def find_tokenizers(folder: Path, config: Mapping[str, object], size: int | None = None) -> Found:
    """Returns the tokenizers of the first kind whose files are all present, without added tokens whose ids are from `size` on."""
    kind = next((file for file in ("tokenizer.json", "spiece.model", "tokenizer.model") if has(folder, file)), None)
    name = "MarianTokenizer" if has(folder, *MARIAN) else class_name(folder, config)
    files, read = VOCAB_FILES.get(name, ((), None))
    if (
        kind not in (None, "tokenizer.json", *files)
        and not stated_class(folder, config)
        and not CLASSES.get(name, PLAIN).own_ids
        and name not in SHIFTED
    ):
        name = ""  # a model of another type than the file is usual for: an encoder with SentencePiece
    if name in NOT_READ:
        return Found(None, f"a {name} is not read: {NOT_READ[name]}")
    theirs = CLASSES.get(name, PLAIN)
    try:
        settings = read_settings(folder, config, theirs)
        if has(folder, *MARIAN):
            return Found(marian(folder, settings))
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    try:
        if kind == "tokenizer.json":
            taken = described((folder / kind).read_text(encoding="utf-8"), settings, theirs, size)
            return taken if name in CLASSES or not name else taken._replace(notes=[*taken.notes, unknown_class(name)])
        if kind is not None and re.match(rb"[\w+/]+=* \d+\n", (folder / kind).read_bytes()[:200]):
            rule = "its lines are tiktoken's, base64 and a rank: save a tokenizer.json with transformers"
            return Found(None, f"{folder / kind} is no SentencePiece model: {rule}")
        if kind is not None and name in ("", *CLASSES) and theirs.own_ids:
            ends = reads_whole_texts(config)
            found_pieces, left_out = sentence_pieces(
                (folder / kind).read_bytes(), settings, theirs, ends=ends, size=size
            )
            return joint(found_pieces, left_out, settings, size)
        if (
            kind is None
            and theirs.codes
            and has(folder, *((FAIRSEQ_MODEL, "vocab.json") if name == "M2M100Tokenizer" else (FAIRSEQ_MODEL,)))
        ):
            return joint(fairseq_pieces(folder, settings, theirs), [], settings, size)
        if read is not None and has(folder, *files):
            return finished(read(folder, settings), settings, size)
    except Exception as error:  # the libraries raise nothing more precise
        what = {"tokenizer.json": "tokenizer", None: name}.get(kind, "SentencePiece model")
        raise ValueError(
            f"{folder / (kind or (*files, FAIRSEQ_MODEL)[0])} holds no {what} that can be read: {error}"
        ) from None
    return Found(None, why_none(folder, name))


def reads_whole_texts(config: Mapping[str, Any]) -> bool:
    """Returns whether a config is that of an encoder-only model."""
    family = FAMILIES.get(config.get("model_type", ""))
    return family is not None and not family.template.num_decoder_layers


def unknown_class(name: str) -> str:
    return (
        f"tokenizer_class is {cut(name)}, which is not known here: tokens that this class adds by itself, besides those of "
        "tokenizer.json and tokenizer_config.json, are not read"
    )


def why_none(folder: Path, name: str) -> str:
    """Returns the reason that a folder's tokenizer is not read: the files that it has, or their absence."""
    here, deeper = list[str](), list[str]()
    for pattern in TOKENIZER_PATTERNS:
        here += [file.name for file in sorted(folder.glob(pattern))]
        deeper += [str(file.relative_to(folder)) for file in sorted(folder.glob(f"*/{pattern}"))]
    remedy = "save a tokenizer.json with the library (AutoTokenizer.from_pretrained(FOLDER).save_pretrained(NEW))"
    if here:
        what = f"a {cut(name)}" if name else "a tokenizer whose class nothing names"
        return (
            f"the folder has {', '.join(here)}, and {what} is not read from that: {remedy}, and copy it into the folder"
        )
    if deeper:
        return f"the folder has {deeper[0]}, in a folder of its own: copy the files of the tokenizer beside config.json"
    return "the folder has no file of a tokenizer"


def has(folder: Path, *names: str) -> bool:
    return all((folder / name).is_file() for name in names)


def finished(library: Library, settings: "TokenizerSettings", size: int | None) -> Found:
    """Returns a tokenizer of the library for both sides, without the added tokens whose ids are from `size` on."""
    description = json.loads(library.to_str())
    tokens = description["added_tokens"]
    values = settings.values
    left_out = [token["content"] for token in tokens if size is not None and token["id"] >= size]
    description["added_tokens"] = tokens[: len(tokens) - len(left_out)]  # they are sorted by their ids
    text = json.dumps(description, ensure_ascii=False) if left_out else library.to_str()
    names = {name: x for name, x in values.items() if name not in settings.by_class or content(x) not in left_out}
    return joint(JsonTokenizer.of(text, names, settings.model_ids), left_out, settings, size)


def joint(tokenizer: Tokenizer, left_out: Sequence[str], settings: "TokenizerSettings", size: int | None) -> Found:
    """Returns one tokenizer for both sides, with notes on the tokens that are left out and on the end of a text."""
    notes = []
    end = tokenizer.eos_id
    ends = settings.model_ids["eos"]
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


def quoted(text: object) -> str:
    return cut(repr(text))


# Special and added tokens ---------------------------------------------------------------------------------------------


class TokenizerSettings(NamedTuple):
    """The settings of a folder's tokenizer."""

    values: dict[str, Any]
    """`tokenizer_config.json`, in older folders with `special_tokens_map.json`; and the special tokens that the class names."""
    by_class: Collection[str]
    """The names of the latter."""
    older: bool
    """Whether `tokenizer.json` describes its tokens, and not `added_tokens_decoder`."""
    added: dict[int, AddedToken]
    """The tokens whose ids the folder states."""
    named: Collection[str]
    """The texts of tokens that have a role."""
    lists: bool
    """Whether the folder lists special tokens."""
    special: list[AddedToken]
    """Other special tokens, named or listed; one that the vocabulary lacks gets the next free id."""
    model_ids: dict[str, list[int]]
    """The special ids in the model's own config, by role."""


def read_settings(folder: Path, config: Mapping[str, object], theirs: TokenizerClass) -> TokenizerSettings:
    """Returns the settings. `theirs`: the tokenizer's class.

    Raises: ValueError where a token is neither a string nor an object with its content.
    """
    values = read_json(folder / "tokenizer_config.json")
    older, listed, named = "added_tokens_decoder" not in values, *listed_tokens(values)
    first = listed
    if older:
        values |= read_json(folder / "special_tokens_map.json")
        if not listed and not named:
            listed, named = listed_tokens(values)
    by_class = {name: token for name, token in theirs.names.items() if name not in values}
    values |= by_class
    lists = bool(listed or named)
    if not lists:
        listed = [*theirs.listed]
    roles = [values[name] for name in NAMES if values.get(name) is not None]
    of_roles = [token for name, token in values.items() if name.endswith("_token") and isinstance(token, str | Mapping)]
    named = [*roles, *of_roles, *named]
    if older:
        special = {*map(content, [*roles, *first])}
        stated = [
            (i, {"content": text, "special": text in special, "normalized": text not in special})
            for text, i in read_json(folder / "added_tokens.json").items()
        ]
    else:
        if not isinstance(values["added_tokens_decoder"], Mapping):
            raise ValueError("added_tokens_decoder is not an object: it must have tokens by their ids")
        stated = [*values["added_tokens_decoder"].items()]
    texts = {*map(content, named)}
    added = stated_tokens(stated, texts)
    known = {"", *(token.content for token in added.values())}  # the library ignores a token without text
    once = {repr(token): token for token in [*named, *listed]}.values()  # of two descriptions the last one counts
    others = {content(token): added_token(token, special=True) for token in once}
    more = [token for text, token in others.items() if text not in known]
    files = (read_json(folder / "generation_config.json"), config)
    model_ids = {role: stated_ids(names, files) for role, names in SPECIAL_NAMES.items()}
    return TokenizerSettings(values, by_class, older, added, texts, lists, more, model_ids)


def stated_ids(names: Iterable[str], files: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the ids that the first of the files states for the first of the names of a special token."""
    for name in names:
        for file in files:
            stated = file.get(f"{name}_token_id")
            if stated is not None:
                ids = stated if isinstance(stated, list) else [stated]
                return [i for i in ids if type(i) is int and i >= 0]
    return []


def listed_tokens(values: Mapping[str, object]) -> tuple[list[Any], list[Any]]:
    """Returns the listed special tokens, and those with names of their own. Raises: ValueError where they are neither."""
    tokens = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    if not isinstance(tokens, list | dict):
        raise ValueError(f"additional_special_tokens is {quoted(tokens)}: it must be a list of tokens")
    return ([], [*tokens.values()]) if isinstance(tokens, dict) else (tokens, [])


def stated_tokens(stated: Iterable[tuple[Any, Any]], special: Collection[str]) -> dict[int, AddedToken]:
    """Returns added tokens by their ids. Raises: ValueError where one is no id, or two are the same."""
    added: dict[int, AddedToken] = {}
    for i, token in stated:
        token_read = added_token(token, special=content(token) in special)
        if isinstance(i, bool) or not str(i).isdecimal() or int(i) >= MOST_IDS:
            raise ValueError(
                f"the added token {quoted(token_read.content)} has the id {quoted(i)}: it must be from 0 to {MOST_IDS - 1}"
            )
        number = int(i)
        if number in added:
            both = " and ".join(quoted(text) for text in (added[number].content, token_read.content))
            raise ValueError(f"the added tokens {both} have the same id {number}: give each an id of its own")
        if token_read.content:
            added[number] = token_read
    return added


def content(token: object) -> str:
    """Returns the text of a token, which files store as a text or in an object."""
    text = token_text("a special token", token)
    if text is None:
        raise ValueError("a special token is null: it must be a string, or an object with its content")
    return text


def added_token(token: object, special: bool = False) -> AddedToken:
    """Returns a token as the files describe it; with `special` it is special, whatever they say."""
    text = content(token)
    flags = {name: token[name] for name in FLAGS if name in token} if isinstance(token, Mapping) else {}
    try:
        return AddedToken(text, **flags | ({"special": True} if special else {}))
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"the token {quoted(text)} cannot be read: {error}") from None


def add_tokens(library: Library, settings: TokenizerSettings) -> None:
    """Adds the tokens to a tokenizer, as one piece each.

    Raises: ValueError with the name of a token that would get another id than the folder states.
    """
    present = library.get_added_tokens_decoder()
    known = {token.content for token in (*present.values(), *settings.added.values())}
    stated = settings.added
    if settings.older:
        stated = stated | present
        for token in present.values():
            token.special |= token.content in settings.named
    library.add_tokens([token for _, token in sorted(stated.items())])
    library.add_tokens([token for token in settings.special if token.content not in known])
    check_ids(library, ((i, token.content) for i, token in settings.added.items()))


def check_ids(library: Library, tokens: Iterable[tuple[int, str]]) -> None:
    """Raises: ValueError with the name of a token that has another id than the folder states."""
    for i, text in tokens:
        if text and library.token_to_id(text) != i:
            raise wrong_id(i, text)


def wrong_id(i: int, text: str) -> ValueError:
    return ValueError(
        f"{quoted(text)} should be the added token {i}: that id does not follow the vocabulary; copy the folder again"
    )


# Kinds of files -------------------------------------------------------------------------------------------------------

FAIRSEQ_MODEL = "sentencepiece.bpe.model"
"""A SentencePiece model whose pieces have ids of a vocabulary."""
MARIAN = ("source.spm", "target.spm", "vocab.json")
TOKENIZER_PATTERNS = (
    "tokenizer.json",
    "*.model",
    "*.spm",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "tekken.json",
    "bpe.codes",
    "dict*.txt",
)
"""Patterns of files that hold tokenizers, read here or not."""


@one_error()
def described(description: str, settings: TokenizerSettings, theirs: TokenizerClass, size: int | None) -> Found:
    """Returns the tokenizer of a `tokenizer.json`. Raises: ValueError with the name of a token that would get another id."""
    library = Library.from_str(description)
    tokens = json.loads(description).get("added_tokens") or []
    largest = max(library.get_vocab().values(), default=0)
    if largest >= MOST_IDS:  # it writes all ids to the largest
        raise ValueError(f"its vocabulary has the id {largest}: an id must be from 0 to {MOST_IDS - 1}")
    check_ids(library, ((token["id"], token["content"]) for token in tokens))
    add_tokens(library, settings)
    if not settings.lists:  # as in the library, which then adds what its class lists
        numbers = range(settings.values.get("extra_ids", theirs.extra_ids))
        sentinels = [f"<extra_id_{n}>" for n in numbers]
        library.add_special_tokens([*theirs.language_tokens(settings.values), *sentinels])
    if library.post_processor is None:
        library.post_processor = frame(theirs, library, settings)
    return finished(library, settings, size)


def frame(theirs: TokenizerClass, library: Library, settings: TokenizerSettings) -> processors.PostProcessor | None:
    """Returns the template of special tokens that the class has itself; None for a class without one, and without its tokens."""
    templates = [template.split() for template in theirs.frame]
    roles = set[str]()
    for template in templates:
        roles.update(item.partition(":")[0] for item in template if not item.startswith("$"))
    if any(settings.values.get(f"{role}_token") is None for role in roles):
        return None
    tokens = {role: content(settings.values[f"{role}_token"]) for role in roles}
    ids = {text: library.token_to_id(text) for text in tokens.values()}
    if not templates or None in ids.values():
        return None
    for template in templates:
        for number, item in enumerate(template):
            role, colon, kind = item.partition(":")
            template[number] = f"{tokens.get(role, role)}{colon}{kind}"
    return processors.TemplateProcessing(single=templates[0], pair=templates[1], special_tokens=[*ids.items()])


def marian(folder: Path, settings: TokenizerSettings) -> Tokenizers:
    """Reads `source.spm` and `target.spm` with `vocab.json`, or with a vocabulary for each side."""
    values = settings.values
    names = {name: content(values[f"{name}_token"]) for name in ("unk", "eos", "pad")}
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


def word_pieces(name: str, folder: Path, settings: TokenizerSettings) -> Library:
    """Reads the `vocab.txt` of a class: words, in lower case if set, are split into the longest known pieces."""
    values = settings.values
    library = Library(models.WordPiece.from_file(str(folder / "vocab.txt"), unk_token=content(values["unk_token"])))
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=values.get("tokenize_chinese_chars", True),
        strip_accents=values.get("strip_accents"),
        lowercase=values.get("do_lower_case", True),
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    add_tokens(library, settings)
    for token in ("cls_token", "sep_token"):
        numbered(library, settings, token)
    library.post_processor = frame(CLASSES[name], library, settings)
    return library


def roberta(folder: Path, settings: TokenizerSettings) -> Library:
    """Reads RoBERTa's and BART's `vocab.json` and `merges.txt`: byte-level BPE between <s> and </s>."""
    library = byte_level_bpe(folder, settings.values)
    add_tokens(library, settings)
    library.post_processor = processors.RobertaProcessing(
        numbered(library, settings, "sep_token"),
        numbered(library, settings, "cls_token"),
        trim_offsets=settings.values.get("trim_offsets", True),
        add_prefix_space=settings.values.get("add_prefix_space", False),
    )
    return library


def deberta(folder: Path, settings: TokenizerSettings) -> Library:
    """Reads the pieces of DeBERTa's `spm.model`; the class normalizes texts by itself."""
    library, _ = scored_pieces(folder / "spm.model")
    clean = [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False)]
    lower = [normalizers.Lowercase()] if settings.values.get("do_lower_case") else []
    library.normalizer = normalizers.Sequence([*lower, *clean])
    split = [pre_tokenizers.Punctuation()] if settings.values.get("split_by_punct") else []
    library.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.Metaspace()])
    return of_pieces("DebertaV2Tokenizer", library, settings)


def albert(folder: Path, settings: TokenizerSettings) -> Library:
    """Reads the pieces of ALBERT's `spiece.model`; the class normalizes texts by itself, and then as the model does."""
    library, characters = scored_pieces(folder / "spiece.model")
    steps: list[Any] = [normalizers.Replace(quotes, '"') for quotes in ("``", "''")]
    if not settings.values.get("keep_accents"):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if settings.values.get("do_lower_case", True) else []
    steps += [normalizers.Precompiled(characters)] if characters else []
    library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return of_pieces("AlbertTokenizer", library, settings)


def scored_pieces(file: Path) -> tuple[Library, bytes]:
    """Returns the pieces of a SentencePiece model, its special tokens and symbols among them, and its table of characters."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    model = ModelProto.FromString(file.read_bytes())
    library = Library(models.Unigram([(one.piece, one.score) for one in model.pieces], model.trainer_spec.unk_id))
    whole = [one for one in model.pieces if one.type in (one.CONTROL, one.USER_DEFINED)]
    library.add_tokens([AddedToken(one.piece, normalized=False, special=one.type == one.CONTROL) for one in whole])
    return library, model.normalizer_spec.precompiled_charsmap


def of_pieces(name: str, library: Library, settings: TokenizerSettings) -> Library:
    """Returns the tokenizer of a class that has pieces with scores, with its tokens and its frame."""
    library.decoder = decoders.Metaspace()
    add_tokens(library, settings)
    library.post_processor = frame(CLASSES[name], library, settings)
    return library


def gpt2(folder: Path, settings: TokenizerSettings) -> Library:
    """Reads GPT-2's `vocab.json` and `merges.txt`: byte-level BPE, between the special tokens that are set to be added."""
    library = byte_level_bpe(folder, settings.values)
    add_tokens(library, settings)
    before, after = (
        [numbered(library, settings, name)] if settings.values.get(f"add_{name}") else []
        for name in ("bos_token", "eos_token")
    )

    def template(text: str, side: int) -> list[str]:
        return [f"{piece}:{side}" for piece in (*dict(before), text, *dict(after))]

    one, two = template("$A", 0), template("$B", 1)
    library.post_processor = processors.TemplateProcessing(single=one, pair=one + two, special_tokens=before + after)
    return library


def fairseq_pieces(folder: Path, settings: TokenizerSettings, theirs: TokenizerClass) -> VocabularyPieces:
    """Reads `sentencepiece.bpe.model` with the ids of `vocab.json`, or, without that file, <s> <pad> </s> <unk> and the pieces.

    The languages of the class follow, then the mask, then other special tokens.

    Raises: ValueError for a token that would get another id than the folder states.
    """
    plain = SentencePieceTokenizer((folder / FAIRSEQ_MODEL).read_bytes())
    pieces = plain.pieces(range(plain.vocab_size))
    values = settings.values
    texts = {role: content(values[f"{role}_token"]) for role in ("bos", "pad", "eos", "unk")}
    first = list(texts.values())
    vocabulary = read_json(folder / "vocab.json")
    if not vocabulary:
        others = [piece for piece in pieces[3:] if piece not in first]
        vocabulary = {piece: i for i, piece in enumerate(first + others)}
    mask = values.get("mask_token")
    last = [] if mask is None else [content(mask)]
    languages = theirs.language_tokens(values)
    stated = {token.content for token in settings.added.values()}
    if theirs.open_codes:
        languages = [token.content for token in settings.special if codes_in([token.content], "{}")] or languages
        if codes_in([*stated], "{}"):
            languages = [text for text in languages if text in stated]
    ids = dict(vocabulary)
    free = itertools.count(max(vocabulary.values()) + 1)
    for text in (*languages, *last):
        if text not in ids and not (theirs.open_codes and text in stated):
            ids[text] = next(free)
    for i, token in settings.added.items():
        if ids.setdefault(token.content, i) != i:
            raise wrong_id(i, token.content)
    free = itertools.count(max(ids.values()) + 1)
    for token in settings.special:
        if token.content not in ids:
            ids[token.content] = next(free)
    added = {ids[token.content]: token for token in (*settings.special, *settings.added.values())}
    for text in (*first, *languages):
        if ids[text] not in added:
            added[ids[text]] = AddedToken(text, special=True)
    special = {role: ids[text] for role, text in texts.items()}
    if last:
        special["mask"] = ids[last[0]]
    return VocabularyPieces(
        plain.model,
        [vocabulary.get(piece, special["unk"]) for piece in pieces],
        {i: token_fields(token) for i, token in added.items()},
        special,
    )


def token_fields(token: AddedToken) -> dict[str, Any]:
    """Returns the text and the flags of an added token."""
    return {name: getattr(token, name) for name in ("content", *FLAGS)}


def byt5(folder: Path, settings: TokenizerSettings) -> Library:
    """Returns ByT5's tokenizer, which has no vocabulary file: three special tokens, the bytes, the sentinels."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # first the bytes that stand for themselves
    signs = {ord(sign): sign for sign in alphabet if ord(sign) < 256}
    others = [byte for byte in range(256) if byte not in signs]
    signs |= dict(zip(others, alphabet[len(signs) :], strict=True))
    special = [content(settings.values[f"{name}_token"]) for name in ("pad", "eos", "unk")]
    pieces = [*special, *(signs[byte] for byte in range(256))]
    library = Library(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    add_tokens(library, settings)
    number = settings.values.get("extra_ids", CLASSES["ByT5Tokenizer"].extra_ids)
    if library.token_to_id("<extra_id_0>") is None:
        library.add_special_tokens([f"<extra_id_{n}>" for n in range(number)])
    end = numbered(library, settings, "eos_token")
    one, two = f"$A:0 {end[0]}:0", f"$B:0 {end[0]}:0"
    library.post_processor = processors.TemplateProcessing(single=one, pair=f"{one} {two}", special_tokens=[end])
    return library


VOCAB_FILES: dict[str, tuple[tuple[str, ...], Callable[[Path, TokenizerSettings], Library]]] = {
    **{
        name: (("vocab.txt",), functools.partial(word_pieces, name))
        for name in ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer")
    },
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer", "MvpTokenizer"), (("vocab.json", "merges.txt"), roberta)),
    "GPT2Tokenizer": (("vocab.json", "merges.txt"), gpt2),
    "DebertaV2Tokenizer": (("spm.model",), deberta),
    "AlbertTokenizer": (("spiece.model",), albert),
    "ByT5Tokenizer": ((), byt5),
}
"""The files and the way to read them, by `tokenizer_class`."""


def byte_level_bpe(folder: Path, settings: Mapping[str, Any]) -> Library:
    """Returns a byte-level BPE tokenizer."""
    ids = read_json(folder / "vocab.json").values()
    if not all(isinstance(i, int) and 0 <= i < MOST_IDS for i in ids):
        raise ValueError(f"an id of the vocabulary is too large: each must be a whole number from 0 to {MOST_IDS - 1}")
    library = Library(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings.get("add_prefix_space", False))
    library.decoder = decoders.ByteLevel()
    return library


def numbered(library: Library, settings: TokenizerSettings, name: str) -> tuple[str, int]:
    """Returns a special token and its id. Raises: ValueError where neither the vocabulary nor the folder states the id."""
    text = content(settings.values[name])
    i = library.token_to_id(text)
    if i is None or (i not in settings.added and library.model.token_to_id(text) is None):
        raise ValueError(f"the vocabulary lacks the special token {cut(text)}: copy the folder again")
    return text, i


def sentence_pieces(
    model: bytes, settings: TokenizerSettings, theirs: TokenizerClass, *, ends: bool, size: int | None
) -> tuple[AddedPieces, list[str]]:
    """Reads `spiece.model` or `tokenizer.model`. Returns also the tokens that are left out: those with ids from `size` on.

    The class of T5 ends each text and adds sentinels, 100 by default; others begin each text with BOS, and where the folder does
    not say, `ends` decides whether EOS ends it.

    Raises: ValueError with the name of a token that has another id in the model.
    """
    plain = SentencePieceTokenizer(model)
    values = settings.values
    is_t5 = theirs.extra_ids > 0
    ids = {piece: i for i, piece in enumerate(plain.pieces(range(plain.vocab_size)))}
    for i, token in settings.added.items():
        if ids.setdefault(token.content, i) != i:
            raise wrong_id(i, token.content)
    # A text may contain the model's own special tokens, as everywhere in the library.
    controls = {i: piece for piece, i in ids.items() if i < plain.vocab_size and plain.is_control(i)}
    sentinels = list[str]()
    if is_t5:
        numbers = reversed(range(values.get("extra_ids", theirs.extra_ids)))
        sentinels = [f"<extra_id_{number}>" for number in numbers]
    controls |= {ids.setdefault(text, plain.vocab_size + number): text for number, text in enumerate(sentinels)}
    added = {i: AddedToken(text, special=True) for i, text in controls.items()} | settings.added
    unknown = list[AddedToken]()
    if not values.get("unk_token"):
        (piece,) = plain.pieces([plain.unk_id or 0])
        unknown.append(AddedToken(piece, special=True))
    free = itertools.count(max(ids.values()) + 1)
    for token in (*settings.special, *unknown):
        if token.content not in ids:
            ids[token.content] = next(free)
        added.setdefault(ids[token.content], token)
    kept = {i: token for i, token in added.items() if size is None or i < size}
    known = {text: i for text, i in ids.items() if i < plain.vocab_size or i in kept}
    special = {}
    for role, (first, *other) in SPECIAL_NAMES.items():
        names = [first] if getattr(plain, f"{role}_id") is not None else [first, *other]
        keys = [f"{name}_token" for name in names]
        texts = [token_text(key, values.get(key)) for key in keys]
        special[role] = next((known[text] for text in texts if text in known), None)
    begins = not is_t5 and bool(values.get("add_bos_token", True))
    ends = is_t5 or bool(values.get("add_eos_token", ends))
    none = {name for name in ("bos_token", "eos_token") if values.get(name, "") is None}
    left_out = [token.content for i, token in sorted(added.items()) if i not in kept]
    return AddedPieces(
        model,
        {i: token_fields(token) for i, token in kept.items()},
        {role: i for role, i in special.items() if i is not None or f"{role}_token" in none},
        (begins, ends),
        is_t5 or bool(values.get("legacy", theirs.legacy)),
    ), left_out
