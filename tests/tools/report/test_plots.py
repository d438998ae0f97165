"""The charts of a run: which layer, head and tokens a map shows, and the names of runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.core.search.generation import encode_prompt
from flaxformer_lite.core.text.characters import ByteTokenizer, Characters
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.run import AttentionWeights, Run, load_ensemble, write_run
from flaxformer_lite.run.attention import attention_axes
from flaxformer_lite.run.description import run_names
from flaxformer_lite.run.searches import Kept
from flaxformer_lite.tools.report.plots import attention_chart, head_weights, plot_attention, plot_curves, plot_lengths
from flaxformer_lite.workdir import RunFolder
from tests.support import needs
from tests.support.experiments import tiny_config
from tests.support.hf_folders import random_params
from tests.support.served import runs

WEIGHTS = AttentionWeights(
    source_pieces=["e", "i", "n"],
    target_pieces=["<s>", "a"],
    encoder=np.zeros((2, 2, 3, 3), np.float32),
    decoder=np.zeros((2, 2, 2, 2), np.float32),
    cross=np.arange(24, dtype=np.float32).reshape(2, 2, 2, 3) / 24,
)


def test_rows_of_cross_attention_are_the_tokens_predicted_there():
    """The decoder reads <s> and predicts "a", reads "a" and predicts the end."""
    assert attention_axes(WEIGHTS, "cross") == (["a", "(end)"], ["e", "i", "n"])
    assert attention_axes(WEIGHTS, "decoder") == (["<s>", "a"], ["<s>", "a"])
    assert attention_axes(WEIGHTS, "encoder") == (["e", "i", "n"], ["e", "i", "n"])


def test_layers_and_heads_count_from_one():
    np.testing.assert_array_equal(head_weights(WEIGHTS.cross, 2, 1), WEIGHTS.cross[1, 0])
    np.testing.assert_array_equal(head_weights(WEIGHTS.cross, 1, None), WEIGHTS.cross[0].mean(0))
    for layer, head, name in ((0, 1, "layer is 0"), (3, 1, "layer is 3"), (1, 0, "head is 0"), (1, 3, "head is 3")):
        with pytest.raises(ValueError, match=f"{name}: this attention has 2, counted from 1"):
            head_weights(WEIGHTS.cross, layer, head)


@needs.altair
def test_the_last_layer_and_the_mean_are_drawn_by_default():
    chart = attention_chart(WEIGHTS, "cross", None, None).to_dict()
    assert chart["title"] == "cross attention, layer 2, mean of heads"
    assert chart["data"]["values"][0]["weight"] == pytest.approx(WEIGHTS.cross[1, :, 0, 0].mean(), abs=1e-4)


class Translating(Run):
    """A run that translates everything to "bb", without a model."""

    config, params, model, folder, kept = tiny_config(), {}, None, RunFolder("nowhere"), Kept()
    tokenizers = Tokenizers(*[Characters().train(["ab"], 149)] * 2)

    def __init__(self) -> None:
        """Has no folder."""

    def translate(self, texts: list[str]) -> list[str]:
        return ["bb" for _ in texts]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """What a model is asked whose weights of attention are always the same."""
    asked: list[list[Any]] = []
    weights = lambda run, inputs: asked.append(list(inputs)) or WEIGHTS  # noqa: E731
    monkeypatch.setattr("flaxformer_lite.run.run.layer_weights", weights)
    return asked


def test_attention_is_by_default_that_of_the_own_translation(asked: list[list[Any]]):
    """Law: without a target it is the translation's."""
    run = Translating()
    assert run.attention("a") is run.attention("a", "bb") is WEIGHTS
    assert asked[0] == asked[1] and len(asked[0][1]) == 3
    run.attention("a", "")
    assert len(asked[2][1]) == 1  # an empty target is one


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return runs(tmp_path_factory.mktemp("families"))


def test_each_family_reads_texts_of_its_own(families: dict[str, Run], asked: list[list[Any]], monkeypatch):
    """Law: an encoder alone reads a text, in which a mask is a token; a decoder alone reads a prompt with its continuation."""
    families["texts"].attention("ab[MASK]")
    letters = families["texts"].required_tokenizers.source
    assert asked.pop() == [letters.with_special_tokens([*letters.encode("ab"), 30]).tokens, [], 0]
    with pytest.raises(ValueError, match=r"no decoder .*: leave out the target"):
        families["texts"].attention("ab", "c")
    monkeypatch.setattr(Run, "generate", lambda run, prompts, max_new_tokens: ["ef" for _ in prompts])
    families["documents"].attention("abcd")
    families["documents"].attention("abc", "def")
    ids = encode_prompt(families["documents"].required_tokenizers.target, "abcdef", 2)
    assert asked == [[[], ids, 0]] * 2
    monkeypatch.setattr(CausalLM, "prompt_attention", "full")
    families["documents"].attention("abc", "def")
    assert asked[2] == [[], ids, len(ids) - 3]


def test_a_token_across_the_end_of_a_prompt_is_not_of_the_prompt(families, asked: list[list[Any]], monkeypatch):
    """By hand: a tokenizer with one token for "cd" reads "abc" + "def" as a, b, cd, e, f."""
    read = ByteTokenizer.encode
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, text: read(self, text.replace("cd", "g")))
    monkeypatch.setattr(CausalLM, "prompt_attention", "full")
    families["documents"].attention("abc", "def")
    ids = encode_prompt(families["documents"].required_tokenizers.target, "abgef", 2)
    assert asked == [[[], ids, len(ids) - 3]]


@pytest.mark.parametrize(("name", "kind"), [("texts", "encoder"), ("documents", "decoder")])
def test_a_stack_alone_has_its_own_attention(families: dict[str, Run], name: str, kind: str):
    """Law: the rows of its softmax sum to 1, in a decoder without later tokens; the other attentions have no layers."""
    weights = families[name].attention("abc", None if kind == "encoder" else "de")
    assert weights.kinds == [kind]
    array, (queries, keys) = getattr(weights, kind), attention_axes(weights, kind)
    assert array.shape == (1, 2, len(queries), len(keys)) and queries == keys and {"a", "b", "c"} <= set(keys)
    np.testing.assert_allclose(array.sum(-1), 1, rtol=1e-5)
    assert (np.triu(array, 1) > 0).any() == (kind == "encoder")
    with pytest.raises(ValueError, match=f"kind is 'cross', but this model has {kind} attention only: leave it out"):
        attention_chart(weights, "cross", None, None)


def test_a_metric_that_no_row_has_is_refused_with_those_there(tmp_path: Path):
    run = Run(RunFolder(tmp_path), tiny_config(), {}, None, 0)
    run.folder.append({"step": 1, "split": "train", "loss": 2.0, "gradient_norm": 1.0})
    message = "'gradient_nrom': it has loss, gradient_norm; perhaps you meant gradient_norm"
    with pytest.raises(ValueError, match=message):
        plot_curves(run, metric="gradient_nrom")


def test_a_folder_stands_for_its_run(tmp_path: Path):
    """Law: a chart of a named folder is that of the run; a folder that is not there is said."""
    config = tiny_config()
    config = replace(config, data=replace(config.data, tokenizer=None))
    write_run(RunFolder(tmp_path / "a"), config, 0, random_params(config.model), "made")
    with pytest.raises(ValueError, match="'loss': it has no rows"):
        plot_curves(str(tmp_path / "a"), tmp_path / "a")
    for draw in (plot_curves, plot_lengths, lambda run: plot_attention(run, "a")):
        with pytest.raises(ValueError, match="the run folder runs/nowhere does not exist"):
            draw("runs/nowhere")
    with pytest.raises(ValueError, match="paths is one string, 'runs/a': pass a list of strings"):
        load_ensemble("runs/a")


def test_runs_of_one_name_are_told_apart(tmp_path: Path):
    folders = [RunFolder(tmp_path / path) for path in ("a/run", "b/run", "c/other", "c/other")]
    assert run_names(folders) == [
        *(str(tmp_path / "a/run"), str(tmp_path / "b/run")),
        *(f"{tmp_path / 'c/other'} (3)", f"{tmp_path / 'c/other'} (4)"),
    ]
    assert run_names(folders[:1]) == ["run"]
