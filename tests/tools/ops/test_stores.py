"""Laws of stores that are made before a training; the command of several hosts: tests/cli/test_prepare.py."""

import dataclasses
from pathlib import Path

import pytest

from flaxformer_lite.base.console import Progress
from flaxformer_lite.tools.ops.stores import make_stores
from tests.support.experiments import tiny_config


def test_python_makes_the_store_of_each_source(tmp_path: Path):
    config = tiny_config()
    with Progress(1, silent=True) as progress:
        with pytest.raises(ValueError, match=r"data\.store is None: prepare needs all three; .*--data\.store"):
            make_stores(config, progress)
        config = dataclasses.replace(config, data=dataclasses.replace(config.data, store=str(tmp_path)))
        (folder,) = make_stores(config, progress)
    assert folder.is_relative_to(tmp_path) and any(folder.iterdir())
