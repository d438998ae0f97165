"""Oracles: cosines of all vectors one by one, and figures by hand: each query is the text of its best document."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.core.objectives import SentenceEmbeddings
from flaxformer_lite.core.retrieval.ranking import ranked
from flaxformer_lite.run import load
from flaxformer_lite.tools.search import SearchFolder, searching
from tests.support.commands import Command
from tests.support.search_runs import CORPUS, QUERIES, write_search_folder, write_search_run

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A folder to search, a run that embeds, and one that scores pairs."""
    place = tmp_path_factory.mktemp("search")
    embeds, reranks = (write_search_run(place / name, reranks=name == "reranks") for name in ("embeds", "reranks"))
    return write_search_folder(place / "folder"), embeds, reranks


@pytest.mark.slow
def test_a_search_and_a_second_order_of_it(runs, command: Command, monkeypatch: pytest.MonkeyPatch):
    """The command: a run searches, and both runs order what it found."""
    monkeypatch.setattr(searching, "EMBEDDED_AT_ONCE", 3)
    folder, embeds, reranks = runs
    report = json.loads(command("evaluate", embeds, "--search", folder).out)
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
    words = f"search-folder.json has the figures of {folder}: rename one of the two folders, or remove this file"
    assert words in command.mistake("evaluate", embeds, "--search", other)
    again = json.loads(command("evaluate", embeds, "--search", folder, "--candidates", results).out)
    assert {name: again[name] for name in wanted} == pytest.approx(wanted)
    again = json.loads(command("evaluate", reranks, "--search", folder, "--candidates", results).out)
    assert again["recall@100"] == 1
    rows = [line.split("\t") for line in (reranks / "hypotheses/search-folder.trec").read_text().splitlines()]
    documents = list(CORPUS.values())
    order = load(reranks).rank(QUERIES["q2"], documents)
    assert [row[2] for row in rows if row[0] == "q2"] == [f"d{one.index}" for one in order]


def test_queries_and_documents_have_their_prompts(runs):
    """Oracle: a run without prompts that searches texts with the prompts written out."""
    plain = load(runs[1])
    objective = SentenceEmbeddings(prompts=(("query", "find "), ("document", "the ")))
    prompted = dataclasses.replace(plain, config=dataclasses.replace(plain.config, objective=objective))
    given = SearchFolder(CORPUS, QUERIES, {"q1": {"d4": 1}})
    corpus, queries = (
        {id_: before + text for id_, text in some.items()} for before, some in (("the ", CORPUS), ("find ", QUERIES))
    )
    written_out = SearchFolder(corpus, queries, given.judgements)
    (_, found), (_, wanted) = (searching.search_report(*one) for one in ((prompted, given), (plain, written_out)))
    assert found.keys() == wanted.keys() == QUERIES.keys()
    for query, scores in wanted.items():
        assert found[query] == pytest.approx(scores, abs=1e-5)


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
        ("reranks --search folder", "makes no vectors, so it cannot search a corpus: give it the results of a first"),
        ("embeds --candidates x.trec", "--candidates is for a search: add --search FOLDER, or leave it out"),
        ("embeds --search folder --split test", "--search takes one RUN, --candidates and the options of weights"),
        ("embeds --search folder --beam-size 2", "--search takes one RUN, --candidates and the options of weights"),
        ("embeds embeds --search folder", "--search takes one RUN, --candidates and the options of weights"),
        ("embeds --search nowhere", "corpus.jsonl"),
    ],
)
def test_a_mistake_is_one_line(words: str, message: str, runs, command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(runs[0].parent)
    assert message in command.mistake("evaluate", *words.split())
