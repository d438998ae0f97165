"""File systems that fail on demand, and small run folders to copy there."""

import errno
import json
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from flaxformer_lite.base.sealed_files import sealed
from flaxformer_lite.config import Config, to_json
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.manifest import write_digests


class FlakyFileSystem(MemoryFileSystem):
    """An object store in memory, `flaky://`, that fails after `writes` more writes, or at every access with `failure`."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    writes: ClassVar[int | None] = None
    """Number of writes that still succeed; None: all."""
    written: ClassVar[list[str]] = []
    """Every write that succeeded, as `put PATH` or `delete PATH`."""
    failure: ClassVar[BaseException | None] = None

    @classmethod
    def reset(cls) -> None:
        """Empties the store, and lets everything succeed."""
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.written.clear()
        cls.writes = cls.failure = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("flaky://").strip("/")

    def unstrip_protocol(self, name: str) -> str:
        return "flaky://" + name.strip("/")

    def _spend(self, what: str) -> None:
        if FlakyFileSystem.failure is not None:
            raise FlakyFileSystem.failure
        if FlakyFileSystem.writes == 0:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        if FlakyFileSystem.writes is not None:
            FlakyFileSystem.writes -= 1
        self.written.append(what)

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        self._spend(f"put {rpath}")
        self.store.pop(self._strip_protocol(rpath), None)
        super().put_file(lpath, rpath, **options)

    def rm_file(self, path: str) -> None:
        self._spend(f"delete {path}")
        super().rm_file(path)

    def find(self, path: str, **options: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return super().find(path, **options)

    def cat_file(self, path: str, **options: Any) -> bytes:
        if self.failure is not None:
            raise self.failure
        return super().cat_file(path, **options)


fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)


def write_run(
    folder: Path, config: Config, steps: list[int], newest: int, evaluated: tuple[int, ...] = ()
) -> RunFolder:
    """Brings a folder to the state of a run at step `newest`: a metrics row for each step, these checkpoints and no others."""
    if not folder.exists():
        folder.mkdir()
        (folder / "config.json").write_text(to_json(config))
        (folder / "tokenizer.chars").write_text("abc")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row(step)) + "\n" for step in range(1, newest + 1)))
    (folder / "train.log").write_text(f"trained to {newest}\n")
    (folder / "samples").mkdir(exist_ok=True)
    (folder / "samples" / f"step_{newest}.txt").write_text("source: a")
    for step in steps:
        write_checkpoint(folder / "checkpoints" / str(step), {"eval": 1.0} if step in evaluated else None)
    for old in (folder / "checkpoints").iterdir():
        if int(old.name) not in steps:
            for path in sorted(old.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            old.rmdir()
    return RunFolder(folder)


def row(step: int) -> dict[str, Any]:
    return {"step": step, "split": "train", "loss": 1 / step}


def write_checkpoint(place: Path, metrics: dict[str, float] | None, content: str = "") -> None:
    """A checkpoint with the files that Orbax writes; one that is there keeps its state."""
    if not (place / "state").exists():
        (place / "state" / "d").mkdir(parents=True)
        for name in ("_METADATA", "manifest.ocdbt", "d/0a", "d/0b"):
            (place / "state" / name).write_text(f"{name} of {place.name} {content}")
        write_digests(place / "state")
        (place / "_CHECKPOINT_METADATA").write_text("{}")
        (place / "meta").mkdir()
    text = json.dumps(sealed({"metrics": metrics, "interim": False}))
    if not (place / "meta" / "meta.json").is_file() or (place / "meta" / "meta.json").read_text() != text:
        unfinished = place / "meta" / ".unfinished"
        unfinished.write_text(text)
        unfinished.replace(place / "meta" / "meta.json")
