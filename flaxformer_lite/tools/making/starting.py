"""The start of a command that makes a run: the model that it starts from, and the folder that an earlier call began."""

import json
from collections.abc import Mapping
from pathlib import Path

from flaxformer_lite.base.console import note
from flaxformer_lite.base.model_names import is_foreign
from flaxformer_lite.base.remote_files import is_url
from flaxformer_lite.config.differences import changed
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.interop.loading import imported


def run_path(name: str) -> str:
    """Returns the run folder, or the URL of one, that a name of a model stands for; a foreign model is imported, once."""
    if is_foreign(name):
        return imported(name)
    return name if is_url(name) else str(Path(name).absolute())


def is_begun(output: Path, file: Path, asked: Mapping[str, object], command: str) -> bool:
    """Returns whether an earlier call of the command began the run folder `output`: `file` then has what that call was asked.

    A refused call leaves only hidden files, and the folder `start`.

    Raises: ValueError if that call was asked something else, and for a folder that the command did not make.
    """
    if file.is_file():
        before = json.loads(file.read_bytes())
        different = changed(before, {**before, **asked}, [])
        if different:
            raise ValueError(
                f"{output} was made of other {' and '.join(different)} ({changes_in_words(different)}): give those again to "
                "continue it, or another --output"
            )
        return True
    if output.exists() and not (output.is_dir() and {*output.glob("[!.]*")} <= {output / "start"}):
        raise ValueError(f"--output {output} exists, and was not made by `{command}`: give a new folder")
    return False


def changes_in_words(different: Mapping[str, tuple[object, object]]) -> str:
    """Returns what an earlier call was asked and what this one is asked, by name; files as `file_versions` names them."""

    def shown(value: object) -> str:
        texts = map(str, value) if isinstance(value, list) else [str(value)]
        return cut(", ".join(texts)) or "not given"

    return "; ".join(f"{name}: {shown(old)} before, {shown(new)} now" for name, (old, new) in different.items())


def tell_continued(output: Path, hours: float | None) -> None:
    """Says that the config of an earlier call stands, and that `hours` changes nothing if it is given."""
    given = "" if hours is None else "; --hours changes nothing now: for other hours give a new --output"
    note(f"{output} is continued: what was chosen for it stands, in {output / 'config.json'}{given}")
