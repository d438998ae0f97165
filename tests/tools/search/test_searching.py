"""Oracles: cosines of all vectors one by one, and figures by hand: each query is the text of its best document."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.core.objectives import Reranking
from flaxformer_lite.core.search.ranking import ranked
from flaxformer_lite.run import load
from flaxformer_lite.tools.search import SearchFolder, searching
from tests.support.commands import type_command
from tests.support.search_runs import CORPUS, QUERIES, write_search_folder, write_search_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A folder to search, a run that embeds, and one that scores pairs."""
    place = tmp_path_factory.mktemp("search")
    embeds, reranks = (write_search_run(place / name, reranks=name == "reranks") for name in ("embeds", "reranks"))
    return write_search_folder(place / "folder"), embeds, reranks


def test_a_search_and_a_second_order_of_it(runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """The command: a run searches, and both runs order what it found."""
    monkeypatch.setattr(searching, "AT_ONCE", 3)
    folder, embeds, reranks = runs
    type_command(monkeypatch, "evaluate", embeds, "--search", folder)
    report = json.loads(capsys.readouterr().out)
    assert report["queries"] == 2 and report["documents"] == len(CORPUS)
    results = embeds / "hypotheses/search-folder.trec"
    found = [line.split("\t") for line in results.read_text().splitlines()]
    vectors = load(embeds).embed(list(CORPUS.values())).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for query in ("q1", "q2"):
        own = list(CORPUS.values()).index(QUERIES[query])
        cosines = dict(zip(CORPUS, vectors @ vectors[own], strict=True))
        rows = [row for row in found if row[0] == query]
        assert [row[2] for row in rows] == sorted(CORPUS, key=lambda id_: -cosines[id_])
        assert [float(row[4]) for row in rows] == pytest.approx(sorted(cosines.values(), reverse=True), abs=1e-5)
    rank = 1 + [row[2] for row in found if row[0] == "q1"].index("d3")
    best = 2 + 1 / math.log2(3)
    wanted = {"ndcg@10": (1 + (2 + 1 / math.log2(rank + 1)) / best) / 2, "mrr@10": 1, "recall@10": 1, "recall@100": 1}
    assert {name: report[name] for name in wanted} == pytest.approx(wanted)
    assert json.loads((embeds / "evaluations/search-folder.json").read_text()) == report
    other = write_search_folder(folder.parent / "other/folder")
    with pytest.raises(SystemExit) as stopped:
        type_command(monkeypatch, "evaluate", embeds, "--search", other)
    words = f"search-folder.json has the figures of {folder}: rename one of the two folders, or remove this file"
    assert stopped.value.code == 2 and words in capsys.readouterr().err
    type_command(monkeypatch, "evaluate", embeds, "--search", folder, "--candidates", results)
    again = json.loads(capsys.readouterr().out)
    assert {name: again[name] for name in wanted} == pytest.approx(wanted)
    type_command(monkeypatch, "evaluate", reranks, "--search", folder, "--candidates", results)
    assert json.loads(capsys.readouterr().out)["recall@100"] == 1
    rows = [line.split("\t") for line in (reranks / "hypotheses/search-folder.trec").read_text().splitlines()]
    documents = list(CORPUS.values())
    order = load(reranks).rank(QUERIES["q2"], documents)
    assert [row[2] for row in rows if row[0] == "q2"] == [f"d{one.index}" for one in order]


def test_a_document_with_the_id_of_the_query_is_no_result(runs, monkeypatch: pytest.MonkeyPatch, capsys):
    """By BEIR's custom, in both orders: the others are those of the corpus without it. An empty document is one of them."""
    corpus = {**dict(list(CORPUS.items())[:4]), "e": ""}
    folder = SearchFolder(corpus, {"d1": CORPUS["d1"]}, {"d1": {"d3": 1, "d1": 1}})
    run, others = load(runs[1]), [id_ for id_ in corpus if id_ != "d1"]
    monkeypatch.setattr(searching, "FOUND", 3)
    nearest = [others[one.index] for one in run.rank(CORPUS["d1"], [corpus[id_] for id_ in others])]
    for candidates, number in ((None, 3), ({"d1": dict.fromkeys(corpus, 1.0)}, 4)):
        figures, results = searching.search_report(run, folder, candidates)
        assert ranked(results["d1"]) == nearest[:number]
        assert figures["mrr@10"] == (1 / (1 + nearest.index("d3")) if "d3" in nearest[:number] else 0)
        assert "1 document with the id of a query: left out of its results, as BEIR counts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["reranks", "--search", "folder"],
            "makes no vectors, so it cannot search a corpus: give it the results of a first",
        ),
        (["embeds", "--candidates", "x.trec"], "--candidates is for a search: add --search FOLDER, or leave it out"),
        (
            ["embeds", "--search", "folder", "--split", "test"],
            "--search takes one RUN, --candidates and the options of weights",
        ),
        (
            ["embeds", "--search", "folder", "--beam-size", "2"],
            "--search takes one RUN, --candidates and the options of weights",
        ),
        (["embeds", "embeds", "--search", "folder"], "--search takes one RUN, --candidates and the options of weights"),
        (["embeds", "--search", "nowhere"], "corpus.jsonl"),
    ],
)
def test_mistakes_are_one_line(words: list[str], message: str, runs, monkeypatch, capsys: pytest.CaptureFixture):
    monkeypatch.chdir(runs[0].parent)
    with pytest.raises(SystemExit) as stopped:
        type_command(monkeypatch, "evaluate", *words)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and message in error and "Traceback" not in error


def test_pairs_are_ranked_by_cosines_or_by_the_model(runs):
    """Oracles: cosines of vectors; the number of `classify` for the pair; equal scores keep their order."""
    embeds, reranks = map(load, runs[1:])
    texts = ["grape", "kite", "grape", "ink ink"]
    ranked = embeds.rank("kite", texts)
    assert ranked[0].index == 1 and ranked[0].score == pytest.approx(1, abs=1e-5)
    places = [one.index for one in ranked]
    assert places.index(0) + 1 == places.index(2)
    scores = [prediction.score for prediction in reranks.classify([("kite", text) for text in texts])]
    found = reranks.rank("kite", texts)
    assert [one.score for one in found] == pytest.approx(sorted(scores, reverse=True))
    assert [scores[one.index] for one in found] == pytest.approx([one.score for one in found])
    assert embeds.rank("kite", []) == reranks.rank("kite", []) == []
    trained = dataclasses.replace(reranks, config=dataclasses.replace(reranks.config, objective=Reranking()))
    assert trained.rank("kite", texts) == found
    with pytest.raises(ValueError, match=r"^objective\.kind is 'reranking', .*: use `rank`"):
        trained.classify(["kite"])


def test_the_command_ranks_each_line(
    runs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
):
    """Oracle: `Run.rank` for each line. A bad line is reported, and its answer is empty; a run that cannot rank says so."""
    asked = [{"query": "kite", "candidates": ["ink", "kite", "grape"]}, {"query": "ink", "candidates": []}]
    bad = ["{}", '{"query": "a", "candidates": ["b", 3]}', '{"query": "a", "candidates": "b"}', "kite"]
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(f"{line}\n" for line in [json.dumps(asked[0]), *bad, json.dumps(asked[1])]))
    for folder in runs[1:]:
        type_command(monkeypatch, "rank", folder, path)
        output, errors = capsys.readouterr()
        first, *empty, last = output.splitlines()
        found = load(folder).rank(**asked[0])
        assert [one["index"] for one in json.loads(first)] == [one.index for one in found]
        assert [one["score"] for one in json.loads(first)] == pytest.approx([one.score for one in found], abs=1e-5)
        assert empty == [""] * 4 and json.loads(last) == []
        for line in (2, 3, 4, 5):
            assert f"{path}, line {line}: " in errors
    assert 'write {"query": "…", "candidates": ["…", …]}, all of them texts' in errors


def test_warnings_name_the_line_of_a_query_and_progress_counts_lines(runs, tmp_path: Path, monkeypatch, capsys):
    """Line 2 has the long candidate, as the first of its two; both kinds of runs count lines, and not candidates."""
    path, long, told = tmp_path / "asked.jsonl", "ink " * 30, list[tuple[int, int]]()
    asked = [("kite", ["ink", "grape", "ink"]), ("ink", [long, "kite"]), ("dune", [])]
    path.write_text("".join(f"{json.dumps({'query': a, 'candidates': b})}\n" for a, b in asked))
    for folder in runs[1:]:
        type_command(monkeypatch, "rank", folder, path)
        warnings = [line for line in capsys.readouterr().err.splitlines() if "was cut" in line]
        assert len(warnings) == 1 and f"{path}: line 2: " in warnings[0]
        load(folder).rankings(asked, progress=lambda _, *shown: told.append(shown), warn=lambda line: None)
        assert load(folder).rankings([]) == []
    assert {total for _, total in told} == {3} and max(done for done, _ in told) == 3
