"""The other models of `pair`: teachers, whose translations are further pairs, and a run that the training starts from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.base.console import Progress
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text import Languages, LanguageTokenizers
from flaxformer_lite.files.text.files import file_versions
from flaxformer_lite.run import Run, load, load_ensemble
from flaxformer_lite.run.extending import extend
from flaxformer_lite.run.trimming import trim
from flaxformer_lite.tools.making.starting import run_path
from flaxformer_lite.tools.pair.cleaning import Broken, PairRule, Rules
from flaxformer_lite.workdir import open_run

BEST = 0.9
"""The share of the pairs that a filter by a metric keeps."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """Models that a translator is made with: each a run folder, a Hugging Face folder, or ORG/NAME on the hub.

    Raises: ValueError for settings that do not go together, by the names of their options.
    """

    teachers: Sequence[str] = ()
    """Models that translate the sources of the pairs and `mono`; several are an ensemble."""
    mono: Sequence[str] = ()
    """Files of further lines of the source language."""
    share: float | None = None
    """The share of the training rows that the teachers' pairs have; None: every pair comes equally often."""
    start: str | None = None
    """The model that the training starts from, with its tokenizer and its shape; None: a new one."""
    source: str | None = None
    """The code of the source's language, for all models of several languages; None: a model's own direction."""
    target: str | None = None
    like: str | None = None
    """The language of `start` from whose embeddings the new language begins; None: both are languages of `start`."""
    pieces: int | None = None
    """The vocabulary that is learned for the new language."""
    trim: bool = False
    """Whether the tokens of `start` that neither the pairs nor `mono` need are left out."""
    filter: str | None = None
    """A run that rates the pairs of people in the training; the worst leave it."""
    best: float | None = None
    """The share of them that stays; None: 0.9."""

    def __post_init__(self) -> None:
        translates = self.teachers or self.start
        needed = {
            "--mono": (self.mono, "--teacher", self.teachers),
            "--taught": (self.share, "--teacher", self.teachers),
            "--from": (self.source, "--teacher or --start", translates),
            "--to": (self.target, "--teacher or --start", translates),
            "--like": (self.like, "--start and --pieces", self.start and self.pieces),
            "--pieces": (self.pieces, "--start and --like", self.start and self.like),
            "--trim": (self.trim, "--start", self.start),
            "--best": (self.best, "--filter", self.filter),
        }
        for option, (value, others, given) in needed.items():
            if value and not given:
                raise ValueError(f"{option} is for {others}: add that, or leave {option} out")
        for option, share in (("--taught", self.share), ("--best", self.best)):
            if share is not None and not 0 < share < 1:
                raise ValueError(f"{option} is {share}: it must be a share above 0 and below 1")
        if self.like and not (self.source and self.target):
            raise ValueError("--like is for a new language: name it and the other one by --from and --to")

    def asked(self) -> dict[str, Any]:
        """Returns what decides the pairs and the start, by the names of the options; [] stands for what is not set."""
        facts = {
            "teacher": [*self.teachers],
            "mono": [version for file in self.mono for version in file_versions(file)],
            "taught": self.share,
            "start": self.start,
            "from": self.source,
            "to": self.target,
            "like": self.like,
            "pieces": self.pieces,
            "trim": self.trim,
            "filter": self.filter,
            "best": self.best,
        }
        return {name: value or [] for name, value in facts.items()}

    def rated_rules(self) -> Rules:
        """Returns the rule that `filter` adds; none without it. Raises: ValueError for a run that rates no pairs."""
        if self.filter is None:
            return {}
        rater = load(self.filter)
        share = 1 - (self.best or BEST)
        if False not in rater.rates_with:
            raise ValueError(f"--filter {self.filter} needs references: name a metric that reads none")

        def rating(pairs: Sequence[Pair]) -> Broken:
            sources, translations = ([pair[:2][side] for pair in pairs] for side in (0, 1))
            with Progress(len(pairs)) as progress:
                ratings = rater.rate(sources, translations, progress=progress.within)
            broken = np.isnan(ratings)
            worst_first = np.argsort(np.where(broken, -np.inf, rater.sign * ratings), kind="stable")
            broken[worst_first[: round(share * len(pairs))]] = True
            return broken

        return {"rating": PairRule("one of the worst ratings by --filter", rating)}

    def load_teachers(self) -> Run:
        """Returns the teachers, for the direction of the pairs."""
        return self.in_direction(load_ensemble([run_path(name) for name in self.teachers]))

    def in_direction(self, run: Run) -> Run:
        """Returns a run for `source` and `target`; as it is if it names no language."""
        if not (self.source or self.target) or not run.translator.form.names_languages:
            return run
        if isinstance(run.tokenizers, LanguageTokenizers):
            return run.between(*self.directed(run.tokenizers.languages).direction)
        return run.between(self.source, self.target)

    def directed(self, languages: Languages) -> Languages:
        """Returns the languages with the direction of `source` and `target`. Raises: ValueError for a code that is not theirs."""
        source = None if languages.source == "none" else self.source
        return replace(languages, direction=languages.checked(source, self.target))

    def check(self) -> None:
        """Looks at all models before the data is divided; imports those that are no runs.

        Raises: ValueError for one that is missing or does not fit, and for codes that none of them reads.
        """
        named = list[bool]()
        if self.teachers:
            run = self.load_teachers()
            run.translator.check()
            run.translator.form.check_languages()
            named.append(run.translator.form.names_languages)
        if self.start is not None:
            named.append(self.check_start(run_path(self.start)))
        if (self.source or self.target) and not any(named):
            raise ValueError("--from and --to name languages, but no model here reads any: leave them out")

    def check_start(self, run: str) -> bool:
        """Returns whether the run that the training starts from has languages. Raises: ValueError if it does not fit."""
        config = open_run(run).config()
        has_two, languages = config.model.has_two_stacks, config.data.languages
        if not has_two or config.data.tokenizer is None:
            what = "has no tokenizer" if has_two else "is no encoder-decoder"
            raise ValueError(f"--start: the run {run} {what}: give an encoder-decoder that reads texts")
        if self.like and self.pieces:
            self.new_side(run, languages)
        if languages is None:
            return False
        if self.like:
            languages.check_code("like", self.like)
        else:
            self.directed(languages)
        return True

    def new_side(self, run: str, languages: Languages | None) -> str:
        """Returns which of `source` and `target` the run lacks. Raises: ValueError unless it is one."""
        codes = () if languages is None else languages.codes
        new = [side for side in ("source", "target") if getattr(self, side) not in codes]
        if len(new) != 1:
            raise ValueError(
                f"--like is for one new language, but of --from {self.source} and --to {self.target} the run {run} has "
                f"{'both' if not new else 'none'}: leave --like and --pieces out, or name one of its languages"
            )
        return new[0]

    def starting_run(self, output: Path, text: Mapping[str, Path]) -> str | None:
        """Returns the run that the training starts from, with the new language if there is one; None without `start`.

        text: files of sentences of the source and of the target. Runs with a new language, or with fewer tokens, are made in the
        folder `output`.
        """
        if self.start is None:
            return None
        run = run_path(self.start)
        extended = output / "extended"
        trimmed = output / "trimmed"
        if self.like and self.pieces:
            if not extended.is_dir():
                new = self.new_side(run, open_run(run).config().data.languages)
                language = getattr(self, new)
                old = text["source" if new == "target" else "target"]
                new_text = str(text[new])
                extend(
                    run, extended, language=language, like=self.like, pieces=self.pieces, text=new_text, old=str(old)
                )
            run = str(extended.absolute())
        if self.trim:
            if not trimmed.is_dir():
                trim(run, trimmed, text=[*map(str, text.values()), *self.mono])
            run = str(trimmed.absolute())
        return run


NO_MODELS = Models()
