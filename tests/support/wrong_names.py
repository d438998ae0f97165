"""A wrong name of a setting, in all places where a user may write it."""

import functools
import json
import operator
from pathlib import Path

import pytest

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.config.options import apply_options, as_option
from flaxformer_lite.config.serialize import from_json, to_json


def messages_on(config: Config, group: str, name: str, imported: str, call: str, folder: Path) -> tuple[str, str, str]:
    """Returns the messages on a name in a group of settings: as an option, in JSON, and in line 5 of a config file.

    imported, call: the import of the file, and the call of a class with the name.
    """
    with pytest.raises(ValueError) as typed:
        apply_options(config, [as_option(f"{group}.{name}"), "1"])
    tree = json.loads(to_json(config))
    functools.reduce(operator.getitem, group.split("."), tree)[name] = 1
    with pytest.raises(ValueError) as read:
        from_json(json.dumps(tree))
    file = folder / "mine.py"
    file.write_text(f"{imported}\n\n\ndef get_config():\n    return {call}\n")
    with pytest.raises(ValueError) as run:
        load_config(str(file))
    return str(typed.value), str(read.value), str(run.value)
