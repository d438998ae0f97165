"""Hard negatives for a training: documents near a query, by a run's own vectors, that are not among its positives.

A row is a JSON object with a query, and one or several positives in a list. It is written with `negatives`, the form that
`JSONLines(record=Candidates())` reads.
"""

import collections
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from flaxformer_lite.base.atomic_files import require_absent, write_chunks
from flaxformer_lite.base.console import Progress, counted, note, warn
from flaxformer_lite.core.retrieval.nearest import NO_DOCUMENT
from flaxformer_lite.files.records.candidates import Candidates, TextCandidates
from flaxformer_lite.files.text.json_objects import json_object
from flaxformer_lite.files.text.normal_form import comparable
from flaxformer_lite.run import Run
from flaxformer_lite.tools.search.folder import lines_of, read_corpus
from flaxformer_lite.tools.search.searching import counting_cuts, nearest_documents, vector_chunks

MINED_FIELDS = Candidates(negatives=())
"""The fields of a row."""


class Mining(NamedTuple):
    """The choice of negatives."""

    number: int = 5
    """The most negatives of a query, the nearest first."""
    first: int = 1
    """The first rank that is a negative; higher ones leave out the nearest, which may answer the query too."""
    last: int = 100
    """The last rank. Ranks are those of the documents that are neither the query nor a positive."""
    margin: float | None = None
    """A negative's cosine with the query is lower than that of every positive by this number; None: no such rule."""

    @classmethod
    def typed(cls, number: int, ranks: str, margin: float | None) -> "Mining":
        """Returns the choice that was typed. Raises: ValueError with the option that has no legal value."""
        if number < 1:
            raise ValueError(f"--negatives is {number}: it must be at least 1")
        borders = re.fullmatch(r"([0-9]+)-([0-9]+)", ranks)
        first, last = map(int, borders.groups()) if borders else (0, 0)
        if not 1 <= first <= last:
            raise ValueError(f"--ranks is {ranks!r}: write the first and the last rank, from 1, such as 11-100")
        if margin is not None and not np.isfinite(margin):
            raise ValueError(f"--margin is {margin}: it must be a finite number, such as 0.05")
        return cls(number, first, last, margin)


class MinedRow(NamedTuple):
    """A row without negatives."""

    record: dict[str, Any]
    query: str
    positives: Sequence[str]
    """All texts that answer the query, of any row."""


def mine(run: Run, rows: Path, corpus: Path, output: Path, mining: Mining) -> None:
    """Writes the rows with negatives of a corpus into a new file, which appears whole.

    Raises: ValueError for a run without vectors, for bad lines of the rows or the corpus, or if the output exists already.
    """
    require_absent(output, "file")
    asked, documents = read_rows(rows), read_corpus(corpus)
    numbers = list[int]()

    def lines(progress: Progress) -> Iterator[bytes]:
        for record in mined(run, asked, documents, mining, progress):
            numbers.append(len(record["negatives"]))
            yield f"{json.dumps(record, ensure_ascii=False)}\n".encode()

    with Progress() as progress:
        write_chunks(output, lines(progress))
    empty = numbers.count(0)
    if empty:
        wider = "" if mining.margin is None else ", or lower --margin"
        warn(f"{output}: {counted(empty, 'row')} without any negative: choose wider --ranks{wider}")
    few = sum(number < mining.number for number in numbers)
    note(f"{output}: {counted(len(numbers), 'row')}, {few} of them with fewer negatives than {mining.number}")


def read_rows(path: Path) -> list[MinedRow]:
    """Returns the rows of a file. Raises: ValueError with the line for a row of another form."""
    rows = []
    for number, line in enumerate(lines_of(path), 1):
        place = f"{path}:{number}"
        record = json_object(line, place)
        if "negatives" in record:
            raise ValueError(f"{place}: the row has negatives already: remove the field")
        try:
            pair = MINED_FIELDS.pair(record)
        except ValueError as error:
            raise ValueError(f"{place}: {error}; the fields are query and positive") from None
        if not pair.source.strip():
            raise ValueError(f"{place}: the query is {pair.source!r}: it must be a text that is not blank")
        rows.append(MinedRow(record, pair.source, TextCandidates.of_pair(pair).positives))
    if not rows:
        raise ValueError(f"{path}: the file has no row: add some")
    positives = collections.defaultdict[str, list[str]](list)
    for row in rows:
        positives[comparable(row.query)] += row.positives
    return [row._replace(positives=positives[comparable(row.query)]) for row in rows]


def mined(
    run: Run, rows: Sequence[MinedRow], corpus: Mapping[str, str], mining: Mining, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Yields the record of each row with its negatives. A document with the id of the row (`_id`) is its query."""
    ids, documents = list(corpus), list(corpus.values())
    most = min(mining.last + 2 + max(len(row.positives) for row in rows), len(documents))
    with counting_cuts() as report:
        asked = [row.query for row in rows]
        nearest, queries = nearest_documents(run, asked, documents, most, progress, report)
        texts = list(itertools.chain.from_iterable(row.positives for row in rows))
        positives = unique_vectors(run, texts, progress, report)
    for i, row in enumerate(rows):
        lowest = min(float(queries[i] @ positives[text]) for text in row.positives)
        limit = np.inf if mining.margin is None else lowest - mining.margin
        places = zip(nearest.numbers[i].tolist(), nearest.scores[i].tolist(), strict=True)
        itself = str(row.record.get("_id"))
        ranked = [
            (documents[number], score) for number, score in places if number != NO_DOCUMENT and ids[number] != itself
        ]
        yield row.record | {"negatives": negatives(row, ranked, limit, mining)}


def negatives(row: MinedRow, ranked: Sequence[tuple[str, float]], limit: float, mining: Mining) -> list[str]:
    """Returns the negatives among ranked documents with their scores. limit: a number above their scores.

    A document is its title and text: one that ends with a positive may be that text behind its title. An empty document is no
    negative.
    """
    seen = set(map(comparable, ("", row.query, *row.positives)))
    behind_title = tuple(f" {comparable(text)}" for text in row.positives)
    rank, chosen = 0, list[str]()
    for text, score in ranked:
        form = comparable(text)
        if form in seen or form.endswith(behind_title):
            continue
        seen.add(form)
        rank += 1
        if mining.first <= rank <= mining.last and score < limit:
            chosen.append(text)
    return chosen[: mining.number]


def unique_vectors(
    run: Run, texts: Sequence[str], progress: Progress, report: Mapping[str, object]
) -> dict[str, Float[np.ndarray, "D"]]:
    """Returns the vectors of candidates, by their texts."""
    unique = list(dict.fromkeys(texts))
    _, prompt = run.config.objective.side_prompts
    chunks = vector_chunks(run, unique, progress, prompt=prompt, **report)
    return dict(zip(unique, itertools.chain.from_iterable(chunks), strict=True))
