"""A trained run, for use: `run = flaxformer_lite.load("runs/quickstart"); run.translate(["20 November 2026"])`."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, Unpack, overload

import jax
import numpy as np
from jaxtyping import Bool, PyTree

from flaxformer_lite.base.console import note, note_once, warn
from flaxformer_lite.base.hardware import check_platforms
from flaxformer_lite.config import to_json
from flaxformer_lite.config.outside import IMPORTED
from flaxformer_lite.core.base.bounds import WEIGHTS_DTYPES
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.data.batch_plan import Bucket
from flaxformer_lite.core.data.dataset import zero_batch
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.model.transformer import parameter_shapes
from flaxformer_lite.core.parallel import CompilerOptions, MeshConfig
from flaxformer_lite.core.parallel.mesh import check_rows, make_mesh, row_groups
from flaxformer_lite.core.parallel.sharding import with_padded_vocabulary
from flaxformer_lite.core.runners import MeshRunner
from flaxformer_lite.core.search.answers import Hypothesis, ScoredText, Searches, warn_of_missing
from flaxformer_lite.core.search.decoder import Decoder, check_translates
from flaxformer_lite.core.search.devices import TooLarge, Workload, place
from flaxformer_lite.core.search.forced import Forced
from flaxformer_lite.core.search.forward import ForwardArguments, ModelOutput, forward
from flaxformer_lite.core.search.generation import (
    check_generates,
    encode_prompt,
    generate_texts,
    generation_settings,
    stream_text,
)
from flaxformer_lite.core.search.request import Request, in_order
from flaxformer_lite.core.search.rows import Weights
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text import LanguageTokenizers
from flaxformer_lite.core.text.special_ids import TooLong, cut_warning, truncated
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.engine.engine_run import EngineRun, open_engine
from flaxformer_lite.engine.exports import RunWeights, state_of, text_digest
from flaxformer_lite.engine.rules import CannotAnswer, check_obeyed, is_chosen, is_installed, library, uses_cpu
from flaxformer_lite.engine.search import EngineSearch
from flaxformer_lite.engine.texts import TextTranslator, WarnCallback, check_list
from flaxformer_lite.files.data.held_out import Split
from flaxformer_lite.files.data.reading import EvalData, reader_of
from flaxformer_lite.files.data.refused import Origin
from flaxformer_lite.files.text.asking import Asking, Question, warn_of_left_out
from flaxformer_lite.files.text.chat import ChatTokenizers, encode_marked, joined, read_chat_template
from flaxformer_lite.files.text.messages import Conversation
from flaxformer_lite.files.text.terms import Terms, going_on, known_ids
from flaxformer_lite.files.text.translation_prompt import PLAIN, SOURCE_ALONE
from flaxformer_lite.run.attention import AttentionIds, AttentionWeights, attention_weights, common_length
from flaxformer_lite.run.description import BestScore, best_score, describe
from flaxformer_lite.run.recording import RecordedRow, Recording, open_recording
from flaxformer_lite.run.scoring import score, scored_data
from flaxformer_lite.run.text_predictor import TextPredictor
from flaxformer_lite.tasks.fill_mask.answers import text_ids
from flaxformer_lite.training import mean_metrics, train_task
from flaxformer_lite.workdir import open_checkpoints, open_run, restore_weights
from flaxformer_lite.workdir.folder import finite
from flaxformer_lite.workdir.frozen import parameter_digest

CONTINUATION_TOKENS = 20
"""The maximum length of a continuation whose attention is shown by default."""


class Read(NamedTuple):
    """The checkpoint that a run was loaded from."""

    wanted: RunWeights
    state: str
    """The state of the run folder before it was read."""
    params: PyTree
    """Its parameters, by which others are known."""


def without_padding(x: Any, like: Any) -> Any:
    """Returns a parameter without the padding of a divided vocabulary."""
    return x if x.shape == like.shape else x[tuple(map(slice, like.shape))]


@dataclass(frozen=True, repr=False)
class Run(TextTranslator, TextPredictor):
    """A model with its parameters, tokenizers and config, ready to use; `load` returns one.

    Methods that take `**decode` override settings of `DecodeConfig` by name, for example `beam_size=4`. A `Run` keeps the
    programs that they compile: use one for many calls. `progress`, `warn` and `first_line` are described at `Reporting`.
    """

    decoders: dict[DecodeConfig, Decoder] = dataclasses.field(default_factory=dict)
    """Decoders by the `program` of their settings, each with its compiled functions."""
    laid_out: dict[tuple[tuple[Transformer, ...], int | None], Weights] = dataclasses.field(default_factory=dict)
    """The parameters as searches read them, by the models and `decode.num_ids`: see `weights`."""
    unfit: set[str] = dataclasses.field(default_factory=set)
    """Beginnings that a line cannot have; each is warned of once, in a call or in all parts of a file."""
    origin_of_params: Read | None = None
    """The checkpoint that `load` read."""
    engines: dict[RunWeights, EngineRun] = dataclasses.field(default_factory=dict)
    """The exports that CTranslate2 has read."""
    others: tuple["Run", ...] = ()
    """Further members of an ensemble (`load_ensemble`): translations are searched with the mean of all runs' predictions."""
    stopped: bool = False
    """Whether Ctrl-C came in the training that returned this run."""

    def __repr__(self) -> str:
        return describe(self.folder, self.config, parameter_shapes(self.config.model), self.step)

    @cached_property
    def best_score(self) -> BestScore | None:
        """The best row of metrics.jsonl by `train.best_metric`; None without an evaluation."""
        return best_score(self.folder, self.config)

    @property
    def decode(self) -> DecodeConfig:
        return self.config.decode

    @property
    def source_ids(self) -> int:
        return self.config.model.vocab_size

    @property
    def origin(self) -> list[tuple[int, str, str]]:
        """The step of each member, a digest of its config, tokenizers and chat template, and one of its parameters."""
        origins = []
        for run in self.members:
            template = "" if run.asking is None else run.asking.template.source
            settings = text_digest(repr((to_json(run.config), run.vocabulary, template)))
            params = jax.tree.map(without_padding, run.params, parameter_shapes(run.config.model))
            origins.append((run.step, settings, parameter_digest(params)))
        return origins

    @cached_property
    def asking(self) -> Asking | None:
        """The way in which a decoder is asked by its chat template; None: an encoder–decoder, or a run without a template."""
        config, tokenizers = self.config, self.tokenizers
        if tokenizers is None or not config.model.continues_texts:
            return None
        template = read_chat_template(self.folder.path, tokenizers.target)
        if template is None:
            return None
        usual = SOURCE_ALONE if config.objective.reads == "conversations" else PLAIN
        return Asking(template, tokenizers.target, config.data.translation or usual)

    def check_translates(self) -> None:
        """Raises: ValueError if the run translates neither sources nor by a chat template."""
        if self.asking is None:
            check_translates(self.config.model)

    def directed(self, tokenizers: Tokenizers, decode: DecodeConfig) -> "Run":
        return dataclasses.replace(self, tokenizers=tokenizers, config=dataclasses.replace(self.config, decode=decode))

    # Translation -------------------------------------------------------------------------------------------------------

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
        if (wanted or prefix) and self.asking is not None:
            raise ValueError("terms, placeholders and prefix are for encoder–decoders: leave them out")
        if not (wanted or prefix):
            return super().requests(texts, sources, warn, first_line, **options)
        if is_chosen(options.pop("engine", "jax"), options.pop("weights_dtype", None)):
            raise CannotAnswer("CTranslate2 has no terms, placeholders and prefixes: leave them out")
        decoder = self.translation_decoder(**options)
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
        tokenizers, needs = self.required_tokenizers, []
        ids_of = cache(partial(known_ids, tokenizers.target))
        for text, source, beginning in zip(texts, sources, prefixes, strict=True):
            forced, reason = Forced(), ""
            try:
                needed, wrong = terms.tokens(text, tokenizers.target)
                reason = f"has a term or a placeholder that cannot be written: {wrong}" if wrong else ""
                forced = Forced()
                if source:
                    forced = Forced(needed, ids_of(beginning), self.going_on if needed else None)
                if why := decoder.why_not(tokenizers.source.as_source(source), forced, limit):
                    forced, reason = Forced(), why
            except ValueError as error:
                forced, reason = Forced(), f"has a beginning that cannot be written: {error}"
            needs.append((forced, reason))
        return needs

    @cached_property
    def going_on(self) -> Bool[np.ndarray, "V"]:
        """True for the ids of the target that go on with the word before them."""
        return going_on(self.required_tokenizers.target, self.config.model.output_size)

    def searching(self, engine: str = "jax", weights_dtype: str | None = None, **decode: Any) -> Decoder | EngineSearch:
        """Returns what searches under the config's settings with `decode` changed.

        engine: jax, ctranslate2, or auto, which is CTranslate2 on a CPU where it is installed and obeys all settings.
        weights_dtype: that of CTranslate2's weights, float32, bfloat16 or int8; None: that of the loaded ones.

        Raises: ValueError if the model does not translate, or CTranslate2 is asked for and cannot answer.
        """
        search = self.engine_chosen(engine, weights_dtype, **decode)
        return self.translation_decoder(**decode) if search is None else search

    def engine_chosen(
        self, engine: str = "jax", weights_dtype: str | None = None, **decode: Any
    ) -> EngineSearch | None:
        """Returns a search by CTranslate2 under the arguments of `searching`, which raises; None: JAX answers."""
        asked = is_chosen(engine, weights_dtype)
        if asked or (engine == "auto" and uses_cpu() and is_installed()):
            try:
                return self.engine_search(self.config.decode.changed(decode), weights_dtype)
            except (CannotAnswer, OSError) as error:
                if asked:
                    raise
                note_once(f"engine jax: {getattr(error, 'reason', error)}")
        return None

    def engine_of(self, options: Mapping[str, Any]) -> str:
        """Returns the engine that answers under these options of `hypotheses`: jax or ctranslate2."""
        forced = {"terms", "placeholders", "prefix"}
        wanted = {name: value for name, value in options.items() if name not in forced}
        has_forced = any(options.get(name) for name in forced)
        return "jax" if has_forced or self.engine_chosen(**wanted) is None else "ctranslate2"

    def engine_search(self, settings: DecodeConfig, weights_dtype: str | None) -> EngineSearch:
        """Returns a search by CTranslate2. Raises: CannotAnswer if it cannot answer as this run does; ValueError, OSError."""
        self.check_translates()
        if self.asking is not None:
            raise CannotAnswer("CTranslate2 is for encoder–decoders here")
        check_obeyed(settings)
        if self.others or self.placement.tensor > 1:
            raise CannotAnswer("CTranslate2 has no ensembles and divides no model: use one run on one device")
        if self.origin_of_params is None or self.origin_of_params.params is not self.params:
            raise CannotAnswer("CTranslate2 reads checkpoints, and these parameters are not those of one: load it")
        wanted = self.origin_of_params.wanted
        wanted = wanted._replace(dtype=weights_dtype or wanted.dtype)
        if wanted not in self.engines:
            library()
            if state_of(wanted.run) != self.origin_of_params.state:
                raise CannotAnswer(f"{wanted.run} has changed since it was loaded: load it again")
            self.engines[wanted] = open_engine(wanted)
        return self.engines[wanted].search(settings)

    def translation_decoder(self, **decode: Any) -> Decoder:
        """Returns the decoder of sources under the config's settings with `decode` changed; the same settings share one.

        Raises: ValueError if the model does not translate.
        """
        self.check_translates()
        return self.decoder(self.translation_settings(decode))

    def translation_settings(self, changes: Mapping[str, Any]) -> DecodeConfig:
        """Returns the settings of translations with some changed by name."""
        if self.asking is None:
            return self.config.decode.changed(changes)
        return self.asking.settings(self.config.decode, changes)

    def decoder(self, settings: DecodeConfig) -> Decoder:
        """Returns a decoder with these settings. Decoders of the same `program` share what they compile."""
        program = settings.program
        if program not in self.decoders:
            objective, longest = self.config.objective, self.config.objective.longest_row(self.config.data.longest)
            example = zero_batch(objective, Bucket(Lengths(*(min(length, 16) for length in longest)), 1))
            objective.check_prompts(example, self.config.model)
            models = tuple(run.model for run in self.members)
            self.decoders[program] = Decoder(models, program, objective.prompt_attention, self.placement)
        return self.decoders[program].under(settings)

    @overload
    def weights(self, decoder: Decoder) -> Weights: ...

    @overload
    def weights(self, decoder: Decoder | EngineSearch) -> Weights | None: ...

    def weights(self, decoder: Decoder | EngineSearch) -> Weights | None:
        """Returns the parameters as a decoder's searches read them, kept for the next call; None: CTranslate2 has its own."""
        if isinstance(decoder, EngineSearch):
            return None
        key = decoder.models, decoder.config.num_ids
        kept, members = self.laid_out.get(key), self.members
        if kept is not None and all(one["params"] is run.params for one, run in zip(kept.given, members, strict=True)):
            return kept
        weights = self.laid_out[key] = decoder.lay_out(*({"params": run.params} for run in members))
        return weights

    @property
    def members(self) -> tuple["Run", ...]:
        """The runs whose predictions a search reads: this one and `others`."""
        return (self, *self.others)

    @property
    def max_source_length(self) -> int:
        """Tokens of the longest source; of an ensemble, of the longest that all runs read; of a decoder, of the longest prompt."""
        if self.asking is not None:
            return self.config.data.longest.target
        return min(run.config.data.max_source_length for run in self.members)

    # Translation by a chat template -------------------------------------------------------------------------------------

    def between(self, source: str | None = None, target: str | None = None) -> "Run":
        if self.asking is None:
            return super().between(source, target)
        translation, tokenizers = self.asking.between(source, target), self.tokenizers
        if isinstance(tokenizers, ChatTokenizers):
            tokenizers = dataclasses.replace(tokenizers, translation=translation)
        data = dataclasses.replace(self.config.data, translation=translation)
        config = dataclasses.replace(self.config, data=data)
        return dataclasses.replace(self, config=config, tokenizers=tokenizers)

    def check_direction(self) -> None:
        if self.asking is None:
            super().check_direction()
        else:
            self.asking.check_languages()

    def encode_sources(self, texts: Sequence[str], warn: WarnCallback, first_line: int = 1) -> list[list[int]]:
        if self.asking is None:
            return super().encode_sources(texts, warn, first_line)
        most = self.max_source_length

        def too_long(place: int, length: int) -> None:
            warn(
                f"line {first_line + place}: the prompt has {length} tokens, above data.max_target_length {most}: its source is cut"
            )

        return self.asking.sources(texts, most, too_long)

    def answers(
        self, pairs: Sequence[Pair], progress: ProgressCallback = no_progress, **options: Any
    ) -> tuple[list[list[ScoredText]], list[str | None]]:
        """Returns the answers to conversations, and the references: their last answers; None: a conversation without a question.

        Raises: ValueError if the run has no chat template, or no conversation has a question.
        """
        self.check_translates()
        questions, decoder = self.questions(pairs), self.searching(**options)
        requests = in_order([] if one is None else one.ids for one in questions)
        answers = self.answered(decoder, requests, [one and one.source for one in questions], progress)
        return answers, [one and one.reference for one in questions]

    def questions(self, pairs: Sequence[Pair]) -> list[Question | None]:
        return [] if self.asking is None else self.asking.questions(pairs, self.max_source_length)

    def asked_pairs(self, pairs: Sequence[Pair]) -> Sequence[Pair]:
        """Returns pairs as texts to show: of a conversation its last answer, where the run answers conversations."""
        if self.config.objective.reads != "conversations":
            return pairs
        return [
            Pair(pair.source, "" if one is None else one.reference)
            for pair, one in zip(pairs, self.questions(pairs), strict=True)
        ]

    def answered(
        self, decoder: Searches, requests: Sequence[Request], texts: Sequence[str | None], progress: ProgressCallback
    ) -> list[list[ScoredText]]:
        asking = self.asking
        if asking is None:
            return super().answered(decoder, requests, texts, progress)
        places = [i for i, request in enumerate(requests) if request.source]
        answers, notes = [[ScoredText("", 0.0)] for _ in requests], list[str]()
        weights = self.weights(decoder)  # type: ignore[call-overload]  # of a decoder: CTranslate2 answers no prompts
        ranked_answers = decoder.generate(weights, [requests[i] for i in places], progress)
        for i, ranked in zip(places, ranked_answers, strict=True):
            answers[i] = [ScoredText(asking.written(one.tokens, texts[i], notes.append), one.score) for one in ranked]
        warn_of_left_out(notes)
        return answers

    # Generation --------------------------------------------------------------------------------------------------------

    def generate(self, prompts: Sequence[str], **options: Any) -> list[str]:
        """Returns the text that continues each prompt, in order; of several samples the first. `options`: see `completions`.

        Example: `run.generate(["Once upon"], temperature=0.8, max_new_tokens=50)`.
        """
        return [texts[0].text for texts in self.completions(prompts, **options)]

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
        """Returns the `decode.num_hypotheses` texts that continue each prompt, with scores.

        `decode` also takes the settings of `Sampling` by name. A text ends before the first of the `stop` strings in it. Samples
        depend on `seed` and the index of the prompt, counted from `first_index`.

        Example: `run.completions(["Once upon"], temperature=0.8, num_hypotheses=3)[0][2].text`.

        Raises: ValueError if the model does not continue prompts, the run has no tokenizer, or a prompt is longer than the model's
        positions.
        """
        check_list("prompts", prompts)
        decoder, tokenizer = self.generation_decoder(**decode), self.required_tokenizers.target
        self.unknown.report(prompts, warn)
        texts = generate_texts(
            decoder,
            self.weights(decoder),
            tokenizer,
            prompts,
            stop=stop,
            seed=seed,
            first_index=first_index,
            progress=progress,
        )
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
        """Returns the completions of token ids as token ids. No BOS is added.

        Example: `run.completions_of_ids([[2, 40]], max_new_tokens=3)[0][0].tokens`.

        Raises: ValueError as `completions` does, and if an id is outside the vocabulary.
        """
        decoder = self.generation_decoder(**decode)
        self.check_prompts(prompts, decoder, first_index)
        return decoder.generate(self.weights(decoder), in_order(prompts, seed, first_index), progress)

    def check_prompts(self, prompts: Sequence[str | Sequence[int]], decoder: Decoder, first_index: int = 0) -> None:
        """Checks prompts, as texts or token ids; `decoder` is that of `generation_decoder`.

        Raises: ValueError for one with an id outside the vocabulary, one without a token, or one that is longer than the model's
        positions.
        """
        for number, prompt in enumerate(prompts, first_index):
            if isinstance(prompt, str):
                prompt = encode_prompt(self.required_tokenizers.target, prompt, decoder.config.bos_id)
            decoder.check([Request(prompt, index=number)])

    def stream(
        self,
        prompt: str,
        *,
        stop: Sequence[str] = (),
        seed: int = 0,
        first_index: int = 0,
        warn: WarnCallback = warn,
        **decode: Any,
    ) -> Iterator[str]:
        """Returns an iterator over parts of the text that `generate` returns for this prompt alone, while it is generated.

        Example: `for part in run.stream("Once upon"): print(part, end="")`.

        Raises: ValueError as `completions` does, and with a `beam_size` above 1.
        """
        decoder, tokenizer = self.generation_decoder(**decode), self.required_tokenizers.target
        self.unknown.report([prompt], warn)
        ids = encode_prompt(tokenizer, prompt, decoder.config.bos_id)
        return stream_text(
            decoder, self.weights(decoder), tokenizer, ids, stop=stop, seed=seed, first_index=first_index
        )

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        stop: Sequence[str] = (),
        seed: int = 0,
        first_index: int = 0,
        warn: WarnCallback = warn,
        **decode: Any,
    ) -> Iterator[str]:
        """Returns an iterator over parts of the assistant's answer to a conversation, by the run's chat template.

        Example: `"".join(run.chat([{"role": "user", "content": "20 November 2026"}]))`.

        Raises: ValueError as `stream` does, and if the run has no chat template, or one that refuses the messages.
        """
        decoder, tokenizer = self.generation_decoder(**decode), self.required_tokenizers.target
        template = read_chat_template(self.folder.path, tokenizer)
        if template is None:
            raise ValueError(
                f"{self.folder.path} has no chat template: put a chat_template.jinja there, or use it without a chat"
            )
        read = Conversation.of(list(messages)).messages
        self.unknown.report([joined(message)["content"] for message in read[-1:]], warn)
        (prompt,) = encode_marked([template.whole_prompt(read)], tokenizer)
        self.check_prompts([prompt.ids], decoder)
        options: dict[str, Any] = {"stop": stop, "seed": seed, "first_index": first_index, "continues": False}
        return stream_text(decoder, self.weights(decoder), tokenizer, prompt.ids, **options)

    def generation_decoder(self, **decode: Any) -> Decoder:
        """Returns the decoder of prompts under the config's settings with `decode` changed, settings of `Sampling` too.

        Raises: ValueError if the model does not continue prompts.
        """
        check_generates(self.config.model)
        return self.decoder(generation_settings(self.config.decode, decode))

    @property
    def vocabulary(self) -> tuple[object, ...]:
        """The tokenizers, sizes of the vocabularies, and ids that start and end: the members of an ensemble share them."""
        tokenizers = self.tokenizers
        files = () if tokenizers is None else (tokenizers.source.to_bytes(), tokenizers.target.to_bytes())
        decode = self.config.decode
        return *files, self.config.model.vocab_sizes, decode.pad_id, decode.bos_id, decode.eos_ids

    # Attention ----------------------------------------------------------------------------------------------------------

    def own_targets(self, sources: Sequence[str]) -> Sequence[str | None]:
        """Returns the model's own translation or continuation of each source; None for each by an encoder alone."""
        if self.config.model.num_decoder_layers == 0:
            return [None for _ in sources]
        if self.config.model.num_encoder_layers:
            return self.translate(sources)
        return self.generate(sources, max_new_tokens=CONTINUATION_TOKENS)

    def attention(self, source: str, target: str | None = None) -> AttentionWeights:
        """Returns every layer's attention weights while the model reads `source` and writes `target`, by default `own_targets`.

        An encoder alone has no target; [MASK] is a masked token in its source. A decoder alone reads a prompt and its continuation.
        Truncates texts longer than the config allows, with a warning each.

        Example: `run.attention("20 November 2026", "2026-11-20").cross.shape`, which is [L, N, T, S].

        Raises: ValueError if there is a target, but the model is an encoder alone.
        """
        if target is None:
            (target,) = self.own_targets([source])
        elif self.config.model.num_decoder_layers == 0:
            raise ValueError("the model has no decoder (model.num_decoder_layers is 0): leave out the target")
        return self.attention_of_ids(self.attention_ids(source, target, cut_warning(warn)))

    def attention_ids(self, source: str, target: str | None, too_long: TooLong) -> AttentionIds:
        """Returns the token ids that the model reads, cut to what the config allows.

        `target` is None for an encoder alone. `too_long` is called for each text that is cut.
        """
        config, tokenizers = self.config, self.required_tokenizers

        if target is None:
            text, most = text_ids(self.text_model, source), config.data.max_source_length
            truncated(tokenizers.source.with_special_tokens(text).tokens, most, "text", "max_source_length", too_long)
            return AttentionIds(tokenizers.source.truncated([text], most).tokens, [], 0)
        if config.model.num_encoder_layers == 0:
            prompt, whole = (
                encode_prompt(tokenizers.target, text, config.decode.bos_id) for text in (source, source + target)
            )
            ids = truncated(whole, config.data.longest.target, "text", "max_target_length", too_long)
            full = config.objective.prompt_attention == "full"
            return AttentionIds([], ids, common_length(ids, prompt) if full else 0)
        self.check_direction()
        start = [config.decode.start_id]
        if isinstance(tokenizers, LanguageTokenizers) and tokenizers.languages.direction:
            start += tokenizers.ids_of(()).first
        most, most_of_target = self.max_source_tokens, config.data.longest.target - len(start)
        sources = truncated(tokenizers.source.encode(source), most, "source", "max_source_length", too_long)
        targets = truncated(tokenizers.target.encode(target), most_of_target, "target", "max_target_length", too_long)
        return AttentionIds(tokenizers.source.as_source(sources), [*start, *targets], 0)

    def attention_of_ids(self, ids: AttentionIds) -> AttentionWeights:
        """Returns every layer's attention weights for what `attention_ids` returned."""
        return attention_weights(self.model, self.params, self.required_tokenizers, *ids)

    # What it read -------------------------------------------------------------------------------------------------------

    @cached_property
    def recording(self) -> Recording:
        """The steps of the run with their data, which is read once. Raises: ValueError if the data has changed since."""
        return open_recording(self.folder)

    def rows(self, step: int) -> list[RecordedRow]:
        """Returns the rows of a step as the model saw them: their records, files and lines, arrays and texts.

        Example: `run.rows(1000)[0].places[0].line`.

        Raises: ValueError if there is no such step, the run was not trained here, or its data has changed since.
        """
        return self.recording.rows(step)

    # Metrics, forward passes --------------------------------------------------------------------------------------------

    def metrics(
        self,
        pairs: Sequence[Pair],
        *,
        parts: Mapping[str, slice] = {},
        origin: Origin | None = None,
        progress: ProgressCallback = no_progress,
        warn: WarnCallback = warn,
    ) -> dict[str, float]:
        """Returns the objective's metrics on pairs or documents: loss in nats per token without smoothing, perplexity, and so on.

        `parts`: names of parts that are all pairs together; each then has metrics of its own, such as `de/loss`. `origin`: the
        source of the pairs, for messages.

        Example: `run.metrics([Pair("20 November 2026", "2026-11-20")])["loss"]`.

        Raises: ValueError if `data.rows_multiple` is not divisible by the number of devices.
        """
        config = dataclasses.replace(self.config, model=self.config.model.for_use)
        mesh = make_mesh(MeshConfig(tensor=self.placement.tensor), jax.local_devices())
        check_rows(config.data.rows_multiple, mesh)
        data = EvalData(
            pairs,
            parts,
            config.objective,
            config.data,
            self.required_tokenizers,
            config.decode.bos_id,
            warn,
            origin,
        )
        # The parts of a batch that training had, as far as these devices divide them; options of this machine's compiler.
        parts_of_batch = math.gcd(config.train.num_micro_batches, config.data.rows_multiple // row_groups(mesh))
        task = train_task(config)
        task = dataclasses.replace(
            task, model=self.model, num_micro_batches=parts_of_batch, compiler_options=CompilerOptions()
        )
        runner = MeshRunner(task, mesh)
        return mean_metrics(runner, self.config.objective, self.params, data.datasets, parts, progress)

    def evaluate(
        self,
        split: Split | None = None,
        *,
        source: str | None = None,
        target: str | None = None,
        bleu_tokenizer: str | None = None,
        **decode: Any,
    ) -> dict[str, Any]:
        """Returns the scores that the command `evaluate` writes: the objective's metrics, for translations also BLEU and chrF.

        `split`: eval or test; None: data.test if the config has one. `source`, `target`: files of sentences in place of a split.
        `bleu_tokenizer`: sacreBLEU's, in place of the config's. `decode` overrides settings of `DecodeConfig`.

        Example: `run.evaluate("test", beam_size=5)["bleu"]`.

        Raises: ValueError if there is no such data, BLEU cannot be computed, or a setting is for translations, which the run
            does not make.
        """
        ignored = [*decode] if bleu_tokenizer is None else [*decode, "bleu_tokenizer"]
        if ignored and not self.config.objective.translates and self.asking is None:
            raise ValueError(f"{', '.join(ignored)}: for translations, which this run does not make: leave them out")
        data = scored_data(self.config, split, source, target, bleu_tokenizer)
        return finite(score(self, data, decode, asks=bleu_tokenizer is not None)[0])

    def forward(self, **arguments: Unpack[ForwardArguments]) -> ModelOutput:
        """Returns the model's outputs for arrays or nested lists, under the argument names of Hugging Face's library.

        Example: `run.forward(input_ids=[[2, 17, 3]]).logits.shape`.

        Raises: ValueError if an argument is none of this model's, missing, or of the wrong shape or range.
        """
        return forward(self.model, {"params": self.params}, self.config.decode, **arguments)


def load(
    path: str | Path,
    *,
    weights: str | None = None,
    step: int | None = None,
    weights_dtype: str = "float32",
    mesh: MeshConfig | None = None,
) -> Run:
    """Returns the run in a folder, ready to use on all devices of this process.

    `weights`: last, best, ema or average:N; None: the config's `weights`, whose average:N takes fewer checkpoints if there are
    fewer. `step`: the checkpoint of that step, with `weights` last or ema. `weights_dtype`: float32, or bfloat16 for products in
    bfloat16 with sums in the model's type. `mesh`: the devices that divide the model, by `tensor` and `fsdp`; the others answer
    rows of their own. None: the fewest that have the memory.

    Example: `load("runs/quickstart", weights="average:5")`.

    Raises: ValueError if the folder holds no run, or not those weights, `weights_dtype` is another type, or the devices do not
        divide or hold the model.
    """
    if weights_dtype not in WEIGHTS_DTYPES:
        raise ValueError(f"weights_dtype is {weights_dtype!r}: it must be {' or '.join(WEIGHTS_DTYPES)}")
    check_platforms()
    folder = open_run(path)
    config = folder.config()
    longest = config.data.max_source_length if config.model.num_encoder_layers else config.data.longest.target
    local = make_mesh(MeshConfig(), jax.local_devices())
    workload = Workload((config.model.for_use,), config.decode, longest, weights_dtype)
    try:
        placement = place(workload, mesh, list(local.devices.flat))
    except TooLarge as error:
        remedy = "weights_dtype bfloat16, " if weights_dtype == "float32" else ""
        raise ValueError(f"{error}: use {remedy}a lower decode.batch_tokens, or more devices") from None
    if placement.tensor > 1 and (mesh is None or mesh.tensor != placement.tensor):
        note(placement.in_words())
    local = placement.mesh or local
    wanted = RunWeights(str(folder.path), weights, step, weights_dtype, tuple(IMPORTED))
    state = state_of(wanted.run)
    with open_checkpoints(config, folder, read_only=True) as checkpoints:
        step, params = restore_weights(checkpoints, config, weights, step, local, weights_dtype)
    params = with_padded_vocabulary(params, local)
    tokenizers = (
        None if config.data.tokenizer is None else folder.load_tokenizers(config.data, config.model.vocab_sizes)
    )
    if tokenizers is not None:
        data = config.data
        tokenizers = reader_of(
            config.objective, tokenizers, folder.path, data.longest, data.translation, whole=data.train is None
        )
    loaded = Run(folder, config, params, tokenizers, step, placement, origin_of_params=Read(wanted, state, params))
    return loaded.in_own_direction()


def load_ensemble(
    paths: Sequence[str | Path],
    *,
    weights: str | None = None,
    weights_dtype: str = "float32",
    mesh: MeshConfig | None = None,
) -> Run:
    """Returns the first run, which translates with the mean of the predicted probabilities of all runs.

    The models may differ in shape, but not in their tokenizers. Settings of decoding are the first run's. Sources are as long as
    all runs read. Everything but translation, such as `metrics`, is the first run's alone. The other arguments are those of `load`;
    the devices are divided as the first run alone needs.

    Example: `load_ensemble(["runs/seed_0", "runs/seed_1"]).translate(["a man"])`.

    Raises: ValueError as `load` does, or if the runs do not fit together.
    """
    check_list("paths", paths)
    path, *further = paths
    first = load(path, weights=weights, weights_dtype=weights_dtype, mesh=mesh)
    shared = MeshConfig(tensor=first.placement.tensor)
    others = [load(other, weights=weights, weights_dtype=weights_dtype, mesh=shared) for other in further]
    for other in others:
        check_translates(other.config.model)
        if other.vocabulary != first.vocabulary:
            raise ValueError(
                f"{other.folder.path} has other tokenizers or another vocabulary than {first.folder.path}: train the runs of an "
                "ensemble with one tokenizer, by data.tokenizer=FromRun(path=…)"
            )
    return dataclasses.replace(first, others=tuple(others)) if others else first
