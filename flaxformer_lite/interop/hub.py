"""Models of the Hugging Face hub by name: downloaded into the library's cache, pushed as one commit.

A name is `ORG/NAME`, `ORG/NAME@REVISION`, or the same after `hf://`. The library reads the endpoint, the token and the place of its
cache from its own settings (`HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_CACHE`, `HF_HUB_OFFLINE`).
"""

import contextlib
import fnmatch
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flaxformer_lite.base.console import note, warn
from flaxformer_lite.base.model_names import FORM, HubName
from flaxformer_lite.base.sealed_files import file_digest
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.interop.hf import metrics
from flaxformer_lite.interop.hf.card import CARD
from flaxformer_lite.interop.hf.families import Families, family_of
from flaxformer_lite.interop.hf.folder import (
    ADAPTER_WEIGHTS,
    COMPANIONS,
    INDEX,
    PICKLED,
    SHARDS,
    WEIGHTS,
    either,
    read_config,
    read_json,
    stored,
    weights_elsewhere,
)
from flaxformer_lite.interop.hf.multimodal import text_config
from flaxformer_lite.interop.hf.peft import ADAPTER_CONFIG, is_adapter

with warnings.catch_warnings():  # of tqdm in a notebook without ipywidgets: the bars here are no widgets
    warnings.filterwarnings("ignore", "IProgress not found")
    from huggingface_hub import (
        CommitOperationAdd,
        CommitOperationDelete,
        HfApi,
        constants,
        errors,
        get_token,
        hf_hub_download,
        snapshot_download,
    )
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars, tqdm

NETWORK: Any = errors.HfHubHTTPError.__bases__[0]
"""The base class of errors of the connection: httpx's or httpx2's, whichever the library uses."""
BROKEN = (NETWORK, errors.LocalEntryNotFoundError, RuntimeError, getattr(errors, "XetDownloadError", RuntimeError))
"""Errors of a transfer; hf_xet, which transfers large files, raises a RuntimeError or a class of its own."""

TEXTS = ("config.json", ADAPTER_CONFIG, "generation_config.json", INDEX, PICKLED[INDEX], metrics.SETTINGS, *COMPANIONS)
"""Patterns of the small files of a model; the rest are its weights."""
KINDS = either(WEIGHTS, SHARDS, ADAPTER_WEIGHTS)
"""Patterns of a model's weights: those of the first pattern that has any are read."""
FURTHER_WEIGHTS = f"[0-9]_*/{WEIGHTS}", f"[0-9]_*/{PICKLED[WEIGHTS]}", metrics.WEIGHTS
"""Patterns of the weights of a sentence encoder's dense layers, and of a metric of translations."""
COMMIT = re.compile("[0-9a-f]{40}")
SHA256 = re.compile("[0-9a-f]{64}")
"""The SHA-256 that the hub states of large files; the library's cache names them by it."""


def download(name: HubName, families: Families | None = None) -> tuple[Path, str]:
    """Returns a folder of the library's cache with the model's files, and its full name: hf://ORG/NAME@COMMIT.

    Downloads what the cache lacks: first config and tokenizer, then, if the family is known, the weights. Falls back to the cache
    with a warning when the hub cannot be reached.

    Raises: ValueError with the remedy.
    """
    silence()
    with hub_errors(name):
        info = answer(name)
        if isinstance(info, str):
            return cached(name, info)
        sizes = ask(sizes_of, info)
        texts = matching(sizes, [*TEXTS, CARD])
        weights = next(filter(None, (matching(sizes, [kind]) for kind in KINDS)), [])
        further = matching(sizes, FURTHER_WEIGHTS) if weights else []
        weights += [file for file in further if file.replace(PICKLED[WEIGHTS], WEIGHTS) not in {*further} - {file}]
        if not weights:
            raise ValueError(unusable(name, sizes))
        folder = fetch_config(name, sizes)
        if folder.name != info.sha:
            raise ValueError(f"{name} has a new commit, {folder.name[:12]}: give the same command again")
        fetch(name, folder.name, texts)
        try:
            if not weights[0].startswith("adapter_model."):
                family_of(text_config(read_config(folder)).get("model_type"), families)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        missing = [file for file in weights if not (folder / file).exists()]
        if missing:
            size = megabytes(sizes[file] for file in missing)
            note(f"downloading {name} (commit {folder.name[:12]}): {', '.join(missing)}, {size}")
            show_progress()
            fetch(name, folder.name, missing)
        compare(name, folder, weights)
    return folder, f"hf://{name.repo}@{folder.name}"


def commit_of(name: HubName) -> str:
    """Returns the commit that a name stands for; where the hub cannot be reached that of the cache, with a warning.

    Raises: ValueError with the remedy.
    """
    if COMMIT.fullmatch(name.revision or ""):
        return str(name.revision)
    silence()
    with hub_errors(name):
        info = answer(name)
        if isinstance(info, str):
            folder = cached_config(name, info)
            warn(f"{info}: {name} is read from the cache, commit {folder.name[:12]}")
            return folder.name
        return fetch_config(name, ask(sizes_of, info)).name


def answer(name: HubName) -> Any:
    """Returns what the hub says of a model; as a text the reason if it cannot be reached. Raises: HfHubHTTPError, ValueError."""
    try:
        timeout = constants.HF_HUB_ETAG_TIMEOUT
        return ask(HfApi().model_info, name.repo, revision=name.revision, files_metadata=True, timeout=timeout)
    except errors.HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise
        return f"{constants.ENDPOINT} answers {error.response.status_code}"
    except errors.OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set"
    except NETWORK as error:
        return f"{constants.ENDPOINT} cannot be reached ({error})"


def fetch_config(name: HubName, sizes: Mapping[str, int]) -> Path:
    """Returns the folder of the cache with a model's config, which notes the revision's commit. Raises: ValueError without one."""
    config = "config.json" if "config.json" in sizes else ADAPTER_CONFIG
    if config not in sizes:
        raise ValueError(unusable(name, sizes))
    return fetch(name, name.revision, [config])


def sizes_of(info: Any) -> dict[str, int]:
    """Returns the sizes of a model's files by their names."""
    return {file.rfilename: int(file.size or 0) for file in info.siblings}


def compare(name: HubName, folder: Path, weights: Iterable[str]) -> None:
    """Compares weights in the cache with their SHA-256, which is their name in the cache.

    Raises: ValueError naming the first file that differs.
    """
    for file in weights:
        path = (folder / file).resolve()
        if not SHA256.fullmatch(path.name):
            continue
        digest = file_digest(path)
        if digest != path.name:
            raise ValueError(
                f"{name}: {file} in the cache is not the file that {constants.ENDPOINT} states "
                f"(SHA-256 {digest}, stated {path.name}): delete {path}, and import it again"
            )


def fetch(name: HubName, revision: str | None, files: Sequence[str]) -> Path:
    """Returns the folder of the cache with these files, after downloading those that it lacks."""
    bars: list[Any] = []

    class Bar(tqdm):
        """A progress bar that is removed at the end."""

        def __init__(self, *args: object, **options: Any):
            super().__init__(*args, **options | {"leave": False})
            bars.append(self)

    def one(file: str) -> str:
        return ask(hf_hub_download, name.repo, file, revision=revision, tqdm_class=Bar)

    try:
        with ThreadPoolExecutor(8) as pool:
            places = list(pool.map(one, files))
        return Path(places[0].removesuffix(files[0]))
    finally:
        for bar in reversed(bars):
            bar.close()


def cached(name: HubName, reason: str) -> tuple[Path, str]:
    """Returns what `download` returns, from nothing but the cache. Raises: ValueError if the cache lacks a file."""
    folder = cached_config(name, reason)
    usual = Path(ADAPTER_WEIGHTS if is_adapter(folder) else WEIGHTS)
    first = stored(folder, WEIGHTS, INDEX, ADAPTER_WEIGHTS) or usual
    files = {first.name}
    if first.suffix == ".json":
        files = set(read_json(first).get("weight_map", {}).values())
    missing = sorted(file for file in files if not (folder / file).exists())
    if missing:
        raise ValueError(
            f"{reason}, and the copy of {name} in the cache lacks {', '.join(missing)}: connect, and import it again"
        )
    compare(name, folder, files)
    warn(f"{reason}: {name} is read from the cache, commit {folder.name[:12]}")
    return folder, f"hf://{name.repo}@{folder.name}"


def cached_config(name: HubName, reason: str) -> Path:
    """Returns the folder of the cache with a model's config. Raises: ValueError if the cache lacks it."""
    try:
        only_config = ["config.json", ADAPTER_CONFIG]  # of files that the cache lacks, the library names all that match
        path = snapshot_download(name.repo, revision=name.revision, allow_patterns=only_config, local_files_only=True)
    except errors.LocalEntryNotFoundError:
        raise ValueError(
            f"{reason}, and {name} is not in the cache {constants.HF_HUB_CACHE}: connect, and import it again, or give a folder"
        ) from None
    return Path(path)


def check_target(text: str) -> None:
    """Raises: ValueError unless `text` is the name of a model that can be pushed to, ORG/NAME, and a token is set."""
    match = FORM.fullmatch(text)
    if match is None or match[1] or match[3]:
        raise ValueError(f"push is set, but the output is {text}: give the model's name on the hub, ORG/NAME")
    if get_token() is None:
        raise ValueError("push needs a token that may write: log in with `hf auth login`, or set HF_TOKEN")


def push(folder: Path, repo: str, *, private: bool, keep_card: bool) -> None:
    """Pushes the files of a folder to ORG/NAME as one commit. Creates the repository if it is missing.

    Files of an older model that the folder lacks are deleted in the same commit.

    Args:
        private: Create a private repository. A public one that exists already is an error.
        keep_card: If the repository has a README.md, keep it; else it is an error.

    Raises: ValueError with the remedy. The repository has then the files it had before.
    """
    silence()
    api = HfApi()
    with hub_errors(HubName(repo, None)):
        ask(api.create_repo, repo, private=private or None, exist_ok=True)
        info = ask(api.model_info, repo)
        if private and not info.private:
            settings = f"{constants.ENDPOINT}/{repo}/settings"
            raise ValueError(f"private is set, but {repo} is public: change it in {settings}, or leave private out")
        there = list(ask(sizes_of, info))
        files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        if "README.md" in there:
            if not keep_card:
                raise ValueError(f"license is set, but {repo} has a README.md, which is kept: state the licence there")
            note(f"{repo} has a README.md: it is kept")
            files.remove("README.md")
        old = [file for file in matching(there, [*TEXTS, *KINDS, *FURTHER_WEIGHTS]) if file not in files]
        show_progress()
        note(f"pushing {len(files)} files, {megabytes((folder / file).stat().st_size for file in files)}, to {repo}")
        # Not upload_folder, which divides a folder into several commits.
        ask(
            api.create_commit,
            repo,
            [
                *(CommitOperationAdd(file, folder / file) for file in files),
                *(CommitOperationDelete(file) for file in old),
            ],
            commit_message="Export of flaxformer_lite",
        )


def matching(files: Iterable[str], patterns: Iterable[str]) -> list[str]:
    patterns = list(patterns)
    return [file for file in files if any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns)]


def megabytes(sizes: Iterable[int]) -> str:
    return f"{sum(sizes) / 1e6:,.1f} MB"


# The library's words and errors ---------------------------------------------------------------------------------------


def silence() -> None:
    """Turns the library's log and progress bars off: errors are reported here."""
    logging.set_verbosity_error()
    disable_progress_bars()


def show_progress() -> None:
    """Turns the library's progress bars on, if stderr is a terminal and the user has not turned them off."""
    if sys.stderr.isatty() and not constants.HF_HUB_DISABLE_PROGRESS_BARS:
        enable_progress_bars()


def ask(function: Callable[..., Any], *words: object, **options: object) -> Any:
    """Calls the library. Raises: ValueError where the answer of the hub has not the form that the library expects."""
    try:
        return function(*words, **options)
    except (errors.HfHubHTTPError, errors.HFValidationError):
        raise
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        hub = constants.ENDPOINT
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{hub} does not answer as a hub does ({cut(reason)}): check HF_ENDPOINT") from None


@contextlib.contextmanager
def hub_errors(name: HubName) -> Iterator[None]:
    """Turns errors of the hub and of the connection into a ValueError with the remedy."""
    try:
        yield
    except errors.HfHubHTTPError as error:
        raise ValueError(refusal(name, error)) from None
    except errors.OfflineModeIsEnabled:
        raise ValueError("HF_HUB_OFFLINE is set: unset it") from None
    except BROKEN as error:
        cause = error.__cause__
        if isinstance(cause, errors.HfHubHTTPError):
            raise ValueError(refusal(name, cause)) from None
        reason = " ".join(str(cause or error).split()) or type(error).__name__
        remedy = "give the same command again, it continues and keeps complete files"
        raise ValueError(f"the connection to {constants.ENDPOINT} failed ({reason}): {remedy}") from None


def refusal(name: HubName, error: Any) -> str:
    """Returns the hub's refusal in one line, with the remedy."""
    status, hub = error.response.status_code, constants.ENDPOINT
    login = "log in with `hf auth login`, or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        return f"{name} is gated: accept its conditions on {hub}/{name.repo}, then {login}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name.repo} has no revision {name.revision}: choose a branch, a tag or a commit of {hub}/{name.repo}"
    if status == 403:
        return f"{hub} refuses access to {name} ({said(error)}): use a token with the right to do this; {login}"
    if status == 401 and get_token() is not None:
        return f"{hub} does not accept your token: {login}"
    if status == 401 or isinstance(error, errors.RepositoryNotFoundError):
        return f"{name} is neither a folder here nor a model on {hub} that you can read: check the name; if it is private, {login}"
    return f"{hub} answers {status} for {name} ({said(error)}): try again later"


def said(error: Any) -> str:
    """Returns the server's own words, or the name of the status."""
    return textwrap.shorten(error.server_message or error.response.reason_phrase, 300)


def unusable(name: HubName, files: Iterable[str]) -> str:
    """Returns why the files are no model that can be imported, with the remedy."""
    files = list(files)
    if "config.json" not in files:
        deeper = next(iter(matching(files, ["*/config.json"])), "")
        beside = f", but {deeper}: download that folder, and import it from there" if deeper else ""
        return f"{name} has no config.json{beside or ': name a repository with a whole model'}"
    return f"{name} {weights_elsewhere(files)}; or name a revision with {WEIGHTS}"
