"""Laws of the answers that a model draws while it is trained."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import PyTree

from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.model import DropoutRates, ModelConfig, Transformer
from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.objectives import Apply, Batch, Seq2Seq
from flaxformer_lite.core.objectives.losses import LossTerm
from flaxformer_lite.core.parallel.mesh import make_mesh
from flaxformer_lite.core.runners import MeshRunner
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.step import TrainState, TrainTask, gradient, loss_terms
from flaxformer_lite.core.text.special_ids import BOS, EOS
from flaxformer_lite.tools.research.minimum_risk import DrawnAnswers, MinimumRisk, draw_answers, with_answers
from tests.support.limits import assert_close
from tests.support.objectives import example, record
from tests.support.small_models import NO_DROPOUT

pytestmark = pytest.mark.slow

V, N = 11, 3
MODEL = ModelConfig(
    vocab_size=V, d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1,
    dropout=DropoutRates(embedding_rate=0.2, residual_rate=0.2),
)  # fmt: skip
RISK = MinimumRisk(num_samples=N, weight=50.0)
LENGTHS = Lengths(5, 5)
ROOM = 5 + 5 // 4 + 2
DECODE = DecodeConfig()


def task(model: ModelConfig = MODEL, risk: MinimumRisk = RISK) -> TrainTask:
    return TrainTask(Transformer(model), risk, optax.adam(3e-3), seed=0)


@functools.cache
def params_of(model: ModelConfig = MODEL) -> PyTree:
    """The parameters before the first step: any token may come next."""
    return jax.jit(task(model).initialize)().params


@functools.cache
def batch() -> Batch:
    """Sources of 1 to 4 tokens whose targets are the same tokens, and one row that only fills the batch."""
    rng = np.random.default_rng(1)
    rows = [
        example(Seq2Seq(), record(text, text), LENGTHS)
        for n in (1, 2, 3, 4, 4, 3, 2)
        for text in [rng.integers(4, V, n).tolist()]
    ]
    return jax.tree.map(lambda *x: np.stack([*x, np.zeros_like(x[0])]), *rows)


@functools.cache
def draw(
    model: ModelConfig = MODEL, risk: MinimumRisk = RISK, seed: int = 7, decode: DecodeConfig = DECODE
) -> DrawnAnswers:
    rows = jax.tree.map(jnp.asarray, batch())
    return jax.tree.map(np.asarray, drawing(model, risk, decode)(params_of(model), rows, jax.random.key(seed)))


@functools.cache
def drawing(model: ModelConfig, risk: MinimumRisk, decode: DecodeConfig) -> Callable[..., DrawnAnswers]:
    return jax.jit(
        lambda params, rows, key: draw_answers(
            Apply(Transformer(model), params, decode), rows, N, risk.temperature, key
        )
    )


def test_answers_are_in_the_form_of_teacher_forcing():
    """Law: the start, then the tokens; the tokens, then the end; a row that only fills the batch has no answer."""
    found = draw()
    assert found.targets.shape == (8, N, ROOM) and not found.mask[7].any()
    for inputs, targets, mask in zip(*(x[:7].reshape(-1, ROOM) for x in found), strict=True):
        length = int(mask.sum())
        assert mask[:length].all() and inputs[0] == BOS and length > 0
        np.testing.assert_array_equal(inputs[1:length], targets[: length - 1])
        assert EOS not in targets[: length - 1]
        assert targets[length - 1] == EOS or length == ROOM
    ends = found.targets[found.mask] == EOS
    assert ends.any() and (found.mask.sum(-1) == ROOM).any(), "answers of both kinds: ended and cut"


def test_a_low_temperature_draws_the_answer_of_greedy_search():
    """Law: all answers of a row are the greedy one, which another program finds, although the model has dropout."""
    found = draw(risk=dataclasses.replace(RISK, temperature=1e-4))
    sources = [row[mask].tolist() for row, mask in zip(*map(np.asarray, batch().inputs[0:3:2]), strict=True)][:7]
    greedy = Decoder(Transformer(MODEL), DecodeConfig(max_new_tokens=ROOM)).generate({"params": params_of()}, sources)
    for row, (answer,) in zip(range(7), greedy, strict=True):
        for n in range(N):
            ids = found.targets[row, n][found.mask[row, n]].tolist()
            assert ids == [*answer.tokens, *([EOS] if len(answer.tokens) < ROOM else [])]


def test_answers_differ_by_key_row_and_number():
    found, other = draw(), draw(seed=8)
    assert (found.targets[:7] != other.targets[:7]).any()
    assert (found.targets[:7, 0] != found.targets[:7, 1]).any()


def test_answers_obey_the_rules_of_decoding():
    """Law: a token that decoding suppresses is never drawn; without the rule it is."""
    common = int(np.bincount(draw().targets[:7].ravel(), minlength=V)[4:].argmax()) + 4
    ruled = draw(decode=DecodeConfig(suppress_ids=(common,), beam_size=5, num_hypotheses=2))
    assert common not in ruled.targets and common in draw().targets


def test_answers_fit_into_the_positions_of_the_model():
    assert draw(dataclasses.replace(MODEL, positions=Learned(max_positions=6))).targets.shape == (8, N, 6)


def test_no_gradient_flows_through_the_answers():
    """Law: the gradient of a step is that of the losses of the same answers, given as constants."""
    plain = dataclasses.replace(MODEL, dropout=NO_DROPOUT)
    drawn = draw(plain)
    rows = jax.tree.map(jnp.asarray, batch())

    def loss(params: PyTree) -> jax.Array:
        own = task(plain)
        both = with_answers(rows, jax.tree.map(jnp.asarray, drawn))
        terms = own.objective.loss(own.model.apply({"params": params}, both.inputs), both)
        return sum(term.weight * term.sum / term.count for term in terms.values())

    value, grads = jax.jit(jax.value_and_grad(loss))(params_of(plain))
    found = jax.jit(lambda params, rows: gradient(task(plain), params, rows, jax.random.key(7)))(params_of(plain), rows)
    np.testing.assert_allclose(found[0], value, rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), found[2], grads)


def test_one_encoded_source_serves_all_its_targets():
    """Law: a source with N targets gives the logits of N copies of it."""
    model = Transformer(dataclasses.replace(MODEL, dropout=NO_DROPOUT))
    both = with_answers(jax.tree.map(jnp.asarray, batch()), jax.tree.map(jnp.asarray, draw()))
    copies = {name: jnp.repeat(getattr(both.inputs, name), N + 1, axis=0) for name in ("source_tokens", "source_mask")}
    apply = jax.jit(model.apply)
    found, expected = (
        apply({"params": params_of()}, inputs).logits for inputs in (both.inputs, both.inputs._replace(**copies))
    )
    assert_close(found, expected)


def test_training_lowers_the_risk_on_one_device_and_on_a_mesh():
    """Law: two devices have the losses of one, and the mean risk of drawn answers falls."""
    risk = dataclasses.replace(RISK, num_samples=8)
    many = jax.tree.map(lambda x: np.tile(x, (4, *[1] * (x.ndim - 1))), batch())
    losses = []
    for devices in (1, 2):
        runner = MeshRunner(task(risk=risk), make_mesh(devices=jax.devices()[:devices]))
        state, found = runner.init(), []
        first = mean_risk(risk, state, many)
        for _ in range(60):
            state, measured = runner.train_step(state, runner.shard_batch(many))
            found.append(float(measured["loss"]))
        losses.append(found)
        assert mean_risk(risk, state, many) < first - 0.2
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-3)


def mean_risk(risk: MinimumRisk, state: TrainState, rows: Batch) -> float:
    terms = jax.jit(lambda params, rows: loss_terms(task(risk=risk), params, rows, jax.random.key(7)))(
        state.params, rows
    )
    return float(terms["risk"].mean)


def test_counting_draws_no_answers():
    """Law: the pass that counts for several micro-batches has no loop, so no search, left in its program."""
    rows = jax.tree.map(jnp.asarray, batch())

    def terms(params: PyTree, rows: Batch) -> dict[str, LossTerm]:
        return loss_terms(task(), params, rows, jax.random.key(7))

    counts, whole = (
        jax.jit(run).lower(params_of(), rows).compile().as_text()
        for run in (lambda *given: {name: term.count for name, term in terms(*given).items()}, terms)
    )
    assert "while" in whole and "while" not in counts
