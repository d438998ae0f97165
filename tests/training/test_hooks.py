"""Laws of hooks, of what is refused as one and of who calls them; test_extending.py trains with some."""

import json
from unittest.mock import Mock

import pytest

from flaxformer_lite.config.options import apply_options
from flaxformer_lite.config.outside import import_options
from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.training import Hook, TrainingRun
from flaxformer_lite.training.hooks import Hooks
from flaxformer_lite.training.signals import StopRequest
from tests.support.experiments import tiniest_config, with_train

SHORT = tiniest_config()


def test_what_is_no_hook_is_refused():
    with pytest.raises(ValueError, match=r"train\.hooks has 'mail': a hook must be a frozen dataclass with the base"):
        with_train(SHORT, hooks=("mail",))
    with pytest.raises(ValueError, match=r"^train\.hooks has 'mail': a hook must be a frozen dataclass"):
        apply_options(SHORT, ["--train.hooks", "mail"])


def test_what_is_no_hook_ends_the_training_before_it_begins():
    with pytest.raises(ValueError, match="hooks has <built-in function print>: a hook must be a value of a class"):
        Hooks([print], True, StopRequest())  # type: ignore[list-item]


def test_only_a_training_needs_the_class_of_a_hook():
    """Law: a run is read without it, to the same config.json; a training that lacks it says what to import."""
    saved = '"hooks": [{"to": "a@b.c", "kind": "mine:NeverImported"}]'
    text = json.dumps(json.loads(to_json(SHORT).replace('"hooks": []', saved)))
    assert saved in text
    config = from_json(text)
    assert json.loads(to_json(config)) == json.loads(text)
    assert import_options(config) == ""
    with pytest.raises(ValueError, match=r"^train\.hooks\.0\.kind is 'mine:NeverImported': .* add --import FILE\.py"):
        Hooks(config.train.hooks, True, StopRequest())  # type: ignore[arg-type]


class Counts(Hook):
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def on_start(self, run: TrainingRun) -> None:
        self.calls += 1


class Everywhere(Counts):
    all_processes = True


def test_the_other_processes_call_the_hooks_of_all_only():
    """Law: of several processes the first one calls all hooks, each of the others those that say so."""
    hooks = [Counts(), Everywhere()]
    for is_first in (True, False):
        Hooks(hooks, is_first, StopRequest()).on_start(Mock(step=0))
    assert [hook.calls for hook in hooks] == [1, 2]
