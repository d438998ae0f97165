"""Laws of a corpus at a URL: the files of a local folder, whoever answers, sleeps or dies; oracle: that folder."""

import contextlib
import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import tensorstore

from flaxformer_lite.base import stores
from flaxformer_lite.base.console import Failure
from flaxformer_lite.base.sealed_files import unsealed
from flaxformer_lite.base.stores import Store
from flaxformer_lite.tools.corpus import Corpus, Part, digest, join, places
from tests.support.corpora import ENDING, LINES, NUMBER, SIZE, answer_corpus, content, pieces, reverse, start_worker
from tests.support.gcs import google_storage
from tests.support.s3 import BUCKET, s3_gate


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of one process in a folder, without the joined one."""
    out = tmp_path_factory.mktemp("whole") / "out"
    answer_corpus(out)
    return content(out)


@pytest.fixture(params=["file", "gs", pytest.param("s3", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file://{tmp_path}/out"
        return
    with google_storage() if request.param == "gs" else s3_gate():
        yield f"{request.param}://{BUCKET}/out"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life 400 times as often."""
    monkeypatch.setattr(places, "BEAT_SECONDS", 0.05)


def there(url: str) -> dict[str, bytes]:
    """Returns all files at a URL, hidden ones too."""
    store = Store(url)
    return store.read_all(store.names())


def test_a_url_gets_the_files_of_a_folder(url: str, whole: Mapping[str, bytes]):
    """The last part first; a claim is no file that stays."""
    for number in (3, 2, 1):
        with pytest.raises(ValueError, match=r"lacks|no corpus\.json"):
            join(url)
        answer_corpus(url, part=Part(number, 3))
    assert there(url) == whole
    answer_corpus(url, pieces(answer=no_answer))
    message = r"0000001\.txt\.gz answers: the input has changed"
    with pytest.raises(ValueError, match=message):
        answer_corpus(url, pieces([*LINES[:6], "another", *LINES[7:]]))
    with pytest.raises(ValueError, match=r"0000018\.txt\.gz answers: the input has changed"):
        answer_corpus(url, pieces([*LINES, "one more"]))


def no_answer(lines: Sequence[str]) -> bytes:
    raise AssertionError("answered again")


@pytest.mark.parametrize("protocol", ["file", pytest.param("s3", marks=pytest.mark.slow)])
def test_the_joined_file_of_a_url_is_that_of_a_folder(tmp_path: Path, protocol: str):
    """Google's storage takes large files by fsspec too, whose package asks no server on this machine."""
    answer_corpus(tmp_path / "local")
    with contextlib.nullcontext() if protocol == "file" else s3_gate():
        url = f"file://{tmp_path}/out" if protocol == "file" else f"s3://{BUCKET}/out"
        answer_corpus(url)
        joined = join(url)
        assert joined == f"{url}/answers{ENDING}"
        assert Store(url).read(f"answers{ENDING}").content == Path(join(tmp_path / "local")).read_bytes()


def test_a_url_that_holds_other_files_or_is_no_store_is_refused(tmp_path: Path):
    Store(f"file://{tmp_path}").write("notes", b"mine")
    with pytest.raises(ValueError, match=r"holds files but no corpus\.json: choose"):
        answer_corpus(f"file://{tmp_path}")
    with pytest.raises(ValueError, match="give gs://"):
        answer_corpus("https://host/out")
    assert there(f"file://{tmp_path}") == {"notes": b"mine"}


def test_two_at_once_answer_each_piece_once(url: str, whole: Mapping[str, bytes]):
    answered, turn = list[str](), threading.Barrier(2)

    def answer(lines: Sequence[str]) -> bytes:
        answered.append(lines[0])
        time.sleep(0.01)
        return reverse(lines)

    def work() -> None:
        turn.wait()
        answer_corpus(url, pieces(answer=answer))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answered) == sorted(LINES[::SIZE]) and there(url) == whole


def test_a_manifest_that_another_start_writes_meanwhile_is_read(url: str, monkeypatch: pytest.MonkeyPatch):
    one, other = Corpus(url, ENDING), Corpus(url, ENDING)
    read = one.place.read

    def slow_read(name: str) -> bytes | None:
        content = read(name)
        if content is None:
            other.agree({"ending": ENDING})
        return content

    monkeypatch.setattr(one.place, "read", slow_read)
    one.agree({"ending": ENDING})


def test_the_claim_of_a_dead_process_is_taken_and_that_of_a_live_one_is_not(
    url: str, whole: Mapping[str, bytes], quick: None, capsys: pytest.CaptureFixture
):
    """No sign of life changes a dead claim; the live one changes in time, however slowly the piece is answered."""
    Store(url).write(".claims/0000002", b"a process that was killed")
    with Corpus(url, ENDING).place.claim("0000005") as is_free:
        assert is_free
        answer_corpus(url)
        assert "1 piece missing" in capsys.readouterr().err
        names = {*there(url)}
        assert f"0000005{ENDING}" not in names and f"0000002{ENDING}" in names and ".claims/0000005" in names
    answer_corpus(url)
    assert there(url) == whole


def test_a_claim_that_fails_is_free_at_once(url: str, whole: Mapping[str, bytes]):
    """Within the patience of a minute: neither an error nor Ctrl-C leaves a claim."""
    with pytest.raises(KeyboardInterrupt):
        answer_corpus(url, pieces(answer=interrupted))
    answer_corpus(url)
    assert there(url) == whole


def interrupted(lines: Sequence[str]) -> bytes:
    raise KeyboardInterrupt


class Turns:
    """Lets the requests of two writers happen in a given order."""

    def __init__(self, order: Sequence[str]) -> None:
        self.order, self.moved, self.ended = [*order], threading.Condition(), set[str]()

    def wait(self, writer: str) -> None:
        with self.moved:
            assert self.moved.wait_for(lambda: self._next() in (writer, None), 20)
            if self.order:
                self.order.pop(0)
            self.moved.notify_all()

    def _next(self) -> str | None:
        while self.order and self.order[0] in self.ended:
            self.order.pop(0)
        return self.order[0] if self.order else None

    def end(self, writer: str) -> None:
        with self.moved:
            self.ended.add(writer)
            self.moved.notify_all()


@pytest.mark.parametrize("seed", range(24))
def test_a_process_that_slept_through_its_claim_breaks_no_piece(seed: int):
    """Law: in whatever order two writers of one piece, with different answers, read and write, the piece is one's, with its record.

    The writer that has slept has read the piece before the other took its claim.
    """
    url, piece = f"memory://{secrets.token_hex()}", next(pieces())
    order = random.Random(seed).sample(["sleeper"] * 6 + ["taker"] * 6, 12)
    turns, answers = Turns(order), {"sleeper": b"first answers", "taker": b"second answers"}

    def work(writer: str) -> None:
        corpus = Corpus(url, ENDING)
        read, write = corpus.place.read, corpus.place.write

        def in_turn(function: Callable) -> Callable:
            return lambda *words: (turns.wait(writer), function(*words))[1]

        corpus.place.read, corpus.place.write = in_turn(read), in_turn(write)  # type: ignore[method-assign]
        if corpus.finished(0) is None:
            corpus.write(piece, answers[writer])
        turns.end(writer)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in answers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = there(url)
    record = unsealed(files["0000000.json"], "", lines=int, source=str, answers=str)
    assert record["answers"] == digest(files[f"0000000{ENDING}"])
    assert Corpus(url, ENDING).finished(0) is not None


def test_an_answer_that_was_lost_and_a_busy_server_change_nothing(whole: Mapping[str, bytes]):
    with google_storage() as storage:
        url = f"gs://{BUCKET}/out"
        storage.lost_answers = 5

        def answer(lines: Sequence[str]) -> bytes:
            storage.lost_answers += 2
            return reverse(lines)

        answer_corpus(url, pieces(answer=answer))
        assert there(url) == whole


def test_the_requests_of_a_piece_are_few():
    """Law: 15 requests for a piece at most, and 2 for a finished one; each is a price and a wait."""
    with google_storage() as storage:
        url = f"gs://{BUCKET}/out"
        answer_corpus(url)
        first = sum(storage.counts.values())
        answer_corpus(url, pieces(answer=no_answer))
        assert 5 * NUMBER < first < 15 * NUMBER + 20, storage.counts
        assert sum(storage.counts.values()) - first < 2 * NUMBER + 20, storage.counts


def test_a_storage_that_is_away_for_good_ends_the_work_with_one_line(
    whole: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
):
    """Law: the next start answers what is missing; the claim that stayed is found dead."""
    retries = {"gcs_request_retries": {"max_retries": 2, "initial_delay": "10ms"}}
    monkeypatch.setattr(stores, "shared_context", lambda: tensorstore.Context(retries))
    monkeypatch.setattr(places, "BEAT_SECONDS", 0.1)
    with google_storage() as storage:
        url = f"gs://{BUCKET}/out"

        def answer(lines: Sequence[str]) -> bytes:
            if lines[0] == LINES[5 * SIZE]:
                storage.away_until = time.monotonic() + 10**6
            return reverse(lines)

        with pytest.raises(Failure, match=rf"^{url}.*; all finished pieces are kept: start the same command again$"):
            answer_corpus(url, pieces(answer=answer))
        storage.away_until = 0.0
        left = {name: file for name, file in there(url).items() if name.startswith("0")}
        assert left.items() <= whole.items() and len(left) == 2 * 5
        answer_corpus(url)
        assert there(url) == whole


@pytest.mark.slow
def test_killed_and_sleeping_processes_leave_the_files_of_one(whole: Mapping[str, bytes]):
    """A process is killed at drawn moments; then one sleeps longer than its claim lives, while another does the rest."""
    with google_storage() as storage:
        url, chance = f"gs://{BUCKET}/out", random.Random(70)
        for _ in range(3):
            worker = start_worker(url, 0.02, beat=0.2)
            assert worker.stdout is not None
            worker.stdout.readline()
            time.sleep(chance.random() * 0.1)
            worker.kill()
            worker.communicate()
        sleeper, other = start_worker(url, 0.05, beat=0.2), start_worker(url, 0.05, beat=0.2)
        assert sleeper.stdout is not None
        sleeper.stdout.readline()
        os.kill(sleeper.pid, signal.SIGSTOP)
        other.communicate()
        os.kill(sleeper.pid, signal.SIGCONT)
        sleeper.communicate()
        assert sleeper.returncode == other.returncode == 0
        files = {name: file for name, file in there(url).items() if not name.startswith(".claims")}
        assert files == whole and storage.counts["PUT"] > 3 * NUMBER
