"""The command that a run answers. Oracles: by hand, for a config of each objective; the checks of the tasks themselves."""

import dataclasses
import re
from collections.abc import Callable
from functools import partial

import pytest

from flaxformer_lite.config import load_config
from flaxformer_lite.core.model import Estimator, Pooler
from flaxformer_lite.core.objectives import AnswerSpans, CausalLM, MaskedLM, Regression, TokenLabels
from flaxformer_lite.run import Run
from flaxformer_lite.tasks import tasks
from flaxformer_lite.tasks.commands import OF_RECORDS, use_command
from tests.support.text_runs import DECODER, LANGUAGE_MODEL, MODEL, text_run, token_run


def test_records_have_the_command_of_the_task_that_reads_them():
    assert {task.reads: task.name for task in tasks() if task.reads != "texts"} == OF_RECORDS


def test_a_run_has_a_command():
    """By hand, for a config of each objective; vectors that a model has besides do not count where its texts have classes."""
    commands = {
        "transformer_base_wmt14": "translate", "gpt2_small": "generate", "bert_base": "fill-mask", "t5_1_1_base": "evaluate",
        "classify_docstrings": "classify", "rate_translations": "classify", "label_code_names": "label",
        "search_topics": "embed", "chat_dates": "generate",
    }  # fmt: skip
    assert {name: use_command(load_config(name)) for name in commands} == commands
    classifier, search = load_config("classify_docstrings"), load_config("search_topics").model
    model = dataclasses.replace(classifier.model, sentence_embedding=search.sentence_embedding)
    assert use_command(dataclasses.replace(classifier, model=model)) == "classify"


METRICS = {
    "comet": ({"head": None, "pooler": None, "estimator": Estimator(widths=(5,))}, Regression()),
    "metricx": (
        {"head": None, "pooler": Pooler(num_classes=1)},
        Regression(with_reference="{translation} {reference}"),
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_of_translations_is_asked_by_evaluate(name: str):
    """Law: whatever is asked of a metric that it cannot do, the message names `evaluate --metric`."""
    parts, objective = METRICS[name]
    run, refusals = text_run(dataclasses.replace(MODEL, **parts), objective=objective), list[str]()
    for check in (*(partial(task.check, run.text_model) for task in tasks()), run.generator.check):
        try:
            check()
        except ValueError as error:
            refusals.append(str(error))
    assert use_command(run.config) == "evaluate --metric" and len(refusals) > 2
    assert all(re.search("(use|or) `?evaluate --metric", line) for line in refusals), refusals


@pytest.mark.parametrize(
    ("make", "command"),
    [
        (text_run, "classify"),
        (partial(token_run, TokenLabels(labels=("O", "B-A", "I-A"))), "label"),
        (partial(token_run, AnswerSpans()), "answer"),
        (partial(text_run, dataclasses.replace(MODEL, pooler=None), objective=MaskedLM(mask_token=30)), "embed"),
        (
            partial(text_run, dataclasses.replace(MODEL, **LANGUAGE_MODEL), objective=MaskedLM(mask_token=30)),
            "fill-mask",
        ),
        (partial(text_run, dataclasses.replace(MODEL, **DECODER), objective=CausalLM()), "generate"),
    ],
)
def test_a_refusal_names_a_command_that_the_run_answers(make: Callable[[], Run], command: str):
    """Law: whatever is asked of a run that cannot do it, the message names a command that it can do."""
    run, named = make(), list[str]()
    checks = {task.name: partial(task.check, run.text_model) for task in tasks()}
    checks |= {"translate": run.translator.check, "generate": run.generator.check}
    checks[command]()
    for check in checks.values():
        try:
            check()
        except ValueError as error:
            named += re.findall(r": use (?!a )`?([a-z-]+)", str(error))
    assert {*named} == {command} and len(named) > 2
