"""Chat templates: where they are found, what they may write, and that a stranger's program reaches nothing."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from flaxformer_lite.text.characters import Bytes
from flaxformer_lite.text.json_tokenizer import JsonTokenizer
from flaxformer_lite.tools.serve import chat
from flaxformer_lite.tools.serve.chat import ChatTemplate, read_chat_template
from flaxformer_lite.tools.serve.refusals import Refusal
from tests.support import needs
from tests.support.paths import FIXTURES
from tests.support.served import ENDLESS, TEMPLATE
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


@needs.starlette
def test_texts_stay_as_they_are_and_blocks_leave_no_lines():
    more = "\n{% if true %}\n{{ messages | tojson }}{{ eos_token }}\n{% endif %}\n"
    text = ChatTemplate(TEMPLATE + more, {"eos_token": "</s>"}).submit(USER).result()
    assert text == "[user] <Hi> 'é'\n[assistant] " + json.dumps(USER, ensure_ascii=False) + "</s>\n"


@needs.starlette
def test_prompts_are_those_of_the_library():
    """Oracle: transformers 5.24 (`tests/makers/make_chat_reference.py`): the prompt, or that it raises an error."""
    template = ChatTemplate("", {"bos_token": "", "eos_token": "</s>"})
    for row in json.loads((FIXTURES / "chat_templates.json").read_text(encoding="utf-8")):
        template.source = row["source"]  # one process for all
        if row["prompt"] is None:
            with pytest.raises(Refusal):
                prompt(template, row["messages"], **row["options"])
        else:
            assert prompt(template, row["messages"], **row["options"]) == row["prompt"], row["source"]


def prompt(template: ChatTemplate, messages: Any, **options: Any) -> str:
    return template.submit(messages, time.monotonic() + 60, **options).result()


@needs.starlette
@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception.__globals__.time }}",
        "{% for x in range(10000000) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
        "{% if %}",
    ],
)
def test_a_template_that_reaches_out_or_fails_is_refused(source: str):
    with pytest.raises(Refusal) as caught:
        ChatTemplate(source, {}).submit(USER).result()
    assert caught.value.status == 422


@needs.starlette
def test_a_template_without_end_or_beyond_the_memory_is_refused_and_the_next_prompt_is_made(
    monkeypatch: pytest.MonkeyPatch,
):
    """Law: time, memory, recursion and size are limited, in rendering and in the constants of compiling; a killed process is
    replaced by another one."""
    template = ChatTemplate("", {})
    for source, reason in (
        ("{{ 'x' * 10**10 }}", "it needs more than 512 MiB of memory"),
        ("{% set n = namespace(i=10) %}{{ 'x' * n.i**10 }}", "it needs more than 512 MiB of memory"),
        ("{{ 'x' * 5000000 }}", "it writes 5,000,000 bytes, more than 4,194,304"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ " + "(" * 9999, "recursion"),
        ("{{ raise_exception('one\\ntwo ' ~ 'x' * 9999) }}", "one two xxx"),
        ("{{ '\\ud800' }}", "surrogates"),
    ):
        template.source = source
        with pytest.raises(Refusal, match=reason) as caught:
            template.submit(USER).result()
        assert len(caught.value.message) < 600 and "\n" not in caught.value.message
    first = template.process
    monkeypatch.setattr(chat, "SECONDS", 0.5)
    for source in (ENDLESS, "{{ 10 ** (10**9) }}"):  # the second is computed in C, where Python handles no signal
        template.source = source
        with pytest.raises(Refusal, match=r"it did not end within 0\.5 seconds"):
            template.submit(USER).result()
    monkeypatch.undo()
    template.source = "{{ messages[0].role }}"
    assert template.submit(USER).result() == "user" and template.process is not first
    template.process.kill()  # type: ignore[union-attr]
    with pytest.raises(Refusal, match="its process has crashed"):
        template.submit(USER).result()
    assert template.submit(USER).result() == "user"


@needs.starlette
def test_the_process_knows_no_secret_and_ends_with_its_owner(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLAXFORMER_LITE_TOKEN", "a-secret-of-this-test")
    template = ChatTemplate("a", {})
    assert template.submit(USER).result() == "a"
    process = template.process
    assert process is not None and process.poll() is None
    if (environment := Path(f"/proc/{process.pid}/environ")).exists():  # Linux
        assert b"PATH=" in environment.read_bytes() and b"a-secret" not in environment.read_bytes()
    template.close()
    assert process.poll() is not None
