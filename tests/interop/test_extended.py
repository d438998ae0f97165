"""A run with one more language leaves. Oracles: the tokens of transformers and of CTranslate2, in old and new languages."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite import export_ctranslate2, export_hf, load, train
from flaxformer_lite.config import TrainConfig
from flaxformer_lite.core.model import POST_NORM, DotProduct, LayerNorm, Sinusoidal
from flaxformer_lite.core.text import LanguageTokenizers
from flaxformer_lite.files.data.store import train_tokenizers
from flaxformer_lite.interop.ctranslate2 import token_names
from flaxformer_lite.interop.hf.tokenizer_export import write_tokenizers
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.run import Run, write_run
from flaxformer_lite.run.extending import extend
from flaxformer_lite.workdir import RunFolder
from tests.support import needs
from tests.support.hf_folders import random_params
from tests.support.language_runs import folder_with, language_config

NEW = "il gatto nero è qui\nuno due tre žabó bruno\n" * 20
OLD = "the cat sat\ndie Katze saß\nle chat noir\neins zwei\n"
TEXTS = ["the cat sat", "le chat noir, été? 日本", "il gatto nero", "due žabó", "eins zwei sechs", "\uff21\uff22 ﬁ a"]
FOLDERS = {
    "nllb": ("m2m_100/nllb", "eng_Latn", "fra_Latn", "xyz_Latn", "NllbTokenizer"),
    "m2m_100": ("m2m_100/nllb", "en", "fr", "xx", "TokenizersBackend"),  # NLLB's class keeps several spaces
    "mbart50": ("mbart/plain", "en_XX", "ro_RO", "xx_XX", "MBart50Tokenizer"),
    "mbart": ("mbart/plain", "en_XX", "ro_RO", "xx_XX", "MBartTokenizer"),
}


def extended_run(kind: str, folder: Path) -> tuple[Run, str, str, str]:
    """A run with random weights after `extend`, trained a step further or imported; two old codes and the new one."""
    (folder / "new.txt").write_text(NEW, encoding="utf-8")
    (folder / "old.txt").write_text(OLD, encoding="utf-8")
    given: dict[str, Any] = {"pieces": 20, "text": str(folder / "new.txt"), "old": str(folder / "old.txt")}
    if kind == "trained":
        config = language_config(folder)
        kinds: dict[str, Any] = {"residual": POST_NORM, "norm": LayerNorm(epsilon=1e-5)}
        kinds |= {"positions": Sinusoidal(layout="half_split"), "attention": DotProduct(bias=True)}
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, **kinds))
        assert config.data.train is not None
        made = train_tokenizers(config.data, config.model.vocab_sizes, config.data.train.open())
        write_run(RunFolder(folder / "run"), config, 0, random_params(config.model), "drawn", tokenizers=made)
        codes = ("de", "en", "it")
        given.pop("old")
    else:
        label, *codes, _ = FOLDERS[kind]  # type: ignore[assignment]
        import_hf(folder_with(label, kind, folder / "model"), folder / "run")
    extend(folder / "run", folder / "new", language=codes[2], like=codes[0], **given)
    new = load(folder / "new")
    if kind == "trained":
        steps = TrainConfig(steps=1, init_from=str(folder / "new"))
        new = train(dataclasses.replace(new.config, train=steps), folder / "trained")
    return new, *codes


def tokens_here_and_there(run: Run, theirs: Any, source: str, target: str) -> list[list[int]]:
    """The ids of the texts in a direction, which the library gives too, and the texts that come back."""
    assert isinstance(run.tokenizers, LanguageTokenizers)
    one, token = run.between(source, target), run.tokenizers.languages.token.replace("{}", source)
    rows = [one.tokenizer.as_source(row) for row in one.tokenizer.encode_batch(TEXTS)]
    if hasattr(theirs, "src_lang"):
        theirs.src_lang = token
        assert theirs(TEXTS)["input_ids"] == rows
    else:  # the token stands in the text
        assert theirs([f"{token} {text}" for text in TEXTS])["input_ids"] == rows
    back = [theirs.decode(row, skip_special_tokens=True).strip() for row in rows]
    assert back == [run.tokenizer.decode(row).strip() for row in rows]
    return rows


@needs.transformers
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["m2m_100", "mbart50", "mbart"])
def test_tokens_are_those_of_the_librarys_class(kind: str, tmp_path: Path, one_device: None) -> None:
    import transformers

    run, old, other, new = extended_run(kind, tmp_path)
    (tmp_path / "hf").mkdir()
    assert write_tokenizers(tmp_path / "hf", run.tokenizers, run.config.model, 29) == []
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert type(theirs).__name__ == FOLDERS[kind][-1]
    tokens_here_and_there(run, theirs, old, other)
    assert max(map(max, tokens_here_and_there(run, theirs, new, other))) > run.tokenizers.token_id(new)  # type: ignore[attr-defined]


@needs.transformers
@needs.ctranslate2
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["trained", "nllb"])
def test_an_extended_run_answers_with_the_same_tokens_here_and_there(
    kind: str, tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture[str]
) -> None:
    import ctranslate2
    import torch
    import transformers

    run, old, other, new = extended_run(kind, tmp_path)
    assert "held-out lines of old text (" in capsys.readouterr().err
    export_hf(run.folder.path, tmp_path / "hf")
    export_ctranslate2(run.folder.path, tmp_path / "engine")
    assert f"extended by the languages `{new}`" in (tmp_path / "hf/README.md").read_text(encoding="utf-8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert type(theirs).__name__ == (FOLDERS[kind][-1] if kind in FOLDERS else "TokenizersBackend")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    translator = ctranslate2.Translator(str(tmp_path / "engine"), compute_type="float32")
    names, tokenizers = token_names(run.tokenizer, run.config.model.vocab_size), run.tokenizers
    assert isinstance(tokenizers, LanguageTokenizers) and not tokenizers.own
    for source, target in ((old, other), (new, other), (old, new)):
        one, rows = run.between(source, target), tokens_here_and_there(run, theirs, source, target)
        to_id = tokenizers.token_id(target)
        for beam_size in (1, 4):
            settings: dict[str, Any] = {
                "beam_size": beam_size,
                "max_new_tokens": 9,
                "length_penalty": "average",
                "alpha": 1.0,
            }
            settings |= {"num_hypotheses": 1, "early_stopping": True, "finish_at_limit": True}
            ours = [list(found[0].tokens) for found in one.hypotheses_of_ids(rows, **settings)]
            options: dict[str, Any] = {
                "num_beams": beam_size,
                "max_new_tokens": 9,
                "length_penalty": 1.0,
                "min_length": 0,
            }
            options |= {"early_stopping": beam_size > 1, "forced_bos_token_id": to_id}
            for row, tokens in zip(rows, ours, strict=True):
                answer = model.generate(torch.tensor([row]), **options)[0].tolist()
                assert [i for i in answer[1:] if i not in run.config.decode.eos_ids] == tokens
            limits = {"max_decoding_length": 9, "min_decoding_length": 0, "beam_size": beam_size}
            pieces = [[names[i] for i in row[:-1]] for row in rows]
            answers = translator.translate_batch(pieces, target_prefix=[[names[to_id]]] * len(rows), **limits)
            assert [answer.hypotheses[0] for answer in answers] == [[names[i] for i in tokens] for tokens in ours]
