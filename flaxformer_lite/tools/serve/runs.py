"""A run as the server uses it: its tasks, the checks of a request's texts, and the answers to many texts at once.

`…_job` methods are called in threads of requests: they check and tokenize. `answer` and `stream` are called only by the worker.
"""

import dataclasses
import functools
import itertools
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from flaxformer_lite.base.console import note, warn
from flaxformer_lite.core.base.bounds import LARGEST
from flaxformer_lite.core.model.transformer import parameter_shapes
from flaxformer_lite.core.placement.batches import padded_rows
from flaxformer_lite.core.search import DecodeConfig, Forced, Request
from flaxformer_lite.core.search.answers import Hypothesis
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.generation import (
    TextStream,
    check_stop,
    encode_prompt,
    generation_settings,
    truncate_at_stop,
    watch_stops,
)
from flaxformer_lite.core.text.tokenizer import UnknownText
from flaxformer_lite.engine.rules import CannotAnswer, chosen_engine, is_chosen, obstacles
from flaxformer_lite.engine.search import EngineSearch
from flaxformer_lite.files.chats.asking import Asking
from flaxformer_lite.files.chats.form import warn_of_left_out
from flaxformer_lite.files.chats.messages import Conversation
from flaxformer_lite.files.text.terms import Terms
from flaxformer_lite.run import Run
from flaxformer_lite.run.attention import AttentionIds, attention_axes, attention_ids, layer_weights
from flaxformer_lite.run.description import describe_model
from flaxformer_lite.tasks import tasks
from flaxformer_lite.tasks.fill_mask.answers import MASK
from flaxformer_lite.tasks.task import Task, TextModel
from flaxformer_lite.tools.serve.chat_process import ChatProcess
from flaxformer_lite.tools.serve.limits import Limits, Refusal
from flaxformer_lite.tools.serve.requests import DecodingRequest, as_list
from flaxformer_lite.tools.serve.worker import Job

MOST_PROGRAMS = 256
"""Compiled programs that a run keeps: beyond them the settings (`DecodeConfig.program`) that were not used longest lose theirs. A
setting has up to 150, by its lengths and numbers of rows; a program of a tiny model takes 3 to 8 MB."""
OPENAI_PATHS = {
    "translate": ("/v1/completions",),
    "generate": ("/v1/completions", "/v1/chat/completions"),
    "embed": ("/v1/embeddings",),
}
"""The paths of OpenAI's interface that serve a task, beside `/api/TASK`."""
MAX_WEIGHTS = 1_000_000
"""Attention weights in an answer."""


class Prompt(NamedTuple):
    """One source or prompt."""

    request: Request
    """The request to the decoder; without token ids: an empty source, whose translation is empty."""
    stop: tuple[str, ...] = ()
    before: Sequence[int] = ()
    """The tokens whose text the answer continues, with the space between the two; in a chat it is a text of its own."""
    written: Callable[[Sequence[int]], str] | None = None
    """Returns the translation in an answer's tokens; None: the answer continues a text."""


class WrittenText(NamedTuple):
    """One text that the model wrote."""

    text: str
    score: float
    num_tokens: int
    finish: str
    """stop: by its end or a stop string; length: by its maximum length."""


class Key(NamedTuple):
    """The work of a job: items under equal keys are answered by one call."""

    run: str
    task: str
    program: Any
    """The settings that all items have in common: a `DecodeConfig`, or the `Task` with its options."""
    engine: str = "jax"


class ServedRun:
    """A run under a name.

    engine: keywords of `Translator.searching` for CTranslate2, which answers the requests that it obeys; {}: JAX answers all.

    Raises: ValueError if it has no tokenizer, or nothing that a server can answer, or CTranslate2 is asked for and cannot answer.
    """

    def __init__(self, name: str, run: Run, limits: Limits, engine: Mapping[str, Any] = {}) -> None:
        self.name, self.run, self.limits = name, run, limits
        self.tokenizers = run.required_tokenizers
        by_name = bool(engine) and is_chosen(**engine)  # then JAX does nothing else
        checks: dict[str, Callable[[], object]] = {
            "generate": run.generator.check,
            "translate": run.translator.check,
        }
        for task in tasks():
            if task.by_engine or not by_name:
                checks[task.name] = functools.partial(task.check, run.text_model)
        self.tasks = tuple(name for name, check in checks.items() if succeeds(check))
        self.model: TextModel = run.text_model
        """The model of tasks that CTranslate2 may do; JAX does the others."""
        if engine and any(task.by_engine for task in tasks() if task.name in self.tasks):
            self.model = run.answering({**engine})  # type: ignore[typeddict-item]
            if self.model is not run.text_model:
                note(f"{name}: engine ctranslate2, {engine['weights_dtype']}")
        if not self.tasks:
            raise ValueError(f"the run {run.folder.called} has no head that answers texts: serve another run")
        self.engine: Mapping[str, Any] = {}
        if engine and {"generate", "translate"} & set(self.tasks):
            self.engine = self.opened_engine(engine)
        if self.engine:
            others = obstacles(run.config.decode, run.searcher.own_config.kind)
            fate_of_others = ""
            if others:
                fate_of_others = f", and requests with {', '.join(others)} are {'refused' if by_name else 'for jax'}"
            note(f"{name}: engine ctranslate2, {engine['weights_dtype']}{fate_of_others}")
        self.about = describe_model(run.config.model, parameter_shapes(run.config.model))
        languages = run.config.data.languages
        self.languages: dict[str, Any] | None = None if languages is None else vars(languages)
        """The settings of `data.languages`."""
        self.named_languages = run.translator.form.named_languages
        """The languages that the prompt of a decoder names; None: no decoder that translates."""
        self.reads_target = run.config.model.num_decoder_layers > 0
        self.chat = self.opened_chat() if "generate" in self.tasks else None
        if run.config.model.continues_texts and self.chat is None:
            self.tasks = tuple(name for name in self.tasks if name != "translate")

    def opened_engine(self, engine: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the keywords of CTranslate2 if it answers requests with the usual settings, or with a beam of 1; else {}."""
        searcher = self.run.searcher
        kind = searcher.own_config.kind
        usual = self.run.config.decode
        changed: dict[str, Any] = {"beam_size": 1, "num_hypotheses": 1, "sampling": None}
        if "generate" in self.tasks:
            changed["repetition_penalty"] = 1.0
        simplest = dataclasses.replace(usual, **changed)
        # Requests may change these settings, and the server opens what answers some of them.
        wanted = min(usual, simplest, key=lambda settings: len(obstacles(settings, kind)))
        opened = functools.partial(searcher.engine_search, wanted, engine["weights_dtype"])
        search = chosen_engine(**engine, opened=opened, tell=lambda line: note(f"{self.name}: {line}"))
        return {} if search is None else engine

    def opened_chat(self) -> ChatProcess | None:
        """Returns the process of the run's chat template; None, with a warning, if it does not work."""
        try:
            template = self.run.generator.template()
            if template is None:
                return None
            chat = ChatProcess(template)
            chat.check()
        except ValueError as error:
            warn(f"{self.run.folder.called} has no chat: {error}")
            return None
        return chat

    def unknown(self, texts: Sequence[str]) -> list[str]:
        """Returns a warning of the parts of texts that the vocabulary lacks, if there are any."""
        warnings: list[str] = []
        UnknownText(self.tokenizers.source).report(texts, warnings.append)
        return warnings

    # Requests to jobs -----------------------------------------------------------------------------------------------------

    def translation_job(
        self,
        texts: Sequence[str],
        *,
        max_new_tokens: int | None = None,
        beam_size: int | None = None,
        num_hypotheses: int | None = None,
        direction: tuple[str | None, str | None] = (None, None),
        terms: dict[str, str] | None = None,
        placeholders: bool = False,
        prefix: str | list[str] = "",
    ) -> Job:
        """Returns the job of translating texts, in the direction that is named, with terms and beginnings.

        A search of JAX returns all of its beam, so that requests for fewer share a program.
        """
        translator = self.between(direction).translator
        form = translator.form
        wanted = Terms.of(terms, placeholders)
        has_forced = bool(wanted or prefix)
        is_decoder = self.run.config.model.continues_texts
        if is_decoder and has_forced:
            raise Refusal(422, f"{self.name} is a decoder: leave out terms, placeholders and prefix")
        form.check_languages()
        if is_decoder and not all(text.strip() for text in texts):
            raise Refusal(422, "a text is empty: leave it out")
        counts = {"beam_size": beam_size, "num_hypotheses": num_hypotheses}
        changes = {name: count for name, count in counts.items() if count is not None}
        settings, limit = with_limit(form.settings(changes), max_new_tokens)
        engine = "jax" if self.engine_search(settings, has_forced) is None else "ctranslate2"
        if settings.sampling is None and engine == "jax" and not is_decoder:
            settings = dataclasses.replace(settings, num_hypotheses=settings.beam_size)
        if isinstance(form, Asking):
            form = dataclasses.replace(form, most=self.max_prompt_tokens, write=self.written_prompts)
        rows = form.sources(texts, lambda place, length: self.refuse(place + 1, length, form.room))
        needs = [(Forced(), "")] * len(rows)
        if has_forced:
            decoder = translator.searcher.search(settings)
            needs = translator.forced(decoder, texts, rows, wanted, prefix, limit)
        prompts = list[Prompt]()
        for row, text, (forced, reason) in zip(rows, texts, needs, strict=True):
            if reason:
                raise Refusal(422, f"text {len(prompts) + 1} {reason}")
            written = functools.partial(form.written, source=text, left_out=told)
            prompts.append(Prompt(Request(row, settings, limit, index=0, forced=forced), written=written))
        return Job(Key(self.name, "translate", settings.program, engine), prompts)

    def written_prompts(self, conversations: Sequence[Conversation]) -> list[str]:
        """Returns the prompts as the process of the chat template writes them."""
        assert self.chat is not None  # else the run does not translate here
        coming = [self.chat.submit(messages) for messages, _ in conversations]
        return [prompt.result() for prompt in coming]

    def generation_job(
        self,
        prompts: Sequence[str | Sequence[int]],
        asked: DecodingRequest,
        *,
        max_new_tokens: int | None = None,
        num_hypotheses: int | None = None,
    ) -> Job:
        """Returns the job of continuing prompts: texts, or token ids."""
        stop = tuple(as_list(asked.stop))
        check_stop(stop)
        config = self.run.config.decode
        decode = asked.decode
        if num_hypotheses is not None:
            decode = decode | {"num_hypotheses": num_hypotheses}
            if num_hypotheses > 1:
                decode = {"temperature": getattr(config.sampling, "temperature", 1.0)} | decode
        settings, limit = with_limit(generation_settings(config, decode), max_new_tokens)
        vocab_size = self.run.config.model.vocab_size
        tokenizer = self.tokenizers.target
        rows = []
        for prompt in prompts:
            row = encode_prompt(tokenizer, prompt, config.bos_id) if isinstance(prompt, str) else list(prompt)
            if not row or not 0 <= min(row) <= max(row) < vocab_size:
                raise Refusal(422, "a prompt of token ids is empty, or has an id outside the vocabulary: correct it")
            rows.append(row)
        self.check_lengths([len(row) for row in rows], self.max_prompt_tokens)
        made = list[Prompt]()
        for row in rows:
            seed = secrets.randbelow(2**32) if asked.seed is None else asked.seed
            before = row if asked.continues else ()
            made.append(Prompt(Request(row, settings, limit, seed, 0), stop, before))
        engine = "jax" if self.engine_search(settings) is None else "ctranslate2"
        return Job(Key(self.name, "generate", settings.program, engine), made)

    def task_job(self, task: Task[object, object], asked: Sequence[object]) -> Job:
        """Returns the job of a task with its options."""
        model = self.run.text_model
        task.check(model)
        for number, one in enumerate(asked, 1):
            reason = task.refusal(model, one)
            if reason:
                raise Refusal(422, f"text {number} {reason}")
        lengths = list[int]()
        for one in asked:
            lengths += task.lengths(model, one)
        self.check_lengths(lengths, self.run.config.data.max_source_length * task.parts)
        size = sum(map(task.count, asked))
        return Job(Key(self.name, task.name, task), asked, size=size)

    def between(self, direction: tuple[str | None, str | None]) -> Run:
        """Returns the run for a direction, if one is named."""
        return self.run if direction == (None, None) else self.run.between(*direction)

    def attention_job(
        self, source: str, target: str | None, direction: tuple[str | None, str | None] = (None, None)
    ) -> Job:
        """Returns the job of computing attention weights of a translation, a prompt with its continuation, or a text."""
        if self.reads_target and target is None:
            raise Refusal(422, f"{self.name} has a decoder: send the target that it writes", param="target")
        if target is not None and not self.reads_target:
            raise Refusal(422, f"{self.name} has no decoder: leave out the target", param="target")
        if not self.reads_target and MASK in source and "fill-mask" not in self.tasks:
            message = f"the source has {MASK}, but {self.name} predicts no masks: leave it out"
            raise Refusal(422, message, param="source")
        run = self.between(direction)
        ids = attention_ids(run, source, target, lambda name, length, most, setting: self.check_lengths([length], most))
        sizes = [len(row) for row in (ids.sources, ids.targets) if row]
        if not sizes:
            raise Refusal(422, "the source has no tokens: send a text", param="source")
        model = self.run.config.model
        maps = (model.num_decoder_layers or model.num_encoder_layers) * model.num_heads
        if maps * sizes[0] * sizes[-1] > MAX_WEIGHTS:
            raise Refusal(413, f"there are more than {MAX_WEIGHTS:,} attention weights: choose shorter texts")
        return Job(Key(self.name, "attention", self.run.config.decode), [(run, ids)])

    @property
    def max_prompt_tokens(self) -> int:
        """Tokens of the longest prompt: as many as the model has positions for, and as training texts have."""
        return min(self.run.config.data.longest.target, self.run.config.model.positions.max_positions or LARGEST)

    def check_lengths(self, lengths: Sequence[int], most: int) -> None:
        """Raises: Refusal for a text of more tokens than the model reads."""
        for number, length in enumerate(lengths, 1):
            if length > most:
                self.refuse(number, length, most)

    def refuse(self, number: int, length: int, most: int) -> NoReturn:
        message = f"text {number} has {length} tokens, but {self.name} reads at most {most}: shorten it"
        raise Refusal(413, message, code="context_length_exceeded")

    def warm_up(self, say: Callable[[str], None]) -> None:
        """Compiles the programs that requests with default settings need if the run translates or generates."""
        if "translate" in self.tasks and not self.run.config.model.continues_texts:
            languages = self.run.config.data.languages
            code = None
            if languages is not None and not languages.direction:
                code = languages.codes[0]
            job = self.translation_job(["."], direction=(code, code))  # one program has all directions
            longest = self.run.config.data.longest.source
        elif "generate" in self.tasks:
            job = self.generation_job([[0]], DecodingRequest())
            longest = self.max_prompt_tokens
        else:
            return
        if job.key.engine != "jax":
            return
        decoder = self.decoder(job.key.program)
        powers_of_two = [1 << power for power in range(3, 31)]
        lengths = [length for length in powers_of_two if length < longest] + [longest]
        most_texts = self.limits.texts * self.run.placement.groups
        counts = dict.fromkeys(padded_rows(count) for count in range(1, most_texts + 1))
        shapes = dict[tuple[int, int], None]()
        for length, count in itertools.product(lengths, counts):
            batches = decoder.batches([length] * count)
            shapes |= dict.fromkeys((batch.rows, batch.length) for batch in batches)
        for number, (rows, length) in enumerate(shapes, 1):
            say(f"{self.name}: compiling {number} of {len(shapes)} shapes, {rows} x {length} tokens")
            ids = (self.run.config.model.vocab_sizes[0] - 1,) * min(length, longest)
            decoder.compile(self.run.searcher.weights(decoder), rows, ids)

    # Jobs to answers, in the worker's thread ------------------------------------------------------------------------------

    def answer(self, key: Key, items: Sequence[Any]) -> Sequence[Any]:
        if isinstance(key.program, Task):
            model = self.model if key.program.by_engine else self.run.text_model
            return key.program.answers(model, items, warn=lambda line: None)
        if key.task == "attention":
            return [attention(run, ids) for run, ids in items]
        return self.decode(key.program, items, key.engine)

    def decode(self, program: DecodeConfig, prompts: Sequence[Prompt], engine: str = "jax") -> list[list[WrittenText]]:
        """Returns the answers to each source or prompt, best first."""
        decoder = self.decoder(program)
        requests = [prompt.request for prompt in prompts]
        search = None if engine == "jax" else self.engine_search(requests[0].settings or program)
        before = [prompt.before for prompt in prompts]
        stops = [prompt.stop for prompt in prompts]
        watch = watch_stops(self.tokenizers.target, before, stops)
        watching = {} if watch is None else {"watch": watch}
        searched: Any = search or decoder
        answered = searched.generate(self.run.searcher.weights(searched), requests, **watching)
        answers = list[list[WrittenText]]()
        for prompt, hypotheses in zip(prompts, answered, strict=True):
            answers.append([self.as_answer(decoder, prompt, hypothesis) for hypothesis in hypotheses])
        return answers

    def engine_search(self, settings: DecodeConfig, has_forced: bool = False) -> EngineSearch | None:
        """Returns the search by CTranslate2 under these settings; None: JAX answers.

        Raises: CannotAnswer if CTranslate2 was asked for, by name or by int8, and cannot answer.
        """
        if not self.engine:
            return None
        try:
            if has_forced:
                raise CannotAnswer("CTranslate2 has no terms, placeholders and prefixes: leave them out")
            return self.run.searcher.engine_search(settings, self.engine["weights_dtype"])
        except CannotAnswer:
            if is_chosen(**self.engine):
                raise
            return None

    def decoder(self, program: DecodeConfig) -> Decoder:
        """Returns the decoder of a program. Requests may have any number of settings, and each program takes memory."""
        kept = self.run.kept.decoders
        if program in kept:
            kept[program] = kept.pop(program)  # the last one
        while sum(decoder.num_programs for decoder in [*kept.values()]) > MOST_PROGRAMS:
            kept.pop(next(iter(kept))).drop_programs()
        return self.run.searcher.search(program)

    def as_answer(self, decoder: Decoder, prompt: Prompt, hypothesis: Hypothesis) -> WrittenText:
        """Returns an answer as text, as `run.translate` and `run.generate` do."""
        if prompt.written is None:
            parts = TextStream(self.tokenizers.target, prompt.before, prompt.stop)
            parts.add(hypothesis.tokens)
            return as_continuation(decoder, prompt, parts, hypothesis.score)
        num_tokens = len(hypothesis.tokens)
        cut = num_tokens >= decoder.max_length(prompt.request.source, prompt.request.limit)
        text = prompt.written(hypothesis.tokens)
        return WrittenText(text, hypothesis.score, num_tokens, "length" if cut else "stop")

    def stream(self, key: Key, prompt: Prompt) -> Generator[str, None, WrittenText]:
        """Yields the first answer to a prompt in parts; returns it at the end."""
        settings = prompt.request.settings or key.program
        decoder = self.decoder(key.program).under(settings)
        search = None if key.engine == "jax" else self.engine_search(settings)
        parts = yield from self.run.generator.streamed(search or decoder, prompt.request, prompt.stop, prompt.before)
        return as_continuation(decoder, prompt, parts)


def told(note: str) -> None:
    """Warns of what an answer had more."""
    warn_of_left_out([note])


def attention(run: Run, ids: AttentionIds) -> dict[str, Any]:
    """Returns the weights [layer, head, row, column], of cross attention if the model has it, and the labels of tokens."""
    weights = layer_weights(run, ids)
    kind = weights.kinds[0]
    rows, columns = attention_axes(weights, kind)
    numbers = getattr(weights, kind).astype(float).round(4).tolist()
    return {"kind": kind, "rows": rows, "columns": columns, "weights": numbers}


class ServedRuns:
    """All runs of a server, by name: the model of its worker."""

    def __init__(self, runs: Sequence[ServedRun]) -> None:
        self.by_name = {served.name: served for served in runs}
        self.groups = max(served.run.placement.groups for served in runs)
        """Groups of devices with a batch each: see `Placement`."""

    def answer(self, key: Key, items: Sequence[object]) -> Sequence[Any]:
        return self.by_name[key.run].answer(key, items)

    def stream(self, key: Key, item: Any) -> Iterator[str]:
        """Yields parts of a text; the generator returns the whole answer."""
        return self.by_name[key.run].stream(key, item)

    def find(self, name: str | None, task: str | None) -> ServedRun:
        """Returns the run with that name, or the first one, which does the task (None: any). Raises: Refusal without one."""
        if name is not None and name not in self.by_name:
            message = f"there is no run {name!r}: there are {', '.join(self.by_name)}"
            raise Refusal(404, message, code="model_not_found", param="model")
        for run in self.by_name.values():
            if name in (None, run.name) and (task is None or task in run.tasks):
                return run
        served = [f"{run.name}: {', '.join(map(task_at, run.tasks))}" for run in self.by_name.values()]
        who = "no run here can" if name is None else f"{name} does not"
        message = f"{who} {task}: send to a path that serves what a run does ({'; '.join(served)})"
        raise Refusal(404, message, code="model_not_found")


def task_at(task: str) -> str:
    """Returns a task with the paths that serve it."""
    paths = [f"/api/{task}", *OPENAI_PATHS.get(task, ())]
    return f"{task} at {' or '.join(paths)}"


def with_limit(settings: DecodeConfig, limit: int | None) -> tuple[DecodeConfig, int]:
    """Returns settings under which an answer may have `limit` tokens, and the limit.

    The length of the compiled program is that of the settings if it suffices, else a power of two: requests for different lengths
    share a few programs.
    """
    if limit is None:
        return settings, LARGEST
    if settings.max_new_tokens is None or limit > settings.max_new_tokens:
        settings = dataclasses.replace(settings, max_new_tokens=max(16, 1 << (limit - 1).bit_length()))
    return settings, limit


def as_continuation(decoder: Decoder, prompt: Prompt, parts: TextStream, score: float = 0.0) -> WrittenText:
    """Returns the answer to a prompt, once all of its tokens have arrived."""
    longest = decoder.max_length(prompt.request.source, prompt.request.limit)
    cut = parts.num_tokens >= longest and not parts.stopped
    text = truncate_at_stop(parts.text(), prompt.stop)
    return WrittenText(text, score, parts.num_tokens, "length" if cut else "stop")


def succeeds(check: Callable[[], object]) -> bool:
    """Returns whether a check raises no ValueError."""
    try:
        check()
    except ValueError:
        return False
    return True
