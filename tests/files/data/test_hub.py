"""Oracles: Parquet files and datasets written here, with the pairs or the message they must give."""

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data.hub import HubDataset, Parquet
from flaxformer_lite.files.records import Classes, Conversations, Entities, Pairs, Words
from flaxformer_lite.files.records.words import pair_of_spans, pair_of_words
from tests.support import needs
from tests.support.files import PAIRS, file, message


def test_a_missing_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, source in (("datasets", HubDataset(path="some/name")), ("pyarrow", Parquet(path="x.parquet"))):
        monkeypatch.setitem(sys.modules, package, None)
        assert 'pip install "flaxformer_lite[hub]"' in message(source)


def test_datasets_saved_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason=needs.TEST_ALL)
    rows = datasets.Dataset.from_list([{"id": 5, "translation": {"de": s, "en": t}} for s, t, *_ in PAIRS])
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": rows, "test": rows.select([2])}).save_to_disk(str(tmp_path / "parts"))
    one, parts = str(tmp_path / "one"), str(tmp_path / "parts")
    fields: dict = {"record": Pairs(source="translation.de", target="translation.en")}
    assert list(HubDataset(path=one, **fields).open()) == PAIRS
    assert list(HubDataset(path=parts, split="test", **fields).open()) == PAIRS[2:]
    assert "no split 'validation'; it has train, test" in message(HubDataset(path=parts, split="validation"))
    assert "no split 'test'; it has train" in message(HubDataset(path=one, split="test"))
    assert "leave out name 'x'" in message(HubDataset(path=one, name="x"))
    wrong = message(HubDataset(path=one, record=Pairs(source="translation.fr", target="translation.de")))
    assert wrong == f"{one} (train):1: no field translation.fr; the fields are translation.de, translation.en"
    assert "no field text; the fields are id, translation.de" in message(
        HubDataset(path=one, record=Pairs(source="text", target="translation.de"))
    )
    next((tmp_path / "one").glob("*.arrow")).unlink()
    assert message(HubDataset(path=one)).startswith(f"{one} (train): cannot load this dataset: ")


def test_a_dataset_with_messages(tmp_path: Path) -> None:
    """A row lacks the fields that others have, which the library fills with None."""
    datasets = pytest.importorskip("datasets", reason=needs.TEST_ALL)
    chats = [[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], [{"role": "user", "name": "n"}]]
    datasets.Dataset.from_list([{"messages": chat} for chat in chats]).save_to_disk(str(tmp_path / "chats"))
    found = list(HubDataset(path=str(tmp_path / "chats"), record=Conversations()).open())
    assert [json.loads(pair.target)["messages"] for pair in found] == [chats[0], [{"content": "", **chats[1][0]}]]
    assert {pair.source for pair in found} == {""}


def test_datasets_in_a_folder_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason=needs.TEST_ALL)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "files").mkdir()
    rows = [{"de": s, "en": t} for s, t, *_ in PAIRS] + [{"de": "leer", "en": " "}]
    file(tmp_path / "files", "train.jsonl", "\n".join(map(json.dumps, rows)))
    source = {"path": str(tmp_path / "files"), "record": Pairs(source="de", target="en")}
    assert message(HubDataset(**source)).startswith(f"{source['path']} (train):4: the target is empty")
    assert list(HubDataset(**source, empty_lines="drop").open()) == PAIRS
    assert list(HubDataset(**source, split="train[1:3]").open()) == PAIRS[1:]
    assert 'Unknown split "dev"' in message(HubDataset(**source, split="dev"))
    assert "BuilderConfig 'x' not found" in message(HubDataset(**source, name="x"))
    file(tmp_path / "files", "train.jsonl", '{"de": "broken",\n')
    assert "cannot load this dataset: " in message(HubDataset(**source))
    missing = str(tmp_path / "missing")
    assert message(HubDataset(path=missing)).startswith(f"{missing} (train): cannot load this dataset: ")


@pytest.mark.slow
def test_a_streamed_dataset_is_read_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason=needs.TEST_ALL)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "files").mkdir()
    rows = [json.dumps({"de": s, "en": t, "id": n}) for n, (s, t, *_) in enumerate(PAIRS)]
    for n, row in enumerate(rows):
        file(tmp_path / "files", f"train-{n}.jsonl", row)
    source = HubDataset(path=str(tmp_path / "files"), record=Pairs(source="de", target="en"), streaming=True)
    assert list(source.open()) == PAIRS and list(source.stream()) == PAIRS
    assert not list(tmp_path.glob("cache/**/*.arrow"))
    versions = source.versions()
    assert versions == source.versions() and str(tmp_path / "files" / "train-2.jsonl") in versions[2]
    os.utime(tmp_path / "files" / "train-1.jsonl", (1, 1))
    assert source.versions() != versions
    for part in ("dev", "train[:2]"):
        assert f"({part}): cannot load this dataset: Bad split: {part}" in message(
            dataclasses.replace(source, split=part)
        )
    file(tmp_path / "files", "train-1.jsonl", '{"de": "broken",\n')
    assert message(source).startswith(f"{source.path} (train): cannot load this dataset: ")


def test_streaming_leaves_a_saved_dataset_as_it_is(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason=needs.TEST_ALL)
    datasets.Dataset.from_list([{"de": s, "en": t} for s, t, *_ in PAIRS]).save_to_disk(str(tmp_path / "saved"))
    mapped = HubDataset(path=str(tmp_path / "saved"), record=Pairs(source="de", target="en"))
    source = dataclasses.replace(mapped, streaming=True)
    assert list(source.open()) == PAIRS and source.versions() == mapped.versions()


def test_the_library_writes_its_lines_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """absl gives the root logger a handler, and the library's logger has its own."""
    pytest.importorskip("datasets", reason=needs.TEST_ALL)
    logger = logging.getLogger("huggingface_hub")
    monkeypatch.setattr(logger, "propagate", True)
    with pytest.raises(ValueError, match="cannot load this dataset"):
        list(HubDataset(path=str(tmp_path)).open())
    assert logger.handlers and not logger.propagate


def test_the_classes_of_a_dataset_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of Parquet files is a dataset too; -1, which stands for no label, stays."""
    datasets = pytest.importorskip("datasets", reason=needs.TEST_ALL)
    features = datasets.Features({"text": datasets.Value("string"), "y": datasets.ClassLabel(names=["neg", "pos"])})
    rows = {"text": ["good", "bad", "unknown"], "y": [1, 0, -1]}
    wanted = [Pair("", "good", "pos"), Pair("", "bad", "neg"), Pair("", "unknown", "-1")]
    dataset = datasets.Dataset.from_dict(rows, features=features)
    dataset.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "files").mkdir()
    dataset.to_parquet(str(tmp_path / "files" / "train.parquet"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for folder in ("saved", "files"):
        source = HubDataset(path=str(tmp_path / folder), record=Classes(label="y"))
        assert list(source.open()) == wanted
    classes = datasets.ClassLabel(names=["neg", "pos"])
    several = datasets.Features({"text": datasets.Value("string"), "y": datasets.Sequence(classes)})
    lists = datasets.Dataset.from_dict({"text": ["good", "none"], "y": [[1, 0], []]}, features=several)
    lists.save_to_disk(str(tmp_path / "lists"))
    source = HubDataset(path=str(tmp_path / "lists"), record=Classes(label="y"))
    assert list(source.open()) == [Pair("", "good", '["pos", "neg"]'), Pair("", "none", "[]")]
    words = datasets.Features({"w": datasets.Sequence(datasets.Value("string")), "y": datasets.Sequence(classes)})
    lists = datasets.Dataset.from_dict({"w": [["a", "b"]], "y": [[1, -1]]}, features=words)
    lists.save_to_disk(str(tmp_path / "words"))
    source = HubDataset(path=str(tmp_path / "words"), record=Words(words="w", labels="y"))
    assert list(source.open()) == [pair_of_words(["a", "b"], ["pos", -1])]


def parquet(path: Path, rows: list[dict]) -> str:
    pyarrow = pytest.importorskip("pyarrow", reason=needs.TEST_ALL)
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def test_parquet_files_give_pairs_documents_and_labels(tmp_path: Path) -> None:
    rows = [{"id": 5, "pair": {"de": s, "en": t}, "y": i} for i, (s, t, *_) in enumerate(PAIRS)]
    path = parquet(tmp_path / "a-0.parquet", rows[:2])
    parquet(tmp_path / "a-1.parquet", rows[2:])
    fields: dict = {"record": Pairs(source="pair.de", target="pair.en")}
    assert list(Parquet(path=str(tmp_path / "a-*.parquet"), **fields).open()) == PAIRS
    assert list(Parquet(path=path, record=Classes(text="pair.en", label="y")).open()) == [
        Pair("", "a house", "0"), Pair("", "two hats", "1"),
    ]  # fmt: skip
    assert message(Parquet(path=path)) == f"{path}:1: no field source; the fields are id, pair.de, pair.en, y"
    broken = file(tmp_path, "broken.parquet", "no such thing")
    assert message(Parquet(path=broken)).startswith(f"{broken}: cannot be read as Parquet (")
    assert message(Parquet(path=str(tmp_path / "none"))).startswith(f"{tmp_path / 'none'}: cannot be read as Parquet (")
    assert message(Parquet(path=str(tmp_path / "b-*"))).startswith(f"{tmp_path / 'b-*'}: no file matches this pattern")
    empty = parquet(tmp_path / "gap.parquet", [{"source": "a", "target": "A"}, {"source": " ", "target": "B"}])
    assert message(Parquet(path=empty)).startswith(f"{empty}:2: the source is empty")
    assert list(Parquet(path=empty, empty_lines="drop").open()) == [Pair("a", "A")]


CLASSES = {"names": ["neg", "pos"], "_type": "ClassLabel"}
TEXT = {"dtype": "string", "_type": "Value"}


@pytest.mark.parametrize(
    "of_list",
    [
        lambda one: {"feature": one, "_type": "List"},
        lambda one: {"feature": one, "_type": "Sequence"},
        lambda one: [one],
    ],
    ids=["List", "Sequence", "a list"],
)
def test_a_file_of_datasets_has_the_names_of_its_classes(
    tmp_path: Path, of_list: Callable[[dict[str, Any]], Any]
) -> None:
    """By hand: in a field, in a struct, in lists and in lists of structs; -1 and a number without a name stay."""
    pyarrow = pytest.importorskip("pyarrow", reason=needs.TEST_ALL)
    from pyarrow import parquet

    spans = {
        "start": {"dtype": "int64", "_type": "Value"},
        "end": {"dtype": "int64", "_type": "Value"},
        "label": CLASSES,
    }
    features = {"text": TEXT, "y": CLASSES, "in": {"y": CLASSES}, "w": of_list(TEXT), "l": of_list(CLASSES)}
    features["spans"] = of_list(spans)
    values = [{"start": 0, "end": 1, "label": 1}]
    if isinstance(features["spans"], dict) and features["spans"]["_type"] == "Sequence":
        values = {"start": [0], "end": [1], "label": [1]}
    rows = [{"text": "a", "y": y, "in": {"y": 0}, "w": ["a", "b"], "l": [1, -1], "spans": values} for y in (1, -1, 2)]
    table = pyarrow.Table.from_pylist(rows)
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, tmp_path / "x.parquet")
    document: dict = {"path": str(tmp_path / "x.parquet")}
    assert [pair.label for pair in Parquet(record=Classes(label="y"), **document).open()] == ["pos", "-1", "2"]
    assert Parquet(record=Classes(label="in.y"), **document).open()[0].label == "neg"
    assert Parquet(record=Classes(label="l"), **document).open()[0].label == '["pos", "-1"]'
    words = Parquet(path=document["path"], record=Words(words="w", labels="l")).open()
    assert words[0] == pair_of_words(["a", "b"], ["pos", -1])
    assert Parquet(record=Entities(), **document).open()[0] == pair_of_spans("a", [[0, 1, "pos"]])
    for broken in (b"no JSON", b"{}", b"[]", b'{"info": 3}'):
        parquet.write_table(table.replace_schema_metadata({"huggingface": broken}), tmp_path / "y.parquet")
        found = Parquet(path=str(tmp_path / "y.parquet"), record=Classes(label="y")).open()
        assert [pair.label for pair in found] == ["1", "-1", "2"]


def test_a_null_in_the_place_of_a_text_is_an_empty_text(tmp_path: Path) -> None:
    """So one setting treats both; a struct that is null has nulls in its fields. A label that is null is none."""
    good = {"pair": {"de": "a", "en": "A"}, "y": 1}
    rows = [good, {"pair": {"de": None, "en": "B"}, "y": 1}, {"pair": None, "y": 1}, {**good, "y": None}]
    path = parquet(tmp_path / "null.parquet", rows[:3])
    fields: dict = {"record": Pairs(source="pair.de", target="pair.en")}
    assert message(Parquet(path=path, **fields)).startswith(f"{path}:2: the source is empty")
    assert Parquet(path=path, empty_lines="drop", **fields).open() == [Pair("a", "A")]
    labelled = Parquet(
        path=parquet(tmp_path / "y.parquet", [rows[0], rows[3]]),
        record=Classes(source="pair.de", text="pair.en", label="y"),
    )
    assert message(labelled).startswith(f"{labelled.path}:2: field y holds NoneType")
