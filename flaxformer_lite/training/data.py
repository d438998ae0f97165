"""The data of a run: read, tokenized, checked, and compared over the processes."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flaxformer_lite.config import Config
from flaxformer_lite.console import Progress, warn
from flaxformer_lite.data import Pair, ParallelText
from flaxformer_lite.data.dataset import Dataset, evaluation_records, make_samplers, tokenize
from flaxformer_lite.data.sources import Source
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
    """The evaluation data, as text and as batches; records that are too long are truncated, with a warning."""

    def __init__(self, config: Config, tokenizers: Tokenizers, warn: Callable[[str], None]):
        assert config.data.eval is not None
        self.pairs = list(config.data.eval.open("data.eval"))
        self.records = evaluation_records(
            self.pairs, tokenizers, config.objective, config.data.longest, lambda line: warn(f"data.eval: {line}")
        )
        self.dataset = Dataset(
            self.records, config.objective, config.data, None, tokenizers.target, config.decode.bos_id
        )


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
    config: Config, folder: RunFolder, progress: Progress, processes: Processes, raise_if_stopped: Callable[[], None]
) -> RunData:
    """Reads and tokenizes all data; trains the tokenizers if the run folder has none.

    Raises: ValueError if the data does not fit the config, or the processes read different texts; what `raise_if_stopped` raises.
    """
    source = config.data.train
    if source is None or config.data.tokenizer is None:
        raise SharedError("data.train or data.tokenizer is None: training needs both, set them in the config file")
    progress.update("reading data")
    stream = PairStream(source, "data.train")
    pairs = processes.on_all(lambda: None if config.data.store else stream.if_small())
    if pairs is None:
        tokenizers, records = stored_records(config, folder, progress, processes, raise_if_stopped)
    else:
        agree_on_texts(processes, "data.train", source, pairs)
        progress.update("tokenizing")
        tokenizers = processes.first_then_others(lambda: folder.tokenizers(config.data, config.tokenizer_sizes, pairs))
        records = processes.on_all(lambda: TokenArrays.of(tokenize(pairs, tokenizers)))
    data = processes.on_all(lambda: make_datasets(config, records, tokenizers, processes.is_first))
    processes.agree(
        lambda: {"data.train as tokens": data.train.fingerprint}, "Install the same version of tokenizers on all hosts"
    )
    if config.data.eval is not None and data.eval is not None:
        agree_on_texts(processes, "data.eval", config.data.eval, data.eval.pairs)
    return data


def stored_records(
    config: Config, folder: RunFolder, progress: Progress, processes: Processes, raise_if_stopped: Callable[[], None]
) -> tuple[Tokenizers, TokenArrays]:
    """Returns the run's tokenizers and its training data from the token store, both made first if they are missing.

    The first process makes them; the others find them there, or make their own if they do not share the folder.
    """
    source = config.data.train
    assert source is not None
    stores = Path(config.data.store) if config.data.store else folder.path / ".tokens"

    def make() -> tuple[Tokenizers, TokenStore]:
        reading, tokenizing = progress.counting("reading data.train"), progress.counting("tokenizing data.train")
        tokenizers = folder.tokenizers(
            config.data, config.tokenizer_sizes, PairStream(source, "data.train", stoppable(reading))
        )
        store = TokenStore.of(stores, source, tokenizers)
        store.build(PairStream(source, "data.train"), tokenizers, stoppable(tokenizing))
        return tokenizers, store

    def stoppable(show: BuildProgress) -> BuildProgress:
        def shown(fraction: float, done: int) -> None:
            raise_if_stopped()
            show(fraction, done)

        return shown

    tokenizers, store = processes.first_then_others(make)
    facts, records = processes.on_all(lambda: (store.facts, store.records))
    assert facts is not None
    name = getattr(source, "path", source.kind)
    processes.agree(
        lambda: {f"data.train {name}": f"{facts['records']:,} texts with SHA-256 {' '.join(facts['texts'])}"},
        "Give all hosts the same data, and the same versions of the packages that read it",
    )
    progress.say(f"tokens of data.train: {store.folder}, {facts['source_tokens'] + facts['target_tokens']:,}")
    return tokenizers, records


def make_datasets(config: Config, records: TokenArrays, tokenizers: Tokenizers, warns: bool) -> RunData:
    """Makes the batches of the training records, and reads and tokenizes the evaluation data, with warnings if `warns`.

    Raises: ValueError if special ids or lengths do not fit.
    """
    check_special_ids(config.objective, config.decode, tokenizers.target.special)
    target, samplers = tokenizers.target, make_samplers(config.data, tokenizers)
    train = Dataset(records, config.objective, config.data, config.train.seed, target, config.decode.bos_id, samplers)
    evaluation = None
    if config.data.eval is not None:
        evaluation = EvalData(config, tokenizers, warn if warns else lambda _: None)
    return RunData(records, tokenizers, train, evaluation)


def agree_on_texts(processes: Processes, setting: str, source: Source, pairs: Sequence[Pair]) -> None:
    """Compares the texts of `setting` over the processes.

    Raises: SharedError naming the file in which another process has read other texts.
    """

    def digest(texts: Iterable[str]) -> str:
        found = hashlib.sha256()
        for text in texts:
            found.update(f"{len(text)} {text}".encode(errors="surrogatepass"))
        return f"{len(pairs):,} texts with SHA-256 {found.hexdigest()[:12]}"

    def digests() -> dict[str, str]:
        if isinstance(source, ParallelText):
            return {
                f"{setting}.source {source.source}": digest(pair.source for pair in pairs),
                f"{setting}.target {source.target}": digest(pair.target for pair in pairs),
            }
        name = getattr(source, "path", source.kind)
        return {f"{setting} {name}": digest(text for pair in pairs for text in pair)}

    processes.agree(digests, "Give all hosts the same data, and the same versions of the packages that read it")


def check_special_ids(objective: BaseObjective, decode: DecodeConfig, special: SpecialIds) -> None:
    """Raises: ValueError if decoding uses other special ids than training does, as with a tokenizer from another run.

    The objective names the ids to compare. The tokenizer's EOS may be any of several ids that end a text in decoding.
    """
    for name in objective.decoder_special_ids:
        setting = "eos_ids" if name == "eos" else f"{name}_id"
        theirs, ours = getattr(special, name), getattr(decode, setting)
        if theirs is not None and theirs not in (ours if name == "eos" else (ours,)):
            raise ValueError(f"decode.{setting} is {ours}, but the tokenizer's is {theirs}: set it to that")
