"""Compares a written folder with the model, where CTranslate2 is installed."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.inference import DecodeConfig
from flaxformer_lite.inference.forward import forward
from flaxformer_lite.interop.ctranslate2.export import token_names
from flaxformer_lite.model import ModelConfig, Transformer
from flaxformer_lite.text import Tokenizers

ROWS, LENGTH = 3, 5
"""Number and length of the random texts that both sides read."""
TOLERANCE = 0.02
"""Largest difference of two log-probabilities: far above float32's rounding, far below what a lost parameter changes."""

LogProbs = Float[np.ndarray, "B T"]


def check_folder(folder: Path, config: Config, params: PyTree, tokenizers: Tokenizers | None) -> bool:
    """Compares log-probabilities of a few random texts; returns False if CTranslate2 is not installed.

    Raises: ValueError if they differ.
    """
    try:
        import ctranslate2
    except ImportError:
        return False
    kind, compare = ("Translator", score_pairs) if config.model.num_encoder_layers else ("Generator", score_texts)
    theirs, ours = compare(
        getattr(ctranslate2, kind)(str(folder), device="cpu", compute_type="float32"), config, params, tokenizers
    )
    if not np.allclose(ours, theirs, rtol=0.01, atol=TOLERANCE):
        raise ValueError(
            "CTranslate2 answers otherwise with this model: log-probabilities differ by up to "
            f"{float(np.abs(ours - theirs).max()):.3g}. Nothing was written; please report the model's settings"
        )
    return True


def score_pairs(
    reader: Any, config: Config, params: PyTree, tokenizers: Tokenizers | None
) -> tuple[LogProbs, LogProbs]:
    """Returns the log-probabilities of answers to sources, theirs and ours."""
    source, target = (None, None) if tokenizers is None else (tokenizers.source, tokenizers.target)
    rows, answers = (texts(config.model, config.decode, size) for size in config.model.vocab_sizes)
    names = [token_names(one, size) for one, size in zip((source, target), config.model.vocab_sizes, strict=True)]
    found = reader.score_batch(named(rows, names[0]), named(answers, names[1]))
    logits = logits_of(
        config,
        params,
        input_ids=rows if source is None else [source.as_source(row) for row in rows],
        decoder_input_ids=[[config.decode.start_id, *row] for row in answers],
    )
    ends = [[*row, config.decode.eos_ids[0]] for row in answers]
    return np.asarray([result.log_probs for result in found]), log_probs(logits, ends)


def score_texts(
    reader: Any, config: Config, params: PyTree, tokenizers: Tokenizers | None
) -> tuple[LogProbs, LogProbs]:
    """Returns the log-probabilities of each next token of texts, theirs and ours."""
    size = config.model.vocab_sizes[1]
    rows = texts(config.model, config.decode, size)
    names = token_names(None if tokenizers is None else tokenizers.target, size)
    theirs, ours = np.asarray(reader.forward_batch(named(rows, names))), logits_of(config, params, input_ids=rows)
    following = [row[1:] for row in rows]
    return log_probs(theirs[:, :-1], following), log_probs(ours[:, :-1], following)


def texts(model: ModelConfig, decode: DecodeConfig, size: int) -> list[list[int]]:
    """Returns random token ids below `size`, none of them special, no longer than a sliding window."""
    special = {decode.pad_id, decode.bos_id, *decode.eos_ids, *decode.suppress_ids}
    usual = sorted(set(range(size)) - special) or [0]
    length = LENGTH if model.sliding_window is None else min(LENGTH, model.sliding_window.size)
    return np.random.default_rng(size).choice(usual, (ROWS, length)).tolist()


def named(rows: list[list[int]], names: list[str]) -> list[list[str]]:
    return [[names[i] for i in row] for row in rows]


def logits_of(config: Config, params: PyTree, **inputs: Any) -> Float[np.ndarray, "B T V"]:
    """Returns the model's logits, computed in float32 on any device."""
    model = Transformer(dataclasses.replace(config.model.for_use, dtype="float32"))
    with jax.default_matmul_precision("highest"):
        return np.asarray(forward(model, {"params": params}, config.decode, **inputs).logits)


def log_probs(logits: Float[np.ndarray, "B T V"], ids: list[list[int]]) -> LogProbs:
    """Returns the log-probability of each id."""
    return np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.asarray(ids)[..., None], -1)[..., 0]
