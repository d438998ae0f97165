"""Makes tests/fixtures/tokenizer_folders: drawn folders, and what transformers makes of texts with each.

It imports only the other side (transformers, sentencepiece, tokenizers), never flaxformer_lite. By hand:

    pip install transformers sentencepiece tokenizers
    HF_HUB_OFFLINE=1 python -m tests.makers.make_tokenizer_folders tests/fixtures/tokenizer_folders [SEED]

The SentencePiece models are trained anew only where they are missing.
"""

import io
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
import transformers

from tests.support.tokenizer_folders import SIZES, WORDS, Case, draw_case, write_case

MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "bpe", "byte_fallback": True, "unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1},
    "gemma": {
        "model_type": "bpe",
        "byte_fallback": True,
        "pad_id": 0,
        "eos_id": 1,
        "bos_id": 2,
        "unk_id": 3,
        "bos_piece": "<bos>",
        "eos_piece": "<eos>",
        "add_dummy_prefix": False,
    },
    "t5": {"model_type": "unigram", "pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1},
}
NUM_CASES = 48


def train(name: str, rng: random.Random) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(" ".join(rng.choices(WORDS, k=7)) for _ in range(97)),
        model_writer=model,
        vocab_size=SIZES[name],
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=name == "t5",
        minloglevel=2,
        **MODELS[name],
    )
    return model.getvalue()


def expected(folder: Path, case: Case) -> dict[str, Any]:
    """What the library makes of each text, of that again, and the ids of declared tokens and of roles."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in case["texts"]:
        ids = tokenizer(text)["input_ids"]
        rows.append({"ids": ids, "back": tokenizer.decode(ids, skip_special_tokens=True)})
    files = case["files"]
    stated = {
        entry["content"]: int(i) for i, entry in files["tokenizer_config.json"].get("added_tokens_decoder", {}).items()
    }
    stated |= files.get("added_tokens.json", {})
    wrong = [text for text, i in stated.items() if tokenizer.convert_tokens_to_ids(text) != i]
    roles = {
        name: getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "cls", "sep", "pad", "mask", "unk")
    }
    return {"rows": rows, "wrong": wrong, "roles": roles}


def main() -> None:
    root, rng = Path(sys.argv[1]), random.Random(int(sys.argv[2]) if len(sys.argv) > 2 else 7)
    root.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        if not (root / f"{name}.model").is_file():
            (root / f"{name}.model").write_bytes(train(name, rng))
    cases = []
    while len(cases) < NUM_CASES:
        case = draw_case(rng)
        with tempfile.TemporaryDirectory() as folder:
            write_case(case, Path(folder), root)
            cases.append(case | {"expected": expected(Path(folder), case)})
    found = {"versions": {m.__name__: m.__version__ for m in (transformers, tokenizers, sentencepiece)}, "cases": cases}
    (root / "cases.json").write_text(
        json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
