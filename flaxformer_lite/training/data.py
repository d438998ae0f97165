"""The data of a run: read, tokenized and checked. Several processes do this one after the other, then compare their texts."""

import itertools
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flaxformer_lite.base.console import Progress, warn
from flaxformer_lite.config import Config
from flaxformer_lite.config.experiment import Resolved
from flaxformer_lite.core.data.batch_plan import Mixing
from flaxformer_lite.core.data.dataset import Dataset, MixedRecords, zero_batch
from flaxformer_lite.core.data.token_arrays import TokenArrays
from flaxformer_lite.core.objectives import BaseObjective
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.text import SpecialIds, Tokenizer, Tokenizers
from flaxformer_lite.core.text.pairs import ANSWER_FLAGS, Pair
from flaxformer_lite.files.data import DataSource, Mixture
from flaxformer_lite.files.data.mixture import open_parts
from flaxformer_lite.files.data.reading import EvalData, reader_of, samplers_of, tell_notes, tokenize
from flaxformer_lite.files.data.refused import Origin, check_labels, tell_refused
from flaxformer_lite.files.data.store import PairStream, TokenStore, small_parts, text_digests
from flaxformer_lite.files.records import READERS
from flaxformer_lite.files.tokenizers.kinds import CHAT_TEMPLATES
from flaxformer_lite.training.seconds import cost_of
from flaxformer_lite.training.task import check_objective, train_task
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.manifest import TOKENIZER_FILES


@dataclass(frozen=True)
class RunData:
    """The training data and the evaluation data of a run, with its tokenizers."""

    config: Config
    """The settings with which it was read, with the facts of the data."""
    records: TokenArrays
    tokenizers: Tokenizers
    train: Dataset
    eval: EvalData | None
    texts: Callable[[], dict[str, str]] = dict
    """Returns the number and the SHA-256 of the texts that were read, by file: several processes compare them."""

    @property
    def eval_fingerprint(self) -> str:
        """The fingerprint of the evaluation data; empty without any."""
        return "" if self.eval is None else self.eval.dataset.fingerprint


def read_data(
    config: Config,
    folder: RunFolder,
    progress: Progress,
    raise_if_stopped: Callable[[], None] = lambda: None,
    read_only: Path | None = None,
) -> RunData:
    """Reads and tokenizes all data; trains the tokenizers if the run folder has none.

    read_only: a folder of token stores that are read where they are whole, and never written.

    Raises: ValueError if the data does not fit the config; the exception of `raise_if_stopped`.
    """
    source, evaluated = config.data.source("train"), config.data.source("eval")
    if source is None or config.data.tokenizer is None:
        raise ValueError("data.train or data.tokenizer is None: training needs both, set them in the config file")
    progress.update("reading data")
    pairs = None if config.data.store else small_parts(source, "data.train")
    stores: list[TokenStore] = []
    if pairs is None:
        tokenizers, stores = build_stores(config, source, folder, progress, raise_if_stopped, read_only)
        parts = [store.records for store in stores]
    else:
        progress.update("tokenizing")
        tokenizers = run_tokenizers(config, folder, list(itertools.chain.from_iterable(pairs)))
        origins = [Origin(member, at) for at, member in source.parts("data.train")]
        parts = [tokenize(of_member, tokenizers, origin) for of_member, origin in zip(pairs, origins, strict=True)]
    records = (
        MixedRecords(parts, Mixing(source.weights, source.temperature)) if isinstance(source, Mixture) else parts[0]
    )
    check_labels(records, config.objective, Origin(source, "data.train"))
    data = make_datasets(config, records, tokenizers, warns=not folder.silent)

    def texts() -> dict[str, str]:
        of_stores = [(store.facts["records"], store.facts["texts"]) for store in stores if store.facts is not None]
        facts = describe_texts(source.parts("data.train"), of_stores if pairs is None else map(count_texts, pairs))
        if evaluated is not None and data.eval is not None:
            read = [data.eval.pairs[place] for place in data.eval.parts.values()] or [data.eval.pairs]
            facts |= describe_texts(evaluated.parts("data.eval"), map(count_texts, read))
        return facts

    return replace(data, texts=texts)


def look_at_data(config: Config, run: RunFolder, scratch: Path, progress: Progress) -> RunData:
    """Reads the data as a training of `run` would, and writes to the folder `scratch` alone."""
    stores = run.path / ".tokens"
    copied = []
    read = config
    if (run.path / "config.json").is_file() and tokenizer_settings(run.config()) == tokenizer_settings(config):
        for pattern in (
            *TOKENIZER_FILES,
            *CHAT_TEMPLATES,
            "huggingface/*.*",
            "huggingface/additional_chat_templates/*",
        ):
            copied += [(file, scratch / file.relative_to(run.path).parent) for file in run.path.glob(pattern)]
    if config.data.store is not None:
        stores = Path(config.data.store)
        kept = scratch / "stores"
        copied += [(file, kept / file.parent.name) for file in stores.glob("tokenizer-*/*")]
        read = replace(config, data=replace(config.data, store=str(kept)))
    for file, folder in copied:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder)
    data = read_data(read, RunFolder(scratch), progress, read_only=stores)
    return replace(data, config=replace(config, resolved=data.config.resolved))


def tokenizer_settings(config: Config) -> tuple[object, ...]:
    data = config.data
    adding = config.objective if adds_text(config.objective) else None
    return data.source("train"), data.tokenizer, data.target_tokenizer, config.tokenizer_sizes, adding


def adds_text(objective: BaseObjective) -> bool:
    """Returns whether texts are read with more than the data has: a chat template, the template of a pair, or prompts."""
    templates = objective.reads == "conversations" or objective.pair_template
    return bool(templates) or any(map(objective.text_before, objective.side_prompts))


def run_tokenizers(config: Config, folder: RunFolder, pairs: Iterable[Pair]) -> Tokenizers:
    """Returns the run's tokenizers as the objective reads pairs, trained on these pairs if the folder has none."""
    texts = READERS[config.objective.reads].learned(config.objective, pairs)
    data = config.data
    if adds_text(config.objective):  # a store knows a tokenizer only by its data
        data = replace(data, store=None)
    tokenizers = folder.tokenizers(data, config.tokenizer_sizes, texts)
    return reader_of(config.objective, tokenizers, folder.path, config.data.longest, config.data.translation)


def build_stores(
    config: Config,
    source: DataSource,
    folder: RunFolder,
    progress: Progress,
    raise_if_stopped: Callable[[], None],
    read_only: Path | None,
) -> tuple[Tokenizers, list[TokenStore]]:
    """Returns the run's tokenizers and the token store of each part of its training data, all made first if they are missing."""
    place = Path(config.data.store) if config.data.store else folder.path / ".tokens"
    # The first process has compared the files of a folder that all share with their digests.
    is_checked = folder.silent and folder.shared and config.data.store is None

    def show(activity: str, done: int, total: int) -> None:
        raise_if_stopped()
        progress.within(activity, done, total)

    pairs = PairStream(source, "data.train", show)
    tokenizers = run_tokenizers(config, folder, pairs)
    stores = []
    for setting, member in source.parts("data.train"):
        store = TokenStore.of(place, member, tokenizers, setting, show)
        if read_only is not None:
            existing = replace(store, folder=read_only / store.folder.name)
            store = existing if existing.is_whole else store
        is_told = store.is_whole and member.bad_row_rule(setting)[1] == "drop"  # the start that made the store has told
        store.build(tokenizers, show)
        store = replace(store, trusted=is_checked)
        if not is_told:
            tell_refused(store.records, tokenizers, Origin(member, setting))
        tokens = 0 if store.facts is None else store.facts["source_tokens"] + store.facts["target_tokens"]
        progress.say(f"tokens of {setting}: {store.folder}, {tokens:,}")
        stores.append(store)
    progress.update("checking the tokens of data.train")
    return tokenizers, stores


def make_datasets(config: Config, records: TokenArrays, tokenizers: Tokenizers, warns: bool) -> RunData:
    """Makes the batches of the training records, and reads and tokenizes the evaluation data, with warnings if `warns`.

    Raises: ValueError if special ids, lengths, the objective's inputs or what it returns do not fit.
    """
    # A run that goes on has its lengths.
    data, objective, start_id = config.concrete.data, config.objective, config.decode.bos_id
    check_special_ids(objective, config.decode, tokenizers.target.special)
    if objective.reads == "conversations" and warns:
        warn_of_endless_answers(records, config.decode.eos_ids, tokenizers.target)
    samplers = samplers_of(data.subword_sampling, tokenizers)
    train = Dataset.training(
        records, objective, data, config.train.seed, tokenizers.target, start_id, samplers, cost_of(config)
    )
    data = replace(data, bucket_lengths=train.bucket_lengths)
    rows = zero_batch(objective, train.plan.buckets[0])
    objective.check_prompts(rows, config.model)
    if not type(objective).__module__.startswith("flaxformer_lite."):
        check_objective(train_task(config), rows)
    tell_notes(train)
    evaluation = None
    source = data.source("eval")
    if source is not None:
        pairs, parts = open_parts(source, "data.eval")
        say = warn if warns else lambda line: None
        evaluation = EvalData(
            pairs,
            parts,
            objective,
            data,
            tokenizers,
            start_id,
            lambda line: say(f"data.eval: {line}"),
            Origin(source, "data.eval"),
        )
    resolved = Resolved(batches_per_epoch=train.plan.batches_per_epoch, bucket_lengths=train.bucket_lengths)
    config = replace(config, resolved=resolved)
    return RunData(config, records, tokenizers, train, evaluation)


def warn_of_endless_answers(records: TokenArrays, eos_ids: Sequence[int], tokenizer: Tokenizer) -> None:
    """Warns if no token of the first answer ends a text in decoding: a user's own template may end it otherwise."""
    answers = ((record.target, record.array(ANSWER_FLAGS)) for record in records)
    first: list[int] = next((ids[is_answer].tolist() for ids, is_answer in answers if is_answer.any()), [])
    if first and not {*eos_ids}.intersection(first):
        piece = tokenizer.pieces(first[-1:])[0]
        warn(
            f"decode.eos_ids is {eos_ids}, and the first answer has none of them: add its last token, {first[-1]} ({piece!r})"
        )


def count_texts(pairs: Sequence[Pair]) -> tuple[int, Sequence[str]]:
    """Returns the number of pairs, and the digests of both sides."""
    return len(pairs), text_digests(pairs)


def describe_texts(
    parts: Sequence[tuple[str, DataSource]], counted: Iterable[tuple[int, Sequence[str]]]
) -> dict[str, str]:
    """Returns the number of texts and their digests by file, from those of each of `DataSource.parts`."""
    texts: dict[str, str] = {}
    for (setting, member), (number, digests) in zip(parts, counted, strict=True):
        for name, digest in zip(member.text_names(setting), digests, strict=True):
            texts[name] = f"{texts.get(name, f'{number:,} texts with SHA-256')} {digest[:12]}"
    return texts


def check_special_ids(objective: BaseObjective, decode: DecodeConfig, special: SpecialIds) -> None:
    """Raises: ValueError if decoding uses other special ids than training does, as with a tokenizer from another run.

    The objective names the ids to compare. The tokenizer's EOS may be any of several ids that end a text in decoding.
    """
    for name in objective.decoder_special_ids:
        setting = "eos_ids" if name == "eos" else f"{name}_id"
        theirs, ours = getattr(special, name), getattr(decode, setting)
        if theirs is not None and theirs not in (ours if name == "eos" else (ours,)):
            raise ValueError(f"decode.{setting} is {ours}, but the tokenizer's is {theirs}: set it to that")
