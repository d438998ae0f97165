"""Hugging Face models that are given where a run is expected: each version is imported once, into the user's cache.

~/.cache/flaxformer_lite/models/NAME-VERSION/   a run folder, of a commit of the hub or of the files of a folder
"""

import shutil
from pathlib import Path

from filelock import FileLock

from flaxformer_lite.base.console import note
from flaxformer_lite.base.model_names import HUB, hub_name
from flaxformer_lite.base.remote_files import cached_models
from flaxformer_lite.base.sealed_files import text_digest
from flaxformer_lite.interop.importing import import_hf


def imported(name: str) -> str:
    """Returns the run folder of a Hugging Face folder, or of a model of the hub (`ORG/NAME`, `ORG/NAME@REVISION`).

    A process that is killed leaves no run: the folder appears whole. One process imports, and others wait for it.

    Raises: ValueError if the model cannot be imported, or is neither here nor on the hub.
    """
    model = hub_name(name)
    if model is None:
        version = folder_version(Path(name))
        source = name
        short = Path(name).resolve().name
    else:
        from flaxformer_lite.interop.hub import commit_of  # with the library for it

        version = commit_of(model)
        source = f"{HUB}{model.repo}@{version}"
        short = model.repo.replace("/", "--")
    place = cached_models() / f"{short}-{version[:12]}"
    if place.is_dir():
        return str(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not place.is_dir():
            for unfinished in place.parent.glob(f".{place.name}.*.unfinished"):  # of a process that was killed
                shutil.rmtree(unfinished, ignore_errors=True)
            note(f"importing {name}, once for this version of it: {place}")
            import_hf(source, place)
    return str(place)


def folder_version(folder: Path) -> str:
    """Returns a digest of a folder's place, and of the names, sizes and times of change of its files."""
    states = list[tuple[str, int, int]]()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        status = path.stat()
        states.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    return text_digest(repr((str(folder.resolve()), states)))
