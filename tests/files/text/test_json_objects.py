"""Contract: a line that is no JSON object is named by its place."""

import pytest

from flaxformer_lite.files.text.json_objects import json_object


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{a}", r"^x:3: not JSON \(.*\); each line must be one JSON object$"),
        ("{", r"^x:3: JSON that does not end in its line; each line must be one JSON object$"),
        ("[" * 100_000, r"^x:3: not JSON"),
        ('["a"]', r"""^x:3: '\["a"\]' is no JSON object: write one in each line$"""),
        (r'{"a": ["\ud800"]}', r"^x:3: a text holds half a surrogate pair: correct the data$"),
    ],
)
def test_another_line_than_an_object_is_refused(line: str, message: str):
    with pytest.raises(ValueError, match=message):
        json_object(line, "x:3")


def test_an_object_is_read():
    assert json_object('{"a": [1, null]}', "x:3") == {"a": [1, None]}
    assert json_object(r'{"a": "\ud83d\ude00"}', "x:3") == {"a": "\U0001f600"}
