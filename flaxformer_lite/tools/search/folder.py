"""Data of a search in files: folders of corpus, queries and judgements, in BEIR's layout, and results as TREC has them.

    corpus.jsonl       {"_id": "d1", "title": "…", "text": "…"}: a document is title and text, with a space between
    queries.jsonl      {"_id": "q1", "text": "…"}
    qrels/test.tsv     query-id, corpus-id, score: a whole number, 1 or more for a relevant document

Each file may be compressed. Reference: Thakur et al. 2021, arXiv:2104.08663.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.console import counted, note
from flaxformer_lite.core.retrieval.ranking import ranked
from flaxformer_lite.files.text.files import line_chunks
from flaxformer_lite.files.text.json_objects import json_object
from flaxformer_lite.files.text.tables import columns_in

CORPUS, QUERIES = "corpus.jsonl", "queries.jsonl"
HEADER = "query-id\tcorpus-id\tscore"
PACKED = ("", ".gz", ".bz2", ".xz", ".zst")

Results = Mapping[str, Mapping[str, float]]
"""The score of each document that was found, by query."""


class SearchFolder(NamedTuple):
    """Texts by their ids, and judgements: for each query the gain of each judged document."""

    corpus: dict[str, str]
    queries: dict[str, str]
    """The texts of the queries with judgements."""
    judgements: dict[str, dict[str, int]]
    path: Path = Path()


def judgements_of(folder: str | Path, split: str) -> Path:
    """Returns the file of the judgements of a split: train, dev or test."""
    return file_of(folder, f"qrels/{split}.tsv")


def read_search_folder(folder: str | Path, split: str = "test") -> SearchFolder:
    """Reads a folder with the judgements of a split.

    Raises: ValueError with file, line and remedy for anything that is not as above.
    """
    corpus = read_texts(file_of(folder, CORPUS), "document")
    queries = read_texts(file_of(folder, QUERIES), "query")
    path = judgements_of(folder, split)
    others = [] if path.is_file() else sorted(map(str, path.parent.glob("*.tsv*")))
    if others:
        raise ValueError(f"{path}: no such file, and no other is read: copy {' or '.join(others)} to this name")
    judgements: dict[str, dict[str, int]] = {}
    for number, line in enumerate(lines_of(path), 1):
        if number == 1:
            if line.split("\t") != HEADER.split("\t"):
                raise ValueError(f"{path}:1: the line is {line[:60]!r}: write the header {HEADER!r}, with tabs")
            continue
        cells = line.split("\t")
        if len(cells) != 3:
            raise ValueError(
                f"{path}:{number}: {len(cells)} columns between tabs: write {HEADER.replace(chr(9), ', ')}"
            )
        query, document, score = cells
        for kind, id_, known in (("query", query, queries), ("document", document, corpus)):
            if id_ not in known:
                raise ValueError(f"{path}:{number}: no {kind} has the id {id_!r}: add it, or remove the judgement")
        if document in judgements.setdefault(query, {}):
            raise ValueError(f"{path}:{number}: {query!r} and {document!r} are judged twice: remove one judgement")
        try:
            judgements[query][document] = int(score)
        except ValueError:
            raise ValueError(f"{path}:{number}: the score is {score!r}: it must be a whole number") from None
    if not judgements:
        raise ValueError(f"{path}: no judgement in it, so nothing can be measured: add some")
    return SearchFolder(corpus, {query: queries[query] for query in judgements}, judgements, Path(folder).resolve())


def read_corpus(path: str | Path) -> dict[str, str]:
    """Returns the documents of a folder, or of a file as `corpus.jsonl`, by their ids. Raises: as `read_search_folder`."""
    return read_texts(file_of(path, CORPUS) if Path(path).is_dir() else Path(path), "document")


def read_texts(path: Path, kind: str) -> dict[str, str]:
    """Returns the texts of a file of JSON lines, by their ids."""
    texts: dict[str, str] = {}
    places: dict[str, int] = {}
    empty = list[int]()
    for number, line in enumerate(lines_of(path), 1):
        record = json_object(line, f"{path}:{number}")
        id_, text = record.get("_id"), record.get("text")
        title = record.get("title") or ""
        if not isinstance(id_, str | int) or not isinstance(text, str) or not isinstance(title, str):
            raise ValueError(
                f"{path}:{number}: a {kind} needs the texts _id and text, and may have a title: correct the line"
            )
        whole = f"{title} {text}".strip()
        if not whole:
            empty.append(number)
        before = places.setdefault(str(id_), number)
        if before != number:
            raise ValueError(
                f"{path}:{number}: line {before} has the id {id_!r} too: give each {kind} an id of its own"
            )
        texts[str(id_)] = whole
    if not texts:
        raise ValueError(f"{path}: the file has no {kind}: add some")
    if empty:
        note(
            f"{path}: an empty {kind} is read as an empty text: {counted(len(empty), 'line')}, the first is {empty[0]}"
        )
    return texts


def file_of(folder: str | Path, name: str) -> Path:
    """Returns a file of a folder, compressed or not; the uncompressed name if the file is missing."""
    paths = [Path(folder) / f"{name}{ending}" for ending in PACKED]
    return next((path for path in paths if path.is_file()), paths[0])


def lines_of(path: Path) -> Iterator[str]:
    for lines in line_chunks(path):
        yield from lines


# Results --------------------------------------------------------------------------------------------------------------


def write_results(path: Path, results: Results, tag: str) -> None:
    """Writes results in TREC's six columns, with tabs: query, Q0, document, rank, score, and the name of the search."""
    rows = list[str]()
    for query, scores in results.items():
        for rank, document in enumerate(ranked(scores), 1):
            rows.append(f"{query}\tQ0\t{document}\t{rank}\t{scores[document]:.7g}\t{tag}\n")
    write_whole(path, "".join(rows))


def read_results(path: str | Path, folder: SearchFolder) -> Results:
    """Returns the results in a file for the queries of a folder. Raises: ValueError with the line for anything unknown."""
    results: dict[str, dict[str, float]] = {query: {} for query in folder.queries}
    for number, line in enumerate(lines_of(Path(path)), 1):
        cells = columns_in(line)
        if len(cells) != 6:
            raise ValueError(
                f"{path}:{number}: {len(cells)} columns: TREC's results have query, Q0, document, rank, score and a name"
            )
        query, _, document, _, score, _ = cells
        if document not in folder.corpus:
            raise ValueError(f"{path}:{number}: no document has the id {document!r}: take results of this corpus")
        try:
            value = float(score)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"{path}:{number}: the score is {score!r}: it must be a finite number")
        if document in results.get(query, {}):
            raise ValueError(f"{path}:{number}: {query!r} has the document {document!r} twice: remove one of the lines")
        if query in results:
            results[query][document] = value
    if not any(results.values()):
        raise ValueError(f"{path}: it has candidates for no query with judgements: take results of these queries")
    return results
