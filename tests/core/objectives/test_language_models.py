"""Laws of language models from the config to the commands: trained, continued and scored as translation models are."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.objectives import CausalLM, MaskedLM, Objectives, SpanCorruption
from flaxformer_lite.files.data.text_files import PlainText
from flaxformer_lite.files.tokenizers.subwords import SentencePiece
from flaxformer_lite.tasks.commands import use_command
from flaxformer_lite.training.loop import train
from tests.support.commands import Command
from tests.support.experiments import rows, tiny_config, with_train

OBJECTIVES: dict[str, tuple[Objectives, dict[str, int]]] = {
    "causal_lm": (CausalLM(z_loss=1e-3), {"num_encoder_layers": 0, "num_decoder_layers": 1}),
    "masked_lm": (MaskedLM(mask_token=148), {"num_encoder_layers": 1, "num_decoder_layers": 0}),
    "span_corruption": (
        SpanCorruption(first_sentinel=148, num_sentinels=7),
        {"num_encoder_layers": 1, "num_decoder_layers": 1},
    ),
}


def config_of(kind: str, folder: Path) -> Config:
    """A config of that objective on a little text in the folder."""
    rng = np.random.default_rng(1)
    for split, number in (("train", 31), ("eval", 7)):
        words = [" ".join("abcdefg"[: rng.integers(1, 8)] for _ in range(rng.integers(2, 13))) for _ in range(number)]
        (folder / f"{split}.txt").write_text("\n".join(words))
    base = with_train(
        tiny_config(), steps=4, eval_every=2, checkpoint_every=2, log_every=1, text_metrics=(), best_metric="accuracy"
    )
    objective, stacks = OBJECTIVES[kind]
    data = dataclasses.replace(
        base.data,
        train=PlainText(path=str(folder / "train.txt"), documents="lines"),
        eval=PlainText(path=str(folder / "eval.txt"), documents="lines"),
        max_source_length=17,
        max_target_length=17,
    )
    return dataclasses.replace(base, model=dataclasses.replace(base.model, **stacks), objective=objective, data=data)


pytestmark = pytest.mark.usefixtures("one_device")


@pytest.mark.slow
@pytest.mark.parametrize("kind", OBJECTIVES)
def test_it_trains_continues_and_is_scored(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture, command: Command):
    """Law: two steps and two more are four; `evaluate` reports what the last evaluation reported; nothing is translated."""
    config = config_of(kind, tmp_path)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    halfway = with_train(config, steps=2)
    train(config, whole)
    train(halfway, parts)
    train(config, parts)
    assert rows(parts) == rows(whole)
    assert not (whole / "samples").exists() and not (whole / "hypotheses").exists()
    assert f"{use_command(config)} {whole}" in capsys.readouterr().err
    report = json.loads(command("evaluate", whole).out)
    last = rows(whole)[-1]
    assert report["documents"] == 7
    assert {name: report[name] for name in ("loss", "accuracy", "perplexity")} == {
        name: pytest.approx(last[name], rel=1e-5) for name in ("loss", "accuracy", "perplexity")
    }
    if kind != "span_corruption":
        with pytest.raises(ValueError, match=r"^the model has no (en|de)coder .*, so it "):
            flaxformer_lite.load(whole).translate(["a"])
    tokenizer = flaxformer_lite.load(whole).required_tokenizers.target
    assert tokenizer.vocab_size <= config.objective.num_tokenizer_ids(149)


def test_text_metrics_are_for_translations(tmp_path: Path):
    config = config_of("causal_lm", tmp_path)
    with pytest.raises(ValueError, match=r"^train\.text_metrics is \('bleu',\), but objective\.kind 'causal_lm'"):
        with_train(config, text_metrics=("bleu",))


def test_positions_need_only_reach_as_far_as_the_rows(tmp_path: Path):
    """A decoder alone has no source, so the source's length does not matter."""
    config = config_of("causal_lm", tmp_path)
    model = dataclasses.replace(config.model, positions=Learned(max_positions=17))
    data = dataclasses.replace(config.data, max_source_length=99)
    assert dataclasses.replace(config, model=model, data=data).model == model
    with pytest.raises(ValueError, match=r"max_positions 17"):
        dataclasses.replace(config, model=model, data=dataclasses.replace(data, max_target_length=18))


def test_a_subword_begins_a_word_at_its_mark():
    """Oracle: the text split at spaces."""
    text = "the cat sat on the mat and the other cat sat there too"
    tokenizer = SentencePiece().train([text, text], 33)
    ids = tokenizer.encode(text)
    starts = tokenizer.word_starts(ids)
    words: list[list[int]] = []
    for i, start in zip(ids, starts, strict=True):
        words += [[]] if start else []
        words[-1].append(i)
    assert [tokenizer.decode(word) for word in words] == text.split()
    assert len(ids) > len(words)
