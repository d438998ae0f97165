"""Oracles: the losses that the run wrote, and the train step on batches whose weights are set to 0 by hand."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite import load
from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import Config
from flaxformer_lite.config.train import TrainConfig
from flaxformer_lite.core.data import BatchShapes
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.model import DropoutRates, ModelConfig
from flaxformer_lite.core.objectives import BaseObjective, CausalLM, Regression, Reranking
from flaxformer_lite.core.step import train_step
from flaxformer_lite.files.data import TSV, PlainText
from flaxformer_lite.run.attention import own_targets
from flaxformer_lite.run.recording import Recording, open_recording
from flaxformer_lite.tools.recorder.rerun import Without, rerun, row_loss, without_record, without_row
from flaxformer_lite.tools.report.facts import RunFacts
from flaxformer_lite.tools.report.tabs import spike_parts, spikes
from flaxformer_lite.training import train, train_task
from flaxformer_lite.training.data import read_data
from flaxformer_lite.training.loop_state import LoopState
from flaxformer_lite.workdir import RunFolder
from tests.support.commands import Command, Said
from tests.support.experiments import rows, tiniest_config, use_one_device
from tests.support.objectives import candidate_record, labelled
from tests.support.search_runs import write_search_run

Typed = Callable[..., Said]
LINES = [" ".join(f"{word}{i}" for word in ("some", "words", "and", "more")[: 1 + i % 4]) for i in range(40)]


def config_of(folder: Path) -> Config:
    """8 steps of a language model, with packing, dropout and two micro-batches."""
    (folder / "lines.txt").write_text("\n".join(LINES) + "\n")
    sizes = {"vocab_size": 40, "d_model": 8, "num_heads": 2, "d_ff": 8}
    dropout = DropoutRates(embedding_rate=0, attention_rate=0, feed_forward_rate=0, residual_rate=0.1)
    tiny = tiniest_config()
    data = dataclasses.replace(
        tiny.data,
        train=PlainText(path=f"{folder}/lines.txt", documents="lines"),
        eval=PlainText(path=f"{folder}/lines.txt", documents="lines"),
        max_target_length=48,
        tokens_per_batch=8 * 48,
    )
    return dataclasses.replace(
        tiny,
        objective=CausalLM(),
        model=ModelConfig(num_encoder_layers=0, num_decoder_layers=1, dropout=dropout, **sizes),
        data=data,
        train=TrainConfig(steps=8, checkpoint_every=3, eval_every=99, log_every=1, num_micro_batches=2, keep_latest=9),
    )


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recording]:
    """A run whose last checkpoint before its last step is step 6."""
    folder = tmp_path_factory.mktemp("rerun")
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        train(config_of(folder), folder / "run")
        yield open_recording(RunFolder(folder / "run"))


@pytest.fixture
def typed(recording: Recording, command: Command, one_device: None) -> Typed:
    """Runs a command on the run; returns what it wrote."""
    return lambda name, *words: command.ended(name, recording.folder.path, *words)[1]


def by_hand(recording: Recording, step: int, positions: np.ndarray) -> list[float]:
    """The losses of all steps where the positions of a step have the weight 0, by the train step alone."""
    task = train_task(recording.config)
    state, one_step, losses = jax.jit(task.initialize)(), jax.jit(functools.partial(train_step, task)), []
    for number in range(1, 9):
        batch = recording.batch(number)
        if number == step:
            batch = batch._replace(weights=np.where(positions, np.float32(0), batch.weights))
        state, measured = one_step(state, batch)
        losses.append(float(measured["loss"]))
    return losses


def repeated(recording: Recording, step: int, steps: int, without: Without) -> dict[int, tuple[float, float]]:
    with Progress(silent=True) as progress:
        return rerun(recording, step, steps, without, [], progress).losses


@pytest.fixture
def untrained(tmp_path: Path) -> Recording:
    """The recording of a run that has its data, but no step."""
    config, folder = config_of(tmp_path), RunFolder(tmp_path / "run")
    with Progress(silent=True) as progress:
        data = read_data(config, folder, progress)
    return Recording(folder, config, data, LoopState(data.train.fingerprint), 8)


def test_a_line_leaves_a_packed_row_without_the_others(untrained: Recording):
    """Oracle: the text of each segment. The positions of the line alone lose their weight; all else keeps its bits."""
    row = next(row for row in untrained.rows(5) if len(row.places) > 1)
    line = LINES[row.places[1].line - 1]
    tokenizer, batch = untrained.data.tokenizers.target, untrained.batch(5)
    less = without_record(untrained, row.places[1].record)(5, batch)
    segments, tokens = (np.asarray(x[row.row]) for x in (batch.inputs.target_segments, batch.inputs.target_tokens))
    before, after = np.asarray(batch.weights), np.asarray(less.weights)
    assert tokenizer.decode(tokens[before[row.row] != after[row.row]].tolist()) == line
    np.testing.assert_array_equal(after[row.row], before[row.row] * (segments != 2))
    assert after[row.row].any(), "the other lines of the row count as before"
    np.testing.assert_array_equal(np.delete(after, row.row, 0), np.delete(before, row.row, 0))
    jax.tree.map(np.testing.assert_array_equal, less._replace(weights=batch.weights), batch)


def test_a_row_by_itself_is_zero_and_the_others_keep_their_bits(untrained: Recording):
    batch = untrained.batch(5)
    less = without_row(5, 2)(5, batch)
    for before, after in zip(jax.tree.leaves(batch), jax.tree.leaves(less), strict=True):
        assert not after[2].any()
        np.testing.assert_array_equal(np.delete(after, 2, 0), np.delete(before, 2, 0))
    assert without_row(5, 2)(4, batch) is batch


@pytest.mark.slow
def test_without_a_row_all_else_is_equal(recording: Recording):
    """From checkpoint 3: the losses of the run itself bit for bit, and those of the train step with the weights by hand."""
    written = {row["step"]: row["loss"] for row in rows(recording.folder.path) if row["split"] == "train"}
    found = repeated(recording, 5, 3, without_row(5, 2))
    assert {step: whole for step, (whole, _) in found.items()} == {step: written[step] for step in (5, 6, 7)}
    positions = np.arange(len(recording.batch(5).weights))[:, None] == 2
    expected = by_hand(recording, 5, positions)[4:7]
    np.testing.assert_allclose([less for _, less in found.values()], expected, rtol=1e-6)
    assert all(abs(whole - less) > 1e-5 for whole, less in found.values())


@pytest.mark.slow
def test_without_a_line_its_positions_alone_do_not_count(recording: Recording):
    """Oracle: the segment of the row whose text is the line."""
    row = next(row for row in recording.rows(5) if len(row.places) > 1)
    line = LINES[row.places[1].line - 1]
    tokenizer, inputs = recording.data.tokenizers.target, row.example.inputs
    own = inputs.target_segments == 2
    assert tokenizer.decode(inputs.target_tokens[own].tolist()) == line
    positions = np.zeros(recording.batch(5).weights.shape, bool)
    positions[row.row] = own
    found = repeated(recording, 5, 1, without_record(recording, row.places[1].record))
    assert found[5][1] == pytest.approx(by_hand(recording, 5, positions)[4], rel=1e-6)
    assert abs(found[5][1] - found[5][0]) > 1e-5


@pytest.mark.slow
def test_the_loss_of_a_row_is_that_of_a_batch_without_the_others(recording: Recording, typed: Typed):
    """Law: their mean over the counted tokens is the evaluation's loss; each is that of an evaluation of its texts alone."""
    task, batch = train_task(recording.config), jax.tree.map(jnp.asarray, recording.batch(3))
    params, (step, loss_of) = load(str(recording.folder.path)).params, row_loss(recording)
    counts = np.asarray(batch.weights).sum(-1)
    losses = np.array([loss_of(jax.tree.map(lambda x, i=i: x[i], batch)) for i in range(len(counts))])
    outputs = jax.jit(task.model.apply)({"params": params}, task.inputs(batch))
    whole = task.objective.metrics(outputs, batch)["loss"]
    assert np.nansum(losses * counts) == pytest.approx(float(whole.sum), rel=1e-5)
    assert np.isnan(losses).tolist() == (counts == 0).tolist()
    shown = recording.rows(3)[0]
    alone = task.objective.metrics(
        outputs, batch._replace(weights=batch.weights * (np.arange(len(counts)) == shown.row)[:, None])
    )
    assert losses[shown.row] == pytest.approx(float(alone["loss"].mean), rel=1e-5)
    assert step == 8
    lines = [line.split("\t") for line in typed("rows", 3, "--losses").lines]
    assert [line[3] for line in lines] == [f"{losses[row.row]:.4f}" for row in recording.rows(3)]
    assert json.loads(typed("rows", 3, "--losses", "--json").lines[0])["loss"] == losses[shown.row]
    assert f", loss {losses[shown.row]:.4f}\n" in typed("rows", 3, "--losses", "--text").out


@pytest.mark.slow
@pytest.mark.parametrize("objective", [Regression(), Reranking(num_candidates=3)], ids=lambda one: one.kind)
def test_a_number_of_a_text_or_of_candidates_has_a_loss_too(
    objective: BaseObjective, untrained: Recording, tmp_path: Path
):
    """Oracle: the squared error by hand, and the cross-entropy of sigmoids of three candidates, one of which is right."""
    folder = RunFolder(write_search_run(tmp_path / "untrained", reranks=True, objective=objective))
    records = [labelled([], [5, 6, 7], "2.5")]
    if isinstance(objective, Reranking):
        records = [candidate_record([5, 6], [[7], [8, 9], [10]])]
    config, run = folder.config(), load(str(folder.path))
    shapes = BatchShapes(bucket_lengths=(16,), max_source_length=16, tokens_per_batch=48)
    batch = Dataset.training(records, objective, shapes, 3, run.tokenizers.source).batch(0)
    first = jax.tree.map(lambda x: jnp.asarray(x[:1]), batch)
    loss_of = row_loss(dataclasses.replace(untrained, folder=folder, config=config))[1]
    found = loss_of(jax.tree.map(lambda x: x[0], first))
    task = train_task(config)
    scores = jax.jit(task.model.apply)({"params": run.params}, task.inputs(first)).class_logits
    z, y = np.asarray(scores, np.float64).ravel(), np.asarray(batch.targets[0], np.float64)
    by_hand = np.square(z - y) if objective.kind == "regression" else np.log1p(np.exp(np.where(y > 0, -z, z)))
    assert found == pytest.approx(by_hand.mean(), rel=1e-5)


@pytest.mark.slow
def test_damaged_rows_have_the_highest_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: of 2,000 pairs, 20 of which have a wrong target, at least 95 % are among the 5 % with the highest losses."""
    use_one_device(monkeypatch)
    damaged = set(np.random.default_rng(0).choice(2000, 20, replace=False).tolist())
    lines = [f"{i % 10}\t{(i + 3 * (i in damaged)) % 10}\n" for i in range(2000)]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    tiny = tiniest_config()
    data = dataclasses.replace(
        tiny.data, train=TSV(path=f"{tmp_path}/pairs.tsv"), eval=None, bucket_lengths=(4,), tokens_per_batch=4 * 400
    )
    training = TrainConfig(steps=60, checkpoint_every=60)
    train(dataclasses.replace(tiny, data=data, train=training), tmp_path / "run")
    recording = open_recording(RunFolder(tmp_path / "run"))
    _, loss_of = row_loss(recording)
    losses = {row.places[0].record: loss_of(row.example) for row in recording.rows(*range(1, 6))}
    first = sorted(losses, key=lambda record: -losses[record])[:100]
    assert len(losses) == 2000 and len(damaged.intersection(first)) >= 19


@pytest.mark.slow
def test_the_command_shows_both_and_refuses_what_changes_nothing(
    recording: Recording, typed: Typed, monkeypatch: pytest.MonkeyPatch
):
    written = {path: path.stat().st_mtime_ns for path in recording.folder.path.parent.rglob("*")}
    found = json.loads(typed("rerun", 8, "--without", "1", "--json", "--answer", "some0").out)
    assert found["start"] == 6 and found["changed"] == [8]
    assert found["answers"]["some0"][0] == own_targets(load(str(recording.folder.path)), ["some0"])[0]
    assert found["metrics"]["loss"][0] == rows(recording.folder.path)[-1]["loss"]
    assert found["metrics"]["loss"][0] != found["metrics"]["loss"][1]
    place = recording.rows(8)[0].places[0]
    lines = typed("rerun", 8, "--without", f"{place.files[0]}:{place.line}").lines
    assert lines[0] == "from checkpoint 6; left out in step 8" and lines[2].startswith("loss of step 8")
    absent = {i + 1 for i in range(40)} - {place.line for row in recording.rows(8) for place in row.places}
    for words, message in (
        ((8, "--without", f"{place.files[0]}:{min(absent)}"), "no row of the steps 8 to 8 has it"),
        ((8, "--without", "nobody:3"), "nobody is not a file of this run's data: give one of"),
        ((8, "--without", f"{place.files[0]}:99"), "it must be a line of one record of data.train, but 0 have it"),
        ((8, "--without", "x"), "give the number of a row, or FILE:LINE"),
        ((8, "--without", "99"), "has the rows 0 to 7"),
        ((9, "--without", "1"), "are not all of a run that has taken 8"),
    ):
        assert message in typed("rerun", *words).notes[-1]
    assert {path: path.stat().st_mtime_ns for path in recording.folder.path.parent.rglob("*")} == written
    changed = [*recording.folder.rows(), {"step": 7, "split": "change"}]
    monkeypatch.setattr(RunFolder, "rows", lambda self: changed)
    assert "other settings since step 7" in typed("rerun", 8, "--without", "1").notes[-1]
    monkeypatch.setattr(CausalLM, "rows_independent", False)
    with pytest.raises(ValueError, match="the loss of a row depends on the others"):
        row_loss(recording)


@pytest.mark.slow
def test_the_report_shows_the_rows_of_a_spike(recording: Recording, tmp_path: Path):
    """Oracle: the batch of the line in train.log, row by row."""
    with (recording.folder.path / "train.log").open("a", encoding="utf-8") as file:
        file.write(
            "12:00:00 step      5  a loss spike on batch 4: 9.0000, where the 100 steps before had 3.0000 ± 0.1000\n"
        )
    run, (_, loss_of) = RunFacts("a", str(recording.folder.path), recording.folder), row_loss(recording)
    assert spikes(run) == [(5, 4)]
    (tmp_path / "train.log").write_text(
        "".join(f"step {i // 2}  a loss spike on batch {i // 2 - 1}: 9\n" for i in range(4, 20))
    )
    assert spikes(RunFacts("b", "", RunFolder(tmp_path))) == [(7, 6), (8, 7), (9, 8)]
    charts, (table,) = spike_parts(run)
    bars = charts[table.title].to_dict()["data"]["values"]
    assert [int(line[1]) for line in sorted(table.rows, key=lambda line: int(line[1]))] == [
        row.row for row in recording.rows(5)
    ]
    losses = [float(line[0]) for line in table.rows]
    assert losses == sorted(losses, reverse=True) and losses[0] > losses[-1]
    assert {line[4] for line in table.rows} == {row.target for row in recording.rows(5)}
    for step in (4, 5):
        own = sorted(bar["loss"] for bar in bars if bar["of"] == f"batch {step - 1}" for _ in range(bar["count"]))
        assert own == sorted(loss_of(row.example) for row in recording.rows(step))
