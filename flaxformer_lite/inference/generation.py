"""Texts that a model goes on with: what a prompt is to it, where a text stops, and text that comes a few tokens at a time."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxtyping import PyTree

from flaxformer_lite.inference.config import DecodeConfig, Sampling
from flaxformer_lite.inference.decoder import Decoder
from flaxformer_lite.inference.translation import Translation
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.text.tokenizer import Tokenizer

NEW_TOKENS = 100
"""How many tokens are written where no setting says so: unlike a translation, a text is not as long as what it goes on from."""

LENGTHS: dict[str, Any] = {
    name: getattr(DecodeConfig, name) for name in ("max_new_tokens", "max_length_ratio", "max_length_extra")
}
"""What settings are where they say nothing of how long a text may be."""


def decode_settings(config: DecodeConfig, changes: Mapping[str, Any]) -> DecodeConfig:
    """The settings with some changed by name. Those of `Sampling` go by their own names, and one of them is enough to draw.

    Where neither the settings nor the changes say how long a text may be, it may have `NEW_TOKENS`.
    """
    drawn = {field.name for field in dataclasses.fields(Sampling)} & changes.keys()
    own: dict[str, Any] = {}
    if changes.keys() & {"max_length_ratio", "max_length_extra"}:
        own["max_new_tokens"] = None
    elif dataclasses.replace(config, **LENGTHS) == config:
        own["max_new_tokens"] = NEW_TOKENS
    own |= {name: value for name, value in changes.items() if name not in drawn}
    if drawn:
        base = own.get("sampling") or config.sampling or Sampling()
        own["sampling"] = dataclasses.replace(base, **{name: changes[name] for name in drawn})
    if own.get("sampling") is not None:
        own.setdefault("beam_size", 1)
    elif own.get("beam_size", 1) > 1:
        own["sampling"] = None
    return dataclasses.replace(config, **own)


def check_goes_on(model: ModelConfig) -> None:
    """Raises: ValueError where the model does not go on with a text; says which command it is for."""
    if model.num_decoder_layers == 0:
        raise ValueError(
            "the model has no decoder (model.num_decoder_layers is 0), so it cannot go on with a text: use fill-mask, embed or "
            "classify"
        )
    if model.num_encoder_layers:
        raise ValueError(
            f"the model has an encoder (model.num_encoder_layers is {model.num_encoder_layers}), so it answers a text and does not "
            "go on with it: use translate"
        )


def check_stop(stop: Sequence[str]) -> None:
    """Raises: ValueError where a text could stop nowhere."""
    if isinstance(stop, str) or not all(stop):
        raise ValueError(f"stop is {stop!r}: give a list of texts that are not empty")


def check_ids(prompts: Sequence[Sequence[int]], vocab_size: int, first: int) -> None:
    """Raises: ValueError where an id is none of the vocabulary."""
    for number, prompt in enumerate(prompts, first):
        if wrong := [i for i in prompt if not 0 <= i < vocab_size]:
            raise ValueError(f"prompt {number}: {wrong[0]} is no token id, model.vocab_size is {vocab_size}")


def prompt_ids(tokenizer: Tokenizer, prompt: str, bos_id: int) -> list[int]:
    """What the model goes on from: the prompt as a text begins for it, without an end; BOS alone where that is nothing."""
    ids = tokenizer.with_special_tokens(tokenizer.encode(prompt)).tokens
    if ids and ids[-1] == tokenizer.eos_id:
        del ids[-1]
    return ids or [bos_id]


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """The text of the tokens as it stands after the prompt: a space between the two is part of it.

    Ids that the model has and the tokenizer does not, as young models say, are left out.
    """
    tokens = [token for token in tokens if token < tokenizer.vocab_size]
    before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *tokens])
    return whole.removeprefix(before) if whole.startswith(before) else tokenizer.decode(tokens)


def before_stop(text: str, stop: Sequence[str]) -> str:
    """The text up to the first stop string."""
    return text[: min((place for s in stop if (place := text.find(s)) >= 0), default=len(text))]


def generated(
    decoder: Decoder,
    params: PyTree,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    stop: Sequence[str],
    seed: int,
    first: int,
    progress: Callable[[int, int], None],
) -> list[list[Translation]]:
    """The texts that go on from each prompt; `first` is the number of the first one, for what is drawn."""
    check_stop(stop)
    read = [prompt_ids(tokenizer, prompt, decoder.config.bos_id) for prompt in prompts]
    answers = decoder.generate({"params": params}, read, progress, seed=seed, first=first)
    return [
        [Translation(before_stop(text_after(tokenizer, ids, h.tokens), stop), h.score) for h in hypotheses]
        for ids, hypotheses in zip(read, answers, strict=True)
    ]


def streamed(
    decoder: Decoder, params: PyTree, tokenizer: Tokenizer, prompt: str, *, stop: Sequence[str], seed: int, first: int
) -> Iterator[str]:
    """The first text that `generated` gives for this prompt alone, in parts, as they are written."""
    check_stop(stop)
    ids = prompt_ids(tokenizer, prompt, decoder.config.bos_id)
    text = TextStream(tokenizer, ids, stop)
    for tokens in decoder.stream({"params": params}, ids, seed, first=first):
        yield text.add(tokens)
        if text.stopped:
            return
    yield text.end()


class TextStream:
    """A text whose tokens arrive a few at a time. What it gives out stays true, whatever comes after: no part of a character, and
    nothing that may turn out to be part of a stop string."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self.tokenizer, self.prompt, self.stop = tokenizer, prompt, stop
        self.tokens: list[int] = []
        self.given = 0
        """Characters given out."""
        self.stopped = False
        """Whether a stop string has come."""

    def add(self, tokens: Sequence[int]) -> str:
        """What there is to give out now that these tokens have come."""
        self.tokens += tokens
        text = self.text()
        whole = before_stop(text, self.stop)
        self.stopped = len(whole) < len(text)
        if not self.stopped:
            whole = text.rstrip("\ufffd")  # how a decoder writes the first bytes of a character
            whole = whole[: len(whole) - max((overlap(whole, s) for s in self.stop), default=0)]
        return self.give(whole)

    def end(self) -> str:
        """The rest, where no more tokens come."""
        return self.give(before_stop(self.text(), self.stop))

    def text(self) -> str:
        return text_after(self.tokenizer, self.prompt, self.tokens)

    def give(self, whole: str) -> str:
        part, self.given = whole[self.given :], max(self.given, len(whole))
        return part


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text may be the beginning of the stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
