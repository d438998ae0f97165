"""Texts to translations, whatever searches: what a `Run` and an `EngineRun` have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from flaxformer_lite.base.console import warn
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.search.answers import Hypothesis, ScoredText, Searches, translate, warn_of_missing
from flaxformer_lite.core.search.request import Request
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text import LanguageTokenizers, Tokenizer, Tokenizers
from flaxformer_lite.core.text.special_ids import check_token_ids, cut_warning, truncated
from flaxformer_lite.core.text.tokenizer import UnknownText

WarnCallback = Callable[[str], None]


class ReadsTexts(ABC):
    """The tokenizers of a run."""

    tokenizers: Tokenizers | None
    """None if the weights were imported without a tokenizer."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The run folder, for messages."""

    @property
    def required_tokenizers(self) -> Tokenizers:
        """The tokenizers. Raises: ValueError if the run has none."""
        return required(self.tokenizers, self.path)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the texts that the model reads."""
        return self.required_tokenizers.source

    @cached_property
    def unknown(self) -> UnknownText:
        """Warns of text that is not in the vocabulary, once for each character."""
        return UnknownText(self.tokenizer)


class TextTranslator(ReadsTexts):
    """Tokenizers around a search. Subclasses have what searches, and the facts of the run."""

    @property
    @abstractmethod
    def decode(self) -> DecodeConfig:
        """The settings of decoding where a call has no others."""

    @property
    @abstractmethod
    def source_ids(self) -> int:
        """The number of ids of sources."""

    @property
    @abstractmethod
    def max_source_length(self) -> int:
        """Tokens of the longest source, special ones included."""

    @abstractmethod
    def searching(self, **options: Any) -> Searches:
        """Returns what searches under `decode` with `options` changed. Raises: ValueError if nothing can."""

    @abstractmethod
    def weights(self, decoder: Any) -> Any:
        """Returns the parameters as the search reads them, kept for the next call."""

    @abstractmethod
    def directed(self, tokenizers: Tokenizers, decode: DecodeConfig) -> Self:
        """Returns the same with other tokenizers and settings of decoding."""

    def translate(self, texts: Sequence[str], **options: Any) -> list[str]:
        """Returns the best translation of each text, in order; an empty one for an empty text. `options`: see `hypotheses`.

        Example: `run.translate(["20 November 2026"], beam_size=4)`.
        """
        return [hypotheses[0].text for hypotheses in self.hypotheses(texts, **options)]

    def hypotheses(
        self,
        texts: Sequence[str],
        *,
        progress: ProgressCallback = no_progress,
        warn: WarnCallback = warn,
        first_line: int = 1,
        **options: Any,
    ) -> list[list[ScoredText]]:
        """Returns the `decode.num_hypotheses` best translations of each text, best first; one empty one for an empty text.

        Truncates a text of more than `data.max_source_length` tokens, with a warning that has its line number. `options`: settings
        of `DecodeConfig` by name, and those of `requests`.

        Example: `run.hypotheses(["20 November 2026"], beam_size=4, num_hypotheses=2)[0][1].score`.

        Raises: ValueError if the model does not translate, the run has no tokenizer, or a setting is out of range.
        """
        check_list("texts", texts)
        self.unknown.report(texts, warn)
        sources = self.encode_sources([text if text.strip() else "" for text in texts], warn, first_line)
        decoder, requests = self.requests(texts, sources, warn, first_line, **options)
        answers = self.answered(decoder, requests, texts, progress)
        warn_of_missing(answers, warn, "line", first_line)
        return answers

    def answered(
        self, decoder: Searches, requests: Sequence[Request], texts: Sequence[str | None], progress: ProgressCallback
    ) -> list[list[ScoredText]]:
        """Returns the answers to the requests, which are those of `texts`; None: a request that is no source."""
        return translate(decoder, self.weights(decoder), requests, self.required_tokenizers, progress)

    def requests(
        self,
        texts: Sequence[str],
        sources: Sequence[Sequence[int]],
        warn: WarnCallback,
        first_line: int,
        **options: Any,
    ) -> tuple[Searches, list[Request]]:
        """Returns what searches, and what is asked of it for each source."""
        return self.searching(**options), [Request(source) for source in sources]

    def hypotheses_of_ids(
        self, sources: Sequence[Sequence[int]], *, progress: ProgressCallback = no_progress, **options: Any
    ) -> list[list[Hypothesis]]:
        """Returns the best translations of token ids as token ids. No EOS is added; `decode.pad_id` is padding.

        Example: `run.hypotheses_of_ids([[17, 5, 9, 3]])[0][0].tokens`.

        Raises: ValueError as `check_sources` does.
        """
        self.check_sources(sources)
        decoder = self.searching(**options)
        return decoder.generate(self.weights(decoder), [Request(source) for source in sources], progress)

    def check_sources(self, sources: Sequence[Sequence[int]]) -> None:
        """Raises: ValueError if an id is outside the vocabulary, or a source has more ids than `data.max_source_length`."""
        limit = self.max_source_length
        for number, source in enumerate(sources):
            check_token_ids(source, self.source_ids, f"source {number} has")
            if len(source) > limit:
                raise ValueError(
                    f"source {number} has {len(source)} ids but data.max_source_length is {limit}: shorten it"
                )

    @property
    def max_source_tokens(self) -> int:
        """Tokens of the longest source, special ones not counted."""
        return self.max_source_length - len(self.required_tokenizers.source.as_source([]))

    def encode_sources(self, texts: Sequence[str], warn: WarnCallback, first_line: int = 1) -> list[list[int]]:
        """Returns the token ids of sources, truncated to leave room for special ones, with a warning for each truncated one."""
        self.check_direction()
        most, rows = self.max_source_tokens, self.required_tokenizers.source.encode_batch(list(texts))
        return [
            truncated(row, most, "source", "max_source_length", cut_warning(warn, line))
            for line, row in enumerate(rows, first_line)
        ]

    def between(self, source: str | None = None, target: str | None = None) -> Self:
        """Returns the run for texts of one direction, by the codes of `data.languages`. It shares what is compiled.

        None: the code of `data.languages.direction`, or a model that does not read the source's language.

        Example: `run.between("eng_Latn", "fra_Latn").translate(["A dog."])`.

        Raises: ValueError if the run has no languages, or not these; the message has the nearest.
        """
        tokenizers = self.required_tokenizers
        if not isinstance(tokenizers, LanguageTokenizers):
            raise ValueError(
                f"the run {self.path} translates in one direction (data.languages is None): leave out from and to"
            )
        decode = self.decode.changed(tokenizers.ids(source, target).decode)
        return self.directed(tokenizers.between(source, target), decode)

    def in_own_direction(self) -> Self:
        """Returns the run for texts of `data.languages.direction`, if it has one."""
        has_own = isinstance(self.tokenizers, LanguageTokenizers) and self.tokenizers.languages.direction
        return self.between() if has_own else self

    def check_direction(self) -> None:
        """Raises: ValueError if the decoder reads a language, and none is named."""
        tokenizers = self.required_tokenizers
        if isinstance(tokenizers, LanguageTokenizers) and tokenizers.languages.target != "source":
            tokenizers.languages.checked(None, None)


def required(tokenizers: Tokenizers | None, path: Path) -> Tokenizers:
    """Returns the tokenizers of a run. Raises: ValueError if it has none."""
    if tokenizers is None:
        raise ValueError(
            f"the run {path} has no tokenizer: use the option --ids of translate or generate; from Python "
            "run.hypotheses_of_ids, run.completions_of_ids or run.forward"
        )
    return tokenizers


def check_list(name: str, texts: object) -> None:
    """Raises: ValueError if `texts` is one string, or a list with something else."""
    if isinstance(texts, str):
        raise ValueError(f"{name} is one string, {texts[:40]!r}: pass a list of strings")
    if isinstance(texts, Sequence) and not all(isinstance(text, str | Sequence) for text in texts):
        raise ValueError(f"{name} is {cut(repr(texts))}: it must be a list of strings")
