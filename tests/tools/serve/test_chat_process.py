"""Laws of the process that renders a template: its time, memory and size are limited, and it knows no secret."""

from pathlib import Path

import pytest

from flaxformer_lite.files.chats.chat import ChatTemplate
from tests.support.served import ENDLESS, TEMPLATE

pytest.importorskip("starlette")
from flaxformer_lite.tools.serve import chat_process
from flaxformer_lite.tools.serve.chat_process import ChatProcess
from flaxformer_lite.tools.serve.limits import Refusal

USER = [{"role": "user", "content": "Hi"}]


@pytest.mark.slow
def test_what_has_no_end_or_no_bounds_is_refused_and_the_next_prompt_is_made(monkeypatch: pytest.MonkeyPatch):
    """In rendering and in the constants of compiling; a process that was killed is replaced by another one."""
    chat = ChatProcess(ChatTemplate(TEMPLATE, {}))
    for source, reason in (
        ("{{ 'x' * 10**10 }}", "needs more than 512 MiB of memory"),
        ("{% set n = namespace(i=10) %}{{ 'x' * n.i**10 }}", "needs more than 512 MiB of memory"),
        ("{{ messages[0].content }}{{ 'x' * 5000000 }}", "writes 5,000,002 bytes, more than 4,194,304"),
        ("{{ 1 / 0 }}", "division by zero"),
    ):
        chat.template = ChatTemplate(source, {})
        with pytest.raises(Refusal, match=reason):
            chat.submit(USER).result()
    first = chat.process
    monkeypatch.setattr(chat_process, "SECONDS", 0.5)
    for source in (ENDLESS, "{{ 10 ** (10**9) }}"):  # the second is computed in C, where Python handles no signal
        chat.template = ChatTemplate(source, {})
        with pytest.raises(Refusal, match=r"did not end within 0\.5 seconds"):
            chat.submit(USER).result()
    monkeypatch.undo()
    chat.template = ChatTemplate(TEMPLATE, {})
    assert chat.submit(USER).result() == "[user] Hi\n[assistant] " and chat.process is not first
    chat.process.kill()  # type: ignore[union-attr]
    with pytest.raises(Refusal, match="ended its process"):
        chat.submit(USER).result()
    assert chat.submit(USER, continue_final_message=True, add_generation_prompt=False).result() == "[user] Hi"
    chat.close()


def test_the_process_knows_no_secret_and_ends_with_its_owner(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLAXFORMER_LITE_TOKEN", "a-secret-of-this-test")
    chat = ChatProcess(ChatTemplate(TEMPLATE, {}))
    assert chat.submit(USER).result() == "[user] Hi\n[assistant] "
    process = chat.process
    assert process is not None and process.poll() is None
    if (environment := Path(f"/proc/{process.pid}/environ")).exists():  # Linux
        assert b"PATH=" in environment.read_bytes() and b"a-secret" not in environment.read_bytes()
    chat.close()
    assert process.poll() is not None
