"""The config: one tree of frozen dataclasses, from a file, the command line or JSON, checked before anything runs."""

import contextlib
import dataclasses
import difflib
import importlib.util
import io
import itertools
import re
import traceback
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import pydantic
import tyro

from flaxformer_lite.data.dataset import DataConfig
from flaxformer_lite.inference.config import DecodeConfig
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.positions import FixedTable, Learned
from flaxformer_lite.objectives import Objective, Seq2Seq
from flaxformer_lite.optim.optimizers import OptimizerConfig
from flaxformer_lite.parallel.mesh import MeshConfig
from flaxformer_lite.text.tokenizer import FromRun

TextMetric = Literal["exact_match", "bleu", "chrf"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long to train, and what to keep and report on the way. Periods are in optimizer steps."""

    steps: int = 10_000
    """Optimizer steps of the whole run."""
    seed: int = 0
    """First parameters, data order and dropout are functions of it."""
    micro_batches: int = 1
    """Cut each batch into that many parts, one after the other, to save memory; the gradient is the same."""
    runner: Literal["mesh", "pmap"] = "mesh"
    """How a step is spread over devices: compiled for the whole `mesh`, or for one device and run on each (`jax.pmap`), which
    then has the whole model. Numbers are the same, but for the dropout of a pmap, which depends on the number of devices."""
    mesh: MeshConfig = MeshConfig()
    """The devices along each axis."""
    coordinator: str | None = None
    """Of several processes the first one's `host:port`, where all meet; None: this is the only one, or one of those that SLURM or
    Open MPI starts, or of a TPU slice's hosts, which know each other. The run folder must be one that all can reach."""
    num_processes: int | None = None
    """How many processes meet at `coordinator`."""
    process_id: int | None = None
    """Which of them this is, from 0; it differs in each of their commands, all else is the same."""
    join_seconds: int = 300
    """How long they wait for each other when they start."""
    log_every: int = 50
    """Write a `train` row to metrics.jsonl."""
    eval_every: int = 1_000
    """Evaluate on `data.eval`, then save a checkpoint that knows the metrics."""
    checkpoint_every: int = 1_000
    """Save a checkpoint."""
    keep_latest: int = 3
    """Checkpoints to keep, newest first."""
    keep_best: int = 1
    """Checkpoints to keep beside them, best first by `best_metric`."""
    best_metric: str = "loss"
    """What makes a checkpoint the best: loss, accuracy, another figure that the objective reports, or one of `text_metrics`."""
    patience: int | None = None
    """Stop early after that many evaluations in a row without a new best; None never stops early."""
    init_from: str | None = None
    """A run folder whose parameters this run starts from; its optimizer and step start fresh all the same."""
    init_fresh: tuple[str, ...] = ()
    """Patterns such as `head/*` of parameters that start fresh where `init_from` has none, or none of that shape."""
    text_metrics: tuple[TextMetric, ...] = ()
    """Translate `data.eval` greedily at each evaluation and report these. BLEU and chrF are sacreBLEU's."""

    def __post_init__(self) -> None:
        counts = ("steps", "micro_batches", "log_every", "eval_every", "checkpoint_every", "keep_latest")
        for name in (*counts, "num_processes", "join_seconds"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"train.{name} is {value}: give at least 1")
        if self.keep_best < 0:
            raise ValueError(f"train.keep_best is {self.keep_best}: give 0 or more")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"train.patience is {self.patience}: give at least 1, or None never to stop early")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"train.seed is {self.seed}: give a number from 0 to 2^32 - 1")
        meeting = (self.coordinator, self.num_processes, self.process_id)
        if any(value is None for value in meeting) and meeting != (None, None, None):
            raise ValueError(
                f"train.coordinator is {self.coordinator}, train.num_processes {self.num_processes}, train.process_id "
                f"{self.process_id}: give all three or none"
            )
        if self.coordinator is not None and not (
            (found := re.fullmatch(r"[^\s/]+:(\d{1,5})", self.coordinator)) and 0 < int(found[1]) < 2**16
        ):
            raise ValueError(f"train.coordinator is {self.coordinator!r}: give a host and a port, as host0:4321")
        if self.num_processes is not None and not 0 <= (self.process_id or 0) < self.num_processes:
            raise ValueError(
                f"train.process_id is {self.process_id}, but train.num_processes is {self.num_processes}: give a number from 0 to "
                f"{self.num_processes - 1}"
            )
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


@dataclass(frozen=True, kw_only=True)
class Config:
    """One experiment: everything that decides its numbers."""

    model: ModelConfig
    objective: Objective = Seq2Seq()
    data: DataConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    decode: DecodeConfig = DecodeConfig()
    weights: str = "last"
    """The parameters that commands use: last, best, ema, or average:N, the mean of the newest N checkpoints."""

    @property
    def tokenizer_sizes(self) -> tuple[int, int]:
        """How many ids the two sides' tokenizers may have: all but those that the objective keeps for itself.

        A tokenizer from another run has such ids of its own.
        """

        def room(size: int, tokenizer: object) -> int:
            return size if isinstance(tokenizer, FromRun) else self.objective.num_text_ids(size)

        source, target = self.model.vocab_sizes
        return room(source, self.data.tokenizer), room(target, self.data.target_tokenizer or self.data.tokenizer)

    def __post_init__(self) -> None:
        """What one part alone cannot check. Raises: ValueError with the settings, their values and the way out."""
        model, data, train = self.model, self.data, self.train
        # Two from another run may number their pieces alike, as Marian's do.
        if model.share_source_target and not isinstance(data.target_tokenizer, FromRun | None):
            raise ValueError(
                "data.target_tokenizer is set, but model.share_source_target shares one embedding table for both vocabularies: "
                "set model.share_source_target to False, or leave out the target tokenizer"
            )
        if model.target_vocab_size is not None and data.tokenizer is not None and data.target_tokenizer is None:
            raise ValueError(
                f"model.target_vocab_size is {model.target_vocab_size}, but there is no data.target_tokenizer to fill it: "
                "set one, or leave out model.target_vocab_size"
            )
        if data.train is not None:  # weights from elsewhere are used without an objective
            self.objective.check_model(model)
        row = self.objective.longest_row(data.longest)
        if isinstance(model.positions, Learned | FixedTable) and model.positions.max_positions < max(row):
            raise ValueError(
                f"model.positions.max_positions {model.positions.max_positions} is less than data.max_source_length "
                f"{data.max_source_length} or data.max_target_length {data.max_target_length}: raise it, or lower them"
            )
        if data.rows_multiple % train.micro_batches:
            raise ValueError(
                f"data.rows_multiple {data.rows_multiple} is not divisible by train.micro_batches {train.micro_batches}: "
                "change one, so that every batch can be cut evenly"
            )
        if not self.objective.rows_apart and (train.micro_batches > 1 or train.runner == "pmap"):
            several = train.micro_batches > 1
            what = f"micro_batches is {train.micro_batches}" if several else "runner is 'pmap'"
            raise ValueError(
                f"train.{what}, but objective.kind '{self.objective.kind}' compares all rows of a batch with each other: "
                + ("leave it at 1" if several else "choose 'mesh'")
            )
        if train.best_metric not in (names := (*self.objective.metric_names, *train.text_metrics)):
            hint = " (list it in train.text_metrics first)" if train.best_metric in typing.get_args(TextMetric) else ""
            raise ValueError(f"train.best_metric is {train.best_metric!r}{hint}: choose one of {', '.join(names)}")
        if train.text_metrics and not isinstance(self.objective, Seq2Seq):
            raise ValueError(
                f"train.text_metrics is {train.text_metrics}, but objective.kind '{self.objective.kind}' translates nothing: leave "
                "them out"
            )
        evaluations = train.text_metrics or train.patience is not None or train.best_metric != "loss"
        if data.eval is None and (evaluations or train.keep_best > 1):
            raise ValueError(
                "data.eval is None, but train.text_metrics, train.patience, train.best_metric or train.keep_best need "
                "evaluations: set data.eval, or leave those at their defaults"
            )
        if model.dtype == "float64" and jax.dtypes.canonicalize_dtype("float64") != "float64":
            raise ValueError(
                "model.dtype is 'float64', but JAX computes in 32 bits here: set the environment variable JAX_ENABLE_X64=1, "
                "or choose 'float32'"
            )
        check_weights(self.weights, self)
        self.optimizer.build(total_steps=train.steps, d_model=model.d_model)


def check_weights(weights: str, config: Config) -> None:
    """Raises: ValueError where `weights` (last, best, ema or average:N) is misspelt or such a run would not have them."""
    kind, _, count = weights.partition(":")
    if kind == "average" and count.isdecimal() and int(count) >= 1:
        if int(count) > config.train.keep_latest:
            raise ValueError(
                f"weights is {weights!r}, but train.keep_latest keeps only {config.train.keep_latest} checkpoints: "
                f"set train.keep_latest to at least {count}"
            )
    elif weights not in ("last", "best", "ema"):
        raise ValueError(f"weights is {weights!r}: choose last, best, ema or average:N, for example average:5")
    if weights == "ema" and config.optimizer.ema_decay is None:
        raise ValueError("weights is 'ema', but no average is kept: set optimizer.ema_decay, for example to 0.999")
    if weights == "best" and config.data.eval is None:
        raise ValueError("weights is 'best', but data.eval is None, so no checkpoint is ever the best: use 'last'")
    if weights == "best" and config.train.keep_best == 0:
        raise ValueError(
            "weights is 'best', but train.keep_best is 0, so the best checkpoint is not kept: set it to 1 or more"
        )


MAY_CHANGE = frozenset(
    f"train.{name}"
    for name in (
        *("steps", "log_every", "eval_every", "checkpoint_every", "keep_latest", "keep_best"),
        *("join_seconds", "runner", "mesh.data", "mesh.fsdp", "mesh.tensor"),
    )
)
"""Settings that a resumed run may change: how long it goes on, how often it reports and on which devices; nothing that alters
what a step means."""


# JSON ----------------------------------------------------------------------------------------------------------------


def dataclasses_in(annotation: Any, seen: set[type]) -> Iterator[type]:
    """The dataclass types that an annotation reaches, each once."""
    if dataclasses.is_dataclass(annotation) and isinstance(annotation, type) and annotation not in seen:
        seen.add(annotation)
        yield annotation
        for hint in typing.get_type_hints(annotation).values():
            yield from dataclasses_in(hint, seen)
    for argument in typing.get_args(annotation):
        yield from dataclasses_in(argument, seen)


TYPES = list(dataclasses_in(Config, set()))
for _type in TYPES:
    _type.__pydantic_config__ = pydantic.ConfigDict(extra="forbid", strict=True)  # type: ignore[attr-defined]

KINDS = {_type.kind for _type in TYPES if hasattr(_type, "kind")}
"""The names of all variants, which pydantic puts into the paths of its errors."""

ADAPTER = pydantic.TypeAdapter(Config)


def to_json(config: Config) -> str:
    """The whole config, every default written out."""
    return ADAPTER.dump_json(config, indent=2, warnings="error").decode() + "\n"


def from_json(text: str | bytes, name: str = "config.json") -> Config:
    """The config that `to_json` wrote. Raises: ValueError naming the setting, what was given, and the names there are."""
    try:
        return ADAPTER.validate_json(text)
    except pydantic.ValidationError as error:
        raise ValueError("; ".join(f"{name}: {explain(e)}" for e in error.errors())) from None


def explain(error: Any) -> str:
    """One pydantic error in one line: a path as on the command line, what was found, what is wanted."""
    setting = ".".join(str(part) for part in error["loc"] if part not in KINDS)
    if error["type"] == "unexpected_keyword_argument":
        known = [leaf for leaf in settings_of(Config) if leaf.count(".") == setting.count(".")]
        near = difflib.get_close_matches(setting, known, 3)
        return f"there is no setting {setting}" + (f"; perhaps you meant {' or '.join(near)}" if near else "")
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return f"{setting} is {error['input']!r}: {error['msg']}" if setting else f"{error['msg']}"


def settings_of(annotation: Any, prefix: str = "") -> list[str]:
    """Every setting's path below a dataclass type, all variants included."""
    paths = []
    for name, hint in typing.get_type_hints(annotation).items():
        if name.startswith("__"):
            continue
        paths.append(prefix + name)
        for variant in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(variant):
                paths += settings_of(variant, f"{prefix}{name}.")
    return paths


def flatten(config: Any, prefix: str = "") -> dict[str, Any]:
    """Setting path → value, for every leaf of the tree."""
    if not dataclasses.is_dataclass(config):
        return {prefix[:-1]: config}
    flat: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        flat |= flatten(getattr(config, field.name), f"{prefix}{field.name}.")
    return flat


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Setting path → (old value, new value) for every setting that differs and may not change on resuming."""
    before, after = flatten(old), flatten(new)
    return {
        path: (before.get(path), after.get(path))
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path) and path not in MAY_CHANGE
    }


# From a file and the command line --------------------------------------------------------------------------------------


def load_config(path: str, overrides: Sequence[str] = ()) -> Config:
    """The config of a `.py` file (its `get_config()`) or a `.json` file, with command-line overrides such as `--train.steps 100`.

    Raises: ValueError where the file or an override is wrong; SystemExit with status 0 after `--help`.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"there is no config file {path}{others(file)}")
    config = from_json(file.read_bytes(), path) if file.suffix == ".json" else run_config_file(file)
    return from_json(to_json(overridden(config, overrides, path)), path)


def others(file: Path) -> str:
    """A hint at the config files that there are, in the same folder and in `configs`."""
    folders = {file if file.is_dir() else file.parent, Path("configs")}
    found = sorted(str(p) for folder in folders for p in folder.glob("*.py") if p.stem not in ("__init__", "train"))
    near = [] if file.is_dir() else difflib.get_close_matches(str(file), found, 1)
    return f"; perhaps you meant {near[0]}" if near else f"; there are {', '.join(found)}" if found else ""


def overridden(config: Config, overrides: Sequence[str], path: str) -> Config:
    """The config with settings from the command line. Raises: ValueError in one line where tyro would draw a box."""
    if not overrides:
        return config
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            options = (tyro.conf.AvoidSubcommands,)
            return tyro.cli(Config, default=config, args=list(overrides), prog=f"train.py {path}", config=options)
    except SystemExit as end:
        if not end.code:
            raise
        raise ValueError(in_one_line(box.getvalue())) from None


def in_one_line(box: str) -> str:
    """What a box of tyro's says: its first paragraph, and the options that it thinks were meant.

    The first row is a title; rules of "─", or "-" where the terminal has no better, part the paragraphs.
    """
    rows = re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()[1:]
    parted = itertools.groupby(rows, lambda row: set(row) <= set(" │╭╮╰╯─-"))
    paragraphs = [" ".join(row.strip(" │") for row in rows) for is_rule, rows in parted if not is_rule]
    if not paragraphs:
        return " ".join(box.split())
    said = re.sub(r"^Error parsing (?!-)\S+: ", "", paragraphs[0])
    meant = [option for more in paragraphs[1:] if "you meant" in more for option in re.findall(r"(--[\w.-]+) ", more)]
    return said + (f"; perhaps you meant {' or '.join(meant[:3])}" if meant else "")


def run_config_file(file: Path) -> Config:
    """What the file's `get_config()` returns."""
    spec = importlib.util.spec_from_file_location(f"config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{file} is not a config: give a .py file with a function get_config(), or a .json file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config() if hasattr(module, "get_config") else None
    except ValueError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else 1
        raise ValueError(f"{file}, line {line}: {type(error).__name__}: {error}") from error
    if not isinstance(config, Config):
        raise ValueError(f"{file} has no function get_config() that returns a flaxformer_lite.config.Config")
    return config
