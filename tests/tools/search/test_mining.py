"""Oracle: cosines of all vectors one by one, sorted; positives and the query itself by hand."""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.core.objectives import SentenceEmbeddings
from flaxformer_lite.files.data import JSONLines
from flaxformer_lite.files.records import Candidates
from flaxformer_lite.run import load
from flaxformer_lite.tools.search import Mining, mine, mining
from tests.support.commands import Command
from tests.support.search_runs import CORPUS, write_search_folder, write_search_run

pytestmark = pytest.mark.usefixtures("one_device")

ROWS = [
    {"query": "kite", "positive": "hill kite", "id": 7},
    {"query": CORPUS["d2"], "positive": [CORPUS["d0"].upper(), "not there"]},
]
"""The second query is a document, and its first positive one too, in capitals."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mining")
    write_search_run(folder / "embeds", reranks=False)
    write_search_run(folder / "reranks", reranks=True)
    write_search_folder(folder / "corpus")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return folder


load_once = functools.cache(load)


def cosines(place: Path, query: str, texts: list[str]) -> dict[str, float]:
    vectors = load_once(place / "embeds").embed([query, *texts]).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return dict(zip(texts, vectors[1:] @ vectors[0], strict=True))


@pytest.mark.slow
def test_negatives_are_the_nearest_that_are_no_positive(place: Path, command: Command):
    """The command, whose output is data for a training."""
    output = place / "out.jsonl"
    words = ("--corpus", place / "corpus", "-o", output, "--negatives", "3", "--ranks", "2-5")
    command("mine", place / "embeds", place / "rows.jsonl", *words)
    written = [json.loads(line) for line in output.read_text().splitlines()]
    left_out = [{CORPUS["d7"]}, {CORPUS["d2"], CORPUS["d0"]}]
    for row, found, known in zip(ROWS, written, left_out, strict=True):
        near = cosines(place, row["query"], list(CORPUS.values()))
        ranked = [text for text in sorted(near, key=lambda text: -near[text]) if text not in known]
        assert found == row | {"negatives": ranked[1:4]}
    source = JSONLines(path=str(output), record=Candidates())
    assert len(source.open()) == 2


def test_a_margin_leaves_out_what_may_answer_the_query(place: Path, capsys: pytest.CaptureFixture):
    near = cosines(place, "kite", list(CORPUS.values()))
    run, rows, corpus = load(place / "embeds"), place / "rows.jsonl", place / "corpus"
    for margin in (0.0, 0.05, -0.5):
        output = place / f"margin{margin}.jsonl"
        mine(run, rows, corpus / "corpus.jsonl", output, Mining(9, margin=margin))
        first = json.loads(output.read_text().splitlines()[0])
        wanted = [text for text in CORPUS.values() if text != "hill kite" and near[text] < near["hill kite"] - margin]
        assert first["negatives"] == sorted(wanted, key=lambda text: -near[text])
    assert len(wanted) == 7
    mine(run, rows, corpus, place / "none.jsonl", Mining(9, margin=3.0))
    assert "none.jsonl: 2 rows without any negative: choose wider --ranks, or lower --margin" in capsys.readouterr().err
    mine(run, rows, corpus, place / "far.jsonl", Mining(9, first=99))
    assert "far.jsonl: 2 rows without any negative: choose wider --ranks\n" in capsys.readouterr().err


def negatives(
    place: Path, tmp_path: Path, rows: list[dict], corpus: Path | None = None, margin: float | None = None
) -> list[list[str]]:
    """What is mined for each row."""
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    output, run = tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl", load_once(place / "embeds")
    mine(run, tmp_path / "rows.jsonl", corpus or place / "corpus", output, Mining(99, margin=margin))
    return [json.loads(line)["negatives"] for line in output.read_text().splitlines()]


def test_a_positive_of_the_same_query_in_another_row_is_no_negative(place: Path, tmp_path: Path):
    """Whatever the case of the query; the document with the id of a row is its query."""
    rows = [{"query": "kite", "positive": CORPUS["d1"]}, {"query": " Kite", "positive": [CORPUS["d2"].upper()]}]
    found = negatives(place, tmp_path, [*rows, {"query": "ink", "positive": CORPUS["d3"], "_id": "d5"}])
    left_out = [{*CORPUS.values()} - {*negatives} for negatives in found]
    assert left_out == [{CORPUS["d1"], CORPUS["d2"]}] * 2 + [{CORPUS["d3"], CORPUS["d5"]}]


def test_queries_documents_and_positives_have_their_prompts(place: Path, tmp_path: Path):
    """Oracle: a run without prompts that mines texts with the prompts written out. The margin compares the positives too."""
    plain, found = load_once(place / "embeds"), list[list[list[str]]]()
    objective = SentenceEmbeddings(prompts=(("query", "find "), ("document", "the ")))
    prompted = dataclasses.replace(plain, config=dataclasses.replace(plain.config, objective=objective))
    for run, query, document in ((prompted, "", ""), (plain, "find ", "the ")):
        rows, corpus, output = (tmp_path / f"{name}{document}" for name in ("rows", "corpus", "mined"))
        asked = [{"query": query + text[::-1], "positive": document + text} for text in CORPUS.values()]
        documents = [{"_id": id_, "text": document + text} for id_, text in CORPUS.items()]
        for file, records in ((rows, asked), (corpus, documents)):
            file.write_text("".join(f"{json.dumps(one)}\n" for one in records))
        mine(run, rows, corpus, output, Mining(99, margin=0.0))
        mined = [json.loads(line)["negatives"] for line in output.read_text().splitlines()]
        found.append([[text.removeprefix(document) for text in texts] for texts in mined])
    assert found[0] == found[1]


def test_an_empty_document_is_no_negative(place: Path, tmp_path: Path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"_id": "a", "text": ""}\n{"_id": "b", "text": "ink"}\n')
    assert negatives(place, tmp_path, [{"query": "kite", "positive": "hill"}], corpus) == [["ink"]]


def test_a_margin_is_below_the_lowest_positive(place: Path, tmp_path: Path):
    """Two positives, the nearest and the farthest document of the query; the margin leaves out what is nearer than the second."""
    near = cosines(place, "kite", list(CORPUS.values()))
    *others, lowest = sorted(near, key=lambda text: -near[text])
    (found,) = negatives(place, tmp_path, [{"query": "kite", "positive": [others[0], lowest]}], margin=0.0)
    assert found == []
    (found,) = negatives(place, tmp_path, [{"query": "kite", "positive": others[:2]}], margin=0.0)
    assert found == [*others[2:], lowest]


def test_a_positive_behind_the_title_of_its_document_is_no_negative(place: Path, tmp_path: Path):
    """The corpus has the title hill and the text kite; the row has the text alone."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"query": "ink", "positive": "Kite"}))
    mine(load(place / "embeds"), rows, place / "corpus", tmp_path / "out.jsonl", Mining(9))
    negatives = json.loads((tmp_path / "out.jsonl").read_text())["negatives"]
    assert {*CORPUS.values()} - {*negatives} == {"hill kite"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--negatives", "0"], "--negatives is 0: it must be at least 1"),
        (["--ranks", "5-2"], "--ranks is '5-2': write the first and the last rank, from 1, such as 11-100"),
        (["--ranks", "0-2"], "--ranks is '0-2'"),
        (["--margin", "nan"], "--margin is nan: it must be a finite number"),
    ],
)
def test_options_out_of_range_are_one_line(words: list[str], message: str, place: Path, command: Command):
    given = ("--corpus", place / "corpus", "-o", place / "never.jsonl")
    assert message in command.mistake("mine", place / "embeds", place / "rows.jsonl", *given, *words)
    assert not (place / "never.jsonl").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": " ", "positive": "a"}', ":3: the query is ' ': it must be a text that is not blank"),
        ('{"query": 3, "positive": "a"}', ":3: field query holds int '3': it must be a string"),
        ('{"query": "a"}', ":3: no field positive; the fields are query"),
        ('{"query": "a", "positive": []}', ":3: no text answers the query: give at least one positive"),
        ('{"query": "a", "positive": ["b", 3]}', ":3: candidate 2 of the query is '3'"),
        ('{"query": "a", "positive": "b", "negatives": []}', ":3: the row has negatives already: remove the field"),
        ("a", ":3: not JSON"),
        (r'{"query": "a\ud800", "positive": "b"}', ":3: a text holds half a surrogate pair: correct the data"),
    ],
)
def test_a_row_of_another_form_is_named(line: str, message: str, place: Path, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text((place / "rows.jsonl").read_text() + line + "\n")
    with pytest.raises(ValueError) as refused:
        mine(load(place / "embeds"), rows, place / "corpus", tmp_path / "out.jsonl", Mining())
    assert str(refused.value).startswith(str(rows) + message)


def test_nothing_is_written_where_a_file_is_or_a_run_has_no_vectors(place: Path, tmp_path: Path, monkeypatch):
    output = tmp_path / "out.jsonl"
    rest = (place / "rows.jsonl", place / "corpus", output, Mining())
    with pytest.raises(ValueError, match=r"model\.sentence_embedding is None"):
        mine(load(place / "reranks"), *rest)

    def interrupted(*_: object) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(mining, "negatives", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mine(load(place / "embeds"), *rest)
    assert list(tmp_path.iterdir()) == []
    output.write_text("kept")
    with pytest.raises(ValueError, match="exists already"):
        mine(load(place / "embeds"), *rest)
    assert output.read_text() == "kept"
