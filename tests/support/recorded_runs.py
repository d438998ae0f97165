"""Drawn runs through the real loop and the real data, whose runner computes nothing and keeps what it received."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model import ModelConfig, Pooler
from flaxformer_lite.core.objectives import Batch, CausalLM, MaskedLM, Objective, Seq2Seq, SpanCorruption
from flaxformer_lite.core.optim import Constant, OptimizerConfig
from flaxformer_lite.core.parallel.mesh import interleaved_rows, local_rows, make_mesh
from flaxformer_lite.core.step import TrainState
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.files.data import TSV, DataConfig, JSONLines, Mixture, ParallelText, PlainText
from flaxformer_lite.files.records import Documents
from flaxformer_lite.training import setup, train

STEPS = 11
WORDS = ("aa", "ab", "bab", "cab", "dada", "ebb", "fed", "gaggle", "hi", "jazz")


class Killed(BaseException):
    """Ends a training as a signal that nobody hears does, without a checkpoint."""


class Listener:
    """A runner that receives the batches of one host of several, and takes no step."""

    def __init__(self, config: Config, devices: int, hosts: int, host: int, measure: Callable[[int], float]) -> None:
        self.mesh, self.measure = make_mesh(devices=jax.devices()[:devices]), measure
        self.pmap, self.micro_batches = config.train.runner == "pmap", config.train.num_micro_batches
        self.hosts, self.host = hosts, host
        self.received: dict[int, tuple[np.ndarray, Batch]] = {}
        """By step the rows of this host, and the newest arrays that it received for them."""
        self.compiled_init = None
        at = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        self.abstract_state = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at), jax.eval_shape(self.init)
        )

    def init(self) -> TrainState:
        return TrainState(jnp.zeros((), jnp.int32), {"w": jnp.zeros(2)}, (), None)

    def local_rows(self, num_rows: int) -> np.ndarray:
        mesh = self.mesh
        rows = interleaved_rows(mesh, self.micro_batches, num_rows) if self.pmap else local_rows(mesh, num_rows)
        self.rows = rows.reshape(self.hosts, -1)[self.host]
        return self.rows

    def shard_batch(self, batch: Batch) -> Batch:
        return batch

    def train_step(self, state: TrainState, batch: Batch, with_norm: bool = False) -> tuple[TrainState, dict[str, Any]]:
        step = int(state.step) + 1
        loss = self.measure(step)
        num_rows = len(jax.tree.leaves(batch)[0]) * self.hosts
        self.received[step] = self.local_rows(num_rows), jax.tree.map(np.array, batch)
        measured = {"loss": loss, "gradient_norm": 1.0, "update_norm": 1.0, "tokens": float(batch.weights.sum())}
        return state._replace(step=state.step + 1), {name: np.float32(value) for name, value in measured.items()}


@dataclasses.dataclass
class DrawnRun:
    """A drawn run that was trained, killed and continued in `folder`."""

    folder: Path
    config: Config
    drawn: str = ""
    texts: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """The lines of every file of training data."""
    received: dict[int, tuple[np.ndarray, Batch]] = dataclasses.field(default_factory=dict)


def drawn_objective(random: np.random.Generator) -> tuple[Objective, ModelConfig]:
    """A kind of rows, and a model that the config allows with it; nothing is computed with the model."""
    sizes = {"vocab_size": 40, "d_model": 4, "num_heads": 1, "d_ff": 4}
    encoder = {"num_encoder_layers": 1, "num_decoder_layers": 0, **sizes}
    match random.integers(5):
        case 0:
            return Seq2Seq(), ModelConfig(num_encoder_layers=1, num_decoder_layers=1, **sizes)
        case 1:
            return CausalLM(), ModelConfig(num_encoder_layers=0, num_decoder_layers=1, **sizes)
        case 2:
            return MaskedLM(mask_token=39, whole_words=bool(random.integers(2))), ModelConfig(**encoder)
        case 3:
            return MaskedLM(mask_token=39, next_sentence=True), ModelConfig(pooler=Pooler(num_classes=2), **encoder)
        case _:
            objective = SpanCorruption(first_sentinel=39, num_sentinels=9)
            return objective, ModelConfig(num_encoder_layers=1, num_decoder_layers=1, **sizes)


def draw_run(seed: int, folder: Path, patch: Any, killed: Callable[[DrawnRun], None] = lambda run: None) -> DrawnRun:
    """Trains a run whose data, batches, devices, hosts, kills and rollbacks are functions of the seed.

    killed: called with the run as each kill leaves it.
    """
    random = np.random.default_rng(seed)
    objective, model = drawn_objective(random)
    texts: dict[str, list[str]] = {}

    def sentence(most: int) -> str:
        return " ".join(random.choice(WORDS, random.integers(1, most)))

    def source(name: str) -> Any:
        number = int(random.integers(20, 50))
        blank = random.random(number) < 0.15
        lines = ["" if empty else sentence(9) for empty in blank]
        path = folder / f"{name}.txt"
        if objective.translates:
            others = ["" if empty else sentence(6) for empty in blank]
            texts[str(path)] = lines
            if random.integers(2):
                (folder / f"{name}.target").write_text("\n".join(others) + "\n")
                path.write_text("\n".join(lines) + "\n")
                return ParallelText(source=str(path), target=str(folder / f"{name}.target"), empty_lines="drop")
            path.write_text("".join(f"{a}\t{b}\n" for a, b in zip(lines, others, strict=True)))
            return TSV(path=str(path), empty_lines="drop")
        texts[str(path)] = lines
        if random.integers(2):
            path.write_text("\n".join(lines) + "\n")
            return PlainText(path=str(path), documents=str(random.choice(["lines", "paragraphs"])))
        path.write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        return JSONLines(path=str(path), record=Documents(), empty_lines="drop")

    data: Any = source("first")
    if random.integers(2):
        sources = (data, source("second"), source("third"))
        weights = tuple(random.uniform(0.2, 2, 3).tolist()) if random.integers(2) else None
        temperature = 1.0 if weights else float(random.uniform(1, 3))
        data = Mixture(sources=sources, weights=weights, temperature=temperature, names=("a", "b", "c"))
    devices, micro_batches = 2 ** int(random.integers(4)), 2 ** int(random.integers(2))
    hosts = 2 ** int(random.integers(devices.bit_length()))
    checkpoint_every, rollbacks = int(random.integers(2, 5)), int(random.integers(3))
    config = Config(
        model=model,
        objective=objective,
        data=DataConfig(
            train=data,
            held_out=float(random.choice([0, 0.25])) if not isinstance(data, Mixture) else 0.0,
            eval=None,
            store=str(folder / "store") if random.integers(2) else None,
            tokenizer=Characters(),
            tokens_per_batch=int(random.integers(100, 600)),
            rows_multiple=16,
            bucket_lengths=(12, 24, 48),
            max_source_length=int(random.integers(20, 50)),
            max_target_length=int(random.integers(20, 50)),
        ),
        optimizer=OptimizerConfig(schedule=Constant(peak_rate=1e-3)),
        train=TrainConfig(
            steps=STEPS,
            seed=int(random.integers(100)),
            runner=str(random.choice(["mesh", "pmap"])),
            num_micro_batches=micro_batches,
            log_every=2,
            checkpoint_every=checkpoint_every,
            max_skipped_steps=int(random.integers(1, 3)),
            max_rollbacks=rollbacks,
        ),
    )
    kills = set(random.integers(2, STEPS, random.integers(3)).tolist())
    wrong = set(random.integers(checkpoint_every + 1, STEPS + 1, rollbacks).tolist())
    drawn = f"seed {seed}: {objective.kind}, {devices} devices, {hosts} hosts, kills {kills}, wrong {wrong}"
    run = DrawnRun(folder / "run", config, drawn, texts)
    listen(run, patch, devices, hosts, int(random.integers(hosts)), kills, wrong, killed)
    return run


def listen(
    run: DrawnRun,
    patch: Any,
    devices: int = 1,
    hosts: int = 1,
    host: int = 0,
    kills: set[int] = frozenset(),  # type: ignore[assignment]
    wrong: set[int] = frozenset(),  # type: ignore[assignment]
    killed: Callable[[DrawnRun], None] = lambda run: None,
) -> None:
    """Trains a run to its end, and keeps what one host receives.

    kills, wrong: the steps at which the process ends, and those whose loss is not finite, each once.
    """

    def measure(step: int) -> float:
        if step in kills:
            kills.remove(step)
            raise Killed
        if step in wrong:
            wrong.remove(step)
            return math.nan
        return 2.0

    def runner(kind: str, task: Any, mesh: Any) -> Any:
        listener = Listener(run.config, devices, hosts, host, measure)
        listener.received = run.received
        return listener

    patch.setattr(setup, "make_runner", runner)
    patch.setattr(setup, "Evaluator", lambda *_: None)
    row = {"tokens_per_second": 1.0}
    speed = SimpleNamespace(add=lambda *_: None, reset=lambda: None, row=lambda: row, leave_out=lambda seconds: None)
    patch.setattr("flaxformer_lite.training.loop.Throughput", lambda *_: speed)
    while True:
        try:
            train(run.config, run.folder)
            return
        except Killed:
            killed(run)
