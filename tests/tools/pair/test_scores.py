"""Oracle: a translator of pieces that answers each source with its own pieces, so a copy scores 100."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.files.metrics import MetricConfig
from flaxformer_lite.run.scoring import ScoredData
from flaxformer_lite.tools.pair import score_int8

TEXTS = ["a dog runs over the grass", "two cats sleep in the sun"]


class Copying:
    """CTranslate2's interface; `calls` has the options of each call."""

    calls: list[dict[str, Any]]

    def __init__(self, folder: str, compute_type: str) -> None:
        assert compute_type == "int8"
        Copying.calls = []

    def translate_batch(self, sources: list[list[str]], **options: Any) -> list[SimpleNamespace]:
        Copying.calls.append(options)
        return [SimpleNamespace(hypotheses=[pieces]) for pieces in sources]


def score(monkeypatch: pytest.MonkeyPatch, max_source_length: int) -> dict[str, Any]:
    monkeypatch.setitem(sys.modules, "ctranslate2", SimpleNamespace(Translator=Copying))
    tokenizer = Characters().train(TEXTS, 60)
    decode = DecodeConfig(beam_size=3, alpha=0.7)
    config = SimpleNamespace(decode=decode, data=SimpleNamespace(max_source_length=max_source_length))
    run = SimpleNamespace(required_tokenizers=Tokenizers(tokenizer, tokenizer), config=config)
    pairs = [Pair(text, text) for text in TEXTS]
    return score_int8(run, "folder", ScoredData("test", pairs, {}, MetricConfig()))  # type: ignore[arg-type]


def test_an_export_is_scored_by_the_runs_own_beam(monkeypatch: pytest.MonkeyPatch):
    assert score(monkeypatch, 40)["bleu"] == pytest.approx(100)
    (options,) = Copying.calls
    assert (options["beam_size"], options["length_penalty"]) == (3, 0.7)


def test_a_long_source_is_cut_as_the_run_cuts_it(monkeypatch: pytest.MonkeyPatch):
    """A copy of the first 11 characters of each text has less than all of its words."""
    assert score(monkeypatch, 12)["bleu"] < 50
