"""Searches by a run: the nearest documents of queries by its vectors, or candidates in the order of its scores."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from flaxformer_lite.base.console import Progress, counted, note, one_of_each, warn
from flaxformer_lite.core.retrieval.nearest import NO_DOCUMENT, Nearest, NearestSearch
from flaxformer_lite.core.retrieval.ranking import mean_figures
from flaxformer_lite.engine.heads import unit_vectors
from flaxformer_lite.run import Run
from flaxformer_lite.run.scoring import save_scores
from flaxformer_lite.tools.search.folder import Results, SearchFolder, write_results
from flaxformer_lite.workdir.folder import finite

EMBEDDED_AT_ONCE = 16_384
"""Texts that are embedded, or pairs that are scored, before their vectors or scores are used."""
FOUND = 100
"""Documents that a search finds for each query: as many as the figures count."""


def search_report(
    run: Run, folder: SearchFolder, candidates: Results | None = None, by: Mapping[str, object] = {}
) -> tuple[dict[str, object], Results]:
    """Returns the figures of a run on a folder, and what it found.

    candidates: the run orders these. None: it finds the nearest in the whole corpus. A document with the id of the query is not
    among its results, as BEIR counts. by: `engine` and `weights_dtype`, as `Run.embed` takes them.

    Raises: ValueError for a run without vectors if no candidates are given.
    """
    if candidates is None and run.config.model.sentence_embedding is None:
        raise ValueError(
            f"the run {run.folder.called} makes no vectors, so it cannot search a corpus: give it the results of a first search to "
            "order, by --candidates FILE"
        )
    same = len(folder.queries.keys() & folder.corpus.keys())
    if same:
        note(f"{counted(same, 'document')} with the id of a query: left out of its results, as BEIR counts")
    with Progress() as progress:
        results = (
            search(run, folder, progress, by) if candidates is None else reranked(run, folder, candidates, progress, by)
        )
    reader = run.answering({**by})  # type: ignore[typeddict-item]
    sizes = {"queries": len(folder.queries), "documents": len(folder.corpus), "engine": reader.engine}
    return sizes | mean_figures(results, folder.judgements), results


def evaluate_search(
    run: Run,
    folder: SearchFolder,
    candidates: Results | None = None,
    told: Mapping[str, object] = {},
    by: Mapping[str, object] = {},
) -> tuple[dict[str, Any], Results]:
    """Returns the report that `evaluate --search` writes, and what the run found. told: further facts for the report. by: see
    `search_report`.

    Raises: ValueError as `search_report`, and if the run has the figures of another folder of this name.
    """
    place = str(folder.path)
    name = f"search-{folder.path.name}"
    kept = run.folder.path / "evaluations" / f"{name}.json"
    other = json.loads(kept.read_bytes()).get("folder", place) if kept.is_file() else place
    if other != place:
        raise ValueError(f"{kept} has the figures of {other}: rename one of the two folders, or remove this file")
    figures, results = search_report(run, folder, candidates, by)
    about = {"run": run.folder.called, "split": name, "folder": place, "step": run.step}
    return finite({**about, **told, **figures}), results


def save_search(run: Run, report: dict[str, object], results: Results) -> None:
    """Writes the report on a search and its results to the folder of a run. Raises: OSError if the results cannot be written."""
    save_scores(run, report, [], None)
    name = f"hypotheses/{report['split']}.trec"
    write_results(run.folder.path / name, results, run.folder.title)
    run.folder.publish(name)


def search(run: Run, folder: SearchFolder, progress: Progress, by: Mapping[str, object]) -> Results:
    """Returns the documents of a corpus whose vectors have the largest cosines with each query's."""
    ids, texts = list(folder.corpus), list(folder.corpus.values())
    with counting_cuts(by) as report:
        nearest, _ = nearest_documents(run, list(folder.queries.values()), texts, FOUND + 1, progress, report)
    results = dict[str, dict[str, float]]()
    rows = zip(folder.queries, nearest.scores.tolist(), nearest.numbers.tolist(), strict=True)
    for query, scores, numbers in rows:
        documents = [(ids[i], score) for score, i in zip(scores, numbers, strict=True) if i != NO_DOCUMENT]
        others = [(document, score) for document, score in documents if document != query]
        results[query] = dict(others[:FOUND])
    return results


def nearest_documents(
    run: Run, queries: Sequence[str], documents: Sequence[str], most: int, progress: Progress, report: Mapping[str, Any]
) -> tuple[Nearest, Float[np.ndarray, "Q D"]]:
    """Returns the documents of the largest cosines with each query, and the vectors of the queries, of length 1.

    report: further arguments of `Run.embed`.
    """
    of_queries, of_documents = run.config.objective.side_prompts
    vectors = unit_vectors(run.embed(queries, prompt=of_queries, **report))
    chunks = vector_chunks(run, documents, progress, prompt=of_documents, **report)
    return NearestSearch(most, run.placement).search(vectors, chunks), vectors


def reranked(
    run: Run, folder: SearchFolder, candidates: Results, progress: Progress, by: Mapping[str, object]
) -> Results:
    """Returns the candidates with the scores that the run gives them; a number whose lowest is the best changes its sign."""
    pairs = list[tuple[str, str]]()
    for query, scores in candidates.items():
        pairs += [(query, document) for document in scores if document != query]
    results: dict[str, dict[str, float]] = {query: {} for query in candidates}
    with counting_cuts(by) as report:
        for start in range(0, len(pairs), EMBEDDED_AT_ONCE):
            progress.of("ordering candidates", start, len(pairs))
            chosen = pairs[start : start + EMBEDDED_AT_ONCE]
            texts = [(folder.queries[query], folder.corpus[document]) for query, document in chosen]
            for (query, document), score in zip(chosen, run.relevance(texts, **report).tolist(), strict=True):
                results[query][document] = run.sign * score
    return results


def vector_chunks(
    run: Run, texts: Sequence[str], progress: Progress, **report: Any
) -> Iterator[Float[np.ndarray, "_ D"]]:
    """Yields the vectors of the texts, of length 1, while they are made."""
    for start in range(0, len(texts), EMBEDDED_AT_ONCE):
        progress.of("embedding documents", start, len(texts))
        yield unit_vectors(run.embed(texts[start : start + EMBEDDED_AT_ONCE], **report))


@contextlib.contextmanager
def counting_cuts(by: Mapping[str, object] = {}) -> Iterator[dict[str, Any]]:
    """Yields `by`, with arguments of a `Run` that count its warnings; in the end one line of each kind is written."""
    # Without numbers: they count the texts of a call, not the lines of a file.
    with one_of_each(lambda line: warn(re.sub("^line [0-9]+: |, such as line [0-9, ]+", "", line))) as say:
        yield {**by, "warn": say}
