"""Searches of a run (`RunSearcher`), its translations (`run.translator`), and texts that continue prompts (`run.generator`).

Translations add to `engine/texts.py` the choice of the engine, and what a translation must have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.config.serialize import as_tree
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.data.batch_plan import Bucket
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.search import DecodeConfig, Forced
from flaxformer_lite.core.search.answers import ScoredText, Searches
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.generation import check_generates, generation_settings
from flaxformer_lite.core.search.request import Request, requests_in_order
from flaxformer_lite.core.search.rows import Weights
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.special_ids import check_token_ids
from flaxformer_lite.core.text.tokenizer import UnknownText
from flaxformer_lite.engine.engine_run import open_engine
from flaxformer_lite.engine.exports import OwnConfig, RunWeights, own_part, state_of
from flaxformer_lite.engine.generation import TextGenerator
from flaxformer_lite.engine.rules import CannotAnswer, check_obeyed, chosen_engine, is_chosen, library
from flaxformer_lite.engine.search import EngineSearch
from flaxformer_lite.engine.texts import TextTranslator, WarnCallback
from flaxformer_lite.files.chats.asking import Asking
from flaxformer_lite.files.chats.chat import ChatTemplate, read_chat_template
from flaxformer_lite.files.chats.form import Sources
from flaxformer_lite.files.chats.translation_prompt import PLAIN_SENTENCE, SOURCE_ALONE, TranslationPrompt
from flaxformer_lite.files.text.terms import Terms, going_on, ids_of_text
from flaxformer_lite.metrics.translations import with_language
from flaxformer_lite.run.choosing import AnswerLists, BestBy, best_first, candidate_settings
from flaxformer_lite.tasks.commands import use_command
from flaxformer_lite.tasks.engine_model import open_model
from flaxformer_lite.tasks.jax_model import JaxModel
from flaxformer_lite.tasks.task import TextModel
from flaxformer_lite.workdir import RunFolder

# What searches ---------------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """The checkpoint that a run was loaded from."""

    wanted: RunWeights
    state: str
    """The state of the run folder before it was read."""
    params: PyTree
    """Its parameters, which tell it from others."""


@dataclass(frozen=True)
class Kept:
    """Things that searches keep from call to call."""

    decoders: dict[DecodeConfig, Decoder] = field(default_factory=dict)
    """Decoders by the `program` of their settings, each with its compiled functions."""
    laid_out: dict[tuple[tuple[Transformer, ...], int | None], Weights] = field(default_factory=dict)
    """The parameters as searches read them, by the models and `decode.num_ids`: see `RunSearcher.weights`."""
    engines: dict[RunWeights, Any] = field(default_factory=dict)
    """The exports that CTranslate2 has read."""


@dataclass(frozen=True)
class RunSearcher:
    """Searches with the mean of the predictions of models, mostly of one."""

    members: Sequence[JaxModel]
    """The first one's settings count."""
    read: Read | None
    """The checkpoint of the parameters."""
    kept: Kept

    @property
    def unknown(self) -> UnknownText:
        return self.members[0].unknown

    def search(self, settings: DecodeConfig) -> Decoder:
        """Returns a decoder with these settings. Decoders of the same `program` share what they compile."""
        first = self.members[0]
        program = settings.program
        if program not in self.kept.decoders:
            objective = first.config.objective
            longest = first.config.objective.longest_row(first.config.data.longest)
            example = zero_batch(objective, Bucket(Lengths(*(min(length, 16) for length in longest)), 1))
            objective.check_prompts(example, first.config.model)
            models = tuple(member.model for member in self.members)
            self.kept.decoders[program] = Decoder(models, program, objective.prompt_attention, first.placement)
        return self.kept.decoders[program].under(settings)

    def weights(self, search: Decoder | EngineSearch) -> Any:
        """Returns the parameters as a decoder's searches read them, kept for the next call; None: CTranslate2 has its own."""
        if isinstance(search, EngineSearch):
            return None
        key = (search.models, search.config.num_ids)
        params = [member.params for member in self.members]
        kept = self.kept.laid_out.get(key)
        if kept is not None and all(one["params"] is now for one, now in zip(kept.given, params, strict=True)):
            return kept
        weights = self.kept.laid_out[key] = search.lay_out(*({"params": now} for now in params))
        return weights

    def check_source(self, source: Sequence[int]) -> None:
        """Raises: ValueError for an id that is outside the vocabulary."""
        check_token_ids(source, self.members[0].config.model.vocab_size, "has")

    def engine_search(self, settings: DecodeConfig, weights_dtype: str | None) -> EngineSearch:
        """Returns a search by CTranslate2. Raises: CannotAnswer if it cannot answer as these do; ValueError, OSError."""
        kind = self.own_config.kind
        check_obeyed(settings, kind)
        return self.opened(partial(open_engine, kind=kind), weights_dtype).search(settings)

    @cached_property
    def own_config(self) -> OwnConfig:
        """The part of the config that says how CTranslate2 may answer."""
        return own_part(as_tree(self.members[0].config))

    def text_model(self, by_engine: bool, engine: str = "jax", weights_dtype: str | None = None) -> TextModel:
        """Returns the model that reads texts in one pass. The arguments are those of `Translator.searching`, which raises.

        by_engine: whether CTranslate2 does the task.
        """
        first = self.members[0]
        config = self.own_config if by_engine else self.own_config._replace(kind="")
        read = partial(open_model, own=config, otherwise=lambda: first)
        return chosen_engine(engine, weights_dtype, lambda: self.opened(read, weights_dtype)) or first

    def opened(self, read: Callable[[RunWeights], Any], weights_dtype: str | None) -> Any:
        """Returns the run as CTranslate2 reads it, kept for the next call. Raises: CannotAnswer, ValueError, OSError."""
        first = self.members[0]
        if len(self.members) > 1 or first.placement.tensor > 1:
            raise CannotAnswer("CTranslate2 has no ensembles and divides no model: use one run on one device")
        if self.read is None or self.read.params is not first.params:
            raise CannotAnswer("CTranslate2 reads checkpoints, and these parameters are not those of one: load it")
        wanted = self.read.wanted._replace(dtype=weights_dtype or self.read.wanted.dtype)
        if wanted not in self.kept.engines:
            library()
            if state_of(wanted.run) != self.read.state:
                raise CannotAnswer(f"{wanted.run} has changed since it was loaded: load it again")
            self.kept.engines[wanted] = read(wanted)
        return self.kept.engines[wanted]


# Translations ----------------------------------------------------------------------------------------------------------


def form_of(config: Config, tokenizers: Tokenizers | None, folder: RunFolder, longest: int) -> Sources | Asking:
    """Returns the form in which a run is asked: a decoder with a chat template by that, each other model by its source.

    longest: tokens of the longest source.
    """
    if tokenizers is not None and config.model.continues_texts:
        template = read_chat_template(folder.path, tokenizers.target)
        if template is not None:
            return Asking(tokenizers, config.decode, config.data.longest.target, template, prompt_of(config))
    return Sources(tokenizers, config.decode, longest, folder.name)  # type: ignore[arg-type]  # token ids need none


def prompt_of(config: Config) -> TranslationPrompt:
    """Returns the message that asks a decoder for a translation."""
    usual = SOURCE_ALONE if config.objective.reads == "conversations" else PLAIN_SENTENCE
    return config.data.translation or usual


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
        self.form.check(self.config.model, partial(use_command, self.config))

    def hypotheses(self, texts: Sequence[str], **options: Any) -> list[list[ScoredText]]:
        """Returns the best translations of each text, best first, by their scores or as `best_by` chooses: see `Run.hypotheses`."""
        answers = super().hypotheses(texts, **candidate_settings(self.form.decode, **options))
        report = {name: options[name] for name in ("warn", "first_line") if name in options}
        return self.best_first(options.get("best_by"), texts, answers, **report)

    def best_first(self, best_by: BestBy, sources: Sequence[str], answers: AnswerLists, **report: Any) -> AnswerLists:
        """Returns the answers to each source in the order of `best_by`, with metrics for the language of the run's targets."""
        data = self.config.data
        targets = data.test or data.eval or data.train
        metrics = with_language(self.config.metrics, [] if targets is None else targets.target_names())
        return best_first(best_by, sources, answers, metrics, **report)

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
        of every translation, or of each. A text that cannot be written is left out. A line without room for all these
        texts is translated without any of them. A warning says so. `options`: see `searching`.
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
        ids_of = cache(partial(ids_of_text, target))
        for text, source, beginning in zip(texts, sources, prefixes, strict=True):
            forced, reason = Forced(), ""
            try:
                needed, wrong = terms.tokens(text, target)
                reason = f"has a term or a placeholder that cannot be written: {wrong}" if wrong else ""
                if source:
                    forced = Forced(needed, ids_of(beginning), self.going_on if needed else None)
                why = decoder.why_not(source, forced, limit)
                if why:
                    forced, reason = Forced(), why
            except ValueError as error:
                forced = Forced()
                reason = f"has a beginning that cannot be written: {error}"
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

        def opened() -> EngineSearch:
            self.check()
            return self.searcher.engine_search(self.form.settings(decode), weights_dtype)

        return chosen_engine(engine, weights_dtype, opened)

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
        questions = self.form.questions(pairs)
        search = self.searching(**options)
        requests = requests_in_order([] if one is None else one.ids for one in questions)
        answers = self.answered(search, requests, [one and one.source for one in questions], progress)
        return answers, [one and one.reference for one in questions]


# Texts that continue prompts -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Generator(TextGenerator):
    """Continues prompts with the parameters of a run."""

    searcher: RunSearcher

    def check(self) -> None:
        """Raises: ValueError if the model does not continue prompts."""
        config = self.searcher.members[0].config
        check_generates(config.model, partial(use_command, config))

    def decoder(self, engine: str = "jax", weights_dtype: str | None = None, **decode: Any) -> Decoder | EngineSearch:
        """Returns what searches under the config's settings with `decode` changed, settings of `Sampling` too.

        `engine` and `weights_dtype`: see `Translator.searching`.

        Raises: ValueError if the model does not continue prompts, or CTranslate2 is asked for and cannot answer.
        """
        self.check()
        settings = generation_settings(self.decode, decode)
        opened = partial(self.searcher.engine_search, settings, weights_dtype)
        return chosen_engine(engine, weights_dtype, opened) or self.searcher.search(settings)

    def template(self) -> ChatTemplate | None:
        """Returns the chat template of the run folder. Raises: ValueError as `TextGenerator.template`, and as `check`."""
        self.check()
        return super().template()
