"""Oracles: files written by hand, byte for byte, with the pairs or the message they must give."""

import gzip
import json
import sys
from pathlib import Path

import pytest

from flaxformer_lite.data.dates import Dates
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.sources import TSV, HubDataset, JSONLines, ParallelText, Parquet, Source

PAIRS = [Pair("ein Haus", "a house"), Pair("zwei Hüte", "two hats"), Pair("日本", "Japan")]


def file(folder: Path, name: str, content: bytes | str, packed: bool = False) -> str:
    content = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(content) if packed else content)
    return str(folder / name)


def message(source: Source) -> str:
    """The one line that opening a bad source gives."""
    with pytest.raises(ValueError) as caught:
        list(source.open())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_every_format_gives_the_same_pairs(tmp_path: Path, packed: bool) -> None:
    german, english, _ = ("\n".join(side) for side in zip(*PAIRS, strict=True))
    rows = [{"id": i, "source": s, "target": t, "translation": {"de": s, "en": t}} for i, (s, t, _) in enumerate(PAIRS)]
    json_lines = file(tmp_path, "x.jsonl", "".join(json.dumps(row) + "\r\n" for row in rows), packed)
    tsv = file(tmp_path, "x.tsv", "".join(f"{i}\t{t}\t{s}\t\n" for i, (s, t, _) in enumerate(PAIRS)), packed)
    sources = [
        ParallelText(
            source=file(tmp_path, "x.de", german, packed), target=file(tmp_path, "x.en", english + "\n", packed)
        ),
        TSV(path=tsv, source_column=2, target_column=1),
        JSONLines(path=json_lines),
        JSONLines(path=json_lines, source_field="translation.de", target_field="translation.en"),
    ]
    for source in sources:
        pairs = source.open()
        assert list(pairs) == PAIRS
        assert len(pairs) == 3
        assert pairs[1] == PAIRS[1]
        assert isinstance(pairs[1], Pair)
    assert isinstance(Dates(num_examples=1).open()[0], Pair)


def test_files_of_different_length(tmp_path: Path) -> None:
    source, target = file(tmp_path, "x.de", "a\nb\nc\n"), file(tmp_path, "x.en", "a\nb\n")
    assert message(ParallelText(source=source, target=target)).startswith(f"3 lines in {source} but 2 in {target}: ")


def test_empty_files(tmp_path: Path) -> None:
    empty, good = file(tmp_path, "empty", ""), file(tmp_path, "good", "a\n")
    for source in (
        ParallelText(source=good, target=empty),
        ParallelText(source=empty, target=empty),
        TSV(path=empty),
        JSONLines(path=file(tmp_path, "empty", "", packed=True)),
    ):
        assert message(source) == f"{empty}: the file is empty"


@pytest.mark.parametrize("white", ["", "  ", " \t\u3000", "\u2028"])
def test_empty_lines_stop_or_are_dropped(tmp_path: Path, white: str) -> None:
    source = file(tmp_path, "x.de", f"a\nb\nc\n{white}\n")
    target = file(tmp_path, "x.en", f"A\n{white}\nC\nD\n")
    stopped = message(ParallelText(source=source, target=target))
    assert stopped == f"{target}:2: the target is empty; mend the data"
    assert message(ParallelText(source=target, target=source)).startswith(f"{target}:2: the source is empty; ")
    kept = ParallelText(source=source, target=target, empty_lines="drop").open()
    assert list(kept) == [Pair("a", "A"), Pair("c", "C")]


def test_messages_name_the_setting_of_the_split_at_fault(tmp_path: Path) -> None:
    gap, whole = file(tmp_path, "gap", "a\n\n"), file(tmp_path, "whole", "a\nb\n")
    tsv, lines = file(tmp_path, "x.tsv", "a\tA\n\n"), file(tmp_path, "x.jsonl", "\n")
    for source in (ParallelText(source=gap, target=whole), TSV(path=tsv), JSONLines(path=lines)):
        for setting in ("data.train", "data.eval", "data.test"):
            with pytest.raises(ValueError, match=rf", or leave such pairs out \(--{setting}\.empty-lines drop\)$"):
                source.open(setting)


def test_empty_sides_and_empty_lines_of_tables(tmp_path: Path) -> None:
    tsv = file(tmp_path, "x.tsv", "a\tA\n\n \tB\nc\t\n \nd\tD\n")
    assert message(TSV(path=tsv)).startswith(f"{tsv}:2: the source is empty")
    assert list(TSV(path=tsv, empty_lines="drop").open()) == [Pair("a", "A"), Pair("d", "D")]
    lines = ['{"source": "a", "target": "A"}', "", '{"source": "b", "target": " "}', '{"source": "d", "target": "D"}']
    json_lines = file(tmp_path, "x.jsonl", "\n".join(lines))
    assert message(JSONLines(path=json_lines)).startswith(f"{json_lines}:2: the source is empty")
    assert list(JSONLines(path=json_lines, empty_lines="drop").open()) == [Pair("a", "A"), Pair("d", "D")]
    blank = file(tmp_path, "blank", "\n\n")
    assert message(TSV(path=blank, empty_lines="drop")) == f"{blank}: no pair of sentences in it"


def test_rows_with_too_few_columns(tmp_path: Path) -> None:
    path = file(tmp_path, "x.tsv", "a\tA\tx\nb\tB\n")
    assert message(TSV(path=path, target_column=2)).startswith(f"{path}:2: 2 column(s) between tabs, but column 2")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"source_column": -1}, r"tsv\.source_column is -1: "),
        ({"target_column": -2}, r"tsv\.target_column is -2: "),
        ({"target_column": 0}, r"tsv\.source_column and tsv\.target_column are both 0: "),
    ],
)
def test_impossible_columns(setting: dict[str, int], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        TSV(path="x.tsv", **setting)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("not json", "not JSON"),
        ('{"source": "a"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        (
            '{"source": "a", "meta": {"x": {"y": 1}, "z": 2}}',
            "no field target; the fields are source, meta.x.y, meta.z",
        ),
        ('["a", "b"]', "no field source; the fields are none"),
        ('"a source and a target"', "no field source; the fields are none"),
        ('{"source": "a", "target": "b"} {}', "not JSON"),
        ('{"source": 3, "target": "b"}', "field source holds int '3', not a string"),
        ('{"source": "a", "target": null}', "field target holds NoneType 'None', not a string"),
        ('{"source": {"de": "a"}, "target": "b"}', "field source holds dict"),
        ('{"source": "\\ud83d", "target": "b"}', "field source holds half a surrogate pair"),
    ],
)
def test_bad_json_lines_are_located(tmp_path: Path, line: str, expected: str) -> None:
    path = file(tmp_path, "x.jsonl", f'{{"source": "a", "target": "b"}}\n{line}\n')
    assert message(JSONLines(path=path)).startswith(f"{path}:2: {expected}")


def test_a_missing_datasets_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert 'pip install "flaxformer_lite[hub]"' in message(HubDataset(path="some/name"))


def test_datasets_saved_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"id": 5, "translation": {"de": s, "en": t}} for s, t, _ in PAIRS])
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": rows, "test": rows.select([2])}).save_to_disk(str(tmp_path / "parts"))
    one, parts = str(tmp_path / "one"), str(tmp_path / "parts")
    fields = {"source_field": "translation.de", "target_field": "translation.en"}
    assert list(HubDataset(path=one, **fields).open()) == PAIRS
    assert list(HubDataset(path=parts, split="test", **fields).open()) == PAIRS[2:]
    assert "no split 'validation'; it has train, test" in message(HubDataset(path=parts, split="validation"))
    assert "no split 'test'; it has train" in message(HubDataset(path=one, split="test"))
    assert "name 'x' must go" in message(HubDataset(path=one, name="x"))
    wrong = message(HubDataset(path=one, source_field="translation.fr"))
    assert wrong == f"{one} (train):1: no field translation.fr; the fields are translation.de, translation.en"
    assert "no field text; the fields are id, translation.de" in message(HubDataset(path=one, source_field="text"))
    next((tmp_path / "one").glob("*.arrow")).unlink()
    assert message(HubDataset(path=one)).startswith(f"{one} (train): cannot load this dataset: ")


def test_datasets_in_a_folder_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "files").mkdir()
    rows = [{"de": s, "en": t} for s, t, _ in PAIRS] + [{"de": "leer", "en": " "}]
    file(tmp_path / "files", "train.jsonl", "\n".join(map(json.dumps, rows)))
    source = {"path": str(tmp_path / "files"), "source_field": "de", "target_field": "en"}
    assert message(HubDataset(**source)).startswith(f"{source['path']} (train):4: the target is empty")
    assert list(HubDataset(**source, empty_lines="drop").open()) == PAIRS
    assert list(HubDataset(**source, split="train[1:3]").open()) == PAIRS[1:]
    assert 'Unknown split "dev"' in message(HubDataset(**source, split="dev"))
    assert "BuilderConfig 'x' not found" in message(HubDataset(**source, name="x"))
    file(tmp_path / "files", "train.jsonl", '{"de": "broken",\n')
    assert "cannot load this dataset: " in message(HubDataset(**source))
    missing = str(tmp_path / "missing")
    assert message(HubDataset(path=missing)).startswith(f"{missing} (train): cannot load this dataset: ")


# Documents -------------------------------------------------------------------------------------------------------------


def test_tables_without_a_source_give_documents(tmp_path: Path) -> None:
    documents = [Pair("", target) for _, target, _ in PAIRS]
    tsv = file(tmp_path, "x.tsv", "".join(f"{i}\t{t}\n" for i, (_, t, _) in enumerate(PAIRS)))
    json_lines = file(tmp_path, "x.jsonl", "".join(json.dumps({"text": t}) + "\n" for _, t, _ in PAIRS))
    assert list(TSV(path=tsv, source_column=None).open()) == documents
    assert list(JSONLines(path=json_lines, source_field=None, target_field="text").open()) == documents
    blank = file(tmp_path, "blank.jsonl", '{"text": "a"}\n{"text": " "}\n')
    source = JSONLines(path=blank, source_field=None, target_field="text")
    assert message(source) == f"{blank}:2: the text is empty; mend the data"
    assert list(JSONLines(path=blank, source_field=None, target_field="text", empty_lines="drop").open()) == [
        Pair("", "a")
    ]


def test_a_dataset_without_a_source_gives_documents(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([{"id": 5, "text": t} for _, t, _ in PAIRS]).save_to_disk(str(tmp_path / "d"))
    source = HubDataset(path=str(tmp_path / "d"), source_field=None, target_field="text")
    assert list(source.open()) == [Pair("", target) for _, target, _ in PAIRS]


# Labels and Parquet ----------------------------------------------------------------------------------------------------

LABELLED = [Pair("", "good", "pos"), Pair("", "so so", "0"), Pair("", "bad", "-1.5")]


def parquet(path: Path, rows: list[dict]) -> str:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


def test_every_table_gives_labels(tmp_path: Path) -> None:
    """Strings as they are, numbers as JSON writes them; of pairs and of single texts."""
    tsv = file(tmp_path, "x.tsv", "".join(f"{label}\t{text}\n" for _, text, label in LABELLED))
    assert list(TSV(path=tsv, source_column=None, label_column=0).open()) == LABELLED
    values = ["pos", 0, -1.5]
    lines = [json.dumps({"text": pair.target, "y": {"z": value}}) for pair, value in zip(LABELLED, values, strict=True)]
    json_lines = file(tmp_path, "x.jsonl", "\n".join(lines))
    assert (
        list(JSONLines(path=json_lines, source_field=None, target_field="text", label_field="y.z").open()) == LABELLED
    )
    tsv = file(tmp_path, "pairs.tsv", "1\ta\tb\ttrue\n")
    assert list(TSV(path=tsv, source_column=1, target_column=2, label_column=3).open()) == [Pair("a", "b", "true")]
    assert message(TSV(path=tsv, label_column=9)).startswith(f"{tsv}:1: 4 column(s) between tabs, but column 9")
    bad = file(tmp_path, "bad.jsonl", '{"text": "a", "y": null}')
    assert message(JSONLines(path=bad, source_field=None, target_field="text", label_field="y")) == (
        f"{bad}:1: field y holds NoneType 'None', not a string"
    )
    with pytest.raises(ValueError, match=r"^tsv\.target_column and tsv\.label_column are both 1: "):
        TSV(path="x", label_column=1)


def test_parquet_files_give_pairs_documents_and_labels(tmp_path: Path) -> None:
    rows = [{"id": 5, "pair": {"de": s, "en": t}, "y": i} for i, (s, t, _) in enumerate(PAIRS)]
    path = parquet(tmp_path / "a-0.parquet", rows[:2])
    parquet(tmp_path / "a-1.parquet", rows[2:])
    fields = {"source_field": "pair.de", "target_field": "pair.en"}
    assert list(Parquet(path=str(tmp_path / "a-*.parquet"), **fields).open()) == PAIRS
    assert list(Parquet(path=path, source_field=None, target_field="pair.en", label_field="y").open()) == [
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


def test_a_missing_pyarrow_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert 'pip install "flaxformer_lite[hub]"' in message(Parquet(path="x.parquet"))


def test_the_classes_of_a_dataset_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of Parquet files is a dataset too; -1, which stands for no label, stays."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"text": datasets.Value("string"), "y": datasets.ClassLabel(names=["neg", "pos"])})
    rows = {"text": ["good", "bad", "unknown"], "y": [1, 0, -1]}
    wanted = [Pair("", "good", "pos"), Pair("", "bad", "neg"), Pair("", "unknown", "-1")]
    dataset = datasets.Dataset.from_dict(rows, features=features)
    dataset.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "files").mkdir()
    dataset.to_parquet(str(tmp_path / "files" / "train.parquet"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for folder in ("saved", "files"):
        source = HubDataset(path=str(tmp_path / folder), source_field=None, target_field="text", label_field="y")
        assert list(source.open()) == wanted
