"""The data of a run: read, tokenized, checked, and compared over the processes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flaxformer_lite.base.console import Progress, warn
from flaxformer_lite.config import Config
from flaxformer_lite.data import DataSource, Mixture, Pair, TokenPair, shards
from flaxformer_lite.data.dataset import Dataset, MixedRecords, evaluation_records, tokenize
from flaxformer_lite.data.mixture import open_parts
from flaxformer_lite.data.predictions import Predictions
from flaxformer_lite.data.shards import text_digests
from flaxformer_lite.data.store import PairStream, TokenStore
from flaxformer_lite.data.token_arrays import TokenArrays
from flaxformer_lite.data.workers import BuildProgress
from flaxformer_lite.inference import DecodeConfig
from flaxformer_lite.objectives import BaseObjective
from flaxformer_lite.text import SpecialIds, Tokenizers
from flaxformer_lite.training.multihost.agreement import Processes
from flaxformer_lite.training.multihost.ending import SharedError
from flaxformer_lite.workdir import RunFolder


class EvalData:
    """Pairs for evaluation, as text and as batches; records that are too long are truncated, with a warning.

    parts: the pairs of each source of a mixture, by its name; empty without a mixture.
    """

    def __init__(
        self,
        config: Config,
        tokenizers: Tokenizers,
        pairs: Sequence[Pair],
        parts: Mapping[str, slice],
        warn: Callable[[str], None],
    ):
        self.pairs, self.parts = pairs, parts
        self.records = evaluation_records(pairs, tokenizers, config.objective, config.data.longest, warn)

        def dataset(records: Sequence[TokenPair]) -> Dataset:
            return Dataset.evaluation(records, config.objective, config.data, tokenizers.target, config.decode.bos_id)

        self.dataset = dataset(self.records)
        self.datasets = [dataset(self.records[part]) for part in self.parts.values()] or [self.dataset]


@dataclass(frozen=True)
class RunData:
    """The training data and the evaluation data of a run, with its tokenizers."""

    records: TokenArrays
    tokenizers: Tokenizers
    train: Dataset
    eval: EvalData | None

    @property
    def eval_fingerprint(self) -> str:
        """The fingerprint of the evaluation data; empty without any."""
        return "" if self.eval is None else self.eval.dataset.fingerprint


def read_data(
    config: Config,
    folder: RunFolder,
    progress: Progress,
    processes: Processes,
    raise_if_stopped: Callable[[], None],
    read_only: Path | None = None,
) -> RunData:
    """Reads and tokenizes all data; trains the tokenizers if the run folder has none.

    read_only: a folder of token stores that are read where they are whole, and never written.

    Raises: ValueError if the data does not fit the config, or the processes read different texts; what `raise_if_stopped` raises.
    """
    source = config.data.source("train")
    if source is None or config.data.tokenizer is None:
        raise SharedError("data.train or data.tokenizer is None: training needs both, set them in the config file")
    progress.update("reading data")
    parts = processes.on_all(lambda: None if config.data.store else small_parts(source))
    processes.agree(
        lambda: {"data.train": "more than a shard of the token store" if parts is None else "at most one shard"},
        "Give all hosts the same data",
    )
    if parts is None:
        tokenizers, stored = stored_records(config, folder, progress, processes, raise_if_stopped, read_only)
        records = together(stored, source)
    else:
        pairs = [pair for part in parts for pair in part]
        agree_on_texts(
            processes, source.parts("data.train"), lambda: [(len(part), text_digests(part)) for part in parts]
        )
        progress.update("tokenizing")
        tokenizers = processes.first_then_others(lambda: folder.tokenizers(config.data, config.tokenizer_sizes, pairs))
        records = processes.on_all(lambda: together([tokenize(part, tokenizers) for part in parts], source))
    data = processes.on_all(lambda: make_datasets(config, records, tokenizers, processes.is_first))
    processes.agree(
        lambda: {"data.train as tokens": data.train.fingerprint}, "Install the same version of tokenizers on all hosts"
    )
    if (evaluated := config.data.source("eval")) is not None and data.eval is not None:
        read = [data.eval.pairs[part] for part in data.eval.parts.values()] or [data.eval.pairs]
        agree_on_texts(
            processes, evaluated.parts("data.eval"), lambda: [(len(part), text_digests(part)) for part in read]
        )
    return data


def small_parts(source: DataSource) -> list[list[Pair]] | None:
    """Returns the pairs of each part of the training data; None if all together do not fit a shard."""
    parts: list[list[Pair]] = []
    records = characters = 0
    for setting, part in source.parts("data.train"):
        pairs = PairStream(part, setting).if_small()
        if pairs is None:
            return None
        parts.append(pairs)
        records += len(pairs)
        characters += sum(len(pair.source) + len(pair.target) for pair in pairs)
        if len(parts) > 1 and (records > shards.MOST_RECORDS or characters > shards.MOST_CHARACTERS):
            return None
    return parts


def together(parts: Sequence[TokenArrays], source: DataSource) -> TokenArrays:
    """Returns the records of all parts of a source."""
    return MixedRecords(parts, source) if isinstance(source, Mixture) else parts[0]


def stored_records(
    config: Config,
    folder: RunFolder,
    progress: Progress,
    processes: Processes,
    raise_if_stopped: Callable[[], None],
    read_only: Path | None,
) -> tuple[Tokenizers, list[TokenArrays]]:
    """Returns the run's tokenizers and each part of its training data from its token store, all made first if they are missing.

    The first process makes them; the others find them there, or make their own if they do not share the folder.
    """
    source = config.data.source("train")
    assert source is not None
    parts = source.parts("data.train")
    stores = Path(config.data.store) if config.data.store else folder.path / ".tokens"

    def make() -> tuple[Tokenizers, list[TokenStore]]:
        reading, tokenizing = progress.counting("reading data.train"), progress.counting("tokenizing data.train")
        tokenizers = folder.tokenizers(
            config.data, config.tokenizer_sizes, PairStream(source, "data.train", stoppable(reading))
        )
        made = [TokenStore.of(stores, part, tokenizers) for _, part in parts]
        if read_only is not None:
            there = [TokenStore.of(read_only, part, tokenizers) for _, part in parts]
            made = [old if old.is_current else new for old, new in zip(there, made, strict=True)]
        for store, (setting, part) in zip(made, parts, strict=True):
            store.build(PairStream(part, setting), tokenizers, stoppable(tokenizing))
        return tokenizers, made

    def stoppable(show: BuildProgress) -> BuildProgress:
        def shown(fraction: float, done: int) -> None:
            raise_if_stopped()
            show(fraction, done)

        return shown

    tokenizers, made = processes.first_then_others(make)
    progress.update("checking the tokens of data.train")
    facts, records = processes.on_all(
        lambda: ([store.facts or {} for store in made], [store.records for store in made])
    )
    agree_on_texts(processes, parts, lambda: [(fact["records"], fact["texts"]) for fact in facts])
    for (setting, _), store, fact in zip(parts, made, facts, strict=True):
        progress.say(f"tokens of {setting}: {store.folder}, {fact['source_tokens'] + fact['target_tokens']:,}")
    return tokenizers, records


def make_datasets(config: Config, records: TokenArrays, tokenizers: Tokenizers, warns: bool) -> RunData:
    """Makes the batches of the training records, and reads and tokenizes the evaluation data, with warnings if `warns`.

    Raises: ValueError if special ids or lengths do not fit.
    """
    check_special_ids(config.objective, config.decode, tokenizers.target.special)
    predictions = None if config.data.predictions is None else Predictions.read(config.data.predictions)
    train = Dataset.training(
        records, config.objective, config.data, config.train.seed, tokenizers, config.decode.bos_id, predictions
    )
    if predictions is not None:
        check_predictions(predictions, train, config)
    evaluation = None
    if (source := config.data.source("eval")) is not None:
        pairs, parts = open_parts(source, "data.eval")
        say = warn if warns else lambda line: None
        evaluation = EvalData(config, tokenizers, pairs, parts, lambda line: say(f"data.eval: {line}"))
    return RunData(records, tokenizers, train, evaluation)


def check_predictions(predictions: Predictions, train: Dataset, config: Config) -> None:
    """Raises: ValueError if the predictions are of another vocabulary, or of none of the training pairs."""
    path, size = config.data.predictions, config.model.vocab_sizes[1]
    remedy = "write the file for this config, with `flaxformer-lite teach CONFIG --teacher RUN`"
    if predictions.vocab_size != size:
        raise ValueError(
            f"data.predictions is {path!r}, of a vocabulary of {predictions.vocab_size:,} tokens, but the model's has {size:,}: "
            + remedy
        )
    if not predictions.coverage(train.records):
        raise ValueError(f"data.predictions is {path!r}, which has none of the training pairs: {remedy}")


def agree_on_texts(
    processes: Processes,
    parts: Sequence[tuple[str, DataSource]],
    facts: Callable[[], Iterable[tuple[int, Sequence[str]]]],
) -> None:
    """Compares the texts of a data source over the processes.

    Args:
        parts: `DataSource.parts`.
        facts: returns for each part the number of its texts, and the digests of both sides (`text_digests`).

    Raises: SharedError naming the file in which another process has read other texts.
    """

    def described() -> dict[str, str]:
        texts: dict[str, str] = {}
        for (setting, part), (number, digests) in zip(parts, facts(), strict=True):
            for name, digest in zip(part.text_names(setting), digests, strict=True):
                texts[name] = f"{texts.get(name, f'{number:,} texts with SHA-256')} {digest[:12]}"
        return texts

    processes.agree(described, "Give all hosts the same data, and the same versions of the packages that read it")


def check_special_ids(objective: BaseObjective, decode: DecodeConfig, special: SpecialIds) -> None:
    """Raises: ValueError if decoding uses other special ids than training does, as with a tokenizer from another run.

    The objective names the ids to compare. The tokenizer's EOS may be any of several ids that end a text in decoding.
    """
    for name in objective.decoder_special_ids:
        setting = "eos_ids" if name == "eos" else f"{name}_id"
        theirs, ours = getattr(special, name), getattr(decode, setting)
        if theirs is not None and theirs not in (ours if name == "eos" else (ours,)):
            raise ValueError(f"decode.{setting} is {ours}, but the tokenizer's is {theirs}: set it to that")
