"""Queries with candidates, from rows to records. Oracle: the rows themselves, put together again from the tokens by hand."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.core.objectives import SentenceEmbeddings
from flaxformer_lite.core.objectives.candidates import QueryCandidates, longest_candidates
from flaxformer_lite.core.text.characters import ByteTokenizer
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.data import CSV, TSV, DataConfig, JSONLines
from flaxformer_lite.files.data.held_out import held_out
from flaxformer_lite.files.data.reading import reader_of, tokenize
from flaxformer_lite.files.records import Candidates
from flaxformer_lite.files.records.candidates import TextCandidates, in_lines

BYTES = Tokenizers(ByteTokenizer(), ByteTokenizer())
ROWS: list[dict[str, Any]] = [
    {"query": "one", "pos": "alpha", "neg": ["b", "gamma ray"], "pos_scores": 1.5, "neg_scores": [-2, 0.25]},
    {"query": "two", "pos": ["ä", "\u200d"], "neg": [], "pos_scores": [3, 4], "neg_scores": []},
    {"query": "three", "pos": ["x"], "neg": None, "pos_scores": [1], "neg_scores": None},
]
FIELDS = Candidates(positives="pos", negatives=("neg",))


def lines(folder: Path, rows: list[Any], **settings: Any) -> JSONLines:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return JSONLines(path=str(path), record=dataclasses.replace(FIELDS, **settings))


def texts_of(records: TokenArrays, i: int) -> tuple[str, list[str]]:
    parts = QueryCandidates.of(records[i])
    return BYTES.source.decode(parts.query), [BYTES.source.decode(text) for text in parts.candidates]


def read(pairs: list[Pair], objective: SentenceEmbeddings | None = None, folder: Path = Path()) -> TokenArrays:
    reader = reader_of(objective or SentenceEmbeddings(), BYTES, folder, DataConfig().longest)
    return tokenize(pairs, reader)


def test_rows_become_queries_with_their_candidates(tmp_path: Path):
    records = read(list(lines(tmp_path, ROWS, scores=("pos_scores", "neg_scores")).open()))
    for i, row in enumerate(ROWS):
        positives = row["pos"] if isinstance(row["pos"], list) else [row["pos"]]
        assert texts_of(records, i) == (row["query"], [*positives, *(row["neg"] or [])])
        parts = QueryCandidates.of(records[i])
        assert parts.num_positives == len(positives)
        given = row["pos_scores"] if isinstance(row["pos_scores"], list) else [row["pos_scores"]]
        assert parts.scores.tolist() == [*given, *(row["neg_scores"] or [])]
    longest = [max(len(text.encode()) for text in texts_of(records, i)[1]) for i in range(3)]
    assert longest_candidates(records).tolist() == longest


def test_an_empty_candidate_shifts_no_other():
    pair = TextCandidates(["a"], ["", "c"]).pair("q")  # a tokenizer may have no token for a text
    assert texts_of(read([pair]), 0) == ("q", ["a", "", "c"])


def test_a_pair_without_candidates_is_shown_as_it_is():
    labelled = Pair("de", "f", "label")
    assert in_lines(labelled) == labelled
    assert in_lines(TextCandidates(["a", "b"], ["c"]).pair("q")) == Pair("q", "a\nb\nc")


def test_plain_pairs_and_candidates_share_an_evaluation():
    """Law: plain pairs give the records that they gave before, alone and beside candidates."""
    plain = [Pair("a", "bc"), Pair("de", "f", "label")]
    alone, before = read(plain), tokenize([pair._replace(label="") for pair in plain], BYTES)
    assert alone.fingerprint() == before.fingerprint()
    mixed = read([plain[0], TextCandidates(["x", "yz"], ["v"]).pair("q"), plain[1]])
    assert [texts_of(mixed, i) for i in range(3)] == [("a", ["bc"]), ("q", ["x", "yz", "v"]), ("de", ["f"])]
    assert longest_candidates(mixed).tolist() == [2, 2, 1]
    assert mixed.fingerprint() == TokenArrays.of(list(mixed)).fingerprint()


def test_prompts_stand_before_the_texts(tmp_path: Path):
    objective = SentenceEmbeddings(
        prompts=(("query", "Q: "), ("text", "T: ")), query_prompt="query", document_prompt="text"
    )
    pairs = [Pair("a", "b"), TextCandidates(["c"], ["d"]).pair("e")]
    records = read(pairs, objective)
    assert [texts_of(records, i) for i in range(2)] == [("Q: a", ["T: b"]), ("Q: e", ["T: c", "T: d"])]
    readers = [reader_of(one, BYTES, tmp_path, DataConfig().longest) for one in (SentenceEmbeddings(), objective)]
    assert readers[0].reading == "" != readers[1].reading


def test_columns_of_negatives(tmp_path: Path):
    path = tmp_path / "triples.csv"
    path.write_text('query,right,wrong,other\nq,"a, b",c,d\n')
    named = CSV(path=str(path), header=True, record=Candidates(positives="right", negatives=("wrong", "other")))
    (record,) = (texts_of(read(list(named.open())), i) for i in range(1))
    assert record == ("q", ["a, b", "c", "d"])
    (tmp_path / "triples.tsv").write_text("q\ta\t \n")
    with pytest.raises(ValueError, match=r"triples\.tsv:1: candidate 2 of the query is ' ': it must be a text"):
        TSV(path=str(tmp_path / "triples.tsv"), record=Candidates(query=0, positives=1, negatives=(2,))).open()


def test_a_missing_field_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: no field negative; the fields are query, pos, neg"):
        lines(tmp_path, ROWS, negatives=("negative",)).open()


def test_a_tokenizer_is_trained_on_all_candidates():
    (pair,) = Candidates.learned(SentenceEmbeddings(), [TextCandidates(["a", "b"], ["c"]).pair("q")])
    assert pair[:2] == ("q", "a\nb\nc")
    prompted = SentenceEmbeddings(prompts=(("query", "find: "),), query_prompt="query")
    assert list(Candidates.learned(prompted, [Pair("q", "a")])) == [Pair("find: ", ""), Pair("q", "a")]


def test_held_out_texts_are_no_positives_of_training(tmp_path: Path):
    """Law: no query or positive of the training is one of a held-out row; a negative may be."""
    rows = [{"query": f"q{i}", "pos": [f"p{i % 40}"], "neg": [f"p{(i + 1) % 40}"]} for i in range(80)]
    source = lines(tmp_path, rows)
    parts = {
        split: list(held_out(source, split=split, held=("eval", "test"), share=0.1, seed=0).open())
        for split in ("train", "eval")
    }

    def positives(split: str) -> set[str]:
        return {text for pair in parts[split] for text in TextCandidates.of_pair(pair).positives}

    assert parts["eval"] and not positives("train") & positives("eval")
