"""`fit`: the task that fields say, and the config that follows. Oracles: the rows themselves, by hand."""

import dataclasses
import json
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flaxformer_lite import import_hf, load
from flaxformer_lite.base.atomic_files import write_json
from flaxformer_lite.config import Config, load_config, to_json
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model import Pooler
from flaxformer_lite.core.objectives import (
    AnswerSpans,
    BaseObjective,
    Classification,
    Instruction,
    Regression,
    Reranking,
    SentenceEmbeddings,
    TokenLabels,
)
from flaxformer_lite.core.optim import Linear
from flaxformer_lite.files.data import CSV, TSV, CoNLL, DataConfig, JSONLines
from flaxformer_lite.files.records import Candidates, Classes, Conversations, Entities, Pairs, Questions, Words
from flaxformer_lite.interop.exporting import fitting_systems
from flaxformer_lite.run.scoring import TEST_SCORES
from flaxformer_lite.tasks.recipe import Examples, Recipe
from flaxformer_lite.tools.fit import choosing, fit, making
from flaxformer_lite.tools.fit.choosing import tell_classes
from flaxformer_lite.tools.fit.data import as_json_lines, open_data, search_rows
from flaxformer_lite.tools.fit.making import found
from flaxformer_lite.training import loop
from flaxformer_lite.workdir import RunFolder
from tests.support.hf_folders import imported
from tests.support.paths import FIXTURES
from tests.support.quick import quick

TEXT = "The capital of France is Paris."
ANSWER = {"text": ["Paris"], "answer_start": [25]}
SPAN = [{"start": 25, "end": 30, "label": "LOC"}]
MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
NESTED = {"data": [{"paragraphs": [{"context": TEXT, "qas": [{"question": "What?", "answers": []}]}]}]}
LABELLED = ("O", "B-LOC", "I-LOC")


def recipe_of(folder: Path, name: str, text: str, task: str | None = None, **fields: Sequence[str]) -> Recipe:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    read = open_data(str(file), [name for names in fields.values() for name in names])
    return found(Examples(read.rows, [read.source], task, **fields))


def table(*rows: str) -> str:
    return "".join(f"{row}\n" for row in rows)


def classes(*names: str, **options: Any) -> Classification:
    return Classification(classes=names, **options)


@pytest.mark.parametrize(
    ("rows", "record", "objective"),
    [
        ([{"text": "a", "label": "x"}, {"text": "b", "label": "y"}], Classes(), classes("x", "y")),
        ([{"Text": "a", "Label": 10}, {"Text": "b", "Label": 9}], Classes(text="Text", label="Label"), classes("9", "10")),
        ([{"text": "a", "labels": ["x", "y"]}, {"text": "b", "labels": []}], Classes(label="labels"),
         classes("x", "y", labels="several")),
        ([{"id": 7, "body": "a", "intent": "x"}, {"id": 8, "body": "b", "intent": "y"}], Classes(text="body", label="intent"),
         classes("x", "y")),
        ([{"premise": "a", "hypothesis": "b", "label": number} for number in (2, 0, 1)],
         Classes(source="premise", text="hypothesis"), classes("0", "1", "2")),
        ([{"sentence1": "a", "sentence2": "b", "score": number} for number in (0.5, 4, 2)],
         Classes(source="sentence1", text="sentence2", label="score"), Regression()),
        ([{"text": "a", "label": number} for number in range(40)], Classes(), classes(*map(str, range(40)))),
        ([{"text": "a", "label": number} for number in range(0, 80, 2)], Classes(), Regression()),
        ([{"tokens": ["in", "Paris"], "ner_tags": ["O", "B-LOC"]}, {"tokens": ["x"], "ner_tags": ["I-LOC"]}], Words(),
         TokenLabels(labels=LABELLED)),
        ([{"words": ["in", "Paris"], "tags": [0, 2]}], Words(words="words", labels="tags"),
         TokenLabels(labels=("0", "1", "2"), scheme="plain")),
        ([{"text": TEXT, "spans": SPAN}, {"text": "b", "spans": []}], Entities(), TokenLabels(labels=LABELLED)),
        ([{"question": "What?", "context": TEXT, "answers": ANSWER, "id": "1", "title": "t"}], Questions(), AnswerSpans()),
        ([NESTED], Questions(), AnswerSpans(unanswerable=True)),
        ([{"query": "a", "positive": "b"}], Candidates(negatives=()), SentenceEmbeddings(directions="both")),
        ([{"messages": MESSAGES}], Conversations(), Instruction()),
        ([{"instruction": "a", "input": "", "output": "b"}], Pairs(source="instruction", target="output", input="input"),
         Instruction()),
    ],
)  # fmt: skip
def test_fields_say_the_task(rows: Sequence[Any], record: Any, objective: BaseObjective, tmp_path: Path):
    recipe = recipe_of(tmp_path, "rows.jsonl", as_json_lines(rows))
    assert recipe.source == JSONLines(path=str(tmp_path / "rows.jsonl"), record=record)
    assert recipe.objective == objective and recipe.best_metric in (
        *objective.metric_names,
        *objective.text_metric_names,
    )


@pytest.mark.parametrize(
    ("name", "text", "kind", "settings"),
    [
        ("a.csv", table("text,label", '"one, two",x', "three,y"), CSV, {"header": True, "record": Classes()}),
        ("a.csv", table("text;label", "one;x", "three;y"), CSV, {"header": True, "delimiter": ";", "record": Classes()}),
        ("a.tsv", table("Text\tClass", "one\tx", "three\ty"), TSV,
         {"header": True, "record": Classes(text="Text", label="Class")}),
        ("a.csv", table("tokens,ner_tags", "\"['in', 'Paris']\",\"['O', 'B-LOC']\""), CSV, {"header": True, "record": Words()}),
        ("a.conll", table("in O", "Paris B-LOC", "", "x I-LOC"), CoNLL, {}),
        ("a.json", json.dumps(NESTED), JSONLines, {"record": Questions()}),
    ],
)  # fmt: skip
def test_each_kind_of_file_is_read_by_its_source(
    name: str, text: str, kind: Any, settings: Mapping[str, Any], tmp_path: Path
):
    assert recipe_of(tmp_path, name, text).source == kind(path=str(tmp_path / name), **settings)


def test_fields_that_are_named_are_read(tmp_path: Path):
    """A table of which columns are named by numbers has no header."""
    rows = table("7\tone\tx", "8\tthree\ty")
    recipe = recipe_of(tmp_path, "a.tsv", rows, texts=["1"], labels=["2"])
    assert recipe.source.record == Classes(text=1, label=2) and not recipe.source.header
    assert recipe.objective == classes("x", "y")
    rows = as_json_lines([{"text": "a", "rude": 0, "toxic": 1}, {"text": "b", "rude": 0, "toxic": 0}])
    recipe = recipe_of(tmp_path, "b.jsonl", rows, labels=["rude", "toxic"])
    assert recipe.source.record == Classes(label=("rude", "toxic"))
    assert recipe.objective == classes("rude", "toxic", labels="several")
    rows = as_json_lines([{"tokens": ["a", "b"], "ner_tags": ["O", "O"], "pos_tags": ["NOUN", "VERB"]}])
    recipe = recipe_of(tmp_path, "a.jsonl", rows, labels=["pos_tags"])
    assert recipe.objective == TokenLabels(labels=("NOUN", "VERB"), scheme="plain") and recipe.best_metric == "accuracy"


def test_a_task_that_is_named_decides(tmp_path: Path):
    stars = as_json_lines([{"text": "a", "stars": number} for number in (1, 2, 5)])
    assert recipe_of(tmp_path, "a.jsonl", stars).objective == classes("1", "2", "5")
    assert recipe_of(tmp_path, "a.jsonl", stars, "regression").objective == Regression()
    judged = as_json_lines([{"query": "a", "positive": "b", "negative_1": "c", "negative_2": "d"}])
    rank, embed = (recipe_of(tmp_path, "b.jsonl", judged, task) for task in ("rank", "embed"))
    record = Candidates(negatives=("negative_1", "negative_2"))
    assert rank.source.record == embed.source.record == record
    assert rank.objective == Reranking(num_candidates=3) and embed.objective == SentenceEmbeddings(num_negatives=2)


@pytest.mark.parametrize(
    ("rows", "task", "message"),
    [
        ([{"text": "a", "is_new": 0, "is_long": 1}] * 4, None, "the fields are text, is_new, is_long, and no task reads them"),
        ([{"id": 1, "body": "a"}], None, "the fields are id, body, and no task reads them .classify, regression, label"),
        ([{"query": "a", "positive": "b", "negative": ["c"]}], None, "several tasks read them .embed, rank.: name the task by"),
        ([{"question": "a", "answer": "b"}], None, "several tasks read them .embed, chat."),
        ([{"text": "a", "label": "x"}], "label", "no task reads them .label.: name the task by --task, and the fields"),
        ([{"text": "a", "label": "x"}], "clasify", "--task is clasify: the tasks are classify, regression, label, answer"),
        ([{"text": "a", "label": "x"}], None, "the field label has 1 different labels, and a classifier needs 2 to 1,000"),
        ([{"text": "a", "label": None}, {"text": "b", "label": "x"}], None, r"rows.jsonl:1: field label holds NoneType"),
        ([{"question": f"q {i}", "answer": f"a {i // 2}"} for i in range(4000)], None, "several tasks read them .embed, chat."),
        ([[{"text": "a"}]], None, "rows.jsonl: row 1 is .*: each row must be one object with fields"),
    ],
)  # fmt: skip
def test_rows_of_no_task_or_of_several_are_a_mistake(rows: Any, task: str | None, message: str, tmp_path: Path):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with pytest.raises(ValueError, match=message):
        recipe_of(tmp_path, "rows.jsonl", text, task)


def test_a_label_with_a_bracket_is_one_label(tmp_path: Path):
    text = "".join(json.dumps({"text": f"text {i}", "label": "[other] b" if i % 2 else "a"}) + "\n" for i in range(6))
    assert recipe_of(tmp_path, "rows.jsonl", text, None).objective == Classification(classes=("[other] b", "a"))


@pytest.mark.parametrize(
    ("words", "hours", "message"),
    [
        (["--train.stepz", "5"], None, "there is no option --train.stepz; perhaps you meant --train.steps"),
        (["--learning_rate", "1"], None, "there is no option --learning_rate; .*--optimizer.schedule.peak-rate"),
        (["--test_file", "x.csv"], None, "there is no option --test_file; .*`fit` has --test FILE"),
        (
            ["--test_size=0.2"],
            None,
            "--test_size; it is --data.held-out, .*`fit` has --eval FILE and --test FILE",
        ),
        (["--text_column", "x"], None, "there is no option --text_column; .*`fit` has --text NAME"),
        (["--label_column", "x"], None, "there is no option --label_column; .*`fit` has --text and --label"),
        (["--output_dir", "x"], None, "there is no option --output_dir; the run folder is -o RUN of `fit`"),
        ({"fp16": False}, None, "there is no option --no-fp16; float16 is not supported"),
        ([], float("nan"), "--hours is nan: it must be at least 0.05"),
        ([], -1.0, "--hours is -1.0: it must be at least 0.05"),
        (["--train.epochs", "5"], 0.1, "--hours is 0.1, and --train.epochs sets the length of the training too"),
    ],
)
def test_settings_are_checked_before_a_model_is_read(words: Any, hours: float | None, message: str, tmp_path: Path):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    with pytest.raises(ValueError, match=message):
        fit("no/model", rows, tmp_path / "run", hours=hours, settings=words)


@pytest.mark.parametrize(
    ("rare", "said"),
    [
        (9, "1 of 2 classes have under 10 rows to learn from, b has 9: give more rows of them"),
        (11, "the class b has 11 rows and a 200: objective.class_weights would count rare classes more"),
        (30, ""),
    ],
)
def test_classes_of_few_rows_are_told(rare: int, said: str, capsys: pytest.CaptureFixture):
    pairs = [Pair("", "text", label) for label in "a" * 200 + "b" * rare]
    tell_classes(pairs, {}, ("a", "b"))
    err = capsys.readouterr().err
    assert said in err and bool(err) == bool(said)


def test_rows_are_written_as_json(tmp_path: Path):
    class Date:
        def __str__(self) -> str:
            return "2026-11-29"

    row = {"text": "a", "label": float("nan"), "day": Date(), "numbers": np.arange(2)}
    assert json.loads(as_json_lines([row])) == {"text": "a", "label": None, "day": "2026-11-29", "numbers": [0, 1]}
    with pytest.raises(ValueError, match="the data has no rows"):
        recipe_of(tmp_path, "rows.csv", "text,label\n", None)


# The config ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny BERT of the library's as a run, which makes vectors."""
    return str(import_hf(FIXTURES / "hf" / "minilm" / "hub_layout", tmp_path_factory.mktemp("bert") / "run"))


def reviews(number: int, names: Sequence[str] = ("bad", "good")) -> list[dict[str, str]]:
    """Rows whose class is the word that they end in."""
    return [{"text": f"number {i} is {names[i % len(names)]}", "label": names[i % len(names)]} for i in range(number)]


def chosen_for(bert: str, rows: Sequence[Any], folder: Path, task: str | None = None, **others: Any) -> Config:
    recipe = recipe_of(folder, "rows.jsonl", as_json_lines(rows), task)
    return choosing.chosen(recipe, bert, others, None)


@pytest.mark.parametrize(("number", "epochs"), [(40, 50.0), (500, 20.0), (1_500, 14.0), (7_000, 3.0)])
def test_few_rows_are_read_more_often(number: int, epochs: float, bert: str, tmp_path: Path):
    """By hand: 1,000 steps, but 3 to 20 epochs, and 100 steps at least; 0.8 of the rows are trained on, 16 in a batch."""
    config = chosen_for(bert, [{"text": "a b", "label": "xy"[i % 2]} for i in range(number)], tmp_path)
    assert config.train.epochs == epochs and config.data.rows == 16
    assert config.train.patience == (5 if epochs > 5 else None)
    assert config.data.held_out == 0.1 and config.train.eval_every == 1.0 and config.weights == "best"
    assert config.optimizer.schedule == Linear(
        peak_rate=1e-3, warmup_steps=0.1
    )  # 5e-5 for 768 features; these are a dozen


@pytest.mark.parametrize(("width", "rate"), [(4_096, 9.375e-6), (1_024, 3.75e-5), (768, 5e-5), (384, 2e-4), (64, 1e-3)])
def test_narrow_models_have_larger_rates(width: int, rate: float, tmp_path: Path):
    """By hand: of a quarter of the width a rate of sixteen, up to 1e-3; of four times the width a quarter."""
    assert choosing.rate_of(recipe_of(tmp_path, "rows.jsonl", as_json_lines(reviews(40))), width) == pytest.approx(rate)


def test_the_most_is_held_out_of_many_rows_and_nothing_of_data_with_parts(bert: str, tmp_path: Path):
    rows = reviews(21_000)
    assert chosen_for(bert, rows, tmp_path).data.held_out == 2_000 / 21_000
    other = JSONLines(path="other.jsonl", record=Classes())
    assert chosen_for(bert, rows[:40], tmp_path, eval=other, test=other).data.held_out == 0


@pytest.mark.slow
def test_all_but_a_thousandth_of_the_rows_is_read_whole(bert: str, tmp_path: Path):
    """Oracle: the tokenizer itself."""
    rows = [{"text": "a " * (1 + i % 9), "label": "xy"[i % 2]} for i in range(90)]
    config = chosen_for(bert, rows, tmp_path)
    longest = max(load(bert).text_model.length(row["text"]) for row in rows)
    assert longest <= config.data.max_source_length < longest + 8


def test_a_reranker_goes_on_with_its_head_and_its_template(bert: str, tmp_path: Path):
    """Rows are as long as the text of the template."""
    rows, start = [{"query": "a b", "positive": "a", "negatives": ["b", "c"]} for _ in range(40)], tmp_path / "start"
    plain = chosen_for(bert, rows, tmp_path, "rank")
    shutil.copytree(bert, start)
    objective = Reranking(pair_template="a b c a b c {query} a b {document} c")
    changed = dataclasses.replace(load_config(bert), model=plain.model, objective=objective)
    (start / "config.json").write_text(to_json(changed), encoding="utf-8")
    config = chosen_for(str(start), rows, tmp_path, "rank")
    assert isinstance(config.objective, Reranking) and config.objective.pair_template == objective.pair_template
    assert plain.train.init_fresh and not config.train.init_fresh
    assert config.data.max_source_length > plain.data.max_source_length


def test_a_head_of_other_labels_is_fresh(bert: str, tmp_path: Path):
    """A start with labels of its own keeps its head for these labels alone, whatever their number."""
    rows = reviews(40)
    config = chosen_for(bert, rows, tmp_path)
    assert config.train.init_fresh == ("pooler/classes/*",), "BERT has the dense layer of its pooler"
    for names, fresh in ((("good", "bad"), ()), (("no", "yes"), ("pooler/classes/*",))):
        start = dataclasses.replace(config, objective=Classification(classes=names))
        assert choosing.fresh(start, config.model, config.objective) == fresh
    of_words = dataclasses.replace(config.model, pooler=Pooler(token="each", activation=None, num_classes=2))
    assert choosing.fresh(config, of_words, TokenLabels(labels=("O", "X"), scheme="plain")) == ("pooler/*",)


def test_the_starts_own_data_is_not_taken_over(bert: str, tmp_path: Path):
    base = load_config(bert)
    other = dataclasses.replace(
        base.data, train=JSONLines(path="x"), eval=JSONLines(path="y"), store="z", held_out_seed=7
    )
    start = tmp_path / "start"
    shutil.copytree(bert, start)
    (start / "config.json").write_text(to_json(dataclasses.replace(base, data=other)), encoding="utf-8")
    data = chosen_for(str(start), reviews(40), tmp_path).data
    assert (data.eval, data.test, data.store, data.held_out_seed) == (None, None, None, 0)


ENCODERS = ("bert/model", "roberta/model", "distilbert/model", "modernbert/masked_lm", "eurobert/model")
ENCODERS += ("roformer/model", "nomic_bert/model", "megatron_bert/model", "roberta_prelayernorm/model", "electra/model")
TEXTS_ALONE = ("hunyuan/plain", "gemma3/plain")
DECODERS = ("gpt2/model", "llama/model", "mistral/window", "qwen2/window", "qwen3/plain", "gemma/plain", *TEXTS_ALONE)
"""Models without a head for classes, by the folders of the fixtures."""


@pytest.mark.parametrize(
    "label", quick([*ENCODERS, *DECODERS], ("roberta/model", "electra/model", "llama/model").__contains__)
)
def test_the_head_is_that_of_the_models_family(label: str, tmp_path: Path):
    """Oracle: the exporter names the family that the model is from, for classes of texts, and of words."""
    loaded = imported(label)
    rows = [reviews(4), [{"tokens": ["a", "b"], "ner_tags": ["O", "B-X"]}]]
    for number, of_task in enumerate(rows[:1] if label in TEXTS_ALONE else rows):
        recipe = recipe_of(tmp_path, f"{number}.jsonl", as_json_lines(of_task))
        data = DataConfig(max_source_length=8, max_target_length=8)
        config = Config(model=loaded.model, data=data, objective=recipe.objective, decode=loaded.decode)
        model = choosing.exported(recipe, config, loaded.family.model_type)
        systems = fitting_systems(dataclasses.replace(config, model=model), loaded.family.model_type)
        assert f"hf ({loaded.family.model_type})" in systems, systems


# The whole ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_from_rows_to_an_export_with_kills_between(tmp_path: Path, one_device: None, monkeypatch: pytest.MonkeyPatch):
    """Law: the same call continues, without the imported model and in another place too, and makes nothing twice.

    Oracle of the table: the predictions, counted by hand.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows, told, bert = reviews(120), list[str](), str(FIXTURES / "hf" / "minilm" / "hub_layout")
    settings = {"train.epochs": 2.0}
    with monkeypatch.context() as stopped:
        signals = iter([signal.SIGINT])
        stopped.setattr(loop, "judge", lambda *_: [signal.raise_signal(one) for one in signals])
        first = fit(bert, rows, "run", settings=settings)
    assert first.stopped and 0 < first.step < first.config.train.steps
    shutil.rmtree("cache")
    for step in ("scored_once", "confusion_once", "exported_once", "report_once"):
        with monkeypatch.context() as killed:
            killed.setattr(making, step, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                fit(bert, rows, "run", settings=settings)
    before = {file: file.stat().st_mtime_ns for file in Path("run", "checkpoints").rglob("*")}
    run = fit(bert, rows, "run", settings=settings, tell=told.append)
    assert {file: file.stat().st_mtime_ns for file in Path("run", "checkpoints").rglob("*")} == before
    assert run.config.train.epochs is None and not run.stopped
    scores = json.loads(Path("run/evaluations/test.json").read_bytes())
    assert scores["step"] == run.step and f"accuracy {scores['accuracy']:.4g}" in told[0]
    assert run.test_scores == scores and load("run").test_scores == scores
    test = list(run.config.data.source("test").open())
    predicted = [answer.label for answer in run.classify([pair.target for pair in test])]
    table = json.loads(Path("run", making.CONFUSION).read_bytes())
    assert table["classes"] == ["bad", "good"]
    for name, counts in zip(table["classes"], table["counts"], strict=True):
        of_class = [found for pair, found in zip(test, predicted, strict=True) if pair.label == name]
        assert counts == [of_class.count(one) for one in ("bad", "good")]
    architecture = json.loads(Path("run/export/config.json").read_bytes())["architectures"]
    assert architecture == ["BertForSequenceClassification"] and Path("run/report.html").is_file()
    assert "flaxformer-lite classify run" in told[-1]
    again = list[str]()
    fit(bert, rows, "run", settings=settings, tell=again.append)
    assert again == told
    Path("run").rename("moved")
    again.clear()
    fit(bert, rows, "moved", settings=settings, tell=again.append)
    assert [line.replace("moved", "run") for line in again] == told
    Path("moved").rename("run")
    longer = fit(bert, rows, "run", settings={"train.epochs": 3.0})
    assert longer.config.train.steps * 2 == run.config.train.steps * 3 and longer.test_scores is not None
    with pytest.raises(ValueError, match=r"train\.seed was 0 and is now 1\. Use another run folder"):
        fit(bert, rows, "run", settings={"train.seed": 1})
    with pytest.raises(
        ValueError, match=r"run was made of other data \(data: .* now\): give those again to continue it"
    ):
        fit(bert, rows[:-1], "run", settings={"train.epochs": 3.0})


def test_a_run_continues_with_the_settings_of_the_newest_call(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What was chosen for it stands, as far as the call names no other value; the training compares the two configs."""
    given = list[Config]()
    monkeypatch.setattr(making, "train", lambda config, folder: given.append(config) or SimpleNamespace(stopped=True))
    monkeypatch.setattr(RunFolder, "trained", property(lambda self: (self.path / "config.json").is_file()))
    for settings in ({"train.epochs": 2.0}, {"train.epochs": 7.0}, {}, {"train.steps": 90}):
        fit(bert, reviews(120), tmp_path / "run", settings=settings)
    first, longer, same, in_steps = given
    assert longer == dataclasses.replace(first, train=dataclasses.replace(first.train, epochs=7.0))
    assert same == first and (in_steps.train.epochs, in_steps.train.steps) == (None, 90)
    with pytest.raises(ValueError, match=r"made of other task \(task: not given before, regression now\)"):
        fit(bert, reviews(120), tmp_path / "run", task="regression")


def test_the_line_of_scores_has_the_figures_of_all_rows():
    """By hand: the metric of the best step is the first, and those of one type are left to the file."""
    scores = {
        "split": "test",
        "words": 9,
        "loss": 0.25,
        "accuracy": 0.75,
        "f1": 1 / 3,
        "accuracy_LOC": 0.5,
        "f1_LOC": None,
    }
    assert making.scores_in_words(scores, "f1") == "f1 0.3333  loss 0.25  accuracy 0.75"


def test_a_run_has_the_scores_of_its_own_step(bert: str, tmp_path: Path):
    run = dataclasses.replace(load(bert), folder=RunFolder(tmp_path), step=3)
    assert run.test_scores is None
    for step, scores in ((3, {"step": 3, "f1": 0.5}), (2, None)):
        write_json(tmp_path / TEST_SCORES, {"step": step, "f1": 0.5})
        assert run.test_scores == scores


def test_a_refused_call_leaves_nothing_that_another_is_refused_for(bert: str, tmp_path: Path):
    with pytest.raises(ValueError, match="no task reads them"):
        fit(bert, [{"id": 1, "body": "a"}], tmp_path / "run")
    with pytest.raises(ValueError, match=r"data.held_out is 0.1, which leaves none of the"):
        fit(bert, reviews(2), tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"start"}
    with pytest.raises(ValueError, match="row 1 is 'a': rows must be dicts"):
        fit(bert, ["a"], tmp_path / "run")  # type: ignore[list-item]


def test_a_model_without_a_tokenizer_is_refused_by_the_name_that_was_given(tmp_path: Path):
    folder = FIXTURES / "hf" / "bert" / "hub_layout"
    with pytest.raises(ValueError, match=rf"^{folder} has no tokenizer to read texts: add tokenizer.json"):
        fit(str(folder), reviews(40), tmp_path / "run")


def test_the_judgements_of_a_search_are_rows(tmp_path: Path):
    """By hand: a document of gain 0 is a negative; a query without an answer is no row."""
    (tmp_path / "qrels").mkdir()
    files = {
        "corpus.jsonl": as_json_lines([{"_id": "1", "text": "one"}, {"_id": "2", "title": "a", "text": "two"}]),
        "queries.jsonl": as_json_lines([{"_id": "x", "text": "first"}, {"_id": "y", "text": "second"}]),
        "qrels/test.tsv": table("query-id\tcorpus-id\tscore", "y\t2\t1"),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"qrels/train.tsv: no such file"):
        search_rows(str(tmp_path))
    rows = table("query-id\tcorpus-id\tscore", "x\t1\t2", "x\t2\t0", "y\t1\t0")
    (tmp_path / "qrels/train.tsv").write_text(rows, encoding="utf-8")
    assert search_rows(str(tmp_path)) == {
        "train": [{"query": "first", "positive": ["one"], "negative": ["a two"]}],
        "test": [{"query": "second", "positive": ["a two"], "negative": []}],
    }


def test_rows_of_other_programs_are_lines(tmp_path: Path):
    """Oracles: the tables themselves. A missing cell is null, and a class has its name."""
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    table = pandas.DataFrame({"text": ["a", "b"], "score": [1.5, None]})
    assert list(map(json.loads, as_json_lines(table).splitlines())) == [
        {"text": "a", "score": 1.5},
        {"text": "b", "score": None},
    ]
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    rows = datasets.Dataset.from_dict({"text": ["a"], "label": [1]}, features=features)
    assert json.loads(as_json_lines(rows)) == {"text": "a", "label": "good"}
