"""The data of a run: read, tokenized, checked, and compared over the processes."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flaxformer_lite.config import Config
from flaxformer_lite.console import Progress, warn
from flaxformer_lite.data import Pair, ParallelText
from flaxformer_lite.data.dataset import Dataset, evaluation_records, make_samplers, tokenize
from flaxformer_lite.data.sources import Source
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

    pairs: Sequence[Pair]
    tokenizers: Tokenizers
    train: Dataset
    eval: EvalData | None

    @property
    def eval_fingerprint(self) -> str:
        """The fingerprint of the evaluation data; empty without any."""
        return "" if self.eval is None else self.eval.dataset.fingerprint


def read_data(config: Config, folder: RunFolder, progress: Progress, processes: Processes) -> RunData:
    """Reads and tokenizes all data; trains the tokenizers if the run folder has none.

    Raises: ValueError if the data does not fit the config, or the processes read different texts.
    """
    source = config.data.train
    if source is None or config.data.tokenizer is None:
        raise SharedError("data.train or data.tokenizer is None: training needs both, set them in the config file")
    progress.update("reading data")
    pairs = processes.on_all(lambda: list(source.open("data.train")))
    agree_on_texts(processes, "data.train", source, pairs)
    progress.update("tokenizing")
    tokenizers = processes.first_then_others(lambda: folder.tokenizers(config.data, config.tokenizer_sizes, pairs))
    data = processes.on_all(lambda: make_datasets(config, pairs, tokenizers, processes.is_first))
    processes.agree(
        lambda: {"data.train as tokens": data.train.fingerprint}, "Install the same version of tokenizers on all hosts"
    )
    if config.data.eval is not None and data.eval is not None:
        agree_on_texts(processes, "data.eval", config.data.eval, data.eval.pairs)
    return data


def make_datasets(config: Config, pairs: Sequence[Pair], tokenizers: Tokenizers, warns: bool) -> RunData:
    """Tokenizes the training pairs, and reads and tokenizes the evaluation data, with warnings if `warns`.

    Raises: ValueError if special ids or lengths do not fit.
    """
    check_special_ids(config.objective, config.decode, tokenizers.target.special)
    records, seed = tokenize(pairs, tokenizers), config.train.seed
    target, samplers = tokenizers.target, make_samplers(config.data, tokenizers)
    train = Dataset(records, config.objective, config.data, seed, target, config.decode.bos_id, samplers)
    evaluation = None
    if config.data.eval is not None:
        evaluation = EvalData(config, tokenizers, warn if warns else lambda _: None)
    return RunData(pairs, tokenizers, train, evaluation)


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
