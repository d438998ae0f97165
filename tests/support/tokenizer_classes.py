"""Folders that name the class of their tokenizer and hardly more, and what the library makes of them.

It imports only the libraries that define the files, so that the maker of the fixture and the live comparison share it.
"""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tests.support.paths import FIXTURES

BERT, FAIRSEQ = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), ("<s>", "<pad>", "</s>", "<unk>")
MPNET = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
LETTERS = ("▁", *"abcdehst")
TEXTS = ("a cat", "the head sat")
SPIECE, LLAMA, FAIRSEQ_MODEL = "spiece.model", "tokenizer.model", "sentencepiece.bpe.model"
MODELS = {
    "T5Tokenizer": "tokenizer_folders/t5.model",
    "LlamaTokenizer": "tokenizer_folders/llama.model",
    "CodeLlamaTokenizer": "tokenizer_folders/llama.model",
    "GemmaTokenizer": "tokenizer_folders/gemma.model",
    "MBartTokenizer": "tokenizers_languages/mbart/sentencepiece.bpe.model",
    "MBart50Tokenizer": "tokenizers_languages/mbart/sentencepiece.bpe.model",
    "M2M100Tokenizer": "tokenizers_languages/m2m_100/sentencepiece.bpe.model",
}


class ClassCase(NamedTuple):
    """A folder: a class, a file, and settings."""

    name: str
    file: str
    settings: Mapping[str, Any] = {}
    special: tuple[str, ...] = ()
    """The special tokens of a tokenizer.json."""

    @property
    def label(self) -> str:
        return " ".join([self.name, self.file, *map(str, self.settings.items()), *self.special[:1]])


def of_json(name: str, special: tuple[str, ...], **settings: Any) -> list[ClassCase]:
    """The class with its tokens in the vocabulary, and without."""
    return [ClassCase(name, "tokenizer.json", settings, one) for one in (special, ())]


MORE = {"additional_special_tokens": ["<|x|>"]}
CASES = [
    *(ClassCase(name, FAIRSEQ_MODEL, more) for name in ("MBartTokenizer", "MBart50Tokenizer") for more in ({}, MORE)),
    ClassCase("MBartTokenizer", FAIRSEQ_MODEL, {"extra_special_tokens": ["<|x|>"]}),
    ClassCase("MBartTokenizerFast", FAIRSEQ_MODEL),
    *(ClassCase("M2M100Tokenizer", FAIRSEQ_MODEL, more) for more in ({}, {"language_codes": "wmt21"})),
    *(ClassCase("T5Tokenizer", SPIECE, more) for more in ({}, MORE, {"extra_ids": 0}, {"extra_ids": 3})),
    *(ClassCase("LlamaTokenizer", LLAMA, more | {"add_bos_token": True}) for more in ({}, {"eos_token": None})),
    ClassCase("LlamaTokenizer", LLAMA, {"bos_token": None, "add_bos_token": True}),
    *(ClassCase("CodeLlamaTokenizer", LLAMA, more) for more in ({}, MORE)),
    ClassCase("GemmaTokenizer", LLAMA, {"add_bos_token": True}),
    *of_json("BertTokenizer", BERT),
    *of_json("BertTokenizerFast", BERT, mask_token=None),
    *of_json("DistilBertTokenizer", BERT),
    *of_json("RobertaTokenizer", (*FAIRSEQ, "<mask>")),
    *of_json("BartTokenizer", (*FAIRSEQ, "<mask>"), **MORE),
    *of_json("XLMRobertaTokenizer", (*FAIRSEQ, "<mask>")),
    *of_json("GPT2Tokenizer", ("<|endoftext|>",)),
    *of_json("Qwen2Tokenizer", ("<|endoftext|>",)),
    *of_json("LlamaTokenizer", ("<unk>", "<s>", "</s>")),
    *of_json("CodeLlamaTokenizer", ("<unk>", "<s>", "</s>")),
    *of_json("T5Tokenizer", ("<pad>", "</s>", "<unk>")),
    *of_json("T5Tokenizer", ("<pad>", "</s>", "<unk>"), extra_ids=3),
    ClassCase("PegasusTokenizer", "tokenizer.json", special=("<pad>", "</s>", "<unk>")),
    *of_json("ElectraTokenizer", BERT),
    *of_json("MPNetTokenizer", MPNET),
    ClassCase("AlbertTokenizer", "tokenizer.json", special=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
    *of_json("MBartTokenizer", FAIRSEQ),
    *of_json("NllbTokenizer", FAIRSEQ),
    *of_json("PreTrainedTokenizerFast", FAIRSEQ),
]


def write_class_case(case: ClassCase, folder: Path) -> None:
    folder.mkdir(parents=True)
    name = case.name.removesuffix("Fast")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": case.name, **case.settings}))
    if case.file != "tokenizer.json":
        shutil.copyfile(FIXTURES / MODELS[name], folder / case.file)
        if name == "M2M100Tokenizer":
            shutil.copyfile(FIXTURES / "tokenizers_languages/m2m_100/vocab.json", folder / "vocab.json")
        return
    made = described(name, case.special)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in case.special])
    made.save(str(folder / case.file))


def described(name: str, special: tuple[str, ...]) -> tokenizers.Tokenizer:
    """A tokenizer of single letters, as the class builds its own."""
    if name in ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MPNetTokenizer"):
        pieces = [*special, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
        made = tokenizers.Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
        made.pre_tokenizer, made.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    elif name in ("T5Tokenizer", "MBartTokenizer", "XLMRobertaTokenizer", "PegasusTokenizer", "AlbertTokenizer"):
        scored = [*((piece, 0.0) for piece in special), *((piece, -1.0) for piece in LETTERS)]
        unknown = special.index("<unk>") if special else 0
        made = tokenizers.Tokenizer(models.Unigram(scored, unknown))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    elif name in ("LlamaTokenizer", "CodeLlamaTokenizer", "NllbTokenizer"):
        pieces = [*special, *LETTERS]
        unk = "<unk>" if special else None
        made = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, [], unk_token=unk))
        made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    else:
        pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        made = tokenizers.Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, []))
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return made


def said_by_library(name: str, folder: Path) -> dict[str, Any]:
    """The number of ids, the roles, the other special tokens, and the ids of texts."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    there = getattr(transformers, name).from_pretrained(folder)
    roles = {role: getattr(there, f"{role}_token_id") for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
    languages = re.compile("__[a-z]+__|[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
    listed = {token.content: i for i, token in there.added_tokens_decoder.items()}
    listed |= {piece: i for piece, i in there.get_vocab().items() if languages.fullmatch(piece)}
    return {
        "roles": roles,
        "special": dict(sorted(listed.items(), key=lambda pair: pair[1])),
        "bare": [there(text, add_special_tokens=False)["input_ids"] for text in TEXTS],
        "framed": [there(text)["input_ids"] for text in TEXTS],
        "pair": there(*TEXTS)["input_ids"],
    }
