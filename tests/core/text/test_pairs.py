"""Pairs as JSON, and extents in files. Oracles: json; the numbers that stores and recordings have."""

import json

import pytest

from flaxformer_lite.core.text.pairs import Extent, Pair

PLAIN = Pair("", "")


@pytest.mark.parametrize(
    "pair",
    [
        Pair("a", "b"),
        Pair("", "a document"),
        Pair("é\n", "日本", "0.5"),
        Pair("a", "b", languages=("en", "de")),
        Pair("a query", '{"positives": ["b"]}', has_candidates=True),
    ],
)
def test_json_has_the_texts_and_what_differs_from_a_plain_pair(pair: Pair):
    """Law: the pair can be made of it again."""
    read = json.loads(json.dumps(pair.as_json()))
    assert Pair(**read | {"languages": tuple(read.get("languages", ()))}) == pair
    differing = {name for name, value, usual in zip(Pair._fields, pair, PLAIN, strict=True) if value != usual}
    assert differing <= read.keys() <= differing | {"source", "target", "label"}


def test_extents_have_the_numbers_of_files():
    """Law: a store that was written before is read as it was meant."""
    assert {one.name: int(one) for one in Extent} == {"WHOLE": 0, "PARTLY": 1, "CUT": 2, "REFUSED": 3}
