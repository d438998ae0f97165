"""Devices that do not fit, and a schedule of another length, by hand. Restoring, warm starts and other data: test_loop.py."""

import dataclasses

import pytest

from flaxformer_lite.core.optim import Cosine, OptimizerConfig
from flaxformer_lite.training.setup import describe_length, mesh_for
from tests.support.experiments import tiny_config, with_train


def test_rows_that_the_devices_do_not_divide_are_refused():
    assert mesh_for(tiny_config()).size == 8
    with pytest.raises(ValueError, match=r"data\.rows_multiple is 8, which 8 devices with 2 micro-batches each"):
        mesh_for(with_train(tiny_config(), num_micro_batches=2))


def test_a_run_that_is_made_longer_is_told_of_its_schedule():
    """Oracle: by hand: half a cosine over 12 steps has come to 0; over 24 it is at (1 + cos(12 pi / 23)) / 2 of 0.01."""
    constant = tiny_config()
    cosine = dataclasses.replace(constant, optimizer=OptimizerConfig(schedule=Cosine(peak_rate=1e-2)))
    assert describe_length(cosine, with_train(cosine, eval_every=7), 12) == ""
    assert describe_length(constant, with_train(constant, steps=24), 12) == "", "its rates do not depend on the length"
    assert describe_length(cosine, with_train(cosine, steps=24), 12) == (
        "; train.steps was 12 and is now 24: the learning rate continues with 4.66e-03, on a schedule of that length"
    )
