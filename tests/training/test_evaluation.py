"""Oracles: counts of batches merged by hand; one process, for several. How the loop evaluates: test_loop.py."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from flax.typing import VariableDict
from sacrebleu.metrics.bleu import BLEU

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model import Learned, ModelConfig, Transformer
from flaxformer_lite.core.model.inputs import example_inputs
from flaxformer_lite.core.objectives import LossTerm, PerRowMetric, Seq2Seq
from flaxformer_lite.core.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.core.parallel.sharding import gather_to_each, parameter_sharding
from flaxformer_lite.core.placement.placement import ONE_DEVICE, Placement
from flaxformer_lite.core.runners import MeshRunner as Runner
from flaxformer_lite.core.runners import abstract_state, make_runner
from flaxformer_lite.core.search import DecodeConfig, Sampling
from flaxformer_lite.core.search.answers import Hypothesis
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.request import Request, requests_in_order
from flaxformer_lite.core.text import Bytes, Tokenizer, Tokenizers
from flaxformer_lite.core.text.special_ids import EOS
from flaxformer_lite.files.data import ParallelText
from flaxformer_lite.files.data.reading import EvalData
from flaxformer_lite.metrics import translations as metrics
from flaxformer_lite.metrics.translations import MetricConfig
from flaxformer_lite.tasks.jax_model import JaxModel
from flaxformer_lite.tasks.label.answers import Label
from flaxformer_lite.training import evaluation, train_task
from flaxformer_lite.training.evaluation import Evaluator, check_sample_prompts, merge_counts, placed_groups, report
from flaxformer_lite.training.multihost.agreement import Processes
from flaxformer_lite.workdir import RunFolder
from tests.support.experiments import tiny_config, with_train


def test_sums_and_counts_are_added_in_float64():
    parts = [LossTerm(np.float32(2**24), np.float32(1)), LossTerm(np.float32(1), np.float32(2))]
    merged = merge_counts(parts)
    assert (merged.sum, merged.count) == (2**24 + 1, 3)


def test_rows_of_no_weight_are_left_out():
    parts = [PerRowMetric(np.array([1.0, 9.0]), np.array([1.0, 0.0])), PerRowMetric(np.array([2.0]), np.array([0.5]))]
    merged = merge_counts(parts)
    assert merged.values.tolist() == [1.0, 2.0] and merged.weights.tolist() == [1.0, 0.5]


def test_sources_together_are_the_mean_over_all_their_tokens():
    """Oracle: by hand; losses 6/2 and 3/4 of two sources, whose batches are one list together."""
    terms = {name: [LossTerm(np.float32(6), np.float32(2))] for name in ("loss", "accuracy")}
    others = {name: [LossTerm(np.float32(3), np.float32(4))] for name in ("loss", "accuracy")}
    found = [report(Seq2Seq(), *counted)["loss"] for counted in ((terms,), (others,), (terms, others))]
    assert found == [3.0, 0.75, 1.5]


def evaluator_of(config: Config, data: EvalData, folder: Path, **tokenizers: Any) -> Evaluator:
    """An evaluator on all devices, for a training on a mesh that divides no parameters."""
    source = Mock(Tokenizer, as_source=list, encode_batch=lambda texts: [[5] for _ in texts])
    texts = Mock(Tokenizers, **({"source": source, "target": Mock(Tokenizer)} | tokenizers))
    return Evaluator(config, data, texts, Mock(Runner, mesh=make_mesh()), RunFolder(folder), Processes())


def test_prompts_of_a_language_model_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Oracle: the file by hand; a line break would end a sample for its readers."""
    config = with_train(load_config("char_lm"), sample_prompts=("def ", "for\nx"))
    monkeypatch.setattr(Evaluator, "_answers", lambda *_: ["f():\n  pass", " in"])
    evaluator = evaluator_of(config, Mock(EvalData), tmp_path, target=Bytes().train([], 260))
    assert evaluator.decoder is not None and evaluator.decoder.placement.groups == 8
    evaluator._continue(evaluator.decoder, {}, "eval-step-00000007", lambda *_: None)
    assert (tmp_path / "samples" / "eval-step-00000007.txt").read_text() == (
        "source:     def \nreference:  \nhypothesis: f():⏎  pass\n\nsource:     for⏎x\nreference:  \nhypothesis:  in\n"
    )


@pytest.mark.parametrize(
    ("ending", "held_out", "tokenizer"), [("zh", False, "zh"), ("th", False, "char"), ("th", True, "char")]
)
def test_bleu_in_training_is_that_of_the_target_language(
    ending: str, held_out: bool, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Oracle: sacreBLEU, for the whole and for a part of a mixture."""
    hypotheses, targets = ["今天天气很好。", "他正在看GPU的书。"], ["今天的天气很好。", "他正在读一本GPT的书。"]
    config = with_train(tiny_config(), text_metrics=("bleu",), best_metric="bleu")
    source = ParallelText(source="a.en", target=f"b.{ending}")
    splits: dict[str, Any] = {"train": source, "eval": None, "held_out": 0.1} if held_out else {"eval": source}
    config = replace(config, data=replace(config.data, **splits))
    pairs = [Pair("x", target) for target in targets]
    data = Mock(EvalData, pairs=pairs, parts={"b": slice(1, 2)})
    evaluator = evaluator_of(config, data, tmp_path)
    monkeypatch.setattr(Evaluator, "_answers", lambda *_: hypotheses)
    assert evaluator.scoring is not None
    found = evaluator._answer(evaluator.scoring, {}, "eval-step-00000007", lambda *_: None)
    metric = BLEU(tokenize=tokenizer)
    assert found == {
        "bleu": pytest.approx(metric.corpus_score(hypotheses, [targets]).score),
        "b/bleu": pytest.approx(metric.corpus_score(hypotheses[1:], [targets[1:]]).score),
    }


def test_a_tokenizer_that_is_not_installed_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(name: str) -> None:
        raise ValueError(name)

    monkeypatch.setattr(metrics, "check_installed", refuse)
    config = with_train(tiny_config(), text_metrics=("bleu",), best_metric="bleu")
    config = replace(config, metrics=MetricConfig(bleu_tokenizer="ja-mecab"))
    data = Mock(EvalData, pairs=[Pair("x", "y")])
    with pytest.raises(ValueError, match="ja-mecab"):
        evaluator_of(config, data, tmp_path)


CHAR_LM = load_config("char_lm")


def test_a_prompt_that_is_too_long_is_found_before_training():
    model = replace(CHAR_LM.model, positions=Learned(max_positions=4))
    decoder, tokenizer = Decoder(Transformer(model), CHAR_LM.decode), Bytes().train([], 260)
    check_sample_prompts(decoder, tokenizer, ["abc"])
    with pytest.raises(
        ValueError, match=r"^train\.sample_prompts: prompt 1 has \d tokens, but model\.positions\.max_positions is 4"
    ):
        check_sample_prompts(decoder, tokenizer, ["abc", "abcdef"])


@pytest.mark.parametrize("config", [tiny_config(), replace(CHAR_LM, data=replace(CHAR_LM.data, eval=None))])
def test_prompts_are_for_evaluations_of_a_language_model(config: Config):
    with pytest.raises(
        ValueError, match=r"train\.sample_prompts is \('a',\), but it is for evaluations of a language model"
    ):
        with_train(config, sample_prompts=("a",))


# Several devices and several processes ---------------------------------------------------------------------------------

SMALL = ModelConfig(vocab_size=61, d_model=32, num_heads=4, d_ff=64, num_encoder_layers=1, num_decoder_layers=1)
"""61 ids: no mesh divides them."""
SAMPLED = DecodeConfig(max_new_tokens=9, max_length_ratio=0, batch_tokens=64, sampling=Sampling(temperature=1.5))


def answers_of(count: int, placement: Placement, variables: VariableDict) -> list[list[str]]:
    """The answers that each of so many processes has by itself, one after the other; "" for those of others."""
    decoder = Decoder(Transformer(SMALL, placement.tensor), SAMPLED, placement=placement)
    random = np.random.default_rng(0)
    sources = [[*random.integers(4, 61, n).tolist(), EOS] for n in random.integers(1, 14, 37)]
    requests = requests_in_order([*sources[:5], [], *sources[5:]], seed=7)
    evaluator, processes = object.__new__(Evaluator), Processes()
    evaluator.processes, processes.count, processes.merge = processes, count, dict
    answers, told = [], []
    for processes.index in range(count):
        told.append(Mock())
        answers.append(evaluator._answers(decoder, variables, requests, lambda *both: f"{both}", told[-1]))
    assert all(progress.mock_calls == told[0].mock_calls for progress in told)
    told[0].assert_called_with("decoding", 37, 37)
    return answers


def test_where_nothing_is_asked_nothing_is_answered(monkeypatch: pytest.MonkeyPatch):
    """By hand: a decoder alone refuses an empty prompt, which stands for a conversation without a question."""

    def generate(decoder: Decoder, weights: Any, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        decoder.check(requests)
        return [[Hypothesis([7], 0.0)] for _ in requests]

    monkeypatch.setattr(Decoder, "lay_out", lambda *_: None)
    monkeypatch.setattr(Decoder, "generate", generate)
    decoder = Decoder(Transformer(replace(SMALL, num_encoder_layers=0)), SAMPLED)
    evaluator = object.__new__(Evaluator)
    evaluator.processes = Processes()
    asked = [Request([5]), Request(()), Request([6])]
    assert evaluator._answers(decoder, {}, asked, lambda i, tokens: f"{i}", lambda *_: None) == ["0", "", "2"]


def planned(decoder: Decoder, weights: Any, requests: Sequence[Request]) -> list[list[Hypothesis]]:
    """Stands for `Decoder.generate`: the answer to a request are shape and members of its batch."""
    answers: dict[int, list[Hypothesis]] = {}
    batches = decoder.batches([len(one.source) for one in requests])
    assert len(batches) <= decoder.placement.groups and len({(batch.rows, batch.length) for batch in batches}) <= 1
    for members, *shape in batches:
        tokens = [*shape, *(requests[i].number(i) for i in members)]
        answers |= {i: [Hypothesis(tokens, 0.0)] for i in members}
    return [answers[i] for i in range(len(requests))]


def grouped(groups: int) -> Placement:
    return Placement(make_mesh(MeshConfig(), jax.devices()[:groups])) if groups > 1 else ONE_DEVICE


@pytest.mark.parametrize(("count", "groups"), [(2, 1), (3, 2), (64, 1)])
def test_a_batch_is_the_same_with_any_number_of_processes(count: int, groups: int, monkeypatch: pytest.MonkeyPatch):
    """Law: as one process plans them; each source is answered once, one without a token by none; all report equally often."""
    monkeypatch.setattr(Decoder, "lay_out", lambda *_: None)
    monkeypatch.setattr(Decoder, "generate", planned)
    (expected,) = answers_of(1, grouped(1), {})
    each = answers_of(count, grouped(groups), {})
    assert ["".join(texts) for texts in zip(*each, strict=True)] == expected and expected[5] == ""
    assert sum(sum(map(bool, texts)) for texts in each) == 37
    assert (min(sum(map(bool, texts)) for texts in each) == 0) == (count == 64)


class Echo(Label):
    """A task that answers with the source, and counts right answers."""

    def texts(self, model: Any, pairs: Sequence[Pair], **report: Any) -> list[str]:
        return [pair.source for pair in pairs]

    def figures(self, pairs: Sequence[Pair], texts: Sequence[str]) -> dict[str, float]:
        return {"right": sum(pair.target == text for pair, text in zip(pairs, texts, strict=True)) / len(pairs)}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_processes_share_the_answers_of_a_task(count: int):
    """Oracle: by hand; 600 pairs, of which the first 450 are right, in two parts. Each pair is answered by one process."""
    pairs = [Pair(str(i), str(i) if i < 450 else "") for i in range(600)]
    data = Mock(EvalData, pairs=pairs, parts={"a": slice(0, 400), "b": slice(400, 600)})
    evaluator, processes, shares = object.__new__(Evaluator), Processes(), list[dict[int, str]]()
    evaluator.data, evaluator.processes, processes.count = data, processes, count

    def merge(texts: Any) -> dict[int, str]:
        shares.append(dict(texts))
        return {i: pair.source for i, pair in enumerate(pairs)}

    processes.merge = merge  # type: ignore[method-assign]
    told = [Mock() for _ in range(count)]
    for processes.index in range(count):
        found = evaluator._score(Echo(), object.__new__(JaxModel), told[processes.index])
        assert found == {"right": 0.75, "a/right": 1.0, "b/right": 0.25}
    assert sorted(i for share in shares for i in share) == list(range(600))
    assert all(one.mock_calls == told[0].mock_calls for one in told)
    told[0].assert_called_with("answering", 600, 600)


@pytest.mark.slow
def test_processes_have_together_the_answers_of_one():
    """Law: bit for bit, drawn ones too, and with several devices each, from parameters that the training divides."""
    params = jax.jit(lambda: Transformer(SMALL).init(jax.random.key(0), example_inputs(SMALL))["params"])()
    (expected,) = answers_of(1, ONE_DEVICE, {"params": params})
    assert len(set(expected)) > 30
    training = jax.device_put(params, parameter_sharding(params, make_mesh(MeshConfig(data=1, fsdp=8))))
    for count, placement in ((3, grouped(2)), (2, Placement(make_mesh(MeshConfig(data=2, tensor=4))))):
        each = answers_of(count, placement, {"params": gather_to_each(training, placement.mesh)})
        assert ["".join(texts) for texts in zip(*each, strict=True)] == expected


MIB = 2**20


def large(**train: Any) -> Config:
    """A model of 14.1 MiB, 7.1 on each of 2 devices, 3.6 on each of 4; a search needs 1.9, the state 7.3 on each of 8."""
    model = replace(SMALL, d_model=256, d_ff=1024, num_encoder_layers=2, num_decoder_layers=2)
    config = with_train(tiny_config(model=model), mesh=MeshConfig(data=1, fsdp=8), text_metrics=(), **train)
    return replace(config, decode=replace(config.decode, batch_tokens=64))


@pytest.mark.parametrize(("mebibytes", "tensor"), [(None, 1), (26, 1), (24, 2), (15, 4)])
def test_a_model_that_training_divides_is_divided_as_the_memory_needs(
    mebibytes: int | None, tensor: int, monkeypatch: pytest.MonkeyPatch
):
    """Oracle: by hand, 7.3 + (14.1 + 1.9) / 0.9 are 25.1 MiB, and 7.3 + (7.1 + 1.0) / 0.9 are 16.2."""
    config = large()
    monkeypatch.setattr(evaluation, "memory_of", lambda device: mebibytes and mebibytes * MIB)
    runner = make_runner("mesh", train_task(config), make_mesh(config.train.mesh))
    assert placed_groups(config, config.decode, runner).tensor == tensor
    monkeypatch.setattr(runner, "mesh", make_mesh())  # parameters that are whole on each device need no room more
    assert placed_groups(config, config.decode, runner).tensor == 1


@pytest.mark.parametrize(
    ("devices", "needs"),
    [(8, r"with train\.mesh\.tensor 4 of 8 devices a device needs"), (1, r"a process has 1 device, which")],
)
def test_a_model_that_no_process_can_hold_is_refused_or_has_no_samples(
    devices: int, needs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """The devices of one process, among those of several that train over fsdp 8."""
    monkeypatch.setattr(evaluation, "memory_of", lambda device: 9 * MIB)
    state = abstract_state(train_task(large()), make_mesh(MeshConfig(data=1, fsdp=8)))
    mesh = Mock(local_devices=jax.devices()[:devices], shape={"fsdp": 8, "tensor": 1})

    def evaluator(config: Config) -> Evaluator:
        runner = Mock(Runner, mesh=mesh, abstract_state=state)
        return Evaluator(config, Mock(EvalData), Mock(Tokenizers), runner, RunFolder(tmp_path), Processes())

    without = evaluator(large())
    assert without.decoder is None and without.layout == "none"
    assert re.search(f"evaluations write no samples: the model does not fit: {needs}", capsys.readouterr().err)
    with pytest.raises(
        ValueError, match=rf"^train\.text_metrics is \('chrf',\).*{needs}.*: set both to \(\), or use more"
    ):
        evaluator(with_train(large(), text_metrics=("chrf",)))


def test_parameters_of_the_training_are_padded_beside_it():
    """Law: the same numbers in the layout of answers; the training keeps its own, also where both divide a table alike."""
    table, kernel = (np.arange(rows * 32, dtype=np.float32).reshape(rows, 32) for rows in (61, 32))
    params = {"embedding": {"embedding": table}, "layer": {"query": {"kernel": kernel}}}
    training = jax.device_put(params, parameter_sharding(params, make_mesh(MeshConfig(data=1, fsdp=8))))
    for mesh in (make_mesh(), make_mesh(MeshConfig(data=2, tensor=4)), make_mesh(MeshConfig(tensor=8))):
        answering = gather_to_each(training, mesh)
        for copied, expected in zip(*map(jax.tree.leaves, (answering, params)), strict=True):
            np.testing.assert_array_equal(np.asarray(copied)[tuple(map(slice, expected.shape))], expected)
        assert answering["embedding"]["embedding"].shape == (64 if mesh.shape["tensor"] > 1 else 61, 32)
        shardings = parameter_sharding(answering, mesh)
        assert all(
            jax.tree.leaves(jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim), answering, shardings))
        )
        jax.tree.map(np.testing.assert_array_equal, training, params)
