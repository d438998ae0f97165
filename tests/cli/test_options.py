"""Laws of the options that several commands share."""

import argparse
import inspect

from flaxformer_lite.cli.options import add_setting, add_weights, spelled, typed_settings
from flaxformer_lite.core.base.bounds import WEIGHTS_DTYPES
from flaxformer_lite.run import load


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for option, setting in (("--beam-size", "beam_size"), ("--top-k", "sampling.top_k"), ("--best", "sampling.best")):
        add_setting(parser, option, setting, int, "N", "about it")
    parser.add_argument("--seed", type=int)
    return parser.parse_args(words)


def test_what_was_typed_as_settings():
    assert typed_settings(parsed("--beam-size", "0", "--top-k", "3")) == {"beam_size": 0, "top_k": 3}
    assert typed_settings(parsed()) == {}


def test_typed_options_stand_for_settings_in_messages():
    assert spelled(parsed("--top-k", "3")) == {"decode.sampling.top_k": "--top-k"}
    assert spelled(argparse.Namespace()) == {}


def test_the_types_of_weights_are_those_that_load_takes():
    """Law: the command line and `load` have the same types, and the same default."""
    parser = argparse.ArgumentParser()
    add_weights(parser)
    assert [parser.parse_args(["--weights-dtype", name]).weights_dtype for name in WEIGHTS_DTYPES] == [*WEIGHTS_DTYPES]
    default = inspect.signature(load).parameters["weights_dtype"].default
    assert parser.parse_args([]).weights_dtype == default == WEIGHTS_DTYPES[0]
