"""Oracle: figures worked by hand for a plan of two shapes on simulated devices, and for a tiny model; traced programs."""

import dataclasses
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data.batch_plan import BatchPlan, Bucket
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.data.records import Lengths
from flaxformer_lite.core.model import PRE_NORM, DotProduct, ModelConfig, RMSNorm, Rotary, Transformer
from flaxformer_lite.core.model.attention import Disentangled, SharedProjection
from flaxformer_lite.core.model.config import EmbeddingProjection, LanguageModelHead
from flaxformer_lite.core.model.inputs import example_inputs
from flaxformer_lite.core.objectives import CausalLM, MaskedLM
from flaxformer_lite.training import throughput
from flaxformer_lite.training.throughput import Throughput, compiling_seconds, head_sum, training_flops
from tests.support.experiments import tiny_config
from tests.support.programs import multiplications
from tests.support.small_models import NO_DROPOUT

BUCKETS = [Bucket(Lengths(4, 4), 2), Bucket(Lengths(8, 8), 2)]


def device(kind: str, platform: str, peak: int | None) -> SimpleNamespace:
    stats = None if peak is None else {"peak_bytes_in_use": peak}
    return SimpleNamespace(device_kind=kind, platform=platform, process_index=0, memory_stats=lambda: stats)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(throughput, "zero_batch", lambda objective, bucket: bucket)
    monkeypatch.setattr(
        throughput, "training_flops", lambda model, params, bucket: (1e12 * bucket.lengths.source, 1e12)
    )
    return now


def test_speed_mfu_and_memory_by_hand(clock: list[float]):
    """Two v5e of 197e12 each; 5 of 9 seconds are steps, of which each short one has 5e12 operations and each long one 9e12."""
    plan = BatchPlan([Lengths(4, 4)] * 2 + [Lengths(8, 8)] * 2, BUCKETS, 0)
    devices = np.array([device("TPU v5 lite", "tpu", 3), device("TPU v5 lite", "tpu", 5 * 2**30)])
    counted = Throughput(tiny_config(), {}, plan, devices)
    counted.add(0, 10.0)
    counted.add(1, 20.0)
    clock[0] += 9
    counted.leave_out(4)
    row = counted.row()
    assert row == {"tokens_per_second": 6.0, "mfu": 14e12 / 5 / (2 * 197e12), "peak_memory_bytes": 5 * 2**30}
    counted.reset()
    clock[0] += 1
    assert counted.row()["tokens_per_second"] == 0


def test_the_time_of_compiling_is_that_of_new_programs():
    """Law: it grows with a program that was not there, by less than the whole call takes, and not with one that was."""
    function, before, started = jax.jit(lambda x: jnp.sin(x) @ x), compiling_seconds(), time.perf_counter()
    function(jnp.ones((3, 3)))
    after = compiling_seconds()
    assert 0 < after - before < time.perf_counter() - started
    function(jnp.ones((3, 3)))
    assert compiling_seconds() == after
    throughput.note_compilation("/jax/core/compile/jaxpr_trace_duration", 5.0)
    assert compiling_seconds() == after


def test_what_is_not_known_is_no_field(clock: list[float]):
    plan = BatchPlan([Lengths(4, 4)], BUCKETS, 0)
    counted = Throughput(tiny_config(), {}, plan, np.array([device("a new chip", "gpu", None)]))
    counted.add(0, 10.0)
    clock[0] += 2
    assert counted.row() == {"tokens_per_second": 5.0}


def test_on_a_cpu_the_memory_is_that_of_the_process(clock: list[float], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(throughput, "process_memory", lambda field: 7)
    counted = Throughput(
        tiny_config(), {}, BatchPlan([Lengths(4, 4)], BUCKETS, 0), np.array([device("cpu", "cpu", None)])
    )
    clock[0] += 2
    assert counted.row()["peak_memory_bytes"] == 7


MODEL = ModelConfig(vocab_size=11, d_model=6, num_heads=2, d_ff=5, num_encoder_layers=0, num_decoder_layers=3)


def test_operations_by_hand() -> None:
    """Weights: four 6 x 6 projections and two 6 x 5 feed-forward matrices a layer, the 11 x 6 table as head."""
    params = jax.eval_shape(Transformer(MODEL).init, jax.random.key(0), example_inputs(MODEL))["params"]
    found = training_flops(MODEL, params, zero_batch(CausalLM(), Bucket(lengths=Lengths(source=0, target=7), rows=4)))
    assert found.weights == 3 * 2 * 4 * 7 * (3 * (4 * 6 * 6 + 2 * 6 * 5) + 11 * 6)
    assert found.attention == 3 * 2 * 4 * 7 * 3 * 7 * (6 + 6)
    assert head_sum(MODEL) == 12


DECODER = ModelConfig(
    vocab_size=13, d_model=12, num_heads=6, d_ff=7, num_encoder_layers=0, num_decoder_layers=3, dropout=NO_DROPOUT
)
ENCODER = dataclasses.replace(DECODER, num_encoder_layers=3, num_decoder_layers=0)
NARROW = {"embedding_projection": EmbeddingProjection(width=5), "head": LanguageModelHead(transform="gelu")}
RELATIVE = {"num_buckets": 4, "max_distance": 9}
MODELS = {
    "parallel branches": (DECODER, {"residual": dataclasses.replace(PRE_NORM, branches="parallel_one_norm")}),
    "norms of heads": (
        DECODER,
        {"attention": DotProduct(num_kv_heads=2, d_key=4, d_value=5, qk_norm=RMSNorm(), qk_norm_width="each_head")},
    ),
    "a matrix for each head": (DECODER, {"attention": SharedProjection()}),
    "narrow tokens": (DECODER, {"embedding_projection": EmbeddingProjection(width=5, of="tokens")}),
    "narrow sums, one layer": (ENCODER, {**NARROW, "share_layers": True}),
    "gated halves": (
        ENCODER,
        {"activation": "geglu", "feed_forward_bias": False, "feed_forward_out_bias": True, "positions": Rotary()},
    ),
    "disentangled": (ENCODER, {"attention": Disentangled(**RELATIVE)}),
    "disentangled, own projections": (
        ENCODER,
        {"attention": Disentangled(**RELATIVE, share_projections=False, position_to_content=False)},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_operations_are_those_of_the_traced_program(name: str) -> None:
    """Law: the formula counts each product of a gradient, no more and no less. Elementwise operations are left out of both."""
    base, parts = MODELS[name]
    model, objective = dataclasses.replace(base, **parts), CausalLM()
    if base is ENCODER:
        model = dataclasses.replace(model, num_token_types=2)
        objective = MaskedLM(mask_token=model.vocab_size - 1)
    lengths = Lengths(*(11 * bool(number) for number in (model.num_encoder_layers, model.num_decoder_layers)))
    batch = zero_batch(objective, Bucket(lengths=lengths, rows=3))
    module = Transformer(model)
    params = jax.eval_shape(module.init, jax.random.key(0), example_inputs(model))["params"]
    gradient = jax.grad(lambda params, inputs: (module.apply({"params": params}, inputs).logits ** 2).sum())
    program = jax.make_jaxpr(gradient)(params, batch.inputs).jaxpr
    assert sum(training_flops(model, params, batch)) == 2 * multiplications(program)
