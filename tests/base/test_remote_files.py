"""Files at URLs: read like local ones; what is missing or cannot be read is one line."""

import gzip
import sys
from pathlib import Path

import pytest

from flaxformer_lite.base.remote_files import has_file, is_store, is_url, matching_urls, open_filesystem, reading
from flaxformer_lite.config import load_config, to_json
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.files.data import TSV, HubDataset, ParallelText, Parquet, PlainText
from flaxformer_lite.files.records import Pairs
from flaxformer_lite.files.tokenizers.kinds import FromRun, save_tokenizer
from tests.support import needs
from tests.support.experiments import tiny_config
from tests.support.remote_runs import FlakyFileSystem

FOLDER = "flaky://bucket/data"


@pytest.fixture(autouse=True)
def store():
    FlakyFileSystem.reset()
    yield
    FlakyFileSystem.reset()


def put(name: str, content: bytes) -> str:
    FlakyFileSystem().pipe_file(f"{FOLDER}/{name}", content)
    return f"{FOLDER}/{name}"


@pytest.mark.parametrize("path", ["s3://bucket/run", "gs://b", "memory://x", "simplecache::s3://bucket/file"])
def test_urls(path: str):
    assert is_url(path)


@pytest.mark.parametrize("path", ["runs/x", "/a://b", "C://run", "C:\\run", "a:b", "", Path("s3://bucket")])
def test_paths(path: str | Path):
    assert not is_url(path)


@pytest.mark.parametrize("url", ["file:///tmp/run", "gs://bucket/run", "s3://bucket", "memory://run"])
def test_urls_of_stores(url: str):
    assert is_store(url)


@pytest.mark.parametrize("path", ["runs/x", "hf://owner/name", "https://host/run", "gs", "", Path("gs://bucket"), None])
def test_other_paths(path: object):
    assert not is_store(path)


def test_text_files(tmp_path: Path):
    source, target = put("train.en", b"one\r\ntwo\n"), put("train.de.gz", gzip.compress(b"eins\nzwei"))
    assert ParallelText(source=source, target=target).open() == [Pair("one", "eins"), Pair("two", "zwei")]
    assert TSV(path=put("a.tsv", b"a\tb\n")).open() == [Pair("a", "b")]
    put("book1.txt", b"first")
    put("more/book2.txt", b"second")
    assert [pair.target for pair in PlainText(path=f"{FOLDER}/**/book*.txt").open()] == ["first", "second"]
    assert matching_urls(f"{FOLDER}/*.txt") == [f"{FOLDER}/book1.txt"]


def test_parquet_and_saved_datasets(tmp_path: Path):
    pyarrow, datasets = (pytest.importorskip(name, reason=needs.TEST_ALL) for name in ("pyarrow.parquet", "datasets"))
    table = datasets.Dataset.from_dict({"source": ["a", "b"], "target": ["c", "d"]})
    pyarrow.write_table(table.data.table, tmp_path / "x.parquet")
    url = put("x.parquet", (tmp_path / "x.parquet").read_bytes())
    assert Parquet(path=url).open() == [Pair("a", "c"), Pair("b", "d")]
    table.save_to_disk(str(tmp_path / "saved"))
    for path in (tmp_path / "saved").iterdir():
        put(f"saved/{path.name}", path.read_bytes())
    assert has_file(f"{FOLDER}/saved", "state.json") and not has_file(f"{FOLDER}/saved", "dataset_dict.json")
    saved = HubDataset(path=f"{FOLDER}/saved", record=Pairs())
    assert saved.open() == [Pair("a", "c"), Pair("b", "d")]


def test_a_tokenizer_of_a_run(tmp_path: Path):
    save_tokenizer(Characters().train(["abc"], 9), tmp_path)
    (file,) = tmp_path.iterdir()
    put(f"run/{file.name}", file.read_bytes())
    assert FromRun(path=f"{FOLDER}/run").train([], 9).encode("cab") == FromRun(path=str(tmp_path)).train([], 9).encode(
        "cab"
    )


def test_a_config():
    url = put("run/config.json", to_json(tiny_config()).encode())
    assert load_config(url, ["--train.steps", "3"]).train.steps == 3


def test_mistakes(monkeypatch: pytest.MonkeyPatch):
    def read(url: str) -> bytes:
        filesystem, path = open_filesystem(url)
        with reading(url):
            return filesystem.cat_file(path)

    with pytest.raises(ValueError, match=r"flaky://bucket/data/none: no such file$"):
        read(f"{FOLDER}/none")
    with pytest.raises(ValueError, match=r"flaky://bucket/data/\*\.en: no file matches this pattern"):
        matching_urls(f"{FOLDER}/*.en")
    FlakyFileSystem.failure = RuntimeError("Could not connect\nto it")
    with pytest.raises(ValueError, match=r"flaky://bucket/data/a: cannot be read \(Could not connect\)$"):
        read(f"{FOLDER}/a")
    with pytest.raises(ValueError, match=r"nowhere://a: Protocol not known: nowhere; give a folder, or a URL"):
        open_filesystem("nowhere://a")


@pytest.mark.parametrize(("protocol", "package", "extra"), [("s3", "s3fs", "s3"), ("gs", "gcsfs", "gcs")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, protocol: str, package: str, extra: str):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    with pytest.raises(
        ValueError, match=rf'{protocol}://b/x: a package .* missing: pip install "flaxformer_lite\[{extra}\]"'
    ):
        open_filesystem(f"{protocol}://b/x")
