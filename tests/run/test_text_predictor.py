"""Laws of predictions for whole texts: in any batch and order the answer to a text is its answer alone; mistakes are one line."""

import csv
import dataclasses
import gzip
import io
import json
import math
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

from flaxformer_lite.cli.input_lines import TextColumns, table_blocks
from flaxformer_lite.cli.main import main
from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.model.config import ModelConfig, Pooler, SentenceEmbedding
from flaxformer_lite.core.model.inputs import Inputs
from flaxformer_lite.core.model.layers import DropoutRates
from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.objectives import Classification, MaskedLM, SentenceEmbeddings
from flaxformer_lite.core.search.encoder import predict_class_logits
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.special_ids import BOS, EOS
from flaxformer_lite.core.text.tokenizer import Tokenizer, Tokenizers
from flaxformer_lite.engine.texts import check_list
from flaxformer_lite.files.data import CSV, DataSource, JSONLines, Mixture
from flaxformer_lite.files.data.text_files import TSV
from flaxformer_lite.files.records import Classes, Documents, Pairs
from flaxformer_lite.run import Run, load
from flaxformer_lite.tasks.rank.answers import Query, Rank
from flaxformer_lite.tools.serve.limits import Limits, Refusal
from flaxformer_lite.tools.serve.runs import ServedRun
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_params
from tests.support.experiments import num_programs, tiny_config, use_one_device
from tests.support.limits import assert_close
from tests.support.objectives import labelled
from tests.support.paths import FIXTURES
from tests.support.tokenizers import gapped

MODEL = ModelConfig(
    vocab_size=31, d_model=12, num_heads=3, d_ff=17, num_encoder_layers=1, num_decoder_layers=0,
    positions=Learned(max_positions=23), num_token_types=2, pooler=Pooler(num_classes=3),
    sentence_embedding=SentenceEmbedding(), dropout=DropoutRates(),
)  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"[:25]
TEXTS = ["abc", "", "a" * 15, "hello", "bcdefgh", "y", "x" * 9, "cba", "the", "fox", "ran"]
NAMES = ("low", "middle", "high")


pytestmark = pytest.mark.usefixtures("one_device")


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
    """Returns the model's outputs for one text or pair without padding."""
    tokenizer = run.required_tokenizers.source
    ids = [tokenizer.encode(text) for text in (first, second) if text is not None]
    tokens, types = tokenizer.with_special_tokens(*ids)
    inputs = Inputs(source_tokens=jnp.array([tokens]), token_types=jnp.array([types]))
    return jax.jit(run.model.apply)({"params": run.params}, inputs)


@pytest.mark.slow
def test_texts_are_embedded_as_each_alone_and_in_order(run: Run):
    done: list[tuple[str, int, int]] = []
    found = run.embed(TEXTS[:5], progress=lambda *numbers: done.append(numbers), warn=lambda line: None)
    assert found.shape == (5, 12) and found.dtype == np.float32
    assert done[-1] == ("predicting", 5, 5)
    for i in (0, 1, 3):
        np.testing.assert_allclose(found[i], alone(run, TEXTS[i]).embedding[0], rtol=2e-5, atol=2e-6)
    assert run.embed([]).shape == (0, 12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt": "quary"}, r"^the prompt is 'quary': the prompts are 'query'; perhaps you meant query$"),
        ({"width": 13}, r"^the width is 13, but vectors have 12 values: choose 1 to 12$"),
        ({"width": 0}, r"^the width is 0, but"),
    ],
)
def test_an_unknown_prompt_and_an_impossible_width_are_refused(run: Run, options: dict[str, Any], words: str):
    prompted = make_run(objective=SentenceEmbeddings(prompts=(("query", "find "),)))
    for texts in ([], ["abc"]):
        with pytest.raises(ValueError, match=words):
            prompted.embed(texts, **options)
    with pytest.raises(ValueError, match=r"objective\.kind 'classification' has no prompts: leave it out"):
        run.embed(["abc"], prompt="query")


def test_shapes_are_few_and_a_longer_text_is_cut(run: Run):
    """Law: eleven texts of many lengths compile at most three times; other texts of these lengths compile nothing."""
    said: list[str] = []
    run.classify(TEXTS, warn=said.append, first_line=5)
    assert said == ["line 7: the text has 17 tokens and was cut to 16 (data.max_source_length)"]
    predictor = run.text_model.batch_predictor(predict_class_logits, run.config.decode.bos_id)
    compiled = num_programs(predictor.function)
    assert compiled <= 3
    run.classify(TEXTS[::-1], warn=said.append)
    assert num_programs(predictor.function) == compiled
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


def test_a_pair_whose_first_text_has_no_token_is_one_text(run: Run):
    """Oracle: the rows of training."""
    pair, text = run.required_tokenizers.source.encode_batch(["", "de"])
    (row,) = run.config.objective.make_rows([labelled(pair, text, NAMES[0])], Lengths(16, 0), 0, run.tokenizer)
    said: list[str] = []
    assert run.text_model.encode([pair, text], 1, said.append).tokens == row.tokens.tolist()
    assert run.text_model.encode([pair], 1, said.append).tokens == [BOS, EOS] and not said


def test_several_labels_are_those_above_the_threshold():
    """Oracle: sigmoid of the model's scores in float64; a threshold below all gives every class, best first, one above none."""
    for threshold in (0.5, 1e-6, 1 - 1e-6):
        run = make_run(objective=Classification(classes=NAMES, labels="several", threshold=threshold))
        (answer,) = run.classify(["abc"])
        wanted = 1 / (1 + np.exp(-np.asarray(alone(run, "abc").class_logits[0], np.float64)))
        assert answer.scores == pytest.approx(dict(zip(NAMES, wanted, strict=True)), rel=1e-4)
        order = np.argsort(-wanted)
        assert answer.labels == [NAMES[i] for i in order if wanted[i] > threshold]
        assert answer.label == NAMES[order[0]] and answer.score == max(answer.scores.values())


@pytest.fixture(scope="module")
def masked() -> Run:
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        return make_run(objective=MaskedLM(mask_token=30))


def test_masks_have_the_models_probabilities(masked: Run):
    """Oracle: softmax at each mask's position, in float64, sorted; texts with one, two and three masks together."""
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
    """A tokenizer of characters with a mask id of its own."""

    mask_id = 4


def test_a_mask_of_the_tokenizers_own_is_written_either_way():
    run = make_run(tokenizer=WithMask(["#", *LETTERS]), objective=MaskedLM())
    assert run.fill_mask(["a[MASK]b"]) == run.fill_mask(["a#b"])


@pytest.mark.parametrize(
    ("changes", "method", "words"),
    [
        (
            {"sentence_embedding": None},
            "embed",
            r"^model\.sentence_embedding is None, so the run nowhere makes no vectors",
        ),
        (
            {"pooler": None},
            "classify",
            r"^model\.pooler has no classes \(model\.pooler\.num_classes\), so the run nowhere",
        ),
        ({"pooler": Pooler()}, "classify", r"^model\.pooler has no classes"),
        ({"head": None}, "fill_mask", r"^model\.head is None, so the run nowhere cannot fill masks"),
        (
            {"num_decoder_layers": 1, "num_token_types": 0, "num_encoder_layers": 0},
            "fill_mask",
            r"^model\.num_decoder_layers is 1, so the run nowhere cannot fill masks",
        ),
        (
            {"num_decoder_layers": 1},
            "embed",
            r"^the model has an encoder and a decoder .*, but the run nowhere needs a model with one of them",
        ),
        ({}, "fill_mask", r"^the tokenizer of nowhere has no mask id"),
    ],
)
def test_a_model_without_the_part_is_refused_with_its_setting(changes: dict, method: str, words: str):
    run = make_run(dataclasses.replace(MODEL, **changes))
    with pytest.raises(ValueError, match=words) as caught:
        getattr(run, method)(["[MASK]"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["embed", "classify", "fill_mask"])
def test_one_string_is_refused(run: Run, masked: Run, method: str):
    with pytest.raises(ValueError, match=r"^texts is one string, 'abc': pass a list"):
        getattr(masked if method == "fill_mask" else run, method)("abc")
    with pytest.raises(ValueError, match=r"^texts is \[3\]: it must be a list of strings"):
        check_list("texts", [3])


class Typed:
    """Runs a command with a run that is loaded already."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, run: Run, command: str, *options: str, stdin: bytes = b"") -> tuple[list[str], list[str]]:
        """Returns the lines of stdout and stderr."""
        self.monkeypatch.setattr("flaxformer_lite.run.load", lambda path, **weights: run)
        self.monkeypatch.setattr(sys, "argv", ["flaxformer-lite", command, "run", *options])
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        main()
        out, err = self.capsys.readouterr()
        return out.splitlines(), err.splitlines()

    def errors(self) -> list[str]:
        """Returns the lines of stderr of a command that failed."""
        return self.capsys.readouterr().err.splitlines()


@pytest.fixture
def type_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Typed:
    return Typed(monkeypatch, capsys)


def test_prompts_and_widths_of_vectors(type_command: Typed, tmp_path: Path):
    """Oracle: the vector of the text with its prompt written out, cut and divided by its length; every way to ask says the same."""
    prompts = {"prompts": (("query", "find "), ("text", "the ")), "default_prompt": "text"}
    run = make_run(objective=SentenceEmbeddings(**prompts))
    plain = {before: run.embed([before + "abc"], prompt="")[0] for before in ("", "find ", "the ")}
    for prompt, before in ((None, "the "), ("", ""), ("query", "find ")):
        np.testing.assert_array_equal(run.embed(["abc"], prompt=prompt)[0], plain[before])
    cut = plain["find "][:5] / np.linalg.norm(plain["find "][:5])
    assert_close(run.embed(["abc"], prompt="query", width=5), [cut])
    assert run.embed([], width=5).shape == (0, 5)
    asked = ["--prompt", "query", "--width", "5"]
    (line,), _ = type_command(run, "embed", *asked, stdin=b"abc\n")
    assert_close(json.loads(line), cut)
    type_command(run, "embed", *asked, "--output", str(tmp_path / "x.npy"), stdin=b"abc\nxyz\n")
    assert_close(np.load(tmp_path / "x.npy")[0], cut)
    (line,), _ = type_command(run, "embed", *asked, "--similarity", stdin=b"abc\tabc\n")
    assert float(line) == pytest.approx(1)
    sided = make_run(objective=SentenceEmbeddings(prompts=prompts["prompts"], query_prompt="query"))
    cosine = plain["find "] @ plain[""] / np.linalg.norm(plain["find "]) / np.linalg.norm(plain[""])
    assert sided.relevance([("abc", "abc")])[0] == pytest.approx(cosine, rel=1e-5)


def test_texts_that_were_cut_are_one_line(run: Run, type_command: Typed):
    """Oracle: by hand."""
    long = "a" * 19 + "\n"
    _, errors = type_command(run, "embed", stdin=f"{long * 3}a\n{long * 5}".encode())
    cut = "warning: stdin: line 1: the text has 21 tokens and was cut to 16 (data.max_source_length)"
    assert errors == [f"{cut} (and 7 more, such as line 2, 3, 5, 6, 7)"]


@pytest.mark.parametrize(
    ("settings", "query", "document"),
    [
        ({"prompts": (("document", "the "), ("query", "find "))}, "find ", "the "),
        ({"prompts": (("corpus", "xyz "), ("passage", "the "), ("query", "find "))}, "find ", "the "),
        (
            {"prompts": (("document", "the "), ("query", "find ")), "query_prompt": "", "default_prompt": "query"},
            "",
            "the ",
        ),
        ({"prompts": (("corpus", "the "), ("a", "find ")), "query_prompt": "a"}, "find ", "the "),
        ({"prompts": (("query", "find "),)}, "find ", ""),
        ({"prompts": (("a", "the "), ("b", "find ")), "default_prompt": "a"}, "the ", "the "),
        ({"prompts": (("a", "the "), ("b", "find "))}, "", ""),
    ],
)
def test_each_side_of_a_pair_has_its_prompt(settings: dict, query: str, document: str, type_command: Typed):
    """Oracle: the cosine of the texts with their prompts written out. Training, `rank`, `embed --similarity` and a server agree."""
    objective = SentenceEmbeddings(**settings)
    assert objective.prompt_texts == (query, document)
    run = make_run(objective=objective)
    first, second = run.embed([query + "abc", document + "abcdefgh"], prompt="").astype(np.float64)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    (line,), _ = type_command(run, "embed", "--similarity", stdin=b"abc\tabcdefgh\n")
    (ranked,), _ = type_command(run, "rank", stdin=b'{"query": "abc", "candidates": ["abcdefgh"]}\n')
    assert float(line) == json.loads(ranked)[0]["score"] == pytest.approx(cosine, abs=2e-6)
    served = ServedRun("run", run, Limits())
    longest = "abcdefghijklmn"[: 14 - len(document)]  # 16 tokens with those at its ends
    assert served.task_job(Rank(), [Query("abc", [longest])]).size == 1
    with pytest.raises(Refusal, match=r"^text 2 has 17 tokens, but run reads at most 16"):
        served.task_job(Rank(), [Query("abc", [longest + "o"])])


@pytest.mark.parametrize(
    ("arguments", "stdin", "words"),
    [
        (["embed", "--similarity", "--output", "x"], b"", "--output writes vectors and --similarity cosines"),
        (["fill-mask", "--top", "0"], b"", "--top is 0: it must be at least 1"),
        (["embed", "--output", "{tmp}"], b"", "{tmp} exists already: give a file that does not"),
        (["embed", "--output", "{tmp}/file/x.npy"], b"", "{tmp}/file/x.npy cannot be created: {tmp}/file is no folder"),
        (["classify", "--scores", "nowhere.txt"], b"", "nowhere.txt: no such file"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    stdin: bytes,
    words: str,
    masked: Run,
    type_command: Typed,
    tmp_path: Path,
):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        type_command(masked, *(argument.format(tmp=tmp_path) for argument in arguments), stdin=stdin)
    assert ended.value.code == 2
    (error,) = type_command.errors()
    assert error.startswith(f"error: {words.format(tmp=tmp_path)}")


def test_a_pipe_is_answered_line_by_line(run: Run, type_command: Typed):
    """Law: an answer for each line, in order, an empty one included; `--scores` has the same best class."""
    outs = [type_command(run, "classify", *options, stdin=b"abc\n\nhello\n")[0] for options in ([], ["--scores"])]
    labels = [answer.label for answer in run.classify(["abc", "", "hello"])]
    assert [line.split("\t")[0] for line in outs[0]] == labels
    assert [max(scores, key=scores.get) for scores in map(json.loads, outs[1])] == labels


def test_a_line_without_a_mask_is_skipped_with_a_warning(masked: Run, type_command: Typed):
    """Law: the other lines have the answers that they have alone, under their own numbers."""
    lines = ["ab[MASK]c", "abc", "[MASK]" + "a" * 20 + "[MASK]", "", "[MASK]a[MASK]"]
    out, err = type_command(masked, "fill-mask", "--top", "2", stdin="\n".join(lines).encode())
    assert [line.split(" ||| ")[:2] for line in out[::2]] == [["0", "0"], ["2", "0"], ["4", "0"], ["4", "1"]]
    for i in (0, 4):
        (alone,) = masked.fill_mask([lines[i]], 2)
        found = [line.split(" ||| ") for line in out if line.startswith(f"{i} ")]
        assert [float(line[3]) for line in found] == pytest.approx([g.probability for m in alone for g in m], abs=2e-5)
    assert err == [
        "warning: stdin: line 2 has no mask: write [MASK] in place of the token to predict (and 1 more, such as line 4)",
        "warning: stdin: line 3: the text has 24 tokens and was cut to 16 (data.max_source_length)",
        "warning: stdin: line 3: 1 of its masks were cut off",
    ]
    assert type_command(masked, "fill-mask", stdin=b"abc\n")[0] == []


@pytest.mark.parametrize("command", ["classify", "embed", "fill-mask"])
def test_text_outside_the_vocabulary_is_reported_once(
    command: str, run: Run, masked: Run, type_command: Typed, monkeypatch: pytest.MonkeyPatch
):
    """Law: neither the tab between two texts nor [MASK] is text."""
    chosen = masked if command == "fill-mask" else run
    monkeypatch.setattr(chosen.text_model.unknown, "reported", set())  # what it has warned of
    line = "a[MASK]ßb" if command == "fill-mask" else "aß\tb" if command == "classify" else "aßb"
    err = type_command(chosen, command, stdin=f"{line}\n{line}\n".encode())[1]
    assert err == ["warning: stdin: not in the vocabulary, so the model cannot read it: 'ß'"]


def test_vectors_go_into_a_new_file(run: Run, type_command: Typed, tmp_path: Path):
    """Law: the file is complete or absent; an error leaves nothing behind."""
    file = tmp_path / "new" / "x.npy"
    assert type_command(run, "embed", "--output", str(file), stdin=b"abc\nhello\n") == ([], [])
    np.testing.assert_array_equal(np.load(file), run.embed(["abc", "hello"]))
    assert list(file.parent.iterdir()) == [file]
    (tmp_path / "new" / "damaged.gz").write_bytes(b"\x1f\x8b\x08")
    with pytest.raises(SystemExit):
        type_command(run, "embed", "--output", str(tmp_path / "y.npy"), str(tmp_path / "new" / "damaged.gz"), stdin=b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]


UTF8 = "not UTF-8 (byte 0xff); convert it, for example with iconv"


@pytest.mark.parametrize(
    ("command", "lines", "bad", "reason"),
    [
        (["classify"], b"a\tb|b|c", b"a\tb\tc", "3 texts separated by tabs: there must be one or two"),
        (["classify", "--scores"], b"a|b|c", b"\xff", UTF8),
        (["embed"], b"a|b|c", b"\xff", UTF8),
        (["embed", "--similarity"], b"a\tb|b\ta|c\td", b"a", "1 texts separated by tabs: there must be 2"),
        (["embed", "--output"], b"a|b|c", b"\xff", UTF8),
        (["fill-mask"], b"a[MASK]|b[MASK]|[MASK]c", b"\xff", UTF8),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_line_is_reported_and_stops_no_other(
    command: list[str],
    lines: bytes,
    bad: bytes,
    reason: str,
    run: Run,
    masked: Run,
    type_command: Typed,
    tmp_path: Path,
):
    """Law: the others have the answers that they have with a good line in its place; a file and a pipe agree."""
    first, second, third = lines.split(b"|")
    chosen, file = masked if command == ["fill-mask"] else run, tmp_path / "in.txt"
    answered: list[list[Any]] = []
    for middle, files in ((second, []), (bad, []), (bad, [str(file)])):
        content = b"\n".join([first, middle, third, b""])
        file.write_bytes(content)
        made = [str(tmp_path / f"{len(answered)}.npy")] if "--output" in command else []
        out, err = type_command(chosen, *command, *made, *files, stdin=b"" if files else content)
        answered.append(np.load(made[0]).tolist() if made else [numbers(line) for line in out])
        name = str(file) if files else "stdin"
        assert err == ([f"warning: {name}, line 2: {reason}; its answer is empty"] if middle == bad else [])
    whole, *both = answered
    if command == ["fill-mask"]:  # lines of five candidates each
        whole, both = [whole[:5], whole[5:10], whole[10:]], [[found[:5], math.nan, found[5:]] for found in both]
    for found in both:
        assert np.isnan(found[1]).all()
        for i in (0, 2):
            assert_close(found[i], whole[i])


def numbers(line: str) -> list[float]:
    """Returns the numbers in a line; NaN for none."""
    return [float(number) for number in re.findall(r"-?[0-9.]+(?:e-?[0-9]+)?", line)] or [math.nan]


def test_a_pair_for_a_run_of_single_texts_is_named_with_its_file(run: Run, type_command: Typed):
    train = TSV(path="nowhere", record=Classes(text=0, label=1))
    data = dataclasses.replace(run.config.data, train=train)
    single = dataclasses.replace(run, config=dataclasses.replace(run.config, data=data))
    (out, err) = type_command(single, "classify", stdin=b"a\nb\tc\n")
    assert len(out) == 2 and out[1] == ""
    assert err == [
        "warning: stdin, line 2 has two texts, but this run was trained on single texts: give one; its answer is empty"
    ]


# Tables -----------------------------------------------------------------------------------------------------------------


def trained_on(run: Run, monkeypatch: pytest.MonkeyPatch, source: DataSource | None) -> Run:
    """The run as if it had been trained on a source."""
    config = dataclasses.replace(run.config, data=dataclasses.replace(run.config.data, train=source))
    opened = types.SimpleNamespace(config=lambda: config)
    monkeypatch.setattr("flaxformer_lite.workdir.open_run", lambda folder: opened)
    return dataclasses.replace(run, config=config)


@pytest.mark.parametrize("command", ["classify", "embed"])
def test_a_table_is_answered_by_its_column_and_keeps_its_rows(
    command: str, run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Law: an answer is that to the text alone, and stands beside the row's other cells, quotes and all."""
    rows = [["7", "abc, d", "pos"], ["8", 'he"l\nlo', ""], ["9", "x", "neg"]]
    table = tmp_path / "in.csv"
    with open(table, "w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([["id", "text", "y"], *rows])
    single = trained_on(run, monkeypatch, CSV(path="x", header=True, record=Documents()))
    out, err = type_command(single, command, str(table))
    header, *answered = csv.reader([line + "\n" for line in out], delimiter=";")
    alone = type_command(single, command, stdin=b"abc, d\n\nx\n")[0]
    assert header[:3] == ["id", "text", "y"] and [row[:3] for row in answered] == rows
    for row, line in list(zip(answered, alone, strict=True))[::2]:
        assert numbers("\t".join(row[3:])) == pytest.approx(numbers(line), abs=2e-6)
    assert any("the texts are in column 1, counted from 0; --column chooses another" in line for line in err)
    typed = type_command(run, command, str(table), "--column", "text")
    assert typed[0] == out and not any("--column chooses" in line for line in typed[1])
    by_number = type_command(run, command, str(table), "--column", "2")[0]
    assert len(by_number) == 5 and by_number[0].startswith("id;text;y;"), "without a name the first row is no header"


def test_the_column_is_that_of_any_training_data(
    run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A field of JSON lines is a column of its name; sources of a mixture count if they agree; an input follows its text."""
    table = tmp_path / "in.csv"
    table.write_text("id,text,more\n1,ab,cd\n", encoding="utf-8")
    fields = JSONLines(path="x", record=Classes(label="y"))
    header, answer = type_command(trained_on(run, monkeypatch, fields), "classify", str(table))[0]
    assert header == "id,text,more,label,probability" and answer.startswith("1,ab,cd,")
    same = Mixture(sources=(fields, dataclasses.replace(fields, path="y")))
    assert type_command(trained_on(run, monkeypatch, same), "classify", str(table))[0] == [header, answer]
    other = dataclasses.replace(fields, record=Classes(text="more", label="y"))
    with pytest.raises(SystemExit):
        type_command(trained_on(run, monkeypatch, Mixture(sources=(fields, other))), "classify", str(table))
    assert "choose that of the texts by --column" in type_command.errors()[-1]
    record = Pairs(source="text", input="more", target="id")
    asked = TextColumns(record.texts[:1], header=True)
    (block,) = table_blocks(str(table), asked)
    assert block.lines == ["ab\n\ncd"]


def test_lines_of_json_are_read_as_the_training_data_was(
    run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Law: an answer is that to the text alone, whatever labels the lines have; two texts are a pair."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": "abc", "b": "x"}\n{"a": 7}\n\n{"a": "abx", "b": "y", "label": 3}\n', encoding="utf-8")
    single = trained_on(run, monkeypatch, JSONLines(path="t.jsonl", record=Classes(text="a")))
    out, err = type_command(single, "classify", str(path))
    assert err == [f"warning: {path}:2: field a holds int '7': it must be a string; its answer is empty"]
    alone = type_command(single, "classify", stdin=b"abc\n\nabx\n")[0]
    assert [out[0], *out[2:]] == alone and out[1] == ""
    pairs = trained_on(run, monkeypatch, JSONLines(path="t.jsonl", record=Classes(source="a", text="b")))
    path.write_text('{"a": "abc", "b": "x"}\n{"a": "abx", "b": "ab"}\n', encoding="utf-8")
    assert (
        type_command(pairs, "classify", str(path))[0] == type_command(pairs, "classify", stdin=b"abc\tx\nabx\tab\n")[0]
    )
    with pytest.raises(SystemExit):
        type_command(pairs, "embed", str(path))
    assert "1 of its texts must be read, but the run was trained on 2" in type_command.errors()[-1]


def test_two_columns_are_two_texts(run: Run, type_command: Typed, tmp_path: Path):
    table = tmp_path / "in.tsv"
    table.write_text("1\ta\t2\tb\n3\tc\t4\td\tmore\n5\te\t6\tf\n")
    out, err = type_command(run, "classify", str(table), "--column", "1", "--column", "3")
    alone = type_command(run, "classify", stdin=b"a\tb\ne\tf\n")[0]
    assert [out[0], out[2]] == [f"1\ta\t2\tb\t{alone[0]}", f"5\te\t6\tf\t{alone[1]}"]
    assert out[1] == "3\tc\t4\td\tmore\t\t"
    assert err == [f"warning: {table}:2: 5 column(s) between tabs, but the first rows have 4; its answer is empty"]
    similar = type_command(run, "embed", "--similarity", str(table), "--column", "1", "--column", "3")[0]
    assert similar[0].startswith("1\ta\t2\tb\t")


@pytest.mark.parametrize(
    ("name", "content", "words", "message"),
    [
        (
            "a.csv",
            "1,a b\n2,c d\n",
            ["embed"],
            "a.csv is a table by its name, and this run was not trained on its columns, 0 '1'",
        ),
        ("a.tsv.gz", "1\ta\t2\n", ["classify"], "choose that of the texts by --column"),
        (
            "a.csv",
            "1,a b\n",
            ["embed", "--column", "text"],
            "the header has no columns 'text': it is 1, a b; choose by --column",
        ),
        (
            "a.csv",
            "1,a b\n",
            ["embed", "--column", "2"],
            "has no column 2, counted from 0: choose by --column among 0 '1', 1 'a b'",
        ),
        (
            "a.csv",
            "1,a\n",
            ["embed", "--column", "0", "--column", "1"],
            "1 of its columns must be read, but 0 1 are typed",
        ),
        ("a.jsonl", "{}\n", ["classify"], "a.jsonl is JSON lines by its name, and is read line by line"),
        ("a.parquet", "", ["fill-mask"], "a.parquet is Parquet by its name, and is read line by line"),
        (None, "a\n", ["classify", "--column", "1"], "--column is for a table, but stdin is read line by line"),
    ],
)
def test_a_table_whose_text_is_not_known_is_refused(
    name: str | None, content: str, words: list[str], message: str,
    run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    chosen = trained_on(run, monkeypatch, None)
    packed = gzip.compress(content.encode()) if name and name.endswith("gz") else content.encode()
    if name:
        Path(name).write_bytes(packed)
    with pytest.raises(SystemExit) as ended:
        type_command(chosen, *words, *([name] if name else []), stdin=b"" if name else packed)
    assert ended.value.code == 2
    (error,) = type_command.errors()
    assert message in error


def test_a_table_of_lines_alone_needs_no_column(
    run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """One column is the text, two between tabs are the two texts of a line."""
    chosen = trained_on(run, monkeypatch, None)
    for name, content, width in (("a.csv", '"a, b"\nc\n', 1), ("a.tsv", "a\tb\nc\td\n", 2)):
        (tmp_path / name).write_text(content)
        out = type_command(chosen, "classify", str(tmp_path / name))[0]
        text = content.replace('"', "").encode()
        between = "," if name == "a.csv" else "\t"
        alone = type_command(chosen, "classify", stdin=text)[0]
        answers = [row[width:] for row in csv.reader(out, delimiter=between)]
        for answer, line in zip(answers, alone, strict=True):
            assert answer[0] == line.split("\t")[0] and float(answer[1]) == pytest.approx(numbers(line)[0], abs=2e-6)


def test_numbers_and_a_header_in_the_place_of_texts_are_told_of(
    run: Run, type_command: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "a.tsv").write_text("1\tone\n2\ttwo\n")
    (tmp_path / "b.tsv").write_text("id\ttext\n" + "1\ta few words of text\n" * 3)
    chosen = trained_on(run, monkeypatch, TSV(path="x", record=Classes(text=0, label=1)))
    err = type_command(chosen, "classify", str(tmp_path / "a.tsv"))[1]
    assert any("column 0 has nothing but numbers" in line and "1 'one'" in line for line in err)
    err = type_command(run, "classify", str(tmp_path / "b.tsv"), "--column", "1")[1]
    assert any("b.tsv:1: this row looks like a header" in line and "--column" in line for line in err)


def test_masks_in_a_column_are_filled_as_those_of_lines(masked: Run, type_command: Typed, tmp_path: Path):
    (tmp_path / "a.csv").write_text("id,text\n1,ab[MASK]c\n2,[MASK]d\n")
    lines = type_command(masked, "fill-mask", stdin=b"ab[MASK]c\n[MASK]d\n")[0]
    assert type_command(masked, "fill-mask", str(tmp_path / "a.csv"), "--column", "text")[0] == lines


# Classes of an encoder and a decoder ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bart_classifies_as_the_library_does(tmp_path: Path, type_command: Typed, monkeypatch: pytest.MonkeyPatch):
    """Oracle: softmax of the library's own scores; the fixture's ids as words of a tokenizer, together and alone."""
    theirs = FIXTURES / "hf/bart/classification"
    shutil.copytree(theirs, tmp_path / "theirs")
    with np.load(theirs / "io.npz") as file:
        ids, mask, logits = (file[name] for name in ("in/input_ids", "in/attention_mask", "out/logits"))
    words = ["<s>", "<pad>", "</s>", *(f"w{i}" for i in range(3, 41))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<s>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 2)]
    )
    tokenizer.save(str(tmp_path / "theirs" / "tokenizer.json"))
    names = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps(names))
    monkeypatch.setattr(
        sys, "argv", ["flaxformer-lite", "import", "hf", str(tmp_path / "theirs"), str(tmp_path / "run")]
    )
    main()
    run = load(tmp_path / "run")
    texts = [" ".join(words[i] for i in row[shown == 1][:-1]) for row, shown in zip(ids, mask, strict=True)]
    powers = np.exp(logits.astype(np.float64))
    out, _ = type_command(run, "classify", "--scores", stdin="\n".join(texts).encode())
    for line, row in zip(out, powers / powers.sum(1, keepdims=True), strict=True):
        assert json.loads(line) == pytest.approx({f"LABEL_{i}": p for i, p in enumerate(row)}, abs=1e-5)
    (alone,) = run.classify(texts[1:2])
    assert alone.scores == pytest.approx(json.loads(out[1]), abs=1e-5)
    (pair,) = run.classify([("w3 w4", "w5 w6 w7")])  # two ends, of which the last counts
    scores = np.exp(run.forward(input_ids=[[3, 4, 2, 5, 6, 7, 2]]).logits[0].astype(np.float64))
    assert list(pair.scores.values()) == pytest.approx(list(scores / scores.sum()), rel=1e-4)
    endless = dataclasses.replace(run.config, decode=dataclasses.replace(run.config.decode, eos_ids=(40,)))
    with pytest.raises(
        ValueError, match=r"ends no text with 40, the first of decode.eos_ids, .*: use Run.forward from Python"
    ):
        dataclasses.replace(run, config=endless).classify(["w3"])


def test_predicted_ids_without_a_piece_are_empty():
    """Hand-worked: all 31 ids of the model are candidates, and two have pieces; 5 lies between them."""
    run = make_run(tokenizer=gapped(), objective=MaskedLM(mask_token=30))
    ((found,),) = run.fill_mask(["b[MASK]c"], 31)
    pieces = {prediction.id: prediction.token for prediction in found}
    assert len(pieces) == 31 and {i: piece for i, piece in pieces.items() if piece} == {0: "b", 7: "c"}
