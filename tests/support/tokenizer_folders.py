"""Folders with a tokenizer, drawn at random: kinds of files × where tokens are declared × their flags × the template.

It imports only the libraries that define the files, so that the maker of the fixture and the live comparison share it.
"""

import json
import random
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

Case = dict[str, Any]

WORDS = ("hello", "low", "lower", "user", "the", "new")
TOKENS = ("<|im_start|>", "<|im_end|>", "<é>", "<日本>", "<tool call>", "[PAD]", "<extra>", "word", "<Upper>")
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
SIZES = {"llama": 307, "gemma": 308, "t5": 20}
"""Pieces of the SentencePiece models, whose files the maker writes."""
ONE_FILE = ("bytes", "words")
"""The kinds with a tokenizer.json."""
SENTENCE_PIECES = ("llama", "pieces", "gemma", "t5")
KINDS = {
    "bytes": ("PreTrainedTokenizerFast", "llama"),
    "words": ("PreTrainedTokenizerFast", "bert"),
    "bert": ("BertTokenizer", "bert"),
    "gpt2": ("GPT2Tokenizer", "gpt2"),
    "roberta": ("RobertaTokenizer", "roberta"),
    "llama": ("LlamaTokenizer", "llama"),
    "pieces": ("PreTrainedTokenizerFast", "llama"),
    "gemma": ("GemmaTokenizer", "gemma"),
    "t5": ("T5Tokenizer", "t5"),
}
"""The class of the tokenizer and the type of the model, by the kind of the vocabulary."""
WORD_PIECE, LLAMA = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), ("<unk>", "<s>", "</s>")
OWN = {
    "bytes": ("<|endoftext|>",),
    "gpt2": ("<|endoftext|>",),
    "words": WORD_PIECE,
    "bert": WORD_PIECE,
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "llama": LLAMA,
    "pieces": LLAMA,
    "gemma": ("<pad>", "<eos>", "<bos>", "<unk>"),
    "t5": ("<pad>", "</s>", "<unk>"),
}
"""The special tokens in the vocabulary, which begins with them."""


def byte_pairs(kind: str) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The special tokens, all bytes, and the beginnings of some words with and without the space before them."""
    pieces, merges = [*OWN[kind], *sorted(pre_tokenizers.ByteLevel.alphabet())], []
    for word in (sign + word for word in WORDS for sign in ("", "Ġ")):
        for end in range(1, len(word)):
            if word[: end + 1] not in pieces:
                merges.append((word[:end], word[end]))
                pieces.append(word[: end + 1])
    return {piece: i for i, piece in enumerate(pieces)}, merges


def word_pieces(kind: str) -> dict[str, int]:
    letters = sorted(set("".join(WORDS)) | set("<>|[]_é日xyab"))
    return {p: i for i, p in enumerate([*OWN[kind], *letters, *("##" + x for x in letters), *WORDS])}


def draw_case(rng: random.Random) -> Case:
    """Draws a folder. Ids of declared tokens follow the vocabulary, as in folders that the library has written, but for a few."""
    kind = rng.choice([*KINDS])
    name, model_type = KINDS[kind]
    begun, ended = rng.random() < 0.5, rng.random() < 0.3
    settings: dict[str, Any] = {"tokenizer_class": name}
    if kind in ("gpt2", "llama", "pieces", "gemma"):
        settings |= {"add_bos_token": begun, "add_eos_token": ended}
    if kind == "t5":
        settings["extra_ids"] = rng.choice([0, 3])
    if kind == "pieces":  # LlamaTokenizer reads a space after an added token otherwise than SentencePiece if it is set
        settings["legacy"] = rng.random() < 0.5
    if kind == "roberta":  # whose class takes no space before it along in this release, and in older ones did
        settings["mask_token"] = "<mask>"
    files: dict[str, Any] = {"tokenizer_config.json": settings, "config.json": {"model_type": model_type}}
    size = vocabulary_size(kind) + settings.get("extra_ids", 0)
    size += kind not in SENTENCE_PIECES and rng.random() < 0.05  # a gap before the declared tokens
    drawn = rng.sample([token for token in TOKENS if token not in OWN[kind]], 4)
    declared = [
        {"id": size + n, "content": token, **draw_flags(rng, kind)} for n, token in enumerate(drawn[: rng.randrange(4)])
    ]
    own = [{"id": n, "content": token, "special": True, "normalized": False} for n, token in enumerate(OWN[kind])]
    where = rng.choice(["decoder", "decoder", "older", "older", *(["json"] if kind in ONE_FILE else [])])
    if where == "decoder":
        entries = {d["id"]: d for d in [*declared, *(own if rng.random() < 0.5 else [])]}
        settings["added_tokens_decoder"] = {str(i): {k: d[k] for k in d if k != "id"} for i, d in entries.items()}
    if where == "older" and declared:
        files["added_tokens.json"] = {d["content"]: d["id"] for d in declared}
    in_one_file = declared if where == "json" else declared[: rng.randrange(2)]
    in_one_file = in_one_file if size == vocabulary_size(kind) else []
    candidates = [*OWN[kind], *(d["content"] for d in declared)]
    separate = where == "older" and rng.random() < 0.5
    names: dict[str, Any] = files.setdefault("special_tokens_map.json", {}) if separate else settings
    draw_names(rng, kind, names, candidates, separate, drawn[3:] if rng.random() < 0.3 else [])
    return {
        "kind": kind,
        "template": [begun, ended],
        "added": [*(own if rng.random() < 0.8 else []), *in_one_file] if kind in ONE_FILE else [],
        "files": files,
        "texts": draw_texts(rng, candidates, lines=kind != "t5"),
    }


def vocabulary_size(kind: str) -> int:
    if kind in SENTENCE_PIECES:
        return SIZES["llama" if kind == "pieces" else kind]
    return len(word_pieces(kind) if kind in ("words", "bert") else byte_pairs(kind)[0])


def draw_flags(rng: random.Random, kind: str) -> dict[str, bool]:
    found = {flag: rng.random() < (0.5 if flag == "special" else 0.2) for flag in FLAGS}
    # The class replaces spaces before it looks for normalized tokens, so that there are none to strip.
    return found | ({"normalized": False} if kind == "gemma" else {})


def draw_names(
    rng: random.Random, kind: str, names: dict[str, Any], candidates: list[str], separate: bool, new: list[str]
) -> None:
    """Names roles, and lists special tokens. `separate`: in special_tokens_map.json, which may describe them too."""
    one_word = [token for token in candidates if " " not in token]  # a template with another is refused
    roles = ROLES if kind not in ("bert", "roberta", "t5") else ("pad", "mask")
    for role in rng.sample(roles, rng.randrange(min(5, len(roles) + 1))):
        token: Any = rng.choice(one_word)
        if (
            separate
            and not (kind in SENTENCE_PIECES and token in OWN[kind])
            and kind != "pieces"
            and rng.random() < 0.5
        ):
            flags = draw_flags(rng, kind)
            token = {"content": token, **{flag: flags[flag] for flag in FLAGS if flag != "special"}}
        names[f"{role}_token"] = token
    if kind == "pieces" or rng.random() > 0.4 or (separate and kind in SENTENCE_PIECES):
        return  # the library loses such a list where it reads a SentencePiece model
    listed = rng.sample(candidates, min(len(candidates), 2)) + new
    if kind in SENTENCE_PIECES:  # else the library no longer finds the model's own in a text
        listed = [*dict.fromkeys([*OWN[kind], *listed])]
    form = "additional_special_tokens" if separate else rng.choice(["additional_special_tokens", "extra", "object"])
    if form == "object":
        names["extra_special_tokens"] = {f"my_{n}_token": token for n, token in enumerate(listed)}
    else:
        names["extra_special_tokens" if form == "extra" else form] = listed


def draw_texts(rng: random.Random, tokens: list[str], lines: bool) -> list[str]:
    """Words and tokens in any order, with and without spaces between them; none begins with a space."""
    parts = [*WORDS, *tokens, *tokens, "é日", "x", "\n" if lines else "y", "Upper"]
    texts = [
        "".join(rng.choice(["", "", " ", "  "]) + rng.choice(parts) for _ in range(rng.randrange(1, 7)))
        for _ in range(4)
    ]
    return [text.strip(" ") for text in texts]


def write_case(case: Case, folder: Path, models_in: Path) -> None:
    """Writes the folder. `models_in` has the SentencePiece models."""
    kind, (begun, ended) = case["kind"], case["template"]
    folder.mkdir(parents=True, exist_ok=True)
    for name, document in case["files"].items():
        (folder / name).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    if kind == "t5":
        (folder / "spiece.model").write_bytes((models_in / "t5.model").read_bytes())
    elif kind in ("llama", "pieces", "gemma"):
        model = "gemma.model" if kind == "gemma" else "llama.model"
        (folder / "tokenizer.model").write_bytes((models_in / model).read_bytes())
    elif kind == "bert":
        (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in word_pieces(kind)), encoding="utf-8")
    elif kind in ("gpt2", "roberta"):
        vocabulary, merges = byte_pairs(kind)
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        (folder / "merges.txt").write_text("".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
    else:
        made = described(kind)
        own = OWN[kind]
        begin, end = (own[2], own[3]) if kind == "words" else (own[0], own[0])
        single = [*([begin] if begun else []), "$A", *([end] if ended else [])]
        if begun or ended:
            ids = [(token, own.index(token)) for token in {begin, end}]
            made.post_processor = processors.TemplateProcessing(
                single=single, pair=[*single, "$B:1"], special_tokens=ids
            )
        made.add_tokens(
            [AddedToken(d["content"], **{flag: d[flag] for flag in FLAGS if flag in d}) for d in case["added"]]
        )
        made.save(str(folder / "tokenizer.json"))


def described(kind: str) -> tokenizers.Tokenizer:
    if kind == "words":
        made = tokenizers.Tokenizer(models.WordPiece(word_pieces(kind), unk_token="[UNK]"))
        made.normalizer, made.pre_tokenizer = tokenizers.normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
        made.decoder = decoders.WordPiece(prefix="##")
        return made
    made = tokenizers.Tokenizer(models.BPE(*byte_pairs(kind)))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made
