"""Oracle: messages rewritten by hand, for what was typed, what could have been, and what no option says."""

import argparse
import inspect

import pytest

from flaxformer_lite.base.bounds import WEIGHTS_DTYPES
from flaxformer_lite.cli.options import add_setting, add_weights, as_flags, typed_settings
from flaxformer_lite.run import load


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for option, setting in (("--beam-size", "beam_size"), ("--top-k", "sampling.top_k"), ("--best", "sampling.best")):
        add_setting(parser, option, setting, int, "N", "about it")
    parser.add_argument("--seed", type=int)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "message", "expected"),
    [
        (("--beam-size", "0"), "decode.beam_size is 0: give 1", "--beam-size is 0: give 1"),
        ((), "decode.beam_size is 0: give 1", "decode.beam_size (--beam-size) is 0: give 1"),
        (("--beam-size", "2"), "give decode.alpha, decode.beam_size.", "give decode.alpha, --beam-size."),
        (("--top-k", "3"), "decode.sampling.top_k is -1", "--top-k is -1"),
        (("--top-k", "3"), "x, but decode.sampling draws", "x, but --top-k draws"),
        (("--top-k", "3", "--best", "1"), "x, but decode.sampling draws", "x, but --top-k and --best draws"),
        ((), "x, but decode.sampling draws", "x, but decode.sampling draws"),
        (("--beam-size", "2"), "decode.beam_size_limit and model.decode", "decode.beam_size_limit and model.decode"),
        (("--seed", "-1"), "seed is -1: seed is no number", "--seed is -1: seed is no number"),
        ((), "seed is -1", "seed is -1"),
        (("--seed", "1"), "nothing is wrong", "nothing is wrong"),
    ],
)
def test_settings_are_called_as_they_were_typed(words: tuple[str, ...], message: str, expected: str):
    assert as_flags(message, parsed(*words)) == expected


def test_what_was_typed_as_settings():
    assert typed_settings(parsed("--beam-size", "0", "--top-k", "3")) == {"beam_size": 0, "top_k": 3}
    assert typed_settings(parsed()) == {}
    assert as_flags("decode.beam_size is 0", argparse.Namespace()) == "decode.beam_size is 0"


def test_the_types_of_weights_are_those_that_load_takes():
    """Law: the command line and `load` have the same types, and the same default."""
    parser = argparse.ArgumentParser()
    add_weights(parser)
    assert [parser.parse_args(["--weights-dtype", name]).weights_dtype for name in WEIGHTS_DTYPES] == [*WEIGHTS_DTYPES]
    default = inspect.signature(load).parameters["weights_dtype"].default
    assert parser.parse_args([]).weights_dtype == default == WEIGHTS_DTYPES[0]
