"""Answers as token ids and as text, whatever searched for them. Needs no JAX."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.core.search.request import Request
from flaxformer_lite.core.search.settings import DecodeConfig


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


Watch = Callable[[int], Callable[[list[int]], int | None]]
"""Returns, for the index of a source, a function that gets the newest tokens of its answer, a few at a time. If they end the
answer, it returns how many tokens the answer keeps, else None. A stop string ends a text in this way."""


@runtime_checkable
class Searches(Protocol):
    """A search that answers requests: a `Decoder`, or that of another library."""

    config: DecodeConfig

    def generate(
        self, weights: Any, requests: Sequence[Request], progress: ProgressCallback
    ) -> list[list[Hypothesis]]: ...


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


def check_translates(model: Any, command: Callable[[], str]) -> None:
    """Raises: ValueError if the model does not answer sources. command: returns the command that fits the model."""
    chat = ", or, one run of a chat model at a time, put its chat_template.jinja into the run folder"
    for stack, layers, remedy in (
        ("decoder", model.num_decoder_layers, ""),
        ("encoder", model.num_encoder_layers, chat),
    ):
        if layers == 0:
            raise ValueError(
                f"the model has no {stack} (model.num_{stack}_layers is 0), so it cannot translate: use {command()}{remedy}"
            )
