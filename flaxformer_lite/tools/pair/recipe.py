"""An ordinary config for a text: its vocabulary, its size and its length of training, by the amount of text and the time."""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from flaxformer_lite.base.console import note
from flaxformer_lite.config import Config, load_config
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.data.padded_lengths import padded_lengths
from flaxformer_lite.core.optim import Cosine
from flaxformer_lite.core.text import Languages, Tokenizer, Tokenizers
from flaxformer_lite.files.data.mixture import SourceKinds
from flaxformer_lite.files.tokenizers import FromRun, SentencePiece, save_tokenizers
from flaxformer_lite.metrics.translations import MetricConfig
from flaxformer_lite.tools.making.timing import (
    MEASURED_STEPS,
    OTHER_SECONDS,
    more_hours,
    plan_of,
    positions_per_second,
    steps_within,
    training_seconds,
)
from flaxformer_lite.workdir import open_run

BASE = "multi30k_en_de_rotary"
"""The recipe that all start from: docs/multi30k.md has the comparisons that chose it."""
BASE_PAIRS, BASE_EPOCHS, BASE_VOCABULARY, BASE_WIDTH = 29_000, 27, 4_000, 160
EPOCHS = 5, 60
"""The fewest and the most that a text is worth."""
STARTED = 0.25
"""The share of a new model's epochs, and of its rate, with which a trained one goes on."""
ASCII_SIGNS_SEEN = "".join(map(chr, range(0x21, 0x7F)))
"""The characters of ASCII that are seen."""
CLEANING_SECONDS, COMPILING_SECONDS = 5e-4, 30
"""Seconds for one pair, and for the first shape, whose speed is measured; on two cores that other work was using too."""
SHAPES, SHAPES_IN_HASTE, HASTE = (4, 6), 2, 600
"""Numbers of padded lengths: for the smallest texts, for others, and in less than `HASTE` seconds. Each length is compiled."""


class Size(NamedTuple):
    """A shape of model, and the most pairs that it is for."""

    pairs: int
    d_model: int
    d_ff: int
    layers: int
    heads: int
    dropout: float

    def cost(self, vocabulary: int) -> int:
        """Returns the weights that a token meets."""
        return self.layers * (12 * self.d_model**2 + 6 * self.d_model * self.d_ff) + self.d_model * vocabulary


MODEL_SIZES = (
    Size(5_000, 128, 172, 3, 4, 0.2),
    Size(100_000, BASE_WIDTH, 216, 4, 4, 0.2),
    Size(500_000, 256, 344, 4, 4, 0.1),
    Size(2_000_000, 384, 512, 6, 6, 0.1),
    Size(10**12, 512, 688, 6, 8, 0.1),
)
FEWEST_EPOCHS = 4
"""Below these a smaller model learns more in the same time."""


class Beginning(NamedTuple):
    """Facts that a config is chosen from: those of a new model with a vocabulary of the text, or of a run with its own."""

    config: Config
    """Its steps, its batches and its sources are chosen afterwards."""
    lengths: Int[np.ndarray, "N 2"]
    """The tokens of each pair, ends included."""
    tokenizer: str
    """The folder of the tokenizer."""
    size: Size | None = None
    """The size of a new model; None: that of the run."""


def choose_config(
    pairs: Sequence[Pair],
    folder: Path,
    deadline: float | None,
    start: str | None = None,
    languages: Languages | None = None,
    **files: SourceKinds,
) -> Config:
    """Returns the config for the training pairs, and writes their tokenizer into the run's folder.

    files: those of data.train, data.eval and data.test. deadline: by `time.monotonic`; None: as long as the text is worth.
    start: the run that the training starts from; None: a new model. languages: those of the run, with a direction.

    Raises: ValueError if the time is too short.
    """
    begun = new_model(pairs, folder) if start is None else from_run(start, languages, pairs)
    size, lengths = begun.size, begun.lengths
    hasty = deadline is not None and deadline - time.monotonic() < HASTE
    of_smallest, of_others = SHAPES
    number = of_smallest if size == MODEL_SIZES[0] else of_others
    if hasty:
        number = SHAPES_IN_HASTE
    config = with_data(begun.config, lengths, files, number)
    plan = plan_of(config, lengths)
    batches = max(1, plan.batches_per_epoch)
    worth = BASE_EPOCHS * (BASE_PAIRS / len(pairs)) ** 0.5 * (1 if start is None else STARTED)
    epochs = float(np.clip(worth, *EPOCHS))
    steps = round(epochs * batches)
    evaluations = 10
    if deadline is not None:
        speed = positions_per_second(with_schedule(config, MEASURED_STEPS, 1), begun.tokenizer)
        speed *= batches / plan.positions_per_epoch
        left = deadline - time.monotonic()
        seconds = training_seconds(left)
        vocabulary = config.model.vocab_size
        while size not in (None, MODEL_SIZES[0]) and seconds * speed / batches < FEWEST_EPOCHS:
            smaller = MODEL_SIZES[MODEL_SIZES.index(size) - 1]
            speed *= size.cost(vocabulary) / smaller.cost(vocabulary)
            size = smaller
            config = with_size(config, size, vocabulary)
        steps = min(steps, round(steps_within(left, speed, steps)))
        evaluations = int(np.clip(seconds / 300, 1, 10))
    model = config.model
    note(
        f"{len(pairs):,} pairs: vocabulary of {model.vocab_size:,}, width {model.d_model}, {model.num_encoder_layers} + "
        f"{model.num_decoder_layers} layers, {steps:,} steps ({steps / batches:.1f} epochs; the text is worth {epochs:.0f})"
    )
    return with_schedule(config, steps, evaluations)


def new_model(pairs: Sequence[Pair], folder: Path) -> Beginning:
    """Returns the base recipe with a size and a vocabulary for these pairs; writes the tokenizer into a folder."""
    size = next(size for size in MODEL_SIZES if len(pairs) <= size.pairs)
    tokenizer, vocabulary, settings = learn_vocabulary(pairs)
    save_tokenizers(Tokenizers(tokenizer, tokenizer), folder)
    config = with_size(load_config(BASE), size, vocabulary)
    config = replace(config, data=replace(config.data, tokenizer=settings))
    return Beginning(config, lengths_of(pairs, Tokenizers(tokenizer, tokenizer), 1), str(folder), size)


def from_run(start: str, languages: Languages | None, pairs: Sequence[Pair]) -> Beginning:
    """Returns the base recipe with the model of a run, its tokenizers and its settings of decoding.

    languages: those of the run, with a direction; None: it translates in one.
    """
    folder, base = open_run(start), load_config(BASE)
    there = folder.config()
    model, data = there.model, there.data
    target = None if data.target_tokenizer is None else FromRun(path=start, side="target")
    kept = replace(
        base.data,
        tokenizer=FromRun(path=start),
        target_tokenizer=target,
        languages=languages,
        max_source_length=data.max_source_length,
    )
    train = replace(base.train, init_from=start, trainable=there.train.trainable)
    config = replace(base, model=model, data=kept, train=train, decode=there.decode)
    tokenizers = folder.load_tokenizers(data, model.vocab_sizes)
    return Beginning(config, lengths_of(pairs, tokenizers, 1 if languages is None else 2), start)


def lengths_of(pairs: Sequence[Pair], tokenizers: Tokenizers, further: int) -> Int[np.ndarray, "N 2"]:
    """Returns the tokens of the two sides of each pair, with `further` tokens for EOS and the language."""
    sides = [
        tokenizer.encode_batch([pair[side] for pair in pairs])
        for side, tokenizer in enumerate((tokenizers.source, tokenizers.target))
    ]
    return np.array([[len(ids) + further for ids in side] for side in sides]).T


def check_time(number: int, deadline: float | None) -> None:
    """Raises: ValueError if the time is too short for what happens beside the training on `number` pairs."""
    seconds = CLEANING_SECONDS * number + COMPILING_SECONDS + OTHER_SECONDS
    left = math.inf if deadline is None else deadline - time.monotonic()
    if left < seconds:
        raise ValueError(
            f"--hours is too short: cleaning {number:,} pairs, compiling and scoring take about {seconds:,.0f} seconds, and "
            f"{left:,.0f} are left: add at least {more_hours(seconds - left)}, and the time for training"
        )


def learn_vocabulary(pairs: Sequence[Pair]) -> tuple[Tokenizer, int, SentencePiece]:
    """Returns the tokenizer of both sides, its number of ids, which grows with the square root of the text, and its settings.

    Signs of ASCII that the text lacks are pieces too: tags, {names} and addresses of later texts can then be written.
    """
    texts = list(itertools.chain.from_iterable(pair[:2] for pair in pairs))
    present = set("".join(texts))
    settings = SentencePiece(user_symbols=tuple(sign for sign in ASCII_SIGNS_SEEN if sign not in present))
    characters = len(present | set(ASCII_SIGNS_SEEN))
    words = len(set(itertools.chain.from_iterable(map(str.split, texts))))
    wanted = int(np.clip(BASE_VOCABULARY * (len(pairs) / BASE_PAIRS) ** 0.5, 500, 32_000)) // 100 * 100
    size = max(min(wanted, characters + words // 2), characters + 10)
    return settings.train(texts, size), size, settings


def with_data(config: Config, lengths: Int[np.ndarray, "N 2"], files: dict[str, Any], shapes: int) -> Config:
    """Returns the config with these settings of the data, and batches of `shapes` shapes for pairs of these lengths."""
    larger = lengths.max(1)
    longest = int(np.clip(np.quantile(larger, 0.999), 16, 256)) + 7 & ~7
    if config.train.init_from is not None:
        longest = min(longest, config.data.max_source_length)
    data = replace(
        config.data,
        tokens_per_batch=1024 if len(lengths) <= MODEL_SIZES[1].pairs else 4096,
        rows_multiple=64 if longest <= 64 else 16,
        bucket_lengths=padded_lengths(larger[larger <= longest], longest, shapes),
        max_source_length=longest,
        max_target_length=longest,
        **files,
    )
    return replace(config, data=data, metrics=MetricConfig())


def with_size(config: Config, size: Size, vocabulary: int) -> Config:
    """Returns the config with a shape of model."""
    model = replace(
        config.model,
        vocab_size=vocabulary,
        d_model=size.d_model,
        d_ff=size.d_ff,
        num_heads=size.heads,
        num_encoder_layers=size.layers,
        num_decoder_layers=size.layers,
        scan_unroll=size.layers,
        dropout=replace(config.model.dropout, embedding_rate=size.dropout, residual_rate=size.dropout),
    )
    return replace(config, model=model)


def with_schedule(config: Config, steps: int, evaluations: int) -> Config:
    """Returns the config with a number of steps, and the rate that suits them and the model."""
    peak = 2.5e-3 * BASE_WIDTH / config.model.d_model * (1 if config.train.init_from is None else STARTED)
    rate = Cosine(peak_rate=peak, warmup_steps=min(1000, steps // 10))
    every = -(-steps // evaluations)
    train = replace(config.train, steps=steps, eval_every=every, checkpoint_every=-(-every // 4), keep_latest=2)
    return replace(config, optimizer=replace(config.optimizer, schedule=rate), train=train)
