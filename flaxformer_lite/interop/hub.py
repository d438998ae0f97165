"""Models of the Hugging Face hub by name: downloaded into the library's cache, pushed as one commit.

A name is `ORG/NAME`, `ORG/NAME@REVISION`, or the same after `hf://`. The library reads the endpoint, the token and the place of its
cache from its own settings (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`).
"""

import contextlib
import fnmatch
import os
import re
import sys
import textwrap
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.base.console import note, warn
from flaxformer_lite.interop.hf.families import family_of
from flaxformer_lite.interop.hf.folder import COMPANIONS, INDEX, WEIGHTS, read_config

with warnings.catch_warnings():  # of tqdm in a notebook without ipywidgets: the bars here are no widgets
    warnings.filterwarnings("ignore", "IProgress not found")
    from huggingface_hub import (
        CommitOperationAdd,
        CommitOperationDelete,
        HfApi,
        constants,
        errors,
        get_token,
        snapshot_download,
    )
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars

NETWORK: Any = errors.HfHubHTTPError.__bases__[0]
"""The base class of errors of the connection: httpx's or httpx2's, whichever the library uses."""
BROKEN = (NETWORK, errors.LocalEntryNotFoundError, RuntimeError, getattr(errors, "XetDownloadError", RuntimeError))
"""Errors of a transfer; hf_xet, which transfers large files, raises a RuntimeError or a class of its own."""

FORM = re.compile(r"(hf://)?(\w[\w.-]*/\w[\w.-]*)(?:@([\w./-]+))?", re.ASCII)
SHARDS = "model-*-of-*.safetensors"
TEXTS = ["config.json", "generation_config.json", INDEX, *COMPANIONS]
"""Patterns of the small files of a model; the rest are its weights."""
LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


class HubName(NamedTuple):
    """A model of the hub."""

    repo: str
    """ORG/NAME."""
    revision: str | None
    """A branch, a tag or a commit; None: the main branch."""

    def __str__(self) -> str:
        return self.repo if self.revision is None else f"{self.repo}@{self.revision}"


def hub_name(text: str) -> HubName | None:
    """Returns the model that `text` names on the hub; None if it is a path. A path that exists is never a name.

    Raises: ValueError if `text` could be either: ORG is a folder here, without NAME in it.
    """
    match = FORM.fullmatch(text)
    if match is None or (match[1] is None and os.path.lexists(text)):
        return None
    if match[1] is None and (folder := Path(text).parts[0]) and Path(folder).is_dir():
        raise ValueError(f"{text} is not in the folder {folder}; a model of that name on the hub is hf://{text}")
    return HubName(match[2], match[3])


def download(name: HubName) -> tuple[Path, str]:
    """Returns a folder of the library's cache with the model's files, and its full name: hf://ORG/NAME@COMMIT.

    Downloads what the cache lacks: first config and tokenizer, then, if the family is known, the weights. Falls back to the cache
    with a warning when the hub cannot be reached.

    Raises: ValueError with the remedy.
    """
    silence()
    with one_line(name):
        try:
            info = HfApi().model_info(name.repo, revision=name.revision, files_metadata=True)
        except errors.HfHubHTTPError as error:
            if error.response.status_code < 500:
                raise
            return cached(name, f"{constants.ENDPOINT} answers {error.response.status_code}")
        except errors.OfflineModeIsEnabled:
            return cached(name, "HF_HUB_OFFLINE is set")
        except NETWORK as error:
            return cached(name, f"{constants.ENDPOINT} cannot be reached ({error})")
        sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
        weights = matching(sizes, [WEIGHTS]) or matching(sizes, [SHARDS])
        if not weights or "config.json" not in sizes:
            raise ValueError(unusable(name, sizes))
        folder = Path(snapshot_download(name.repo, revision=name.revision, allow_patterns=TEXTS))
        try:
            family_of(read_config(folder).get("model_type"))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if missing := [file for file in weights if not (folder / file).exists()]:
            size = megabytes(sizes[file] for file in missing)
            note(f"downloading {name} (commit {folder.name[:12]}): {', '.join(missing)}, {size}")
            show_progress()
            snapshot_download(name.repo, revision=folder.name, allow_patterns=missing)
    return folder, f"hf://{name.repo}@{folder.name}"


def cached(name: HubName, reason: str) -> tuple[Path, str]:
    """Returns what `download` returns, from the cache alone. Raises: ValueError if the cache lacks a file."""
    try:
        files = ["config.json"]  # of files that the cache lacks, the library names all that match
        folder = Path(snapshot_download(name.repo, revision=name.revision, allow_patterns=files, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        where = constants.HF_HUB_CACHE
        raise ValueError(
            f"{reason}, and {name} is not in the cache {where}: connect, and import it again, or give a folder"
        ) from None
    warn(f"{reason}: {name} is read from the cache, commit {folder.name[:12]}")
    return folder, f"hf://{name.repo}@{folder.name}"


def check_target(text: str) -> None:
    """Raises: ValueError unless `text` is the name of a model that can be pushed to, ORG/NAME."""
    match = FORM.fullmatch(text)
    if match is None or match[1] or match[3]:
        raise ValueError(f"push is set, but the output is {text}: give the model's name on the hub, ORG/NAME")


def push(folder: Path, repo: str, *, private: bool, keep_card: bool) -> None:
    """Pushes the files of a folder to ORG/NAME as one commit. Creates the repository if there is none.

    Files of an older model that the folder lacks are deleted in the same commit.

    Args:
        private: Create a private repository. A public one that exists already is an error.
        keep_card: If the repository has a README.md, keep it; else it is an error.

    Raises: ValueError with the remedy. The repository has then the files it had before.
    """
    silence()
    api = HfApi()
    if get_token() is None:
        raise ValueError(f"push is set, but no token that may write: {LOGIN}")
    with one_line(HubName(repo, None)):
        api.create_repo(repo, private=private or None, exist_ok=True)
        info = api.model_info(repo)
        if private and not info.private:
            raise ValueError(
                f"private is set, but {repo} is public: change it in {constants.ENDPOINT}/{repo}/settings, or leave private out"
            )
        there = [file.rfilename for file in info.siblings or ()]
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        if "README.md" in there:
            if not keep_card:
                raise ValueError(f"license is set, but {repo} has a README.md, which is kept: state the licence there")
            note(f"{repo} has a README.md: it is kept")
            files.remove("README.md")
        old = [file for file in matching(there, [*TEXTS, WEIGHTS, SHARDS]) if file not in files]
        show_progress()
        note(f"pushing {len(files)} files, {megabytes((folder / file).stat().st_size for file in files)}, to {repo}")
        # Not upload_folder, which divides a folder into several commits.
        changes = [CommitOperationAdd(file, folder / file) for file in files]
        changes += [CommitOperationDelete(file) for file in old]
        api.create_commit(repo, changes, commit_message="Export of flaxformer_lite")


def matching(files: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Returns the files that match a pattern."""
    return [file for file in files if any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)]


def megabytes(sizes: Iterable[int]) -> str:
    return f"{sum(sizes) / 1e6:,.1f} MB"


def silence() -> None:
    """Turns the library's log and progress bars off: errors are reported here."""
    logging.set_verbosity_error()
    disable_progress_bars()


def show_progress() -> None:
    """Turns the library's progress bars on, if stderr is a terminal and the user has not turned them off."""
    if sys.stderr.isatty() and not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()


@contextlib.contextmanager
def one_line(name: HubName) -> Iterator[None]:
    """Turns errors of the hub and of the connection into a ValueError with the remedy."""
    try:
        yield
    except errors.HfHubHTTPError as error:
        raise ValueError(refusal(name, error)) from None
    except errors.OfflineModeIsEnabled:
        raise ValueError("HF_HUB_OFFLINE is set: unset it") from None
    except BROKEN as error:
        if isinstance(cause := error.__cause__, errors.HfHubHTTPError):
            raise ValueError(refusal(name, cause)) from None
        reason = " ".join(str(cause or error).split()) or type(error).__name__
        raise ValueError(
            f"the connection to {constants.ENDPOINT} failed ({reason}): give the same command again, it keeps complete files"
        ) from None


def refusal(name: HubName, error: errors.HfHubHTTPError) -> str:
    """Returns the hub's refusal in one line, with the remedy."""
    status, hub = error.response.status_code, constants.ENDPOINT
    said = textwrap.shorten(error.server_message or error.response.reason_phrase, 300)
    if isinstance(error, errors.GatedRepoError):
        return f"{name} is gated: accept its conditions on {hub}/{name.repo}, then {LOGIN}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name.repo} has no revision {name.revision}: choose a branch, a tag or a commit of {hub}/{name.repo}"
    if status == 401 and get_token() is not None:
        return f"{hub} does not accept your token: {LOGIN}"
    if status == 401 or isinstance(error, errors.RepositoryNotFoundError):
        return f"{name} is neither a folder here nor a model on {hub} that you can read: check the name; {LOGIN}"
    if status == 403:
        return f"{hub} refuses access to {name} ({said}): use a token with the right to do this; {LOGIN}"
    return f"{hub} answers {status} for {name} ({said}): try again later"


def unusable(name: HubName, files: Iterable[str]) -> str:
    """Returns why the files are no model that can be imported, with the remedy."""
    pickled = matching(files, ["*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack"])
    if not pickled or "config.json" not in files:
        return f"{name} has no config.json with a {WEIGHTS}: name a repository with a whole model"
    return (
        f"{name} has its weights in {pickled[0]}, and no {WEIGHTS}: name a revision that has one, or convert it with transformers, "
        f'AutoModel….from_pretrained("{name.repo}").save_pretrained(FOLDER), and import FOLDER'
    )
