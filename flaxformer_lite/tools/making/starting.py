"""The start of a command that makes a run: the model that it starts from, and the folder that an earlier call began."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.console import note
from flaxformer_lite.base.remote_files import is_url
from flaxformer_lite.interop.importing import import_hf


def as_run(name: str, place: Path) -> str:
    """Returns the run folder of a model; a Hugging Face folder or a name on the hub is imported into `place`, once.

    The name stands beside `place`: a command that was refused may have imported another model.
    """
    if is_url(name) and not name.startswith("hf://"):
        return name
    if (Path(name) / "checkpoints").is_dir():
        return str(Path(name).absolute())
    named = place.with_suffix(".txt")
    if not (named.is_file() and named.read_text(encoding="utf-8") == name):
        shutil.rmtree(place, ignore_errors=True)
        named.unlink(missing_ok=True)
    if not place.is_dir():
        note(f"importing {name} into {place}")
        place.parent.mkdir(parents=True, exist_ok=True)
        import_hf(name, place)
        write_whole(named, name)
    return str(place.absolute())


def is_begun(output: Path, file: Path, asked: Mapping[str, Any], command: str) -> bool:
    """Returns whether an earlier call of the command began the run folder `output`: `file` then has what that call was asked.

    A refused call leaves only hidden files, and models in `teachers` and `start`.

    Raises: ValueError if that call was asked something else, and for a folder that the command did not make.
    """
    if file.is_file():
        before = json.loads(file.read_bytes())
        if changed := [name for name, value in asked.items() if before.get(name, []) != value]:
            raise ValueError(
                f"{output} was made of other {' and '.join(changed)}: give those again to continue it, or another --output"
            )
        return True
    if output.exists() and not (output.is_dir() and {*output.glob("[!.]*")} <= {output / "teachers", output / "start"}):
        raise ValueError(f"--output {output} exists, and was not made by `{command}`: give a new folder")
    return False


def tell_continued(output: Path, hours: float | None) -> None:
    """Says that the config of an earlier call stands, and that `hours` changes nothing if it is given."""
    given = "" if hours is None else "; --hours changes nothing now: for other hours give a new --output"
    note(f"{output} is continued: what was chosen for it stands, in {output / 'config.json'}{given}")
