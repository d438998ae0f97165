"""Oracles: settings that cannot be, and the one line that each is answered with; hand-worked residual commands."""

import jax.numpy as jnp
import pytest

from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import (
    POST_NORM,
    PRE_NORM,
    DecoderSize,
    LanguageModelHead,
    ModelConfig,
    Pooler,
    Residual,
    SlidingWindow,
)
from flaxformer_lite.model.positions import Learned, Rotary
from flaxformer_lite.model.transformer import apply_commands

NEITHER = {"num_encoder_layers": 0, "num_decoder_layers": 0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({name: value}, rf"^model\.{name} is {value}: it must be at least 1")
            for name in ("d_model", "num_heads", "d_ff", "scan_unroll")
            for value in (0, -2)
        ),
        *(
            ({name: -2}, rf"^model\.{name} is -2: it must be at least 0")
            for name in ("vocab_size", "num_encoder_layers", "num_decoder_layers", "num_token_types")
        ),
        (
            NEITHER,
            r"^model\.num_encoder_layers and model\.num_decoder_layers are both 0: one of them must be at least 1\Z",
        ),
        (
            {"target_vocab_size": 0, "share_source_target": False},
            r"^model\.target_vocab_size is 0: it must be at least 1, or None",
        ),
        (
            {"target_vocab_size": 19},
            r"^model\.target_vocab_size is 19, but .*: set .* to None, or model\.share_source_target to False\Z",
        ),
        ({"vocab_size": 0}, r"^model\.vocab_size is 0, .* model\.head .*: set model\.head to None, or a vocab_size\Z"),
        *(
            (
                {"sliding_window": window, "num_decoder_layers": layers},
                r"^model\.sliding_window is .*: only layers of a decoder",
            )
            for window, layers in ((SlidingWindow(size=3, layers=(0, 6)), 6), (SlidingWindow(size=3), 0))
        ),
        (
            {"position_padding_id": 1, "positions": Learned()},
            r"^model\.position_padding_id is 1, .*: set model\.positions\.offset to at least 1\Z",
        ),
        (
            {"decoder": DecoderSize(num_heads=3)},
            r"^model\.d_model 10 is not divisible by model\.decoder\.num_heads 3: change one, or set .*d_key\Z",
        ),
        ({"d_model": 7}, r"^model\.d_model 7 is not divisible by model\.num_heads 2: change one, or set .*d_key\Z"),
        (
            {"attention": DotProduct(num_kv_heads=3)},
            r"^model\.num_heads 2 is not divisible by model\.attention\.num_kv_heads 3",
        ),
    ],
)
def test_impossible_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message) as error:
        ModelConfig(**{"vocab_size": 13, "d_model": 10, "num_heads": 2} | settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pooler(num_classes=-1), r"^model\.pooler\.num_classes is -1: it must be at least 0; "),
        (lambda: LanguageModelHead(scale=0.0), r"^model\.head\.scale is 0\.0: it must be above 0 "),
        (lambda: LanguageModelHead(soft_cap=-2.0), r"^model\.head\.soft_cap is -2\.0: it must be above 0 .*, or None"),
        (lambda: LanguageModelHead(loss_chunk=0), r"^model\.head\.loss_chunk is 0: it must be at least 1, or None"),
        (lambda: DecoderSize(d_ff=0), r"^model\.decoder\.d_ff is 0: it must be at least 1, or None"),
        (lambda: SlidingWindow(size=0), r"^model\.sliding_window\.size is 0: it must be at least 1"),
        (
            lambda: SlidingWindow(size=3, positions=Rotary()),
            r"^model\.sliding_window\.positions .*\.layers is None: list the layers, or set model\.positions,",
        ),
    ],
)
def test_impossible_parts_are_named(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


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
    """x = 2, the norm multiplies by 10, dropout adds 1, the residual is 100."""
    out = apply_commands(commands, jnp.array([2.0]), jnp.array([100.0]), norm=lambda x: 10 * x, dropout=lambda x: x + 1)
    assert out.tolist() == [expected]


@pytest.mark.parametrize(("commands", "expected"), [("a", 2), ("nda", 21), ("dan", 30)])
def test_without_a_residual_a_does_nothing(commands, expected):
    out = apply_commands(commands, jnp.array([2.0]), None, norm=lambda x: 10 * x, dropout=lambda x: x + 1)
    assert out.tolist() == [expected]


def test_named_residuals():
    assert Residual(pre="n", post="da", final="n") == PRE_NORM == Residual()
    assert Residual(pre="", post="dan", final="") == POST_NORM


@pytest.mark.parametrize("place", ["pre", "post", "final"])
@pytest.mark.parametrize("commands", ["x", "dar", "nan", "N"])
def test_residual_commands_are_checked(place, commands):
    with pytest.raises(
        ValueError, match=rf"^model\.residual\.{place} is '{commands}': use the letters n .* d .* a .*\Z"
    ):
        Residual(**{place: commands})
