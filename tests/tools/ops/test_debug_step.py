"""Oracle: the rows that the loop has written, and a NaN put into a batch by hand."""

import dataclasses
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data.dataset import Dataset, draw_by_example
from flaxformer_lite.core.model.norms import unit_length
from flaxformer_lite.tools.ops.debug_step import debug_step, first_nan
from flaxformer_lite.training.loop import train
from tests.support.experiments import rows, tiniest_config, use_one_device, with_train


def test_the_first_nan_is_named_by_the_operation_and_the_line_that_made_it():
    """A vector with an infinity has an infinite length, of which the inverse is 0: 0 * infinity is the first NaN."""
    operation = first_nan(lambda: jnp.sin(unit_length(jnp.array([[1.0, jnp.inf]]))))
    assert "mul" in operation and "norms.py" in operation
    assert first_nan(lambda: unit_length(jnp.ones((1, 2)))).startswith("none")


@pytest.mark.slow
def test_a_step_is_repeated_exactly_and_its_first_nan_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Batch 5 has a NaN among its weights, so step 6 is skipped, and step 7 has the loss of its row bit for bit."""
    use_one_device(monkeypatch)
    original = Dataset.batch

    def spoilt(self: Dataset, step: int, *rest: object) -> object:
        batch = original(self, step, *rest)
        if step != 5 or self.draw is draw_by_example:
            return batch
        return batch._replace(weights=np.where(batch.weights > 0, np.float32("nan"), batch.weights))

    monkeypatch.setattr(Dataset, "batch", spoilt)
    tiny = with_train(tiniest_config(), steps=8, log_every=1, text_metrics=())
    config = dataclasses.replace(tiny, data=dataclasses.replace(tiny.data, eval=None))
    train(config, tmp_path / "run")
    written = {row["step"]: row["loss"] for row in rows(tmp_path / "run")}
    assert written[6] is None
    numbers, parameters, gradients = debug_step(config, tmp_path / "run", 7)
    assert numbers.startswith(f"step 7, from checkpoint 4, reads batch 6: loss {written[7]}, norm")
    assert parameters.endswith("none") and gradients.endswith("none")
    numbers, parameters, _, first = debug_step(config, tmp_path / "run", 6)
    assert "reads batch 5: loss nan" in numbers and parameters.endswith("none")
    for step in (0, 9):
        with pytest.raises(ValueError, match=f"step is {step}: the run has the steps 1 to 8"):
            debug_step(config, tmp_path / "run", step)
    with pytest.raises(ValueError, match="in one process with"):
        debug_step(with_train(config, runner="pmap"), tmp_path / "run", 7)
    assert first.startswith("the first NaN: invalid value (nan) encountered in ") and "losses.py" in first
