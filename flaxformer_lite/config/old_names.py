"""Settings under the names that older releases wrote into config.json. They are read for this release and never written.

Whoever renames a setting adds its old path to a table here; paths have no kinds of variants. The command line names the
new setting to those who type the old one.
"""

from typing import Any

from flaxformer_lite.base.console import warn

RENAMED = {
    "model.attention.head_norm": "model.attention.qk_norm",
    "model.positions.share": "model.positions.fraction",
    "model.uncounted_id": "model.position_padding_id",
    "model.window_positions.share": "model.window_positions.fraction",
    "objective.mask_share": "objective.mask_rate",
    "train.micro_batches": "train.num_micro_batches",
    "model.decoder_num_heads": "model.decoder.num_heads",
    "model.decoder_d_ff": "model.decoder.d_ff",
    "model.attention_window": "model.sliding_window.size",
    "model.window_layers": "model.sliding_window.layers",
    "model.window_positions": "model.sliding_window.positions",
}
"""Old path → new path, applied one after the other. Where the tree lacks the value that a setting became a field of, such as
`model.decoder`, it is made; it is None if all of its fields are."""

MERGED: dict[str, dict[str, Any]] = {"decode.eos_ids": {"decode.eos_id": 3, "decode.more_eos_ids": []}}
"""Settings that became one list: the list's path → old path of each → its old default. None adds nothing to the list."""

CHANGED: dict[str, tuple[str, dict[Any, Any]]] = {"data.tokenized": ("metrics.bleu_tokenizer", {True: "none"})}
"""Old path → new path, and the new value of old ones. Other old values are the default of today."""

REMOVED: dict[str, tuple[Any, str]] = {
    "train.coordinator": (None, "set it with the option --coordinator"),
    "train.num_processes": (None, "set it with the option --num-processes"),
    "train.process_id": (None, "set it with the option --process-id"),
    "train.join_seconds": (300, "set it with the option --join-seconds"),
}
"""Old path → the old default, and what takes the place of the setting. Other values are left out with a warning."""


def modernize(tree: dict[str, Any], name: str = "config.json") -> dict[str, Any]:
    """Changes the JSON tree of an older release, in place, to the one of this release; returns it."""
    for old, (default, remedy) in REMOVED.items():
        if (value := _pop(tree, old)) not in (None, default):
            warn(f"{name}: {old} {value!r} was left out: {remedy}")
    for old, new in RENAMED.items():
        if _has(tree, old) and not _has(tree, new):
            _put(tree, new, _pop(tree, old))
    for new, defaults in MERGED.items():
        if any(_has(tree, old) for old in defaults) and not _has(tree, new):
            parts = [_pop(tree, old) if _has(tree, old) else default for old, default in defaults.items()]
            _put(
                tree,
                new,
                [i for part in parts if part is not None for i in (part if isinstance(part, list) else [part])],
            )
    for old, (new, values) in CHANGED.items():
        if _has(tree, old) and not _has(tree, new) and (value := _pop(tree, old)) in values:
            _put(tree, new, values[value])
    return tree


def renamed_setting(path: str) -> str | None:
    """Returns the path that a setting of an older release has now; None where there never was one, or it was removed."""
    merged = {old: new for new, olds in MERGED.items() for old in olds}
    changed = {old: new for old, (new, _) in CHANGED.items()}
    now = path
    for old, new in (RENAMED | merged | changed).items():
        if now == old or now.startswith(f"{old}."):
            now = new + now[len(old) :]
    return None if now == path else now


def _parent(tree: Any, path: str) -> tuple[Any, str]:
    """Returns the node that holds the last part of a path, None where there is no such node, and that part."""
    *parents, leaf = path.split(".")
    for part in parents:
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree if isinstance(tree, dict) else None, leaf


def _has(tree: Any, path: str) -> bool:
    node, leaf = _parent(tree, path)
    return node is not None and leaf in node


def _pop(tree: Any, path: str) -> Any:
    node, leaf = _parent(tree, path)
    return None if node is None else node.pop(leaf, None)


def _put(tree: Any, path: str, value: Any) -> None:
    """Sets a field; where the value that it belongs to is missing or None, makes that value for it, unless it is None too."""
    owner, leaf = path.rsplit(".", 1)
    node, name = _parent(tree, owner)
    if node.get(name) is None:
        node[name] = None if value is None else {}
    if isinstance(node[name], dict):
        node[name][leaf] = value
