"""Chat templates: where they are found, what they may write, and that a stranger's program reaches nothing."""

import json
from pathlib import Path

import pytest

from flaxformer_lite.serve.chat import ChatTemplate, read_chat_template
from flaxformer_lite.serve.refusals import Refusal
from tests.support import needs
from tests.support.served import TEMPLATE

USER = [{"role": "user", "content": "<Hi> 'é'"}]


def test_a_template_is_found_in_the_run_or_beside_imported_weights(tmp_path: Path):
    assert read_chat_template(tmp_path) is None
    folder = tmp_path / "huggingface"
    folder.mkdir()
    settings = {"chat_template": "{{ bos_token }}a", "bos_token": {"content": "<s>"}, "eos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    found = read_chat_template(tmp_path)
    assert found is not None and (found.source, found.tokens["bos_token"], found.tokens["eos_token"]) == (
        "{{ bos_token }}a",
        "<s>",
        "",
    )
    several = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert getattr(read_chat_template(tmp_path), "source", None) == "d"
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    assert getattr(read_chat_template(tmp_path), "source", None) == TEMPLATE
    (tmp_path / "chat_template.jinja").unlink()
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        read_chat_template(tmp_path)


@needs.starlette
def test_texts_stay_as_they_are_and_blocks_leave_no_lines():
    more = "\n{% if true %}\n{{ messages | tojson }}{{ eos_token }}\n{% endif %}\n"
    text = ChatTemplate(TEMPLATE + more, {"eos_token": "</s>"}).render(USER)
    assert text == "[user] <Hi> 'é'\n[assistant] " + json.dumps(USER, ensure_ascii=False) + "</s>\n"


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
        ChatTemplate(source, {}).render(USER)
    assert caught.value.status == 422
