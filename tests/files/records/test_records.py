"""What a row is, in the spellings of other programs. Oracles: the same rows in another spelling, by hand, by pandas and NumPy."""

import json
import typing
from pathlib import Path
from typing import Any, NamedTuple

import chex
import numpy as np
import pytest

from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.objectives import (
    AnswerSpans,
    BaseObjective,
    Instruction,
    SentenceEmbeddings,
    Seq2Seq,
    TokenLabels,
)
from flaxformer_lite.core.text import Bytes, Tokenizers
from flaxformer_lite.files.data import CSV, TSV, CoNLL, JSONLines, Parquet
from flaxformer_lite.files.data.reading import reader_of, tokenize
from flaxformer_lite.files.data.store import TokenStore
from flaxformer_lite.files.records import (
    READERS,
    Candidates,
    Classes,
    Conversations,
    Entities,
    Pairs,
    Questions,
    Record,
    RecordKinds,
    Words,
)
from flaxformer_lite.files.records.words import pair_of_words
from tests.support.files import file, message

NAMES = TokenLabels(labels=("O", "B-PER", "I-PER"))


class Kind(NamedTuple):
    """A kind of records: an objective that reads it, rows of a file, and rows that are bad with what is said of them."""

    record: Record
    objective: BaseObjective
    rows: list[dict[str, Any]]
    bad: list[tuple[Any, str]]


TEXT, ROCKET = "She was born in Warsaw, and Warsaw is in Poland.", "\U0001f680a cd."
QUERY = {"query": "one", "pos": "alpha", "neg": ["b", "gamma ray"], "pos_scores": 1.5, "neg_scores": [-2, 0.25]}
KINDS = {
    "pairs": Kind(
        Pairs(), Seq2Seq(), [{"source": "a", "target": "b"}],
        [
            ("not json", "not JSON"),
            ('{"source": "a"', "not JSON"),
            ("[" * 100_000, "not JSON"),
            ('{"source": "a", "target": "b"} {}', "not JSON"),
            ({"source": "a", "meta": {"x": {"y": 1}, "z": 2}}, "no field target; the fields are source, meta.x.y, meta.z"),
            (["a", "b"], "no field source; the fields are none"),
            ("\"a source and a target\"", "no field source; the fields are none"),
            ({"source": 3, "target": "b"}, "field source holds int '3': it must be a string"),
            ({"source": "a", "target": None}, "the target is empty; correct the data"),
            ({"source": None, "target": "b"}, "the source is empty; correct the data"),
            ({"source": {"de": "a"}, "target": "b"}, "field source holds dict"),
            ({"source": "\ud83d", "target": "b"}, "field source holds half a surrogate pair"),
        ],
    ),
    "words": Kind(
        Words(labels="tags.ner"), NAMES, [{"tokens": ["a"], "tags": {"ner": ["O"]}}],
        [
            ({"tokens": ["a", "b"], "tags": {"ner": ["O"]}}, "it has 2 words and 1 labels: each word needs one label"),
            ({"tokens": "a b", "tags": {"ner": "O"}}, "it has 2 words and 1 labels"),
            ({"tokens": 5, "tags": {"ner": ["O"]}}, "the words have '5': they must be a list of texts"),
            ({"tokens": ["a"], "tags": {"ner": [0.5]}}, "the labels have '0.5': they must be a list of texts or whole numbers"),
            ({"tokens": ["a"]}, "no field tags.ner; the fields are tokens"),
            ({"tokens": ["\ud800"], "tags": {"ner": ["O"]}}, "a word holds half a surrogate pair: correct the data"),
        ],
    ),
    "entities": Kind(
        Entities(), NAMES,
        [
            {"text": "ab cd.", "spans": [{"start": 0, "end": 2, "type": None, "entity_group": "PER"}]},
            {"text": "a  b", "spans": {"start": [0], "end": [4], "text": ["a b"], "label": ["PER"]}},
        ],
        [
            *(
                ({"text": "ab cd.", "spans": spans}, said)
                for spans, said in (
                    ([[0, 3, "A"], [2, 5, "B"]], "the span (2, 5, 'B') overlaps (0, 3, 'A'): each character belongs to one"),
                    ([[2, 3, "B"], [0, 5, "A"]], "the span (2, 3, 'B') is nested in (0, 5, 'A')"),
                    ([[0, 2, "B"], [0, 2, "A"]], "the span (0, 2, 'A') is nested in (0, 2, 'B')"),
                    ([[4, 7, "A"]], "the span (4, 7, 'A') crosses the text, which has 6 characters"),
                    ([[-1, 2, "A"]], "the span (-1, 2, 'A') crosses the text"),
                    ([[2, 2, "A"]], "the span (2, 2, 'A') is empty: its end is the number of the character behind it"),
                    ([{"start": 0, "end": 2}], "the span {'start': 0, 'end': 2} is not a span: it must have start and end"),
                    ([[0, 2, ""]], "the span [0, 2, ''] is not a span"),
                    ({"start": [0, 1], "end": [2, 3], "label": ["A", "B"]}, "the span (1, 3, 'B') overlaps (0, 2, 'A')"),
                    ({"start": 0}, "the spans are \"{'start': 0}\": they must be a list"),
                )
            ),
            *(
                ({"text": ROCKET, "spans": [{"start": start, "end": end, "text": text, "label": "A"}]}, said)
                for start, end, text, said in (
                    (4, 6, "cd", "is 'd.', but its text 'cd': its places count units of UTF-16, as browsers do: count ch"),
                    (6, 8, "cd", "is '', but its text 'cd': its places count bytes: count characters from 0"),
                    (3, 5, "ab", "is 'cd', but its text 'ab': correct one of them, counted in characters from 0"),
                )
            ),
        ],
    ),
    "candidates": Kind(
        Candidates(positives="pos", negatives=("neg",), scores=("pos_scores", "neg_scores")), SentenceEmbeddings(),
        [
            QUERY,
            {"query": "two", "pos": ["ä", "\u200d"], "neg": [], "pos_scores": [3, 4], "neg_scores": []},
            {"query": "three", "pos": ["x"], "neg": None, "pos_scores": [1], "neg_scores": None},
        ],
        [
            (QUERY | change, said)
            for change, said in (
                ({"pos": []}, "no text answers the query: give at least one positive"),
                ({"pos": None}, "no text answers the query"),
                ({"pos": " "}, "candidate 1 of the query is ' ': it must be a text that is not blank"),
                ({"neg": ["b", 7]}, "candidate 3 of the query is '7': it must be a text"),
                ({"neg": ["alpha"]}, "'alpha' is a positive and a negative of the query: leave out one of them"),
                ({"neg": [" Alpha"]}, "' Alpha' is a positive and a negative of the query: leave out one of them"),
                ({"neg_scores": [1]}, "the query has 3 candidates but 2 scores: give each candidate one"),
                ({"neg_scores": [1, "2"]}, "each must be a finite number"),
                ({"neg_scores": [1, float("nan")]}, "each must be a finite number"),
                ({"neg_scores": [1, True]}, "each must be a finite number"),
                ({"neg": ["\ud800", "b"]}, "half a surrogate pair"),
                ({"query": ""}, "the source is empty"),
            )
        ],
    ),
    "conversations": Kind(
        Conversations(), Instruction(),
        [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}],
        [
            ({"messages": "Hi"}, "is not a list of messages"),
            ({"messages": []}, "is not a list of messages"),
            ({"messages": [{"sender": "human", "value": "Hi"}]}, "is not a message"),
            ({"messages": [{"role": "user", "content": 3}]}, "must be a string"),
            ({"messages": [{"role": "user", "content": "\ud800"}]}, "half a surrogate pair"),
            ({"chat": []}, "no field messages"),
        ],
    ),
    "questions": Kind(
        Questions(), AnswerSpans(unanswerable=True),
        [{"question": "Where?", "context": TEXT, "answers": [{"text": "Warsaw", "answer_start": 16}]}],
        [
            ({"question": "Where?", "context": TEXT, "answers": answers}, said)
            for answers, said in (
                ([{"text": "Warsaw", "answer_start": 17}], "the answer 'Warsaw' starts at 17, where the text has 'arsaw,'"),
                ([{"text": "Warsaw", "answer_start": -32}], "the answer 'Warsaw' starts at -32, where the text has '': correct"),
                ([{"text": "Paris"}], "the answer 'Paris' stands in the text 0 times: give its answer_start"),
                ([{"text": "", "answer_start": 3}], "it must have a text, and answer_start if the text has it twice"),
                ([7], "the answer is '7': it must have a text"),
                (7, "the answers are '7': they must be a list, each with text and answer_start"),
            )
        ],
    ),
}  # fmt: skip
BAD = [(name, *row) for name, kind in KINDS.items() for row in kind.bad]


def source_of(kind: Kind, folder: Path, *more: Any, **settings: Any) -> JSONLines:
    """A file with the rows of a kind, and more; a text is a line as it is."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in (*kind.rows, *more)]
    return JSONLines(path=file(folder, "x.jsonl", "\n".join(lines)), record=kind.record, **settings)


def test_each_kind_that_is_read_its_own_way_has_its_rows():
    assert {kind.record.reads for kind in KINDS.values()} == READERS.keys() - {"classes"} and set(READERS) >= {
        "classes"
    }


@pytest.mark.parametrize(("name", "row", "said"), BAD)
def test_a_bad_row_is_named_by_its_file_and_line_or_dropped(name: str, row: Any, said: str, tmp_path: Path):
    kind = KINDS[name]
    source = source_of(kind, tmp_path, row)
    place, _, rest = message(source).partition(": ")
    assert place == f"{source.path}:{len(kind.rows) + 1}" and said in rest
    dropped = source_of(kind, tmp_path, row, bad_rows="drop", empty_lines="drop").open()
    assert dropped == source_of(kind, tmp_path).open() and len(dropped) == len(kind.rows)


@pytest.mark.parametrize("name", KINDS)
def test_a_store_keeps_the_records(name: str, tmp_path: Path):
    """Law: the records of a store are those in memory, with all that stands beside their texts."""
    kind, tokenizer = KINDS[name], Bytes().train([], 260)
    source = source_of(kind, tmp_path)
    reader = reader_of(kind.objective, Tokenizers(tokenizer, tokenizer), tmp_path, Lengths(99, 99))
    store = TokenStore.of(tmp_path / "stores", source, reader)
    assert store.build(reader, lambda *_: None)
    wanted = tokenize(source.open(), reader)
    assert store.records.fingerprint() == wanted.fingerprint() and len(wanted) == len(kind.rows)
    for found, record in zip(store.records, wanted, strict=True):
        chex.assert_trees_all_equal(found, record)
    assert name not in ("words", "candidates", "questions") or any(record.arrays for record in wanted)


WORDS, LABELS = ["O'Hara", 'say "é"', "New", "a\\b", "\u3000x"], ["B-PER", "O", "B-LOC", "I-LOC", "O"]


@pytest.mark.parametrize("write", [json.dumps, str, lambda items: str(np.array(items))],
                         ids=["JSON", "Python", "NumPy"])  # fmt: skip
def test_a_cell_has_the_list_that_was_written(write: Any, tmp_path: Path):
    """Law: the words that a program wrote into a cell are those that are read."""
    import csv

    with open(tmp_path / "x.csv", "w", newline="", encoding="utf-8") as opened:
        csv.writer(opened).writerows([["words", "tags"], [write(WORDS), write(LABELS)], [write(["a"]), write(["O"])]])
    source = CSV(path=str(tmp_path / "x.csv"), header=True, record=Words(words="words", labels="tags"))
    assert source.open() == [pair_of_words(WORDS, LABELS), pair_of_words(["a"], ["O"])]


def test_numbers_of_labels_and_words_between_spaces(tmp_path: Path):
    path = file(tmp_path, "x.tsv", "EU rejects it\t[3 0 0]\nNew York\t[1, -100]\nGo [ now\tO O O\n")
    source = TSV(path=path, record=Words(words=0, labels=1))
    assert source.open() == [
        pair_of_words(["EU", "rejects", "it"], [3, 0, 0]),
        pair_of_words(["New", "York"], [1, None]),
        pair_of_words(["Go", "[", "now"], ["O", "O", "O"]),
    ]
    bad = file(tmp_path, "y.tsv", "a b\tO O\na b\tO\n")
    assert message(TSV(path=bad, record=Words(words=0, labels=1))).startswith(f"{bad}:2: it has 2 words and 1 labels")


def test_a_list_that_is_not_whole_is_refused(tmp_path: Path):
    """Oracle: NumPy, which shortens arrays of more than 1,000 items; a long run of digits takes no longer than another."""
    many = str(np.array(["a"] * 1_001)).replace("\n", " ")
    for cell in (many, "[" + "1" * 50 + " x]", "[a, b]"):
        bad = file(tmp_path, "x.tsv", f"{cell}\tO\n")
        assert "is no list that JSON, Python or NumPy writes whole" in message(
            TSV(path=bad, record=Words(words=0, labels=1))
        )


@pytest.mark.parametrize("every", [False, True])
def test_a_row_has_one_word(every: bool, tmp_path: Path):
    """Law: one word a row is the same as lists; the name of a text stands in its first row, or in each."""
    rows = [("1", "Ab", "B-PER"), ("1", "cd", "I-PER"), ("2", "e", "O"), ("1", "f", "O"), ("1", "", "O")]
    shown = [row if every or i in (0, 2, 3) else ("", *row[1:]) for i, row in enumerate(rows)]
    path = file(tmp_path, "x.csv", "Sentence #,Word,Tag\n" + "".join(",".join(row) + "\n" for row in shown))
    source = CSV(path=path, header=True, record=Words(sentence="Sentence #", words="Word", labels="Tag"))
    wanted = [(["Ab", "cd"], ["B-PER", "I-PER"]), (["e"], ["O"]), (["f", ""], ["O", "O"])]
    assert source.open() == [pair_of_words(*one) for one in wanted]
    assert [row.number for row in source.located()] == [2, 4, 5]
    lines = "".join(json.dumps(dict(zip("swt", row, strict=True))) + "\n" for row in shown)
    fields = JSONLines(path=file(tmp_path, "x.jsonl", lines), record=Words(sentence="s", words="w", labels="t"))
    assert fields.open() == source.open()
    bad = file(tmp_path, "bad.csv", "s,w,t\n1,a,O\n2,b,O\n,c\n")
    source = CSV(path=bad, header=True, record=Words(sentence="s", words="w", labels="t"))
    assert message(source).startswith(f"{bad}:3: 2 column(s) between ','")


def test_conllu_has_its_own_columns(tmp_path: Path):
    """By hand, of the format's page: comments, ranges, empty nodes; FORM and UPOS, or the columns that are named."""
    text = "# sent_id = 1\n# text = vámonos al mar\n1-2\tvámonos\t_" + "\t_" * 7 + "\n"
    for number, form, lemma, upos in (("1", "vamos", "ir", "VERB"), ("2", "nos", "nosotros", "PRON"), ("2.1", "x", "x", "X"),
                                      ("3", "#", "#", "SYM")):  # fmt: skip
        text += "\t".join((number, form, lemma, upos, *"______")) + "\n"
    path = file(tmp_path, "x.conllu", text + "\n" + text)
    assert CoNLL(path=path).open() == [pair_of_words(["vamos", "nos", "#"], ["VERB", "PRON", "SYM"])] * 2
    named = CoNLL(path=path, record=Words(words=2, labels=3))
    assert named.open()[0] == pair_of_words(["ir", "nosotros", "#"], ["VERB", "PRON", "SYM"])
    for record in (Words(), Words(words=0, labels=0), Words(words=0, labels=1, sentence=2)):
        with pytest.raises(ValueError, match=r"^conll\.record is .*: words and labels must be two columns by number"):
            CoNLL(path="x", record=record)


@pytest.mark.parametrize("yes", ["1", "true", "True", "1.0"])
def test_a_column_for_each_label(yes: str, tmp_path: Path):
    """Law: columns of 0 and 1 are the list of the names of those with 1."""
    no = {"1": "0", "true": "false", "True": "False", "1.0": "0.0"}[yes]
    path = file(tmp_path, "x.csv", f"text,rude,toxic\na,{yes},{no}\nb,{no},{no}\nc,{yes},{yes}\n")
    source = CSV(path=path, header=True, record=Classes(label=("toxic", "rude")))
    assert source.open() == [Pair("", "a", '["rude"]'), Pair("", "b", "[]"), Pair("", "c", '["toxic", "rude"]')]
    rows = [{"text": "a", "toxic": 1, "rude": False}, {"text": "b", "toxic": 1.0, "rude": None}]
    lines = file(tmp_path, "x.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    source = JSONLines(path=lines, record=Classes(label=("toxic", "rude")))
    wrong = f"{lines}:2: field rude holds 'None': a field of one label must have 0 or 1, false or true"
    assert message(source) == wrong


def test_a_row_without_its_label_is_named(tmp_path: Path):
    path = file(tmp_path, "x.csv", "text,label\na,good\nb,\nc,bad\n")
    source = CSV(path=path, header=True, record=Classes())
    assert message(source) == f"{path}:3: field label is empty: give the row a label, or take it out"
    source = CSV(path=path, header=True, record=Classes(), bad_rows="drop")
    assert [pair.label for pair in source.open()] == ["good", "bad"]
    several = CSV(path=path, header=True, record=Classes(separator="|"))
    assert [pair.label for pair in several.open()] == ['["good"]', "[]", '["bad"]']


def test_labels_in_columns_of_a_dataset(tmp_path: Path):
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    table = pyarrow.table({"text": ["a", "b"], "x.y": [True, False], "z": [0, 1]})
    parquet.write_table(table, tmp_path / "x.parquet")
    source = Parquet(path=str(tmp_path / "x.parquet"), record=Classes(label=("x.y", "z")))
    assert source.open() == [Pair("", "a", '["x.y"]'), Pair("", "b", '["z"]')]


def test_a_table_has_conversations(tmp_path: Path):
    """Law: a cell of messages beside a cell of a system prompt is the same conversation as in JSON lines."""
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    row = {"chat": messages, "system": "Be brief."}
    lines = JSONLines(path=file(tmp_path, "x.jsonl", json.dumps(row)), record=Conversations(messages="chat"))
    cell = json.dumps(messages).replace('"', '""')
    table = file(tmp_path, "x.csv", f'system,chat\nBe brief.,"{cell}"\n')
    assert CSV(path=table, header=True, record=Conversations(messages="chat")).open() == lines.open()
    bad = file(tmp_path, "y.csv", "chat\nhello\n")
    assert message(CSV(path=bad, header=True, record=Conversations(messages="chat"))).startswith(
        f"{bad}:2: 'hello' is not"
    )


@pytest.mark.parametrize("kind", typing.get_args(RecordKinds), ids=lambda kind: kind.__name__)
def test_kinds_that_are_read_alike_have_one_reader(kind: type[Record]):
    """Law: a table of readers by what is read has one for each name; another kind of the name must not have its own."""
    chosen = READERS[kind.reads]
    for name in ("reader", "learned"):
        assert getattr(kind, name).__func__ is getattr(chosen, name).__func__, f"{kind.__name__} and {chosen.__name__}"
