"""Chat templates: where they are found, what they may write, and that a stranger's program reaches nothing."""

import json
from pathlib import Path

import pytest
import tokenizers

from flaxformer_lite.text.characters import Bytes
from flaxformer_lite.text.chat import ChatTemplate, read_chat_template
from flaxformer_lite.text.json_tokenizer import JsonTokenizer
from tests.support.paths import FIXTURES
from tests.support.served import TEMPLATE
from tests.support.tokenizers import NAMES, bytes_joined

BYTES = Bytes().train([], 260)
USER = [{"role": "user", "content": "<Hi> 'é'"}]


def test_a_template_is_found_in_the_run_or_beside_imported_weights(tmp_path: Path):
    assert read_chat_template(tmp_path, BYTES) is None
    folder = tmp_path / "huggingface"
    folder.mkdir()
    settings = {"chat_template": "{{ bos_token }}a", "bos_token": {"content": "<s>"}, "eos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    found = read_chat_template(tmp_path, BYTES)
    assert found is not None and (found.source, found.tokens["bos_token"], found.tokens["eos_token"]) == (
        "{{ bos_token }}a",
        "<s>",
        "",
    )
    several = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert getattr(read_chat_template(tmp_path, BYTES), "source", None) == "d"
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert getattr(read_chat_template(tmp_path, BYTES), "source", None) == TEMPLATE
    (tmp_path / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        read_chat_template(tmp_path, BYTES)


def test_special_tokens_are_those_of_either_folder_or_of_the_tokenizer(tmp_path: Path):
    """A template of one's own beside imported weights; a tokenizer that takes the name for six letters lends it to nobody."""
    (tmp_path / "chat_template.jinja").write_text("t")
    (tmp_path / "huggingface").mkdir()
    settings = tmp_path / "huggingface" / "tokenizer_config.json"
    joined = JsonTokenizer.of(with_special_tokens().to_str(), NAMES)
    for tokenizer, names, wanted in (
        (joined, {}, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": ""}),
        (joined, {"bos_token": "<b>", "eos_token": None}, {"bos_token": "<b>", "eos_token": "", "pad_token": "<pad>"}),
        (BYTES, {"eos_token": {"content": "<e>"}}, {"bos_token": "", "eos_token": "<e>", "pad_token": ""}),
        (BYTES, {}, dict.fromkeys(("bos_token", "eos_token", "pad_token"), "")),
    ):
        settings.write_text(json.dumps(names))
        found = read_chat_template(tmp_path, tokenizer)
        assert found is not None and {"unk_token": ""} | wanted == found.tokens
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<own>"}))
    settings.write_text(json.dumps({"bos_token": "<theirs>"}))
    found = read_chat_template(tmp_path, BYTES)
    assert found is not None and found.tokens["bos_token"] == "<own>"


def with_special_tokens() -> tokenizers.Tokenizer:
    """RoBERTa's kind, which reads the names of its special tokens in a text."""
    found = bytes_joined()
    found.add_special_tokens(["<s>", "<pad>", "</s>"])
    return found


def test_texts_stay_as_they_are_and_blocks_leave_no_lines():
    more = "\n{% if true %}\n{{ messages | tojson }}{{ eos_token }}\n{% endif %}\n"
    text = ChatTemplate(TEMPLATE + more, {"eos_token": "</s>"}).prompt(USER)
    assert text == "[user] <Hi> 'é'\n[assistant] " + json.dumps(USER, ensure_ascii=False) + "</s>\n"


def test_prompts_are_those_of_the_library():
    """Oracle: transformers 5.24 (`tests/makers/make_chat_reference.py`): the prompt, or that it raises an error."""
    for row in json.loads((FIXTURES / "chat_templates.json").read_text(encoding="utf-8")):
        try:
            found = ChatTemplate(row["source"], {"bos_token": "", "eos_token": "</s>"}).prompt(
                row["messages"], **row["options"]
            )
        except ValueError:
            found = None
        assert found == row["prompt"], row["source"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ raise_exception.__globals__.json }}", "access to attribute '__globals__'"),
        ("{{ namespace.__init__.__globals__ }}", "access to attribute '__init__'"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{% import 'os' as os %}", "no loader"),
        ("{{ open('/etc/passwd') }}", "'open' is undefined"),
        ("{% for x in range(10000000) %}{% endfor %}", "Range too big"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ raise_exception('one\\ntwo ' ~ 'x' * 9999) }}", "one two xxx"),
        ("{{ '\\ud800' }}", "surrogates"),
        ("{% if %}", "cannot be compiled: line 1: "),
        ("{{ " + "(" * 9999, "cannot be compiled"),
    ],
)
def test_a_template_that_reaches_out_or_fails_is_refused_in_one_line(source: str, reason: str):
    with pytest.raises(ValueError, match=reason) as caught:
        ChatTemplate(source, {}).prompt(USER)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)
