import dataclasses
from typing import Literal

import jax
import pytest

from flaxformer_lite.training import task
from tests.support.experiments import tiny_config


@pytest.mark.parametrize(
    ("setting", "here"), [(None, None), ("bfloat16", "bfloat16_values"), ("bfloat16_values", "bfloat16_values")]
)
def test_a_cpu_without_products_of_bfloat16_multiplies_their_values(
    setting: Literal["bfloat16", "bfloat16_values"] | None, here: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(task, "multiplies_bfloat16", lambda: False)
    config = tiny_config()
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, matmul_dtype=setting))
    assert task.train_task(config).model.config == dataclasses.replace(config.model, matmul_dtype=here)


def test_a_processor_with_them_gets_the_setting_as_it_stands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 0))
    config = dataclasses.replace(tiny_config().model, matmul_dtype="bfloat16")
    assert task.with_products_of_this_processor(config) == config
