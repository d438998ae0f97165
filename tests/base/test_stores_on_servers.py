"""Laws of stores on servers, a fake of Google's storage and moto: one winner of each claim, no lost update or answer."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import tensorstore

from flaxformer_lite.base import stores
from flaxformer_lite.base.stores import ConflictError, Store, Unreachable
from tests.support.gcs import Storage, google_storage
from tests.support.s3 import BUCKET, s3_gate

WRITERS = 4


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    retries = {f"{name}_request_retries": {"max_retries": 5, "initial_delay": "10ms"} for name in ("gcs", "s3")}
    context = tensorstore.Context(retries)
    monkeypatch.setattr(stores, "shared_context", lambda: context)


@pytest.fixture(params=["gs", pytest.param("s3", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with google_storage() if request.param == "gs" else s3_gate():
        yield f"{request.param}://{BUCKET}/run"


@pytest.fixture
def storage() -> Iterator[Storage]:
    with google_storage() as storage:
        yield storage


GOOGLE = f"gs://{BUCKET}/run"


def at_once(work: Callable[[int], None]) -> None:
    """Calls a function in WRITERS threads at the same moment."""
    start = threading.Barrier(WRITERS)

    def run(number: int) -> None:
        start.wait()
        work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_claim_has_one_winner(url: str):
    winners = list[tuple[int, int]]()

    def claim(number: int) -> None:
        store = Store(url)
        for turn in range(10):
            content, version = store.read(f"claims/{turn}")
            try:
                if content is None:
                    store.write(f"claims/{turn}", secrets.token_bytes(), version)
                    winners.append((turn, number))
            except ConflictError:
                pass

    at_once(claim)
    assert sorted(turn for turn, _ in winners) == [*range(10)]


def add(store: Store, times: int) -> None:
    """Adds 1 to a number so many times."""
    while times:
        content, version = store.read("number")
        number = int((content or b"0").split()[0]) + 1
        try:
            store.write("number", f"{number} {secrets.token_hex()}".encode(), version)
            times -= 1
        except ConflictError:
            pass


def test_no_update_is_lost(url: str):
    at_once(lambda _: add(Store(url), 10))
    assert (Store(url).read("number").content or b"").split()[0] == b"40"
    assert Store(url).names() == ["number"]


def test_an_update_whose_answer_was_lost_is_made_once(storage: Storage):
    """A repeated write is refused by its own condition: its content tells it from another's."""
    for _ in range(10):
        storage.lost_answers = storage.busy = 1
        add(Store(GOOGLE), 1)
        assert storage.lost_answers == storage.busy == 0
    assert (Store(GOOGLE).read("number").content or b"").split()[0] == b"10"


def test_a_conflict_is_one_though_an_answer_was_lost(storage: Storage):
    store = Store(GOOGLE)
    absent = store.read("x").version
    storage.lost_answers = 1
    version = store.write("x", b"mine", absent)
    assert store.read("x") == (b"mine", version)
    with pytest.raises(ConflictError):
        store.write("x", b"another's", absent)
    assert store.read("x") == (b"mine", version)


def test_a_server_that_is_busy_or_away_for_a_while_is_asked_again(storage: Storage):
    """And one that is away for good is told in one line, after which it is found again."""
    store = Store(GOOGLE)
    storage.busy = 3
    store.write("x", b"after three refusals")
    storage.away_until = time.monotonic() + 0.1
    assert store.read("x").content == b"after three refusals" and storage.counts["FAULT"] > 3
    storage.away_until = time.monotonic() + 10**6
    with pytest.raises(Unreachable, match=rf"^{GOOGLE}/x: [^\n]+$"):
        store.write("x", b"lost")
    storage.away_until = 0.0
    assert store.read("x").content == b"after three refusals"


def test_names_come_page_by_page(url: str):
    """Law: more names than a page of Google's fake has, in order, and those of a prefix alone."""
    store, names = Store(url), [f"{folder}/{number:03}" for folder in ("a", "ab", "b") for number in range(50)]
    for name in names:
        store.write(name, name.encode())
    assert store.names() == names and store.names("a/") == names[:50] and len(store.read_all(names)) == 150


def test_a_store_that_ignores_conditions_is_refused(url: str, monkeypatch: pytest.MonkeyPatch):
    Store(url).check_conditions()
    assert Store(url).names() == []
    if url.startswith("gs"):
        monkeypatch.setattr("tests.support.gcs.Handler.holds", lambda *_: True)
        with pytest.raises(ValueError, match="this store ignores the conditions of writes"):
            Store(url).check_conditions()
