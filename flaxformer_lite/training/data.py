"""The data of a run, read, tokenized and checked: the same in all processes."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.console import Progress, warn
from flaxformer_lite.data.dataset import Dataset, evaluation_records, tokenize
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.sources import Source
from flaxformer_lite.data.text_files import ParallelText
from flaxformer_lite.inference.config import DecodeConfig
from flaxformer_lite.objectives.base import BaseObjective
from flaxformer_lite.text.special_ids import SpecialIds
from flaxformer_lite.text.tokenizer import Tokenizers
from flaxformer_lite.training import multihost
from flaxformer_lite.workdir.folder import RunFolder


class EvalData:
    """The evaluation data, as text and as batches; what is too long is cut, with a warning."""

    def __init__(self, config: Config, tokenizers: Tokenizers):
        assert config.data.eval is not None
        self.pairs = list(config.data.eval.open("data.eval"))
        self.records = evaluation_records(
            self.pairs,
            tokenizers,
            config.objective,
            config.data.longest,
            lambda line: warn(f"data.eval: {line}") if multihost.is_first() else None,
        )
        self.dataset = Dataset(
            self.records, config.objective, config.data, None, tokenizers.target, config.decode.bos_id
        )


@dataclass(frozen=True)
class RunData:
    """What a run learns from, and what it is evaluated on."""

    pairs: Sequence[Pair]
    tokenizers: Tokenizers
    train: Dataset
    eval: EvalData | None


def read_data(config: Config, folder: RunFolder, progress: Progress) -> RunData:
    """Reads everything; where the run has no tokenizers yet, trains them.

    Raises: ValueError for anything wrong with it; where processes read different texts.
    """
    source = config.data.train
    if source is None or config.data.tokenizer is None:
        raise multihost.SharedError(
            "data.train or data.tokenizer is None: say what to train on, and how to cut it into tokens"
        )
    progress.update("reading data")
    pairs = multihost.on_all_processes(lambda: list(source.open("data.train")))
    agree_on("data.train", source, pairs)
    progress.update("tokenizing")
    tokenizers = multihost.first_process_first(lambda: folder.tokenizers(config.data, config.tokenizer_sizes, pairs))
    data = multihost.on_all_processes(lambda: tokenized(config, pairs, tokenizers))
    multihost.agree({"data.train as tokens": data.train.fingerprint}, "Give all hosts the same version of tokenizers")
    if config.data.eval is not None and data.eval is not None:
        agree_on("data.eval", config.data.eval, data.eval.pairs)
    return data


def tokenized(config: Config, pairs: Sequence[Pair], tokenizers: Tokenizers) -> RunData:
    """The run's data, from its training pairs. Raises: ValueError for ids, or lengths, that do not fit."""
    check_special_ids(config.objective, config.decode, tokenizers.target.special)
    records, seed = tokenize(pairs, tokenizers), config.train.seed
    train = Dataset(records, config.objective, config.data, seed, tokenizers.target, config.decode.bos_id)
    return RunData(pairs, tokenizers, train, None if config.data.eval is None else EvalData(config, tokenizers))


def agree_on(setting: str, source: Source, pairs: Sequence[Pair]) -> None:
    """Raises: SharedError, naming the file, where another process has read other pairs by that setting."""
    if not multihost.several():
        return

    def digest(texts: Iterable[str]) -> str:
        found = hashlib.sha256()
        for text in texts:
            found.update(f"{len(text)} {text}".encode(errors="surrogatepass"))
        return f"{len(pairs):,} texts with SHA-256 {found.hexdigest()[:12]}"

    if isinstance(source, ParallelText):
        found = {
            f"{setting}.source {source.source}": digest(pair.source for pair in pairs),
            f"{setting}.target {source.target}": digest(pair.target for pair in pairs),
        }
    else:
        place = getattr(source, "path", source.kind)
        found = {f"{setting} {place}": digest(text for pair in pairs for text in pair)}
    multihost.agree(found, "Give all hosts the same data, and the same versions of packages that make it")


def check_special_ids(objective: BaseObjective, decode: DecodeConfig, special: SpecialIds) -> None:
    """Raises: ValueError where a decoder would be used with other ids than it learns, as with a tokenizer from another run.

    Padding counts where sources are answered; prompts have places, whatever stands there. What an answer to a source starts from
    is for `decode.bos_id` alone to say, and what is learned ends in one of several ends.
    """
    for name in objective.decoder_special_ids:
        theirs, ours = getattr(special, name), getattr(decode, f"{name}_id")
        allowed = decode.end_ids if name == "eos" else (ours,)
        if theirs is not None and theirs not in allowed:
            raise ValueError(f"decode.{name}_id is {ours}, but the tokenizer's is {theirs}: set it to that")
