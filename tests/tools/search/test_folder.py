"""Contract: a folder in BEIR's layout is read as it is written, and each mistake is one line with its place and its remedy."""

import gzip
import re
from pathlib import Path

import pytest

from flaxformer_lite.tools.search import read_results, read_search_folder, write_results
from tests.support.search_runs import CORPUS, QUERIES, write_search_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_search_folder(tmp_path / "folder")


def test_a_folder_has_documents_queries_and_judgements(folder: Path):
    """Queries without a judgement are left out; compressed files are read too; numbers are ids."""
    found = read_search_folder(folder)
    assert found.corpus == CORPUS and found.queries == {"q1": QUERIES["q1"], "q2": QUERIES["q2"]}
    assert found.judgements == {"q1": {"d4": 2, "d3": 1}, "q2": {"d0": 1, "d7": 0}}
    corpus = folder / "corpus.jsonl"
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress(corpus.read_bytes() + b'{"_id": 7, "text": "no title"}\n'))
    corpus.unlink()
    assert read_search_folder(folder).corpus == {**CORPUS, "7": "no title"}


def test_empty_texts_are_texts(folder: Path, capsys: pytest.CaptureFixture):
    """As in BEIR's loader, whose corpora have some; a note has their number."""
    for file, lines in (
        ("corpus", '{"_id": "e", "title": " ", "text": ""}\n{"_id": "f", "text": " "}\n'),
        ("queries", ""),
    ):
        with open(folder / f"{file}.jsonl", "a") as whole:
            whole.write(lines or '{"_id": "q4", "text": ""}\n')
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq4\td0\t1\n")
    found = read_search_folder(folder)
    assert found.corpus == {**CORPUS, "e": "", "f": ""} and found.queries == {"q4": ""}
    notes = capsys.readouterr().err
    assert "corpus.jsonl: an empty document is read as an empty text: 2 lines, the first is 9" in notes
    assert "queries.jsonl: an empty query is read as an empty text: 1 line, the first is 4" in notes


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        (
            "corpus.jsonl",
            '{"_id": "d3", "text": "x"}',
            r":9: line 4 has the id 'd3' too: give each document an id of its own",
        ),
        (
            "corpus.jsonl",
            '{"_id": "e"}',
            r":9: a document needs the texts _id and text, and may have a title: correct the line",
        ),
        ("corpus.jsonl", "[1]", r":9: '\[1\]' is no JSON object: write one in each line"),
        ("queries.jsonl", "{a}", r":4: not JSON \(.*\); each line must be one JSON object"),
        (
            "queries.jsonl",
            '{"_id": "q1", "text": "x"}',
            r":4: line 1 has the id 'q1' too: give each query an id of its own",
        ),
        ("qrels/test.tsv", "q1\td9\t1", r":6: no document has the id 'd9': add it, or remove the judgement"),
        ("qrels/test.tsv", "q9\td1\t1", r":6: no query has the id 'q9': add it, or remove the judgement"),
        ("qrels/test.tsv", "q1\td1\t0.5", r":6: the score is '0\.5': it must be a whole number"),
        ("qrels/test.tsv", "q1\td4\t2", r":6: 'q1' and 'd4' are judged twice: remove one judgement"),
        ("qrels/test.tsv", "q1 d1 1", r":6: 1 columns between tabs: write query-id, corpus-id, score"),
    ],
)
def test_a_line_that_is_wrong_is_named(file: str, line: str, message: str, folder: Path):
    path = folder / file
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}{message}$"):
        read_search_folder(folder)


def test_files_that_are_missing_empty_or_headless_are_named(folder: Path):
    judgements = folder / "qrels/test.tsv"
    header, *rows = judgements.read_text().splitlines()
    for text, message in (
        ("\n".join(rows), r":1: the line is 'q1.*: write the header 'query-id"),
        (header, ": no judgement in it"),
    ):
        judgements.write_text(text)
        with pytest.raises(ValueError, match=f"^{re.escape(str(judgements))}{message}"):
            read_search_folder(folder)
    judgements.rename(folder / "qrels/dev.tsv")
    with pytest.raises(ValueError, match=rf"qrels/test\.tsv: no such file, .*: copy {folder}/qrels/dev\.tsv to this"):
        read_search_folder(folder)
    (folder / "queries.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"queries\.jsonl: the file has no query: add some"):
        read_search_folder(folder)
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(ValueError, match=r"corpus\.jsonl"):
        read_search_folder(folder)


def test_results_come_back_from_their_file(folder: Path, tmp_path: Path):
    """In the order of their scores; those of other queries are left out; unknown documents and damaged lines are named."""
    path, found = tmp_path / "x.trec", read_search_folder(folder)
    results = {"q1": {"d3": 0.5, "d1": 0.25}, "q2": {}}
    write_results(path, results, "name")
    assert path.read_text() == "q1\tQ0\td3\t1\t0.5\tname\nq1\tQ0\td1\t2\t0.25\tname\n"
    path.write_text(path.read_text().replace("\t", " ") + "never Q0 d0 1 1.0 name\n")
    assert read_results(path, found) == results
    (tmp_path / "spaced").write_text("q1 Q0  d\u00a01 1 0.5 x\n")  # a space that does not break is a part of an id
    spaced = found._replace(corpus={"d\u00a01": "x"})
    assert read_results(tmp_path / "spaced", spaced)["q1"] == {"d\u00a01": 0.5}
    for line, message in (
        ("q1 Q0 d9 1 1.0 name", r":4: no document has the id 'd9': take results of this corpus"),
        ("q1 Q0 d1 1 nan name", r":4: the score is 'nan': it must be a finite number"),
        ("q1 Q0 d1 1 1.0 name", r":4: 'q1' has the document 'd1' twice: remove one of the lines"),
        ("q1 d1 1.0", r":4: 3 columns: TREC's results have query, Q0, document, rank, score and a name"),
    ):
        other = tmp_path / "other.trec"
        other.write_text(path.read_text() + line + "\n")
        with pytest.raises(ValueError, match=f"^{re.escape(str(other))}{message}$"):
            read_results(other, found)
    other.write_text("never Q0 d0 1 1.0 name\n")
    with pytest.raises(ValueError, match="it has candidates for no query with judgements"):
        read_results(other, found)
