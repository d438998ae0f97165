"""An objective is one file: a prefix language model, defined here as outside the package, is trained, scored and generates.

Oracle for generation: the model without a cache, with the mask of a prefix language model over the prompt and the answer so far.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import flaxformer_lite
from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import TrainConfig
from flaxformer_lite.core.data import BatchShapes, Lengths, TokenPair
from flaxformer_lite.core.data.batch_plan import Bucket
from flaxformer_lite.core.data.dataset import Dataset, zero_batch
from flaxformer_lite.core.model import ALiBi, Inputs, Learned, ModelConfig, RelativeBias, Rotary, Transformer
from flaxformer_lite.core.objectives import BaseObjective, LossTerm
from flaxformer_lite.core.objectives.batch import Batch, pad_tokens
from flaxformer_lite.core.optim import Constant, OptimizerConfig
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.step import TrainTask
from flaxformer_lite.core.text.special_ids import BOS, EOS
from flaxformer_lite.files.data import TSV
from flaxformer_lite.run.run import Run
from flaxformer_lite.run.searches import Kept
from flaxformer_lite.training.data import read_data
from flaxformer_lite.training.loop import train
from flaxformer_lite.training.task import check_objective
from flaxformer_lite.workdir import RunFolder
from tests.support.commands import Command
from tests.support.experiments import tiny_config, use_one_device
from tests.support.objectives import example

# The one file ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PrefixLM(BaseObjective):
    """A decoder reads BOS and the source with full attention, then continues with the target and EOS; only these are predicted.

    Reference: Raffel et al. 2019, arXiv:1910.10683, section 3.2.1.
    """

    kind: Literal["prefix_lm"] = "prefix_lm"

    unit = "pairs"
    command = "generate"
    decoder_special_ids = ("eos", "bos")
    prompt_attention = "full"

    def check_model(self, model):
        self.check_stacks(model, encoder=False, decoder=True)

    def packed_row(self, longest):
        return None

    def longest_row(self, longest):
        return Lengths(0, longest.target)

    def make_rows(self, records, longest, seed, tokenizer=None):
        return records

    def lengths(self, record):
        return Lengths(0, 1 + len(record.source) + len(record.target))

    def example(self, record, lengths, generator, special):
        text = [special.bos, *record.source, *record.target, special.eos]
        position, prompt = np.arange(lengths.target), 1 + len(record.source)
        inputs = Inputs(
            target_tokens=pad_tokens(text[:-1], lengths.target, special.pad),
            target_mask=position < len(text) - 1,
            target_attention=((position <= position[:, None]) | (position < prompt))[None],
        )
        counts = (position >= prompt - 1) & (position < len(text) - 1)
        return Batch(inputs, pad_tokens(text[1:], lengths.target, special.pad), counts.astype(np.float32))


# Its tests -------------------------------------------------------------------------------------------------------------

V = 17
MODEL = ModelConfig(vocab_size=V, d_model=12, num_heads=3, d_ff=23, num_encoder_layers=0, num_decoder_layers=2)
DECODE = DecodeConfig(length_penalty="none")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose model has learned for a few steps to write its prompt backwards, loaded from its folder."""
    folder = tmp_path_factory.mktemp("prefix_lm")
    words = ["".join(np.random.default_rng(i).choice(list("abcdefgh"), 1 + i % 6)) for i in range(64)]
    (folder / "pairs.tsv").write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    base, pairs = tiny_config(), TSV(path=str(folder / "pairs.tsv"))
    data = dataclasses.replace(base.data, train=pairs, eval=pairs, bucket_lengths=(13,), max_target_length=13)
    config = tiny_config(
        model=MODEL,
        objective=PrefixLM(),
        data=data,
        optimizer=OptimizerConfig(schedule=Constant(peak_rate=1e-2)),
        train=TrainConfig(steps=30, eval_every=15, log_every=30, checkpoint_every=30),
        decode=DECODE,
    )
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        train(config, folder / "run")
        return flaxformer_lite.load(folder / "run")


@pytest.mark.slow
def test_it_learns_and_is_scored(trained: Run, one_device: None):
    """The losses that the loop wrote fall; `Run.metrics` reports the last of them again."""
    lines = [json.loads(line) for line in (trained.folder.path / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["split"] == "eval"]
    assert len(losses) == 2 and losses[1] < losses[0] - 0.1
    again = trained.metrics(list(trained.config.data.eval.open()))
    assert again["loss"] == pytest.approx(losses[-1], rel=1e-5)


@functools.cache
def without_cache(model: Transformer) -> Callable[..., jax.Array]:
    """Returns the log-probabilities of the token after each token, a function compiled once."""
    return jax.jit(lambda params, inputs: jax.nn.log_softmax(model.apply({"params": params}, inputs).logits[0]))


def next_log_probs(model: Transformer, params: object, prompt: list[int], answer: list[int], full: bool) -> np.ndarray:
    """Returns the log-probabilities of the token after prompt and answer. Nobody sees the padding: it comes after them."""
    tokens = pad_tokens([*prompt, *answer], 12)[None]
    position = np.arange(tokens.shape[1])
    allowed = (position <= position[:, None]) | (full & (position < len(prompt)))
    inputs = Inputs(target_tokens=jnp.asarray(tokens), target_attention=jnp.asarray(allowed)[None, None])
    return np.asarray(without_cache(model)(params, inputs))[len(prompt) + len(answer) - 1]


TERM = LossTerm(jnp.zeros(()), jnp.ones(()))
CHECKED = {
    "an objective": ("loss", lambda: {"of_my_own": TERM}, ""),
    "a term in place of a dict": (
        "loss",
        lambda: TERM,
        r"loss returns a LossTerm: it must return a dict with a LossTerm for",
    ),
    "a number": ("loss", lambda: jnp.zeros(()), r"loss returns a \w+: it must return a dict"),
    "numbers": (
        "loss",
        lambda: {"x": jnp.zeros(())},
        r"loss returns a dict\['\w+'\]: it must return a dict with a LossTerm",
    ),
    "nothing": ("loss", dict, r"loss returns a dict\[\]: it must"),
    "a loss of each row": (
        "loss",
        lambda: {"x": TERM._replace(sum=jnp.zeros(3))},
        r"loss returns x with a sum of shape \(3,\)",
    ),
    "counts of rows": (
        "loss",
        lambda: {"x": TERM._replace(count=jnp.ones(3))},
        r"loss returns x with a count of shape \(3,\): it must be one",
    ),
    "a table": ("metrics", lambda: {"loss": TERM, "x": TERM._replace(sum=jnp.zeros(3))}, ""),
    "no loss": ("metrics", lambda: {"x": TERM, "y": TERM}, r"metrics returns x, y: it must return loss too"),
    "a metric's number": ("metrics", lambda: {"x": 0.5}, r"metrics returns a dict\['float'\]: .* or PerRowMetric for"),
    "a metric's counts": (
        "metrics",
        lambda: {"loss": TERM, "x": TERM._replace(count=jnp.ones(3))},
        r"metrics returns x with a count",
    ),
}
"""Cases by what a method returns: the method, and the message."""


@pytest.mark.parametrize("case", CHECKED)
def test_what_loss_and_metrics_return_is_checked_before_the_first_step(case: str, monkeypatch: pytest.MonkeyPatch):
    """Worked by hand from the contract: a dict of sums with their counts, each one number."""
    method, returned, message = CHECKED[case]
    own = "terms" if method == "loss" else method  # whose types the tests would check in the base class
    monkeypatch.setattr(PrefixLM, own, lambda self, *arguments: returned())
    task = TrainTask(Transformer(MODEL), PrefixLM(), optax.sgd(0.1), seed=0, num_micro_batches=2)
    rows = zero_batch(PrefixLM(), Bucket(Lengths(0, 6), 4))
    with pytest.raises(ValueError, match=rf"^objective is a PrefixLM, whose {message}") if message else nullcontext():
        check_objective(task, rows)


def test_lengths_of_a_row_are_two_numbers(monkeypatch: pytest.MonkeyPatch):
    """Worked by hand: one number a row would be read as the source of a row and the target of the next."""
    monkeypatch.setattr(PrefixLM, "lengths", lambda self, record: 5)
    records = [TokenPair(np.arange(4, 9), np.arange(4, 9))] * 2
    shapes = BatchShapes(
        bucket_lengths=(16,), max_source_length=16, max_target_length=16, rows_multiple=2, tokens_per_batch=32
    )
    with pytest.raises(
        ValueError, match=r"^objective is a PrefixLM, whose lengths returns 5: it must return Lengths\("
    ):
        Dataset.training(records, PrefixLM(), shapes, seed=0)


def test_a_training_checks_an_objective_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pairs.tsv").write_text("ab\tba\n")
    data = dataclasses.replace(tiny_config().data, train=TSV(path=str(tmp_path / "pairs.tsv")), eval=None)
    config = tiny_config(model=MODEL, objective=PrefixLM(), data=data, train=TrainConfig(steps=3), decode=DECODE)
    monkeypatch.setattr(PrefixLM, "terms", lambda self, *arguments: TERM)
    with Progress() as progress, pytest.raises(ValueError, match="it must return a dict with a LossTerm"):
        read_data(config, RunFolder(tmp_path / "run"), progress)


def test_only_the_answer_counts_and_the_prompt_sees_all_of_itself():
    row = example(PrefixLM(), TokenPair(np.array([7, 8]), np.array([9])), Lengths(0, 6))
    assert row.inputs.target_tokens.tolist() == [BOS, 7, 8, 9, 0, 0]
    assert row.targets.tolist() == [7, 8, 9, EOS, 0, 0]
    assert row.weights.tolist() == [0, 0, 1, 1, 0, 0]
    seen = row.inputs.target_attention[0, :4, :4].astype(int).tolist()
    assert seen == [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


@pytest.mark.slow
def test_one_that_does_not_say_how_prompts_are_read_neither_trains_nor_generates(
    trained, tmp_path, one_device, monkeypatch
):
    monkeypatch.delattr(PrefixLM, "prompt_attention")
    message = r"^objective\.kind 'prefix_lm' sets Inputs\.target_attention, but not how prompts are read: set prompt_attention"
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(trained, kept=Kept()).generate(["abc"])
    with pytest.raises(ValueError, match=message):
        train(trained.config, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("search", ["greedy", "beam", "stream"])
def test_a_trained_one_generates_as_without_a_cache(trained: Run, search: str):
    """Greedy answers of several tokens, token by token; prompts of different lengths share a batch."""
    tokenizer = trained.required_tokenizers.target
    prompts = [[tokenizer.bos_id, *tokenizer.encode(word)] for word in ("abcdef", "hg", "", "cab")]
    if search == "beam":
        answers = [found[0].tokens for found in trained.completions_of_ids(prompts, beam_size=2, max_new_tokens=1)]
    elif search == "stream":
        texts = ["".join(trained.stream(word, max_new_tokens=5)) for word in ("abcdef", "hg", "", "cab")]
        answers = [tokenizer.encode(text) for text in texts]
    else:
        answers = [found[0].tokens for found in trained.completions_of_ids(prompts, max_new_tokens=5)]
    for prompt, answer in zip(prompts, answers, strict=True):
        for i, token in enumerate(answer):
            assert token == next_log_probs(trained.model, trained.params, prompt, answer[:i], full=True).argmax()
    assert any(answers)


@pytest.mark.slow
def test_the_first_tokens_scores_are_those_of_the_prefix_mask_and_not_the_causal_ones(trained: Run):
    tokenizer = trained.required_tokenizers.target
    prompts = [[tokenizer.bos_id, *tokenizer.encode(word)] for word in ("abcdef", "hg", "cab")]
    for prompt, found in zip(
        prompts, trained.completions_of_ids(prompts, beam_size=6, num_hypotheses=6, max_new_tokens=1), strict=True
    ):
        full, causal = (next_log_probs(trained.model, trained.params, prompt, [], full) for full in (True, False))
        tokens = [hypothesis.tokens[0] if hypothesis.tokens else tokenizer.eos_id for hypothesis in found]
        scores = [hypothesis.score for hypothesis in found]
        np.testing.assert_allclose(scores, full[tokens], rtol=1e-5, atol=1e-5)
        assert tokens == np.argsort(-full)[: len(tokens)].tolist()
        assert np.abs(full - causal).max() > 0.01  # a thousand times what the scores may differ by


@pytest.mark.slow
@pytest.mark.parametrize("system", ["hf", "ctranslate2"])
def test_systems_that_read_prompts_causally_do_not_get_it(
    trained: Run, system: str, tmp_path: Path, command: Command, one_device: None
):
    message = command.mistake("export", system, trained.folder.path, tmp_path / "out")
    assert f"'prefix_lm' reads prompts with full attention, but {system} reads every prompt" in message
    assert not (tmp_path / "out").exists()


SCHEMES = {
    "rotary": (Rotary(), 1),
    "alibi": (ALiBi(), 3),
    "relative_bias": (RelativeBias(num_buckets=8, max_distance=7), 1),
    "learned": (Learned(max_positions=16), 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_every_position_scheme_reads_a_full_prompt(name: str):
    """Sums of log-probabilities over three tokens, with parameters at random."""
    positions, beam_size = SCHEMES[name]
    model = Transformer(dataclasses.replace(MODEL, positions=positions))
    params = jax.jit(model.init)(jax.random.key(0), Inputs(target_tokens=jnp.zeros((1, 5), jnp.int32)))["params"]
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), params)
    settings = dataclasses.replace(DECODE, beam_size=beam_size, max_new_tokens=3, eos_ids=())
    decoder = Decoder(model, settings, PrefixLM.prompt_attention)
    prompts = [[5, 9, 4, 11, 6], [7], [10, 3]]
    for prompt, ((tokens, score),) in zip(prompts, decoder.generate({"params": params}, prompts), strict=True):
        log_probs = [next_log_probs(model, params, prompt, tokens[:i], full=True) for i in range(3)]
        assert score == pytest.approx(sum(x[t] for x, t in zip(log_probs, tokens, strict=True)), rel=1e-4)
