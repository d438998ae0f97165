"""Questions as SQuAD's files, JSON lines and tables have them. Oracles: the forms by hand, and places counted in the text."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.objectives import AnswerSpans
from flaxformer_lite.core.reading.objectives import ANSWER
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.pairs import Extent
from flaxformer_lite.files.data import CSV, JSONLines
from flaxformer_lite.files.records import Questions
from flaxformer_lite.files.records.questions import QuestionTokenizers, answer_texts

TEXT = "She was born in Warsaw, and Warsaw is in Poland."
ASKED = "Where?"


def read(folder: Path, *rows: Any) -> list[Any]:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [row.pair for row in JSONLines(path=str(path), record=Questions()).located()]


def test_each_form_has_the_same_pairs(tmp_path: Path):
    """The second answer of the first question stands in the text once; the other question has none."""
    answers = [
        {"text": "Warsaw", "answer_start": 16},
        {"text": "Poland", "answer_start": 41},
        {"text": "Warsaw", "answer_start": 16},
    ]
    expected = [Pair(ASKED, TEXT, "[[16, 22], [41, 47]]"), Pair("Who?", TEXT, "[]")]
    both = {"text": ["Warsaw", "Poland"], "answer_start": [16, 41]}
    none: dict[str, list[Any]] = {"text": [], "answer_start": []}
    context = {"context": TEXT, "id": "7"}
    forms = (
        ({"question": ASKED, "answers": answers, **context}, {"question": "Who?", "answers": [], **context}),
        ({"question": ASKED, "answers": both, **context}, {"question": "Who?", "answers": none, **context}),
        (
            {"question": ASKED, "answers": [answers[0], {"text": "Poland"}], **context},
            {"question": "Who?", "answers": answers, "is_impossible": True, **context},
        ),
    )
    for form in forms:
        assert read(tmp_path, *form) == expected
    questions = [
        {"question": ASKED, "id": "1", "answers": answers, "is_impossible": False},
        {"question": "Who?", "id": "2", "answers": [], "plausible_answers": answers, "is_impossible": True},
    ]
    published = {"version": "v2.0", "data": [{"title": "a", "paragraphs": [{"qas": questions, "context": TEXT}]}]}
    assert read(tmp_path, published) == expected
    assert answer_texts(expected[0]) == ["Warsaw", "Poland"]


def test_a_table_has_the_text_of_one_answer(tmp_path: Path):
    path = tmp_path / "rows.csv"
    path.write_text(f'q,c,a,at\n{ASKED},"{TEXT}",Warsaw,28\n{ASKED},"{TEXT}",Poland,\n{ASKED},"{TEXT}",,\n')
    fields = {"question": "q", "text": "c", "answers": "a"}
    rows = list(CSV(path=str(path), header=True, record=Questions(start="at", **fields)).located())
    assert [row.pair for row in rows] == [
        Pair(ASKED, TEXT, "[[28, 34]]"), Pair(ASKED, TEXT, "[[41, 47]]"), Pair(ASKED, TEXT, "[]")
    ]  # fmt: skip
    with pytest.raises(
        ValueError, match=r"rows.csv:2: the answer 'Warsaw' stands in the text 2 times: give its answer_start"
    ):
        list(CSV(path=str(path), header=True, record=Questions(**fields)).located())


def test_a_nested_file_of_another_form_is_told(tmp_path: Path):
    with pytest.raises(ValueError, match=r"it has data, but is not as SQuAD's files are \(KeyError\('answers'\)\)"):
        read(tmp_path, {"data": [{"paragraphs": [{"qas": [{"question": ASKED}], "context": TEXT}]}]})


@pytest.mark.parametrize("unanswerable", [True, False])
def test_the_first_answer_has_tokens(unanswerable: bool):
    """A character is a token; the answers of the first question are at 2 and 0."""
    tokenizer = CharacterTokenizer("abcdefgh ?")
    reader = QuestionTokenizers(tokenizer, tokenizer, AnswerSpans(unanswerable=unanswerable))
    pairs = [Pair("a?", "abc def", "[[2, 5], [0, 1]]"), Pair("a?", "abc", "[]"), Pair("a?", "abc")]
    found = list(reader.encode_pairs(pairs))
    assert (found[0].source, found[0].arrays[ANSWER].tolist()) == (tokenizer.encode("a?"), [2, 4])
    whole, refused = Extent.WHOLE, Extent.REFUSED
    assert [one.extent for one in found] == [whole, whole if unanswerable else refused, refused]
    assert reader.refusal(pairs[0]) is None
    assert re.match("it has no answers: set the record", reader.refusal(pairs[2]) or "")
    reason = "it has no answer, but objective.unanswerable is False: set it to True"
    assert reader.refusal(pairs[1]) == (None if unanswerable else reason)
