"""Files that are read as the data of a run is read. Oracle: by hand, a table of files and of the sources that read them."""

from typing import Any

import pytest

from flaxformer_lite.files.data import DataConfig, HubDataset, Mixture, Parquet
from flaxformer_lite.files.data.text_files import CSV, TSV, CoNLL, JSONLines, ParallelText, PlainText
from flaxformer_lite.files.records import Classes, Conversations, Documents, Questions, Words

NAMED, NUMBERED = Classes(text="a", label="b"), Classes(text=1, label=0)


@pytest.mark.parametrize(
    ("data", "path", "expected"),
    [
        (JSONLines(path="x", record=NAMED), "dev.jsonl", JSONLines(path="dev.jsonl", record=NAMED)),
        (JSONLines(path="x", record=NAMED), "dev.txt", JSONLines(path="dev.txt", record=NAMED)),
        (JSONLines(path="x", record=NAMED), "dev.csv.gz", CSV(path="dev.csv.gz", header=True, record=NAMED)),
        (HubDataset(path="x", record=NAMED), "dev.json", JSONLines(path="dev.json", record=NAMED)),
        (HubDataset(path="x", record=NAMED), "dev", None),
        (Parquet(path="x", record=NAMED, bad_rows="drop"), "d.parquet", Parquet(path="d.parquet", record=NAMED, bad_rows="drop")),
        (TSV(path="x", record=NUMBERED), "dev.tsv", TSV(path="dev.tsv", record=NUMBERED)),
        (TSV(path="x", record=NUMBERED), "dev.jsonl", None),
        (CSV(path="x", header=True, record=NAMED, delimiter=";"), "d.csv",
         CSV(path="d.csv", header=True, record=NAMED, delimiter=";")),
        (CSV(path="x", header=True, record=NAMED), "dev.jsonl", JSONLines(path="dev.jsonl", record=NAMED)),
        (JSONLines(path="x", record=Words()), "dev.conllu", CoNLL(path="dev.conllu")),
        (CoNLL(path="x", comment="#"), "dev.testb", CoNLL(path="dev.testb", comment="#")),
        (CoNLL(path="x"), "dev.jsonl", None),
        (JSONLines(path="x", record=NAMED), "dev.conll", None),
        (ParallelText(source="x", target="y"), "dev.tsv", None),
        (PlainText(path="x", documents="lines"), "dev.txt", PlainText(path="dev.txt", documents="lines")),
        (Mixture(sources=(TSV(path="x"), JSONLines(path="y"))), "dev.jsonl", JSONLines(path="dev.jsonl")),
    ],
)  # fmt: skip
def test_a_file_is_read_as_the_data(data: Any, path: str, expected: Any):
    reads = data.record.reads
    assert DataConfig(train=data).alike(path, reads) == expected
    assert DataConfig(eval=data).alike(path, reads) == expected


def test_a_run_without_data_reads_what_has_published_names():
    assert DataConfig().alike("x.conll", "words") == CoNLL(path="x.conll")
    assert DataConfig().alike("x.json", "questions") == JSONLines(path="x.json", record=Questions())
    assert DataConfig().alike("x.csv", "questions") == CSV(path="x.csv", record=Questions(), header=True)
    assert DataConfig().alike("x.jsonl", "texts") == JSONLines(path="x.jsonl", record=Documents())
    assert DataConfig().alike("x.txt", "texts") == PlainText(path="x.txt", documents="lines")
    assert DataConfig().alike("x.csv", "classes") == CSV(path="x.csv", record=Classes(), header=True)
    assert DataConfig().alike("x.jsonl", "conversations") == JSONLines(path="x.jsonl", record=Conversations())
    assert DataConfig().alike("x.tmx", "texts") is None
    assert DataConfig().alike("x.conll", "texts") is DataConfig().alike("x.jsonl", "words") is None
    assert DataConfig().alike("x", "questions") is None
