"""Searches of a run (`RunSearcher`), its translations (`run.translator`), and texts that continue prompts (`run.generator`).

Translations add to `engine/texts.py` the choice of the engine, and what a translation must have.
"""

import collections.abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, PyTree

from flaxformer_lite.base.console import note_once, warn
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.data.batch_plan import Bucket
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.search import DecodeConfig, Forced
from flaxformer_lite.core.search.answers import Hypothesis, ScoredText, Searches, warn_of_missing
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.generation import (
    TextStream,
    check_generates,
    check_stop,
    decode_after,
    encode_prompt,
    generation_settings,
    truncate_at_stop,
    watch_stops,
)
from flaxformer_lite.core.search.request import Request, in_order
from flaxformer_lite.core.search.rows import Weights
from flaxformer_lite.core.text import Tokenizer, Tokenizers
from flaxformer_lite.core.text.special_ids import check_token_ids
from flaxformer_lite.core.text.tokenizer import UnknownText
from flaxformer_lite.engine.engine_run import open_engine
from flaxformer_lite.engine.exports import OwnConfig, RunWeights, kind_of, state_of
from flaxformer_lite.engine.rules import CannotAnswer, check_obeyed, is_chosen, is_installed, library, uses_cpu
from flaxformer_lite.engine.search import EngineSearch
from flaxformer_lite.engine.texts import TextTranslator, WarnCallback, check_list, required
from flaxformer_lite.files.chats.asking import Asking
from flaxformer_lite.files.chats.chat import ChatTemplate, encode_marked, joined, read_chat_template
from flaxformer_lite.files.chats.form import Sources
from flaxformer_lite.files.chats.messages import Conversation
from flaxformer_lite.files.chats.translation_prompt import PLAIN, SOURCE_ALONE
from flaxformer_lite.files.text.terms import Terms, going_on, known_ids
from flaxformer_lite.metrics.translations import with_language
from flaxformer_lite.run.choosing import Answers, BestBy, best_first, candidates
from flaxformer_lite.tasks.engine_model import open_model
from flaxformer_lite.tasks.jax_model import JaxModel
from flaxformer_lite.tasks.task import TextModel
from flaxformer_lite.workdir import RunFolder

Opened = TypeVar("Opened")

# What searches ---------------------------------------------------------------------------------------------------------


class Read(NamedTuple):
    """The checkpoint that a run was loaded from."""

    wanted: RunWeights
    state: str
    """The state of the run folder before it was read."""
    params: PyTree
    """Its parameters, by which others are known."""


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
        first, program = self.members[0], settings.program
        if program not in self.kept.decoders:
            objective, longest = first.config.objective, first.config.objective.longest_row(first.config.data.longest)
            example = zero_batch(objective, Bucket(Lengths(*(min(length, 16) for length in longest)), 1))
            objective.check_prompts(example, first.config.model)
            models = tuple(member.model for member in self.members)
            self.kept.decoders[program] = Decoder(models, program, objective.prompt_attention, first.placement)
        return self.kept.decoders[program].under(settings)

    def weights(self, search: Decoder | EngineSearch) -> Any:
        """Returns the parameters as a decoder's searches read them, kept for the next call; None: CTranslate2 has its own."""
        if isinstance(search, EngineSearch):
            return None
        key, params = (search.models, search.config.num_ids), [member.params for member in self.members]
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
        if self.members[0].config.model.continues_texts:
            raise CannotAnswer("CTranslate2 is for encoder–decoders here")
        check_obeyed(settings)
        return self.opened(open_engine, weights_dtype).search(settings)

    def text_model(self, by_engine: bool, engine: str = "jax", weights_dtype: str | None = None) -> TextModel:
        """Returns the model that reads texts in one pass. The arguments are those of `Translator.searching`, which raises.

        by_engine: whether CTranslate2 does the task.
        """
        first = self.members[0]
        sizes = first.config.model.num_encoder_layers, first.config.model.num_decoder_layers
        own = OwnConfig(kind_of(*sizes) if by_engine else "", first.config.decode)
        read = partial(open_model, own=own, otherwise=lambda: first)
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


def chosen_engine(engine: str, weights_dtype: str | None, opened: Callable[[], Opened]) -> Opened | None:
    """Returns what `opened` returns, where CTranslate2 answers: it is asked for, or fits this machine. None: JAX answers.

    Raises: as `opened`, if CTranslate2 is asked for.
    """
    asked = is_chosen(engine, weights_dtype)
    if asked or (engine == "auto" and uses_cpu() and is_installed()):
        try:
            return opened()
        except (CannotAnswer, OSError) as error:
            if asked:
                raise
            note_once(f"engine jax: {getattr(error, 'reason', error)}")
    return None


# Translations ----------------------------------------------------------------------------------------------------------


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

    def hypotheses(self, texts: Sequence[str], **options: Any) -> list[list[ScoredText]]:
        """Returns the best translations of each text, best first, by their scores or as `best_by` chooses: see `Run.hypotheses`."""
        answers = super().hypotheses(texts, **candidates(self.form.decode, **options))
        report = {name: options[name] for name in ("warn", "first_line") if name in options}
        return self.best_first(options.get("best_by"), texts, answers, **report)

    def best_first(self, best_by: BestBy, sources: Sequence[str], answers: Answers, **report: Any) -> Answers:
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

        def opened() -> EngineSearch:
            settings = self.form.decode.changed(decode)
            self.check()
            return self.searcher.engine_search(settings, weights_dtype)

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
        questions, search = self.form.questions(pairs), self.searching(**options)
        requests = in_order([] if one is None else one.ids for one in questions)
        answers = self.answered(search, requests, [one and one.source for one in questions], progress)
        return answers, [one and one.reference for one in questions]


# Texts that continue prompts -------------------------------------------------------------------------------------------


Generation = collections.abc.Generator[str, None, TextStream]
"""Parts of a text, and at the end the whole."""


@dataclass(frozen=True)
class Generator:
    """Continues prompts with the parameters of a run."""

    searcher: RunSearcher

    @property
    def model(self) -> JaxModel:
        return self.searcher.members[0]

    @property
    def tokenizer(self) -> Tokenizer:
        return required(self.model.tokenizers, self.model.path).target

    def decoder(self, **decode: Any) -> Decoder:
        """Returns the decoder of prompts under the config's settings with `decode` changed, settings of `Sampling` too.

        Raises: ValueError if the model does not continue prompts.
        """
        check_generates(self.model.config.model)
        return self.searcher.search(generation_settings(self.model.config.decode, decode))

    def completions(
        self,
        prompts: Sequence[str],
        *,
        stop: Sequence[str] = (),
        seed: int = 0,
        first_index: int = 0,
        progress: ProgressCallback = no_progress,
        warn: WarnCallback = warn,
        **decode: Any,
    ) -> list[list[ScoredText]]:
        """Returns the `decode.num_hypotheses` texts that continue each prompt: see `Run.completions`."""
        check_list("prompts", prompts)
        decoder, tokenizer = self.decoder(**decode), self.tokenizer
        self.model.unknown.report(prompts, warn)
        check_stop(stop)
        rows = [encode_prompt(tokenizer, prompt, decoder.config.bos_id) for prompt in prompts]
        watch, weights = watch_stops(tokenizer, rows, [stop] * len(rows)), self.searcher.weights(decoder)
        answers = decoder.generate(weights, in_order(rows, seed, first_index), progress, watch=watch)
        texts = [
            [ScoredText(truncate_at_stop(decode_after(tokenizer, row, one.tokens), stop), one.score) for one in ranked]
            for row, ranked in zip(rows, answers, strict=True)
        ]
        warn_of_missing(texts, warn, "prompt", first_index)
        return texts

    def completions_of_ids(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seed: int = 0,
        first_index: int = 0,
        progress: ProgressCallback = no_progress,
        **decode: Any,
    ) -> list[list[Hypothesis]]:
        """Returns the completions of token ids as token ids: see `Run.completions_of_ids`."""
        decoder = self.decoder(**decode)
        self.check_prompts(prompts, decoder, first_index)
        return decoder.generate(self.searcher.weights(decoder), in_order(prompts, seed, first_index), progress)

    def check_prompts(self, prompts: Sequence[str | Sequence[int]], decoder: Decoder, first_index: int = 0) -> None:
        """Checks prompts, as texts or token ids; `decoder` is that of `decoder`.

        Raises: ValueError for one with an id outside the vocabulary, one without a token, or one that is longer than the model's
        positions.
        """
        for number, prompt in enumerate(prompts, first_index):
            if isinstance(prompt, str):
                prompt = encode_prompt(self.tokenizer, prompt, decoder.config.bos_id)
            decoder.check([Request(prompt, index=number)])

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        stop: Sequence[str] = (),
        seed: int = 0,
        first_index: int = 0,
        warn: WarnCallback = warn,
        **decode: Any,
    ) -> Iterator[str]:
        """Returns an iterator over parts of the text that continues a prompt (`Run.stream`), or that answers one of token ids."""
        decoder, before = self.decoder(**decode), list[int]()
        if isinstance(prompt, str):
            self.model.unknown.report([prompt], warn)
            prompt = before = encode_prompt(self.tokenizer, prompt, decoder.config.bos_id)
        else:
            self.check_prompts([prompt], decoder)
        return self.streamed(decoder, Request(prompt, seed=seed, index=first_index), stop, before)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, warn: WarnCallback = warn, **options: Any
    ) -> Iterator[str]:
        """Returns an iterator over parts of the answer to a conversation: see `Run.chat`."""
        template = self.template()
        if template is None:
            raise ValueError(
                f"{self.model.path} has no chat template: put a chat_template.jinja there, or use it without a chat"
            )
        read = Conversation.of(list(messages)).messages
        self.model.unknown.report([joined(message)["content"] for message in read[-1:]], warn)
        (prompt,) = encode_marked([template.whole_prompt(read)], self.tokenizer)
        return self.stream(prompt.ids, warn=warn, **options)

    def streamed(
        self, decoder: Decoder, request: Request, stop: Sequence[str], before: Sequence[int] = ()
    ) -> Generation:
        """Yields the answer to a request in parts, while it is generated; returns all of it.

        before: the tokens that its text continues.
        """
        check_stop(stop)
        text = TextStream(self.tokenizer, before, stop)
        for tokens in decoder.stream(self.searcher.weights(decoder), request):
            yield text.add(tokens)
            if text.stopped:
                return text
        yield text.finish()
        return text

    def template(self) -> ChatTemplate | None:
        """Returns the chat template of the run folder; None without one.

        Raises: ValueError if the model does not continue prompts, or for a file that is not JSON.
        """
        check_generates(self.model.config.model)
        return read_chat_template(self.model.path, self.tokenizer)
