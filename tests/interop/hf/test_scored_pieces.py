"""Classes whose folders hold the pieces of a SentencePiece model, and that normalize texts by themselves.

Oracle: the library's classes.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.interop.hf.tokenizer_files import find_tokenizers
from tests.support import needs

TEXTS = [
    "Der Hund  läuft\tim Park. ",
    " the dog, ISN'T it?",
    "e\u0301 [MASK]!",
    "",
    "ﬁn 12,5 日",
    "``Der''\u00a0(dog) É\u2009\x07x",
]
BERT = {"bos_piece": "[CLS]", "eos_piece": "[SEP]", "vocab_size": 49}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "DebertaV2Tokenizer": (
        "spm",
        {**BERT, "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "pad_piece": "[PAD]", "unk_piece": "[UNK]"},
    ),
    "AlbertTokenizer": (
        "spiece",
        {
            **BERT,
            "pad_id": 0,
            "unk_id": 1,
            "bos_id": 2,
            "eos_id": 3,
            "control_symbols": "[MASK]",
            "user_defined_symbols": "(,.",
        },
    ),
}
"""The name of the model's file, and the options of its training."""
MODEL_TYPES = {"DebertaV2Tokenizer": "deberta-v2", "AlbertTokenizer": "albert"}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("DebertaV2Tokenizer", {}),
    ("DebertaV2Tokenizer", {"do_lower_case": True, "split_by_punct": True}),
    ("AlbertTokenizer", {}),
    ("AlbertTokenizer", {"do_lower_case": False, "keep_accents": True}),
]


@needs.transformers
@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_pieces_give_the_ids_of_the_librarys_class(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Also where only the model's type tells the class, as in ALBERT's oldest files."""
    import sentencepiece
    import transformers

    file, special = MODELS[name]
    lines = [f"{word} der Hund läuft im Park, the dog isn't it? 12,5" for word in ("Der", "é", "fin", "ﬁn!")]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(4 * lines),
        model_prefix=str(tmp_path / file),
        hard_vocab_limit=False,
        minloglevel=2,
        **special,
    )
    stated = {} if name == "AlbertTokenizer" and settings else {"tokenizer_class": name}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated | settings))
    there = getattr(transformers, name).from_pretrained(tmp_path)
    found = find_tokenizers(tmp_path, {"model_type": MODEL_TYPES[name]})
    assert found.tokenizers is not None, found.note
    here = found.tokenizers.source
    for text in TEXTS:
        assert here.encode(text) == there(text, add_special_tokens=False)["input_ids"], text
        assert here.with_special_tokens(here.encode(text)).tokens == there(text)["input_ids"], text
    assert (here.pad_id, here.bos_id, here.eos_id) == (there.pad_token_id, there.cls_token_id, there.sep_token_id)
    assert here.mask_id == there.mask_token_id
