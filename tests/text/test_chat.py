"""Chat templates: where they are found, what they may write, and that a stranger's program reaches nothing."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from flaxformer_lite.text.characters import Bytes, Characters
from flaxformer_lite.text.chat import (
    BOS,
    EOS,
    PLAIN,
    ChatTemplate,
    EncodedChat,
    chat_template,
    encode_marked,
    read_chat_template,
)
from flaxformer_lite.text.json_tokenizer import JsonTokenizer
from flaxformer_lite.text.subwords import SentencePiece
from flaxformer_lite.text.tokenizer import Tokenizer
from tests.support import chats
from tests.support.chats import TEMPLATES, ours
from tests.support.paths import FIXTURES
from tests.support.served import TEMPLATE
from tests.support.tokenizers import NAMES, bytes_joined

BYTES = Bytes().train([], 260)
TEXTS = ["<|user|>|>202 <|assistant|>2026-11-20", "<|assistant|>> no <|user|>|x| é"] * 40
PIECES, CHARACTERS = SentencePiece().train(TEXTS, 60), Characters().train(TEXTS, 60)
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
    """A template of one's own beside imported weights; one that takes the name for six letters has marks."""
    (tmp_path / "chat_template.jinja").write_text("t")
    (tmp_path / "huggingface").mkdir()
    settings = tmp_path / "huggingface" / "tokenizer_config.json"
    joined = JsonTokenizer.of(with_special_tokens().to_str(), NAMES)
    for tokenizer, names, wanted in (
        (joined, {}, {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": ""}),
        (joined, {"bos_token": "<b>", "eos_token": None}, {"bos_token": "<b>", "eos_token": "", "pad_token": "<pad>"}),
        (BYTES, {"eos_token": {"content": "<e>"}}, {"bos_token": BOS, "eos_token": "<e>", "pad_token": ""}),
        (BYTES, {}, {"bos_token": BOS, "eos_token": EOS, "pad_token": ""}),
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


# Answers, as token ids ------------------------------------------------------------------------------------------------


def read(source: str, messages: list[dict[str, Any]], **options: Any) -> EncodedChat:
    tokenizer = ours()
    template = chat_template(source, tokenizer, chats.NAMES)
    return encode_marked([template.conversation(messages, **options)], tokenizer)[0]


def test_answers_are_those_of_the_library():
    """Oracle: `return_assistant_tokens_mask` of transformers 5.24 (`tests/makers/make_chat_masks.py`)."""
    rows = json.loads((FIXTURES / "chat_masks.json").read_text(encoding="utf-8"))
    assert {row["template"] for row in rows} == set(TEMPLATES)
    for row in rows:
        found = read(TEMPLATES[row["template"]], row["messages"])
        assert found.ids == row["ids"], row["template"]
        assert list(map(int, found.answers)) == row["mask"], (row["template"], row["messages"])


Part = tuple[str, bool, bool]
"""Text, whether it is a special token, and whether it is of an answer."""


def parts(family: str, messages: list[dict[str, Any]]) -> list[Part]:
    """The oracle: each family's format, written down once more without any template."""
    found: list[Part] = []

    def add(text: str, is_answer: bool = False) -> None:
        found.append((text, False, is_answer))

    def special(text: str, is_answer: bool = False) -> None:
        found.append((text, True, is_answer))

    system = ""
    if family in ("llama_3", "gemma", "mistral"):
        special("<s>")
    for message in messages:
        role, content = message["role"], message["content"]
        mine = role == "assistant"
        if family == "chatml":
            special("<|im_start|>")
            add(role + "\n")
            add(content, mine)
            special("<|im_end|>", mine)
            add("\n")
        elif family == "llama_2":
            if role == "system":
                system = f"<<SYS>>\n{content}\n<</SYS>>\n\n"
            elif mine:
                add(" ")
                add(content + " ", True)
                special("</s>", True)
            else:
                special("<s>")
                special("[INST]")
                add(f" {system}{content} ")
                special("[/INST]")
                system = ""
        elif family == "llama_3":
            special("<|head|>")
            add(role)
            special("<|head_end|>")
            add("\n\n")
            add(content.strip(), mine)
            special("<|eot|>", mine)
        elif family == "gemma":
            special("<turn>")
            add(("model" if mine else role) + "\n")
            add(content.strip(), mine)
            special("</turn>", mine)
            add("\n")
        elif family == "mistral" and not mine:
            special("[INST]")
            add(f" {content} ")
            special("[/INST]")
        elif family == "mistral":
            add(" " + content, True)
            special("</s>", True)
        elif family in ("zephyr", "phi"):
            name = f"<|{role}|>"
            found.append((name, name in chats.SPECIAL, False))
            add("\n")
            add(content, mine)
            special("</s>" if family == "zephyr" else "<|end|>", mine)
            add("\n", mine and family == "phi")
        else:
            add(f"{role}: ")
            add(content, mine)
            if mine:
                special("</s>", True)
            add("\n\n")
    return found


VISIBLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
HIDDEN = [byte for byte in range(256) if byte not in VISIBLE]
BYTES_OF = {chr(byte): byte for byte in VISIBLE} | {chr(256 + i): byte for i, byte in enumerate(HIDDEN)}
"""The characters by which GPT-2's vocabulary writes bytes."""


def wrong_tokens(family: str, messages: list[dict[str, Any]], found: EncodedChat) -> list[str]:
    """Returns what differs from the oracle: the bytes of all tokens, the special ids and their places, the answers."""
    expected = parts(family, messages)
    flags = [flag for text, _, flag in expected for _ in text.encode()]
    ends = itertools.accumulate(len(text.encode()) for text, *_ in expected)
    special = [(text, end) for (text, is_special, _), end in zip(expected, ends, strict=True) if is_special]
    pieces = [OURS.piece(i) for i in found.ids]
    texts = [
        piece.encode() if piece in chats.SPECIAL else bytes(BYTES_OF[character] for character in piece)
        for piece in pieces
    ]
    stops = list(itertools.accumulate(map(len, texts)))
    wrong = [] if b"".join(texts) == b"".join(text.encode() for text, *_ in expected) else ["text"]
    wrong += (
        [] if special == [(p, n) for p, n in zip(pieces, stops, strict=True) if p in chats.SPECIAL] else ["special"]
    )
    learned = [any(flags[stop - len(text) : stop]) for text, stop in zip(texts, stops, strict=True)]
    return wrong + ([] if learned == found.answers else ["answers"])


OURS = ours()


@pytest.mark.parametrize("number", [40, pytest.param(1250, marks=pytest.mark.slow)])
def test_no_token_of_a_drawn_conversation_is_wrong(number: int):
    """Eight families: hundreds of conversations, and ten thousand in the slow suite. Oracle: `parts`."""
    rng = random.Random(number)
    for family, source in TEMPLATES.items():
        template = chat_template(source, OURS, chats.NAMES)
        drawn = [chats.drawn_messages(rng) for _ in range(number)]
        texts = [template.conversation(messages) for messages in drawn]
        for messages, found in zip(drawn, encode_marked(texts, OURS), strict=True):
            assert wrong_tokens(family, messages, found) == [], (family, messages)


@pytest.mark.parametrize("family", ["chatml", "llama_3", "gemma", "mistral", "zephyr", "plain"])
def test_renderings_that_nest_tell_answers_without_marks(family: str):
    """Phi's answers end with white space after the special token, and those of Llama 2 begin with a space: only marks can tell."""
    rng = random.Random(5)
    template = chat_template(chats.without_generation(TEMPLATES[family]), OURS, chats.NAMES)
    for _ in range(60):
        messages = chats.drawn_messages(rng)
        found = encode_marked([template.conversation(messages)], OURS)[0]
        assert wrong_tokens(family, messages, found) == [], messages


def test_the_last_answer_alone():
    messages = [{"role": role, "content": role} for role in ("user", "assistant", "user", "assistant", "user")]
    for source in (TEMPLATES["chatml"], chats.without_generation(TEMPLATES["chatml"])):
        whole, last = read(source, messages), read(source, messages, last_only=True)
        assert whole.ids == last.ids
        first_end = whole.ids.index(OURS.encode("<|im_end|>")[0], whole.answers.index(True))
        second = [is_answer and i > first_end for i, is_answer in enumerate(whole.answers)]
        assert last.answers == second and any(second)


def test_templates_that_do_not_tell_are_refused_by_name():
    changing = "{% for m in messages %}{% if loop.last %}!{% endif %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    cutting = "{% set x %}{% generation %}{{ messages[0].content }}{% endgeneration %}{% endset %}{{ x[:-1] }}"
    two = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    for source, words in ((changing, "writes message 2 in another way"), (cutting, "changes the text that it has")):
        with pytest.raises(ValueError, match=words):
            ChatTemplate(source, {}).conversation(two)
    for prefixed in ("\ufdd0", "\ufdd3", "\ufdef"):
        with pytest.raises(ValueError, match=r"U\+FDD0"):
            ChatTemplate(PLAIN, {}).conversation([{"role": "user", "content": prefixed}])


def test_special_ids_without_a_name_in_texts_are_written_by_the_plain_template():
    """Values worked by hand: bytes have no special names, so BOS and EOS are marks, and a user's "</s>" is four bytes."""
    template = chat_template(PLAIN, BYTES)
    messages = [{"role": "user", "content": "</s>"}, {"role": "assistant", "content": "é"}]
    (found,) = encode_marked([template.conversation(messages)], BYTES)
    tokens = [2, *BYTES.encode("<|user|></s><|assistant|>é"), 3]
    assert found.ids == tokens
    assert found.answers == [False] * (len(tokens) - 3) + [True] * 3
    assert template.prompt(USER[:1]).replace(BOS, "") == "<|user|><Hi> 'é'<|assistant|>"


@pytest.mark.parametrize("tokenizer", [BYTES, PIECES, CHARACTERS], ids=lambda tokenizer: type(tokenizer).__name__)
def test_the_plain_template_trains_an_answer_after_the_ids_of_its_prompt(tokenizer: Tokenizer):
    """Law: the ids up to an answer are those of the prompt with all turns before it, whatever pieces could join both."""
    template = chat_template(PLAIN, tokenizer)
    answers = ["2026-11-20", "> no", "|x|", "é"]
    messages = [
        {"role": role, "content": text}
        for answer in answers
        for role, text in (("user", f"<|assistant|>{answer}"), ("assistant", answer))
    ]
    (whole,) = encode_marked([template.conversation(messages)], tokenizer)
    starts = [i for i, counts in enumerate(whole.answers) if counts and not whole.answers[i - 1]]
    assert len(starts) == len(answers)
    for number, start in enumerate(starts):
        (prompt,) = encode_marked([template.prompt(messages[: 2 * number + 1])], tokenizer)
        assert prompt.ids == whole.ids[:start]
