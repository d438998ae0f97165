"""Translation: an encoder reads one text, a decoder writes another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flaxformer_lite.core.base.bounds import Rate
from flaxformer_lite.core.data import Lengths, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows, TokenArrays
from flaxformer_lite.core.objectives.base import HeadObjective
from flaxformer_lite.core.objectives.batch import Batch, encoder_decoder_row
from flaxformer_lite.core.text import SpecialIds, Tokenizer


@dataclass(frozen=True, kw_only=True)
class Seq2Seq(HeadObjective):
    """Translation: the encoder reads the source and EOS; the decoder reads `decode.bos_id` and predicts the target and EOS."""

    kind: Literal["seq2seq"] = "seq2seq"
    label_smoothing: Rate = 0.1
    """Probability spread evenly over all V classes, the target's own included. Evaluation does not smooth."""

    unit = "pairs"
    translates = True
    decoder_special_ids = ("eos", "pad")

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns one row a record. A tokenizer that starts every source with special ids has them added, within the length."""
        prefix = np.array([] if tokenizer is None else tokenizer.as_source([])[:-1], np.int32)
        arrays = TokenArrays.of(records)
        max_tokens = longest.source - 1
        sizes = arrays.sizes  # without EOS after the source, and the start before the target
        if tokenizer is not None and tokenizer.ends_pairs:
            return Rows(sizes, arrays.__getitem__)
        if not len(prefix):
            return Rows(sizes + 1, arrays.__getitem__)

        def with_prefix(i: int) -> TokenPair:
            record = arrays[i]
            return record._replace(source=np.concatenate([prefix, record.source])[:max_tokens])

        sizes[:, 0] = np.minimum(sizes[:, 0] + len(prefix), max_tokens)
        return Rows(sizes + 1, with_prefix)

    def example(
        self, record: TokenPair, lengths: Lengths, generator: np.random.Generator, special: SpecialIds
    ) -> Batch:
        return encoder_decoder_row(record, lengths, special)
