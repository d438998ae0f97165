"""Files on other file systems, by URL: s3://, gs://, memory:// and all others that fsspec knows.

A path without a protocol is never touched by this module. fsspec is imported with the first URL.
"""

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Protocol → the extra of this package that installs its file system."""


def is_url(path: str | Path) -> bool:
    """Returns whether a path names a file system by a protocol of at least two letters, as `s3://bucket/run` does."""
    return isinstance(path, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]+(://|::)", path) is not None


def is_store(path: object) -> bool:
    """Returns whether a path is the URL of a store (stores.py), whose files can be written under a condition."""
    return isinstance(path, str) and path.startswith(("file://", "gs://", "memory://", "s3://"))


def open_filesystem(path: str) -> tuple["AbstractFileSystem", str]:
    """Returns the file system of a path or URL, and the path on it without a slash at the end.

    Raises: ValueError if no installed package knows the protocol.
    """
    import fsspec

    try:
        filesystem, root = fsspec.core.url_to_fs(path)
    except ImportError as error:
        extra = EXTRAS.get(path.partition(":")[0])
        remedy = f'pip install "flaxformer_lite[{extra}]"' if extra else str(error)
        raise ValueError(f"{path}: a package for this protocol is missing: {remedy}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {describe_error(error)}; give a folder, or a URL such as s3://BUCKET/RUN") from None
    return filesystem, root.rstrip("/")


def cache_root() -> Path:
    """Returns the folder of this package in the user's cache: `~/.cache/flaxformer_lite`, or below `XDG_CACHE_HOME`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flaxformer_lite"


def cached_models() -> Path:
    """Returns the folder of the runs that were imported where a run was expected."""
    return cache_root() / "models"


def cache_folder(url: str, use: str = "") -> Path:
    """Returns the folder of the local copy of a run at a URL, for one use of it."""
    name = url.rstrip("/").rpartition("/")[2]
    return cache_root() / f"{name}-{hashlib.sha256(url.encode()).hexdigest()[:12]}{use}"


def matching_urls(url: str) -> list[str]:
    """Returns the URLs of the files that match a pattern such as `s3://bucket/*.txt`, sorted; a plain URL as it is.

    Raises: ValueError if no file matches.
    """
    if not re.search(r"[*?\[]", url):
        return [url]
    filesystem, pattern = open_filesystem(url)
    with reading(url):
        paths = sorted(filesystem.glob(pattern))
    if not paths:
        raise ValueError(f"{url}: no file matches this pattern")
    return [filesystem.unstrip_protocol(path) for path in paths]


def has_file(folder: str, name: str) -> bool:
    """Returns whether a folder, at a path or URL, has a file of that name. Raises: ValueError if a URL cannot be read."""
    if not is_url(folder):
        return Path(folder, name).is_file()
    filesystem, root = open_filesystem(folder)
    with reading(folder):
        return filesystem.isfile(f"{root}/{name}")


@contextlib.contextmanager
def local_files(folder: str, names: Iterable[str]) -> Iterator[Path]:
    """Yields a folder with the files `names`, or patterns: `folder` itself, or for a URL a temporary copy of those that exist.

    Raises: ValueError if the URL cannot be read.
    """
    if not is_url(folder):
        yield Path(folder)
        return
    with tempfile.TemporaryDirectory() as copy:
        for name, content in (stored_files(folder, names) or fetched_files(folder, names)).items():
            file = Path(copy, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        yield Path(copy)


def stored_files(folder: str, names: Iterable[str]) -> dict[str, bytes]:
    """Returns the files `names`, or patterns, of a folder in a store that exist; none if the URL is not a store's."""
    if not is_store(folder):
        return {}
    from flaxformer_lite.base.stores import Store  # with TensorStore

    store = Store(folder)
    patterns = [*names]
    return store.read_all(name for name in store.names() if any(fnmatchcase(name, pattern) for pattern in patterns))


def fetched_files(folder: str, names: Iterable[str]) -> dict[str, bytes]:
    """Returns the files `names`, or patterns, of a folder at a URL that exist. Raises: ValueError if the URL cannot be read."""
    filesystem, root = open_filesystem(folder)
    contents = {}
    with reading(folder):
        for name in names:
            for path in filesystem.glob(f"{root}/{name}") if "*" in name else [f"{root}/{name}"]:
                with contextlib.suppress(FileNotFoundError):
                    contents["/".join(path.split("/")[-1 - name.count("/") :])] = filesystem.cat_file(path)
    return contents


@contextlib.contextmanager
def reading(url: str) -> Iterator[None]:
    """Turns every error within it into a ValueError of one line: each package has errors of its own."""
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{url}: no such file") from None
    except Exception as error:
        raise ValueError(f"{url}: cannot be read ({describe_error(error)})") from error


def describe_error(error: BaseException) -> str:
    """Returns the first line of an error's text, or its type if it has none."""
    text = getattr(error, "strerror", None) or str(error)
    return str(text).strip().partition("\n")[0] or type(error).__name__
