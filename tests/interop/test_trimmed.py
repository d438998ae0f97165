"""A run with fewer tokens leaves. Oracles: the whole run, and the answers of transformers and of CTranslate2."""

from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite import export_ctranslate2, export_hf, import_hf, load
from flaxformer_lite.files.tokenizers.trimming import to_trim
from flaxformer_lite.interop.ctranslate2 import token_names
from flaxformer_lite.run.trimming import trim
from tests.support import needs
from tests.support.language_runs import folder_with

TEXT = "the cat sat on the mat\nle chat noir\nein Hut, 10 Hüte\n" * 10
TEXTS = ["the cat sat", "le chat noir", "10 Hüte, the chat"]
FOLDERS = {
    "nllb": ("m2m_100/nllb", "eng_Latn", "fra_Latn", "NllbTokenizer"),
    "m2m_100": ("m2m_100/nllb", "en", "fr", "TokenizersBackend"),
    "mbart": ("mbart/plain", "en_XX", "ro_RO", "MBartTokenizer"),
}


@needs.transformers
@needs.ctranslate2
@pytest.mark.slow
@pytest.mark.parametrize("kind", FOLDERS)
@pytest.mark.usefixtures("one_device")
def test_a_trimmed_run_answers_with_the_same_tokens_here_and_there(kind: str, tmp_path: Path) -> None:
    import ctranslate2
    import torch
    import transformers

    label, source, target, name = FOLDERS[kind]
    import_hf(folder_with(label, kind, tmp_path / "model"), tmp_path / "old")
    (tmp_path / "text").write_text(TEXT, encoding="utf-8")
    trim(tmp_path / "old", tmp_path / "new", text=str(tmp_path / "text"))
    export_hf(tmp_path / "new", tmp_path / "hf")
    export_ctranslate2(tmp_path / "new", tmp_path / "engine")
    whole, run = (load(tmp_path / folder).between(source, target) for folder in ("old", "new"))
    size, names = run.config.model.vocab_size, run.tokenizer.pieces(range(run.tokenizer.vocab_size))
    every = {whole.tokenizer.piece(i): i for i in whole.tokenizer.with_pieces(range(150))}
    kept = [every[piece] for piece in names]
    assert len(kept) == size < len(every)
    rows = [run.tokenizer.as_source(row) for row in run.tokenizer.encode_batch(TEXTS)]
    described = to_trim(whole.tokenizer)  # the tiny SentencePiece model has pieces that its vocabulary lacks
    before = [whole.tokenizer.as_source(row) for row in described.encode_batch(TEXTS)]
    assert [[kept[i] for i in row] for row in rows] == before
    settings: dict[str, Any] = {"beam_size": 1, "max_new_tokens": 9, "length_penalty": "none", "alpha": 1.0}
    ours = [list(found[0].tokens) for found in run.hypotheses_of_ids(rows, **settings)]
    gone = [i for i in range(150) if i not in kept]
    same = [list(found[0].tokens) for found in whole.hypotheses_of_ids(before, suppress_ids=tuple(gone), **settings)]
    assert [[kept[i] for i in tokens] for tokens in ours] == same
    assert f", cut to {size} of 150 tokens and exported" in (tmp_path / "hf/README.md").read_text(encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert type(theirs).__name__ == name
    if hasattr(theirs, "src_lang"):
        theirs.src_lang = source
        assert theirs(TEXTS)["input_ids"] == rows
    else:  # the token stands in the text
        assert theirs([f"__{source}__ {text}" for text in TEXTS])["input_ids"] == rows
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    assert model.config.vocab_size == size
    decode = run.tokenizers.ids(source, target).decode  # type: ignore[union-attr]
    options: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 9, "min_length": 0}
    options |= {"forced_bos_token_id": decode.get("forced_bos_id")}
    options |= {"decoder_start_token_id": decode.get("bos_id", run.config.decode.bos_id)}
    for row, tokens in zip(rows, ours, strict=True):
        answer = model.generate(torch.tensor([row]), **options)[0].tolist()
        assert [i for i in answer[1:] if i not in run.config.decode.eos_ids] == tokens
    translator = ctranslate2.Translator(str(tmp_path / "engine"), compute_type="float32")
    pieces = token_names(run.tokenizer, size)
    prefix = [[pieces[i] for i in decode.values()]] * len(rows)
    limits = {"max_decoding_length": 9, "min_decoding_length": 0, "beam_size": 1}
    end = run.tokenizer.eos_id
    given = [[pieces[i] for i in (row if row[-1] != end else row[:-1])] for row in rows]
    if kind != "mbart":  # whose answers start from the language, which CTranslate2 reads as its own token
        answers = translator.translate_batch(given, target_prefix=prefix, **limits)
        assert [answer.hypotheses[0] for answer in answers] == [[pieces[i] for i in tokens] for tokens in ours]
