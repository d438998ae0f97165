"""The words of config.json that a release of transformers reads, by its source, of which nothing is imported."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

EVERY = "every"
"""The name of the line for all families."""
SHARED = (
    *("activations", "configuration_utils", "initialization", "masking_utils", "modeling_layers"),
    *("modeling_attn_mask_utils", "modeling_rope_utils", "modeling_utils", "pytorch_utils"),
    *("generation/configuration_utils", "integrations/sdpa_attention"),
)
"""The modules that all models share, as far as a release has them."""
CONFIGS_OF_MODELS = r"(config|rope_parameters(_dict)?|rope_scaling)(\[\w+\])?$"
CONFIGS = rf"{CONFIGS_OF_MODELS}|^(self|kwargs)$"
"""What code calls a config, or a group of it; in the classes of configs themselves also the words that they are made of."""


def read_by(file: Path) -> Iterator[str]:
    """The words that a file reads of what it calls a config, and the fields of its classes of configs."""
    of_configs = file.name.startswith(("configuration_", "modeling_rope"))
    configs = CONFIGS if of_configs else CONFIGS_OF_MODELS

    def is_config(node: ast.expr) -> bool:
        return bool(re.search(configs, ast.unparse(node)))

    tree: ast.AST = ast.parse(file.read_text("utf-8"))
    if file.parent.name == "generation":  # the others of this file are no parts of a config.json
        tree = next(
            node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "GenerationConfig"
        )
    methods = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_config(node.value) and node not in methods:
            yield node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and is_config(node.value):
            yield str(node.slice.value)
        elif isinstance(node, ast.Call):
            by_name = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
            by_key = isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop", "setdefault")
            source = node.args[0] if by_name and node.args else getattr(node.func, "value", None) if by_key else None
            if source is not None and is_config(source):
                yield from (str(word.value) for word in node.args[int(by_name) :][:1] if isinstance(word, ast.Constant))
        elif isinstance(node, ast.AnnAssign) and of_configs and "ClassVar" not in ast.unparse(node.annotation):
            yield ast.unparse(node.target)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "attribute_map":
            yield from (str(key.value) for key in getattr(node.value, "keys", ()) if isinstance(key, ast.Constant))


def words(library: Path, family: str) -> set[str]:
    """The words that a release reads of a family, or of `every`; none of a family that it does not have."""
    files = [library / f"{module}.py" for module in SHARED]
    if family != EVERY:
        name = family.removesuffix("_text").replace("-", "_")
        models = library / "models"
        # of the first releases, and of the later ones: a folder may hold the models of texts beside others
        places = (library, models / name, models / name.removesuffix("_text"))
        files = [place / f"{kind}_{name}.py" for place in places for kind in ("configuration", "modeling")]
    found = {word for file in files if file.is_file() for word in read_by(file)}
    return {word for word in found if word.isidentifier() and word[0] != "_" and not hasattr(dict, word)}
