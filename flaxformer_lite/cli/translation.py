"""The shared work of `translate` and `evaluate`: which runs translate, by which search, and how the best answer is chosen."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from flaxformer_lite.base.console import note
from flaxformer_lite.cli.answering import Answering
from flaxformer_lite.cli.input_lines import LineChunk
from flaxformer_lite.cli.options import chosen_weights, typed_settings
from flaxformer_lite.core.search import Sampling
from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.core.text import LanguageTokenizers
from flaxformer_lite.engine.engine_run import EngineRun
from flaxformer_lite.engine.texts import TextTranslator
from flaxformer_lite.tasks.lines import Columns

if TYPE_CHECKING:
    from flaxformer_lite.config import Config
    from flaxformer_lite.metrics.translations import MetricConfig
    from flaxformer_lite.run import Run

Loaded = TypeVar("Loaded", "Run", EngineRun)


def load_runs(arguments: argparse.Namespace) -> "Run":
    """Returns the run of `RUN`, with those of `--ensemble`, and the weights that were chosen."""
    from flaxformer_lite.run import load_ensemble  # with JAX

    runs = load_ensemble([arguments.folder, *arguments.ensemble], **chosen_weights(arguments))
    return in_direction(runs, arguments)


def in_direction(loaded: Loaded, arguments: argparse.Namespace) -> Loaded:
    """Returns the run for the languages of `--from` and `--to`, if any was typed."""
    codes = arguments.source_language, arguments.target_language
    return loaded.between(*codes) if any(code is not None for code in codes) else loaded


def tell_direction(loaded: "Run | EngineRun", arguments: argparse.Namespace) -> None:
    """Prints the direction of a run of several languages, where the options do not name all of it."""
    codes = arguments.source_language, arguments.target_language
    if isinstance(loaded.tokenizers, LanguageTokenizers) and None in codes:
        source, target = loaded.tokenizers.languages.checked(*codes)
        if source or codes[1] is None:
            origin = f"from {source} " if source else ""
            note(
                f"translating {origin}to {target}, as data.languages.direction says; --from and --to name other languages"
            )


def decode_settings(loaded: "Run | EngineRun", arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of decoding to override. Raises: ValueError if the options do not go together."""
    decode = typed_settings(arguments)
    if arguments.temperature is not None and arguments.samples is None:
        raise ValueError("--temperature is for samples: add --samples, or leave it out")
    chooses = arguments.minimum_risk or arguments.best_by
    if arguments.minimum_risk and arguments.best_by:
        raise ValueError("--minimum-risk and --best-by both choose the answer: leave one out")
    if arguments.samples is not None and not chooses:
        raise ValueError("--samples are candidates of --minimum-risk and --best-by: add one, or leave --samples out")
    if not chooses:
        return decode
    if arguments.samples is not None:
        temperature = 1.0 if arguments.temperature is None else arguments.temperature
        decode |= {"sampling": Sampling(temperature=temperature), "beam_size": 1, "num_hypotheses": arguments.samples}
    else:
        decode = {"num_hypotheses": decode.get("beam_size", loaded.translator.form.decode.beam_size), **decode}
    if decode["num_hypotheses"] < 2:
        option = "--minimum-risk" if arguments.minimum_risk else "--best-by"
        raise ValueError(f"{option} compares candidates, but there is only 1: raise --beam-size or --samples")
    return decode


def forced_texts(loaded: "Run | EngineRun", arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the keywords of `Run.hypotheses` for the texts that translations must have.

    Raises: ValueError for a file of terms with a mistake, or for terms that the model cannot write.
    """
    if not (arguments.terms or arguments.placeholders or arguments.prefix):
        return {}
    from flaxformer_lite.files.text.terms import Terms, known_ids

    keywords: dict[str, Any] = {}
    if arguments.terms:
        keywords["terms"] = Terms.read(arguments.terms)
        if not keywords["terms"]:
            raise ValueError(
                f"{arguments.terms} has no terms: write a term, a tab and its translation, or leave --terms out"
            )
        keywords["terms"].check(loaded.required_tokenizers.target)
    if arguments.placeholders:
        keywords["placeholders"] = True
    if arguments.prefix:
        try:
            known_ids(loaded.required_tokenizers.target, arguments.prefix)
        except ValueError as error:
            raise ValueError(f"--prefix: {error}") from None
        keywords["prefix"] = arguments.prefix
    if arguments.samples is not None:
        raise ValueError("--terms, --placeholders and --prefix are for a search: leave them or --samples out")
    return keywords


def used_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the typed options by name, for a report."""
    names = ("source_language", "target_language", "ensemble", "minimum_risk", "best_by", "samples", "temperature")
    forced = ("terms", "placeholders", "prefix")
    return typed_settings(arguments) | {
        name: getattr(arguments, name) for name in names + forced if getattr(arguments, name)
    }


def translating(loaded: "Run | EngineRun", arguments: argparse.Namespace) -> "Translating":
    """Returns the way in which `translate` answers lines. Raises: ValueError if the options do not go together."""
    decode, forced = decode_settings(loaded, arguments), forced_texts(loaded, arguments)
    if forced and arguments.ids:
        raise ValueError("--terms, --placeholders and --prefix are texts: leave them or --ids out")
    if arguments.best_by and arguments.ids:
        raise ValueError("--best-by rates texts: leave it or --ids out")
    translator = loaded.translator
    if arguments.ids and translator.form.template_text:
        raise ValueError("--ids is for encoder–decoders, but this run puts a text into its prompt: leave it out")
    typed, configured = arguments.num_hypotheses, translator.searching(**decode).config.num_hypotheses
    n_best = typed is not None or (configured > 1 and not (arguments.minimum_risk or arguments.best_by))
    kind = TranslatingIds if arguments.ids else Translating
    metrics = None if isinstance(loaded, EngineRun) else metrics_of(loaded.config)
    return kind(translator, decode | forced, arguments, metrics, n_best, load_rater(arguments))


@dataclass(frozen=True)
class Translating(Answering[list[ScoredText]]):
    """Translations of texts."""

    translator: TextTranslator
    decode: dict[str, Any]
    """Keywords of `Run.hypotheses`."""
    arguments: argparse.Namespace
    metrics: "MetricConfig | None"
    """For `--minimum-risk`, which CTranslate2 does not answer."""
    n_best: bool
    """Whether all hypotheses of a line are written, and not the best alone."""
    rater: "Run | None"
    """The run of `--best-by`."""

    @property
    def columns(self) -> Columns[list[ScoredText]]:
        if self.n_best:
            return {}
        score = {"score": lambda answer: f"{answer[0].score:.6f}"} if self.arguments.scores else {}
        return {"translation": lambda answer: one_line(answer[0].text), **score}

    def answers(self, block: LineChunk) -> list[list[ScoredText]]:
        answers, about = self.hypotheses(block), {"warn": block.warn, "first_line": block.before + 1}
        return chosen(answers, block.lines, self.arguments, self.metrics, self.rater, **about)

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


def metrics_of(config: "Config") -> "MetricConfig":
    """Returns the settings of metrics for texts like the targets that the run was trained on."""
    from flaxformer_lite.metrics.translations import with_language

    source = config.data.test or config.data.eval or config.data.train
    return config.metrics if source is None else with_language(config.metrics, source.target_names())


def load_rater(arguments: argparse.Namespace) -> "Run | None":
    """Returns the run of `--best-by`. Raises: ValueError for one that rates no translations, or only beside a reference."""
    if not arguments.best_by:
        return None
    from flaxformer_lite.run import load  # with JAX

    rater = load(arguments.best_by)
    if False not in rater.rates_with:
        raise ValueError(f"--best-by {arguments.best_by} needs references: name a metric that reads none")
    return rater


def chosen(
    answers: list[list[ScoredText]],
    sources: Sequence[str],
    arguments: argparse.Namespace,
    metrics: "MetricConfig | None",
    rater: "Run | None",
    **report: Any,
) -> list[list[ScoredText]]:
    """Returns the answers to the sources, best first: as they are, or by `--minimum-risk` or `--best-by`.

    report: see `best_first`.
    """
    if rater is not None:
        from flaxformer_lite.run.scoring import best_first  # with JAX

        return best_first(rater, sources, answers, **report)
    if not arguments.minimum_risk or metrics is None:
        return answers
    from flaxformer_lite.metrics.translations import resolve
    from flaxformer_lite.tools.research.minimum_bayes_risk import minimum_bayes_risk

    if arguments.minimum_risk == "bleu":
        metrics = resolve(metrics, [text for answer in answers for text, _ in answer])
    return [minimum_bayes_risk([text for text, _ in answer], arguments.minimum_risk, metrics) for answer in answers]
