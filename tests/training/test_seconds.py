"""Seconds of a table, by hand: tiny and MiniLM, which were measured; layers unrolled; a second stack."""

from dataclasses import replace

import pytest

from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.training.seconds import cost_of
from tests.support.experiments import tiny_config, with_train

TINY = ModelConfig(vocab_size=8000, d_model=128, d_ff=512, num_heads=4, num_encoder_layers=4, num_decoder_layers=0)
MINILM = replace(TINY, d_model=384, d_ff=1536, num_heads=12, num_encoder_layers=6)


@pytest.mark.parametrize(("model", "measured"), [(TINY, 35.8e-3 / 512), (MINILM, 443e-3 / 512)], ids=["tiny", "MiniLM"])
def test_seconds_of_a_position_are_those_that_were_measured(model: ModelConfig, measured: float):
    """Oracle: the seconds of a step of 16 rows of 32 on one core of an EPYC, within a fifth."""
    plain = with_train(tiny_config(), text_metrics=())
    config = replace(plain, model=model, data=replace(plain.data, train=None, eval=None))
    assert cost_of(config).of_position == pytest.approx(measured, rel=0.2)


def test_another_stack_and_each_unrolled_layer_cost_more_to_compile():
    config = with_train(tiny_config(), steps=77)
    cost = cost_of(config)
    assert (cost.of_length, cost.steps, cost.epochs, cost.multiple) == (8.0, 77, None, 2)
    unrolled = replace(config, model=replace(config.model, scan_unroll=5))
    assert cost_of(unrolled).of_length == pytest.approx(8.0 * 1.2), "it has two layers, so one further one"
