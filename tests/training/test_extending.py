"""An optimizer, metrics and a callback of one's own, defined here as outside the package, in one training.

Oracles: optax's own optimizers, metrics worked by hand and sacreBLEU's TER.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sacrebleu.metrics.ter import TER

import flaxformer_lite
from flaxformer_lite.cli import scoring
from flaxformer_lite.cli.commands import evaluate
from flaxformer_lite.data import Lengths
from flaxformer_lite.objectives import Seq2Seq
from flaxformer_lite.objectives.losses import LossTerm
from flaxformer_lite.optim import Constant, OptimizerAlgorithm, OptimizerConfig
from tests.support.commands import evaluate_arguments
from tests.support.experiments import tiny_config, use_one_device, with_train
from tests.support.objectives import outputs, record

# The examples ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Optax(OptimizerAlgorithm):
    """Any optimizer of optax by its name, with its defaults; the rate and the decay are the config's."""

    kind: Literal["optax"] = "optax"
    name: str = "adabelief"

    def direction(self) -> optax.GradientTransformation:
        return optax.chain(getattr(optax, self.name)(learning_rate=1.0), optax.scale(-1.0))  # uphill


@dataclass(frozen=True, kw_only=True)
class ScoredSeq2Seq(Seq2Seq):
    """Translation with two more metrics: how often a token is among the best five, and how few edits a translation needs."""

    kind: Literal["scored_seq2seq"] = "scored_seq2seq"

    text_metric_names = ("fewer_edits",)

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (*super().metric_names, "top5")

    def metrics(self, outputs, batch):
        best = jax.lax.top_k(outputs.logits, 5)[1]
        right = (best == batch.targets[..., None]).any(-1) * batch.weights
        return {**super().metrics(outputs, batch), "top5": LossTerm(right.sum(), batch.weights.sum())}

    def text_metrics(self, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        return {"fewer_edits": 100 - TER().corpus_score(list(hypotheses), [list(references)]).score}


class Reached(Exception):
    """Ends a training that is good enough."""


def stop_at(metric: str, value: float) -> Callable[[dict[str, Any]], None]:
    """Returns a callback that ends the training once a metric of an evaluation is that high."""

    def on_row(row: dict[str, Any]) -> None:
        if row["split"] == "eval" and row[metric] >= value:
            raise Reached(f"{metric} is {row[metric]:.3f} at step {row['step']}")

    return on_row


# Their tests -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adabelief", "yogi", "lamb", "rmsprop"])
def test_an_optimizer_of_optax_takes_its_own_steps(name: str):
    """Oracle: the same optimizer of optax with the rate of the schedule, for five steps."""
    config = OptimizerConfig(algorithm=Optax(name=name), schedule=Constant(peak_rate=0.1), clip_norm=None)  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    start = {"kernel": jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)}
    gradients = [{"kernel": jnp.asarray(rng.normal(size=(3, 5)), jnp.float32)} for _ in range(5)]
    moved = []
    for optimizer in (config.build(total_steps=9, d_model=4), getattr(optax, name)(learning_rate=0.1)):
        params, state = start, optimizer.init(start)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        moved.append(params["kernel"])
    np.testing.assert_allclose(*moved, rtol=1e-5, atol=1e-6)
    assert np.abs(moved[0] - start["kernel"]).min() > 0


def test_the_metrics_are_counted():
    """Oracle: by hand. Logits fall with the token's id, so tokens below 5 are among the best five; EOS is 3."""
    objective = ScoredSeq2Seq()
    batch = jax.tree.map(lambda x: jnp.asarray(x)[None], objective.example(record([4], [4, 6, 5]), Lengths(2, 5)))
    logits = np.broadcast_to(-np.arange(7, dtype=np.float32), (1, 5, 7))
    found = objective.report(objective.metrics(outputs(logits), batch))
    assert found["top5"] == 0.5 and set(found) == set(objective.metric_names)
    assert objective.text_metrics(["a b c d"], ["a b c x"]) == {"fewer_edits": 75.0}


@pytest.mark.slow
def test_a_training_with_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Laws: the rows have the metrics, the best checkpoint is by one of them, the callback ends the training with its
    exception and a checkpoint, and `evaluate` prints the metrics too."""
    use_one_device(monkeypatch)
    config = dataclasses.replace(
        with_train(tiny_config(), steps=12, eval_every=3),
        objective=ScoredSeq2Seq(),
        optimizer=OptimizerConfig(algorithm=Optax(), schedule=Constant(peak_rate=0.01), weight_decay=0.1),  # type: ignore[arg-type]
    )
    config = with_train(config, best_metric="fewer_edits")
    with pytest.raises(Reached, match=r"^top5 is 0\.\d+ at step 3$"):
        flaxformer_lite.train(config, tmp_path / "run", on_row=stop_at("top5", 0.0))
    run = flaxformer_lite.load(tmp_path / "run")
    assert run.config == config and run.step == 3
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    (row,) = (row for row in rows if row["split"] == "eval")
    assert 0 <= row["top5"] <= 1 and row["fewer_edits"] <= 100
    capsys.readouterr()
    monkeypatch.setattr(scoring, "load_runs", lambda _: run)
    evaluate.run(evaluate_arguments("run"))
    assert json.loads(capsys.readouterr().out)["top5"] == pytest.approx(row["top5"], abs=1e-6)
