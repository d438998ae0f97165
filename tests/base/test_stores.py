"""Stores: what a store promises, on the drivers that need no server."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorstore

from flaxformer_lite.base import stores
from flaxformer_lite.base.remote_files import is_store
from flaxformer_lite.base.stores import ConflictError, Store, Unreachable, reason_of


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(f"{request.param}://{tmp_path}/run")


@pytest.mark.parametrize("url", ["file://run", "file://", "gs://", "ftp://host/run", "runs/x"])
def test_a_url_that_names_no_store(url: str):
    with pytest.raises(ValueError, match="absolute path"):
        Store(url)


@pytest.mark.parametrize("protocol", [*stores.DRIVERS, "http", "gcs", "hf"])
def test_the_protocols_of_stores_are_known_without_tensorstore(protocol: str):
    assert is_store(f"{protocol}://bucket/run") == (protocol in stores.DRIVERS)


def test_files_are_written_read_listed_and_deleted(store: Store):
    names = [".run.json", "a/b/c", "a/d", "ab"]
    assert store.names() == [] and store.read("a/d").content is None
    for name in names:
        store.write(name, name.encode())
    assert store.names() == names and store.names("a/") == ["a/b/c", "a/d"]
    assert store.read_all([*names, "missing"]) == {name: name.encode() for name in names}
    store.delete(["a/d", "missing"])
    assert store.names() == [".run.json", "a/b/c", "ab"], "not those whose names begin so"
    assert Store(f"{store.url}/").read("ab").content == b"ab", "other objects of the store see the same files"


def test_a_write_depends_on_the_version_that_was_read(store: Store):
    absent = store.read("x").version
    first = store.write("x", b"first", absent)
    with pytest.raises(ConflictError, match=r"run/x: another process has written this file$"):
        store.write("x", b"other", absent)
    second = store.write("x", b"second", first)
    with pytest.raises(ConflictError):
        store.write("x", b"other", first)
    assert store.read("x") == (b"second", second)
    store.delete(["x"])
    with pytest.raises(ConflictError):
        store.write("x", b"other", second)
    store.write("x", b"without a condition")


def test_a_write_whose_answer_was_lost_has_succeeded(store: Store):
    """The retry is refused by the condition of the first try, as the file has its own content already."""
    absent = store.read("x").version
    version = store.write("x", b"mine", absent)
    assert store.write("x", b"mine", absent) == version


def test_no_update_is_lost(store: Store):
    """Law: eight threads, each with a store of its own, add 1 to a number 20 times."""

    def add() -> None:
        mine, done = Store(store.url), 0
        while done < 20:
            content, version = mine.read("number")
            try:
                mine.write(
                    "number", f"{int((content or b'0').split()[0]) + 1} {threading.get_ident()}".encode(), version
                )
                done += 1
            except ConflictError:
                pass

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (store.read("number").content or b"").split()[0] == b"160"


def test_the_probe_leaves_nothing_and_refuses_a_store_that_ignores_conditions(store: Store):
    store.check_conditions()
    assert store.names() == []
    values = store._values

    class Ignorant:
        def write(self, name: str, content: bytes | None, if_equal: bytes | None = None) -> Any:
            return values.write(name, content)

        def __getattr__(self, name: str) -> Any:
            return getattr(values, name)

    store._values = Ignorant()
    with pytest.raises(ValueError, match=r"this store ignores the conditions of writes .*: choose another store"):
        store.check_conditions()
    assert store.names() == []


@pytest.mark.parametrize(
    "call", [lambda s: s.read("x"), Store.names, lambda s: s.write("x", b""), lambda s: s.read_all("x")]
)
def test_an_error_is_one_line(monkeypatch: pytest.MonkeyPatch, call: Callable[[Store], object]):
    retries = {"s3_request_retries": {"max_retries": 1, "initial_delay": "1ms"}}
    monkeypatch.setattr(stores, "shared_context", lambda: tensorstore.Context(retries))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY":
        monkeypatch.setenv(name, "key")
    with pytest.raises(Unreachable, match=r"^s3://bucket/run(/x)?: .*Could not connect to server") as raised:
        call(Store("s3://bucket/run"))
    assert "\n" not in str(raised.value) and "curl_code" not in str(raised.value)


def test_the_reason_of_an_error_that_holds_a_specification():
    with pytest.raises(ValueError, match="tensorstore_spec") as raised:
        tensorstore.open({"driver": "zarr3", "kvstore": "memory://none/"}).result()
    assert reason_of(raised.value).endswith('Metadata at "none/zarr.json" does not exist')
