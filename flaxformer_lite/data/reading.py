"""From texts to records: tokenized pairs, and the data of an evaluation."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.data.dataset import Dataset, Samplers
from flaxformer_lite.data.records import Lengths, Pair, RowMaker, TokenPair
from flaxformer_lite.data.refused import Origin, tell_refused
from flaxformer_lite.data.token_arrays import TokenArrays, TokenShard
from flaxformer_lite.text import Tokenizers
from flaxformer_lite.text.special_ids import cut, cut_warning
from flaxformer_lite.text.subword_sampling import SubwordSampler, SubwordSampling


def tokenize(pairs: Sequence[Pair], tokenizers: Tokenizers, origin: Origin | None = None) -> TokenArrays:
    """Returns the records of pairs. Raises: ValueError for pairs that cannot be read, if their source does not drop them."""
    records = TokenArrays([TokenShard.of(pairs, tokenizers)])
    tell_refused(records, tokenizers, origin, pairs)
    return records


def evaluation_records(
    pairs: Sequence[Pair],
    tokenizers: Tokenizers,
    objective: RowMaker[Any],
    longest: Lengths,
    warn: Callable[[str], None],
    origin: Origin | None = None,
) -> Sequence[TokenPair]:
    """Tokenizes evaluation data. Unless the objective cuts them itself, records that are too long are cut here.

    `warn` then gets a line with the number of the record. The cut leaves room for EOS.
    """
    records = tokenize(pairs, tokenizers, origin)
    if not objective.truncates_records:
        return records
    found = []
    for line, record in enumerate(records, 1):
        too_long = cut_warning(warn, line)
        room = 0 if tokenizers.target.ends_pairs else 1
        source = cut(record.source, longest.source - room, "source", "max_source_length", too_long)
        target = cut(record.target, longest.target - room, "target", "max_target_length", too_long)
        if tokenizers.target.ends_pairs:
            source, target = np.append(source[:-2], record.source[-2:]), np.append(target[:-1], record.target[-1:])
        found.append(record._replace(source=source, target=target))
    return found


def samplers_of(sampling: SubwordSampling | None, tokenizers: Tokenizers) -> Samplers | None:
    """Returns what segments texts anew, by `data.subword_sampling`. Raises: ValueError for a tokenizer of another kind."""
    if sampling is None:
        return None
    source = SubwordSampler(tokenizers.source, sampling)
    joint = tokenizers.source is tokenizers.target
    return Samplers(source, source if joint else SubwordSampler(tokenizers.target, sampling), sampling.room)


class EvalData:
    """Pairs for evaluation, as text, as records of token ids, and as batches.

    parts: the pairs of each source of a mixture, by its name; empty without a mixture.
    warn: gets a line for each record that is cut (`evaluation_records`). origin: where the pairs are from, for messages.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        parts: Mapping[str, slice],
        objective: RowMaker[Any],
        config: DataConfig,
        tokenizers: Tokenizers,
        start_id: int | None,
        warn: Callable[[str], None],
        origin: Origin | None = None,
    ):
        self.pairs, self.parts = pairs, parts
        self.records = evaluation_records(pairs, tokenizers, objective, config.longest, warn, origin)

        def dataset(records: Sequence[TokenPair]) -> Dataset[Any]:
            return Dataset.evaluation(records, objective, config, tokenizers.target, start_id)

        self.dataset = dataset(self.records)
        self.datasets = [dataset(self.records[part]) for part in parts.values()] or [self.dataset]
