"""Laws of a corpus: its answers are those of one undisturbed process, whatever happens; what differs is refused by name.

Oracle: the bytes of a folder that one process wrote at once, and the reverse of each line.
"""

import errno
import gzip
import io
import itertools
import json
import random
import re
import resource
import signal
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.base.atomic_files import write_chunks
from flaxformer_lite.base.console import Failure
from flaxformer_lite.base.sealed_files import sealed, write_sealed
from flaxformer_lite.core.base.progress import no_progress
from flaxformer_lite.tools.corpus import Corpus, Part, digest, join, part_of_process, typed_part
from flaxformer_lite.tools.corpus.places import FolderPlace
from flaxformer_lite.tools.corpus.writing import Speed
from tests.support.corpora import ENDING, LINES, NUMBER, SIZE, answer_corpus, content, pieces, reverse, start_worker
from tests.support.disks import mount, small_disk

JOINED = f"answers{ENDING}"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the undisturbed process, with the joined one."""
    out = tmp_path_factory.mktemp("whole") / "out"
    answer_corpus(out)
    join(out)
    return content(out)


def test_the_pieces_and_the_joined_file_have_the_answers_in_order(whole: Mapping[str, bytes]):
    assert gzip.decompress(whole[JOINED]) == reverse(LINES)
    assert len(whole) == 2 * NUMBER + 2
    assert gzip.decompress(whole[f"0000001{ENDING}"]) == reverse(LINES[SIZE : 2 * SIZE])


@pytest.mark.parametrize("parts", [2, 3, 40])
def test_parts_make_the_bytes_of_one_process(tmp_path: Path, whole: Mapping[str, bytes], parts: int):
    """Law: the last part first, and with more parts than pieces, the folder is that of 1/1."""
    for number in range(parts, 0, -1):
        with pytest.raises(ValueError, match=r"lacks|no corpus\.json"):
            join(tmp_path)
        answer_corpus(tmp_path, part=Part(number, parts))
    assert Path(join(tmp_path)).name == JOINED and content(tmp_path) == whole


def test_a_share_is_typed_or_that_of_the_cluster():
    assert [index for index in range(9) if typed_part("2/4").takes(index)] == [1, 5]
    assert typed_part("2/4").origin == "--part"
    srun = {"SLURM_PROCID": "7", "SLURM_STEP_NUM_TASKS": "8"}
    pod = {"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "a,b,c"}
    assert part_of_process(srun | pod) == Part(8, 8, "SLURM") and part_of_process(pod) == Part(1, 3, "the TPU pod")
    assert part_of_process(dict.fromkeys(pod, "WARNING: could not determine TPU worker number, please …")) == Part()
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
    assert part_of_process(batch) == part_of_process({}) == Part(), "a batch script is one process"
    for text in ("0/4", "5/4", "1/0", "1", "a/b", "-1/2", "1/2/3"):
        with pytest.raises(ValueError, match=r"--part.*must be"):
            typed_part(text)


def test_jax_says_the_part_if_it_has_been_initialised(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jax.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("jax.process_index", lambda: 2)
    monkeypatch.setattr("jax.process_count", lambda: 5)
    assert part_of_process({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"}) == Part(3, 5, "jax.distributed")


def test_a_start_with_other_facts_or_lines_is_refused_by_name(tmp_path: Path, whole: Mapping[str, bytes]):
    answer_corpus(tmp_path / "facts", beam_size=4, stop=["a"])
    before = content(tmp_path / "facts")
    with pytest.raises(ValueError, match="begun with beam_size = 4, and this start has 5: start with the old"):
        answer_corpus(tmp_path / "facts", beam_size=5, stop=["a"])
    with pytest.raises(ValueError, match=r"ending = '\.txt\.gz'"):
        answer_corpus(tmp_path / "facts", ending=".txt")
    changed = [*LINES[:6], "another", *LINES[7:]]
    message = r"in\.txt, lines 6 to 10 are not .*0000001\.txt\.gz answers: the input has ch"
    with pytest.raises(ValueError, match=message):
        answer_corpus(tmp_path / "facts", pieces(changed), beam_size=4)
    with pytest.raises(ValueError, match="number_of_lines = 93, and this start has 90: the input has changed; restore"):
        answer_corpus(tmp_path / "facts", pieces(LINES[:90]), beam_size=4)
    assert content(tmp_path / "facts") == before
    answer_corpus(tmp_path / "one", pieces(LINES[: 3 * SIZE]))
    with pytest.raises(ValueError, match="number_of_lines = 15, and this start has 93"):
        answer_corpus(tmp_path / "one")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes").touch()
    with pytest.raises(ValueError, match=r"holds files but no corpus\.json: choose"):
        answer_corpus(tmp_path / "other")
    with pytest.raises(ValueError, match="no lines: give"):
        answer_corpus(tmp_path / "none", pieces([]))


def test_a_part_checks_the_finished_pieces_of_others_too(tmp_path: Path):
    answer_corpus(tmp_path, part=Part(1, 2))
    with pytest.raises(ValueError, match="the input has changed"):
        answer_corpus(tmp_path, pieces(["another", *LINES[1:]]), part=Part(2, 2))


def damage(file: Path) -> None:
    changed = bytearray(file.read_bytes())
    changed[-9] ^= 1
    file.write_bytes(changed)


def test_a_damaged_piece_is_refused_by_name_and_made_again_once_it_is_deleted(
    tmp_path: Path, whole: Mapping[str, bytes]
):
    answer_corpus(tmp_path)
    piece = tmp_path / f"0000003{ENDING}"
    damage(piece)
    with pytest.raises(ValueError, match=r"0000003\.txt\.gz is not as it was written: delete it"):
        join(tmp_path)
    assert not (tmp_path / JOINED).exists() and not [*tmp_path.glob(".*.unfinished")]
    piece.unlink()
    with pytest.raises(ValueError, match="lacks 1 of 19 pieces: 0000003; start the command"):
        join(tmp_path)
    damage(tmp_path / "0000004.json")
    answer_corpus(tmp_path)
    join(tmp_path)
    assert content(tmp_path) == whole


@pytest.mark.parametrize("killed", [False, True])
def test_two_inputs_of_one_name_are_not_mixed(tmp_path: Path, killed: bool):
    """The process that ends last tells it, and `join` if that one was killed at its end."""
    old, new = tmp_path / "old", tmp_path / "new"
    answer_corpus(old, part=Part(1, 2))
    answer_corpus(new, pieces([line.upper() for line in LINES]), part=Part(2, 2))
    if killed:
        for file in new.glob("0*"):
            file.rename(old / file.name)
    else:
        others = pieces([line.upper() for line in LINES])
        kept = {index: replace(piece, source=piece.source) for index, piece in enumerate(pieces())}
        mixed = (piece if index % 2 else kept[index] for index, piece in enumerate(others))
        message = r"begun with content_of_lines = .*the input has changed; restore it, or ch"
        with pytest.raises(ValueError, match=message):
            answer_corpus(old, mixed, part=Part(2, 2))
    with pytest.raises(ValueError, match=r"several inputs: start the command with its FILEs"):
        join(old)
    assert not (old / JOINED).exists()


def test_a_damaged_manifest_is_refused(tmp_path: Path):
    """The end of the names is the caller's."""
    answer_corpus(tmp_path, ending=".jsonl.gz")
    assert join(tmp_path).endswith("/answers.jsonl.gz")
    damage(tmp_path / "corpus.json")
    for action in (lambda: join(tmp_path), lambda: answer_corpus(tmp_path)):
        with pytest.raises(ValueError, match=r"corpus\.json is garbled: choose"):
            action()


FACTS = {
    "ending": ".txt",
    "number_of_lines": 1,
    "number_of_pieces": 1,
    "content_of_lines": digest(digest(b"").encode()),
}


@pytest.mark.parametrize(
    "facts",
    [
        *({name: value for name, value in FACTS.items() if name != missing} for missing in FACTS),
        *(FACTS | {name: value} for name in FACTS for value in ("1", 1.5, None, [], {}, 10**30, -1, True)),
        *(FACTS | {"ending": f"/../profile{ending}"} for ending in ("", ".txt")),
        *(FACTS | {"ending": ending} for ending in (".json", ".lock", ".json.gz", "..txt", ".txt\n")),
        *([], "text", None, 7, [FACTS]),
    ],
)
def test_a_strangers_manifest_is_refused_in_one_line_and_nothing_is_written(tmp_path: Path, facts: Any):
    """Law of `--join`: whatever a manifest says, its error is a ValueError, and no file is new or changed."""
    folder, outside = tmp_path / "folder", tmp_path / "profile"
    outside.write_text("mine")
    for name in ("0000000", "answers"):
        (folder / name).mkdir(parents=True)
    (folder / "profile").write_text("theirs")
    write_sealed(folder / "0000000.json", {"lines": 1, "source": digest(b""), "answers": digest(b"theirs")})
    (folder / "corpus.json").write_text(json.dumps(sealed(facts)))
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match=r"^\S+folder.*(choose another -o|FILEs again)"):
        join(folder)
    assert sorted(folder.rglob("*")) == before and outside.read_text() == "mine"


def test_links_of_a_strangers_folder_write_nothing_outside(tmp_path: Path):
    """Law: neither a new file nor another content; the joined file takes the place of its link."""
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    answer_corpus(folder)
    outside.write_text("mine")
    (folder / JOINED).symlink_to(outside)
    join(folder)
    assert outside.read_text() == "mine" and not (folder / JOINED).is_symlink()
    (folder / ".lock").unlink()
    (folder / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(Failure, match="folder: Too many levels of symbolic links"):
        join(folder)
    assert not (tmp_path / "new").exists()


RECORDS: tuple[Any, ...] = ({}, [], {"lines": 5, "source": 1, "answers": ""}, {"lines": None, "source": ""})
GARBLED = (b"", b"{", b"\xff", b"[]", b"9" * 5000, b"[" * 100_000, b'{"sha256": 1}')


@pytest.mark.parametrize("content", [*GARBLED, *(json.dumps(sealed(record)).encode() for record in RECORDS)])
def test_a_garbled_file_of_a_corpus_is_refused_in_one_line(tmp_path: Path, content: bytes):
    """A record of another form is that of no finished piece."""
    answer_corpus(tmp_path)
    (tmp_path / "0000003.json").write_bytes(content)
    with pytest.raises(ValueError, match="lacks 1 of 19 pieces: 0000003"):
        join(tmp_path)
    (tmp_path / "corpus.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"corpus\.json is garbled"):
        join(tmp_path)


def failing(times: Mapping[str, int], error: Exception) -> Callable[[Sequence[str]], bytes]:
    """Returns answers that fail so many times for a piece with this first line."""
    left = dict(times)

    def answer(lines: Sequence[str]) -> bytes:
        if left.get(lines[0], 0):
            left[lines[0]] -= 1
            raise error
        return reverse(lines)

    return answer


def test_a_piece_that_fails_twice_is_left_for_the_next_start(
    tmp_path: Path, whole: Mapping[str, bytes], capsys: pytest.CaptureFixture
):
    answer = failing({LINES[0]: 1, LINES[5]: 2, LINES[10]: 2, LINES[20]: 9}, RuntimeError("no luck"))
    message = r"^3 pieces failed twice: in\.txt, lines 6 to 10; .*lines 21 to 25; start the sa"
    with pytest.raises(Failure, match=message):
        answer_corpus(tmp_path, pieces(answer=answer))
    said = capsys.readouterr().err
    assert said.count("is tried again") == 4 and said.count("is left for the next start") == 3
    assert len([*tmp_path.glob(f"0*{ENDING}")]) == NUMBER - 3
    answered = list[str]()
    answer_corpus(tmp_path, pieces(answer=lambda lines: answered.append(lines[0]) or reverse(lines)))
    join(tmp_path)
    assert answered == [LINES[5], LINES[10], LINES[20]] and content(tmp_path) == whole


def test_three_failed_pieces_in_a_row_end_the_work_with_their_error(tmp_path: Path):
    times = {LINES[index]: 2 for index in (0, 5, 15, 20, 25)}
    with pytest.raises(ValueError, match=r"^all are wrong$"):
        answer_corpus(tmp_path, pieces(answer=failing(times, ValueError("all are wrong"))))
    assert [file.name for file in sorted(tmp_path.glob(f"0*{ENDING}"))] == [f"0000002{ENDING}"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interruption_and_a_full_disk_leave_whole_pieces(
    tmp_path: Path, whole: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch, error: BaseException
):
    """Law: at every write of the folder; nothing half-written looks whole, and the next start ends as if nothing was."""
    writes = 0

    def write(path: Path, chunks: Sequence[bytes]) -> None:
        nonlocal writes
        writes += path.name.endswith(ENDING)
        if path.name.endswith(ENDING) and writes % 3 == 0:
            (path.parent / f".{path.name}.ab.unfinished").write_bytes(chunks[0][:7])  # as a kill leaves it
            raise error
        write_chunks(path, chunks)

    monkeypatch.setattr("flaxformer_lite.tools.corpus.places.write_chunks", write)
    for finished in range(2, NUMBER, 2):
        message = r"^$|out: No space left .* are kept: repair it, and start"
        with pytest.raises((KeyboardInterrupt, Failure), match=message):
            answer_corpus(tmp_path / "out")
        assert len([*(tmp_path / "out").glob(f"0*{ENDING}")]) == finished
    answer_corpus(tmp_path / "out")
    join(tmp_path / "out")
    assert content(tmp_path / "out") == whole


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is no folder"):
        answer_corpus(tmp_path / "file" / "out")


def test_vectors_become_one_array_in_the_memory_of_a_piece(tmp_path: Path):
    rows = np.random.default_rng(3).normal(size=(2003, 500)).astype(np.float32)

    def vectors(lines: Sequence[str]) -> bytes:
        file = io.BytesIO()
        np.save(file, rows[int(lines[0]) : int(lines[-1]) + 1])
        return file.getvalue()

    answer_corpus(tmp_path / "first", pieces(["0"], vectors, size=50), ending=".npy")  # what it imports does not count
    tracemalloc.start()
    answer_corpus(tmp_path / "all", pieces([str(n) for n in range(len(rows))], vectors, size=50), ending=".npy")
    joined = Path(join(tmp_path / "all"))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.save(tmp_path / "expected.npy", rows)
    assert joined.read_bytes() == (tmp_path / "expected.npy").read_bytes()
    assert most < rows.nbytes / 4, f"{most:,} of {rows.nbytes:,} bytes"


def test_a_file_system_without_locks_is_written_to_with_a_warning(
    tmp_path: Path, whole: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", refuse)
    answer_corpus(tmp_path)
    join(tmp_path)
    assert content(tmp_path) == whole and capsys.readouterr().err.count("cannot be locked (No locks available)") == 1


def test_a_claim_is_another_processes_until_it_ends(tmp_path: Path, whole: Mapping[str, bytes]):
    """Law: a claimed piece is skipped, what its process has not finished is left alone; both are free once it is killed."""
    worker = start_worker(tmp_path / "out", 60)
    assert worker.stdout is not None and worker.stdout.readline() == LINES[0] + "\n"
    unfinished = tmp_path / "out" / f".0000000{ENDING}.ab.unfinished"
    unfinished.touch()
    answered = list[str]()
    answer_corpus(tmp_path / "out", pieces(answer=lambda lines: answered.append(lines[0]) or reverse(lines)))
    assert len(answered) == NUMBER - 1 and LINES[0] not in answered and unfinished.exists()
    with Corpus(tmp_path / "out", ENDING).place.claim("0000000") as is_free:
        assert not is_free
    worker.kill()
    worker.communicate()
    answer_corpus(tmp_path / "out")
    join(tmp_path / "out")
    assert content(tmp_path / "out") == whole


def test_a_piece_that_another_process_has_just_finished_is_not_answered_again(
    tmp_path: Path, whole: Mapping[str, bytes], monkeypatch: pytest.MonkeyPatch
):
    """The other one ends between the look at the piece and its claim."""
    claim, others = FolderPlace.claim, {piece.name: piece for piece in pieces()}

    def late(place: FolderPlace, name: str, **options: bool) -> AbstractContextManager[bool]:
        if name in others:
            Corpus(place.folder, ENDING).write(others[name], others[name].answer(no_progress))
        return claim(place, name, **options)

    monkeypatch.setattr(FolderPlace, "claim", late)
    answer_corpus(tmp_path, pieces(answer=no_answer))
    join(tmp_path)
    assert content(tmp_path) == whole


def no_answer(lines: Sequence[str]) -> bytes:
    raise AssertionError("answered again")


def test_the_speed_leaves_out_the_first_piece_and_the_time_left_goes_by_the_share_read(monkeypatch: pytest.MonkeyPatch):
    """Oracle: 30 lines in the 10 s since the first piece; half of the input in these, and a quarter left: 5 s."""
    first, *_, second, third = pieces(LINES[:60], size=15)
    times = iter([100.0, 110.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    speed = Speed()
    speed.add(replace(first, share=0.25))
    assert speed.told(0.25) == "15 lines answered"
    speed.add(second)
    speed.add(third)
    assert speed.told(0.75) == "45 lines answered, 3.0 a second, 75% read, 5 s left"


# Processes that are disturbed -------------------------------------------------------------------------------------------


def finish(out: Path) -> None:
    worker = start_worker(out)
    said = worker.communicate()[1]
    assert worker.returncode == 0, said
    join(out)


@pytest.mark.slow
def test_killed_at_twenty_moments_the_folder_is_that_of_one_process(tmp_path: Path, whole: Mapping[str, bytes]):
    chance, kills, folders = random.Random(54), 0, 0
    while kills < 20:
        out, finished, folders = tmp_path / f"out{folders}", False, folders + 1
        while not finished and kills < 20:
            worker = start_worker(out, 0.02)
            assert worker.stdout is not None
            worker.stdout.readline()  # so that a kill meets the work, and not Python's start
            time.sleep(chance.random() ** 2 * 0.25)
            worker.kill()
            worker.communicate()
            finished = worker.returncode == 0
            kills += worker.returncode == -signal.SIGKILL
            for file in out.glob(f"0*{ENDING}"):
                assert file.read_bytes() == whole[file.name], "a piece that looks whole is not"
        finish(out)
        assert content(out) == whole
    print(f"{kills} kills in {folders} folders")


@pytest.mark.slow
def test_two_workers_at_once_share_the_work(tmp_path: Path, whole: Mapping[str, bytes]):
    """Law: each piece is answered once, whoever does it; the same of two parts that a third process helps."""
    for parts in (("1/1", "1/1"), ("1/2", "2/2", "1/1")):
        out = tmp_path / f"{len(parts)}"
        workers = [start_worker(out, 0.05, part) for part in parts]
        answered = [worker.communicate()[0].splitlines() for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * len(parts)
        assert sorted(itertools.chain(*answered)) == sorted(LINES[::SIZE])
        assert min(map(len, answered)) > 0, "one did all: nothing was shared"
        join(out)
        assert content(out) == whole


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_whole_pieces(tmp_path: Path, whole: Mapping[str, bytes], number: signal.Signals):
    worker = start_worker(tmp_path / "out", 0.05, prepare=lambda: signal.signal(number, signal.SIG_DFL) and None)
    assert worker.stdout is not None
    for line in LINES[: 5 * SIZE : SIZE]:
        assert worker.stdout.readline() == line + "\n"
    worker.send_signal(number)
    worker.communicate()
    assert worker.returncode != 0 and len([*(tmp_path / "out").glob(f"0*{ENDING}")]) >= 4
    finish(tmp_path / "out")
    assert content(tmp_path / "out") == whole


@pytest.mark.slow
def test_a_file_that_is_too_large_is_a_message(tmp_path: Path):
    """A limit of the system, met by a real write in the middle of a piece."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    worker = start_worker(tmp_path / "out", 0, "1/1", 9999, prepare=limit)
    _, said = worker.communicate()
    assert worker.returncode == 1 and re.search("out: File too large; all finished pieces are kept", said), said
    assert {file.name for file in (tmp_path / "out").iterdir()} == {".lock", "corpus.json", "0000000.json"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    yield from small_disk(tmp_path / "disk", "128k")


@pytest.mark.slow
def test_a_full_and_a_read_only_disk_are_messages(disk: Path, tmp_path: Path, whole: Mapping[str, bytes]):
    out = disk / "out"
    (disk / "another").write_bytes(bytes(64 * 1024))
    with pytest.raises(Failure, match=r"out: No space left on device; all finished pieces are kept: repair it"):
        answer_corpus(out)
    done = sorted(out.glob(f"0*{ENDING}"))
    assert 0 < len(done) < NUMBER and all(file.read_bytes() == whole[file.name] for file in done)
    (disk / "another").unlink()
    mount("-o", "remount,ro", disk)
    with pytest.raises(ValueError, match="not writable"):
        answer_corpus(out)
    mount("-o", "remount,rw,size=1m", disk)
    answer_corpus(out)
    join(out)
    assert content(out) == whole
