"""Runs with random parameters for the server, one of each family, and answers without a model."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model import Learned, ModelConfig, Pooler, SentenceEmbedding
from flaxformer_lite.core.objectives import CausalLM, MaskedLM
from flaxformer_lite.core.predictions.encoder import (
    BatchPredictor,
    predict_class_logits,
    predict_embeddings,
    predict_top_tokens,
)
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text import EncodedText, Tokenizer, Tokenizers
from flaxformer_lite.core.text.characters import Bytes, CharacterTokenizer
from flaxformer_lite.files.chats.translation_prompt import TranslationPrompt
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.run import Run
from flaxformer_lite.tasks.task import Task
from flaxformer_lite.workdir import RunFolder, abstract_saved_params
from tests.support.experiments import tiny_config

LETTERS = "abcdefghijklmnopqrstuvwxyz"[:25]
SMALL: dict[str, Any] = {"d_model": 6, "num_heads": 2, "d_ff": 5}
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}"
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)


def as_run(config: Config, tokenizer: Tokenizer, folder: Path) -> Run:
    generator = np.random.default_rng(2)
    params = jax.tree.map(lambda x: np.float32(generator.normal(size=x.shape)), abstract_saved_params(config))
    return Run(RunFolder(folder), config, params, Tokenizers(tokenizer, tokenizer), 0)


def runs(folder: Path) -> dict[str, Run]:
    """Returns an encoder–decoder, a decoder and an encoder; the decoder has a chat template in `folder`."""
    base = tiny_config()
    data = dataclasses.replace(base.data, train=None, eval=None, max_source_length=20, max_target_length=20)
    train = dataclasses.replace(base.train, text_metrics=())
    model = ModelConfig(vocab_size=28, **SMALL, num_encoder_layers=1, num_decoder_layers=1)
    decode = DecodeConfig(max_length_ratio=1.0, max_length_extra=2, batch_tokens=512)
    pairs = dataclasses.replace(base, model=model, data=data, train=train, decode=decode)
    model = ModelConfig(
        vocab_size=263, **SMALL, num_encoder_layers=0, num_decoder_layers=1, positions=Learned(max_positions=60, stddev=1.0)
    )  # fmt: skip
    documents = Config(
        model=model,
        objective=CausalLM(),
        data=DataConfig(
            tokenizer=Bytes(), max_target_length=60, translation=TranslationPrompt(text="{target_language}: {text}")
        ),
        decode=DecodeConfig(max_new_tokens=12),
    )
    model = ModelConfig(
        vocab_size=31, **SMALL, num_encoder_layers=1, num_decoder_layers=0, positions=Learned(max_positions=23),
        num_token_types=2, pooler=Pooler(num_classes=3), sentence_embedding=SentenceEmbedding(),
    )  # fmt: skip
    texts = dataclasses.replace(
        base, model=model, data=data, train=train, weights="last", objective=MaskedLM(mask_token=30)
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    letters = CharacterTokenizer(LETTERS[:24])
    return {
        "pairs": as_run(pairs, letters, folder / "none"),
        "documents": as_run(documents, Bytes().train([], 260), folder),
        "texts": as_run(texts, letters, folder / "none"),
    }


class FakePredictors(dict[Any, Any]):
    """Predictors of which none computes. of_tokens: the classes of each token; 0: a text has three."""

    def __init__(self, of_tokens: int) -> None:
        self.of_tokens = of_tokens

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: Any) -> "FakePredictor":
        return FakePredictor(key[0], self.of_tokens)


class FakePredictor(BatchPredictor):
    """Predictions that tell the length of a text, or are the same for all: the second of three classes, and the ids 0, 1, …"""

    def __init__(self, function: Any, of_tokens: int) -> None:
        self.function, self.of_tokens = function, of_tokens

    def predict(self, variables: Any, texts: Sequence[EncodedText], *more: Any) -> list[Any]:  # type: ignore[override]
        shares, logits = 1 / (2 + np.arange(20)), np.log([0.25, 0.75, 1e-9])
        lengths = [len(row.tokens) - 2 for row in texts]  # without the special ids
        return {
            predict_embeddings: [np.arange(6, dtype=np.float32) + length for length in lengths],
            predict_class_logits: [
                np.tile(logits[: self.of_tokens], (length + 2, 1)) if self.of_tokens else logits for length in lengths
            ],
            predict_top_tokens: [(np.tile(shares, (9, 1)), np.tile(np.arange(20), (9, 1)))] * len(texts),
        }[self.function]


class FakeModel:
    """Answers that tell what was asked, in place of a worker's model; `calls` has the items of each call."""

    def __init__(self, runs: Any) -> None:
        self.by_name, self.find = runs.by_name, runs.find
        self.calls: list[tuple[Any, list[Any]]] = []

    def answer(self, key: Any, items: Sequence[Any]) -> Sequence[Any]:
        from flaxformer_lite.tools.serve.runs import WrittenText

        self.calls.append((key, list(items)))
        if isinstance(key.program, Task):
            model, fake = (
                self.by_name[key.run].run.text_model,
                FakePredictors({"label": 3, "answer": 2}.get(key.task, 0)),
            )
            model = dataclasses.replace(model, batch_predictors=fake)
            return key.program.answers(model, items, warn=lambda line: None)
        decode = self.by_name[key.run].tokenizers.target.decode
        if key.task == "attention":
            return [{"columns": list(decode(ids.sources)), "answer": decode(ids.targets)} for _, ids in items]
        texts = [decode(item.request.source)[::-1] for item in items]
        return [[WrittenText(f"{text}{i or ''}", -float(i), len(text), "stop") for i in range(4)] for text in texts]

    def stream(self, key: Any, item: Any) -> Iterator[str]:
        (found,) = self.answer(key, [item])
        yield from (found[0].text[i : i + 4] for i in range(0, len(found[0].text), 4))
        return found[0]
