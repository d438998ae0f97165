"""The folder that CTranslate2 reads: made once for each state of a run, and found again by that state.

    RUN/engine/1f0c…/              an export: `model.bin` and what CTranslate2 reads, tokenizers, and the sealed `engine.json`
    ~/.cache/flaxformer_lite/engine/  the same, where the run is at a URL or its folder is read-only

The name has a digest of all that decides an answer: config.json, tokenizers, and of every checkpoint its manifest and the digests
of its files. So a run that was trained on, evaluated or edited has another export, and which weights `best` or `average:N` are is
asked only where an export is made. `engine.json` has the digest of each file of the export, which is compared when it is read.
Weights are stored in float32, and CTranslate2 makes its type of them when it reads them: one export is for all types.

A run may come with a stranger's export, of other weights: names depend on a secret in the user's cache, and facts are signed by it.
"""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.base.atomic_files import atomic_write
from flaxformer_lite.base.console import WARNING, note, warn
from flaxformer_lite.base.remote_files import cache_root, is_url, local_files
from flaxformer_lite.base.sealed_files import DamageError, file_digest, read_sealed, text_digest, write_sealed
from flaxformer_lite.base.stores import LEDGER
from flaxformer_lite.core.search import DecodeConfig, Sampling
from flaxformer_lite.engine.rules import CannotAnswer

PACKAGE = Path(__file__).parents[1]
EXPORTS = "engine"
"""The folder of exports in a run, and in the user's cache."""
FACTS = "engine.json"
"""The facts of an export, and the digests of its files."""
STATE_FILES = (
    "config.json",
    "tokenizer.*",
    "target_tokenizer.*",
    "checkpoints/*/meta/meta.json",
    "checkpoints/*/state/digests.json",
    LEDGER,
)
"""The files of a run that tell one state of it from another; the last one of a run in a bucket."""
EXPORTER = (
    "import gc; gc.disable(); import sys; from flaxformer_lite.interop.engine_export import main; gc.enable(); "
    "sys.exit(main(sys.argv[1:]))"
)
"""The program that exports, whose imports take two thirds of the time without a look for garbage."""
MAKERS = (
    "engine/*.py",
    "interop/*.py",
    "core/reading/*.py",
    "core/model/lora.py",
    "core/search/settings.py",
    "workdir/weights.py",
)
"""The files of this package that decide what is in an export: another release makes another one."""
KEPT = 3
"""The exports that a run folder keeps: those that were used last."""
MOST_CACHE_BYTES = 2**34
"""The bytes of all exports in the user's cache; those that were not used longest go."""
CHANGED, CANNOT, MISTAKE = 75, 76, 77
"""The exit status of the process that exports if the run has changed meanwhile; if CTranslate2 cannot have such a model; if the run
has no such weights, or is no run."""
ATTEMPTS = 3


class RunWeights(NamedTuple):
    """The weights of a run that are wanted, and the type of products with them."""

    run: str
    """A run folder, or the URL of one."""
    weights: str | None = None
    """last, best, ema or average:N; None: the config's."""
    step: int | None = None
    dtype: str = "float32"
    imports: tuple[str, ...] = ()
    """The files and modules that define classes of the config."""


class Export(NamedTuple):
    """A whole export."""

    folder: Path
    facts: dict[str, Any]


def cache() -> Path:
    """Returns the folder of exports in the user's cache."""
    return cache_root() / EXPORTS


class OwnConfig(NamedTuple):
    """The part of a run's config that says how CTranslate2 may answer."""

    kind: str
    """CTranslate2's class for such stacks: Translator, Generator or Encoder."""
    decode: DecodeConfig
    tree: Mapping[str, Any]
    """The whole config, as JSON has it."""


def own_config(run: str) -> OwnConfig | None:
    """Returns what a run's config says. None: the folder holds no run, or its config cannot be read here; JAX reports why.

    Raises: ValueError if a URL cannot be read.
    """
    unread = (OSError, ValueError, LookupError, TypeError, RecursionError)
    with local_files(run, ["config.json"]) as folder, contextlib.suppress(*unread):
        tree = json.loads((folder / "config.json").read_bytes())
        return own_part(tree)
    return None


def own_part(tree: Mapping[str, Any]) -> OwnConfig:
    """Returns what a config says, by its settings as JSON has them."""
    model = tree["model"]
    kind = "Translator" if model["num_decoder_layers"] else "Encoder"
    if not model["num_encoder_layers"]:
        kind = "Generator"
    return OwnConfig(kind, read_decode(tree["decode"]), tree)


def read_decode(tree: Mapping[str, object]) -> DecodeConfig:
    """Returns the settings that a config.json has as `decode`."""
    values = with_tuples(tree)
    return DecodeConfig(**values | {"sampling": values["sampling"] and Sampling(**values["sampling"])})


def with_tuples(tree: Mapping[str, object]) -> dict[str, Any]:
    """Returns settings from JSON, whose lists are tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in tree.items()}


def state_of(run: str) -> str:
    """Returns a digest of all that decides the answers of a run. Raises: ValueError if a URL cannot be read; OSError."""
    with local_files(run, STATE_FILES) as folder:
        found = set[Path]().union(*map(folder.glob, STATE_FILES))
        digests = dict[str, str]()
        for file in sorted(file for file in found if file.is_file()):
            with contextlib.suppress(FileNotFoundError):  # a training has deleted an older checkpoint
                name = file.relative_to(folder).as_posix()
                digests[name] = file_digest(file) if name != LEDGER else digest_of_steps(file)
    makers = list[str]()
    for pattern in MAKERS:
        makers += map(file_digest, sorted(PACKAGE.glob(pattern)))
    return text_digest(json.dumps([makers, digests]))


def digest_of_steps(ledger: Path) -> str:
    """Returns the digest of the checkpoints in the ledger of a run in a bucket, whose signs of life decide no answer."""
    try:
        return text_digest(json.dumps(json.loads(ledger.read_bytes())["steps"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return file_digest(ledger)  # who reads the run says what is wrong with it


def export_name(wanted: RunWeights, state: str) -> str:
    """Returns the name of the export of these weights in a state of their run."""
    return text_digest(json.dumps([key(), state, wanted.weights, wanted.step]))[:32]


def key() -> str:
    """Returns this user's secret, which is made once. Raises: CannotAnswer if it cannot be made or read."""
    file = cache() / "key"
    try:
        if not (file.is_file() and file.stat().st_size):
            with atomic_write(file) as unfinished:
                unfinished.touch(mode=0o600)
                unfinished.write_bytes(secrets.token_bytes())
        return file.read_bytes().hex()
    except OSError as error:
        raise CannotAnswer(f"{file}, the key that signs exports: {error.strerror}") from None


def signed(facts: Mapping[str, object]) -> dict[str, object]:
    """Returns facts with a signature that nobody else can write."""
    return {**facts, "signature": text_digest(key() + json.dumps(facts, sort_keys=True))}


def read_own(file: Path) -> dict[str, Any]:
    """Returns the facts of a sealed file. Raises: DamageError if this user has not signed them; OSError."""
    facts = read_sealed(file)
    if signed({name: facts[name] for name in facts if name != "signature"}) != facts:
        raise DamageError(f"{file.name} was not signed by this user")
    return facts


def export_folders(run: str) -> list[Path]:
    """Returns the folders where exports of a run may lie, the preferred one first."""
    own = [] if is_url(run) else [Path(run) / EXPORTS]
    return [*own, cache()]


def export_of(wanted: RunWeights) -> Export:
    """Returns the export of a run as it is now; if it does not exist, JAX makes it in a process of its own.

    Raises: CannotAnswer if CTranslate2 cannot have the model, or the export cannot be made; ValueError if the run has no such
        weights, or a URL cannot be read.
    """
    for _ in range(ATTEMPTS):
        state = state_of(wanted.run)
        export = find_export(wanted, state) or make_export(wanted, state)
        if export is not None:
            return export
    raise CannotAnswer(f"{wanted.run} changes while it is exported: try again")


def find_export(wanted: RunWeights, state: str) -> Export | None:
    """Returns a whole export, or None. A damaged export is deleted, with a warning.

    Raises: CannotAnswer if it is known that CTranslate2 cannot have the model.
    """
    for folder in (place / export_name(wanted, state) for place in export_folders(wanted.run)):
        with contextlib.suppress(OSError, DamageError):
            raise CannotAnswer(read_own(folder.with_suffix(".json"))["reason"])
        try:
            if folder.is_dir():
                export = read_export(folder)
                with contextlib.suppress(OSError):
                    os.utime(folder)  # the time of its last use
                return export
        except DamageError as damage:
            if folder.is_dir():  # else another process has deleted it meanwhile
                warn(f"{folder} is damaged ({damage}): it is made anew")
                delete(folder)
    return None


def read_export(folder: Path) -> Export:
    """Returns the export in a folder. Raises: DamageError if a file is missing or not as it was written."""
    try:
        facts = read_own(folder / FACTS)
        for name, expected in facts["files"].items():
            if file_digest(folder / name) != expected:
                raise DamageError(f"{name} is not as it was written")
    except OSError as error:
        raise DamageError(f"{Path(error.filename or folder).name}: {error.strerror}") from None
    return Export(folder, facts)


def make_export(wanted: RunWeights, state: str) -> Export | None:
    """Returns an export that one process at a time makes; None if the run has changed meanwhile.

    Raises: CannotAnswer if it cannot be made; ValueError if the run has no such weights.
    """
    place = writable_place(wanted.run)
    name = export_name(wanted, state)
    with one_at_a_time(place) as lock:
        export = find_export(wanted, state)
        if export is not None:
            return export
        for unfinished in place.glob(".*.unfinished") if lock is not None else ():  # of a process that was killed
            shutil.rmtree(unfinished, ignore_errors=True)
        note(f"exporting {wanted.run}, if CTranslate2 has such a model, once for this state of the run: {place / name}")
        status, reason = run_exporter(wanted, state, place / name, lock)
        if status == CANNOT:
            for other in place.glob("*.json"):
                other.unlink()
            write_sealed(place / f"{name}.json", signed({"reason": reason}))
            raise CannotAnswer(reason)
        if status == MISTAKE:
            raise ValueError(reason)
        if status not in (0, CHANGED):
            raise CannotAnswer(f"the export failed: {reason or f'its process ended with status {status}'}")
        if status == 0:
            drop_oldest(place, name)
    return read_export(place / name) if status == 0 else None


def writable_place(run: str) -> Path:
    """Returns the first of the places where files can be written. Raises: CannotAnswer if no such folder exists."""
    for place in export_folders(run):
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            if os.access(place, os.W_OK):
                return place
    raise CannotAnswer(
        f"{' and '.join(map(str, export_folders(run)))} cannot be written: make one writable for an export"
    )


@contextlib.contextmanager
def one_at_a_time(place: Path) -> Iterator[int | None]:
    """Waits until no other process makes an export there. Yields the locked file; None at once on a file system without locks."""
    with open(place / ".lock", "a", encoding="utf-8") as file:
        lock = None
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note(f"waiting for another process that exports to {place}")
                fcntl.flock(file, fcntl.LOCK_EX)
            lock = file.fileno()
        yield lock


def run_exporter(wanted: RunWeights, state: str, output: Path, lock: int | None) -> tuple[int, str]:
    """Exports in a process with JAX, and tells its warnings. Returns the exit status, and the error that the process tells.

    The process shares the lock: if this one is killed, others wait for what it still makes.
    """
    words = [sys.executable, "-c", EXPORTER, json.dumps([wanted, state, str(output)])]
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    shared = () if lock is None else (lock,)
    done = subprocess.run(
        words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, pass_fds=shared
    )
    lines = done.stderr.splitlines()
    for line in lines:
        if line.startswith(WARNING):
            warn(line.removeprefix(WARNING))
    last = lines[-1] if lines else ""
    return done.returncode, last.removeprefix("error: ") if last.startswith("error: ") else ""


def drop_oldest(place: Path, newest: str) -> None:
    """Deletes exports beside the newest one that were not used longest, until the place is within its limits."""
    exports = sorted((one for one in place.iterdir() if one.is_dir()), key=lambda one: one.stat().st_mtime)
    others = [one for one in exports if one.name != newest]
    while others and (sum(map(bytes_in, exports)) > MOST_CACHE_BYTES if place == cache() else len(exports) > KEPT):
        delete(others[0])
        exports.remove(others.pop(0))


def delete(export: Path) -> None:
    """Deletes an export, which vanishes at once for others."""
    with contextlib.suppress(OSError):
        export = export.rename(export.with_name(f".{secrets.token_hex(4)}.unfinished"))
    shutil.rmtree(export, ignore_errors=True)


def bytes_in(folder: Path) -> int:
    """Returns the bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
