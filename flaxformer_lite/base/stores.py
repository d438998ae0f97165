"""Stores: files at a URL that processes on several hosts write, file:///FOLDER, gs://BUCKET/PATH, s3://BUCKET/PATH or memory://NAME.

A file is read and written as a whole, through TensorStore. A write may depend on the version that was read (compare-and-swap): so
processes on several hosts agree without a lock. TensorStore is imported with the first store, since it imports NumPy.
"""

import contextlib
import functools
import os
import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import tensorstore

DRIVERS = {"file": "file", "gs": "gcs", "memory": "memory", "s3": "s3"}
"""Protocol → TensorStore's driver; `is_store` of remote_files.py knows the same protocols."""
RETRIES = {"max_retries": 7, "initial_delay": "1s", "max_delay": "20s"}
"""The attempts after a failed one, about a minute in all."""
LEDGER = ".run.json"
"""The object that lists the complete checkpoints of a run in a store: workdir/bucket.py."""
BEAT_SECONDS = 20.0
"""Time between two signs of life of a process that holds a file, and in a run between two copies of the files that have changed."""
PATIENCE = 3
"""Number of signs of life that must be missing before another process takes the file."""
CACHE_BYTES = 10**8
READS = {
    "experimental_read_coalescing_threshold_bytes": 10**6,
    "experimental_read_coalescing_merged_bytes": 5 * 10**8,
    "experimental_read_coalescing_interval": "1ms",
}
"""One request reads neighbours in a file. A reader names no other setting of a database: TensorStore refuses a reader whose
settings are not the writer's."""


class ConflictError(ValueError):
    """Another process has written the file since its version was read."""


class StoreError(ValueError):
    """The store refuses a request; the message is one line."""


class Unreachable(StoreError, TimeoutError):
    """The store did not answer for about a minute: a later request may succeed."""


class StoredFile(NamedTuple):
    content: bytes | None
    """None: the file does not exist."""
    version: bytes
    """For `Store.write`."""


def as_stored_file(answer: "tensorstore.KvStore.ReadResult") -> StoredFile:
    return StoredFile(answer.value if answer.state == "value" else None, answer.stamp.generation)


class Store:
    """The files below a URL. All methods raise StoreError if the store refuses a request, and Unreachable if it does not answer.

    Raises: ValueError for a URL that names no store.
    """

    def __init__(self, url: str) -> None:
        import tensorstore

        self.url, self._spec = url.rstrip("/"), spec_of(url)
        with in_one_line(self.url):
            self._values = tensorstore.KvStore.open(self._spec, context=new_context()).result()

    def read(self, name: str) -> StoredFile:
        with in_one_line(f"{self.url}/{name}"):
            return as_stored_file(self._values.read(name).result())

    def read_all(self, names: Iterable[str]) -> dict[str, bytes]:
        """Returns the contents of those of the files that exist."""
        files = self.read_versions(names)
        return {name: file.content for name, file in files.items() if file.content is not None}

    def read_versions(self, names: Iterable[str]) -> dict[str, StoredFile]:
        """Returns what `read` does for each file; all requests run at the same time."""
        with in_one_line(self.url):
            requests = {name: self._values.read(name) for name in names}
            answers = {name: request.result() for name, request in requests.items()}
        return {name: as_stored_file(answer) for name, answer in answers.items()}

    def write(self, name: str, content: bytes, version: bytes | None = None) -> bytes:
        """Writes a file, and returns its new version.

        version: the file is written only if it has this version, which may be that of a file that did not exist. If the answer to a
            write is lost, TensorStore writes again, and is refused because of its own first write. So a refused write reads the
            file, and has succeeded if the content is the same: contents that two processes may write must differ.

        Raises: ConflictError if another process has written the file: before this write or, if the answer to it was lost, after it.
        """
        with in_one_line(f"{self.url}/{name}"):
            new = self._values.write(name, content, if_equal=version).result().generation
        if new == b"":  # TensorStore's word for a condition that did not hold
            there = self.read(name)
            if there.content != content:
                raise ConflictError(f"{self.url}/{name}: another process has written this file")
            return there.version
        return new

    def names(self, prefix: str = "") -> list[str]:
        """Returns the names of all files that begin with `prefix`, sorted."""
        import tensorstore

        end = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""
        with in_one_line(self.url):
            return sorted(map(bytes.decode, self._values.list(tensorstore.KvStore.KeyRange(prefix, end)).result()))

    def delete(self, names: Iterable[str]) -> None:
        """Deletes files; a file that does not exist is no error."""
        with in_one_line(self.url):
            for deleted in [self._values.write(name, None) for name in names]:
                deleted.result()

    def database(self, folder: str) -> dict[str, object]:
        """Returns TensorStore's description of a database of arrays in a folder: a few files hold many small arrays."""
        return {"driver": "ocdbt", "base": self._spec | {"path": f"{self._spec['path']}{folder}/"}} | READS

    def check_conditions(self) -> None:
        """Raises: ValueError if the store writes a file although it has another version: some clones of S3 ignore conditions."""
        name = f".probe.{secrets.token_hex(8)}"
        absent = self.read(name).version
        first = self.write(name, b"first", absent)
        self.write(name, b"second", first)
        try:
            for version in absent, first:
                with contextlib.suppress(ConflictError):
                    self.write(name, secrets.token_bytes(), version)
                    raise ValueError(
                        f"{self.url}: this store ignores the conditions of writes (If-Match, ifGenerationMatch), which keep "
                        "a run from two writers: choose another store, or train in a folder"
                    )
        finally:
            self.delete([name])


@functools.cache
def shared_context() -> "tensorstore.Context":
    import tensorstore

    return tensorstore.Context({"gcs_request_retries": RETRIES, "s3_request_retries": RETRIES})


def new_context() -> "tensorstore.Context":
    """Returns a context of TensorStore with a cache of its own, without which nodes are read again for each array.

    The files of memory:// are the same in all contexts.
    """
    import tensorstore

    return tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}}, shared_context())


@contextlib.contextmanager
def in_one_line(place: str) -> Iterator[None]:
    """Turns an error of TensorStore, whose text has its whole specification, into a StoreError of one line."""
    try:
        yield
    except StoreError:
        raise
    except (ValueError, NotImplementedError, RuntimeError, OSError) as error:
        kind = Unreachable if str(error).startswith(("ABORTED", "UNAVAILABLE", "DEADLINE_EXCEEDED")) else StoreError
        raise kind(f"{place}: {reason_of(error)}") from None


def reason_of(error: BaseException) -> str:
    """Returns the reason in an error of TensorStore, without the specification and the places in its source."""
    return str(error).partition("\n")[0].partition(" [")[0][:300] or type(error).__name__


def spec_of(url: str) -> dict[str, object]:
    """Returns TensorStore's description of a URL; of s3:// with the endpoint, region and keys of the environment.

    Raises: ValueError if the URL names no store.
    """
    protocol, _, place = url.rstrip("/").partition("://")
    if protocol not in DRIVERS or not place or (protocol == "file" and not place.startswith("/")):
        raise ValueError(f"{url}: give gs://BUCKET/RUN, s3://BUCKET/RUN, or file:///FOLDER with an absolute path")
    if protocol in ("file", "memory"):
        return {"driver": protocol, "path": f"{place}/"}
    bucket, _, path = place.partition("/")
    spec: dict[str, Any] = {"driver": DRIVERS[protocol], "bucket": bucket, "path": f"{path}/" if path else ""}
    if protocol == "gs":
        return spec
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint is not None:
        spec |= {"endpoint": endpoint, "aws_region": region or "us-east-1"}
    elif region is not None:
        spec |= {"aws_region": region}
    if "AWS_ACCESS_KEY_ID" in os.environ:  # else TensorStore looks in files and asks the machine
        spec |= {"aws_credentials": {"type": "environment"}}
    return spec
