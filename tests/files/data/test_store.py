"""Laws of token stores: the same batches as from memory, whole or not there, made again only where something has changed."""

import dataclasses
import os
import resource
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import chex
import numpy as np
import pytest
from filelock import FileLock

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.core.text.characters import Characters, CharacterTokenizer
from flaxformer_lite.core.text.pairs import EncodedPair, Extent
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.data import DataConfig, DataSource, ParallelText
from flaxformer_lite.files.data import store as token_store
from flaxformer_lite.files.data.reading import tokenize
from flaxformer_lite.files.data.store import (
    PairStream,
    TokenStore,
    check_store,
    chunks,
    open_shards,
    read_checked,
    small_parts,
    text_digests,
    train_tokenizers,
    write_shard,
)
from tests.support.files import file

TOKENIZER = CharacterTokenizer("abcdefgh")
BOTH = Tokenizers(TOKENIZER, TOKENIZER)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_store, "MOST_RECORDS", 4)


@pytest.fixture
def source(tmp_path: Path) -> ParallelText:
    texts = ["abcdefgh"[i % 5 : i % 8 + 1] or "a" for i in range(18)]
    return ParallelText(
        source=file(tmp_path, "x.a", "\n".join(texts)), target=file(tmp_path, "x.b", "\n".join(texts[::-1]))
    )


def build(stores: Path, source: DataSource, part: tuple[int, int] = (0, 1)) -> tuple[TokenStore, list[str], bool]:
    """Builds a store; returns it, the names of the shards that were made, and whether it is whole."""
    store = TokenStore.of(stores, source, BOTH)
    before = {path: path.stat().st_ino for path in store.folder.glob("0*")}
    reported: list[tuple[str, int, int]] = []
    whole = store.build(BOTH, lambda *done: reported.append(done), part)
    assert all(activity == "tokenizing texts" and (total == 0 or done <= total) for activity, done, total in reported)
    made = [path.name for path in sorted(store.folder.glob("0*")) if before.get(path) != path.stat().st_ino]
    return store, made, whole


def test_a_store_gives_the_batches_of_memory(tmp_path: Path, source: ParallelText):
    """Oracle: the records tokenized in memory."""
    store, made, whole = build(tmp_path / "stores", source)
    assert whole and made == ["00000", "00001", "00002", "00003", "00004"]
    config = DataConfig(bucket_lengths=(4,), rows_multiple=2, tokens_per_batch=8, max_source_length=9)
    stored, memory = (
        Dataset.training(records, Seq2Seq(), config, 3, TOKENIZER)
        for records in (store.records, tokenize(source.open(), BOTH))
    )
    assert (stored.fingerprint, stored.padding) == (memory.fingerprint, memory.padding)
    for step in range(2 * memory.plan.batches_per_epoch):
        chex.assert_trees_all_equal(stored.batch(step), memory.batch(step))


def test_a_build_that_was_stopped_keeps_its_shards(tmp_path: Path, source: ParallelText):
    stores = tmp_path / "stores"
    store = TokenStore.of(stores, source, BOTH)

    def stop(activity: str, done: int, total: int) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.build(BOTH, stop)
    assert store.facts is None
    (store.folder / ".00002.1.unfinished").mkdir()  # as after a kill
    there = [path.name for path in store.folder.glob("0*")]
    assert 2 <= len(there) < 5
    _, made, whole = build(stores, source)
    assert whole and len(made) == 5 - len(there) and not set(made) & set(there)
    assert not list(store.folder.glob(".*.unfinished")) and store.facts["records"] == 18
    assert build(stores, source)[1:] == ([], True)
    shutil.rmtree(store.folder / "00001")  # as the message on a damaged shard advises
    assert build(stores, source)[1:] == (["00001"], True)


def flip(path: Path) -> None:
    """Flips one bit in the middle of a file's second half."""
    content = bytearray(path.read_bytes())
    content[-len(content) // 4] ^= 2
    path.write_bytes(content)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def reverse(path: Path) -> None:
    np.save(path, np.load(path)[::-1])


DAMAGE = {
    "a bit of the ids": ("00002/ids.npy", flip),
    "a bit of the starts": ("00002/starts.npy", flip),
    "the order of the ids": ("00001/ids.npy", reverse),
    "labels that were not there": ("00000/labels.npy", lambda path: np.save(path, np.array(["x"] * 4))),
    "ids that are missing": ("00003/ids.npy", Path.unlink),
    "another shard": ("00000", lambda path: shutil.copytree(path.with_name("00001"), path, dirs_exist_ok=True)),
    "half a shard.json": ("00001/shard.json", halve),
    "half a store.json": ("store.json", halve),
    "a bit of store.json": ("store.json", flip),
    "another store.json": ("store.json", lambda path: path.write_text("[]")),
    "an empty store.json": ("store.json", lambda path: path.write_text("")),
    "half a key.json": ("key.json", halve),
    "no key.json": ("key.json", Path.unlink),
    "a bit of the tokenizer": ("tokenizer.characters.json", flip),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_store_is_named_and_made_again(tmp_path: Path, source: ParallelText, name: str):
    """Law: one changed byte of any file ends a start. Oracle: the fingerprint before, once the folder that is named is gone."""
    store, *_ = build(tmp_path / "s", source)
    before = store.records.fingerprint()
    file, damage = DAMAGE[name]
    damage(store.folder / file)
    with pytest.raises(ValueError, match=r"^\S+: damaged \(.*\); delete this folder, and it is made again$") as caught:
        assert build(tmp_path / "s", source)[0].records
    folder = Path(str(caught.value).split(": damaged")[0])
    assert folder == (store.folder / file if (store.folder / file).is_dir() else (store.folder / file).parent)
    shutil.rmtree(folder)
    assert build(tmp_path / "s", source)[0].records.fingerprint() == before


def test_a_shard_that_is_damaged_before_the_store_is_whole_is_named(tmp_path: Path, source: ParallelText):
    """Else the fingerprint of the damaged ids becomes that of the store."""
    build(tmp_path / "s", source, (1, 2))
    store = TokenStore.of(tmp_path / "s", source, BOTH)
    flip(store.folder / "00001" / "ids.npy")
    with pytest.raises(ValueError, match=f"^{store.folder}/00001: damaged"):
        check_store(store.folder)
    with pytest.raises(ValueError, match=f"^{store.folder}/00001: damaged"):
        build(tmp_path / "s", source)


def test_a_changed_file_or_tokenizer_has_another_store(tmp_path: Path, source: ParallelText):
    folders = {TokenStore.of(tmp_path, source, tokenizers).folder for tokenizers in (BOTH, BOTH)}
    other = CharacterTokenizer("abc")
    folders |= {TokenStore.of(tmp_path, source, Tokenizers(TOKENIZER, other)).folder}
    os.utime(source.source, ns=(1, 1))
    folders |= {TokenStore.of(tmp_path, source, BOTH).folder}
    folders |= {TokenStore.of(tmp_path, dataclasses.replace(source, empty_lines="drop"), BOTH).folder}
    assert len(folders) == 4


@dataclasses.dataclass(frozen=True)
class Unknown(DataSource):
    """Pairs whose versions are not known."""

    pairs: tuple[Pair, ...]

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        return self.pairs

    def __repr__(self) -> str:
        return "Unknown()"


def test_without_versions_the_texts_are_compared(tmp_path: Path):
    """Each start reads them; other texts, also fewer, are another store."""
    pairs = [Pair("abc"[i % 3], "fgh"[i % 3]) for i in range(12)]
    assert build(tmp_path, Unknown(tuple(pairs)))[1:] == (["00000", "00001", "00002"], True)
    assert build(tmp_path, Unknown(tuple(pairs)))[1:] == ([], True)
    pairs[5] = Pair("a", "a")
    store, made, _ = build(tmp_path, Unknown(tuple(pairs)))
    assert len(made) == 3 and store.records[5].source.tolist() == TOKENIZER.encode("a")
    store, made, whole = build(tmp_path, Unknown(tuple(pairs[:8])))
    assert (len(made), whole, len(store.records)) == (2, True, 8)


def test_a_second_process_waits_for_the_one_that_builds(tmp_path: Path, source: ParallelText):
    """Two runs of a sweep start together: the second one then makes nothing."""
    store = TokenStore.of(tmp_path, source, BOTH)
    store.folder.mkdir(parents=True)
    waited: list[str] = []
    with FileLock(store.folder / ".0-of-1.lock") as other:

        def shown(activity: str, done: int, total: int) -> None:
            if not waited:
                assert not (store.folder / "key.json").exists()
                other.release()
            waited.append(activity)

        assert store.build(BOTH, shown)
    assert waited[0].startswith("waiting for") and len(store.records) == 18


def test_hosts_make_their_parts(tmp_path: Path, source: ParallelText):
    assert build(tmp_path / "s", source, (1, 2))[1:] == (["00001", "00003"], False)
    store, made, whole = build(tmp_path / "s", source, (0, 2))
    assert made == ["00000", "00002", "00004"] and whole and len(store.records) == 18


def test_small_data_is_a_list():
    found = [small_parts(Unknown((Pair("a", "b"),) * n), "data.train") for n in (0, 1, 4, 5, 8, 9)]
    assert [parts and len(parts[0]) for parts in found] == [0, 1, 4, None, None, None]


def test_tokenizers_are_found_in_the_folder_of_stores(tmp_path: Path, source: ParallelText):
    data = DataConfig(train=source, tokenizer=Characters(), store=str(tmp_path / "stores"))
    trained = train_tokenizers(data, (99, 99), PairStream(source, "data.train"))
    found = train_tokenizers(data, (99, 99), [])
    assert found.source.to_bytes() == trained.source.to_bytes() and found.target is found.source
    two = dataclasses.replace(data, target_tokenizer=Characters())
    with pytest.raises(ValueError, match="blank"):
        train_tokenizers(two, (99, 99), [])
    train_tokenizers(two, (99, 99), PairStream(source, "data.train"))
    assert train_tokenizers(two, (99, 99), []).target is not None
    for kept in (tmp_path / "stores").glob("tokenizer-*"):
        flip(kept / "tokenizer.characters.json")
    with pytest.raises(ValueError, match=r"tokenizer-\w+: damaged \(.*\); delete this folder, and it is made again$"):
        train_tokenizers(data, (99, 99), [])
    os.utime(source.source, ns=(1, 1))
    with pytest.raises(ValueError, match="blank"):
        train_tokenizers(data, (99, 99), [])


PAIRS = [Pair("ab", "c", "x"), Pair("", "cab"), Pair("c", "", "yes")]


def test_a_shard_ends_by_records_or_characters(monkeypatch: pytest.MonkeyPatch):
    """Oracle: worked by hand."""
    monkeypatch.setattr(token_store, "MOST_RECORDS", 3)
    monkeypatch.setattr(token_store, "MOST_CHARACTERS", 5)
    sizes = [1, 1, 1, 2, 3, 9, 1]
    found = list(chunks(Pair("", "x" * size) for size in sizes))
    assert [[len(pair.target) for pair in chunk] for chunk in found] == [[1, 1, 1], [2, 3], [9], [1]]
    assert list(chunks([])) == []


@pytest.mark.parametrize(("size", "dtype"), [(3, np.uint16), (2**16, np.int32)])
def test_a_shard_is_read_back_as_it_was_tokenized(tmp_path: Path, size: int, dtype: type):
    abc, folder = CharacterTokenizer("abc"), tmp_path / "00000"
    large = CharacterTokenizer([*"abc", *map(chr, range(2**17, 2**17 + size))])
    facts = write_shard(folder, PAIRS, Tokenizers(abc, large))
    assert [facts[name] for name in ("records", "source_tokens", "target_tokens")] == [3, 3, 4]
    assert read_checked(folder / "shard.json") == facts
    (found,) = open_shards({folder: facts["arrays"]})
    assert found.ids.dtype == dtype and found.ids[:].tolist() == abc.encode("abccabc")
    assert found.starts.tolist() == [0, 2, 3, 3, 6, 7, 7] and list(found.labels) == ["x", "", "yes"]
    again = write_shard(folder, PAIRS[:2], Tokenizers(abc, abc))
    assert again["source_texts"] != facts["source_texts"] and read_checked(folder / "shard.json") == again
    assert [path.name for path in tmp_path.iterdir()] == ["00000"]


class Lengths(Tokenizers):
    """Gives each pair an array of the lengths of its words, and refuses one without a source."""

    def encode_pairs(self, pairs: Sequence[Pair]) -> Iterator[EncodedPair]:
        for pair, encoded in zip(pairs, super().encode_pairs(pairs), strict=True):
            lengths = np.array([*map(len, pair[1].split())], np.int32)
            refused = EncodedPair([], [], extent=Extent.REFUSED)
            yield encoded._replace(arrays={"lengths of words": lengths}) if pair[0] else refused


def test_a_shard_has_the_arrays_of_a_new_kind_of_record(tmp_path: Path):
    """Law: a name that the store has never heard of is read back, and how much of each pair was read."""
    tokenizer = CharacterTokenizer("abc ")
    pairs = [Pair("a", "a bc abc"), Pair("", "c"), Pair("b", "")]
    facts = write_shard(tmp_path / "00000", pairs, Lengths(tokenizer, tokenizer))
    found = TokenArrays(open_shards({tmp_path / "00000": facts["arrays"]}))
    assert [record.array("lengths of words").tolist() for record in found] == [[1, 2, 3], [], []]
    assert [record.extent for record in found] == [Extent.WHOLE, Extent.REFUSED, Extent.WHOLE]
    assert found[0].array("lengths of words").dtype == np.int32


def test_a_full_disk_leaves_no_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write_shard(tmp_path / "00000", PAIRS, BOTH)
    assert not list(tmp_path.iterdir())


def test_texts_with_other_borders_have_another_hash():
    first = text_digests([Pair("ab", "c"), Pair("c", "d")])
    assert text_digests([Pair("a", "c"), Pair("bc", "d")])[0] != first[0]
    assert text_digests([Pair("ab", "c"), Pair("c", "d", "x")])[1] != first[1]


@pytest.fixture
def few_open_files() -> Iterator[int]:
    """Lets this process open 30 files more, no matter how many it has; the number it may have in all."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 30 + len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_store_may_have_more_files_than_a_process_may_open(tmp_path: Path, few_open_files: int):
    """Many systems let a process open 1,024 files, unless it asks for more: 341 shards, some 5 GB of text."""
    digests = {tmp_path / str(i): write_shard(tmp_path / str(i), PAIRS, BOTH)["arrays"] for i in range(40)}
    found = TokenArrays(open_shards(digests))
    assert found[119].target.tolist() == [] and len(found) == 120
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_open_files + 40 * token_store.MOST_FILES


def test_a_shard_that_cannot_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A store of somebody else, a limit of memory, a network disk that is gone: the shard is good."""
    digest = write_shard(tmp_path / "7", PAIRS, BOTH)["arrays"]

    def denied(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(np, "load", denied)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/7/\w+\.npy: cannot be read: Permission denied$"):
        open_shards({tmp_path / "7": digest})
