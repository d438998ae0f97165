"""Oracles: the documented hash; the law that any change is noticed."""

import contextlib
import hashlib
import json

import pytest

from flaxformer_lite.base.sealed_files import DamageError, read_sealed, sealed, write_sealed


def test_a_sealed_file_returns_its_content(tmp_path):
    content = {"loss": 0.1, "nan": float("inf"), "text": "größer", "nothing": None, "list": [1, 2.5]}
    write_sealed(tmp_path / "file.json", content)
    assert read_sealed(tmp_path / "file.json") == content
    (tmp_path / "file.json").write_text(json.dumps({**content, "sha256": sealed(content)["sha256"]}))
    assert read_sealed(tmp_path / "file.json") == content, "as a token store of before is"
    with pytest.raises(FileNotFoundError):
        read_sealed(tmp_path / "none.json")


def test_the_hash_is_of_sorted_names():
    """Oracle: sha256sum of `{"a": 2, "b": 1}`. Files of every release are compared by it."""
    expected = hashlib.sha256(b'{"a": 2, "b": 1}').hexdigest()
    assert sealed({"b": 1, "a": 2}) == {"content": {"a": 2, "b": 1}, "sha256": expected}


def test_a_sealed_file_notices_every_changed_character(tmp_path):
    path = tmp_path / "file.json"
    content = {"patience": 3, "best": 0.25, "name": "bleu"}
    text = json.dumps(sealed(content)).encode()
    for position in range(len(text)):
        path.write_bytes(text[:position] + bytes([text[position] ^ 1]) + text[position + 1 :])
        with contextlib.suppress(DamageError):  # or the change was harmless, a blank become a tab
            assert read_sealed(path) == content


@pytest.mark.parametrize(
    "text", [b"", b"null", b"[]", b"{}", b'{"sha256": 0, "content": 0}', b"\xff\xfe", b"[" * 99999]
)
def test_a_file_that_was_never_sealed_is_damaged(tmp_path, text):
    (tmp_path / "file.json").write_bytes(text)
    with pytest.raises(DamageError, match=r"^file\.json is garbled$"):
        read_sealed(tmp_path / "file.json")


@pytest.mark.parametrize("content", [[], ["a"], "text", 5, None])
def test_a_sealed_file_holds_an_object(tmp_path, content):
    (tmp_path / "file.json").write_text(json.dumps(sealed(content)))
    with pytest.raises(DamageError, match=r"^file\.json is garbled$"):
        read_sealed(tmp_path / "file.json")


@pytest.mark.parametrize(
    ("form", "fits"), [({"a": int, "b": str | None}, True), ({"a": str}, False), ({"c": int}, False)]
)
def test_a_sealed_file_has_the_form_that_is_asked_for(tmp_path, form, fits):
    write_sealed(tmp_path / "file.json", {"a": 1})
    with contextlib.nullcontext() if fits else pytest.raises(DamageError):
        assert read_sealed(tmp_path / "file.json", **form) == {"a": 1}
