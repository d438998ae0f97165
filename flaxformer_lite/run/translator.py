"""Translations of a run: `run.translator`. Adds to `engine/texts.py` the choice of the engine, and what a translation must have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Bool

from flaxformer_lite.base.console import note_once
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.search.answers import ScoredText, Searches
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.forced import Forced
from flaxformer_lite.core.search.request import Request, in_order
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.engine.rules import CannotAnswer, is_chosen, is_installed, uses_cpu
from flaxformer_lite.engine.search import EngineSearch
from flaxformer_lite.engine.texts import TextTranslator, WarnCallback
from flaxformer_lite.files.text.asking import Asking
from flaxformer_lite.files.text.chat import read_chat_template
from flaxformer_lite.files.text.form import Sources
from flaxformer_lite.files.text.terms import Terms, going_on, known_ids
from flaxformer_lite.files.text.translation_prompt import PLAIN, SOURCE_ALONE
from flaxformer_lite.run.searcher import RunSearcher
from flaxformer_lite.workdir import RunFolder


def form_of(config: Config, tokenizers: Tokenizers | None, folder: RunFolder, longest: int) -> Sources | Asking:
    """Returns the form in which a run is asked: a decoder with a chat template by that, each other model by its source.

    longest: tokens of the longest source.
    """
    if tokenizers is not None and config.model.continues_texts:
        template = read_chat_template(folder.path, tokenizers.target)
        if template is not None:
            usual = SOURCE_ALONE if config.objective.reads == "conversations" else PLAIN
            translation = config.data.translation or usual
            return Asking(tokenizers, config.decode, config.data.longest.target, template, translation)
    return Sources(tokenizers, config.decode, longest, folder.path)  # type: ignore[arg-type]  # token ids need none


@dataclass(frozen=True)
class Translator(TextTranslator):
    """Translates with the parameters of a run, or of several."""

    searcher: RunSearcher
    unfit: set[str] = field(default_factory=set)
    """Beginnings that a line cannot have; each is warned of once, in a call or in all parts of a file."""

    @property
    def config(self) -> Config:
        return self.searcher.members[0].config

    def check(self) -> None:
        """Raises: ValueError if the run translates neither sources nor by a chat template."""
        self.form.check(self.config.model)

    def requests(
        self,
        texts: Sequence[str],
        sources: Sequence[Sequence[int]],
        warn: WarnCallback,
        first_line: int,
        *,
        terms: Terms | Mapping[str, str] | None = None,
        placeholders: bool = False,
        prefix: str | Sequence[str] = "",
        **options: Any,
    ) -> tuple[Searches, list[Request]]:
        """Returns what searches, and what is asked of it for each source.

        `terms`: texts of sources with those that their translations then have; `placeholders`: see `Terms`. `prefix`: the beginning
        of every translation, or of each. A text that cannot be written is left out, and a line without room for all has none of
        them; a warning says so. `options`: see `searching`.
        """
        wanted = Terms.of(terms, placeholders)
        if not (wanted or prefix):
            return super().requests(texts, sources, warn, first_line, **options)
        if isinstance(self.form, Asking):
            raise ValueError("terms, placeholders and prefix are for encoder–decoders: leave them out")
        if is_chosen(options.pop("engine", "jax"), options.pop("weights_dtype", None)):
            raise CannotAnswer("CTranslate2 has no terms, placeholders and prefixes: leave them out")
        decoder = self.decoder(**options)
        needs = self.forced(decoder, texts, sources, wanted, prefix)
        alike = isinstance(prefix, str) and not wanted
        if first_line == 1:
            self.unfit.clear()
        for line, (one, reason) in enumerate(needs, first_line):
            if reason and not (alike and prefix in self.unfit):
                lines = "it is"
                if alike:
                    self.unfit.add(str(prefix))
                    lines = "it and all lines like it are"
                warn(f"line {line} {reason}; {lines} translated without {'them' if one == Forced() else 'that'}")
        return decoder, [Request(source, forced=one) for source, (one, _) in zip(sources, needs, strict=True)]

    def forced(
        self,
        decoder: Decoder,
        texts: Sequence[str],
        sources: Sequence[Sequence[int]],
        terms: Terms,
        prefix: str | Sequence[str] = "",
        limit: int | None = None,
    ) -> list[tuple[Forced, str]]:
        """Returns the tokens that each translation must have, or none, and why the translation cannot have them.

        Raises: ValueError if there is not one prefix, or one for each text.
        """
        prefixes = [prefix] * len(texts) if isinstance(prefix, str) else prefix
        if len(prefixes) != len(texts):
            raise ValueError(
                f"there are {len(prefixes)} prefixes for {len(texts)} texts: give one, or one for each text"
            )
        target, needs = self.form.tokenizers.target, []
        ids_of = cache(partial(known_ids, target))
        for text, source, beginning in zip(texts, sources, prefixes, strict=True):
            forced, reason = Forced(), ""
            try:
                needed, wrong = terms.tokens(text, target)
                reason = f"has a term or a placeholder that cannot be written: {wrong}" if wrong else ""
                if source:
                    forced = Forced(needed, ids_of(beginning), self.going_on if needed else None)
                if why := decoder.why_not(source, forced, limit):
                    forced, reason = Forced(), why
            except ValueError as error:
                forced, reason = Forced(), f"has a beginning that cannot be written: {error}"
            needs.append((forced, reason))
        return needs

    @cached_property
    def going_on(self) -> Bool[np.ndarray, "V"]:
        """True for the ids of the target that go on with the word before them."""
        return going_on(self.form.tokenizers.target, self.config.model.output_size)

    def searching(self, engine: str = "jax", weights_dtype: str | None = None, **decode: Any) -> Decoder | EngineSearch:
        """Returns what searches under the config's settings with `decode` changed.

        engine: jax, ctranslate2, or auto, which is CTranslate2 on a CPU where it is installed and obeys all settings.
        weights_dtype: that of CTranslate2's weights, float32, bfloat16 or int8; None: that of the loaded ones.

        Raises: ValueError if the model does not translate, or CTranslate2 is asked for and cannot answer.
        """
        return self.engine_chosen(engine, weights_dtype, **decode) or self.decoder(**decode)

    def engine_chosen(
        self, engine: str = "jax", weights_dtype: str | None = None, **decode: Any
    ) -> EngineSearch | None:
        """Returns a search by CTranslate2 under the arguments of `searching`, which raises; None: JAX answers."""
        asked = is_chosen(engine, weights_dtype)
        if asked or (engine == "auto" and uses_cpu() and is_installed()):
            try:
                return self.engine_search(self.form.decode.changed(decode), weights_dtype)
            except (CannotAnswer, OSError) as error:
                if asked:
                    raise
                note_once(f"engine jax: {getattr(error, 'reason', error)}")
        return None

    def engine_search(self, settings: DecodeConfig, weights_dtype: str | None) -> EngineSearch:
        """Returns a search by CTranslate2. Raises: as `RunSearcher.engine_search`; ValueError if the model does not translate."""
        self.check()
        return self.searcher.engine_search(settings, weights_dtype)

    def engine_of(self, options: Mapping[str, Any]) -> str:
        """Returns the engine that answers under these options of `hypotheses`: jax or ctranslate2."""
        forced = {"terms", "placeholders", "prefix"}
        wanted = {name: value for name, value in options.items() if name not in forced}
        has_forced = any(options.get(name) for name in forced)
        return "jax" if has_forced or self.engine_chosen(**wanted) is None else "ctranslate2"

    def decoder(self, **decode: Any) -> Decoder:
        """Returns the decoder of sources under the config's settings with `decode` changed; the same settings share one.

        Raises: ValueError if the model does not translate.
        """
        self.check()
        return self.searcher.search(self.form.settings(decode))

    def answers(
        self, pairs: Sequence[Pair], progress: ProgressCallback = no_progress, **options: Any
    ) -> tuple[list[list[ScoredText]], list[str | None]]:
        """Returns the answers to conversations, and the references: their last answers; None: a conversation without a question.

        Raises: ValueError if the run has no chat template, or no conversation has a question.
        """
        self.check()
        assert isinstance(self.form, Asking)  # as the model reads conversations
        questions, search = self.form.questions(pairs), self.searching(**options)
        requests = in_order([] if one is None else one.ids for one in questions)
        answers = self.answered(search, requests, [one and one.source for one in questions], progress)
        return answers, [one and one.reference for one in questions]
