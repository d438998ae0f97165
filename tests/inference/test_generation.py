"""Laws and hand-worked cases of going on with texts: where they stop, how they stream, and the command."""

import dataclasses
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from flaxformer_lite.cli.main import main
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.inference.config import DecodeConfig, Sampling
from flaxformer_lite.inference.generation import (
    NEW_TOKENS,
    TextStream,
    before_stop,
    decode_settings,
    prompt_ids,
    text_after,
)
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.positions import Learned
from flaxformer_lite.objectives import CausalLM
from flaxformer_lite.run.run import Run, load, write_run
from flaxformer_lite.text.characters import Bytes, ByteTokenizer
from flaxformer_lite.text.special_ids import BOS
from flaxformer_lite.text.subwords import SentencePiece
from flaxformer_lite.text.tokenizer import Tokenizers
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_params
from tests.support.experiments import use_one_device

BYTES = Bytes().train([], 260)
CONFIG = Config(
    model=ModelConfig(
        vocab_size=263,
        d_model=6,
        num_heads=2,
        d_ff=5,
        num_encoder_layers=0,
        num_decoder_layers=1,
        positions=Learned(max_positions=40, stddev=1.0),
    ),
    objective=CausalLM(),
    data=DataConfig(tokenizer=Bytes(), max_target_length=40),
    decode=DecodeConfig(max_new_tokens=12),
)


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch):
    use_one_device(monkeypatch)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with random weights, from its folder. The model has ids that the tokenizer has not."""
    generator = np.random.default_rng(2)
    params = jax.tree.map(lambda x: np.float32(generator.normal(size=x.shape)), abstract_params(CONFIG))
    path = tmp_path_factory.mktemp("runs") / "bytes"
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        tokenizers = Tokenizers(BYTES, BYTES)
        write_run(RunFolder(path), CONFIG, 0, params, "drawn by a test", tokenizers=tokenizers)
        return load(path)


# Texts ------------------------------------------------------------------------------------------------------------------


def test_text_stops_before_the_first_stop_string():
    """Oracle: worked by hand."""
    assert before_stop("one. two; three", ["; ", ". "]) == "one"
    assert (
        before_stop("one", ["one", "ne"]) == ""
        and before_stop("one", []) == "one"
        and before_stop("one", ["x"]) == "one"
    )


@pytest.mark.parametrize("stop", [(), ("字!",), ("ab",), ("b≠", "≠≠≠"), ("nowhere", "\n\n")], ids=str)
def test_streamed_parts_make_the_text(stop):
    """Law: however the bytes arrive, the parts are the text before the stop string, and every character comes whole."""
    text = "über ≠ 漢字, ab≠ 漢字!\n\nand so on ≠≠"
    ids, generator = BYTES.encode(text), np.random.default_rng(0)
    for _ in range(20):
        cuts = np.sort(generator.integers(0, len(ids) + 1, 9))
        stream, parts = TextStream(BYTES, [BOS], stop), []
        for tokens in np.split(ids, cuts):
            parts.append(stream.add(tokens.tolist()))
            if stream.stopped:
                break
        else:
            parts.append(stream.end())
        assert "".join(parts) == before_stop(text, stop) and not any("\ufffd" in part for part in parts)


def test_streams_by_hand():
    """Oracle: what may still become a stop string or a character is held back until it is decided."""
    stream = TextStream(BYTES, [BOS], ["stop"])
    parts = [stream.add(BYTES.encode(part)) for part in ("as", "to", "st", "o", "p and on")]
    assert parts == ["a", "", "sto", "", ""] and stream.stopped
    stream = TextStream(BYTES, [BOS], [])
    assert [stream.add([i]) for i in BYTES.encode("é!")] == ["", "é", "!"]
    broken = TextStream(BYTES, [BOS], [])
    assert broken.add(BYTES.encode("aé")[:-1]) == "a" and broken.end() == "\ufffd"


def test_text_after_a_prompt_keeps_its_space():
    """Oracle: SentencePiece drops a space where a text starts, but here none does; ids that are none are left out."""
    tokenizer = SentencePiece(model_type="unigram").train(["hello world", "world of words", "a word"] * 9, 17)
    ids = tokenizer.encode("hello world")
    cut = next(n for n in range(1, len(ids)) if tokenizer.decode(ids[:n]) == "hello")
    assert text_after(tokenizer, [BOS, *ids[:cut]], [*ids[cut:], 17, 999]) == " world"
    assert text_after(tokenizer, [BOS], ids) == "hello world"


def test_prompts_begin_as_texts_do():
    """Oracle: BOS and the text without an end; a tokenizer that adds nothing and finds nothing leaves BOS."""
    assert prompt_ids(BYTES, "a", 7) == [BOS, *BYTES.encode("a")]
    assert prompt_ids(BYTES, "", 7) == [BOS]
    bare = Bytes().train([], 260)
    bare.bos_id = bare.eos_id = None
    assert prompt_ids(bare, "a", 7) == BYTES.encode("a") and prompt_ids(bare, "", 7) == [7]


def test_settings_by_name():
    """Oracle: worked by hand: a setting of Sampling draws, a beam does not, and some limit there always is."""
    config = DecodeConfig()
    assert decode_settings(config, {}) == DecodeConfig(max_new_tokens=NEW_TOKENS)
    assert decode_settings(config, {"top_k": 3, "max_new_tokens": 5}) == DecodeConfig(
        sampling=Sampling(top_k=3), max_new_tokens=5
    )
    by_prompt = DecodeConfig(max_length_ratio=0.5, max_length_extra=3)
    assert decode_settings(by_prompt, {}) == by_prompt
    assert decode_settings(DecodeConfig(max_new_tokens=9), {"max_length_extra": 10}) == DecodeConfig()
    drawing = DecodeConfig(sampling=Sampling(min_p=0.1), max_new_tokens=9)
    assert decode_settings(drawing, {"temperature": 0.5}).sampling == Sampling(min_p=0.1, temperature=0.5)
    assert decode_settings(drawing, {"beam_size": 4}) == DecodeConfig(beam_size=4, max_new_tokens=9)
    assert decode_settings(DecodeConfig(beam_size=4), {"top_p": 0.5}).beam_size == 1
    with pytest.raises(ValueError, match=r"decode.beam_size is 2, but decode.sampling draws"):
        decode_settings(config, {"beam_size": 2, "top_p": 0.5})


# Runs -------------------------------------------------------------------------------------------------------------------

DRAWN = {"temperature": 1.3, "top_k": 40}


def test_a_run_goes_on_with_texts(run: Run):
    """Law: texts are those of the ids; a stop string cuts them; streams give the same; seeds and samples differ."""
    prompts = ["a", "", "long prompt"]
    texts = run.generate(prompts, seed=5, **DRAWN)
    assert texts == run.generate(prompts, seed=5, **DRAWN) != run.generate(prompts, seed=2**32 - 1, **DRAWN)
    ids = [prompt_ids(BYTES, prompt, BOS) for prompt in prompts]
    answers = run.continuations_of_ids(ids, seed=5, **DRAWN)
    found = [text_after(BYTES, read, answer[0].tokens) for read, answer in zip(ids, answers, strict=True)]
    assert texts == found and all(len(answer[0].tokens) <= 12 for answer in answers)
    assert "".join(run.stream(prompts[0], seed=5, **DRAWN)) == texts[0]
    middle = texts[0][len(texts[0]) // 2]
    stopped = texts[0][: texts[0].index(middle)]
    assert run.generate(prompts[:1], stop=[middle], seed=5, **DRAWN) == [stopped]
    assert "".join(run.stream(prompts[0], stop=[middle], seed=5, **DRAWN)) == stopped
    several = run.continuations(prompts[:1], seed=5, num_hypotheses=8, **DRAWN)[0]
    assert several[0].text == texts[0] and len({sample.text for sample in several}) > 4


def test_runs_that_cannot_say_so(run: Run):
    """Oracle: the messages name the setting, and the command or the way out."""
    for changes, message in (
        ({"num_encoder_layers": 1}, r"num_encoder_layers is 1\), so it answers a text .*: use translate"),
        (
            {"num_encoder_layers": 1, "num_decoder_layers": 0},
            r"num_decoder_layers is 0\).*: use fill-mask, embed or classify",
        ),
        ({"head": None}, r"^model\.head is None, so it scores no tokens and writes no answers: use a run with a head"),
    ):
        model = dataclasses.replace(CONFIG.model, **changes)
        other = dataclasses.replace(
            run,
            config=dataclasses.replace(
                CONFIG, model=model, data=DataConfig(tokenizer=None, max_source_length=40, max_target_length=40)
            ),
        )
        with pytest.raises(ValueError, match=message):
            other.generate(["a"])
    with pytest.raises(
        ValueError, match=r"prompt 1 has 41 tokens, but model.positions.max_positions is 40: shorten it"
    ):
        run.generate(["a", 40 * "a"])
    with pytest.raises(ValueError, match=r"prompts is one string, 'a': give a list"):
        run.generate("a")
    with pytest.raises(ValueError, match=r"stop is \['a', ''\]: give a list of texts that are not empty"):
        run.generate(["a"], stop=["a", ""])
    with pytest.raises(ValueError, match=r"prompt 1: 263 is no token id, model.vocab_size is 263"):
        run.continuations_of_ids([[BOS], [263]])


# The command ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def type_command(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Runs the command with these words after RUN and gives what it writes to stdout, with `terminal` as if to one.

    The run is the one that is loaded already, with what it has compiled.
    """
    monkeypatch.setattr("flaxformer_lite.cli.commands.generate.load", lambda folder, weights: run)

    def typed(*words: str, terminal: bool = False) -> str:
        monkeypatch.setattr("sys.argv", ["flaxformer-lite", "generate", str(run.folder.path), *words])
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
        main()
        return capsys.readouterr().out

    return typed


def test_the_command_writes_texts(type_command, run: Run, tmp_path: Path):
    """Law: what the command writes is what the run gives: one text as it is, several a line each."""
    words = ("--temperature", "1.3", "--top-k", "40", "--seed", "5")
    prompts = ["a", "", "long prompt"]
    texts = run.generate(prompts, seed=5, **DRAWN)

    def escaped(texts: list[str]) -> list[str]:
        return [text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") for text in texts]

    lines = escaped(texts)
    assert type_command("a", *words) == type_command("a", *words, terminal=True) == texts[0] + "\n"
    assert type_command(*prompts, *words).split("\n") == [*lines, ""]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts))
    assert type_command("--file", str(tmp_path / "prompts.txt"), *words).split("\n") == [*lines, ""]
    # The numbers of prompts go on from file to file, and from one that is streamed to the next.
    (tmp_path / "one.txt").write_text("long prompt\n")
    (tmp_path / "two.txt").write_text("long prompt\n")
    files = ("--file", str(tmp_path / "one.txt"), "--file", str(tmp_path / "two.txt"))
    both = run.generate(2 * ["long prompt"], seed=5, **DRAWN)
    assert both[0] != both[1] and type_command(*files, *words).split("\n") == [*escaped(both), ""]
    assert type_command(*files, *words, terminal=True) == "".join(text + "\n" for text in both)
    several = run.continuations(["a"], seed=5, num_hypotheses=3, **DRAWN)[0]
    assert type_command("a", *words, "--samples", "3").count("\n") == len(several) == 3
    ids = run.continuations_of_ids([[BOS, 9]], max_new_tokens=3)[0][0].tokens
    assert type_command(f"{BOS} 9", "--ids", "--max-new-tokens", "3") == " ".join(map(str, ids)) + "\n"
    assert type_command("a", "--seed", "5") == run.generate(["a"], seed=5, temperature=1.0)[0] + "\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "--beam", "3", "--top-k", "2"), "error: --beam is 3, but --top-k draws tokens"),
        (("a", "--top-p", "2"), "error: --top-p is 2.0: it must be above 0 and at most 1"),
        (("a", "--samples", "0"), "error: --samples is 0: it must be at least 1"),
        (("a", "--beam", "2", "--samples", "3"), "error: --samples is 3: give 1 to --beam, which is 2"),
        (("a", "--temperature", "nan"), "error: --temperature is nan: it must be at least 0"),
        (("a", "--stop", ""), "error: --stop is ['']: give a list of texts that are not empty"),
        (("a", "--beam", "3", "--seed", "1"), "--seed is for drawing, --beam for searching"),
        (("a", "--seed", "99999999999"), "error: --seed is 99999999999: give a number from 0 to 2^32 - 1"),
        (("a", "--seed", "-1"), "error: --seed is -1: give a number"),
        (("a", "--file", "b"), "there are prompts and --file: give one or the other"),
        (("a", "--ids"), "the arguments, prompt 1: 'a' is no list of token ids"),
        (("3", "--ids", "--stop", "x"), "--stop is for texts"),
        (("a", "a" * 40), "error: the arguments, prompt 2 has 41 tokens, but model.positions.max_positions is 40"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else "",
)
def test_mistakes_are_one_line(type_command, capsys: pytest.CaptureFixture, words, message):
    """Oracle: the messages, exit status 2."""
    with pytest.raises(SystemExit) as end:
        type_command(*words)
    error = capsys.readouterr().err
    assert end.value.code == 2 and message in error and error.count("\n") == 1


def test_a_prompt_in_a_file_is_named_by_its_line(type_command, capsys: pytest.CaptureFixture, tmp_path: Path):
    """Whatever files came before it."""
    for name, text in (("a", "a\nb\n"), ("b", f"a\n{40 * 'b'}\n"), ("ids", "3\n999\n"), ("words", "3\n4 x\n")):
        (tmp_path / name).write_text(text)
    for files, options, message in (
        (("a", "b"), (), f"{tmp_path}/b, line 2 has 41 tokens, but model.positions"),
        (("ids",), ("--ids",), f"{tmp_path}/ids, line 2: 999 is no token id"),
        (("words",), ("--ids",), f"{tmp_path}/words, line 2: '4 x' is no list of token ids"),
    ):
        with pytest.raises(SystemExit, match="2"):
            type_command(*(word for name in files for word in ("--file", str(tmp_path / name))), *options)
        assert capsys.readouterr().err.startswith(f"error: {message}")


def test_what_is_not_in_the_vocabulary_is_told_once(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """For prompts in one block, and for one that is answered as it is written; nothing of ids."""

    class Few(ByteTokenizer):
        def unknown(self, texts):
            return [c for text in texts for c in text if c not in "ab"]

    def said(*words: str, terminal: bool = False) -> str:
        other = dataclasses.replace(run, tokenizers=Tokenizers(Few(), Few()))
        monkeypatch.setattr("flaxformer_lite.cli.commands.generate.load", lambda folder, weights: other)
        monkeypatch.setattr("sys.argv", ["flaxformer-lite", "generate", "run", *words, "--max-new-tokens", "1"])
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
        main()
        return capsys.readouterr().err

    told = "warning: the arguments: not in the vocabulary, so the model cannot read it: "
    assert said("a", "ß b", "ßé") == f"{told}'ß', ' ', 'é'\n"
    assert said("aß", terminal=True) == f"{told}'ß'\n"
    assert said("ab") == said("3 9", "--ids") == ""
