"""Hand-worked cases of what Orbax may log. Its manager, handlers and policy: test_checkpoints.py."""

import logging

import pytest

from flaxformer_lite.base.console import Quiet


@pytest.mark.parametrize(
    ("path", "level", "passes"),
    [
        ("/packages/orbax/checkpoint/a.py", logging.WARNING, False),
        ("/packages/orbax/checkpoint/a.py", logging.ERROR, True),
        ("/packages/jax/a.py", logging.INFO, True),
    ],
)
def test_only_errors_of_orbax_pass_and_lose_their_tracebacks(path: str, level: int, passes: bool):
    record = logging.LogRecord("absl", level, path, 1, "message", None, (ValueError, ValueError(), None))
    assert Quiet("orbax").filter(record) == passes
    assert (record.exc_info is None) == ("orbax" in path)


def test_an_error_of_orbax_is_one_short_line_without_its_traceback():
    path = "/packages/orbax/saving.py"
    record = logging.LogRecord(
        "absl", logging.ERROR, path, 1, "failed: %s", ("x" * 5000,), (ValueError, ValueError("x"), None)
    )
    assert Quiet("orbax").filter(record)
    assert record.getMessage() == "failed: " + "x" * 292 and record.exc_info is None
