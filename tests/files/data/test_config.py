"""Oracle: rows of the buckets worked out by hand."""

import pytest

from flaxformer_lite.core.data.batch_plan import batch_shapes
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.files.data import DataConfig, Dates
from flaxformer_lite.files.tokenizers import SentencePiece
from flaxformer_lite.files.tokenizers.subword_sampling import BPEDropout


def test_the_rows_of_the_default_buckets():
    """Oracle: 4,096 / length / 64, rounded to at least 1, times 64: 64 rows of 256 are four times 4,096 positions."""
    config = DataConfig(train=Dates())
    rows = {bucket.lengths.source: bucket.rows for bucket in batch_shapes(Seq2Seq(), config)}
    assert rows == {8: 512, 16: 256, 24: 192, 32: 128, 48: 64, 64: 64, 96: 64, 128: 64, 192: 64, 256: 64}


def test_sampling_would_cut_the_symbols_of_the_user():
    with pytest.raises(ValueError, match=r"^data\.subword_sampling would cut data\.tokenizer\.user_symbols \('<a>',\)"):
        DataConfig(tokenizer=SentencePiece(user_symbols=("<a>",)), subword_sampling=BPEDropout())
