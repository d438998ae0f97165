"""Laws of the table of shardings: each parameter is divided as it says, and the optimizer's state as its parameter."""

import dataclasses

import pytest

from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.model import DotProduct, Learned, LoRA, RelativeBias, Transformer
from flaxformer_lite.core.model.config import DecoderSize, LanguageModelHead, ModelConfig, check_heads
from flaxformer_lite.core.objectives import CausalLM
from flaxformer_lite.core.optim.optimizers import SGD, Adafactor, AdamW, Algorithm, Lion, Muon, OptimizerConfig
from flaxformer_lite.core.optim.schedules import Constant
from flaxformer_lite.core.parallel.mesh import MeshConfig, make_mesh
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.runners import abstract_state
from flaxformer_lite.core.step import TrainTask

MODEL = ModelConfig(
    vocab_size=24,
    d_model=16,
    num_heads=4,
    d_ff=32,
    num_encoder_layers=0,
    num_decoder_layers=2,
    attention=DotProduct(bias=False),
    activation="swiglu",
)
BIG = ModelConfig(
    vocab_size=48,
    d_model=16,
    num_heads=4,
    d_ff=32,
    num_encoder_layers=2,
    num_decoder_layers=3,
    num_token_types=2,
    share_source_target=False,
    share_target_output=False,
    positions=Learned(max_positions=19),
    activation="geglu",
    head=LanguageModelHead(bias=True, transform="gelu"),
    pooler=Pooler(num_classes=3),
)


def shards(
    model: ModelConfig, algorithm: Algorithm, config: MeshConfig
) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """By path the whole and the local shape of everything in the state."""
    optimizer = OptimizerConfig(algorithm=algorithm, schedule=Constant(peak_rate=1e-2)).build(total_steps=9, d_model=16)
    state = abstract_state(
        TrainTask(Transformer(model), CausalLM(), optimizer, seed=0, ema_decay=0.9), make_mesh(config)
    )
    return {path: (x.shape, x.sharding.shard_shape(x.shape)) for path, x in leaves_by_path(state).items()}


@pytest.mark.slow
def test_what_the_table_says_of_every_kind_of_parameter():
    """Oracle: by hand, over fsdp 2 and tensor 4."""
    found = {path: local for path, (_, local) in shards(BIG, AdamW(), MeshConfig(fsdp=2, tensor=4)).items()}
    expected = {
        "source_embedding/embedding": (12, 8),
        "target_embedding/embedding": (12, 8),
        "token_type_embedding/embedding": (2, 8),
        "encoder/positions/embedding": (19, 8),
        "encoder/layers/attention/query/kernel": (2, 8, 4),
        "encoder/layers/attention/query/bias": (2, 4),
        "decoder/layers/cross_attention/value/kernel": (3, 8, 4),
        "decoder/layers/cross_attention/out/kernel": (3, 4, 8),
        "decoder/layers/cross_attention/out/bias": (3, 16),
        "decoder/layers/feed_forward/up/kernel": (3, 8, 8),
        "decoder/layers/feed_forward/gate/kernel": (3, 8, 8),
        "decoder/layers/feed_forward/gate/bias": (3, 8),
        "decoder/layers/feed_forward/down/kernel": (3, 8, 8),
        "decoder/layers/feed_forward/down/bias": (3, 16),
        "decoder/layers/attention_pre_norm/scale": (3, 16),
        "head/transform/kernel": (8, 16),
        "head/kernel": (8, 12),
        "head/bias": (12,),
        "pooler/dense/kernel": (8, 16),
        "pooler/classes/kernel": (16, 3),
    }
    assert {path: found[f"params/{path}"] for path in expected} == expected
    assert {path: found[f"ema/{path}"] for path in expected} == expected
    for moment in ("mu", "nu"):
        assert {path: found[f"opt_state/1/{moment}/{path}"] for path in expected} == expected
    lora = dataclasses.replace(BIG, lora=LoRA(rank=3, targets=("*",)))
    found = {path: local for path, (_, local) in shards(lora, AdamW(), MeshConfig(fsdp=2, tensor=4)).items()}
    expected = {
        "decoder/layers/attention/value/lora_a/kernel": (3, 8, 3),
        "decoder/layers/attention/value/lora_b/kernel": (3, 3, 4),
        "decoder/layers/attention/out/lora_a/kernel": (3, 4, 3),
        "decoder/layers/attention/out/lora_b/kernel": (3, 3, 8),
        "encoder/layers/feed_forward/gate/lora_a/kernel": (2, 8, 3),
        "encoder/layers/feed_forward/gate/lora_b/kernel": (2, 3, 8),
        "encoder/layers/feed_forward/down/lora_a/kernel": (2, 8, 3),
        "encoder/layers/feed_forward/down/lora_b/kernel": (2, 3, 8),
        "pooler/classes/lora_a/kernel": (16, 3),
    }
    assert {path: found[f"params/{path}"] for path in expected} == expected
    assert {path: found[f"opt_state/1/mu/{path}"] for path in expected} == expected
    bias = shards(dataclasses.replace(BIG, positions=RelativeBias()), AdamW(), MeshConfig(fsdp=2, tensor=4))
    assert bias["params/encoder/position_bias/embedding"][1] == (32, 4)


@pytest.mark.parametrize("algorithm", [AdamW(), Adafactor(min_size_to_factor=4), Lion(), Muon(), SGD(momentum=0.9)])
def test_what_an_optimizer_keeps_lies_as_its_parameter_does(algorithm: Algorithm):
    """Law: every leaf that is as large as a parameter is cut as that one is; Adafactor's rows and columns in what is left of it."""
    found = shards(BIG, algorithm, MeshConfig(data=1, fsdp=2, tensor=4))
    parameters = {path.removeprefix("params/"): cut for path, cut in found.items() if path.startswith("params/")}
    kept = {path: cut for path, cut in found.items() if path.startswith("opt_state/")}
    same = 0
    for path, (whole, local) in kept.items():
        owner = next((name for name in parameters if name in path), None)
        if owner is not None and parameters[owner][0] == whole:
            assert local == parameters[owner][1], path
            same += 1
    assert same >= 5
    if isinstance(algorithm, Adafactor):
        name = "opt_state/1/decoder/layers/feed_forward/up/kernel"
        assert kept[f"{name}/0/v_row"] == ((3, 16), (3, 8)) and kept[f"{name}/0/v_col"] == ((3, 32), (3, 8))


def test_an_axis_that_does_not_divide_is_refused_by_name():
    odd = dataclasses.replace(MODEL, d_ff=30)
    with pytest.raises(
        ValueError,
        match=r"^train\.mesh\.tensor is 4, but the parameter decoder/layers/feed_forward/down/kernel has shape \(2, 30, 16\) and 4 "
        r"does not divide its 30: choose a divisor of 30 for train\.mesh\.tensor, or make model\.d_ff a multiple of 4",
    ):
        shards(odd, AdamW(), MeshConfig(tensor=4))
    assert shards(odd, AdamW(), MeshConfig(tensor=2))


def test_heads_are_not_cut_apart():
    """4 heads of width 4 are a matrix of 16 columns, which 8 devices divide; where heads share keys, the keys' heads count."""
    eight = MeshConfig(tensor=8)
    with pytest.raises(ValueError, match=r"train\.mesh\.tensor is 8, which does not divide the 4 key/value heads"):
        shards(MODEL, AdamW(), eight)
    check_heads(MODEL, make_mesh(MeshConfig(tensor=4)))
    grouped = dataclasses.replace(MODEL, attention=DotProduct(bias=False, num_kv_heads=2))
    with pytest.raises(ValueError, match=r"does not divide the 2 key/value heads"):
        check_heads(grouped, make_mesh(MeshConfig(tensor=4)))
    with pytest.raises(ValueError, match=r"does not divide the 4 key/value heads"):
        check_heads(dataclasses.replace(MODEL, num_heads=8, decoder=DecoderSize(num_heads=4)), make_mesh(eight))
