"""The most probable tokens at each mask of a text."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le

from flaxformer_lite.tasks.commands import use_command
from flaxformer_lite.tasks.task import Report, Task, Text, TextModel

MASK = "[MASK]"
"""The sign for a masked token in a text, whatever the tokenizer calls it."""
MADE = 20
"""Candidates that are computed for a mask at least, so that calls for fewer share a program; a server makes no more."""


class TokenPrediction(NamedTuple):
    """One candidate for a masked token."""

    token: str
    """The text of the token; empty if the tokenizer does not have the id."""
    probability: float
    id: int


def mask_id(model: TextModel) -> int:
    """Returns the id of a masked token. Raises: ValueError if the run is not a masked language model."""
    config, objective = model.config.model, model.config.objective
    if config.num_decoder_layers or config.head is None:
        setting = "head is None" if config.head is None else f"num_decoder_layers is {config.num_decoder_layers}"
        raise ValueError(
            f"model.{setting}, so the run {model.path} cannot fill masks: use {use_command(model.config)}, or a masked "
            "language model: an encoder-only model with a language-model head"
        )
    found = model.tokenizer.mask_id if objective.mask_id is None else objective.mask_id
    if found is None:
        raise ValueError(
            f"the tokenizer of {model.path} has no mask id, and objective.mask_token is not set: use a masked language model"
        )
    return found


def text_ids(model: TextModel, text: str) -> list[int]:
    """Returns the token ids of a text without special ones, [MASK] as a masked token.

    Raises: ValueError if the run fills no masks.
    """
    tokenizer = model.tokenizer
    if MASK not in text:
        return tokenizer.encode(text)
    masked = mask_id(model)
    if tokenizer.mask_id is not None:
        return tokenizer.encode(text.replace(MASK, tokenizer.pieces([masked])[0]))
    first, *others = map(tokenizer.encode, text.split(MASK))
    tokens = [*first]
    for ids in others:
        tokens += [masked, *ids]
    return tokens


@dataclass(frozen=True)
class FillMask(Task[str, list[list[TokenPrediction]]]):
    """The `top` most probable tokens at each [MASK] of each text, most probable first."""

    top: Annotated[int, Ge(1), Le(MADE)] = 5
    """Candidates for a mask."""

    name = "fill-mask"
    reads = "texts"
    asked = Text
    by_engine = False
    warns = True

    def check(self, model: TextModel) -> None:
        mask_id(model)

    def lengths(self, model: TextModel, asked: str) -> list[int]:
        return [len(model.tokenizer.with_special_tokens(text_ids(model, asked)).tokens)]

    def refusal(self, model: TextModel, asked: str) -> str:
        return "" if MASK in asked else f"has no mask: write {MASK} in place of the token to predict"

    def answered(self, model: TextModel, asked: Sequence[str], report: Report) -> list[list[list[TokenPrediction]]]:
        masked_id = mask_id(model)
        tokenizer = model.tokenizer
        say = report.warn
        by_jax: Any = model  # as `by_engine` says
        parts = itertools.chain.from_iterable(text.split(MASK) for text in asked)
        model.unknown.report(list(parts), say)
        rows, positions = [], []
        for line, text in zip(report.lines, asked, strict=True):
            tokens = text_ids(model, text)
            row = model.encode([tokens], line, say)
            rows.append(row)
            of_masks = [position for position, token in enumerate(row.tokens) if token == masked_id]
            positions.append(of_masks)
            lost = tokens.count(masked_id) - len(of_masks)
            if masked_id not in tokens:
                say(f"line {line} {self.refusal(model, '')}")
            elif lost:
                say(f"line {line}: {lost} of its masks were cut off")
        masked = [row for row, places in zip(rows, positions, strict=True) if places]
        places = list(filter(None, positions))
        predictions = iter(by_jax.top_tokens(max(self.top, MADE), masked, places, report.progress))
        answers = list[list[list[TokenPrediction]]]()
        for masks in map(len, positions):
            answers.append([])
            best = (array[:masks, : self.top].tolist() for array in next(predictions)) if masks else ()
            for probabilities, ids in zip(*best, strict=True):
                candidates = zip(probabilities, ids, strict=True)
                answers[-1].append([TokenPrediction(tokenizer.piece(id_), p, id_) for p, id_ in candidates])
        return answers
