"""From texts to records: tokenized pairs, and the data of an evaluation."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.console import one_of_each, warn_once
from flaxformer_lite.core.data.dataset import Dataset, Samplers
from flaxformer_lite.core.data.records import Lengths, Pair, TokenPair
from flaxformer_lite.core.data.token_arrays import TokenArrays, TokenShard
from flaxformer_lite.core.objectives import BaseObjective
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.special_ids import cut_warning, truncated
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.files.data.refused import Origin, check_labels, tell_refused
from flaxformer_lite.files.records.candidates import CandidateTokenizers, in_lines
from flaxformer_lite.files.records.words import LabelsWords, LabelTokenizers
from flaxformer_lite.files.text.chat import BOS, EOS, MARK, PLAIN, ChatTemplate, ChatTokenizers, read_chat_template
from flaxformer_lite.files.text.files import check_file
from flaxformer_lite.files.text.kinds import CHAT_TEMPLATE
from flaxformer_lite.files.text.messages import Conversation
from flaxformer_lite.files.text.subword_sampling import SubwordSampler, SubwordSampling
from flaxformer_lite.files.text.translation_prompt import SOURCE_ALONE, TranslationPrompt


@runtime_checkable
class ReadsConversations(Protocol):
    """The part of an objective that decides how conversations are read, as `Instruction` has it."""

    template: str | None
    """File of a chat template; None: that of the tokenizer's run, or a plain one."""
    answers: Literal["all", "last"]
    """The answers of a conversation that count."""


@runtime_checkable
class ReadsCandidates(Protocol):
    """The part of an objective that decides how queries and candidates are read, as `CandidateTexts` has it."""

    @property
    def prompt_texts(self) -> tuple[str, str]:
        """The texts before each query and before each candidate."""


def tokenizer_texts(objective: BaseObjective, pairs: Iterable[Pair]) -> Iterable[Pair]:
    """Returns the texts that a tokenizer is trained on, in one pass or several: of pairs, or of conversations by the template."""
    if isinstance(objective, ReadsCandidates):
        return candidate_texts(objective, pairs)
    return chat_texts(objective, pairs) if isinstance(objective, ReadsConversations) else pairs


def candidate_texts(objective: ReadsCandidates, pairs: Iterable[Pair]) -> Iterator[Pair]:
    if any(objective.prompt_texts):
        yield Pair(*objective.prompt_texts)
    yield from map(in_lines, pairs)


def chat_texts(objective: ReadsConversations, pairs: Iterable[Pair]) -> Iterator[Pair]:
    template = ChatTemplate(own_template(objective), {"bos_token": BOS, "eos_token": EOS})
    template.compile()
    for pair in pairs:
        with contextlib.suppress(ValueError):  # a pair that the template refuses is reported when it is tokenized
            messages, tools, *_ = template.fitted(*Conversation.of_pair(*pair[:2]))
            yield Pair("", MARK.sub("", template.conversation(messages, tools)))


def own_template(objective: ReadsConversations) -> str:
    """Returns the text of the template for a run without one of its own. Raises: ValueError if its file cannot be read."""
    if objective.template is None:
        return PLAIN
    check_file(objective.template)
    return Path(objective.template).read_text(encoding="utf-8")


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
    if isinstance(objective, ReadsCandidates):
        return CandidateTokenizers(tokenizers.source, tokenizers.target, *objective.prompt_texts)
    if isinstance(objective, LabelsWords):
        return LabelTokenizers(tokenizers.source, tokenizers.target, objective, whole)
    if not isinstance(objective, ReadsConversations):
        return tokenizers
    file, template = folder / CHAT_TEMPLATE, read_chat_template(folder, tokenizers.target)
    if template is None or (objective.template is not None and not file.is_file()):
        if objective.template is None and tokenizers.target.eos_id is None:
            raise ValueError(
                "the tokenizer has no id that ends a text (eos), so no answer could end: set objective.template to the file of "
                "a chat template"
            )
        write_whole(file, own_template(objective))
        template = read_chat_template(folder, tokenizers.target)
    assert template is not None
    last_only = objective.answers == "last"
    both, most = (tokenizers.source, tokenizers.target), longest.target + 1
    return ChatTokenizers(*both, template, most, last_only, translation or SOURCE_ALONE)


def tokenize(pairs: Sequence[Pair], tokenizers: Tokenizers, origin: Origin | None = None) -> TokenArrays:
    """Returns the records of pairs. Raises: ValueError for pairs that cannot be read, if their source does not drop them."""
    records = TokenArrays([TokenShard.of(pairs, tokenizers)])
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
    """Tokenizes evaluation data. Unless the objective cuts them itself, records that are too long are cut here.

    `warn` then gets a line with the numbers of the records. The cut leaves room for EOS.
    """
    records = tokenize(pairs, tokenizers, origin)
    check_labels(records, objective, origin, pairs)
    if not objective.truncates_records:
        return records
    cut_records, room = [], 0 if tokenizers.target.ends_pairs else 1
    with one_of_each(warn) as say:
        for line, record in enumerate(records, 1):
            too_long = cut_warning(say, line)
            source = truncated(record.source, longest.source - room, "source", "max_source_length", too_long)
            target = truncated(record.target, longest.target - room, "target", "max_target_length", too_long)
            if tokenizers.target.ends_pairs:
                source, target = np.append(source[:-2], record.source[-2:]), np.append(target[:-1], record.target[-1:])
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
