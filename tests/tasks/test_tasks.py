"""Laws of all tasks together: each has its command, JSON for its answers, and cells for its columns. Oracles: the lists, json."""

import argparse
import dataclasses
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

import flaxformer_lite
import flaxformer_lite.tasks
from flaxformer_lite.cli.commands.task import TaskAnswering, TaskCommand
from flaxformer_lite.cli.options import typed
from flaxformer_lite.core.objectives import AnswerSpans, MaskedLM, TokenLabels
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.engine.texts import check_list
from flaxformer_lite.tasks import TASK_FOLDERS, tasks
from flaxformer_lite.tasks.task import Task, TextModel, plain
from tests.support.served import FakePredictors, runs
from tests.support.text_runs import MODEL, of_tokens, text_run

TEXT = "a[MASK]b"
TASKS = tasks()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[TextModel]:
    """Models without a computation; each task is done by one of them."""
    whole = runs(tmp_path_factory.mktemp("runs"))["texts"]
    words, places = TokenLabels(labels=("O", "B-A", "I-A")), AnswerSpans()
    configs = {0: whole.config, 3: of_tokens(whole.config, words), 2: of_tokens(whole.config, places)}
    return [
        dataclasses.replace(
            dataclasses.replace(whole, config=config).text_model, batch_predictors=FakePredictors(classes)
        )
        for classes, config in configs.items()
    ]


def fitting(task: Task[Any, Any], models: list[TextModel]) -> TextModel:
    """Returns the model that does a task."""

    def does(model: TextModel) -> bool:
        try:
            task.check(model)
        except ValueError:
            return False
        return True

    (found,) = filter(does, models)
    return found


def line_of(task: Task[Any, Any], of_objects: bool) -> str:
    """Returns a line in which something is asked."""
    if not of_objects:
        return TEXT
    hints = task.asked.__annotations__
    return json.dumps({name: [TEXT, TEXT] if "list" in str(hints[name]) else TEXT for name in task.asked._fields})


def test_each_name_has_its_lines_and_one_task():
    assert sorted(task.name for task in TASKS) == sorted(TASK_FOLDERS)
    folders = {path.parent.name for path in Path(flaxformer_lite.tasks.__file__).parent.glob("*/lines.py")}
    assert folders == set(TASK_FOLDERS.values())
    for name, folder in TASK_FOLDERS.items():
        module = importlib.import_module(f"flaxformer_lite.tasks.{folder}.lines")
        assert module.__doc__ and module.Lines.verb and module.Lines.doing, name


USERS = {
    "answer": set(),
    "classify": {"tasks.rank"},
    "embed": {"tasks.rank", "tasks.rate", "tools.serve"},
    "fill_mask": {"tools.serve"},
    "label": set(),
    "rank": {"tasks.rate"},
    "rate": set(),
}
"""For each task what names it, besides itself, the list of all tasks, and the room `run`, which has a method for it."""


def test_a_task_is_named_by_few():
    """Law: what must change with a task is in its folder; a use of a task from elsewhere is written down above."""
    package, found = Path(flaxformer_lite.__file__).parent, {name: set[str]() for name in USERS}
    for path in package.rglob("*.py"):
        folder = ".".join(path.relative_to(package).parts[:2])
        for name in re.findall(r"flaxformer_lite\.tasks\.(\w+)\.", path.read_text(encoding="utf-8")):
            if not folder.startswith("run.") and folder not in ("tasks.__init__.py", f"tasks.{name}"):
                found[name].add(folder)
    assert found == USERS


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_answers_are_json_and_have_a_cell_for_each_column(task: Task[Any, Any], models: list[TextModel]):
    model, parser, command = fitting(task, models), argparse.ArgumentParser(), TaskCommand(task.name)
    command.add_arguments(parser)
    form = typed(command.lines, parser.parse_args(["run"]))
    assert form.task(task) == task, "the command's default options are those of the task"
    assert form.by_engine == task.by_engine
    read = form.read([line_of(task, form.of_objects)] * (form.texts or 1))
    asked = form.asked(read)
    assert not task.refusal(model, asked) and min(task.lengths(model, asked)) > 0 and task.count(asked) > 0
    (answer,) = task.answers(model, [asked], warn=lambda line: None)
    assert json.loads(json.dumps(plain(answer), allow_nan=False)) == plain(answer)
    answering = TaskAnswering(model, task, form)
    written = answering.written(0, (read, answer))
    assert written and all(len(cells) == max(len(answering.columns), 1) for cells in written)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_one_string_in_place_of_a_list_is_refused(task: Task[Any, Any], models: list[TextModel]):
    with pytest.raises(ValueError, match="is one string, 'abc': pass a list of strings"):
        task.answers(fitting(task, models), "abc")


@pytest.mark.parametrize(
    ("changes", "method", "words"),
    [
        ({"sentence_embedding": None}, "embed", r"^model\.sentence_embedding is None, so the run nowhere makes no vec"),
        ({"pooler": None}, "classify", r"^model\.pooler has no classes \(model\.pooler\.num_classes\), so the run no"),
        ({"pooler": Pooler()}, "classify", r"^model\.pooler has no classes"),
        ({"head": None}, "fill_mask", r"^model\.head is None, so the run nowhere cannot fill masks"),
        (
            {"num_decoder_layers": 1, "num_token_types": 0, "num_encoder_layers": 0},
            "fill_mask",
            r"^model\.num_decoder_layers is 1, so the run nowhere cannot fill masks",
        ),
        ({"num_decoder_layers": 1}, "embed", r"^the model has an encoder and a decoder .*, but the run nowhere needs"),
        ({}, "fill_mask", r"^the tokenizer of nowhere has no mask id"),
    ],
)
def test_a_model_without_the_part_is_refused_with_its_setting(changes: dict, method: str, words: str):
    run = text_run(dataclasses.replace(MODEL, **changes))
    with pytest.raises(ValueError, match=words) as caught:
        getattr(run, method)(["[MASK]"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["embed", "classify", "fill_mask", "label"])
def test_a_run_refuses_one_string_in_place_of_a_list(method: str):
    run = text_run(objective=MaskedLM(mask_token=30)) if method == "fill_mask" else text_run()
    with pytest.raises(ValueError, match=r"^texts is one string, 'abc': pass a list"):
        getattr(run, method)("abc")
    with pytest.raises(ValueError, match=r"^texts is \[3\]: it must be a list of strings"):
        check_list("texts", [3])
