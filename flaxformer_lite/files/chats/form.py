"""The forms in which a model is asked for translations: an encoder–decoder reads a source, a decoder a prompt (`asking.py`).

Needs no JAX.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from flaxformer_lite.base.console import counted, warn
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.base.groups import groups_of
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.core.search import DecodeConfig, Request
from flaxformer_lite.core.search.answers import Hypothesis, Searches, check_translates
from flaxformer_lite.core.text import LanguageTokenizers, Tokenizers
from flaxformer_lite.core.text.pairs import Pair

TooLong = Callable[[int, int], object]
"""Gets the place of a text that is too long, and its number of tokens; of a source without special ones."""


class AskedPair(NamedTuple):
    """A pair as a model is asked it, with the answer that is right."""

    ids: list[int]
    """A source or a prompt as the model reads it."""
    source: str | None
    """The source of a translation; None: of another question."""
    reference: str
    settings: DecodeConfig | None = None
    """The settings of its direction; None: those of all."""


@dataclass(frozen=True)
class Form:
    """The way from texts to what a model reads, and from what it writes to texts. `Sources` says what each form can do."""

    tokenizers: Tokenizers
    decode: DecodeConfig
    """The settings of decoding where a call has no others."""
    most: int
    """Tokens of the longest source or prompt, special ones included."""

    @property
    def named_languages(self) -> dict[str, str] | None:
        """The languages that a prompt names, by the options `from` and `to`; None: the model reads no prompt."""
        return None

    @property
    def template_text(self) -> str:
        """The chat template that writes prompts; "" without one."""
        return ""


@dataclass(frozen=True)
class Sources(Form):
    """An encoder–decoder reads a source, with the special ids of its direction."""

    path: str
    """The path or the URL of the run, for messages."""

    def check(self, model: object, command: Callable[[], str]) -> None:
        """Raises: ValueError if a model of this `ModelConfig` does not translate. command: returns the command that fits it."""
        check_translates(model, command)

    def check_languages(self) -> None:
        """Raises: ValueError if the model is told a language, and nothing says which."""
        if isinstance(self.tokenizers, LanguageTokenizers) and self.tokenizers.languages.target != "source":
            self.tokenizers.languages.checked(None, None)

    @property
    def names_languages(self) -> bool:
        """Whether the model is told the languages of a translation."""
        return isinstance(self.tokenizers, LanguageTokenizers)

    def between(self, source: str | None, target: str | None) -> Self:
        """Returns the form for texts of one direction. Raises: ValueError if the model is told no languages, or not these."""
        if not isinstance(self.tokenizers, LanguageTokenizers):
            raise ValueError(
                f"the run {self.path} translates in one direction (data.languages is None): leave out from and to"
            )
        decode = self.decode.changed(self.tokenizers.ids(source, target).decode)
        return replace(self, tokenizers=self.tokenizers.between(source, target), decode=decode)

    def configured(self, config: Any) -> Any:
        """Returns a run's config with the direction of this form."""
        return replace(config, decode=self.decode)

    def settings(self, changes: Mapping[str, object]) -> DecodeConfig:
        """Returns the settings of translations with some changed by name."""
        return self.decode.changed(changes)

    @property
    def room(self) -> int:
        """The most tokens of a text that is read whole, counted as for `TooLong`."""
        return self.most - len(self.tokenizers.source.as_source([]))

    def sources(self, texts: Sequence[str], too_long: TooLong) -> list[list[int]]:
        """Returns the token ids that the model reads of each text; a text of white space has no ids.

        A text that is too long loses its end.
        """
        self.check_languages()
        room, framed, rows = self.room, self.tokenizers.source.as_source, list[list[int]]()
        for place, ids in enumerate(self.tokenizers.source.encode_batch([text.strip() and text for text in texts])):
            if len(ids) > room:
                too_long(place, len(ids))
            rows.append(framed(ids[:room]) if len(ids) else [])
        return rows

    def questions(self, pairs: Sequence[Pair]) -> list[AskedPair]:
        """Returns the question of each pair, in the direction that its languages name."""
        tokenizers, questions = self.tokenizers, dict[int, AskedPair]()
        for languages, members in groups_of(pair.languages for pair in pairs).items():
            form = self
            if isinstance(tokenizers, LanguageTokenizers):
                form = self.between(*tokenizers.codes_of(languages))
            rows = form.sources([pairs[i].source for i in members], lambda place, length: None)
            for i, ids in zip(members, rows, strict=True):
                questions[i] = AskedPair(ids, *pairs[i][:2], form.decode)
        return [questions[i] for i in range(len(pairs))]

    def shortened(self, length: int) -> str:
        """Returns the words that tell of a text that has lost its end."""
        return f"the source has {length} tokens and was cut to {self.room} (data.max_source_length)"

    def answered(
        self, search: Searches, weights: object, requests: Sequence[Request], progress: ProgressCallback
    ) -> list[list[Hypothesis]]:
        """Returns the answers to each request, best first; an empty one where there is nothing to read."""
        return search.generate(weights, requests, progress)

    def written(self, tokens: Sequence[int], source: str | None, left_out: Callable[[str], object] = len) -> str:
        """Returns an answer as one line of text. `left_out` gets what is cut from it; source: None: it is no translation."""
        return self.tokenizers.target_text(tokens)


def warn_of_left_out(notes: Sequence[str]) -> None:
    """Warns of what was left out of answers, in one line."""
    if notes:
        warn(f"{counted(len(notes), 'answer')} had more behind an empty line, which is left out: {cut(repr(notes[0]))}")
