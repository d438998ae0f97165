"""Paths of the leaves of a tree of arrays: `decoder/layers/attention/query/kernel`."""

from typing import Any

import jax


def leaf_path(keys: tuple[Any, ...]) -> str:
    """Returns the names of JAX's key path, joined by slashes."""
    return jax.tree_util.keystr(keys, simple=True, separator="/")


def leaves_by_path(tree: object) -> dict[str, Any]:
    return {leaf_path(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}
