"""Laws of runs that continue prompts, and of the command `generate`."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flaxformer_lite.base.console import printable
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.generation import (
    decode_after,
    encode_prompt,
    generation_settings,
    truncate_at_stop,
    watch_stops,
)
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.characters import Bytes, ByteTokenizer
from flaxformer_lite.core.text.special_ids import BOS
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.tokenizers.subwords import SentencePiece
from flaxformer_lite.run import Run, load, write_run
from flaxformer_lite.run.searches import Kept
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_saved_params
from tests.support.commands import Command, Said
from tests.support.experiments import use_one_device

BYTES = Bytes().train([], 260)
MODEL = ModelConfig(
    vocab_size=263, d_model=6, num_heads=2, d_ff=5, num_encoder_layers=0, num_decoder_layers=1,
    positions=Learned(max_positions=40, stddev=1.0),
)  # fmt: skip
CONFIG = Config(
    model=MODEL,
    objective=CausalLM(),
    data=DataConfig(tokenizer=Bytes(), max_target_length=40),
    decode=DecodeConfig(max_new_tokens=12),
)


pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with random weights, from its folder. The model's vocabulary is larger than the tokenizer's."""
    generator = np.random.default_rng(2)
    params = jax.tree.map(lambda x: np.float32(generator.normal(size=x.shape)), abstract_saved_params(CONFIG))
    path = tmp_path_factory.mktemp("runs") / "bytes"
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        tokenizers = Tokenizers(BYTES, BYTES)
        write_run(RunFolder(path), CONFIG, 0, params, "drawn by a test", tokenizers=tokenizers)
        return load(path)


# Runs -------------------------------------------------------------------------------------------------------------------

DRAWN = {"temperature": 1.3, "top_k": 40}


@pytest.mark.slow
def test_a_run_continues_prompts(run: Run):
    """Law: texts are those of the ids; a stop string cuts them; streams give the same; seeds and samples differ."""
    prompts = ["a", "", "long prompt"]
    texts = run.generate(prompts, seed=5, **DRAWN)
    assert texts == run.generate(prompts, seed=5, **DRAWN) != run.generate(prompts, seed=2**32 - 1, **DRAWN)
    ids = [encode_prompt(BYTES, prompt, BOS) for prompt in prompts]
    answers = run.completions_of_ids(ids, seed=5, **DRAWN)
    found = [decode_after(BYTES, read, answer[0].tokens) for read, answer in zip(ids, answers, strict=True)]
    assert texts == found and all(len(answer[0].tokens) <= 12 for answer in answers)
    assert "".join(run.stream(prompts[0], seed=5, **DRAWN)) == texts[0]
    middle = texts[0][len(texts[0]) // 2]
    stopped = texts[0][: texts[0].index(middle)]
    assert run.generate(prompts[:1], stop=[middle], seed=5, **DRAWN) == [stopped]
    assert "".join(run.stream(prompts[0], stop=[middle], seed=5, **DRAWN)) == stopped
    several = run.completions(prompts[:1], seed=5, num_hypotheses=8, **DRAWN)[0]
    assert several[0].text == texts[0] and len({sample.text for sample in several}) > 4


def test_an_answer_is_computed_up_to_its_stop_string(run: Run, monkeypatch: pytest.MonkeyPatch):
    """Law: answers are those of a search to the limit, cut after the token that completes a stop string; others go on."""
    prompts = [encode_prompt(BYTES, prompt, BOS) for prompt in ("a", "b", "long prompt", "")]
    settings = generation_settings(run.config.decode, {**DRAWN, "num_hypotheses": 2})
    decoder, variables, computed = run.searcher.search(settings), {"params": run.params}, []
    whole = decoder.generate(variables, prompts)
    texts = [decode_after(BYTES, row, answers[0].tokens) for row, answers in zip(prompts, whole, strict=True)]
    stops = [[texts[0][1]], [texts[1][2:4], "nowhere"], ["nowhere"], []]
    search = decoder.search

    def noted(*arguments: Any, **options: Any) -> Any:
        for decoded in search(*arguments, **options):
            computed.append(int(decoded.lengths.max()))
            yield decoded

    monkeypatch.setattr(decoder, "search", noted)
    found = decoder.generate(variables, prompts, watch=watch_stops(BYTES, prompts, stops))
    for row, stop, expected, answers in zip(prompts, stops, whole, found, strict=True):
        for long, short in zip(expected, answers, strict=True):
            said = [decode_after(BYTES, row, long.tokens[:n]) for n in range(len(long.tokens) + 1)]
            first = next((n for n, text in enumerate(said) if truncate_at_stop(text, stop) != text), len(long.tokens))
            assert short.tokens == long.tokens[:first]
    assert max(computed) == 12 and len(found[0][0].tokens) < 4
    monkeypatch.setattr(decoder, "config", dataclasses.replace(settings, num_hypotheses=1))
    computed.clear()
    ((alone,),) = decoder.generate(variables, prompts[:1], watch=watch_stops(BYTES, prompts, stops))
    assert alone.tokens == found[0][0].tokens and max(computed) <= 5


@pytest.fixture
def chat_run(run: Run, tmp_path: Path) -> Run:
    """The run with the plain template, in which three bytes of a message are an answer's room."""
    (tmp_path / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}A")
    return dataclasses.replace(run, folder=RunFolder(tmp_path))


def test_a_chat_answers_by_the_template(chat_run: Run):
    """Law: the answer continues the prompt that the template writes, and a user's BOS is text."""
    messages = [{"role": "system", "content": "Hi"}, {"role": "user", "content": "<s>"}]
    prompt = BYTES.encode("sHiu<s>A")
    (expected,) = chat_run.completions_of_ids([prompt], seed=5, first_index=3, **DRAWN)
    found = "".join(chat_run.chat(messages, seed=5, first_index=3, **DRAWN))
    assert found == decode_after(BYTES, prompt, expected[0].tokens)
    with pytest.raises(ValueError, match=r"has 47 tokens, but model\.positions\.max_positions is 40"):
        chat_run.chat([{"role": "user", "content": "a" * 45}])
    (chat_run.folder.path / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="has no chat template"):
        chat_run.chat(messages)


def test_an_answer_in_a_chat_is_a_text_of_its_own(chat_run: Run, monkeypatch: pytest.MonkeyPatch):
    """Law: the tokens that SentencePiece makes of an answer are that answer, without the space before the first word."""
    pieces = SentencePiece().train(["to be or not to be", "that is the question"], 60)
    run = dataclasses.replace(chat_run, tokenizers=Tokenizers(pieces, pieces))
    monkeypatch.setattr(Decoder, "stream", lambda *_, **__: iter([pieces.encode("to be or"), pieces.encode("not")]))
    assert "".join(run.chat([{"role": "user", "content": "be"}])) == "to be or not"
    assert "".join(run.stream("be")) == " to be or not"


def test_runs_that_cannot_continue_a_prompt_are_refused(run: Run):
    """Oracle: the messages name the setting, and the command or the way out."""
    for changes, message in (
        ({"num_encoder_layers": 1}, r"num_encoder_layers is 1\), so it answers a text .*: use translate"),
        (
            {"num_encoder_layers": 1, "num_decoder_layers": 0},
            r"num_decoder_layers is 0\).*: use fill-mask$",
        ),
        ({"head": None}, r"^model\.head is None, so the model generates no tokens: use one with a language-model head"),
    ):
        data = DataConfig(tokenizer=None, max_source_length=40, max_target_length=40)
        config = dataclasses.replace(CONFIG, model=dataclasses.replace(MODEL, **changes), data=data)
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(run, kept=Kept(), config=config).generate(["a"])
    with pytest.raises(
        ValueError, match=r"prompt 1 has 41 tokens, but model.positions.max_positions is 40: shorten it"
    ):
        run.generate(["a", 40 * "a"])
    with pytest.raises(ValueError, match=r"prompts is one string, 'a': pass a list"):
        run.generate("a")
    with pytest.raises(ValueError, match=r"stop is \['a', ''\]: it must be a list of strings that are not empty"):
        run.generate(["a"], stop=["a", ""])
    with pytest.raises(ValueError, match=r"prompt 1 has 263, which is no token id: ids must be between 0 and 262"):
        run.completions_of_ids([[BOS], [263]])


# The command ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def typed(run: Run, command: Command, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Types the command with words after RUN, a run that is loaded already; `terminal`: as on a terminal."""
    command.load(run)

    def generate(*words: object, terminal: bool = False) -> Said:
        with monkeypatch.context() as patch:
            patch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
            patch.setattr(sys, "stdout", sys.stdout)  # which the command wraps for a terminal
            return command("generate", run.folder.path, *words)

    return generate


def escaped(texts: list[str]) -> list[str]:
    return [text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") for text in texts]


@pytest.mark.slow
def test_the_command_writes_texts(typed, run: Run, tmp_path: Path):
    """Law: the command writes the texts of the run: one text unchanged (on a terminal without control characters), several
    as one line each.
    """
    words = ("--temperature", "1.3", "--top-k", "40", "--seed", "5")
    prompts = ["a", "", "long prompt"]
    texts = run.generate(prompts, seed=5, **DRAWN)
    assert typed("a", *words).out == texts[0] + "\n"
    assert typed("a", *words, terminal=True).out == printable(texts[0]) + "\n"
    assert typed(*prompts, *words).out.split("\n") == [*escaped(texts), ""]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    assert typed("--file", tmp_path / "prompts.txt", *words).out.split("\n") == [*escaped(texts), ""]
    # The indices of prompts continue from file to file, and from one that is streamed to the next.
    (tmp_path / "one.txt").write_text("long prompt\n")
    (tmp_path / "two.txt").write_text("long prompt\n")
    files = ("--file", tmp_path / "one.txt", "--file", tmp_path / "two.txt")
    both = run.generate(2 * ["long prompt"], seed=5, **DRAWN)
    assert both[0] != both[1] and typed(*files, *words).out.split("\n") == [*escaped(both), ""]
    assert typed(*files, *words, terminal=True).out == "".join(printable(text) + "\n" for text in both)
    several = run.completions(["a"], seed=5, num_hypotheses=3, **DRAWN)[0]
    assert typed("a", *words, "--samples", "3").out.count("\n") == len(several) == 3
    ids = run.completions_of_ids([[BOS, 9]], max_new_tokens=3)[0][0].tokens
    assert typed(f"{BOS} 9", "--ids", "--max-new-tokens", "3").out == " ".join(map(str, ids)) + "\n"
    assert typed("a", "--seed", "5").out == run.generate(["a"], seed=5, temperature=1.0)[0] + "\n"


@pytest.mark.slow
def test_the_command_remembers_a_chat(typed, command: Command, chat_run: Run):
    """Law: each prompt is the next message after the answers so far, a line each, on a terminal with its parts."""
    command.load(chat_run)
    messages, answers = [{"role": "system", "content": "S"}], []
    for text in ("a", "b"):
        messages.append({"role": "user", "content": text})
        answers.append("".join(chat_run.chat(messages, max_new_tokens=4, seed=1, first_index=len(messages), **DRAWN)))
        messages.append({"role": "assistant", "content": answers[-1]})
    words = ("--chat", "--system", "S", "--max-new-tokens", "4", "--temperature", "1.3", "--top-k", "40", "--seed", "1")
    assert typed("a", "b", *words).out.split("\n") == [*escaped(answers), ""]
    assert typed("a", "b", *words, terminal=True).out == "".join(printable(text) + "\n" for text in answers)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("a --system S", "--system is for --chat"),
        ("a --chat --ids", "--chat writes one answer"),
        ("a --chat --samples 2", "--chat writes one answer"),
        ("a --chat", "has no chat template"),
        ("a --beam-size 3 --top-k 2", "error: --beam-size is 3 but decode.sampling is set: set --beam-size to 1"),
        ("a --top-p 2", "error: --top-p is 2.0: it must be above 0 and at most 1"),
        ("a --samples 0", "error: --samples is 0: it must be at least 1"),
        (
            "a --beam-size 2 --samples 3",
            "error: --samples is 3 but --beam-size is 2: --samples must be between 1 and --beam-size",
        ),
        ("a --temperature nan", "error: --temperature is nan: it must be at least 0"),
        ("a --stop=", "error: stop is ['']: it must be a list of strings that are not empty"),
        ("a --beam-size 3 --seed 1", "--seed is for drawing, --beam-size for searching"),
        ("a --seed 99999999999", "error: seed is 99999999999: it must be between 0 and 2^32 - 1"),
        ("a --seed -1", "error: seed is -1: it must be between"),
        ("a --file b", "there are prompts and --file: leave one of them out"),
        ("a --ids", "the arguments, prompt 1: 'a' is no list of token ids"),
        ("3 --ids --stop x", "--stop is for texts"),
        ("a " + "a" * 40, "error: the arguments, prompt 2 has 41 tokens, but model.positions.max_positions is 40"),
    ],
)
def test_a_mistake_is_one_line(run: Run, command: Command, words: str, message: str):
    command.load(run)
    assert message in command.mistake("generate", run.folder.path, *words.split())


@pytest.mark.slow
def test_a_bad_prompt_in_a_file_is_named_by_its_line_and_stops_no_other(typed, run: Run, tmp_path: Path):
    """Law: lines are counted in each file; the others have the texts that they have with a good line in its place."""
    for name, text in (("a", "a\nb\n"), ("b", f"a\n{40 * 'b'}\nc\n"), ("ids", "3\n999\n"), ("words", "3\n4 x\n\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "latin").write_bytes(b"a\nGr\xfc\xdfe\n")
    drawn = ("--seed", "5", "--samples", "2")
    answers = run.completions([*"abaxc"], seed=5, num_hypotheses=2, temperature=1.0)
    texts = escaped([answer.text for prompt in answers for answer in prompt])
    ids = " ".join(map(str, run.completions_of_ids([[3]])[0][0].tokens))
    for files, options, out, messages in (
        ("a b", drawn, [*texts[:6], "", "", *texts[8:]], ["b, line 2 has 41 tokens, but model.positions"]),
        ("ids", ["--ids"], [ids, ""], ["ids, line 2 has 999, which is no token id"]),
        ("words", ["--ids"], [ids, "", ""], ["words, line 2: '4 x' is no list of", "words, line 3 has no tokens"]),
        ("latin", drawn, [*texts[:2], "", ""], ["latin, line 2: not UTF-8 (byte 0xfc)"]),
    ):
        found = typed(*(word for name in files.split() for word in ("--file", tmp_path / name)), *options)
        assert found.out.split("\n") == [*out, ""]
        said = [line for line in found.notes if line.startswith("warning")]
        for line, message in zip(said, messages, strict=True):
            assert line.startswith(f"warning: {tmp_path}/{message}") and "; its answer is empty" in line


@pytest.mark.slow
def test_text_outside_the_vocabulary_is_reported_once(typed, command: Command, run: Run):
    """For several prompts, and for one that is streamed; not for ids."""

    class Few(ByteTokenizer):
        def unknown_parts(self, texts):
            return [c for text in texts for c in text if c not in "ab"]

    def said(*words: str, terminal: bool = False) -> str:
        command.load(dataclasses.replace(run, tokenizers=Tokenizers(Few(), Few())))
        return typed(*words, "--max-new-tokens", "1", terminal=terminal).err

    told = "warning: the arguments: not in the vocabulary, so the model cannot read it: "
    assert said("a", "ß b", "ßé") == f"{told}'ß', ' ', 'é'\n"
    assert said("aß", terminal=True) == f"{told}'ß'\n"
    assert said("ab") == said("3 9", "--ids") == ""
