"""The settings of the data: sources, tokenizer, batches."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from annotated_types import Ge, Lt

from flaxformer_lite.core.base.annotations import Answers, Resume
from flaxformer_lite.core.base.bounds import NonNegativeInt
from flaxformer_lite.core.data import BatchShapes
from flaxformer_lite.core.text import Languages
from flaxformer_lite.files.chats.translation_prompt import TranslationPrompt
from flaxformer_lite.files.data.held_out import LEFT_OUT, SPLITS, Split, SplitOrLeftOut, held_out
from flaxformer_lite.files.data.hub import HubDataset, Parquet
from flaxformer_lite.files.data.mixture import OptionalSource
from flaxformer_lite.files.data.source import DataSource, RecordSource
from flaxformer_lite.files.data.text_files import CSV, TSV, ColumnSource, CoNLL, JSONLines, PlainText
from flaxformer_lite.files.records import READERS, Documents
from flaxformer_lite.files.text.tables import container
from flaxformer_lite.files.tokenizers import SentencePiece
from flaxformer_lite.files.tokenizers.kinds import OptionalTokenizerConfig
from flaxformer_lite.files.tokenizers.subword_sampling import OptionalSubwordSampling


@dataclass(frozen=True, kw_only=True)
class DataConfig(BatchShapes, at="data"):
    """Data sources, tokenizers, and the shapes of batches."""

    train: Annotated[OptionalSource, Answers.SAME] = None
    """Training data; None: the weights come from elsewhere and are only used."""
    eval: Annotated[OptionalSource, Answers.SAME] = None
    """Evaluation data during training, for the best checkpoints and early stopping."""
    test: OptionalSource = None
    """Test data, read only by the `evaluate` command."""
    held_out: Annotated[float, Ge(0), Lt(0.5), Answers.SAME] = 0.0
    """Share of the texts of `train` that is held out for `eval`, and as much again for `test`, where that setting is None. A hash
    of its text decides, of a pair that of its source. Training leaves out each pair that shares a text with a held-out one, on
    either side; texts are equal whatever their case, punctuation and spaces. 0: nothing is held out."""
    held_out_seed: Annotated[NonNegativeInt, Answers.SAME] = 0
    """Another number holds out other texts."""
    store: Annotated[str | None, Resume.FREE] = None
    """Folder where tokenized training data is kept, for any number of runs. None: in the run folder (`.tokens`), and only if the
    data is larger than 131,072 records or 16,777,216 characters; less is tokenized at each start."""
    tokenizer: OptionalTokenizerConfig = SentencePiece()
    """Trained only on the training text and saved in the run folder. It serves both sides if `target_tokenizer` is None. None:
    inputs and outputs are token ids."""
    target_tokenizer: OptionalTokenizerConfig = None
    """The target's own tokenizer, with `model.target_vocab_size` entries."""
    languages: Languages | None = None
    """The languages of a run that translates between several; None: one direction, without tokens of languages."""
    translation: TranslationPrompt | None = None
    """The message that asks a decoder with a chat template to translate. None: a model that was tuned on conversations reads only
    the source, another model reads a plain sentence."""
    subword_sampling: OptionalSubwordSampling = None
    """Segments the pairs of a translation anew in each epoch of training, for example by BPEDropout. Evaluation and use do not
    sample."""

    def __post_init__(self) -> None:
        super().__post_init__()
        symbols = [getattr(kind, "user_symbols", ()) for kind in (self.tokenizer, self.target_tokenizer)]
        if self.subword_sampling is not None and any(symbols):
            raise ValueError(
                f"data.subword_sampling would cut data.tokenizer.user_symbols {symbols[0] or symbols[1]} into pieces: set one "
                "to None or ()"
            )
        if self.held_out and (self.train is None or None not in (self.eval, self.test)):
            name = "data.train is None" if self.train is None else "data.eval and data.test are both set"
            raise ValueError(f"data.held_out is {self.held_out}, but {name}: set it to 0, or change that")

    def source(self, split: SplitOrLeftOut) -> DataSource | None:
        """Returns the data of a split, with or without the texts that `held_out` chooses; None if the split has no data."""
        held: tuple[Split, ...] = tuple(name for name in ("eval", "test") if getattr(self, name) is None)
        if not self.held_out or self.train is None or split not in ("train", *held, LEFT_OUT):
            return getattr(self, split, None)
        return held_out(self.train, split=split, held=held, share=self.held_out, seed=self.held_out_seed)

    @property
    def texts_of_rows(self) -> set[int]:
        """The numbers of texts that rows of the training have; none of them without such data."""
        return set() if self.train is None else {len(member.record.texts) for _, member in self.train.parts("")}

    def alike(self, path: str, reads: str) -> DataSource | None:
        """Returns the source that reads a file as this data is read; None if the fields of such a file are not known.

        A file whose name says no kind is of the kind of this data. Without any data a file has the usual names of the record that
        the run's objective `reads`, if there are such names, and one of texts may have a text a line.
        """
        known = list[Any]()
        for split in SPLITS:
            source = getattr(self, split)
            if source is not None:
                known += [member for _, member in source.parts("")]
        kind: Any = FILE_SOURCES.get(container(path))
        if kind is TSV and ".csv" in path.lower():
            kind = CSV
        for member in known:
            if (
                type(member) is (kind or type(member))
                and hasattr(member, "path")
                and not isinstance(member, HubDataset)
            ):
                return replace(member, path=path)
        if kind is CoNLL:
            return CoNLL(path=path) if reads == "words" else None
        record: Any = READERS[reads]
        published = [JSONLines(path=path, record=record())] if record.published and not known else []
        for member in [*known, *published] if kind is not None else ():
            if isinstance(member, RecordSource) and {*map(type, member.record.fields.values())} == {str}:
                header = {"header": True} if issubclass(kind, ColumnSource) else {}
                return kind(path=path, record=member.record, languages=member.languages, **header)
        has_lines = not container(path) and not known and record is Documents
        return PlainText(path=path, documents="lines") if has_lines else None


FILE_SOURCES = {"a table": TSV, "JSON lines": JSONLines, "JSON": JSONLines, "CoNLL columns": CoNLL, "Parquet": Parquet}
"""The kinds of sources that read a file, by its container."""
