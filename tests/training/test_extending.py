"""An optimizer, metrics, a hook and a callback of one's own, defined here as outside the package, in one training.

Oracles: optax's own optimizers, metrics worked by hand and sacreBLEU's TER.
"""

import dataclasses
import functools
import json
import smtplib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sacrebleu.metrics.ter import TER

import flaxformer_lite
from flaxformer_lite.cli import translation
from flaxformer_lite.cli.commands import evaluate
from flaxformer_lite.config import from_json, to_json
from flaxformer_lite.config.outside import import_options
from flaxformer_lite.core.data import Lengths
from flaxformer_lite.core.objectives import LossTerm, Seq2Seq
from flaxformer_lite.core.optim import Constant, OptimizerAlgorithm, OptimizerConfig
from flaxformer_lite.core.runners import make_runner
from flaxformer_lite.core.step import total
from flaxformer_lite.training import Hook, TrainingRun, setup, train_task
from tests.support.commands import evaluate_arguments
from tests.support.experiments import rows, tiniest_config, use_one_device, with_train
from tests.support.final_state import open_run
from tests.support.limits import assert_close
from tests.support.objectives import example, outputs, record

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


@dataclass(frozen=True, kw_only=True)
class LossPerSentence(Seq2Seq):
    """Translation with the sum of the loss over all tokens, divided by the number of sentences in place of that of tokens."""

    kind: Literal["loss_per_sentence"] = "loss_per_sentence"

    def loss(self, outputs, batch):
        (term,) = super().loss(outputs, batch).values()
        return {"cross_entropy": LossTerm(term.sum, (batch.weights.sum(-1) > 0).sum(dtype=float))}


class Reached(Exception):
    """Ends a training that is good enough."""


def stop_at(metric: str, value: float) -> Callable[[dict[str, Any]], None]:
    """Returns a callback that ends the training once a metric of an evaluation is that high."""

    def on_row(row: dict[str, Any]) -> None:
        if row["split"] == "eval" and row[metric] >= value:
            raise Reached(f"{metric} is {row[metric]:.3f} at step {row['step']}")

    return on_row


@dataclass(frozen=True, kw_only=True)
class MailEvaluations(Hook):
    """Mails the metrics of each evaluation."""

    to: str
    server: str = "localhost"

    def on_evaluation(self, run, step, metrics):
        mail = EmailMessage()
        mail["To"] = mail["From"] = self.to
        mail["Subject"] = f"{run.folder.path.name}, step {step}"
        mail.set_content("\n".join(f"{name} {value:.4f}" for name, value in metrics.items()))
        with smtplib.SMTP(self.server) as server:
            server.send_message(mail)


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
    assert_close(*moved)
    assert np.abs(moved[0] - start["kernel"]).min() > 0


def test_the_metrics_are_counted():
    """Oracle: by hand. Logits fall with the token's id, so tokens below 5 are among the best five; EOS is 3."""
    objective = ScoredSeq2Seq()
    batch = jax.tree.map(lambda x: jnp.asarray(x)[None], example(objective, record([4], [4, 6, 5]), Lengths(2, 5)))
    logits = np.broadcast_to(-np.arange(7, dtype=np.float32), (1, 5, 7))
    found = objective.report(objective.metrics(outputs(logits), batch))
    assert found["top5"] == 0.5 and set(found) == set(objective.metric_names)
    assert objective.text_metrics(["a b c d"], ["a b c x"]) == {"fewer_edits": 75.0}


def test_the_loss_of_a_batch_is_divided_by_its_sentences():
    """Oracle: by hand. Equal logits have a loss of log 7 a token; a row of padding is no sentence."""
    objective = LossPerSentence(label_smoothing=0)
    rows = [example(objective, record([4], target), Lengths(2, 5)) for target in ([4, 6, 5], [4])]
    batch = jax.tree.map(lambda *x: jnp.stack([*map(jnp.asarray, x), jnp.zeros_like(x[0])]), *rows)
    found = objective.loss(outputs(np.zeros((3, 5, 7), np.float32)), batch)
    np.testing.assert_allclose(
        total(found, {"cross_entropy": found["cross_entropy"].count}), 6 / 2 * np.log(7), rtol=1e-6
    )


@pytest.mark.slow
def test_a_training_with_all_of_them(
    tmp_path: Path, one_device: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Laws: the rows have the metrics, the best checkpoint is by one of them, the callback ends the training with its
    exception and a checkpoint, and `evaluate` prints the metrics too."""
    config = dataclasses.replace(
        with_train(tiniest_config(), steps=12, eval_every=3),
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
    monkeypatch.setattr(translation, "load_runs", lambda *_: run)
    evaluate.run(evaluate_arguments("run"))
    assert json.loads(capsys.readouterr().out)["top5"] == pytest.approx(row["top5"], abs=1e-6)


# Hooks -------------------------------------------------------------------------------------------------------------------

SHORT = with_train(tiniest_config(), steps=4, eval_every=2, checkpoint_every=2, log_every=2, text_metrics=())

TASK = train_task(SHORT)
runner_once = functools.cache(make_runner)


class PostOffice:
    """An SMTP server that keeps its mails."""

    mails: ClassVar[list[EmailMessage]] = []

    def __init__(self, server: str) -> None:
        self.server = server

    def __enter__(self) -> "PostOffice":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send_message(self, mail: EmailMessage) -> None:
        self.mails.append(mail)


@pytest.fixture
def mails(monkeypatch: pytest.MonkeyPatch) -> list[EmailMessage]:
    use_one_device(monkeypatch)
    monkeypatch.setattr(setup, "train_task", lambda config: TASK)
    monkeypatch.setattr(setup, "make_runner", runner_once)
    monkeypatch.setattr(smtplib, "SMTP", PostOffice)
    monkeypatch.setattr(PostOffice, "mails", [])
    return PostOffice.mails


@dataclass
class Calls(Hook):
    """Keeps what it is called with, and fails in one method at one step."""

    calls: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    fails: tuple[str, int] = ("", 0)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith(("on_", "before_")):
            return super().__getattribute__(name)

        def note(run: TrainingRun, step: Any = None, more: Any = None) -> None:
            place = step["step"] if isinstance(step, dict) else run.step if step is None else step
            self.calls.append((name, place))
            if (name, place) == self.fails:
                raise Reached(name)

        return note


@pytest.mark.slow
def test_a_hook_from_python_is_called_in_order(tmp_path: Path, mails: list[EmailMessage]):
    """Oracle: by hand, for 4 steps with a row, an evaluation and a checkpoint every second step. A step ends once the next is
    started, or where its numbers are needed."""
    hook = Calls()
    run = flaxformer_lite.train(SHORT, tmp_path / "run", hooks=[hook, MailEvaluations(to="a@b.c")])
    saves = [call for call in hook.calls if call[0] == "on_save"]
    assert saves == [("on_save", 2), ("on_save", 4)]  # in the background, so the first one is early or late
    assert [call for call in hook.calls if call not in saves] == [
        ("on_start", 0),
        ("before_step", 1),
        ("before_step", 2),
        ("on_step", 1),
        ("on_step", 2),
        ("on_row", 2),
        ("on_row", 2),
        ("on_evaluation", 2),
        ("before_step", 3),
        ("before_step", 4),
        ("on_step", 3),
        ("on_step", 4),
        ("on_row", 4),
        ("on_row", 4),
        ("on_evaluation", 4),
        ("on_end", 4),
    ]
    assert [mail["Subject"] for mail in mails] == ["run, step 2", "run, step 4"]
    loss = run.folder.rows()[-1]["loss"]
    assert mails[-1]["To"] == "a@b.c" and f"loss {loss:.4f}" in mails[-1].get_content()


class Norms(Hook):
    def measure(self, gradient):
        return {name: optax.tree.norm(part) for name, part in gradient.items()}


@pytest.mark.slow
def test_a_hook_measures_the_gradient_of_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: the squared norms of all parts sum to that of the whole gradient; parameters are those of a run without the hook."""
    use_one_device(monkeypatch)
    run = flaxformer_lite.train(SHORT, tmp_path / "run", hooks=[Norms()])
    for row in run.folder.rows()[::2]:
        parts = [row[f"gradient/{name}"] for name in run.params]
        assert len(parts) > 1 and np.linalg.norm(parts) == pytest.approx(row["gradient_norm"], rel=1e-5)
    jax.tree.map(np.testing.assert_array_equal, run.params, flaxformer_lite.train(SHORT, tmp_path / "plain").params)
    with pytest.raises(ValueError, match="a name of its own"):
        flaxformer_lite.train(SHORT, tmp_path / "twice", hooks=[Norms(), Norms()])


@pytest.mark.slow
def test_a_hook_of_a_config_is_saved_in_it_and_may_change(tmp_path: Path, mails: list[EmailMessage]):
    """Law: config.json names it as other classes from outside; the run continues with others, or none, to the same bits."""
    config = with_train(SHORT, hooks=(MailEvaluations(to="a@b.c"),))
    name = f"{__name__}:MailEvaluations"
    assert json.loads(to_json(config))["train"]["hooks"] == [{"to": "a@b.c", "server": "localhost", "kind": name}]
    assert from_json(to_json(config)) == config
    assert import_options(config) == f" --import {__name__}"
    run = flaxformer_lite.train(config, tmp_path / "run")
    assert len(mails) == 2 and run.config == config
    longer = flaxformer_lite.train(with_train(SHORT, steps=6), tmp_path / "run")
    once = flaxformer_lite.train(with_train(config, steps=6), tmp_path / "once")
    assert len(mails) == 2 + 3
    jax.tree.map(np.testing.assert_array_equal, longer.params, once.params)


FAILURES = [("on_start", 0, None), ("on_step", 1, 2), ("on_row", 2, 2), ("on_evaluation", 2, 2), ("on_end", 4, 4)]


@pytest.mark.slow
@pytest.mark.parametrize("case", FAILURES, ids=lambda case: case[0])
def test_an_exception_in_a_hook_costs_no_step(
    tmp_path: Path, mails: list[EmailMessage], capsys: pytest.CaptureFixture, case: tuple[str, int, int | None]
):
    """Law: a checkpoint is saved after the step in progress, and the exception is raised; the hook is called at the end only.

    The next call continues to the same bits.
    """
    method, at, saved = case
    hook = Calls(fails=(method, at))
    with pytest.raises(Reached, match=method):
        flaxformer_lite.train(SHORT, tmp_path / "run", hooks=[hook])
    assert hook.calls[-1][0] == "on_end" and hook.calls[-2:][0] in ((method, at), ("on_save", 4))
    with open_run(tmp_path / "run") as checkpoints:
        assert checkpoints.latest() == saved
    said, again = capsys.readouterr().err, flaxformer_lite.train(SHORT, tmp_path / "run")
    assert again.step == 4
    if method == "on_row":
        assert f"Calls.on_row raised Reached: saved after step {saved}; " in said
        once = flaxformer_lite.train(SHORT, tmp_path / "once")
        assert rows(again.folder.path) == rows(once.folder.path)
        jax.tree.map(np.testing.assert_array_equal, again.params, once.params)
