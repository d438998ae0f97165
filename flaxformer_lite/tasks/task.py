"""The contract of a task: what is asked of a model, and what it answers. `TextModel` is what tasks ask; it loads no JAX.

JAX answers in `jax_model.py`, CTranslate2 in `engine_model.py`.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypedDict, TypeVar, Unpack

import numpy as np
from annotated_types import MaxLen

from flaxformer_lite.base.console import warn
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text import EncodedText, Tokenizer, Tokenizers
from flaxformer_lite.core.text.pair_template import cut_pair, pair_ending, pair_text
from flaxformer_lite.core.text.special_ids import cut_warning, truncated
from flaxformer_lite.core.text.tokenizer import UnknownText
from flaxformer_lite.engine import Engine
from flaxformer_lite.engine.texts import WarnCallback, check_list, required_tokenizers
from flaxformer_lite.metrics.translations import of_parts
from flaxformer_lite.tasks.commands import use_command

if TYPE_CHECKING:
    from flaxformer_lite.config import Config  # with JAX

AskedT = TypeVar("AskedT")
AnswerT = TypeVar("AnswerT")
Wanted = Literal["vectors", "class_logits"]
"""Outputs of a text: its vector; the logits of its classes, or of those of each of its tokens."""
Text = Annotated[str, MaxLen(1_000_000)]
"""A text of a server's request."""


class Reporting(TypedDict, total=False):
    """Keyword arguments of the methods that take many texts."""

    progress: ProgressCallback
    """Called after each batch with an activity, the number of texts that are done, and their number."""
    warn: WarnCallback
    """Receives each warning; by default it becomes a line on stderr."""
    first_line: int
    """The number of the first text in messages; 1 by default."""
    lines: Sequence[int]
    """The number of each text in messages, where several are of one line; by default they count on from `first_line`."""
    engine: Engine
    """The engine of a `Run`, jax by default; auto: CTranslate2 on a CPU where it is installed and has the model, else JAX."""
    weights_dtype: str | None
    """The type of CTranslate2's weights, float32, bfloat16 or int8; None: that of the loaded ones."""


class Report(NamedTuple):
    """Ways to tell of texts while they are read."""

    progress: ProgressCallback
    warn: WarnCallback
    lines: Sequence[int]
    """The number of each text in messages."""

    @classmethod
    def of(cls, number: int, given: Reporting) -> "Report":
        """Returns the report on a number of texts."""
        first = given.get("first_line", 1)
        lines = given.get("lines") or range(first, first + number)
        return cls(given.get("progress", no_progress), given.get("warn", warn), lines)


def scaled(progress: ProgressCallback, number: int) -> ProgressCallback:
    """Returns a callback that counts in things where `progress` counts in texts. number: that of the things."""
    return lambda activity, done, total: progress(activity, done * number // max(total, 1), number)


@dataclass(frozen=True)
class TextModel(ABC):
    """A model with its tokenizers and config, which reads texts in one pass."""

    engine: ClassVar[str]
    """Its name in reports."""
    path: str
    """The path or the URL of the run, for messages."""
    config: "Config"
    tokenizers: Tokenizers | None
    """None if the weights were imported without a tokenizer."""

    @abstractmethod
    def read(self, wanted: Wanted, rows: Sequence[EncodedText], progress: ProgressCallback) -> list[Any]:
        """Returns the vector of each row, or its class logits: of the row, or of each of its tokens and what pads them."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the texts. Raises: ValueError if the run has none."""
        return required_tokenizers(self.tokenizers, self.path).source

    @cached_property
    def unknown(self) -> UnknownText:
        """Warns of text that is not in the vocabulary, once for each character."""
        return UnknownText(self.tokenizer)

    @cached_property
    def pair_ending(self) -> list[int]:
        """The ids that the texts of all pairs end with, by `objective.pair_template`."""
        return pair_ending(self.config.objective.pair_template, self.tokenizer)

    @property
    def vector_width(self) -> int:
        """The number of values of a text's vector."""
        model = self.config.model
        width: int = model.output_width
        return width if model.sentence_embedding is None else model.sentence_embedding.width(width)

    def predict(self, wanted: Wanted, texts: Sequence[str | Sequence[str]], report: Report) -> list[Any]:
        """Returns what is wanted of each text or pair of texts."""
        template = self.config.objective.pair_template
        groups = [(text,) if isinstance(text, str) else text for text in texts]
        groups = [(pair_text(template, *group),) if template else group for group in groups]
        flat = list(itertools.chain.from_iterable(groups))
        self.unknown.report(flat, report.warn)
        encoded = iter(self.tokenizer.encode_batch(flat))
        rows = []
        for line, group in zip(report.lines, groups, strict=True):
            ids = [next(encoded) for _ in group]
            rows.append(self.encode(ids, line, report.warn))
        return self.read(wanted, rows, report.progress)

    def class_logits(self, windows: Sequence[Sequence[EncodedText]], report: Report) -> list[list[Any]]:
        """Returns the class logits of each window of each text: of the window, or of each of its tokens."""
        rows = list(itertools.chain(*windows))
        progress = scaled(report.progress, len(windows))
        logits = iter(self.read("class_logits", rows, progress))
        return [list(itertools.islice(logits, len(of_text))) for of_text in windows]

    def encode(self, texts: Sequence[Sequence[int]], number: int, warn: WarnCallback) -> EncodedText:
        """Returns one text or two with special ids, truncated with a warning that has the line's number.

        A pair whose first text has no token is one text, as in training.
        """
        if len(texts) > 1 and not len(texts[0]):
            texts = texts[1:]
        most, template = self.config.data.max_source_length, self.config.objective.pair_template
        whole = texts[0] if template else self.tokenizer.with_special_tokens(*texts).tokens
        truncated(whole, most, "text", "max_source_length", cut_warning(warn, number))
        return cut_pair(whole, self.pair_ending, most) if template else self.tokenizer.truncated(texts, most)

    def length(self, *texts: str) -> int:
        """Returns the number of tokens of one text or two with special ids."""
        template = self.config.objective.pair_template
        if template:
            return len(self.tokenizer.encode(pair_text(template, *texts)))
        return len(self.tokenizer.with_special_tokens(*map(self.tokenizer.encode, texts)).tokens)


@dataclass(frozen=True)
class Task(ABC, Generic[AskedT, AnswerT]):
    """Something that people do with a model. `Run`, the commands and the server have it by its name.

    A subclass is a frozen dataclass; its fields are options, which a server's request may have too.
    """

    name: ClassVar[str]
    """The command, and the server's path behind `/api/`."""
    reads: ClassVar[str]
    """The records of the objectives whose models do the task (`BaseObjective.reads`)."""
    asked: ClassVar[Any]
    """The type of what is asked, as JSON has it: a text, a text or a list, or a named tuple, which is an object there."""
    field: ClassVar[str] = "texts"
    """The field of a server's request that has one of what is asked, or several; "": a request is one itself."""
    parts: ClassVar[int] = 1
    """The most lengths of training texts that one text may have, in a server."""
    by_engine: ClassVar[bool] = True
    """Whether CTranslate2 may do it too."""
    warns: ClassVar[bool] = False
    """Whether what has no answer (`refusal`) gets an empty one and a warning, by `answered`; False: it is an error."""

    @abstractmethod
    def check(self, model: TextModel) -> None:
        """Raises: ValueError if the model does not do the task, or not with these options."""

    @abstractmethod
    def answered(self, model: TextModel, asked: Sequence[AskedT], report: Report) -> list[AnswerT]:
        """Returns the answer to each, after the checks of `answers`."""

    @abstractmethod
    def lengths(self, model: TextModel, asked: AskedT) -> list[int]:
        """Returns the number of tokens of each text that the model reads, for a server's limit."""

    def count(self, asked: AskedT) -> int:
        """Returns as how many texts this counts, for a server's limit."""
        return 1

    def refusal(self, model: TextModel, asked: AskedT) -> str:
        """Returns why this has no answer, as the end of a sentence that begins with its place; "": it has one."""
        return ""

    def check_asked(self, model: TextModel, asked: AskedT, line: int) -> None:
        """Raises: ValueError if this has no answer, and must have one."""
        reason = self.refusal(model, asked)
        if reason and not self.warns:
            raise Mistake(reason, subject=f"line {line}")

    def answers(self, model: TextModel, asked: Sequence[AskedT], **reporting: Unpack[Reporting]) -> list[AnswerT]:
        """Returns the answer to each. Raises: ValueError as `check`, and if one has no answer."""
        check_list(self.field or "what is asked", asked)
        self.check(model)
        report = Report.of(len(asked), reporting)
        for line, one in zip(report.lines, asked, strict=True):
            self.check_asked(model, one, line)
        return self.answered(model, asked, report)

    def require_records(self, model: TextModel, lack: str, kind: str) -> None:
        """Raises: ValueError if the objective does not read such records. lack: what the run then does not do."""
        objective = model.config.objective
        if objective.reads != self.reads:
            raise ValueError(
                f"objective.kind is '{objective.kind}', so the run {model.path} {lack}: use {use_command(model.config)}, or a "
                f"run of the objective '{kind}'"
            )

    # Figures of answers as texts, for an objective with `text_metric_names`; for all others its own figures suffice.

    def texts(self, model: TextModel, pairs: Sequence[Pair], **report: Unpack[Reporting]) -> list[str]:
        """Returns the answers to what labelled pairs ask, as texts."""
        raise NotImplementedError

    def figures(self, pairs: Sequence[Pair], texts: Sequence[str]) -> dict[str, float]:
        """Returns the figures of answers to labelled pairs, under the objective's `text_metric_names`."""
        raise NotImplementedError

    def scores(self, pairs: Sequence[Pair], texts: Sequence[str], parts: Mapping[str, slice]) -> dict[str, float]:
        """Returns the figures over all pairs, and over each part of a mixture under its name."""
        return self.figures(pairs, texts) | of_parts(self.figures, parts, pairs, texts)


def plain(answer: object) -> Any:
    """Returns an answer as JSON has it: a named tuple is an object, an array a list."""
    if hasattr(answer, "_asdict"):
        return {name: plain(value) for name, value in answer._asdict().items()}
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    return [plain(one) for one in answer] if isinstance(answer, list | tuple) else answer
