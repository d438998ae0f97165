"""Laws of a loaded run: it scores and translates as the trainer did, it has the requested weights, its limits are the config's."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.parallel.mesh import make_mesh
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.run import Run
from flaxformer_lite.run.searches import Kept
from flaxformer_lite.training.loop import train
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_saved_params
from tests.support.experiments import rows, tiniest_config, use_one_device, with_train
from tests.support.limits import assert_close
from tests.support.served import as_run, runs
from tests.support.tokenizers import NAMES, bytes_joined

CONFIG = with_train(tiniest_config(), steps=4, eval_every=4, checkpoint_every=2, log_every=4)
LONG = ("1" * 60, "2" * 60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, evaluated at the last."""
    path = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        train(CONFIG, path)
    return path


pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def untrained() -> Run:
    """A run that was never trained; its model has as many positions as the config's longest texts."""
    config = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, positions=Learned(max_positions=40)))
    generator = np.random.default_rng(1)
    params = jax.tree.map(lambda x: np.float32(generator.normal(size=x.shape)), abstract_saved_params(config))
    tokenizer = Characters().train(["0123456789"], 149)
    return Run(RunFolder("nowhere"), config, params, Tokenizers(tokenizer, tokenizer), 0)


@pytest.mark.slow
def test_it_scores_and_translates_as_the_trainer_did(folder: Path):
    """Law: the metrics are those of the evaluation while training, the translations those in its folder."""
    pairs = list(CONFIG.data.eval.open())
    run = flaxformer_lite.load(folder)
    row, metrics = rows(folder)[-1], run.metrics(pairs)
    assert metrics == {name: pytest.approx(row[name], rel=1e-5) for name in ("loss", "accuracy", "perplexity")}
    by_part = run.metrics(pairs, parts={"first": slice(0, 7), "others": slice(7, None)})
    expected = metrics | {f"first/{name}": value for name, value in run.metrics(pairs[:7]).items()}
    assert {name: by_part.pop(name) for name in expected} == pytest.approx(expected, rel=1e-5)
    assert by_part and all(name.startswith("others/") for name in by_part)
    assert by_part["others/loss"] != pytest.approx(expected["first/loss"], rel=1e-5)
    kept = (folder / "hypotheses" / "eval-step-00000004.txt").read_text().split("\n")[:-1]
    assert run.translate([pair.source for pair in pairs]) == kept


@pytest.mark.slow
def test_translations_have_terms_and_beginnings_or_a_warning_says_why_not(untrained: Run):
    """Law: the texts have them, by a greedy search too; a line that has no room for them is translated as it is without."""
    tokenizer, warnings = Characters().train(["0123456789 "], 149), list[str]()
    run = dataclasses.replace(untrained, tokenizers=Tokenizers(tokenizer, tokenizer), kept=Kept())
    terms, texts = {"1": "93", "2": "7" * 39}, ["1 5", "3", "1 2"]
    found = run.translate(texts, terms=terms, prefix=["5", "88", ""], warn=warnings.append)
    assert found[0].startswith("5") and " 93" in found[0] and found[1].startswith("88")
    assert found[2] == run.translate(texts)[2] and len(warnings) == 1
    assert warnings[0].startswith("line 3 needs 44 tokens for the terms of its answer, which has ")
    (found,) = run.translate(["1 {x} 5"], terms={"1": "93"}, placeholders=True, warn=warnings.append)
    assert "93" in found and "cannot be written: '{x}'" in warnings[-1] and "translated without that" in warnings[-1]
    count = len(warnings)
    assert run.translate(["1", "3", "5 5"], prefix="7" * 60, warn=warnings.append) == run.translate(["1", "3", "5 5"])
    assert "line 1 needs 61 tokens for the beginning of its answer, which has " in warnings[-1]
    assert len(warnings) == count + 1 and "; it and all lines like it are translated without them" in warnings[-1]
    run.translate(["1", "3"], prefix="7" * 60, warn=warnings.append, first_line=4)
    assert len(warnings) == count + 1, "a later chunk of the same input warned again"
    run.translate(["1"], prefix="7" * 60, warn=warnings.append)
    assert len(warnings) == count + 2, "another call does not warn"
    with pytest.raises(ValueError, match="there are 1 prefixes for 3 texts"):
        run.translate(texts, prefix=["5"])


def test_a_run_is_described_in_four_lines(folder: Path, untrained: Run):
    """Oracle: the lines, with the score of metrics.jsonl."""
    run = flaxformer_lite.load(folder)
    row = rows(folder)[-1]
    count = sum(leaf.size for leaf in jax.tree.leaves(run.params))
    assert repr(run).splitlines() == [
        f"Run {folder}",
        f"  model: encoder of 1 layer and decoder of 1 layer, d_model 12, num_heads 3, {count:,} parameters",
        "  trained on: dates, objective seq2seq",
        "  weights: step 4 of 4",
        f"  best score: loss {row['loss']:.4g} at step 4",
    ]
    assert repr(untrained).splitlines()[-1] == "  best score: none"


def test_weights_are_the_requested_ones(folder: Path):
    """Oracle: the mean of two checkpoints in NumPy; all others differ."""
    of_ema = {"weights": "ema"}
    asked: list[Any] = [{"step": 2}, {"step": 4}, of_ema, of_ema | {"step": 2}, {"weights": "average:2"}]
    params = [jax.tree.leaves(flaxformer_lite.load(folder, **words).params) for words in asked]
    first, last, ema, first_ema, mean = ([np.asarray(leaf) for leaf in leaves] for leaves in params)
    for m, a, b in zip(mean, first, last, strict=True):
        assert_close(m, (a + b) / 2, 1e-6)
    assert len({b"".join(leaf.tobytes() for leaf in leaves) for leaves in (first, last, ema, first_ema, mean)}) == 5
    for weights in ("last", "best"):
        leaves = jax.tree.leaves(flaxformer_lite.load(folder, weights=weights).params)
        assert all((np.asarray(a) == b).all() for a, b in zip(leaves, last, strict=True))


def test_weights_in_bfloat16_score_nearly_the_same(folder: Path):
    """Oracle: the loss with float32 weights; it moves, and by less than 0.5 %."""
    row = rows(folder)[-1]
    loss = flaxformer_lite.load(folder, weights_dtype="bfloat16").metrics(list(CONFIG.data.eval.open()))["loss"]
    assert 1e-6 < abs(loss / row["loss"] - 1) < 5e-3


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"weights_dtype": "int8"}, "weights_dtype is 'int8': it must be float32 or bfloat16"),
        ({"weights": "newest"}, "weights is 'newest': choose last, best, ema or average:N"),
        ({"weights": "average:2", "step": 4}, "weights 'average:2' choose their own step: leave out --step 4"),
        ({"weights": "best", "step": 4}, "weights 'best' choose their own step: leave out --step 4"),
        ({"step": 3}, "step 3 is not in .*: the steps there are 2, 4"),
    ],
)
def test_missing_weights_are_refused(folder: Path, asked: dict, words: str):
    with pytest.raises(ValueError, match=words):
        flaxformer_lite.load(folder, **asked)


def test_one_string_is_refused(untrained: Run):
    with pytest.raises(ValueError, match=r"texts is one string, '20 nov 2026': pass a list"):
        untrained.translate("20 nov 2026")


def test_metrics_ask_for_rows_that_the_devices_divide(untrained: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flaxformer_lite.run.run.make_mesh", lambda *_: make_mesh(devices=jax.devices()[:3]))
    with pytest.raises(ValueError, match=r"data\.rows_multiple is 8, which 3 devices do not divide"):
        untrained.metrics([Pair("1", "2")])


@pytest.mark.slow
def test_a_run_trained_by_a_kernel_answers_where_there_is_none(folder: Path):
    """Law: the attention kernel of the training does not change the answers on a CPU."""
    plain = flaxformer_lite.load(folder)
    attention = dataclasses.replace(plain.config.model.attention, implementation="splash")
    config = dataclasses.replace(plain.config, model=dataclasses.replace(plain.config.model, attention=attention))
    by_kernel = dataclasses.replace(plain, config=config, kept=Kept())
    pairs = list(CONFIG.data.eval.open())[:2]
    assert by_kernel.translate([pairs[0].source]) == plain.translate([pairs[0].source])
    assert by_kernel.metrics(pairs) == plain.metrics(pairs)
    assert by_kernel.attention("20-11-2026", "2026-11").encoder is not None


def test_settings_that_differ_in_numbers_share_compiled_programs(tmp_path: Path):
    run = runs(tmp_path)["documents"]
    first, *others = (
        run.generator.decoder(**numbers) for numbers in ({"top_p": 0.5}, {"temperature": 2.0}, {"min_p": 1.0})
    )
    assert all(other.search is first.search and other.config != first.config for other in others)
    greedy = [run.generator.decoder(**numbers) for numbers in ({"repetition_penalty": 1.3}, {"temperature": 0.0}, {})]
    assert len({decoder.search for decoder in greedy}) == 1 and len(run.kept.decoders) == 2


def test_attention_has_a_row_of_weights_for_every_piece(untrained: Run):
    """Law: softmax rows sum to 1; the decoder sees no later piece."""
    weights = untrained.attention("20-11-2026", "2026-11")
    assert weights.source_pieces == [*"20", "<unk>", *"11", "<unk>", *"2026", "</s>"]
    assert weights.target_pieces == ["<s>", *"2026", "<unk>", *"11"]
    assert (weights.encoder.shape, weights.decoder.shape) == ((1, 3, 11, 11), (1, 3, 8, 8))
    assert weights.cross.shape == (1, 3, 8, 11)
    for each in (weights.encoder, weights.decoder, weights.cross):
        np.testing.assert_allclose(each.sum(-1), 1, rtol=1e-5)
    assert not np.triu(weights.decoder, 1).any()


def test_attention_ends_where_the_positions_do(untrained: Run, capsys: pytest.CaptureFixture):
    """Law: a text that is too long is truncated, with a warning."""
    weights = untrained.attention(*LONG)
    assert weights.cross.shape == (1, 3, 11, 40)
    assert (len(weights.source_pieces), len(weights.target_pieces)) == (40, 11)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "warning: line 1: the source has 60 tokens and was cut to 39 (data.max_source_length)",
        "warning: line 1: the target has 60 tokens and was cut to 10 (data.max_target_length)",
    ]
    np.testing.assert_array_equal(weights.cross, untrained.attention("1" * 39, "2" * 10).cross)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_source_leaves_room_for_all_special_ids(capsys: pytest.CaptureFixture):
    """Law: a tokenizer that adds two ids to a source leaves 38 of the model's 40 positions; a longer text is as its beginning."""
    tokenizer = JsonTokenizer.of(bytes_joined().to_str(), NAMES)
    model = dataclasses.replace(CONFIG.model, positions=Learned(max_positions=40), vocab_size=300)
    run = as_run(dataclasses.replace(CONFIG, model=model), tokenizer, Path("nowhere"))
    long, whole = run.hypotheses(["1" * 60, "1" * 38])
    cut = "warning: line 1: the source has 60 tokens and was cut to 38 (data.max_source_length)\n"
    assert capsys.readouterr().err == cut
    assert long == whole
    assert len(run.attention("1" * 60, "2").source_pieces) == 40


@pytest.mark.slow
@pytest.mark.parametrize(("number", "settings"), [(np.nan, {}), (np.inf, {"beam_size": 3})])
def test_weights_that_are_not_finite_give_empty_answers_with_one_warning(
    number: float, settings: dict[str, int], tmp_path: Path
):
    """Law: one empty answer a text, of the lowest score, and one line that says why; an empty text has its empty answer."""
    found, said = runs(tmp_path), []
    spoil = lambda run: dataclasses.replace(run, params=jax.tree.map(lambda x: x * np.float32(number), run.params))  # noqa: E731
    why = "no answer has a finite score, so it is empty: the weights have infinite or undefined numbers"
    answers = spoil(found["pairs"]).hypotheses(["ab", "", "c"], warn=said.append, first_line=5, **settings)
    assert answers == [[("", -np.inf)], [("", 0.0)], [("", -np.inf)]]
    assert spoil(found["documents"]).completions(["ab"], warn=said.append, **settings) == [[("", -np.inf)]]
    assert [line.partition(";")[0] for line in said] == [f"line 5 and 1 more: {why}", f"prompt 0: {why}"]


def test_load_names_a_platform_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """JAX's own error has no message."""
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    monkeypatch.setattr("flaxformer_lite.base.hardware.has_nvidia_device", lambda: False)
    with pytest.raises(ValueError, match=r"^JAX_PLATFORMS is cuda, and this machine shows no NVIDIA GPU"):
        flaxformer_lite.load(tmp_path)
