"""Answers as token ids and as text, whatever searched for them. Needs no JAX."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.core.search.request import Request
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.core.text.tokenizer import Tokenizers


class Hypothesis(NamedTuple):
    """One answer as token ids."""

    tokens: list[int]
    """Token ids without the EOS that ends them."""
    score: float
    """The value that ranks it, by `decode.length_penalty`; higher is better."""


NO_ANSWER = Hypothesis([], -math.inf)
"""Stands for the answer where no score is finite: see `warn_of_missing`."""


class ScoredText(NamedTuple):
    """One answer as text."""

    text: str
    score: float
    """The value that ranks it, by `decode.length_penalty`; higher is better."""


@runtime_checkable
class Searches(Protocol):
    """A search that answers requests: a `Decoder`, or that of another library."""

    config: DecodeConfig

    def generate(
        self, weights: Any, requests: Sequence[Request], progress: ProgressCallback
    ) -> list[list[Hypothesis]]: ...


def translate(
    search: Searches,
    weights: Any,
    requests: Sequence[Request],
    tokenizers: Tokenizers,
    progress: ProgressCallback,
) -> list[list[ScoredText]]:
    """Returns the `decode.num_hypotheses` best translations of each source, best first.

    `requests`: their sources have no special ids yet; an empty one has one empty translation, with a score of 0.
    """
    framed = tokenizers.source.as_source
    rows = [dataclasses.replace(one, source=framed(one.source) if len(one.source) else ()) for one in requests]
    answers = search.generate(weights, rows, progress)
    return [[ScoredText(tokenizers.target_text(h.tokens), h.score) for h in hypotheses] for hypotheses in answers]


def warn_of_missing(
    answers: Sequence[Sequence[ScoredText]], warn: Callable[[str], None], name: str, first: int
) -> None:
    """Warns of `NO_ANSWER`s, in one line. `name`: "source" or "prompt", whose numbers start at `first`."""
    missing = [i for i, texts in enumerate(answers, first) if any(text.score == NO_ANSWER.score for text in texts)]
    if missing:
        more = f" and {len(missing) - 1:,} more" if missing[1:] else ""
        warn(
            f"{name} {missing[0]}{more}: no answer has a finite score, so it is empty: the weights have infinite or undefined "
            "numbers; use another checkpoint, or, if the rules of decode leave no token, lower suppress_ids, no_repeat_ngram or "
            "min_new_tokens"
        )
