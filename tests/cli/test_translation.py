"""The options that translate and evaluate share, without a model: what they set, and what they refuse."""

from dataclasses import replace
from typing import Any

import pytest

from flaxformer_lite.cli.options import TranslationOptions, typed, typed_for_translations, typed_settings
from flaxformer_lite.core.search.settings import Sampling
from flaxformer_lite.run.choosing import candidate_settings
from tests.support.commands import evaluate_arguments
from tests.support.experiments import tiny_config

CONFIG = replace(tiny_config(), decode=replace(tiny_config().decode, beam_size=5))


def decode_settings(*options: str) -> dict[str, Any]:
    arguments = evaluate_arguments("run", *options)
    return candidate_settings(
        CONFIG.decode, **typed(TranslationOptions, arguments).choice(), **typed_settings(arguments)
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {}),
        (["--alpha", "1.5", "--beam-size", "3"], {"alpha": 1.5, "beam_size": 3}),
        (["--early-stopping", "False"], {"early_stopping": False}),
        (["--early-stopping", "never"], {"early_stopping": "never"}),
        (["--minimum-risk", "chrf"], {"num_hypotheses": 5}),
        (["--minimum-risk", "chrf", "--beam-size", "9"], {"num_hypotheses": 9, "beam_size": 9}),
        (
            ["--minimum-risk", "bleu", "--samples", "7", "--temperature", "0.5"],
            {"num_hypotheses": 7, "beam_size": 1, "sampling": Sampling(temperature=0.5)},
        ),
    ],
)
def test_options_become_settings_of_decoding(options: list[str], expected: dict[str, Any]):
    assert decode_settings(*options) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--samples", "7"], "--samples are candidates of --best-by and --minimum-risk"),
        (["--minimum-risk", "chrf", "--temperature", "0.5"], "--temperature is for samples: add --samples"),
        (
            ["--minimum-risk", "chrf", "--beam-size", "1"],
            "there is only 1: raise decode.num_hypotheses, decode.beam_size or the number of samples",
        ),
        (["--best-by", "metric", "--minimum-risk", "chrf"], "both choose the answer: leave one out"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        decode_settings(*options)


def test_settings_of_translations_count_whatever_they_are_set_to():
    """Law: a 0 and a False that were typed are told to a run that makes no translations."""
    arguments = evaluate_arguments("run", "--alpha", "0", "--early-stopping", "False", "--terms", "file")
    assert sorted(typed_for_translations(arguments)) == ["--alpha", "--early-stopping", "--terms"]
