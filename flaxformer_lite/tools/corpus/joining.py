"""One file of the answers of all pieces, each compared with its digest."""

import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flaxformer_lite.tools.corpus.folder import Corpus, content_of, digest, piece_name, read_corpus_manifest
from flaxformer_lite.tools.corpus.places import ANSWERS, place_of

SHOWN = 10
"""Missing pieces that a message lists."""


def join(folder: Path | str) -> str:
    """Writes the answers of all pieces into one file, in the order of the lines, and returns it. Memory: that of a piece.

    Raises: ValueError if a piece is missing or damaged.
    """
    facts = read_corpus_manifest(folder, place_of(folder))
    if not facts:
        raise ValueError(f"{folder} has no corpus.json: give the folder of -o of an earlier start")
    corpus = Corpus(folder, facts["ending"])
    missing = corpus.missing()
    if missing:
        names = ", ".join(map(piece_name, missing[:SHOWN])) + (", …" if missing[SHOWN:] else "")
        raise ValueError(
            f"{folder} lacks {len(missing):,} of {facts['number_of_pieces']:,} pieces: {names}; start the command with its "
            "FILEs again"
        )
    contents = checked(corpus, facts)
    if corpus.ending == ".npy":
        contents = as_one_array(contents, facts["number_of_lines"])
    with corpus.place.writing(), corpus.place.claim(ANSWERS, wait=True):
        corpus.place.write_all(f"{ANSWERS}{corpus.ending}", contents)
    return corpus.answers(ANSWERS)


def checked(corpus: Corpus, facts: Mapping[str, Any]) -> Iterator[bytes]:
    """Yields the content of each piece. Raises: ValueError for one that is not as it was written, or of another input."""
    sources = list[str]()
    for index in range(facts["number_of_pieces"]):
        finished = corpus.finished(index)
        if finished is None or digest(finished[1]) != finished[0]["answers"]:
            raise ValueError(
                f"{corpus.answers(piece_name(index))} is not as it was written: delete it, start the command with its FILEs, and "
                "join again"
            )
        sources.append(finished[0]["source"])
        yield finished[1]
    if content_of(sources) != facts.get("content_of_lines"):
        raise ValueError(
            f"{corpus.folder} has pieces of several inputs: start the command with its FILEs, which names them"
        )


def as_one_array(contents: Iterable[bytes], rows: int) -> Iterator[bytes]:
    """Yields the bytes of one .npy file with the rows of several, `rows` in all."""
    import numpy as np  # of pieces of text nobody needs it

    for number, content in enumerate(contents):
        array = np.lib.format.read_array(io.BytesIO(content))
        if number == 0:
            header = io.BytesIO()
            whole = np.lib.format.header_data_from_array_1_0(array) | {"shape": (rows, *array.shape[1:])}
            np.lib.format.write_array_header_1_0(header, whole)
            yield header.getvalue()
        yield array.tobytes()
