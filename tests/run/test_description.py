"""The shape in a line, by hand; the five lines are tested with `repr` in test_run.py."""

import math
from pathlib import Path

import jax

from flaxformer_lite.run.description import best_score, describe_model
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_saved_params
from tests.support.experiments import tiny_config


def test_the_shape_in_a_line():
    config = tiny_config()
    count = sum(x.size for x in jax.tree.leaves(abstract_saved_params(config)))
    line = f"encoder of 2 layers and decoder of 2 layers, d_model 12, num_heads 3, {count:,} parameters"
    assert describe_model(config.model, abstract_saved_params(config)) == line


def test_the_best_score_is_a_number(tmp_path: Path):
    config, folder = tiny_config(), RunFolder(tmp_path)
    name = config.train.best_metric
    folder.append({"step": 2, "split": "eval", name: math.nan})
    assert best_score(folder, config) is None
    folder.append({"step": 4, "split": "eval", name: 1.5})
    assert best_score(folder, config) == (name, 1.5, 4)
