"""Names the new place of a room that moved, for whoever imports the old one."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "data": "files.data (sources, DataConfig; tokenize in files.data.reading) and core.data (Dataset, records)",
    "inference": "core.search (DecodeConfig; Decoder in core.search.decoder) and files.metrics (MetricConfig)",
    "model": "core.model",
    "objectives": "core.objectives",
    "optim": "core.optim",
    "parallel": "core.parallel",
    "text": "files.text (SentencePiece, FromRun, chats, tables) and core.text (Tokenizer, Characters, Bytes, Languages)",
    "training.runners": "core.runners",
    "training.step": "core.step",
    "base.bounds": "core.base.bounds",
    "base.tree_paths": "core.base.tree_paths",
}
"""New places by the names of old ones, without the package's."""


def new_place(module: str) -> str | None:
    """Returns a sentence on the new place of an old module, or of one in an old room; None: it is in no old place."""
    package, _, path = module.partition(".")
    rooms = [room for room in MOVED if f"{path}.".startswith(f"{room}.")]
    if package != "flaxformer_lite" or not rooms:
        return None
    return f"{module} has moved: import it from flaxformer_lite.{MOVED[rooms[0]]}"


class MovedRooms:
    """A finder of modules that finds none: it names the new place of an old one."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Raises: ModuleNotFoundError for an old place."""
        if (reason := new_place(name)) is not None:
            raise ModuleNotFoundError(reason, name=name)
        return None


def name_new_places() -> None:
    """Lets an import of an old place end in one message; first, as a folder of compiled files may be left in the old place."""
    sys.meta_path.insert(0, MovedRooms)
