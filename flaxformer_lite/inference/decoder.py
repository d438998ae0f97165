"""The host side of search: `Decoder.generate` sorts sentences by length, cuts them into batches of few different shapes, and
returns the answers in the order of the sentences. What it compiles is in `search.py`.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax.typing import VariableDict
from jaxtyping import Bool, Int

from flaxformer_lite.inference.beam import beam_search
from flaxformer_lite.inference.config import DecodeConfig, PromptAttention
from flaxformer_lite.inference.greedy import decode_chunk, greedy, open_stream
from flaxformer_lite.inference.sampling import row_keys
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.transformer import Transformer


class Hypothesis(NamedTuple):
    """One answer: its token ids without EOS, and its score by `decode.length_penalty`."""

    tokens: list[int]
    score: float


class Batch(NamedTuple):
    """Sentences that are decoded at once: their numbers, and the shape they are filled up to."""

    sentences: list[int]
    rows: int
    source_length: int


class Arrays(NamedTuple):
    """A batch as the search reads it."""

    tokens: Int[np.ndarray, "B S"]
    mask: Bool[np.ndarray, "B S"]
    max_lengths: Int[np.ndarray, "B"]
    room: int


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[Batch]:
    """Sentences of these lengths in batches, longest first.

    To keep the shapes few, source lengths are rounded up to a power of two (at least 8), rows to 1, 8, 64, … or the
    most that `batch_tokens` allows.
    """
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    batches = []
    while order:
        source_length = max(8, 1 << (lengths[order[0]] - 1).bit_length())
        most = max(1, batch_tokens // source_length)
        sentences, order = order[:most], order[most:]
        rows = 1
        while rows < len(sentences):
            rows *= 8
        batches.append(Batch(sentences, min(rows, most), source_length))
    return batches


class Decoder:
    """Answers sentences with a model: sources where it has an encoder, else prompts, which it goes on with.

    Keep it: what it compiled serves later calls too, also with other parameters. `prompt_attention` is the objective's.
    """

    def __init__(self, model: Transformer, config: DecodeConfig, prompt_attention: PromptAttention = "causal") -> None:
        if model.config.num_decoder_layers == 0:
            raise ValueError("the model has no decoder (model.num_decoder_layers is 0), so it writes no answers")
        if model.config.head is None:
            raise ValueError("model.head is None, so it scores no tokens and writes no answers: use a run with a head")
        self.model, self.config = model, config
        self.reads_sources = model.config.num_encoder_layers > 0
        check_ids(config, model.config.output_size)
        search = greedy if config.beam_size == 1 else beam_search
        settings: dict[str, Any] = {"config": config, "prompt_attention": prompt_attention}
        self.search = jax.jit(functools.partial(search, model, **settings), static_argnames="room")
        self.open_stream = jax.jit(functools.partial(open_stream, model, **settings), static_argnames="room")
        self.advance = jax.jit(functools.partial(decode_chunk, model, config=config), donate_argnames="state")
        self.keys = jax.jit(row_keys)

    def generate(
        self,
        variables: VariableDict,
        sources: Sequence[Sequence[int]],
        progress: Callable[[int, int], None] = lambda done, total: None,
        *,
        seed: int = 0,
        first: int = 0,
    ) -> list[list[Hypothesis]]:
        """The answers to each source (token ids with EOS) or prompt, best first, in the order of the sources.

        After every batch `progress` is told how many answers are done, of how many. What is drawn at random depends on `seed`, the
        number of the source, counted from `first`, and which of its answers it is: on nothing else.

        Raises: ValueError where a source is longer than the model has positions for, or a prompt is empty.
        """
        check_seed(seed)
        self.check(sources, first)
        samples = 1 if self.config.sampling is None else self.config.num_hypotheses
        numbers = [(row, sample) for row in range(len(sources)) for sample in range(samples)]
        answers: list[list[Hypothesis]] = [[] for _ in numbers]
        done = 0
        for batch in plan_batches([len(sources[row]) for row, _ in numbers], self.config.batch_tokens):
            chosen = [numbers[i] for i in batch.sentences]
            arrays = self.arrays([sources[row] for row, _ in chosen], batch.rows, batch.source_length)
            found = self.answer(variables, arrays, self.random(chosen, batch.rows, seed, first))
            for i, hypotheses in zip(batch.sentences, found, strict=False):
                answers[i] = hypotheses
            done += len(batch.sentences)
            progress(done, len(numbers))
        return [[*itertools.chain(*answers[i : i + samples])] for i in range(0, len(numbers), samples)]

    def stream(
        self, variables: VariableDict, source: Sequence[int], seed: int = 0, *, first: int = 0, at_once: int = 4
    ) -> Iterator[list[int]]:
        """The first answer that `generate` gives to this source alone, some new tokens at a time: one, then `at_once`.

        Raises: ValueError as `generate` does, and where the search has a beam, whose answers are known at its end only.
        """
        if self.config.beam_size > 1:
            raise ValueError(f"decode.beam_size is {self.config.beam_size}: only a beam of 1 writes token by token")
        check_seed(seed)
        self.check([source], first)
        ((_, rows, length),) = plan_batches([len(source)], self.config.batch_tokens)
        arrays = self.arrays([source], rows, length)
        given, state = self.open_stream(
            variables, arrays.tokens, arrays.mask, room=arrays.room, max_lengths=arrays.max_lengths
        )
        random = self.random([(0, 0)], rows, seed, first)
        done, active, most = 0, True, 1
        while active:
            state = self.advance(variables, given, state=state, most=most, max_lengths=arrays.max_lengths, **random)
            tokens, length, active = jax.device_get((state.tokens[0], state.lengths[0], state.active[0]))
            yield tokens[given.tokens.shape[1] :][done:length].tolist()
            done, most = int(length), at_once

    @property
    def limit(self) -> int | None:
        """The positions that the model has, where it cannot have any number."""
        return self.model.config.positions.max_positions

    def check(self, sources: Sequence[Sequence[int]], first: int) -> None:
        """Raises: ValueError where a source cannot be answered."""
        name = "source" if self.reads_sources else "prompt"
        for i, source in enumerate(sources, first):
            if self.limit is not None and len(source) > self.limit:
                raise ValueError(
                    f"{name} {i} has {len(source)} tokens, but model.positions.max_positions is {self.limit}: shorten it"
                )
            if not self.reads_sources and not len(source):
                raise ValueError(f"prompt {i} has no tokens, and the model goes on from one at least: give it BOS")

    def arrays(self, sources: Sequence[Sequence[int]], rows: int, length: int) -> Arrays:
        """The batch, sources filled up on the right, prompts on the left.

        Rows without a sentence have a maximum length of 0 and so are done at once.
        """
        limit = self.limit or math.inf
        width, room = int(min(length, limit)), int(min(self.config.max_length(length), limit))
        tokens = np.full((rows, width), self.config.pad_id, np.int32)
        mask, max_lengths = np.zeros((rows, width), bool), np.zeros(rows, np.int32)
        for row, source in enumerate(sources):
            count = len(source)
            place = slice(0, count) if self.reads_sources else slice(width - count, width)
            tokens[row, place] = source
            mask[row, place] = tokens[row, place] != self.config.pad_id if self.reads_sources else True
            # The last token of an answer is not read, so it takes up no position.
            left = limit if self.reads_sources else limit - count + 1
            max_lengths[row] = min(room, self.config.max_length(count), left)
        return Arrays(tokens, mask, max_lengths, room)

    def random(self, numbers: Sequence[tuple[int, int]], rows: int, seed: int, first: int = 0) -> dict[str, Any]:
        """The keys for a batch with these numbers of sources and answers, as an argument; none where nothing is drawn."""
        if self.config.sampling is None:
            return {}
        padded = np.zeros((rows, 2), np.int32)
        padded[: len(numbers)] = numbers
        return {"keys": self.keys(np.uint32(seed).view(np.int32), first + padded[:, 0], padded[:, 1])}

    def answer(self, variables: VariableDict, arrays: Arrays, random: dict[str, Any]) -> list[list[Hypothesis]]:
        """The answers of every row."""
        decoded = jax.device_get(
            self.search(
                variables, arrays.tokens, arrays.mask, room=arrays.room, max_lengths=arrays.max_lengths, **random
            )
        )
        return [
            [Hypothesis(t[:n].tolist(), float(score)) for t, n, score in zip(*row, strict=True) if score != -math.inf]
            for row in zip(*decoded, strict=True)
        ]


def check_seed(seed: int) -> None:
    """Raises: ValueError where the seed is none."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed}: give a number from 0 to 2^32 - 1")


def check_translates(model: ModelConfig) -> None:
    """Raises: ValueError where the model does not answer sources; says which command it is for."""
    for stack, layers, instead in (
        ("decoder", model.num_decoder_layers, "fill-mask, embed or classify"),
        ("encoder", model.num_encoder_layers, "generate"),
    ):
        if layers == 0:
            raise ValueError(
                f"the model has no {stack} (model.num_{stack}_layers is 0), so it cannot translate: use {instead}"
            )


def check_ids(config: DecodeConfig, vocab_size: int) -> None:
    """Raises: ValueError where a token is demanded or forbidden that the model cannot write."""
    demanded = {"forced_bos_id": (config.forced_bos_id,), "forced_eos_id": (config.forced_eos_id,)}
    for name, ids in (demanded | {"suppress_ids": config.suppress_ids}).items():
        if wrong := [i for i in ids if i is not None and i >= vocab_size]:
            raise ValueError(f"decode.{name} has {wrong[0]}, but the model writes the ids 0 to {vocab_size - 1} only")
