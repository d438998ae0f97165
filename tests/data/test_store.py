"""Laws of token stores: the same batches as from memory, whole or not there, made again only where something has changed."""

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import chex
import numpy as np
import pytest
from filelock import FileLock

from flaxformer_lite.data import shards
from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.data.dataset import Dataset, tokenize
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.source import DataSource
from flaxformer_lite.data.store import PairStream, TokenStore, check_store, train_tokenizers
from flaxformer_lite.data.text_files import ParallelText
from flaxformer_lite.objectives import Seq2Seq
from flaxformer_lite.text.characters import Characters, CharacterTokenizer
from flaxformer_lite.text.tokenizer import Tokenizers
from tests.support.files import file

TOKENIZER = CharacterTokenizer("abcdefgh")
BOTH = Tokenizers(TOKENIZER, TOKENIZER)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MOST_RECORDS", 4)


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are made in this process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)


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
    reported: list[tuple[float, int]] = []
    whole = store.build(PairStream(source, "data.train"), BOTH, lambda *done: reported.append(done), part)
    assert all(0 <= fraction <= 1 for fraction, _ in reported)
    made = [path.name for path in sorted(store.folder.glob("0*")) if before.get(path) != path.stat().st_ino]
    return store, made, whole


def test_a_store_gives_the_batches_of_memory(tmp_path: Path, source: ParallelText):
    """Made by processes of their own. Oracle: the records tokenized here."""
    store, made, whole = build(tmp_path / "stores", source)
    assert whole and made == ["00000", "00001", "00002", "00003", "00004"]
    config = DataConfig(bucket_lengths=(4,), rows_multiple=2, tokens_per_batch=8, max_source_length=9)
    stored, memory = (
        Dataset(records, Seq2Seq(), config, 3, TOKENIZER) for records in (store.records, tokenize(source.open(), BOTH))
    )
    assert (stored.fingerprint, stored.padding) == (memory.fingerprint, memory.padding)
    for step in range(2 * memory.plan.batches_per_epoch):
        chex.assert_trees_all_equal(stored.batch(step), memory.batch(step))


@pytest.mark.usefixtures("one_core")
def test_a_build_that_was_stopped_keeps_its_shards(tmp_path: Path, source: ParallelText):
    stores = tmp_path / "stores"
    store = TokenStore.of(stores, source, BOTH)

    def stop(fraction: float, done: int) -> None:
        if done >= 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.build(PairStream(source, "data.train"), BOTH, stop)
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


@pytest.mark.usefixtures("one_core")
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


@pytest.mark.usefixtures("one_core")
def test_a_shard_that_is_damaged_before_the_store_is_whole_is_named(tmp_path: Path, source: ParallelText):
    """Else the fingerprint of the damaged ids becomes that of the store."""
    build(tmp_path / "s", source, (1, 2))
    store = TokenStore.of(tmp_path / "s", source, BOTH)
    flip(store.folder / "00001" / "ids.npy")
    with pytest.raises(ValueError, match=f"^{store.folder}/00001: damaged"):
        check_store(store.folder)
    with pytest.raises(ValueError, match=f"^{store.folder}/00001: damaged"):
        build(tmp_path / "s", source)


@pytest.mark.usefixtures("one_core")
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


@pytest.mark.usefixtures("one_core")
def test_without_versions_the_texts_are_compared(tmp_path: Path):
    """Only shards with other texts are made again, and a store with fewer of them is no longer the old one."""
    pairs = [Pair("abc"[i % 3], "fgh"[i % 3]) for i in range(12)]
    assert build(tmp_path, Unknown(tuple(pairs)))[1:] == (["00000", "00001", "00002"], True)
    assert build(tmp_path, Unknown(tuple(pairs)))[1:] == ([], True)
    pairs[5] = Pair("a", "a")
    store, made, _ = build(tmp_path, Unknown(tuple(pairs)))
    assert made == ["00001"] and store.records[5].source.tolist() == TOKENIZER.encode("a")
    pairs[9] = Pair("b", "b")
    # The third shard is the other host's, and an older one.
    assert build(tmp_path, Unknown(tuple(pairs)), (1, 2))[1:] == ([], False)
    assert build(tmp_path, Unknown(tuple(pairs)))[1:] == (["00002"], True)
    store, made, whole = build(tmp_path, Unknown(tuple(pairs[:8])))
    assert (made, whole, len(store.records)) == ([], True, 8)


@pytest.mark.usefixtures("one_core")
def test_a_rebuild_that_was_stopped_leaves_no_facts_of_other_texts(tmp_path: Path):
    """Else the next start finds all shards, and trusts the fingerprint of the texts before."""
    pairs = [Pair("abc"[i % 3], "fgh"[i % 3]) for i in range(12)]
    before = build(tmp_path, Unknown(tuple(pairs)))[0].records.fingerprint()
    pairs[10] = Pair("a", "a")
    store = TokenStore.of(tmp_path, Unknown(tuple(pairs)), BOTH)

    def stop(fraction: float, done: int) -> None:
        if done == 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.build(PairStream(Unknown(tuple(pairs)), "data.train"), BOTH, stop)
    store, made, whole = build(tmp_path, Unknown(tuple(pairs)))
    assert (made, whole) == ([], True) and store.records[10].source.tolist() == TOKENIZER.encode("a")
    assert store.records.fingerprint() == tokenize(pairs, BOTH).fingerprint() != before


@pytest.mark.usefixtures("one_core")
def test_a_second_process_waits_for_the_one_that_builds(tmp_path: Path, source: ParallelText):
    """Two runs of a sweep start together: the second one then makes nothing."""
    store = TokenStore.of(tmp_path, source, BOTH)
    store.folder.mkdir(parents=True)
    waited: list[int] = []
    with FileLock(store.folder / ".0-of-1.lock") as other:

        def shown(fraction: float, done: int) -> None:
            if not waited:
                assert not (store.folder / "key.json").exists()
                other.release()
            waited.append(done)

        assert store.build(PairStream(source, "data.train"), BOTH, shown)
    assert waited[0] == 0 and len(store.records) == 18


@pytest.mark.usefixtures("one_core")
def test_hosts_make_their_parts(tmp_path: Path, source: ParallelText):
    assert build(tmp_path / "s", source, (1, 2))[1:] == (["00001", "00003"], False)
    store, made, whole = build(tmp_path / "s", source, (0, 2))
    assert made == ["00000", "00002", "00004"] and whole and len(store.records) == 18


def test_small_data_is_a_list(tmp_path: Path):
    def pairs(number: int) -> PairStream:
        return PairStream(Unknown((Pair("a", "b"),) * number), "data.train")

    assert [len(pairs(n).if_small() or "") for n in (0, 1, 4, 5, 8, 9)] == [0, 1, 4, 0, 0, 0]


def test_reading_is_shown_every_4096_pairs():
    seen: list[int] = []
    stream = PairStream(Unknown((Pair("a", "b"),) * 5000), "data.train", lambda fraction, done: seen.append(done))
    assert len(list(stream)) == 5000 and seen == [0, 4096]


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
