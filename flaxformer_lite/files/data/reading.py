"""From texts to records: tokenized pairs, and the data of an evaluation."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.base.console import one_of_each, warn_once
from flaxformer_lite.core.data import Lengths, Pair, TokenPair
from flaxformer_lite.core.data.dataset import Dataset, Samplers
from flaxformer_lite.core.data.token_arrays import TokenArrays, TokenShard
from flaxformer_lite.core.objectives import BaseObjective
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.special_ids import cut_warning, truncated
from flaxformer_lite.files.chats.translation_prompt import TranslationPrompt
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.data.refused import Origin, check_labels, tell_refused
from flaxformer_lite.files.records import READERS, Reading
from flaxformer_lite.files.tokenizers.subword_sampling import SubwordSampler, SubwordSampling


def reader_of(
    objective: BaseObjective,
    tokenizers: Tokenizers,
    folder: Path,
    longest: Lengths,
    translation: TranslationPrompt | None = None,
    *,
    whole: bool = False,
) -> Tokenizers:
    """Returns the tokenizers that read pairs as the objective needs them. A run folder without a chat template gets one.

    whole: see `LabelTokenizers`.

    Raises: ValueError if the plain template is needed, and the tokenizer has no EOS.
    """
    return READERS[objective.reads].reader(tokenizers, Reading(objective, folder, longest, translation, whole))


def tokenize(pairs: Sequence[Pair], tokenizers: Tokenizers, origin: Origin | None = None) -> TokenArrays:
    """Returns the records of pairs. Raises: ValueError for pairs that cannot be read, if their source does not drop them."""
    records = TokenArrays([TokenShard.of_pairs(pairs, tokenizers)])
    tell_refused(records, tokenizers, origin, pairs)
    return records


def evaluation_records(
    pairs: Sequence[Pair],
    tokenizers: Tokenizers,
    objective: BaseObjective,
    longest: Lengths,
    warn: Callable[[str], None],
    origin: Origin | None = None,
) -> Sequence[TokenPair]:
    """Tokenizes evaluation data. Pairs of a translation that are too long are cut here; other objectives cut rows.

    `warn` then gets a line with the numbers of the records. The cut leaves room for EOS.
    """
    records = tokenize(pairs, tokenizers, origin)
    check_labels(records, objective, origin, pairs)
    if not objective.translates:
        return records
    cut_records = []
    room = 0 if tokenizers.target.ends_pairs else 1
    with one_of_each(warn) as say:
        for line, record in enumerate(records, 1):
            too_long = cut_warning(say, line)
            source = truncated(record.source, longest.source - room, "source", "max_source_length", too_long)
            target = truncated(record.target, longest.target - room, "target", "max_target_length", too_long)
            if tokenizers.target.ends_pairs:
                source = np.append(source[:-2], record.source[-2:])
                target = np.append(target[:-1], record.target[-1:])
            cut_records.append(record._replace(source=source, target=target))
    return cut_records


def samplers_of(sampling: SubwordSampling | None, tokenizers: Tokenizers) -> Samplers | None:
    """Returns the samplers that segment texts anew, by `data.subword_sampling`. Raises: ValueError for another tokenizer."""
    if sampling is None:
        return None
    source = SubwordSampler(tokenizers.source, sampling)
    joint = tokenizers.source is tokenizers.target
    return Samplers(source, source if joint else SubwordSampler(tokenizers.target, sampling), sampling.room)


def tell_notes(dataset: Dataset[Any]) -> None:
    """Warns of the records that the objective cut or left out."""
    for note in dataset.notes:
        warn_once(note)


class EvalData:
    """Pairs for evaluation, as text, as records of token ids, and as batches.

    parts: the pairs of each source of a mixture, by its name; empty without a mixture.
    warn: gets a line on the records that are cut (`evaluation_records`). origin: the source of the pairs, for messages.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        parts: Mapping[str, slice],
        objective: BaseObjective,
        config: DataConfig,
        tokenizers: Tokenizers,
        start_id: int | None,
        warn: Callable[[str], None],
        origin: Origin | None = None,
    ):
        self.pairs, self.parts = pairs, parts
        self.records = evaluation_records(pairs, tokenizers, objective, config.longest, warn, origin)

        def dataset(place: slice) -> Dataset[Any]:
            records = self.records[place]
            return Dataset.evaluation(records, objective, config, tokenizers.target, start_id, place.start or 0)

        self.dataset = dataset(slice(None))
        self.datasets = list(map(dataset, parts.values())) or [self.dataset]
        for made in (self.dataset, *self.datasets):
            tell_notes(made)
