"""Oracle: texts written by hand, for each way in which the fields of a mistake go together."""

import copy
import pickle

import pytest

from flaxformer_lite.core.base.mistake import Mistake, known


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "decode.beam_size is 0: it must be at least 1"),
        ({"file": "a.json"}, "a.json: decode.beam_size is 0: it must be at least 1"),
        ({"file": "a.txt", "line": 3}, "a.txt:3: decode.beam_size is 0: it must be at least 1"),
    ],
)
def test_the_fields_of_a_mistake_and_its_text(fields: dict[str, object], text: str):
    """They survive a copy, and the way to another process."""
    mistake = Mistake("decode.beam_size is 0: it must be at least 1", setting="decode.beam_size")
    with pytest.raises(Mistake) as caught, known(**fields):
        raise mistake
    for one in (caught.value, copy.copy(mistake), pickle.loads(pickle.dumps(mistake))):
        assert str(one) == text and vars(one) == vars(Mistake(mistake.sentence, setting="decode.beam_size")) | fields


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "prompt 6 has no tokens"),
        ({"file": "a.txt", "line": 3}, "a.txt:3: it has no tokens"),
        ({"file": "a.txt, line 3"}, "a.txt, line 3 has no tokens"),
    ],
)
def test_a_place_stands_for_the_subject_of_a_sentence(fields: dict[str, object], text: str):
    with pytest.raises(Mistake) as caught, known(**fields), known(subject="prompt 6"):
        raise ValueError("has no tokens")
    assert str(caught.value) == text


def test_a_setting_has_the_name_that_its_reader_knows():
    mistake = Mistake("decode.alpha is 2, but decode.beam_size is 1", "a.json", setting="decode.alpha")
    assert (
        str(mistake.spelled({"decode.beam_size": "--beam-size"})) == "a.json: decode.alpha is 2, but --beam-size is 1"
    )
    assert mistake.setting == "decode.alpha"


def test_a_value_error_becomes_a_mistake():
    assert vars(Mistake.of(ValueError("wrong"), line=3)) == vars(Mistake("wrong", line=3))
