"""Texts to translations, whatever searches: what the translators of a `Run` and of an `EngineRun` have in common."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from flaxformer_lite.base.console import warn
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.base.mistake import known
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.search import DecodeConfig, Request
from flaxformer_lite.core.search.answers import Hypothesis, ScoredText, Searches, warn_of_missing
from flaxformer_lite.core.text import LanguageTokenizers, Tokenizers
from flaxformer_lite.core.text.tokenizer import UnknownText
from flaxformer_lite.files.chats.form import Sources, warn_of_left_out

if TYPE_CHECKING:
    from flaxformer_lite.files.chats.asking import Asking  # with NumPy

Directed = TypeVar("Directed", bound=Any)
WarnCallback = Callable[[str], None]


class Searcher(Protocol):
    """Something that has searches, and knows what they read."""

    @property
    def unknown(self) -> UnknownText:
        """Warns of text that is not in the vocabulary. Raises: ValueError without tokenizers."""

    def search(self, settings: DecodeConfig) -> Searches:
        """Returns what searches under these settings."""

    def weights(self, search: Any) -> Any:
        """Returns the parameters as a search reads them, kept for the next call."""

    def check_source(self, source: Sequence[int]) -> None:
        """Raises: ValueError, in words that follow the source's name, for token ids that no search reads."""


@dataclass(frozen=True)
class TextTranslator:
    """Translates texts, whatever searches."""

    searcher: Searcher
    form: "Sources | Asking"

    def translate(self, texts: Sequence[str], **options: Any) -> list[str]:
        """Returns the best translation of each text, in order; an empty one for an empty text. `options`: see `hypotheses`."""
        return [ranked[0].text for ranked in self.hypotheses(texts, **options)]

    def hypotheses(
        self,
        texts: Sequence[str],
        *,
        progress: ProgressCallback = no_progress,
        warn: WarnCallback = warn,
        first_line: int = 1,
        **options: Any,
    ) -> list[list[ScoredText]]:
        """Returns the best translations of each text, best first. `options`: settings of decoding, and those of `requests`."""
        check_list("texts", texts)
        self.searcher.unknown.report(texts, warn)

        def too_long(place: int, length: int) -> None:
            warn(f"line {first_line + place}: {self.form.shortened(length)}")

        sources = self.form.sources(texts, too_long)
        search, requests = self.requests(texts, sources, warn, first_line, **options)
        answers = self.answered(search, requests, texts, progress)
        warn_of_missing(answers, warn, "line", first_line)
        return answers

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

    def searching(self, **options: Any) -> Searches:
        """Returns what searches under the settings with `options` changed. Raises: ValueError if nothing can."""
        return self.searcher.search(self.form.settings(options))

    def answered(
        self, search: Searches, requests: Sequence[Request], texts: Sequence[str | None], progress: ProgressCallback
    ) -> list[list[ScoredText]]:
        """Returns the answers to the requests, which are those of `texts`; None: a request that is no source."""
        notes = list[str]()
        weights = self.searcher.weights(search)
        found = self.form.answered(search, weights, requests, progress)
        answers = list[list[ScoredText]]()
        for text, ranked in zip(texts, found, strict=True):
            answers.append([])
            for answer in ranked:
                written = self.form.written(answer.tokens, text, notes.append)
                answers[-1].append(ScoredText(written, answer.score))
        warn_of_left_out(notes)
        return answers

    def hypotheses_of_ids(
        self, sources: Sequence[Sequence[int]], *, progress: ProgressCallback = no_progress, **options: Any
    ) -> list[list[Hypothesis]]:
        """Returns the best translations of token ids as token ids. Raises: ValueError as `check_sources` does."""
        self.check_sources(sources)
        search = self.searching(**options)
        return search.generate(self.searcher.weights(search), [Request(source) for source in sources], progress)

    def check_sources(self, sources: Sequence[Sequence[int]]) -> None:
        """Raises: ValueError if an id is outside the vocabulary, or a source has more ids than `data.max_source_length`."""
        for number, source in enumerate(sources):
            with known(subject=f"source {number}"):
                self.searcher.check_source(source)
                if len(source) > self.form.most:
                    raise ValueError(
                        f"has {len(source)} ids but data.max_source_length is {self.form.most}: shorten it"
                    )


def in_own_direction(run: Directed) -> Directed:
    """Returns a run for texts of `data.languages.direction`, if it has one."""
    tokenizers = run.tokenizers
    has_own = isinstance(tokenizers, LanguageTokenizers) and tokenizers.languages.direction
    return run.between() if has_own else run


def required_tokenizers(tokenizers: Tokenizers | None, path: str) -> Tokenizers:
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
