"""The config of a recipe and a model: its head, its lengths, its rate, its epochs, and the data that is held out."""

import itertools
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int

from flaxformer_lite.base.console import note
from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.config.options import apply_options
from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.objectives.classification import label_names
from flaxformer_lite.core.optim import AdamW, Linear, OptimizerConfig
from flaxformer_lite.files.data import DataConfig
from flaxformer_lite.files.data.reading import reader_of, tokenize
from flaxformer_lite.files.tokenizers import FromRun
from flaxformer_lite.interop.exporting import has_family, own_family
from flaxformer_lite.interop.hf.families import known_families
from flaxformer_lite.tasks.recipe import Recipe
from flaxformer_lite.tools.making.timing import (
    MEASURED_STEPS,
    plan_of,
    positions_per_second,
    steps_within,
)
from flaxformer_lite.workdir import RunFolder, open_run

HELD_OUT, MOST_HELD_OUT = 0.1, 2_000
"""The share of the rows that is held out to choose the best step, and again for the scores; and the most rows of each."""
WIDTH, LARGEST_RATE = 768, 1e-3
"""The width of the models that the rates of recipes are for, and the largest rate of any."""
WORTH, FEWEST_STEPS = 1_000, 100
"""Steps that rows are worth, as far as the epochs of the recipe go; and the fewest, however many epochs these are."""
PATIENT_EPOCHS, PATIENCE = 5, 5
"""A training of more epochs stops after `PATIENCE` evaluations without a new best."""
MOST_MEASURED = 20_000
"""Rows whose lengths are read."""
WARM_UP = 0.1
"""The share of the steps in which the rate rises."""
FEW, RARE = 10, 0.1
"""Rows of a class that make a rough figure; and the share of the commonest class's rows below which a class is rare."""


def chosen(
    recipe: Recipe, start: str, others: Mapping[str, Any], deadline: float | None, words: Sequence[str] = ()
) -> Config:
    """Returns the config of a recipe for a model. others: the sources of eval and test that were given.

    deadline: by `time.monotonic`; None: as long as the rows are worth. words: settings, which have the last word.

    Raises: ValueError for data that does not fit the task, for a model that cannot learn it, and for too little time.
    """
    folder = open_run(start)
    base = folder.config()
    if base.data.tokenizer is None:
        raise ValueError(
            f"{folder.called} has no tokenizer to read texts: add tokenizer.json, or the model's own files"
        )
    pairs = list(recipe.source.open("data.train"))
    objective = recipe.objective
    if type(base.objective) is type(objective):
        objective = replace(objective, **{name: getattr(base.objective, name) for name in recipe.kept})
        recipe = replace(recipe, objective=objective)
    model = exported(recipe, base, own_family(folder.imported))
    share = 0.0 if len(others) == 2 else min(HELD_OUT, MOST_HELD_OUT / len(pairs))
    most = min(recipe.longest, base.model.positions.max_positions or recipe.longest)
    some = pairs[:: -(-len(pairs) // MOST_MEASURED)]
    lengths = measured(recipe, folder, base, some, most)
    longest = min(int(np.quantile(lengths.max(1), 0.999)) + 7 & ~7, most)
    data = DataConfig(
        train=recipe.source,
        **others,
        held_out=share,
        tokenizer=FromRun(path=start),
        rows=recipe.rows,
        max_source_length=longest,
        max_target_length=longest,
    )
    schedule = Linear(peak_rate=rate_of(recipe, model.d_model), warmup_steps=WARM_UP)
    config = Config(
        model=model,
        objective=objective,
        data=data,
        optimizer=OptimizerConfig(algorithm=AdamW(), schedule=schedule, weight_decay=0.01, clip_norm=1.0),
        train=TrainConfig(init_from=start, init_fresh=fresh(base, model, objective), best_metric=recipe.best_metric),
        decode=base.decode,
        weights="best",
    )
    config = apply_options(config, words)
    number = max(1, round(len(lengths) * (1 - share * (2 - len(others)))))
    plan = plan_of(config, np.minimum(lengths[:number], longest))
    batches = math.ceil(plan.batches_per_epoch * len(pairs) / len(some))
    epochs = max(float(np.clip(math.ceil(WORTH / batches), *recipe.epochs)), FEWEST_STEPS / batches)
    if deadline is not None:
        speed = positions_per_second(with_steps(config, steps=MEASURED_STEPS), start)
        speed *= plan.batches_per_epoch / plan.positions_per_epoch
        epochs = min(epochs, steps_within(deadline - time.monotonic(), speed, epochs * batches) / batches)
    config = with_steps(
        config,
        steps=TrainConfig.steps,
        epochs=epochs,
        eval_every=min(1.0, epochs),
        log_every=max(1, min(50, batches // 2)),
        keep_latest=1,
        patience=PATIENCE if epochs > PATIENT_EPOCHS else None,
    )
    config = apply_options(config, words)
    train = config.train
    length = f"{train.steps:,} steps" if train.epochs is None else f"{train.epochs:.3g} epochs"
    note(f"chosen: {length}, about {batches:,} batches an epoch, rows of up to {config.data.max_source_length} tokens")
    return config


def rate_of(recipe: Recipe, width: int) -> float:
    """Returns the peak of the learning rate: it goes with the inverse of the width, of narrow models with the square of it.

    A model of 384 features and three layers learned most of 77 classes at 3e-4, less at 1e-4, and least at 1e-3. Turc et al. 2019
    (arXiv:1908.08962) try 3e-5 to 3e-4 for 128 to 768 features, Devlin et al. 2018 (arXiv:1810.04805) 2e-5 to 5e-5 for 768.
    """
    share = WIDTH / width
    return min(recipe.rate * share * max(1, share), LARGEST_RATE)


def with_steps(config: Config, **settings: Any) -> Config:
    return replace(config, train=replace(config.train, **settings))


def exported(recipe: Recipe, base: Config, own: str | None) -> ModelConfig:
    """Returns the first model of the recipe that its own family has a class for.

    If that family has none, it is the first model that any family has a class for; else the first of all.
    """
    models = [replace(model, lora=None) for model in recipe.models(base.model)]
    longest = {name: getattr(base.data, name) for name in ("max_source_length", "max_target_length")}
    data = DataConfig(tokenizer=base.data.tokenizer, **longest)
    alone = Config(model=base.model, data=data, objective=recipe.objective, decode=base.decode)
    known = known_families()
    own_alone = {name: family for name, family in known.items() if name == own}
    for families in (own_alone, known):
        for model in models:
            if has_family(replace(alone, model=model), families):
                return model
    return models[0]


def fresh(base: Config, model: ModelConfig, objective: Any) -> tuple[str, ...]:
    """Returns the patterns of parameters that start at random: a head of other labels, whatever its shape."""
    before, after = base.model.pooler, model.pooler
    if after is None or (before == after and {*base.objective.class_names} == {*objective.class_names}):
        return ()
    alike = before is not None and replace(before, num_classes=0) == replace(after, num_classes=0)
    return ("pooler/classes/*",) if alike else ("pooler/*",)


def measured(
    recipe: Recipe, folder: RunFolder, base: Config, pairs: Sequence[Pair], most: int
) -> Int[np.ndarray, "N 2"]:
    """Returns the lengths of the rows of pairs, cut to `most`; packed rows have no others."""
    objective = recipe.objective
    packed = objective.packed_row(Lengths(most, most))
    if packed is not None:
        return np.tile(packed, (len(pairs), 1))
    tokenizers = folder.load_tokenizers(base.data, base.model.vocab_sizes)
    reader = reader_of(objective, tokenizers, folder.path, Lengths(most, most))
    rows: Any = objective.make_rows(tokenize(pairs, reader), Lengths(most, most), 0, reader.target)
    return np.asarray(rows.lengths)


def tell_classes(train: Sequence[Pair], held_out: Mapping[Any, Sequence[Pair]], classes: Sequence[str]) -> None:
    """Says which classes are rare in the training, and which have too few rows in the held-out data for a figure."""

    def rows_of_classes(pairs: Sequence[Pair]) -> Counter[str]:
        return Counter(itertools.chain.from_iterable(label_names(pair.label) for pair in pairs))

    of_train = rows_of_classes(train)
    rarest = min(classes, key=of_train.__getitem__)
    commonest = max(classes, key=of_train.__getitem__)
    few = [name for name in classes if of_train[name] < FEW]
    if few:
        note(
            f"{len(few)} of {len(classes)} classes have under {FEW} rows to learn from, {rarest} has {of_train[rarest]}: give more "
            "rows of them, or leave them out"
        )
    elif of_train[rarest] < RARE * of_train[commonest]:
        note(
            f"the class {rarest} has {of_train[rarest]:,} rows and {commonest} {of_train[commonest]:,}: "
            "objective.class_weights would count rare classes more"
        )
    for split, pairs in held_out.items():
        of_split = rows_of_classes(pairs)
        few = [name for name in classes if of_split[name] < FEW]
        if few:
            least = min(few, key=of_split.__getitem__)
            note(
                f"{len(few)} of {len(classes)} classes have under {FEW} rows in data.{split}, {least} has {of_split[least]}: "
                f"figures of one class are rough; --{split} FILE gives more rows"
            )
