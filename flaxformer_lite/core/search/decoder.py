"""Answers to many sources or prompts: batches on the host, around the compiled searches of `greedy.py` and `beam.py`."""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.typing import VariableDict
from jaxtyping import Array, Bool, Float, Key

from flaxformer_lite.core.base.mistake import known
from flaxformer_lite.core.base.once import once
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.placement.batches import (
    InputBatch,
    pad_rows,
    padded_length,
    plan_batches,
)
from flaxformer_lite.core.placement.placement import ONE_DEVICE, Placement, Prepared, rows_of
from flaxformer_lite.core.search.answers import NO_ANSWER, Hypothesis, Watch
from flaxformer_lite.core.search.beam import BEAM_SEARCH
from flaxformer_lite.core.search.forced import MOST_TERMS, MOST_TOKENS, Forced
from flaxformer_lite.core.search.greedy import GREEDY_SEARCH
from flaxformer_lite.core.search.request import Request
from flaxformer_lite.core.search.rows import Search, Weights
from flaxformer_lite.core.search.sampling import RowSampling, sample_keys
from flaxformer_lite.core.search.search import Decoded, Method, SearchInputs, SearchSettings, laid_out, step_layouts
from flaxformer_lite.core.search.settings import DecodeConfig, PromptAttention, check_vocabulary
from flaxformer_lite.core.search.terms import row_terms
from flaxformer_lite.core.text.special_ids import check_length, check_token_ids

drawn_keys = jax.jit(sample_keys)


@once
def search_of(models: tuple[Transformer, ...], method: Method, placement: Placement, program: DecodeConfig) -> Search:
    """Returns the search of these models: decoders of equal models and programs share it, and so what it has compiled."""
    return Search(models, method, placement)


@once
def copies_of(models: tuple[Transformer, ...], placement: Placement) -> jax.stages.Wrapped:
    return jax.jit(placement.within(functools.partial(step_layouts, models)), static_argnums=1)


class Row(NamedTuple):
    """One search: a source or prompt, and all else that its answer depends on."""

    source: Sequence[int]
    config: DecodeConfig
    max_length: int
    """The most tokens of the answer, its end included."""
    draw: tuple[int, int, int] = (0, 0, 0)
    """Seed, index of the source, and number of the sample: a random choice of tokens depends on these."""
    number: int = 0
    """The index of the source among those of a call."""
    forced: Forced = Forced()


class Decoder:
    """Decodes answers to sources (a model with an encoder) or continues prompts (a decoder-only model).

    Compiles one program for each batch shape, at its first use. Later calls reuse it, also with other parameters: keep the object.
    `under` returns a decoder with other settings that shares the programs. `prompt_attention` is the objective's. Several models,
    which have an encoder and the same vocabulary, search with the mean of their predictions.

    Example: `Decoder(model, DecodeConfig(beam_size=4)).generate({"params": params}, [[5, 8, EOS]])[0][0].tokens`; or with
    `Request([5, 8, EOS], limit=9)` in the place of the ids. Callers that ask again pass one `lay_out({"params": params})`.

    Raises: ValueError if the model has no decoder or no head, `config` names an id outside its vocabulary, or an ensemble should
    sample.
    """

    def __init__(
        self,
        models: Transformer | tuple[Transformer, ...],
        config: DecodeConfig,
        prompt_attention: PromptAttention = "causal",
        placement: Placement = ONE_DEVICE,
    ) -> None:
        models = (models,) if isinstance(models, Transformer) else models
        model = models[0]
        ensemble = len(models) > 1
        if model.config.num_decoder_layers == 0:
            raise ValueError("model.num_decoder_layers is 0, so the model generates no tokens: use one with a decoder")
        if model.config.head is None:
            raise ValueError("model.head is None, so the model generates no tokens: use one with a language-model head")
        for member in models:
            if not member.config.attention.decodes:
                raise ValueError(
                    f"model.attention is a {type(member.config.attention).__name__}, which has no answer from a decode cache (its "
                    "`decodes` is False): use the model for its loss, or let `answers` read a mask without structure"
                )
        check_vocabulary(config, model.config.output_size)
        self.models, self.config, self.prompt_attention, self.placement = models, config, prompt_attention, placement
        self.has_encoder = model.config.num_encoder_layers > 0
        positions = [member.config.positions.max_positions for member in models]
        self.max_positions = min((number for number in positions if number is not None), default=None)
        """The number of the model's positions, the least of all models of an ensemble; None: any number."""
        if ensemble and config.program.sampling is not None:
            raise ValueError(
                "decode.sampling is set, but an ensemble of runs does not sample: remove it, or use a single run"
            )
        by_beams = config.beam_size > 1 or ensemble
        self.beam_search = search_of(models, BEAM_SEARCH, placement, config.program)
        self.search = self.beam_search if by_beams else search_of(models, GREEDY_SEARCH, placement, config.program)
        self._copies = copies_of(models, placement)

    def under(self, config: DecodeConfig) -> "Decoder":
        """Returns a decoder with settings of the same `program`, which shares the compiled programs of this one."""
        other = copy.copy(self)
        other.config = config
        return other

    @property
    def num_programs(self) -> int:
        """The number of shapes that were compiled for decoders of these models and this program."""
        searches = {self.search, self.beam_search}  # one search where both are by beams
        return sum(function._cache_size() for search in searches for function in search.compiled)

    def drop_programs(self) -> None:
        """Frees what was compiled for decoders of these models and this program, which compile it anew when they need it."""
        for search in (self.search, self.beam_search):
            for function in search.compiled:
                function.clear_cache()

    def lay_out(self, *variables: VariableDict) -> Weights:
        """Returns the variables of each model as the searches of `generate` and `stream` read them, under these settings."""
        return Weights(variables, laid_out(variables, self._copies(variables, self.config.num_ids)))

    def generate(
        self,
        weights: Weights | VariableDict,
        requests: Sequence[Request | Sequence[int]],
        progress: ProgressCallback = no_progress,
        *,
        watch: Watch | None = None,
    ) -> list[list[Hypothesis]]:
        """Returns the answers to each request, best first, in their order. Token ids stand for a request with only these.

        A source without a token, or with only padding, has one empty answer, with a score of 0. `watch` ends answers early, unless
        there are beams; their scores count up to `CHUNK_TOKENS` - 1 tokens more.

        Raises: ValueError if a source is longer than the model's positions, a prompt is empty, or `why_not` has a reason.
        """
        asked = [Request.of(one) for one in requests]
        self.check(asked)
        weights = self.weights(weights)
        rows: list[Row] = []
        numbers: list[int] = []
        for i, one in enumerate(asked):
            config = one.settings or self.config
            index = one.number(i)
            numbers.append(0 if self.is_empty(one.source) else config.num_samples)
            most = self.max_length(one.source, one.limit)
            draws = ((int(one.seed), index, sample) for sample in range(numbers[-1]))
            rows += [Row(one.source, config, most, draw, i, one.forced) for draw in draws]

        def prepared(batch: InputBatch) -> Prepared:
            return Prepared(batch, *self.inputs([rows[i] for i in batch.members], batch))

        def answer(call: list[Prepared]) -> list[list[Hypothesis]]:
            inputs = self.joined([one.arrays for one in call])
            settings = call[0].settings
            over = np.zeros(len(inputs.tokens), bool)
            search = self.search if inputs.terms is None else self.beam_search
            if watch is None or self.config.beam_size > 1:
                *_, decoded = search(weights, inputs, settings, over)
                return hypotheses(decoded)
            growing = search(weights, inputs, settings, over, chunks=True)
            return watched_hypotheses(growing, over, {row: watch(rows[i].number) for row, i in rows_of(call)})

        batches: list[InputBatch] = []
        for room in sorted({row.forced.room for row in rows}):
            alike = [i for i, row in enumerate(rows) if row.forced.room == room]
            planned = self.batches([len(rows[i].source) for i in alike], self.beams(room))
            batches += [batch._replace(members=[alike[i] for i in batch.members]) for batch in planned]
        decoded = self.placement.map(answer, map(prepared, batches), "decoding", len(rows), progress)
        of_rows = (decoded[i] for i in range(len(rows)))
        answers: list[list[Hypothesis]] = []
        for number in numbers:
            samples = list(itertools.islice(of_rows, number))
            answers.append(list(itertools.chain.from_iterable(samples)) if samples else [Hypothesis([], 0.0)])
        return answers

    def joined(self, inputs: Sequence[SearchInputs]) -> SearchInputs:
        """Returns the inputs of a call's batches as those of one batch; a group of devices without a batch answers no row."""
        joined: SearchInputs = self.placement.joined(
            inputs, filler=lambda one: one._replace(max_lengths=np.zeros_like(one.max_lengths))
        )
        return joined

    def weights(self, given: Weights | VariableDict) -> Weights:
        """Returns weights as they are, and variables of one model laid out."""
        return given if isinstance(given, Weights) else self.lay_out(given)

    def compile(self, weights: Weights | VariableDict, rows: int, source: Sequence[int]) -> None:
        """Compiles the programs for this number of sources of this length; answers none of them."""
        inputs, settings = self.largest_inputs(rows, source)
        self.search.compile(self.weights(weights), self.joined([inputs]), settings)

    def largest_inputs(self, rows: int, source: Sequence[int]) -> tuple[SearchInputs, SearchSettings]:
        """Returns the inputs of the largest batch that `rows` copies of a source give, and the settings of its search."""
        (batch, *_) = self.batches([len(source)] * rows)
        return self.inputs([Row(source, self.config, self.max_length(source))] * len(batch.members), batch)

    def is_empty(self, source: Sequence[int]) -> bool:
        """Returns whether an encoder has nothing to read."""
        return self.has_encoder and all(token == self.config.pad_id for token in source)

    def stream(self, weights: Weights | VariableDict, request: Request | Sequence[int]) -> Iterator[list[int]]:
        """Yields the first answer of `generate` to a single request in chunks: one token, then `CHUNK_TOKENS` at a time.

        Raises: ValueError as `generate` does, and with beams or terms: the best beam is known only at the end.
        """
        if self.config.beam_size > 1:
            raise ValueError(
                f"decode.beam_size is {self.config.beam_size}: only decode.beam_size 1 can be streamed; set it to 1"
            )
        asked = Request.of(request)
        self.check([asked])
        if asked.forced.terms:
            raise ValueError("the answer needs terms, which only a beam search can give it: it cannot be streamed")
        if self.is_empty(asked.source):
            return
        (batch,) = self.batches([len(asked.source)])
        config = asked.settings or self.config
        draw = (asked.seed, asked.number(0), 0)
        row = Row(asked.source, config, self.max_length(asked.source, asked.limit), draw, forced=asked.forced)
        of_row, settings = self.inputs([row], batch)
        inputs = self.joined([of_row])
        done = 0
        never = np.zeros(len(inputs.tokens), bool)
        for decoded in self.search(self.weights(weights), inputs, settings, never, chunks=True):
            yield decoded.tokens[0, 0, done : decoded.lengths[0, 0]].tolist()
            done = int(decoded.lengths[0, 0])

    def check(self, requests: Sequence[Request]) -> None:
        """Raises: ValueError if a source is longer than the model's positions, a prompt is empty, a seed is out of range, settings
        have another program, or `why_not` has a reason.
        """
        name = "source" if self.has_encoder else "prompt"
        chosen = {request.settings for request in requests if request.settings is not None}
        if any(settings.program != self.config.program for settings in chosen):
            raise ValueError(
                "a request has settings of another program than its decoder: they may differ in bos_id, forced_bos_id, "
                "repetition_penalty, and sampling's temperature, top_p and min_p; make another Decoder for them"
            )
        for i, request in enumerate(requests):
            check_seed(request.seed)
            with known(subject=f"{name} {request.number(i)}"):
                check_token_ids(request.source, self.models[0].config.vocab_size, "has")
                check_length(len(request.source), self.max_positions)
                if not self.has_encoder and len(request.source) == 0:
                    raise ValueError("has no tokens: a prompt has at least 1 token, for example decode.bos_id")
                reason = self.why_not(request.source, request.forced, request.limit)
                if reason:
                    raise ValueError(reason)

    def why_not(self, source: Sequence[int], forced: Forced, limit: int | None = None) -> str:
        """Returns why the answer to a source cannot have the forced tokens; "" if it can."""
        most = self.max_length(source, limit)
        needed = forced.length + (self.config.forced_bos_id is not None) + 1
        longest = max((len(term.ids) for term in forced.terms), default=0)
        if len(forced.terms) > MOST_TERMS:
            return f"needs {len(forced.terms)} terms in its answer: {MOST_TERMS} are the most"
        if longest > MOST_TOKENS:
            return f"needs a term of {longest} tokens in its answer: {MOST_TOKENS} are the most"
        if forced != Forced() and needed > most:
            sides = {"the terms": forced.terms, "the beginning": forced.beginning}
            named = " and ".join(name for name, tokens in sides.items() if tokens)
            return (
                f"needs {needed} tokens for {named} of its answer, which has {most} at most: raise decode.max_new_tokens or "
                "decode.max_length_extra"
            )
        if forced.terms and self.config.sampling is not None:
            return "needs terms in its answer, but decode.sampling is set: samples have none; remove it"
        return ""

    def beams(self, room: int) -> int:
        """Returns the number of beams of a search with room for `room` terms: at least one beam for each number of terms so far."""
        return max(self.config.beam_size, room + 1) if room else self.config.beam_size

    def batches(self, lengths: Sequence[int], beams: int | None = None) -> list[InputBatch]:
        """Returns the batches of sources or prompts of these lengths; long answers and many beams leave room for fewer rows."""
        beams = beams or self.config.beam_size
        return plan_batches(lengths, self.config.batch_tokens, lambda length: beams * self.max_new_tokens(length))

    def max_new_tokens(self, length: int) -> int:
        """Returns the tokens that a search has room for in an answer to a source or prompt that is padded to `length` tokens."""
        return int(min(self.config.max_length(length), self.max_positions or math.inf))

    def max_length(self, source: Sequence[int], limit: int | None = None) -> int:
        """Returns the maximum number of tokens in the answer to a source or a prompt, its end included."""
        # The last token of an answer is not read, so it takes up no position.
        left = self.max_positions or math.inf
        if not self.has_encoder:
            left -= len(source) - 1
        return int(min(self.config.max_length(len(source)), left, math.inf if limit is None else limit))

    def inputs(self, rows: Sequence[Row], batch: InputBatch) -> tuple[SearchInputs, SearchSettings]:
        """Returns the arrays of a batch, sources padded on the right, prompts on the left, and the settings of its search."""
        sources = [row.source for row in rows]
        shape = batch.rows, int(min(batch.length, self.max_positions or math.inf))
        left = not self.has_encoder
        tokens = pad_rows(sources, shape, self.config.pad_id, left=left)
        mask = pad_rows([[1] * len(source) for source in sources], shape, left=left).astype(bool)
        if self.has_encoder:
            mask &= tokens != self.config.pad_id
        max_lengths = np.zeros(batch.rows, np.int32)
        max_lengths[: len(rows)] = [row.max_length for row in rows]
        keys = None
        if self.config.program.sampling is not None:
            draws = np.zeros((3, batch.rows), np.int64)
            draws[:, : len(rows)] = np.transpose([row.draw for row in rows])
            seeds, indices, samples = draws
            keys = drawn_keys(
                seeds.astype(np.uint32).view(np.int32), indices.astype(np.int32), samples.astype(np.int32)
            )
        inputs = SearchInputs(tokens, mask, max_lengths)  # type: ignore[arg-type]  # NumPy's, on the host
        config = self.config.program
        forced = [row.forced for row in rows]
        longest = max(len(row.beginning) for row in forced)
        if longest:
            beginning = pad_rows([row.beginning for row in forced], (batch.rows, padded_length(longest)), -1)
            inputs = inputs._replace(beginning=beginning)  # type: ignore[arg-type]
        room = forced[0].room
        if room:
            inputs = inputs._replace(terms=row_terms(forced, batch.rows, self.models[0].config.output_size))
            config = dataclasses.replace(config, beam_size=self.beams(room))
        settings = SearchSettings(config, self.max_new_tokens(batch.length), self.prompt_attention)
        return with_setting_numbers(inputs, [row.config for row in rows], keys), settings


FACTOR_RANGE = (1e-30, 1e30)
"""The smallest and the largest number of a compiled search: its products with logits are finite, and its inverse is above 0."""


def with_setting_numbers(
    inputs: SearchInputs, configs: Sequence[DecodeConfig], keys: Key[Array, "B"] | None
) -> SearchInputs:
    """Returns the inputs of a search with the numbers of the settings of each row; padding rows have the last one's."""
    rows = len(inputs.tokens)
    penalties = [config.repetition_penalty for config in configs]
    if set(penalties) != {1.0}:
        inputs = inputs._replace(repetition_penalty=row_numbers(np.clip(penalties, *FACTOR_RANGE), rows))
    starts = [config.bos_id for config in configs if config.bos_id is not None]
    if len(starts) == len(configs):
        inputs = inputs._replace(start=row_numbers(starts, rows, np.int32))
    firsts = [config.forced_bos_id for config in configs if config.forced_bos_id is not None]
    if len(firsts) == len(configs):
        inputs = inputs._replace(first=row_numbers(firsts, rows, np.int32))
    if keys is None:
        return inputs
    drawn = [config.sampling for config in configs if config.sampling is not None]
    temperatures = np.clip([sampling.temperature for sampling in drawn], *FACTOR_RANGE)
    top_p = np.clip([sampling.top_p for sampling in drawn], *FACTOR_RANGE)
    min_p = np.array([sampling.min_p for sampling in drawn], jnp.result_type(float))
    # On the host: a compiled logarithm differs in the last bit from that of a constant.
    log_min_p = [math.log(p) if p else -math.inf for p in min_p]
    numbers = (row_numbers(values, rows) for values in (temperatures, top_p, log_min_p))
    return inputs._replace(sampling=RowSampling(keys, *numbers))


def row_numbers(values: Sequence[float] | Float[np.ndarray, "_"], rows: int, dtype: type = float) -> Array:
    """Returns a number for each row, the last one for padding rows too."""
    padding = [values[-1]] * (rows - len(values))
    return jnp.asarray([*values, *padding], dtype)


def watched_hypotheses(
    growing: Iterable[Decoded], over: Bool[np.ndarray, "B"], watched: Mapping[int, Callable[[list[int]], int | None]]
) -> list[list[Hypothesis]]:
    """Returns the answers of all rows as they grow, each ended by `over` once the function for its row says so."""
    kept = dict[int, int]()
    done = dict.fromkeys(watched, 0)
    for decoded in growing:
        tokens, lengths = decoded.tokens[:, 0], decoded.lengths[:, 0]
        for row, ends in watched.items():
            if row not in kept:
                number = ends(tokens[row, done[row] : lengths[row]].tolist())
                if number is not None:
                    kept[row], over[row] = number, True
            done[row] = int(lengths[row])
    answers = hypotheses(decoded)
    return [[best._replace(tokens=best.tokens[: kept.get(row)])] for row, (best,) in enumerate(answers)]


def hypotheses(decoded: Decoded) -> list[list[Hypothesis]]:
    """Returns the answers of every row, best first, from arrays on the host; `NO_ANSWER` for a row without a finite score."""
    answers: list[list[Hypothesis]] = []
    for of_row in zip(decoded.tokens, decoded.lengths, decoded.scores, strict=True):
        ranked = list[Hypothesis]()
        for tokens, length, score in zip(*of_row, strict=True):
            if math.isfinite(score):
                ranked.append(Hypothesis(tokens[:length].tolist(), float(score)))
        answers.append(ranked or [NO_ANSWER])
    return answers


def check_seed(seed: int) -> None:
    """Raises: ValueError if a seed is not an unsigned 32-bit number."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed}: it must be between 0 and 2^32 - 1")
