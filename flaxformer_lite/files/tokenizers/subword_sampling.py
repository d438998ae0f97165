"""Subword regularisation: another segmentation of the same words each time that a training example is read.

It works on token ids only. Every draw depends only on them and on the random numbers that are passed in.
"""

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge
from jaxtyping import Int

from flaxformer_lite.core.base.bounds import Checked, NonNegativeFloat, PositiveFloat, Rate
from flaxformer_lite.core.text import Tokenizer
from flaxformer_lite.files.tokenizers.subwords import SentencePieceTokenizer

Uniform = Callable[[], float]
"""Returns the next random number in [0, 1)."""
DrawSegmentation = Callable[[str, Uniform], Sequence[int]]
"""Returns the ids of one segmentation of a word, which begins with "▁"."""


@dataclass(frozen=True, kw_only=True)
class SubwordSampling(Checked, ABC, at="data.subword_sampling"):
    """Settings of the random segmentation of training examples. A new kind sets `kind` and `model_type`, and implements `draw`."""

    kind: str
    room: NonNegativeFloat = 0.1
    """Tokens to plan for beyond those of the usual segmentation, as a fraction of them. They decide the length of the row. Words
    whose sample would no longer fit keep their usual pieces. More room: more padding, fewer words left out."""

    model_type = ""
    """The `model_type` of the SentencePiece models that it samples from."""

    @abstractmethod
    def draw(self, tokenizer: SentencePieceTokenizer) -> DrawSegmentation:
        """Returns the function that segments one word."""


@dataclass(frozen=True, kw_only=True)
class BPEDropout(SubwordSampling):
    """Byte-pair encoding that leaves out each possible merge with probability `rate`, anew at every step of a word.

    Reference: Provilkov et al. 2020, arXiv:1910.13267, algorithm 1.
    """

    kind: Literal["bpe_dropout"] = "bpe_dropout"
    rate: Rate = 0.1
    """Probability of leaving out a merge."""

    model_type = "bpe"

    def draw(self, tokenizer: SentencePieceTokenizer) -> DrawSegmentation:
        pieces = tokenizer.scored_pieces()
        ids = {piece: i for i, (piece, _) in pieces.items()}
        score = dict(pieces.values()).get  # a higher score merges first

        def draw(word: str, uniform: Uniform) -> list[int]:
            parts = list(word)
            scores = [score(left + right) for left, right in itertools.pairwise(parts)]
            while True:
                best, highest = -1, -math.inf
                for i, merge_score in enumerate(scores):
                    if merge_score is not None and merge_score > highest and uniform() >= self.rate:
                        best, highest = i, merge_score
                if best < 0:
                    return [ids[piece] for piece in parts]
                parts[best : best + 2] = [parts[best] + parts[best + 1]]
                del scores[best]
                if best > 0:
                    scores[best - 1] = score(parts[best - 1] + parts[best])
                if best < len(scores):
                    scores[best] = score(parts[best] + parts[best + 1])

        return draw


@dataclass(frozen=True, kw_only=True)
class UnigramSampling(SubwordSampling):
    """Segmentations of a word with probabilities P^alpha of a unigram model, among the `nbest_size` most probable ones.

    The model's words are independent, so words are drawn one by one.

    Reference: Kudo 2018, arXiv:1804.10959, section 3.2.
    """

    kind: Literal["unigram"] = "unigram"
    alpha: PositiveFloat = 0.5
    """Exponent of the probabilities: near 0 all are alike, a high one draws the best segmentation only. On Multi30k 0.5 gives 1.04
    times the usual tokens, 0.2 1.35 times (more `room`)."""
    nbest_size: Annotated[int, Ge(2)] = 64
    """Number of segmentations of a word to draw from."""

    model_type = "unigram"

    def draw(self, tokenizer: SentencePieceTokenizer) -> DrawSegmentation:
        scores = {i: score for i, (_, score) in tokenizer.scored_pieces().items()}

        @functools.lru_cache(maxsize=2**16)
        def segmentations(word: str) -> tuple[list[list[int]], list[float]]:
            """Returns the segmentations of a word and their cumulative weights."""
            choices = [ids for ids in tokenizer.nbest(word, self.nbest_size) if all(i in scores for i in ids)]
            logs = [self.alpha * sum(scores[i] for i in ids) for ids in choices]
            return choices, list(itertools.accumulate(math.exp(log - max(logs)) for log in logs))

        def draw(word: str, uniform: Uniform) -> list[int]:
            choices, cumulative = segmentations(word)
            at = uniform() * cumulative[-1]
            return choices[next((i for i, upper in enumerate(cumulative) if at < upper), -1)]

        return draw


OptionalSubwordSampling = BPEDropout | UnigramSampling | None


class SubwordSampler:
    """Draws segmentations of texts that are given, and returned, as token ids. A word is a run of pieces from one "▁" to the next.

    Special ids, unknown text, bytes, words without "▁" and words with a character that is no piece are left as they are.
    """

    def __init__(self, tokenizer: Tokenizer, sampling: SubwordSampling) -> None:
        """Raises: ValueError if the tokenizer is no SentencePiece model of the kind that is sampled from."""
        kind = tokenizer.model_type if isinstance(tokenizer, SentencePieceTokenizer) else type(tokenizer).__name__
        if not isinstance(tokenizer, SentencePieceTokenizer) or kind != sampling.model_type:
            raise ValueError(
                f"data.subword_sampling.kind is '{sampling.kind}', which samples from a SentencePiece model of type "
                f"'{sampling.model_type}', but the tokenizer is {kind!r}: set data.tokenizer to "
                f"SentencePiece(model_type='{sampling.model_type}'), or data.subword_sampling to None"
            )
        self.pieces = {i: piece for i, (piece, _) in tokenizer.scored_pieces().items()}
        self.characters = {piece for piece in self.pieces.values() if len(piece) == 1}
        self.draw = sampling.draw(tokenizer)

    def __call__(self, ids: Int[np.ndarray, "T"], spare: int, generator: np.random.Generator) -> Int[np.ndarray, "T2"]:
        """Returns another segmentation with at most `spare` tokens more.

        Words are drawn in random order, so that each has the same chance where not all of them fit.
        """
        uniform: Uniform = itertools.chain.from_iterable(iter(lambda: generator.random(256).tolist(), None)).__next__
        words: list[list[int]] = []
        for i in ids.tolist():
            if not words or self.pieces.get(i, "▁").startswith("▁"):
                words.append([])
            words[-1].append(i)
        for number in generator.permutation(len(words)).tolist():
            word = words[number]
            spelled = "".join(self.pieces.get(i, "") for i in word)
            whole = len(spelled) > 1 and spelled[0] == "▁" and self.characters.issuperset(spelled)
            if whole and all(i in self.pieces for i in word):
                drawn = self.draw(spelled, uniform)
                if len(drawn) - len(word) <= spare:
                    spare -= len(drawn) - len(word)
                    words[number] = list(drawn)
        return np.fromiter(itertools.chain.from_iterable(words), np.int32)
