"""Lengths of training texts: counted by hand."""

import dataclasses

import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.data.text_files import ParallelText
from flaxformer_lite.tools.report.facts import text_lengths
from tests.support.experiments import tiny_config
from tests.support.files import file

PAIRS = [Pair("abc", "a"), Pair("abcde", "ab"), Pair("abcdefghijk", "abc")]


def test_lengths_and_padding_are_those_counted_by_hand(tmp_path):
    """Shapes of 6 and 8 positions a side: rows of 3 + EOS and 5 + EOS fit the first, 11 + EOS fits none."""
    source = ParallelText(
        source=file(tmp_path, "a", "".join(f"{pair.source}\n" for pair in PAIRS)),
        target=file(tmp_path, "b", "".join(f"{pair.target}\n" for pair in PAIRS)),
    )
    shapes = {"bucket_lengths": (6,), "max_source_length": 8, "max_target_length": 6}
    config = tiny_config(data=DataConfig(train=source, eval=source, tokenizer=Characters(), **shapes))
    tokenizer = Characters().train(["abcdefghijk"], 149)
    lengths = text_lengths(config, Tokenizers(tokenizer, tokenizer))
    assert lengths.records == 3
    assert lengths.counts == {"source": {3: 1, 5: 1, 11: 1}, "target": {1: 1, 2: 1, 3: 1}}
    assert lengths.padding == {"6 x 6": pytest.approx(1 - (4 + 2 + 6 + 3) / (2 * 12))}
    assert lengths.dropped == 1
    without = dataclasses.replace(config, data=dataclasses.replace(config.data, train=None))
    with pytest.raises(ValueError, match=r"data\.train is None"):
        text_lengths(without, Tokenizers(tokenizer, tokenizer))
