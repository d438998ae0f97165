"""Oracle: the words that the end of a training has, by hand."""

import dataclasses
from unittest.mock import Mock

import pytest

from flaxformer_lite.training.summary import describe_weights
from tests.support.experiments import tiny_config, with_train

NO_TEXT = with_train(tiny_config(), text_metrics=())
BEST_IS_10 = "; the best by loss is step 10"


@pytest.mark.parametrize(
    ("weights", "changes", "best", "said"),
    [
        ("last", {}, 10, f"step 12{BEST_IS_10}, which --weights best uses"),
        ("last", {"keep_best": 0}, 10, f"step 12{BEST_IS_10}"),
        ("last", {}, 12, "step 12, also the best by loss"),
        ("last", {}, None, "step 12"),
        ("best", {}, 10, "step 10"),
        ("ema", {}, 12, "the moving average at step 12; the best by loss is step 12, which --weights best uses"),
        ("average:2", {}, 10, f"the mean of steps 10, 12{BEST_IS_10}, which --weights best uses"),
        ("average:1", {}, None, "step 12"),
    ],
)
def test_the_end_says_which_weights_commands_use_and_which_are_the_best(weights, changes, best, said: str):
    """Oracle: by hand, for checkpoints of steps 8, 10 and 12."""
    checkpoints = Mock(latest=lambda: 12, best=lambda: best, newest_regular=lambda n: [12, 10, 8][:n])
    config = dataclasses.replace(with_train(NO_TEXT, **changes), weights=weights)
    assert describe_weights(config, checkpoints) == f"commands use weights {weights!r}: {said}"
    nothing = Mock(latest=lambda: 12, best=lambda: None)
    assert "'best', but no checkpoint was" in describe_weights(dataclasses.replace(NO_TEXT, weights="best"), nothing)
