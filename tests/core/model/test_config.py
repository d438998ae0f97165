"""Oracles: settings that cannot be, and the one line that each is answered with; hand-worked residual commands."""

import re

import jax.numpy as jnp
import pytest

from flaxformer_lite.core.model.attention import DotProduct
from flaxformer_lite.core.model.config import DecoderSize, ModelConfig, Residual, SlidingWindow
from flaxformer_lite.core.model.positions import Learned, Llama3Scaling, RelativeBias, Rotary, YarnScaling
from flaxformer_lite.core.model.transformer import apply_commands

SETTINGS = {"vocab_size": 13, "d_model": 10, "num_heads": 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_ff": 0}, r"model\.d_ff is 0: it must be at least 1"),
        ({"d_model": 2**24 + 2}, r"model\.d_model is 16777218: .* at most 16777216"),
        ({"num_encoder_layers": -2}, r"model\.num_encoder_layers is -2: it must be at least 0"),
        (
            {"num_encoder_layers": 0, "num_decoder_layers": 0},
            r"model\.num_encoder_layers and .* are both 0: one of them",
        ),
        (
            {"target_vocab_size": 19},
            r"model\.target_vocab_size is 19, but .*: set .* to None, or model\.share_source_target",
        ),
        ({"vocab_size": 0}, r"model\.vocab_size is 0, .* model\.head .*: set model\.head to None, or a vocab_size"),
        (
            {"vocab_size": 0, "head": None, "position_padding_id": 1},
            r"model\.position_padding_id is 1, but model\.vocab_size is 0, .*: set model\.position_padding_id to None",
        ),
        (
            {"sliding_window": SlidingWindow(size=3, layers=(0, 6))},
            r"model\.sliding_window\.layers is \(0, 6\), but model\.num_decoder_layers is 6: name layers of the decoder",
        ),
        (
            {"sliding_window": SlidingWindow(size=3, layers=(7,)), "num_encoder_layers": 7, "num_decoder_layers": 0},
            r"model\.sliding_window\.layers is \(7,\), but model\.num_encoder_layers is 7: name layers of the encoder",
        ),
        (
            {"position_padding_id": 1, "positions": Learned()},
            r"model\.position_padding_id is 1, .*: set .*offset to at least 1",
        ),
        (
            {"matmul_dtype": "bfloat16", "dtype": "float64"},
            r"model\.matmul_dtype is 'bfloat16', but model\.dtype is 'float64': set one",
        ),
        ({"decoder": DecoderSize(num_heads=3)}, r"model\.d_model 10 is not divisible by model\.decoder\.num_heads 3"),
        ({"d_model": 7}, r"model\.d_model 7 is not divisible by model\.num_heads 2: change one, or set .*d_key"),
        (
            {"attention": DotProduct(num_kv_heads=3)},
            r"model\.num_heads 2 is not divisible by model\.attention\.num_kv_heads 3",
        ),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=f"^{message}") as error:
        ModelConfig(**SETTINGS | settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SlidingWindow(size=3, positions=Rotary()),
            r"model\.sliding_window\.positions .*\.layers is None: list the",
        ),
        (lambda: RelativeBias(num_buckets=31), r"model\.positions\.num_buckets is 31: it must be even"),
        (lambda: RelativeBias(max_distance=16), r"model\.positions\.max_distance is 16 and .*num_buckets is 32"),
        (lambda: Rotary(fraction=1.5), r"model\.positions\.fraction is 1\.5: it must be above 0 and at most 1; "),
        (
            lambda: Llama3Scaling(low_frequency_factor=4.0),
            r"model\.positions\.scaling\.low_frequency_factor is 4\.0: .* less than",
        ),
        (
            lambda: YarnScaling(slow_turns=33.0),
            r"model\.positions\.scaling\.slow_turns is 33\.0: .* at most .*fast_turns",
        ),
    ],
)
def test_impossible_parts_are_named(make, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        make()


# Residual commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ("", 2),
        ("n", 20),
        ("d", 3),
        ("a", 102),
        ("da", 103),
        ("ad", 103),
        ("nda", 121),
        ("dan", 1030),
        ("and", 1021),
        ("adn", 1030),
        ("ddn", 40),
        ("aa", 202),
    ],
)
def test_residual_commands_apply_left_to_right(commands, expected):
    """x = 2, the norm multiplies by 10, dropout adds 1, the residual is 100; without one, `a` does nothing."""
    out = apply_commands(commands, jnp.array([2.0]), jnp.array([100.0]), norm=lambda x: 10 * x, dropout=lambda x: x + 1)
    assert out.tolist() == [expected]
    assert apply_commands("dan", jnp.array([2.0]), None, norm=lambda x: 10 * x, dropout=lambda x: x + 1) == 30


@pytest.mark.parametrize(("commands", "expected"), [("da", 106), ("nda", 142), ("dan", 1060), ("n", 20)])
def test_a_factor_is_of_what_joins_the_residual(commands, expected):
    like = {"norm": lambda x: 10 * x, "dropout": lambda x: x + 1, "scale": 2.0}
    assert apply_commands(commands, jnp.array([2.0]), jnp.array([100.0]), **like) == expected


@pytest.mark.parametrize("place", ["pre", "post", "final"])
@pytest.mark.parametrize("commands", ["x", "dar", "nan", "N"])
def test_residual_commands_are_checked(place, commands):
    with pytest.raises(
        ValueError, match=rf"^model\.residual\.{place} is '{commands}': use the letters n .* d .* a .*\Z"
    ):
        Residual(**{place: commands})


@pytest.mark.parametrize("branches", ["parallel", "parallel_one_norm"])
def test_nothing_changes_the_sum_of_parallel_branches(branches):
    Residual(post="nda", branches=branches)
    with pytest.raises(
        ValueError, match=rf"branches is '{branches}', but .*post is 'dan', .*: end model\.residual\.post with 'a'"
    ):
        Residual(post="dan", branches=branches)


@pytest.mark.parametrize("layers", [(-1,), (0, 6)])
def test_layers_that_rotate_are_layers_of_a_stack(layers):
    with pytest.raises(
        ValueError, match=rf"^model\.positions\.layers is {re.escape(str(layers))}, but .* at most 6 layers"
    ):
        ModelConfig(vocab_size=7, positions=Rotary(layers=layers))


def test_the_scheme_of_windows_names_no_layers():
    with pytest.raises(ValueError, match=r"^model\.sliding_window\.positions\.layers is \(0,\): set it to None"):
        SlidingWindow(size=3, layers=(0,), positions=Rotary(layers=(0,)))


def test_a_norm_of_all_heads_needs_a_norm():
    with pytest.raises(ValueError, match=r"^model\.attention\.qk_norm_width is 'all_heads', but .*qk_norm is None"):
        DotProduct(qk_norm_width="all_heads")
