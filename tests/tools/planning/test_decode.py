"""Oracles: parameters and caches counted by hand; links and layers by hand. The compiler is the TPU's own; no TPU is needed."""

import dataclasses
import json
from collections.abc import Iterator

import jax
import pytest

from flaxformer_lite.config import Config
from flaxformer_lite.config.load import load_config
from flaxformer_lite.core.parallel.mesh import MeshConfig
from flaxformer_lite.tools.planning import decode as decode_module
from flaxformer_lite.tools.planning.decode import DecodePlan, decode_plan, fit_decode, plan_in_words
from flaxformer_lite.tools.planning.program import read_program
from tests.support import needs
from tests.support.commands import Command

D, F, V, LAYERS, HEADS = 64, 128, 254, 2, 4
ROWS, SOURCE, ANSWER, BEAMS = 8, 16, 40, 3
SIZES = {"vocab-size": V, "d-model": D, "d-ff": F, "num-heads": HEADS}
SIZES |= {"num-encoder-layers": LAYERS, "num-decoder-layers": LAYERS}
DECODE = {"beam-size": BEAMS, "max-new-tokens": ANSWER}


def toy(*options: str) -> Config:
    """Returns a translator whose vocabulary four devices do not divide; its norms have biases, and so have its layers."""
    words = [f"--model.{name}={size}" for name, size in SIZES.items()]
    words += [f"--decode.{name}={size}" for name, size in DECODE.items()]
    return load_config("configs/transformer_base_wmt14.py", [*words, *options])


def parameter_bytes(tensor: int, kernel_bytes: int = 4) -> int:
    """Bytes of a device, by hand: heads, inner widths and a padded vocabulary are divided, all else is whole."""
    ids = -(-V // tensor)  # one table for sources, targets and the head
    kernels = ids * D + LAYERS * (3 * 4 * D * D + 2 * 2 * D * F) // tensor
    biases = LAYERS * (3 * (3 * D // tensor + D) + 2 * (F // tensor + D))
    norms = LAYERS * (2 + 3) * 2 * D
    return kernels * kernel_bytes + (biases + norms) * 4


def cache_bytes(tensor: int) -> int:
    """By hand: a bfloat16 key and value of all heads for each token of each beam, and for each source token."""
    return LAYERS * 2 * ROWS * (SOURCE + ANSWER * BEAMS) * D // tensor * 2


def planned(tensor: int, config: Config | None = None, **chosen) -> DecodePlan:
    like = {"rows": ROWS, "source_length": SOURCE, "mesh": MeshConfig(tensor=tensor)} | chosen
    return decode_plan(config or toy(), **like)


@pytest.mark.parametrize(("tensor", "dtype"), [pytest.param(1, "float32", marks=pytest.mark.slow), (4, "bfloat16")])
def test_without_a_slice_memory_is_added_up(tensor: int, dtype: str):
    """The largest peak is a step's, with three times its logits, or the growth's: the caches of 16 and of 40 tokens at once."""
    plan = planned(tensor, num_devices=4, memory=2**30, weights_dtype=dtype)
    assert plan.parameter_bytes == parameter_bytes(tensor, 2 if dtype == "bfloat16" else 4)
    assert plan.cache_bytes == cache_bytes(tensor)
    assert plan.head_bytes == -(-V // tensor) * D * 2  # in the type of the product
    weights, logits = plan.parameter_bytes + plan.head_bytes, 3 * ROWS * BEAMS * V * 4 // tensor
    assert (
        weights + cache_bytes(tensor) + logits <= plan.needed["step"] <= weights + cache_bytes(tensor) + logits + 2**15
    )
    shorter = cache_bytes(tensor) - LAYERS * 2 * ROWS * (ANSWER - 16) * BEAMS * D // tensor * 2
    assert weights + cache_bytes(tensor) + shorter <= plan.needed["growth"]
    assert plan.needed["growth"] <= weights + cache_bytes(tensor) + shorter + 2**15
    assert plan.fits and plan.step_seconds is None and "arithmetic, not compiled" in plan_in_words(plan)


@pytest.mark.slow
def test_the_largest_batch_is_linear_in_rows():
    """The batch of the setting that the plan prints fits, and with 8 rows more it does not."""
    plan = planned(1, memory=8 * 2**20)
    whole = planned(1, memory=8 * 2**20, rows=plan.largest_rows)
    assert whole.fits and (whole.rows, whole.batch_tokens) == (plan.largest_rows, plan.batch_tokens)
    assert not planned(1, memory=8 * 2**20, rows=plan.largest_rows + 8).fits
    config = toy("--decode.batch-tokens", str(plan.batch_tokens))
    assert planned(1, config, memory=8 * 2**20, rows=None).rows == plan.largest_rows


@pytest.mark.slow
def test_fit_divides_a_model_no_more_than_it_must():
    plans = [*fit_decode(toy(), num_devices=4, memory=parameter_bytes(1), rows=1, source_length=SOURCE)]
    assert [plan.fits for plan in plans] == [False, True, True] and [plan.tensor for plan in plans] == [1, 2, 2]
    assert plans[-1].rows == plans[-1].largest_rows > plans[1].rows
    assert not [*fit_decode(toy(), memory=2**17, rows=1, source_length=SOURCE)][-1].fits


# The compiler ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> Iterator[dict[int, DecodePlan]]:
    """Plans of rows alone and of groups of four, for a v5e:2x2."""
    jax.config.update("jax_optimization_level", "O1")  # compiles in a quarter of the time
    yield {tensor: planned(tensor, topology="v5e:2x2") for tensor in (1, 4)}
    jax.config.update("jax_optimization_level", "UNKNOWN")


@pytest.mark.slow
@needs.libtpu
def test_groups_exchange_nothing_and_devices_of_a_group_do(compiled: dict[int, DecodePlan]):
    """Law: 3 all-reduces a layer, one for the embedding and two for the softmax; over 2 + 2 links there and back, 1 µs each."""
    assert compiled[1].exchanges == [] and compiled[1].seconds["latency"] == 0
    reduced = next(e for e in compiled[4].exchanges if e.kind == "all-reduce")
    assert reduced.axes == "tensor" and reduced.count == 3 * LAYERS + 3
    assert reduced.latency_seconds == pytest.approx(reduced.count * 2 * 2 * 1e-6)
    assert reduced.bytes < 1.5 * reduced.count * ROWS * BEAMS * D * 4  # activations, neither weights nor logits
    assert all(e.axes == "tensor" for e in compiled[4].exchanges)


@pytest.mark.slow
@needs.libtpu
@pytest.mark.parametrize("tensor", [1, 4])
def test_a_compiled_plan_holds_all_weights_and_the_cache(compiled: dict[int, DecodePlan], tensor: int):
    """A step reads the decoder's weights, the head and the cache at least; the encoder's are held all the same."""
    plan = compiled[tensor]
    assert plan.parameter_bytes == parameter_bytes(tensor) and plan.cache_bytes == cache_bytes(tensor)
    assert plan.fits and set(plan.needed) == {"prefill", "growth", "step"}
    assert all(size > plan.parameter_bytes + plan.head_bytes for size in plan.needed.values())
    assert all(plan.needed[name] > plan.parameter_bytes + plan.cache_bytes for name in ("growth", "step"))
    assert plan.step_seconds is not None and plan.seconds["HBM"] == plan.traffic_bytes / 819e9
    groups = 4 // tensor
    assert plan.tokens_per_second == pytest.approx(groups * ROWS / plan.step_seconds)
    assert f"at least {plan.largest_rows:,} rows × {BEAMS} beams" in plan_in_words(plan)


@pytest.mark.slow
@needs.libtpu
def test_less_memory_than_a_search_needs_does_not_fit(compiled: dict[int, DecodePlan]):
    limit = compiled[4].parameter_bytes + compiled[4].head_bytes
    plan = planned(4, topology="v5e:2x2", memory=limit, rows=ROWS)
    assert not plan.fits and plan.largest_rows == 0 and "does not fit into" in plan_in_words(plan)


@pytest.mark.slow
@needs.libtpu
def test_a_refused_program_is_a_plan_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decode_module, "compiled_program", lambda lowered: (None, "Ran out of memory"))
    plan = planned(1, topology="v5e:1x1")
    assert not plan.fits and plan.refusal == "Ran out of memory" and plan.needed == {}
    assert "The compiler: Ran out of memory" in plan_in_words(plan)


@pytest.mark.slow
@needs.libtpu
def test_figures_of_a_deep_model_come_from_one_layer_and_two():
    """Oracle: the same model, compiled whole. Exchanges and the cache are exact; temporaries of a step are not."""
    jax.config.update("jax_optimization_level", "O1")
    config = toy("--model.num-encoder-layers=5", "--model.num-decoder-layers=5")
    deep, whole = (planned(4, config, topology="v5e:2x2", deepest=deepest) for deepest in (4, 5))
    jax.config.update("jax_optimization_level", "UNKNOWN")
    assert "1 and 2 of 5 layers" in deep.origin and "5 of 5 layers" in whole.origin
    assert [(e.kind, e.count, e.latency_seconds) for e in deep.exchanges] == [
        (e.kind, e.count, pytest.approx(e.latency_seconds)) for e in whole.exchanges
    ]
    assert deep.cache_bytes == whole.cache_bytes
    assert deep.needed["growth"] == pytest.approx(whole.needed["growth"], rel=0.01)
    assert deep.needed["prefill"] == whole.needed["prefill"]


LOOP = """HloModule step
%body (t: (s32[], f32[1000])) -> (s32[], f32[1000]) {
  %t = (s32[], f32[1000]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[1000]{0} get-tuple-element(%t), index=1
  %y = f32[1000]{0} negate(%x)
  %z = f32[1000]{0} all-reduce(%y), replica_groups={{0,1}}
  ROOT %r = (s32[], f32[1000]) tuple(%i, %z)
}
%goes_on (t: (s32[], f32[1000])) -> pred[] {
  %t = (s32[], f32[1000]) parameter(0)
  ROOT %p = pred[] custom-call(%t), custom_call_target="more"
}
ENTRY %main (a: f32[1000], n: s32[]) -> f32[1000] {
  %a = f32[1000]{0} parameter(0)
  %n = s32[] parameter(1)
  %b = f32[1000]{0} all-reduce(%a), replica_groups={{0,1}}
  %start = (s32[], f32[1000]) tuple(%n, %b)
  %loop = (s32[], f32[1000]) while(%start), condition=%goes_on, body=%body
  ROOT %out = f32[1000]{0} get-tuple-element(%loop), index=1
}
"""


def test_one_pass_of_the_loop_is_a_step():
    """By hand: an array is read and written twice in the loop; the exchange before it is none of a step's."""
    step, whole = read_program(LOOP, of_loop=True), read_program(LOOP)
    assert step.hbm_bytes == 16_000 and whole.hbm_bytes == 24_000
    assert len(step.collectives) == 1 and len(whole.collectives) == 2
    assert step.parameter_bytes == whole.parameter_bytes == 4_004


# The command -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_prints_a_plan_or_that_nothing_fits(command: Command):
    line = ["plan", "quickstart", "--decode", "--devices", "2"]
    said = command(*line, "--memory", "1GiB", "--mesh.tensor", "2")
    assert said.out.startswith("search on 2 devices: mesh data 1, tensor 2\n")
    plans = json.loads(command(*line, "--memory", "1GiB", "--fit", "--json").out)
    assert plans[-1]["fits"] and plans[-1].keys() == {field.name for field in dataclasses.fields(DecodePlan)}
    status, said = command.ended(*line, "--memory", "1MiB", "--fit")
    assert status == 1 and "none of these fits" in said.err
