"""Makes tests/fixtures/tokenizers: tiny tokenizers in the files of older folders, and what transformers makes of texts.

It imports only the other side (transformers, sentencepiece, tokenizers), never flaxformer_lite. By hand:

    pip install transformers sentencepiece tokenizers
    python tests/makers/make_tokenizer_reference.py tests/fixtures/tokenizers [SEED]

A folder each, with `expected.json`: per text the ids as the model reads them and the text that comes back, for pairs ids and types.
"""

import io
import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import sentencepiece
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers

MARIAN_TEXTS = [
    "the cat sat", "a  hat \t on the mat ", "die Katze saß", ">>de<< the cat", ">>fr<< the cat", ">>de<<the", " >>de<< the", "",
    "a >>de<< b", "ate, tea. 7", ">> the", ">>de<<", "kanne ▁ tanne",
]  # fmt: skip
TEXTS = [
    "Hello, World!", "héllo wörld  naïve", "he's 3.14% lower", "日本 hello 🙂", "", " hello lower low ", "lowest\nnew\t(widest)",
    "HELLO", "a [MASK] b <mask> c", "hello  <extra>lower",
]  # fmt: skip
PAIRS = [("hello", "low lower"), ("new", "a b")]
WORDS = ["hello", "low", "lower", "lowest", "new", "newer", "widest", "wide", "world", "the", "naïve"]


def marian(folder: Path, rng: random.Random, *, separate: bool) -> transformers.PreTrainedTokenizerBase:
    """Two SentencePiece models whose pieces only partly stand in the vocabulary: 41 ids, or 41 and 47."""
    sides = {
        "source": ["the", "a", "cat", "hat", "mat", "sat", "on", "ate", "tea"],
        "target": ["die", "Katze", "Matte", "Tanne", "Kanne", "nannte", "tat"],
    }
    pieces: dict[str, list[str]] = {}
    for side, words in sides.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(" ".join(rng.choices(words, k=7)) for _ in range(97)),
            model_writer=model,
            vocab_size=31,
            model_type="bpe" if side == "source" else "unigram",
            normalization_rule_name="identity",
            hard_vocab_limit=False,
            bos_id=-1,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces[side] = [processor.id_to_piece(i) for i in range(3, processor.get_piece_size())]

    def vocabulary(found: list[str], size: int) -> dict[str, int]:
        rng.shuffle(found)
        found = ["</s>", "<unk>", *found, *(f"unused{i}" for i in range(size))][: size - 2]
        # Where the models have it; the library skips the source's number on both sides.
        return {piece: i for i, piece in enumerate([*found[:39], ">>de<<", "<pad>", *found[39:]])}

    joint = pieces["source"] if separate else list(dict.fromkeys(pieces["source"] + pieces["target"]))
    write(folder / "vocab.json", vocabulary(joint, 41))
    options = {"separate_vocabs": separate, "source_lang": "eng", "target_lang": "deu"}
    if separate:
        write(folder / "target_vocab.json", vocabulary(pieces["target"], 47))
    write(folder / "tokenizer_config.json", options | {"tokenizer_class": "MarianTokenizer"})
    return transformers.MarianTokenizer.from_pretrained(folder)


def word_pieces(folder: Path, **options: Any) -> transformers.PreTrainedTokenizerBase:
    """BERT's vocab.txt of letters, their continuations and some words; one token is added by the config."""
    letters = sorted(set("".join(WORDS)) | set("HWé日本,.!%'()314"))
    found = [
        "[PAD]",
        "[unused0]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *("##" + x for x in letters),
        "low",
        "##er",
        "hello",
    ]
    (folder / "vocab.txt").write_text("".join(word + "\n" for word in found), encoding="utf-8")
    write(folder / "tokenizer_config.json", options | {"tokenizer_class": "BertTokenizer"})
    return transformers.BertTokenizer.from_pretrained(folder)


def joined_bytes(
    folder: Path, special: list[str], name: str, extra: dict[str, Any] | None = None, **options: Any
) -> transformers.PreTrainedTokenizerBase:
    """vocab.json and merges.txt of byte-level BPE, special tokens at both ends of the vocabulary."""
    model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + 40, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    model.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    model.model.save(str(folder))
    ordered = sorted((i, piece) for piece, i in json.loads((folder / "vocab.json").read_text()).items())
    found = [*special[:-1], *(piece for _, piece in ordered), special[-1]]
    write(folder / "vocab.json", {piece: i for i, piece in enumerate(found)})
    if extra is not None:
        options["added_tokens_decoder"] = {str(len(found)): extra}
    write(folder / "tokenizer_config.json", options | {"tokenizer_class": name})
    return getattr(transformers, name).from_pretrained(folder)


def write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def expected(
    tokenizer: transformers.PreTrainedTokenizerBase, texts: list[str], side: str = "text"
) -> list[dict[str, Any]]:
    """What the library makes of each text, and of that again."""
    rows = [{"text": text, "ids": tokenizer(**{side: text})["input_ids"]} for text in texts]
    return [row | {"back": tokenizer.decode(row["ids"], skip_special_tokens=True)} for row in rows]


def main() -> None:
    root, rng = Path(sys.argv[1]), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 7)
    shutil.rmtree(root, ignore_errors=True)
    mask = {
        "__type": "AddedToken",
        "content": "<mask>",
        "lstrip": True,
        "rstrip": False,
        "single_word": False,
        "normalized": False,
    }
    begun, ends = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], ["<|endoftext|>"]
    extra = {
        "content": "<extra>",
        "lstrip": False,
        "normalized": True,
        "rstrip": True,
        "single_word": False,
        "special": False,
    }
    kinds = {
        "marian": lambda folder: marian(folder, rng, separate=False),
        "marian_separate": lambda folder: marian(folder, rng, separate=True),
        "bert": lambda folder: word_pieces(folder),
        "bert_cased": lambda folder: word_pieces(
            folder, do_lower_case=False, tokenize_chinese_chars=False, strip_accents=True, mask_token="[unused0]"
        ),
        "roberta": lambda folder: joined_bytes(folder, begun, "RobertaTokenizer", mask_token=mask),
        "gpt2": lambda folder: joined_bytes(
            folder, ends, "GPT2Tokenizer", extra, pad_token=ends[0], add_bos_token=True, add_prefix_space=True
        ),
    }
    for name, make in kinds.items():
        folder = root / name
        folder.mkdir(parents=True)
        tokenizer = make(folder)
        if name.startswith("marian"):
            size = len(tokenizer.decoder)
            rows = [[rng.randrange(size) for _ in range(9)] for _ in range(13)]
            found = {
                "source": expected(tokenizer, MARIAN_TEXTS),
                "target": expected(tokenizer, [text for text in MARIAN_TEXTS if text], "text_target"),
                "answers": [{"ids": row, "back": tokenizer.decode(row, skip_special_tokens=True)} for row in rows],
            }
        else:
            pairs = [tokenizer(*pair, return_token_type_ids=True) for pair in PAIRS]
            zipped = zip(PAIRS, pairs, strict=True)
            both = [{"pair": pair, "ids": x["input_ids"], "types": x["token_type_ids"]} for pair, x in zipped]
            found = {"texts": expected(tokenizer, TEXTS), "pairs": both}
        write(folder / "expected.json", found)
    modules = (transformers, tokenizers, sentencepiece)
    write(root / "versions.json", {module.__name__: module.__version__ for module in modules})


if __name__ == "__main__":
    main()
