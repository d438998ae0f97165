"""Laws of shards: where they end, what they hold, and that a damaged one is named."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.data import shards
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.token_arrays import TokenArrays
from flaxformer_lite.text.characters import CharacterTokenizer
from flaxformer_lite.text.tokenizer import Tokenizers

PAIRS = [Pair("ab", "c", "x"), Pair("", "cab"), Pair("c", "", "yes")]
TOKENIZER = CharacterTokenizer("abc")


def test_a_shard_ends_by_records_or_characters(monkeypatch: pytest.MonkeyPatch):
    """Oracle: worked by hand."""
    monkeypatch.setattr(shards, "MOST_RECORDS", 3)
    monkeypatch.setattr(shards, "MOST_CHARACTERS", 5)
    sizes = [1, 1, 1, 2, 3, 9, 1]
    found = list(shards.chunks(Pair("", "x" * size) for size in sizes))
    assert [[len(pair.target) for pair in chunk] for chunk in found] == [[1, 1, 1], [2, 3], [9], [1]]
    assert list(shards.chunks(iter([]))) == []


@pytest.mark.parametrize(("size", "dtype"), [(3, np.uint16), (2**16, np.int32)])
def test_a_shard_is_read_back_as_it_was_tokenized(tmp_path: Path, size: int, dtype: type):
    tokenizer = CharacterTokenizer([*"abc", *map(chr, range(2**17, 2**17 + size))])
    facts = shards.write_shard(tmp_path / "00000", PAIRS, Tokenizers(TOKENIZER, tokenizer))
    assert facts[:3] == (3, 3, 4) and shards.read_facts(tmp_path / "00000") == facts
    found = shards.open_shard(tmp_path / "00000", 3)
    assert found.ids.dtype == dtype and found.ids[:].tolist() == TOKENIZER.encode("abccabc")
    assert found.starts.tolist() == [0, 2, 3, 3, 6, 7, 7] and list(found.labels) == ["x", "", "yes"]
    again = shards.write_shard(tmp_path / "00000", PAIRS[:2], Tokenizers(TOKENIZER, TOKENIZER))
    assert again.source_texts != facts.source_texts and shards.read_facts(tmp_path / "00000") == again
    assert [path.name for path in tmp_path.iterdir()] == ["00000"]


def test_the_empty_side_of_documents_is_tokenized_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A tokenizer may have ids for an empty text; a call for each document took 7 % of a build."""
    calls: list[str] = []

    def encode(tokenizer: CharacterTokenizer, text: str) -> list[int]:
        calls.append(text)
        return [7] if not text else [8] * len(text)

    monkeypatch.setattr(CharacterTokenizer, "encode", encode)
    shards.write_shard(tmp_path / "7", [Pair("", "ab"), Pair("", "c")], Tokenizers(TOKENIZER, TOKENIZER))
    assert shards.open_shard(tmp_path / "7", 2).ids[:].tolist() == [7, 8, 8, 7, 8] and calls == ["", "", "ab", "c"]


def test_texts_with_other_borders_have_another_hash():
    first = shards.text_digests([Pair("ab", "c"), Pair("c", "d")])
    assert shards.text_digests([Pair("a", "c"), Pair("bc", "d")])[0] != first[0]
    assert shards.text_digests([Pair("ab", "c"), Pair("c", "d", "x")])[1] != first[1]


def test_a_damaged_shard_is_named(tmp_path: Path):
    assert shards.read_facts(tmp_path / "none") is None
    shards.write_shard(tmp_path / "7", PAIRS, Tokenizers(TOKENIZER, TOKENIZER))
    with pytest.raises(
        ValueError, match=rf"^{tmp_path}/7: damaged \(its arrays do not fit: 3 records, 7 tokens\); delete this folder"
    ):
        shards.open_shard(tmp_path / "7", 4)
    ids = (tmp_path / "7" / "ids.npy").read_bytes()
    (tmp_path / "7" / "ids.npy").write_bytes(ids[:-2])
    with pytest.raises(ValueError, match=rf"^{tmp_path}/7: damaged"):
        shards.open_shard(tmp_path / "7", 3)
    (tmp_path / "7" / "shard.json").write_text('{"records": 3')
    with pytest.raises(ValueError, match=rf"^{tmp_path}/7: damaged"):
        shards.read_facts(tmp_path / "7")


@pytest.fixture
def few_open_files() -> Iterator[int]:
    """Lets this process open 30 files more, no matter how many it has; the number it may have in all."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 30 + len(os.listdir("/dev/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_store_may_have_more_files_than_a_process_may_open(
    tmp_path: Path, few_open_files: int, monkeypatch: pytest.MonkeyPatch
):
    """Many systems let a process open 1,024 files, unless it asks for more: 341 shards, some 5 GB of text."""
    for i in range(40):
        shards.write_shard(tmp_path / f"{i:05}", PAIRS, Tokenizers(TOKENIZER, TOKENIZER))
    for _ in range(2):
        found = shards.open_shards(tmp_path, [3] * 40)
        assert TokenArrays(found)[119].target.tolist() == [] and len(TokenArrays(found)) == 120
    del found
    import resource

    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_open_files + 2 * 120
    resource.setrlimit(resource.RLIMIT_NOFILE, (few_open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    with pytest.raises(
        ValueError, match=rf"{tmp_path}/000\d\d: cannot be read: Too many open files: .* ulimit -n 65536$"
    ):
        shards.open_shards(tmp_path, [3] * 40)


def test_a_shard_that_cannot_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A store of somebody else, a limit of memory, a network disk that is gone: the shard is good."""
    shards.write_shard(tmp_path / "7", PAIRS, Tokenizers(TOKENIZER, TOKENIZER))

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(np, "load", denied)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/7: cannot be read: Permission denied$"):
        shards.open_shard(tmp_path / "7", 3)
