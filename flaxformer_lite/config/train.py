"""The settings of training: its length, its devices, its checkpoints and its reports."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Lt

from flaxformer_lite.core.base.annotations import Resume, SavedAs
from flaxformer_lite.core.base.bounds import LARGEST, Checked, NonNegativeInt, PositiveFloat, PositiveInt
from flaxformer_lite.core.parallel import CompilerOptions, MeshConfig

TextMetric = Literal["exact_match", "bleu", "chrf"]
TrackerName = Literal["tensorboard", "wandb", "trackio"]


def standing(
    row: Mapping[str, Any], metric: str | None, mode: Literal["min", "max"]
) -> tuple[float, float, int] | None:
    """Returns the key by which evaluations are compared: the largest is the best. None: the row has no number of the metric.

    Ties are decided by the lower loss, then by the later step: few rows of evaluation often give ties.
    """
    value, loss = row.get(metric or ""), row.get("loss")
    if not isinstance(value, int | float) or math.isnan(value):
        return None
    if not isinstance(loss, int | float) or math.isnan(loss):
        loss = math.inf
    return (-value if mode == "min" else value, -loss, row.get("step", 0))


class BaseHook:
    """Base of the hooks of a training; training/hooks.py has their methods. The package itself has none that a config may name."""


@dataclass(frozen=True)
class MissingHook(BaseHook):
    """A hook of a run whose class was not imported: only training needs it."""

    saved: dict[str, Any]
    """The hook as config.json has it."""
    reason: str
    """The message of a training that needs the class."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Checked, at="train"):
    """The length of the training, its devices, checkpoints and reports. Periods are in optimizer steps."""

    steps: Annotated[PositiveInt, Resume.FREE] = 10_000
    """Optimizer steps of the whole run; a finished run is continued by raising it."""
    epochs: Annotated[PositiveFloat | None, Resume.FREE] = None
    """Passes over the training data of the whole run, in the place of `steps`: 0.5 is half of the batches. None: `steps` counts."""
    seed: Annotated[int, Ge(0), Lt(2**32)] = 0
    """Seed of the initial parameters, the order of the data and dropout."""
    num_micro_batches: Annotated[PositiveInt, Resume.ON_REQUEST] = 1
    """Number of equal parts that each batch is cut into to save memory; their gradients are added up, so the result is the same."""
    runner: Annotated[Literal["mesh", "pmap"], Resume.FREE] = "mesh"
    """mesh: one program for all devices of `mesh`. pmap: one program a device (`jax.shard_map`, the heir of `jax.pmap`), each with
    the whole model. Results are equal, except that dropout under pmap depends on the number of devices."""
    mesh: Annotated[MeshConfig, Resume.FREE] = MeshConfig()
    """Number of devices along each axis."""
    compiler_options: Annotated[CompilerOptions, Resume.FREE] = CompilerOptions()
    """Options of XLA, by the kind of device."""
    log_every: Annotated[PositiveInt, Resume.FREE] = 50
    """Steps between two `train` rows in metrics.jsonl."""
    eval_every: Annotated[PositiveInt | PositiveFloat, Resume.FREE] = 1_000
    """Steps between two evaluations on `data.eval`, each followed by a checkpoint with its metrics. A number with a decimal point
    is in epochs: 0.5 evaluates twice an epoch, 1.0 after each."""
    checkpoint_every: Annotated[PositiveInt, Resume.FREE] = 1_000
    """Steps between two checkpoints."""
    keep_latest: Annotated[PositiveInt, Resume.FREE] = 3
    """Number of newest checkpoints that are kept."""
    keep_best: Annotated[NonNegativeInt, Resume.FREE] = 1
    """Number of best checkpoints by `best_metric` that are kept besides. Ties: lower loss, then later step."""
    best_metric: str = "loss"
    """Metric that ranks checkpoints: loss, accuracy, another metric of the objective, or one of `text_metrics`."""
    patience: Annotated[PositiveInt | None, Resume.ON_REQUEST] = None
    """Evaluations in a row without a new best after which training stops early; None: it never does."""
    max_skipped_steps: Annotated[PositiveInt, Resume.FREE] = 10
    """Steps in a row with a loss or a gradient that is not finite, after which the run fails. Each changes no parameter, and is
    reported and counted."""
    max_rollbacks: Annotated[NonNegativeInt, Resume.FREE] = 0
    """Times that the run may return to its last checkpoint, after a loss spike or `max_skipped_steps` steps in a row without an
    update. The batches since that checkpoint are left out then. 0: it never returns."""
    init_from: Annotated[str | None, Resume.ON_REQUEST] = None
    """Run folder, or its URL, whose parameters this run starts from, with a fresh optimizer and step 0; None: random parameters."""
    init_fresh: tuple[str, ...] = ()
    """Patterns, for example `head/*`, of parameters that start at random, also where `init_from` has them."""
    trainable: tuple[str, ...] = ("*",)
    """Patterns, for example `decoder/layers/*/attention/*`, of parameters that train; a pattern with `!` before, as `!head/bias`,
    names exceptions. All others are frozen: without gradient, decay and optimizer state, they keep their bits. With `model.lora`
    the adapters take the place of `*`."""
    frozen_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which frozen parameters are kept; an array with frozen and trained layers stays float32."""
    text_metrics: Annotated[tuple[TextMetric, ...], Resume.ON_REQUEST] = ()
    """Metrics of greedy translations of `data.eval`, or of the last answers in its conversations, reported at each evaluation.
    BLEU and chrF are sacreBLEU's."""

    sample_prompts: Annotated[tuple[str, ...], Resume.FREE] = ()
    """Prompts that a language model continues at each evaluation, by the settings of `decode`; the texts are in samples/."""
    trackers: Annotated[tuple[TrackerName, ...], Resume.FREE] = ()
    """Programs that get the rows of metrics.jsonl too: tensorboard, wandb, trackio. Each needs the extra of its name."""
    hooks: Annotated[tuple[BaseHook, ...], SavedAs(tuple[()]), Resume.FREE] = ()
    """Hooks of your own, which a config file defines or imports: frozen dataclasses with the base `flaxformer_lite.training.Hook`
    (docs/extending.md)."""
    profile: Annotated[str | None, Resume.FREE] = None
    """Steps to trace with JAX's profiler: 100:110 writes the ten steps after step 100 to RUN/profile. None: no trace."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.steps != TrainConfig.steps:
            raise ValueError(
                f"train.epochs is {self.epochs} and train.steps is {self.steps}: the length of a run is counted in epochs or in "
                "steps; leave one out"
            )
        if self.profile is not None:
            steps = re.fullmatch(r"(\d+):(\d+)", self.profile)
            if steps is None or int(steps[1]) >= int(steps[2]):
                raise ValueError(
                    f"train.profile is {self.profile!r}: it must be two steps START:STOP with START below STOP, such as 100:110"
                )
        for hook in self.hooks:
            if not isinstance(hook, BaseHook):
                raise ValueError(
                    f"train.hooks has {hook!r}: a hook must be a frozen dataclass with the base flaxformer_lite.training.Hook"
                )
        if self.runner == "pmap" and self.mesh != MeshConfig():
            raise ValueError(
                f"train.mesh is {self.mesh}, but train.runner 'pmap' copies the whole model to every device: set train.runner to "
                "'mesh', or train.mesh to its default"
            )
        if all(pattern.startswith("!") for pattern in self.trainable):
            raise ValueError(
                f"train.trainable is {self.trainable}, so no parameter would train: give patterns of their paths, such as '*' for "
                "all"
            )
        if self.init_fresh and self.init_from is None:
            raise ValueError(
                f"train.init_fresh is {self.init_fresh}, but train.init_from is None: set it, or set train.init_fresh to ()"
            )

    @property
    def most_steps(self) -> int:
        """The optimizer steps of the run, or the most that a run may have while those of `epochs` are not known."""
        return self.steps if self.epochs is None else LARGEST

    @property
    def best_mode(self) -> Literal["min", "max"]:
        """Whether the best checkpoint has the lowest or the highest `best_metric`."""
        return "min" if self.best_metric in ("loss", "perplexity") else "max"

    def standing(self, row: Mapping[str, object]) -> tuple[float, float, int] | None:
        """Returns the key of an evaluation by `best_metric`, the largest for the best; None: the row has no number of it."""
        return standing(row, self.best_metric, self.best_mode)

    def best_row(self, rows: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
        """Returns the best evaluation among rows of metrics.jsonl; None if none has a number of `best_metric`."""
        evaluations = [row for row in rows if row["split"] == "eval" and self.standing(row) is not None]
        return max(evaluations, key=lambda row: self.standing(row) or (), default=None)
