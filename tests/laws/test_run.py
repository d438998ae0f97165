"""Laws of `Run`, the face of a trained model. Oracle: Python's own list of its names and bases."""

import dataclasses

from flaxformer_lite.run import Run

MOST_NAMES = 60


def test_a_run_is_composed_and_can_be_read():
    """Law: it inherits from nothing, and has few public names, its fields included."""
    names = {name for name in dir(Run) if not name.startswith("_")} | {field.name for field in dataclasses.fields(Run)}
    assert Run.__bases__ == (object,) and len(names) <= MOST_NAMES, sorted(names)
