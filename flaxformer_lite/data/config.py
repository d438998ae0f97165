"""The settings of the data: sources, tokenizer, batches."""

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from flaxformer_lite.bounds import PositiveInt, check_bounds
from flaxformer_lite.data.batch_plan import Bucket, make_buckets
from flaxformer_lite.data.records import Lengths
from flaxformer_lite.data.rows import RowMaker
from flaxformer_lite.data.sources import OptionalSource
from flaxformer_lite.text.kinds import OptionalTokenizerConfig
from flaxformer_lite.text.subwords import SentencePiece

Length = Annotated[int, Ge(2)]
"""Tokens in a row: at least one, and EOS."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What is trained and evaluated on, how it is tokenised, and how batches are cut."""

    train: OptionalSource = None
    """What the model learns from; None where the weights come from elsewhere and are used only."""
    eval: OptionalSource = None
    """What it is watched on while training, for the best checkpoints and early stopping."""
    test: OptionalSource = None
    """What only the `evaluate` command looks at."""
    tokenizer: OptionalTokenizerConfig = SentencePiece()
    """Trained on the training text only, and kept in the run folder; for both sides where `target_tokenizer` is None. None: only
    token ids are read and written."""
    target_tokenizer: OptionalTokenizerConfig = None
    """The target's own tokenizer, with `model.target_vocab_size` entries."""
    tokens_per_batch: PositiveInt = 4096
    """Positions of the source, and as many of the target, that a batch aims at, padding included. The rows of a bucket
    are max(1, round(tokens_per_batch / length / rows_multiple)) * rows_multiple, so a long bucket holds more positions
    than that: at the defaults 64 rows of 256, which are 16,384."""
    rows_multiple: PositiveInt = 64
    """Rows of a batch are a multiple of this, so that they divide over the devices; the number of devices must divide it."""
    bucket_lengths: tuple[Length, ...] = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    """Lengths that pairs are padded to, in tokens with EOS; each is one compiled shape. Documents fill rows of one length."""
    max_source_length: Length = 256
    """In tokens with EOS. Training drops and counts longer pairs; evaluation and translation cut, with a warning. Where documents
    fill rows, this is how long a row of the encoder is; whole texts to classify or embed are cut to it."""
    max_target_length: Length = 256
    """The same for targets, and for rows of the decoder."""
    tokenized: bool = False
    """The text is already tokenised, words and punctuation apart: BLEU then splits at spaces only (sacreBLEU's `tokenize=none`)."""

    def __post_init__(self) -> None:
        check_bounds(self, "data")
        if not self.bucket_lengths:
            raise ValueError("data.bucket_lengths is (): it must have one or more lengths of at least 2")

    @property
    def longest(self) -> Lengths:
        return Lengths(self.max_source_length, self.max_target_length)

    def buckets_to(self, longest: Lengths) -> list[Bucket]:
        """The shapes of batches of rows of different lengths, up to `longest`."""
        return self._buckets(self.bucket_lengths, longest)

    def bucket_of(self, row: Lengths) -> Bucket:
        """The one shape of batches whose rows are all filled."""
        return self._buckets((), row)[0]

    def _buckets(self, lengths: tuple[int, ...], longest: Lengths) -> list[Bucket]:
        return make_buckets(lengths, longest, tokens_per_batch=self.tokens_per_batch, rows_multiple=self.rows_multiple)


def batch_shapes(objective: RowMaker[Any], config: DataConfig) -> list[Bucket]:
    """The shapes of the batches that an objective makes: one where all rows are filled."""
    packed_row, longest = objective.packed_row(config.longest), objective.longest_row(config.longest)
    return config.buckets_to(longest) if packed_row is None else [config.bucket_of(packed_row)]
