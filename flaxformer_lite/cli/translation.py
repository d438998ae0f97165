"""The shared work of `translate` and `evaluate`: which runs translate, by which search, and how the best answer is chosen."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from flaxformer_lite.base.console import note
from flaxformer_lite.cli.answering import Answering
from flaxformer_lite.cli.input_lines import LineChunk
from flaxformer_lite.cli.options import TranslationOptions
from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.core.text import LanguageTokenizers
from flaxformer_lite.engine.engine_run import EngineRun
from flaxformer_lite.engine.texts import TextTranslator
from flaxformer_lite.tasks.lines import Columns

if TYPE_CHECKING:
    from flaxformer_lite.run import Run

Loaded = TypeVar("Loaded", "Run", EngineRun)


def load_runs(folder: str, wanted: TranslationOptions, weights: Mapping[str, Any], forced: Mapping[str, Any]) -> "Run":
    """Returns the run in a folder, with those of `--ensemble`. weights: keywords of `load`.

    Raises: ValueError as `load`, and for `forced` texts that the model cannot write.
    """
    from flaxformer_lite.run import load_ensemble  # with JAX

    loaded = in_direction(load_ensemble([folder, *wanted.ensemble], **weights), wanted)
    if "terms" in forced:
        forced["terms"].check(loaded.required_tokenizers.target)
    if "prefix" in forced:
        from flaxformer_lite.files.text.terms import ids_of_text

        try:
            ids_of_text(loaded.required_tokenizers.target, forced["prefix"])
        except ValueError as error:
            raise ValueError(f"--prefix: {error}") from None
    return loaded


def in_direction(loaded: Loaded, wanted: TranslationOptions) -> Loaded:
    """Returns the run for the languages of `--from` and `--to`, if any was typed."""
    codes = wanted.source_language, wanted.target_language
    return loaded.between(*codes) if any(code is not None for code in codes) else loaded


def tell_direction(loaded: "Run | EngineRun", wanted: TranslationOptions) -> None:
    """Prints the direction of a run of several languages, where the options do not name all of it."""
    codes = wanted.source_language, wanted.target_language
    if isinstance(loaded.tokenizers, LanguageTokenizers) and None in codes:
        source, target = loaded.tokenizers.languages.checked(*codes)
        if source or codes[1] is None:
            origin = f"from {source} " if source else ""
            note(
                f"translating {origin}to {target}, as data.languages.direction says; --from and --to name other languages"
            )


def translating(
    loaded: "Run | EngineRun",
    decode: Mapping[str, Any],
    wanted: TranslationOptions,
    forced: Mapping[str, object],
    *,
    ids: bool,
    scores: bool,
) -> "Translating":
    """Returns the way in which `translate` answers lines. Raises: ValueError if the options do not go together."""
    translator = loaded.translator
    if forced and ids:
        raise ValueError("--terms, --placeholders and --prefix are texts: leave them or --ids out")
    if wanted.best_by and ids:
        raise ValueError("--best-by rates texts: leave it or --ids out")
    if ids and translator.form.template_text:
        raise ValueError("--ids is for encoder–decoders, but this run puts a text into its prompt: leave it out")
    settings = dict(decode)
    choice = wanted.choice()
    if choice:
        from flaxformer_lite.run.choosing import candidate_settings  # with JAX

        settings = candidate_settings(translator.form.decode, **choice, **decode)
    configured = translator.searching(**settings).config.num_hypotheses
    n_best = "num_hypotheses" in decode or (configured > 1 and not choice)
    kind = TranslatingIds if ids else Translating
    return kind(translator, settings | dict(forced), scores, n_best, choice.get("best_by"))


@dataclass(frozen=True)
class Translating(Answering[list[ScoredText]]):
    """Translations of texts."""

    translator: TextTranslator
    decode: dict[str, Any]
    """Keywords of `Run.hypotheses`."""
    scores: bool
    n_best: bool
    """Whether all hypotheses of a line are written, not only the best."""
    best_by: Any = None
    """The way to choose the best candidate, with a translator of a `Run`."""

    @property
    def columns(self) -> Columns[list[ScoredText]]:
        if self.n_best:
            return {}
        score = {"score": lambda answer: f"{answer[0].score:.6f}"} if self.scores else {}
        return {"translation": lambda answer: one_line(answer[0].text), **score}

    def answers(self, block: LineChunk) -> list[list[ScoredText]]:
        answers = self.hypotheses(block)
        about = {"warn": block.warn, "first_line": block.before + 1}
        chosen: Any = self.translator  # that of a `Run`
        return answers if self.best_by is None else chosen.best_first(self.best_by, block.lines, answers, **about)

    def hypotheses(self, block: LineChunk) -> list[list[ScoredText]]:
        with block.reporting("translating") as report:
            return self.translator.hypotheses(block.lines, **report, **self.decode)

    def written(self, index: int, answer: list[ScoredText]) -> Sequence[Sequence[str]]:
        if self.n_best:
            return [[f"{index} ||| {one_line(text)} ||| {score:.6f}"] for text, score in answer]
        return super().written(index, answer)

    def unanswered(self, index: int) -> Sequence[Sequence[str]]:
        return self.written(index, [ScoredText("", 0.0)])


def one_line(text: str) -> str:
    """Returns a text without line breaks, which would move the lines after it."""
    return re.sub(r"[\r\n]+", " ", text)


class TranslatingIds(Translating):
    """Translations of token ids, as token ids."""

    def read(self, block: LineChunk, number: int) -> list[int]:
        with block.naming(number):
            source = block.token_ids(number)
            self.translator.check_sources([source])
        return source

    def hypotheses(self, block: LineChunk) -> list[list[ScoredText]]:
        with block.reporting("translating") as report:
            answers = self.translator.hypotheses_of_ids(block.read, progress=report["progress"], **self.decode)
        return [[ScoredText(" ".join(map(str, h.tokens)), h.score) for h in answer] for answer in answers]
