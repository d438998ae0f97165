"""A run that predicts for whole texts."""

import pytest

from flaxformer_lite.run import Run
from tests.support.text_runs import text_run


@pytest.fixture(scope="module")
def run() -> Run:
    return text_run()
