"""Oracle: paths written out by hand."""

from typing import NamedTuple

from flaxformer_lite.core.base.tree_paths import leaves_by_path


class State(NamedTuple):
    step: int
    params: dict


def test_names_keys_and_indices_are_joined_by_slashes() -> None:
    tree = State(3, {"head": {"kernel": 5}, "layers": [7, None, (11,)]})
    found = {"step": 3, "params/head/kernel": 5, "params/layers/0": 7, "params/layers/2/0": 11}
    assert leaves_by_path(tree) == found and list(leaves_by_path(tree)) == list(found)
