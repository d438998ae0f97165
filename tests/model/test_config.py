"""Oracles: settings that cannot be, and the one line that each is answered with."""

import pytest

from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.positions import Learned, Rotary

NEITHER = {"num_encoder_layers": 0, "num_decoder_layers": 0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(
            ({name: value}, rf"^model\.{name} is {value}: it must be at least 1; the default is \d+\Z")
            for name in ("d_model", "num_heads", "d_ff", "scan_unroll")
            for value in (0, -2)
        ),
        *(
            ({name: -2}, rf"^model\.{name} is -2: it must be at least 0(; the default is \d)?\Z")
            for name in ("vocab_size", "num_encoder_layers", "num_decoder_layers", "num_token_types")
        ),
        (NEITHER, r"^model\.num_encoder_layers and model\.num_decoder_layers are both 0: give one at least 1\Z"),
        (
            {"target_vocab_size": 0, "share_source_target": False},
            r"^model\.target_vocab_size is 0: it must be at least 1, or None; the default is None\Z",
        ),
        (
            {"target_vocab_size": 19},
            r"^model\.target_vocab_size is 19, but .*: leave it out, or set model\.share_source_target to False\Z",
        ),
        ({"vocab_size": 0}, r"^model\.vocab_size is 0, .* model\.head .*: set model\.head to None\Z"),
        (
            {"window_layers": (0,)},
            r"^model\.window_layers is \(0,\), but model\.attention_window is None: give both or none\Z",
        ),
        (
            {"window_layers": (0, 6), "attention_window": 3},
            r"^model\.window_layers has 6, but the decoder's layers are 0 to 5\Z",
        ),
        (
            {"window_positions": Rotary(), "attention_window": 3},
            r"^model\.window_positions .* model\.window_layers, which is None: name the layers, or set model\.positions\Z",
        ),
        (
            {"position_padding_id": 1, "num_encoder_layers": 0},
            r"^model\.position_padding_id is 1, .*, but model\.num_encoder_layers is 0: leave it out\Z",
        ),
        (
            {"position_padding_id": 1, "positions": Learned()},
            r"^model\.position_padding_id is 1, .*: set model\.positions\.offset to at least 1\Z",
        ),
        ({"decoder_d_ff": 0}, r"^model\.decoder_d_ff is 0: it must be at least 1, or None; .*\Z"),
        (
            {"decoder_num_heads": 3},
            r"^model\.d_model 10 is not divisible by model\.decoder_num_heads 3: change one, or set .*d_key\Z",
        ),
        *(
            (
                settings,
                rf"^model\.attention_window is {settings['attention_window']}: .*, in a model with a decoder, or leave it out\Z",
            )
            for settings in ({"attention_window": 0}, {"attention_window": 3, "num_decoder_layers": 0})
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


def test_a_number_of_classes_is_not_negative():
    with pytest.raises(
        ValueError, match=r"^model\.pooler\.num_classes is -1: it must be at least 0; the default is 0\Z"
    ):
        Pooler(num_classes=-1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scale": 0.0}, r"^model\.head\.scale is 0\.0: it must be above 0 and finite; the default is 1\.0\Z"),
        ({"soft_cap": -2.0}, r"^model\.head\.soft_cap is -2\.0: it must be above 0 and finite, or None; .*\Z"),
    ],
)
def test_scales_and_caps_of_logits_are_above_zero(settings, message):
    with pytest.raises(ValueError, match=message):
        LanguageModelHead(**settings)
