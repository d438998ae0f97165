"""Names of models that are not runs: a model of the Hugging Face hub, or a folder that its library wrote."""

import contextlib
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

from flaxformer_lite.base.remote_files import is_url

HUB = "hf://"
FORM = re.compile(r"(hf://)?(\w[\w.-]*/\w[\w.-]*)(?:@([\w./-]+))?", re.ASCII)
RUNS = "runs"
"""The default folder of runs: a missing run in this folder is not taken for a model of the hub."""
ORGANISATIONS = {
    "google-bert": ("bert-",),
    "openai-community": ("gpt2",),
    "FacebookAI": ("roberta-", "xlm-roberta-"),
    "distilbert": ("distilbert-", "distilroberta-", "distilgpt2"),
    "google-t5": ("t5-",),
    "albert": ("albert-",),
}
"""The organisations of models that are known by names without one, by the beginnings of these names."""
CONFIGS = ("config.json", "adapter_config.json")
"""The files of settings of a folder of the library, and of PEFT."""


class HubName(NamedTuple):
    repo: str
    """ORG/NAME."""
    revision: str | None
    """A branch, a tag or a commit; None: the main branch."""

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def full_name(name: str) -> str:
    """Returns the name on the hub of a model that is known without its organisation; ORG/NAME for another name."""
    for owner, beginnings in ORGANISATIONS.items():
        if name.startswith(beginnings):
            return f"{owner}/{name}"
    return "ORG/NAME"


def hub_name(text: str) -> HubName | None:
    """Returns the model that `text` names on the hub; None if it is a path. A path that exists is never a name.

    Raises: ValueError if `text` could be either: ORG is a folder here, without NAME in it.
    """
    match = FORM.fullmatch(text)
    if match is None or (match[1] is None and os.path.lexists(text)):
        return None
    folder = Path(text).parts[0]
    if match[1] is None and Path(folder).is_dir():
        raise ValueError(f"{text} is not in the folder {folder}; a model of that name on the hub is hf://{text}")
    return HubName(match[2], match[3])


def is_foreign(name: str) -> bool:
    """Returns whether a name in the place of a run stands for a model that must be imported first.

    That is a name on the hub, or a folder whose config is not that of a run.
    """
    if name.startswith(HUB) or is_url(name):
        return name.startswith(HUB)
    folder = Path(name)
    if not os.path.lexists(name):
        return FORM.fullmatch(name) is not None and folder.parts[0] != RUNS and not Path(folder.parts[0]).is_dir()
    if (folder / "checkpoints").is_dir():
        return False
    for config in CONFIGS:
        with contextlib.suppress(OSError, ValueError):  # of a damaged config: the reader of runs says so
            settings = json.loads((folder / config).read_bytes())
            return isinstance(settings, dict) and not {"model", "train"} <= settings.keys()
    return False
