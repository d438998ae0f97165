"""Runs with random parameters that predict for texts and for their tokens."""

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model import DropoutRates, Inputs, Learned, ModelConfig, Pooler, SentenceEmbedding
from flaxformer_lite.core.objectives import AnswerSpans, Classification, TokenLabels
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.tokenizer import Tokenizer, Tokenizers
from flaxformer_lite.files.data import DataSource
from flaxformer_lite.run import Run
from flaxformer_lite.workdir import RunFolder, abstract_saved_params
from tests.support.experiments import tiny_config, use_one_device

MODEL = ModelConfig(
    vocab_size=31, d_model=12, num_heads=3, d_ff=17, num_encoder_layers=1, num_decoder_layers=0,
    positions=Learned(max_positions=23), num_token_types=2, pooler=Pooler(num_classes=3),
    sentence_embedding=SentenceEmbedding(), dropout=DropoutRates(),
)  # fmt: skip
LANGUAGE_MODEL: dict[str, Any] = {"pooler": None, "sentence_embedding": None}
DECODER = LANGUAGE_MODEL | {"num_encoder_layers": 0, "num_decoder_layers": 1, "num_token_types": 0}
"""Changes of `MODEL` into a masked language model, and into a decoder."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"[:25]
NAMES = ("low", "middle", "high")
TEXTS = ["abc", "", "a" * 15, "hello", "bcdefgh", "y", "x" * 9, "cba", "the", "fox", "ran"]


def text_run(model: ModelConfig = MODEL, tokenizer: Tokenizer | None = None, **parts: Any) -> Run:
    """A run of one device with random parameters and no folder."""
    base = tiny_config()
    data = dataclasses.replace(base.data, train=None, eval=None, max_source_length=16)
    train = dataclasses.replace(base.train, text_metrics=())
    parts = {"objective": Classification(classes=NAMES), **parts}
    config = dataclasses.replace(base, model=model, data=data, train=train, weights="last", **parts)
    rng = np.random.default_rng(4)
    params = jax.tree.map(lambda x: np.float32(0.5 * rng.normal(size=x.shape)), abstract_saved_params(config))
    tokenizer = tokenizer or CharacterTokenizer(LETTERS)
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        return Run(RunFolder("nowhere"), config, params, Tokenizers(tokenizer, tokenizer), 0)


def of_tokens(config: Config, objective: TokenLabels | AnswerSpans) -> Config:
    """The config of an encoder that has classes for each token."""
    classes = len(objective.labels) if isinstance(objective, TokenLabels) else 2
    pooler = Pooler(token="each", activation=None, num_classes=classes)
    model = dataclasses.replace(config.model, head=None, pooler=pooler, sentence_embedding=None)
    return dataclasses.replace(config, model=model, objective=objective)


def token_run(objective: TokenLabels | AnswerSpans) -> Run:
    """A run that predicts for the tokens of texts."""
    model = of_tokens(text_run().config, objective).model
    return text_run(model, CharacterTokenizer(f"{LETTERS} "), objective=objective)


def alone(run: Run, first: str, second: str | None = None) -> Any:
    """Returns the model's outputs for one text or pair without padding."""
    tokenizer = run.required_tokenizers.source
    ids = [tokenizer.encode(text) for text in (first, second) if text is not None]
    tokens, types = tokenizer.with_special_tokens(*ids)
    inputs = Inputs(source_tokens=jnp.array([tokens]), token_types=jnp.array([types]))
    return jax.jit(run.model.apply)({"params": run.params}, inputs)


def numbers(line: str) -> list[float]:
    """Returns the numbers in a line; NaN for none."""
    return [float(number) for number in re.findall(r"-?[0-9.]+(?:e-?[0-9]+)?", line)] or [math.nan]


def trained_on(run: Run, source: DataSource | None) -> Run:
    """The run as if it had been trained on a source."""
    data = dataclasses.replace(run.config.data, train=source)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, data=data))
