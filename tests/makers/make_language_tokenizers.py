"""Makes tests/fixtures/tokenizers_languages: tiny tokenizers of multilingual models, and what transformers makes of texts.

It imports only the other side (transformers, sentencepiece), never flaxformer_lite. By hand:

    HF_HUB_OFFLINE=1 python -m tests.makers.make_language_tokenizers tests/fixtures/tokenizers_languages

A folder each, with `expected.json`: for some directions the ids of texts as sources and as targets, and the text that comes back.
"""

import io
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import sentencepiece
import transformers

WORDS = ["the", "a", "cat", "hat", "sat", "die", "Katze", "saß", "chat", "noir", "über", "tea", "été"]
TEXTS = [
    "the cat sat",
    "Die Katze  saß über",
    "le chat noir, été?",
    "日本 cat 🙂 tea",
    "a",
    "",
    "cat </s> hat",
    "ＡＢＣ ﬁ the",
]
DIRECTIONS = {
    "m2m_100": ("en", "fr"),
    "nllb": ("eng_Latn", "fra_Latn"),
    "nllb_legacy": ("deu_Latn", "fra_Latn"),
    "mbart": ("en_XX", "ro_RO"),
    "mbart50": ("en_XX", "sl_SI"),
    "byt5": (),
    "madlad": ("en", "de"),
}
CLASSES = {
    "m2m_100": "M2M100Tokenizer",
    "nllb": "NllbTokenizer",
    "nllb_legacy": "NllbTokenizer",
    "mbart": "MBartTokenizer",
    "mbart50": "MBart50Tokenizer",
    "byt5": "ByT5Tokenizer",
    "madlad": "T5Tokenizer",
}
NLLB_CODES = ["deu_Latn", "eng_Latn", "fra_Latn", "zho_Hans"]


def train(kind: str, **options: Any) -> bytes:
    model, rng = io.BytesIO(), random.Random(7)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(rng.choices(WORDS, k=7)) for _ in range(97)),
        model_writer=model,
        vocab_size=47,
        model_type=kind,
        normalization_rule_name="identity",
        hard_vocab_limit=False,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def make(name: str, folder: Path) -> None:
    """Writes the folder as published ones are: the model, and the special tokens in files of their own."""
    if name == "byt5":  # nothing but settings
        write(folder / "tokenizer_config.json", {"tokenizer_class": "ByT5Tokenizer"})
        return
    if (
        name == "madlad"
    ):  # the languages are pieces of the model, which knows all characters: the library's unknown id is 2
        codes, characters = ["<2en>", "<2zh_Hant>", "<2de>"], "".join(TEXTS).replace(" ", "")
        options = {"user_defined_symbols": codes, "required_chars": characters}
        (folder / "spiece.model").write_bytes(train("unigram", **options))
        special = {"pad_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "extra_ids": 0}
        special |= {"additional_special_tokens": []}
        write(folder / "tokenizer_config.json", {"tokenizer_class": "T5Tokenizer"} | special)
        return
    model = train("unigram" if name.startswith("mbart") else "bpe")
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    config: dict[str, Any] = {"tokenizer_class": CLASSES[name]}
    listed = NLLB_CODES
    if name == "m2m_100":
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]
        random.Random(3).shuffle(pieces)
        found = ["<s>", "<pad>", "</s>", "<unk>", *pieces[:-3]]  # three pieces have no id
        write(folder / "vocab.json", {piece: i for i, piece in enumerate(found)})
        module = transformers.models.m2m_100.tokenization_m2m_100
        listed = [f"__{code}__" for code in module.FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    elif name == "mbart":
        listed = transformers.models.mbart.tokenization_mbart.FAIRSEQ_LANGUAGE_CODES
    elif name == "mbart50":
        listed = transformers.models.mbart50.tokenization_mbart50.FAIRSEQ_LANGUAGE_CODES
    if name.startswith("nllb"):
        config |= {"extra_special_tokens": listed, "legacy_behaviour": name == "nllb_legacy"}
    write(folder / "tokenizer_config.json", config)
    write(folder / "special_tokens_map.json", {"additional_special_tokens": listed})


def main() -> None:
    root = Path(sys.argv[1])
    shutil.rmtree(root, ignore_errors=True)
    for name, pair in DIRECTIONS.items():
        folder = root / name
        folder.mkdir(parents=True)
        make(name, folder)
        tokenizer = getattr(transformers, CLASSES[name]).from_pretrained(
            folder, **dict(zip(("src_lang", "tgt_lang"), pair, strict=False))
        )
        if name.startswith("nllb"):  # published with a tokenizer.json
            tokenizer.save_pretrained(folder)
            (folder / "sentencepiece.bpe.model").unlink()
            (folder / "special_tokens_map.json").unlink()
        rows = []
        for text in [*TEXTS, *(["a <extra_id_3> b", "x </s>y"] if name == "byt5" else [])]:
            ids, labels = (
                tokenizer("<2de> " * (name == "madlad") + text)["input_ids"],
                tokenizer(text_target=text)["input_ids"],
            )
            back = tokenizer.decode(labels, skip_special_tokens=True)
            rows.append({"text": text, "source": ids, "target": labels, "back": back})
        ids = {code: tokenizer.convert_tokens_to_ids(token) for code, token in codes(tokenizer, pair).items()}
        write(folder / "expected.json", {"direction": pair, "ids": ids, "rows": rows})
        print(name, len(tokenizer), rows[0], rows[3], rows[7])
    write(root / "versions.json", {m.__name__: m.__version__ for m in (transformers, sentencepiece)})


def codes(tokenizer: Any, pair: tuple[str, ...]) -> dict[str, str]:
    form = {"M2M100Tokenizer": "__{}__", "T5Tokenizer": "<2{}>"}.get(type(tokenizer).__name__, "{}")
    return {code: form.replace("{}", code) for code in pair}


if __name__ == "__main__":
    main()
