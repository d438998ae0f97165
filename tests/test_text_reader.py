"""Laws of reading whole texts: in any company and order a text gets the answer that it gets alone; mistakes are one line."""

import dataclasses
import importlib
import io
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments import tiny_config, use_one_device

from flaxformer_lite.__main__ import main
from flaxformer_lite.data.pipeline import Tokenizers
from flaxformer_lite.encoding import class_logits
from flaxformer_lite.layers import DropoutRates
from flaxformer_lite.model_config import ModelConfig, Pooler, SentenceEmbedding
from flaxformer_lite.objectives import Classification, MaskedLM
from flaxformer_lite.positions import Learned
from flaxformer_lite.run import Run
from flaxformer_lite.run_folder import RunFolder
from flaxformer_lite.tokenizer import CharacterTokenizer, Tokenizer
from flaxformer_lite.transformer import Inputs
from flaxformer_lite.weights import abstract_params

MODEL = ModelConfig(
    vocab_size=31, d_model=12, num_heads=3, d_ff=17, num_encoder_layers=1, num_decoder_layers=0,
    positions=Learned(max_positions=23), num_token_types=2, pooler=Pooler(num_classes=3),
    sentence_embedding=SentenceEmbedding(), dropout=DropoutRates(),
)  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"[:25]
TEXTS = ["abc", "", "a" * 15, "hello", "bcdefgh", "y", "x" * 9, "cba", "the", "fox", "ran"]
NAMES = ("low", "middle", "high")


@pytest.fixture(autouse=True)
def one_device(monkeypatch: pytest.MonkeyPatch):
    use_one_device(monkeypatch)


def make_run(model: ModelConfig = MODEL, tokenizer: Tokenizer | None = None, **parts: Any) -> Run:
    """A run with random parameters and no folder."""
    base = tiny_config()
    data = dataclasses.replace(base.data, train=None, eval=None, max_source_length=16)
    train = dataclasses.replace(base.train, text_metrics=())
    parts = {"objective": Classification(classes=NAMES), **parts}
    config = dataclasses.replace(base, model=model, data=data, train=train, weights="last", **parts)
    rng = np.random.default_rng(4)
    params = jax.tree.map(lambda x: np.float32(0.5 * rng.normal(size=x.shape)), abstract_params(config))
    tokenizer = tokenizer or CharacterTokenizer(LETTERS)
    return Run(RunFolder("nowhere"), config, params, Tokenizers(tokenizer, tokenizer), 0)


@pytest.fixture(scope="module")
def run() -> Run:
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        return make_run()


def alone(run: Run, first: str, second: str | None = None) -> Any:
    """What the model says of one text or pair without any padding."""
    tokenizer = run.required_tokenizers.source
    ids = [tokenizer.encode(text) for text in (first, second) if text is not None]
    tokens, types = tokenizer.wrapped(*ids)
    inputs = Inputs(source_tokens=jnp.array([tokens]), token_types=jnp.array([types]))
    return jax.jit(run.model.apply)({"params": run.params}, inputs)


def test_texts_are_embedded_as_each_alone_and_in_order(run: Run):
    done: list[tuple[int, int]] = []
    found = run.embed(TEXTS[:5], progress=lambda *numbers: done.append(numbers), warn=lambda line: None)
    assert found.shape == (5, 12) and found.dtype == np.float32
    assert done[-1] == (5, 5)
    for i in (0, 1, 3):
        np.testing.assert_allclose(found[i], alone(run, TEXTS[i]).embedding[0], rtol=2e-5, atol=2e-6)
    assert run.embed([]).shape == (0, 12)


def test_shapes_are_few_and_a_longer_text_is_cut(run: Run):
    """Eleven texts of many lengths compile at most three times, and nothing more for other texts of such lengths."""
    said: list[str] = []
    run.classify(TEXTS, warn=said.append, first_line=5)
    assert said == ["line 7: the text has 17 tokens and was cut to 16 (data.max_source_length)"]
    encoder = run.reader.encoder(class_logits)
    compiled = encoder.ask._cache_size()
    assert compiled <= 3
    run.classify(TEXTS[::-1], warn=said.append)
    assert encoder.ask._cache_size() == compiled
    cut, whole = run.classify(["a" * 15, "a" * 14], warn=said.append)
    assert cut.scores == pytest.approx(whole.scores, rel=1e-5)


def test_pairs_have_types_and_names_have_probabilities(run: Run):
    """Oracle: softmax of the model's scores in float64."""
    for texts in (("abc", "de"), ("de", "abc")):
        scores = np.asarray(alone(run, *texts).class_logits[0], np.float64)
        (answer,) = run.classify([texts])
        wanted = np.exp(scores) / np.exp(scores).sum()
        assert answer.scores == pytest.approx(dict(zip(NAMES, wanted, strict=True)), rel=1e-4)
        assert answer.label == NAMES[int(scores.argmax())] and answer.score == max(answer.scores.values())


@pytest.fixture(scope="module")
def masked() -> Run:
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        return make_run(objective=MaskedLM(mask_token=30))


def test_masks_are_filled_as_the_model_says(masked: Run):
    """Oracle: softmax at each mask's place, in float64, sorted; texts with one, two and three masks together."""
    texts = ["ab[MASK]c", "[MASK]a[MASK]", "[MASK][MASK]x[MASK]"]
    found = masked.fill_mask(texts, 4)
    tokenizer = masked.required_tokenizers.source
    assert [len(masks) for masks in found] == [1, 2, 3]
    for text, masks in zip(texts, found, strict=True):
        ids, parts = [2], text.split("[MASK]")
        for number, part in enumerate(parts):
            ids += ([30] if number else []) + tokenizer.encode(part)
        ids.append(3)
        inputs = Inputs(source_tokens=jnp.array([ids]), token_types=jnp.zeros((1, len(ids)), jnp.int32))
        logits = np.asarray(jax.jit(masked.model.apply)({"params": masked.params}, inputs).logits[0], np.float64)
        for place, guesses in zip([i for i, token in enumerate(ids) if token == 30], masks, strict=True):
            probabilities = np.exp(logits[place]) / np.exp(logits[place]).sum()
            best = np.argsort(-probabilities)[:4]
            assert [guess.id for guess in guesses] == best.tolist()
            np.testing.assert_allclose([guess.probability for guess in guesses], probabilities[best], rtol=1e-4)
            known = [guess.token for guess in guesses if guess.id < 29]
            assert known == tokenizer.pieces([i for i in best if i < 29])


class WithMask(CharacterTokenizer):
    """Characters, of which one is the mask, as in a tokenizer from elsewhere."""

    mask_id = 4


def test_a_mask_of_the_tokenizers_own_is_written_either_way():
    run = make_run(tokenizer=WithMask(["#", *LETTERS]), objective=MaskedLM())
    assert run.fill_mask(["a[MASK]b"]) == run.fill_mask(["a#b"])


@pytest.mark.parametrize(
    ("changes", "method", "words"),
    [
        ({"sentence_embedding": None}, "embed", r"^model\.sentence_embedding is None, so the run nowhere makes no"),
        (
            {"pooler": None},
            "classify",
            r"^model\.pooler has no classes \(model\.pooler\.num_classes\), so the run nowhere",
        ),
        ({"pooler": Pooler()}, "classify", r"^model\.pooler has no classes"),
        ({"head": None}, "fill_mask", r"^model\.head is None, so the run nowhere fills no masks"),
        (
            {"num_decoder_layers": 1, "num_token_types": 0, "num_encoder_layers": 0},
            "fill_mask",
            r"^model\.num_decoder_layers is 1, so the run nowhere fills no masks",
        ),
        (
            {"num_decoder_layers": 1},
            "embed",
            r"^the model has an encoder and a decoder .*, but the run nowhere reads whole",
        ),
        ({}, "fill_mask", r"^the tokenizer of nowhere has no id for the mask"),
    ],
)
def test_a_model_that_lacks_the_part_is_named_with_its_setting(changes: dict, method: str, words: str):
    run = make_run(dataclasses.replace(MODEL, **changes))
    with pytest.raises(ValueError, match=words) as caught:
        getattr(run, method)(["[MASK]"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["embed", "classify", "fill_mask"])
def test_one_text_is_no_list_of_them(run: Run, masked: Run, method: str):
    with pytest.raises(ValueError, match=r"^texts is one string, 'abc': give a list"):
        getattr(masked if method == "fill_mask" else run, method)("abc")


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["classify"], b"a\tb\tc\n", "stdin, line 1: 3 texts with tabs between them, but one or two are read"),
        (["embed", "--similarity"], b"a\tb\na\n", "stdin, line 2: 1 texts with tabs between them, but 2 are read"),
        (["embed", "--similarity", "--output", "x"], b"", "--output is for vectors and --similarity for their cosines"),
        (["fill-mask", "--top", "0"], b"", "--top is 0: give at least 1"),
        (["fill-mask"], b"[MASK]\nabc\n", "stdin: line 2 has no mask: write [MASK]"),
        (["fill-mask"], b"[MASK]aaaaaaaaaaaaaaaaaa\n", "stdin: line 1 has 21 tokens, data.max_source_length is 16"),
        (["classify", "--scores", "nowhere.txt"], b"", "nowhere.txt: no such file"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    stdin: bytes,
    words: str,
    masked: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
):
    for name in ("classify", "embed", "fill-mask"):
        module = importlib.import_module(f"flaxformer_lite.commands.{name}")
        monkeypatch.setattr(module, "load", lambda path, weights: masked)
    monkeypatch.setattr(sys, "argv", ["flaxformer-lite", arguments[0], "run", *arguments[1:]])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1 and error[0].startswith(f"error: {words}")


def test_a_pipe_is_answered_line_by_line(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    """Law: an answer for each line, in order, an empty one included; `--scores` says the same."""
    module = importlib.import_module("flaxformer_lite.commands.classify")
    monkeypatch.setattr(module, "load", lambda path, weights: run)
    outs = []
    for options in ([], ["--scores"]):
        monkeypatch.setattr(sys, "argv", ["flaxformer-lite", "classify", "run", *options])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc\n\nhello\n")))
        main()
        outs.append(capsys.readouterr().out.splitlines())
    labels = [answer.label for answer in run.classify(["abc", "", "hello"])]
    assert [line.split("\t")[0] for line in outs[0]] == labels
    assert [max(scores, key=scores.get) for scores in map(json.loads, outs[1])] == labels
