"""The settings of training: how long, on which devices, what is kept and reported."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Lt

from flaxformer_lite.bounds import NonNegativeInt, PositiveInt, check_bounds
from flaxformer_lite.parallel.mesh import MeshConfig

TextMetric = Literal["exact_match", "bleu", "chrf"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long to train, and what to keep and report on the way. Periods are in optimizer steps."""

    steps: PositiveInt = 10_000
    """Optimizer steps of the whole run."""
    seed: Annotated[int, Ge(0), Lt(2**32)] = 0
    """First parameters, data order and dropout are functions of it."""
    num_micro_batches: PositiveInt = 1
    """Cut each batch into that many parts, one after the other, to save memory; the gradient is the same."""
    runner: Literal["mesh", "pmap"] = "mesh"
    """How a step is spread over devices: compiled for the whole `mesh`, or for one device and run on each (`jax.pmap`), which
    then has the whole model. Numbers are the same, but for the dropout of a pmap, which depends on the number of devices."""
    mesh: MeshConfig = MeshConfig()
    """The devices along each axis."""
    log_every: PositiveInt = 50
    """Write a `train` row to metrics.jsonl."""
    eval_every: PositiveInt = 1_000
    """Evaluate on `data.eval`, then save a checkpoint that knows the metrics."""
    checkpoint_every: PositiveInt = 1_000
    """Save a checkpoint."""
    keep_latest: PositiveInt = 3
    """Checkpoints to keep, newest first."""
    keep_best: NonNegativeInt = 1
    """Checkpoints to keep beside them, best first by `best_metric`."""
    best_metric: str = "loss"
    """What makes a checkpoint the best: loss, accuracy, another figure that the objective reports, or one of `text_metrics`."""
    patience: PositiveInt | None = None
    """Stop early after that many evaluations in a row without a new best; None never stops early."""
    init_from: str | None = None
    """A run folder whose parameters this run starts from; its optimizer and step start fresh all the same."""
    init_fresh: tuple[str, ...] = ()
    """Patterns such as `head/*` of parameters that start fresh where `init_from` has none, or none of that shape."""
    text_metrics: tuple[TextMetric, ...] = ()
    """Translate `data.eval` greedily at each evaluation and report these. BLEU and chrF are sacreBLEU's."""

    def __post_init__(self) -> None:
        check_bounds(self, "train")
        if self.runner == "pmap" and self.mesh != MeshConfig():
            raise ValueError(
                f"train.mesh is {self.mesh}, but train.runner 'pmap' copies the whole model to every device: set train.runner to "
                "'mesh', or leave train.mesh at its default"
            )
        if self.init_fresh and self.init_from is None:
            raise ValueError(
                f"train.init_fresh is {self.init_fresh}, but train.init_from is None: set it, or leave both out"
            )

    @property
    def best_mode(self) -> Literal["min", "max"]:
        return "min" if self.best_metric in ("loss", "perplexity") else "max"
