"""Translations and continuations as text: prompts to token ids, answers to texts, stop strings, streams."""

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.search.answers import Watch
from flaxformer_lite.core.search.settings import DecodeConfig, Sampling
from flaxformer_lite.core.text import Tokenizer

if TYPE_CHECKING:
    from flaxformer_lite.core.model import ModelConfig  # with JAX

DEFAULT_NEW_TOKENS = 100
"""The maximum length of a generated text if no setting limits it: the length of a prompt says nothing about it."""

DEFAULT_LENGTHS: dict[str, Any] = {
    name: getattr(DecodeConfig, name) for name in ("max_new_tokens", "max_length_ratio", "max_length_extra")
}
"""The default values of the settings that limit the length of an answer."""

SAMPLING_NAMES = frozenset(field.name for field in dataclasses.fields(Sampling))
"""The settings of `Sampling`: one of them turns sampling on."""


def generation_settings(config: DecodeConfig, changes: Mapping[str, object]) -> DecodeConfig:
    """Returns the settings with some changed by name, those of `Sampling` too.

    One of these turns sampling on, except a filter that lets all tokens through: top_k 0, top_p 1 or min_p 0.
    If neither `config` nor `changes` limit the length, `max_new_tokens` is `DEFAULT_NEW_TOKENS`.

    Raises: ValueError for a name that is not a setting.
    """
    drawn = {name: value for name, value in changes.items() if name in SAMPLING_NAMES}
    settings: dict[str, Any] = {}
    if changes.keys() & {"max_length_ratio", "max_length_extra"}:
        settings["max_new_tokens"] = None
    elif dataclasses.replace(config, **DEFAULT_LENGTHS) == config:
        settings["max_new_tokens"] = DEFAULT_NEW_TOKENS
    settings |= {name: value for name, value in changes.items() if name not in drawn}
    base = settings.get("sampling") or config.sampling
    if drawn and (base is not None or any(drawn[n] != getattr(Sampling, n) or n == "temperature" for n in drawn)):
        settings["sampling"] = dataclasses.replace(base or Sampling(), **drawn)
    if settings.get("sampling") is not None:
        settings.setdefault("beam_size", 1)
    elif settings.get("beam_size", 1) > 1:
        settings["sampling"] = None
    return config.changed(settings, other_names=SAMPLING_NAMES)


def check_generates(model: "ModelConfig", command: Callable[[], str]) -> None:
    """Raises: ValueError if the model does not continue prompts. command: returns the command that fits an encoder."""
    if model.num_decoder_layers == 0:
        raise ValueError(
            f"the model has no decoder (model.num_decoder_layers is 0), so it cannot continue a prompt: use {command()}"
        )
    if model.num_encoder_layers:
        raise ValueError(
            f"the model has an encoder (model.num_encoder_layers is {model.num_encoder_layers}), so it answers a text and does not "
            "continue it: use translate"
        )


def check_stop(stop: Sequence[str]) -> None:
    """Raises: ValueError if `stop` is one string, or contains an empty one."""
    if isinstance(stop, str) or not all(stop):
        raise Mistake(f"stop is {stop!r}: it must be a list of strings that are not empty", setting="stop")


def encode_prompt(tokenizer: Tokenizer, prompt: str, bos_id: int | None) -> list[int]:
    """Returns a prompt's token ids after the special ids that begin a text; only `bos_id` if that gives no id.

    Raises: ValueError if that gives no id and `bos_id` is None.
    """
    ids = tokenizer.as_prompt(tokenizer.encode(prompt))
    if ids:
        return ids
    if bos_id is None:
        raise ValueError(
            "a prompt is empty, and decode.bos_id is None: give it text, or set decode.bos_id to a token id"
        )
    return [bos_id]


def decode_after(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """Returns the text of `tokens` as it stands after the prompt, with the space between the two.

    Skips ids that the model has and the tokenizer does not, which a model with little training may generate.
    """
    tokens = tokenizer.with_pieces(tokens)
    before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *tokens])
    return whole.removeprefix(before) if whole.startswith(before) else tokenizer.decode(tokens)


def truncate_at_stop(text: str, stop: Sequence[str]) -> str:
    return text[: min((text.find(s) for s in stop if s in text), default=len(text))]


def watch_stops(tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], stops: Sequence[Sequence[str]]) -> Watch | None:
    """Returns the `Watch` that ends answers at the first stop string of their prompt, as a stream ends; None without any."""

    def watch(index: int) -> Callable[[list[int]], int | None]:
        text = TextStream(tokenizer, prompts[index], stops[index])

        def ends(tokens: list[int]) -> int | None:
            if text.stop and tokens:
                text.add(tokens)
            return text.num_tokens if text.stopped else None

        return ends

    return watch if any(stops) else None


WINDOW_TOKENS = 32
"""The least number of tokens before the newest ones that are decoded together with them."""


class GrowingText:
    """The text of `decode_after` for tokens that arrive a few at a time. Decodes only a window of the newest ones:

        [ tokens before | window: tokens of `before` | newest tokens ]
        [ text: `settled`                            | text of the window after `before` ]

    The text of the newest tokens depends on some tokens before them, but not on the beginning of the window.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self.tokenizer, self.prompt = tokenizer, prompt
        self.tokens: list[int] = []
        self.window, self.before, self.settled = [*prompt], tokenizer.decode(prompt), ""

    def add(self, tokens: Sequence[int]) -> str:
        """Returns the text of all tokens once these have arrived."""
        self.tokens += tokens
        self.window += self.tokenizer.with_pieces(tokens)
        decoded = self.tokenizer.decode(self.window)
        if decoded.startswith(self.before):
            text = self.settled + decoded.removeprefix(self.before)
        else:  # a token has changed the text before it, as invalid bytes do
            self.window = [*self.prompt, *self.tokenizer.with_pieces(self.tokens)]
            self.before = self.tokenizer.decode(self.prompt)
            self.settled = ""
            decoded = self.tokenizer.decode(self.window)
            text = decode_after(self.tokenizer, self.prompt, self.tokens)
        if len(self.window) >= 2 * WINDOW_TOKENS and self.is_settled(decoded):
            before = self.tokenizer.decode(self.window[-WINDOW_TOKENS:])
            if before.strip():  # else the next piece might lose its space, like the first piece of a text
                self.window = self.window[-WINDOW_TOKENS:]
                self.before = before
                self.settled = text
        return text

    def is_settled(self, decoded: str) -> bool:
        """Returns whether later tokens leave the window's text as it is: its end is a whole character and no short run of bytes.

        Llama's decoder replaces a whole run of bytes by U+FFFD if one is invalid. A long run settles nevertheless: `add` begins
        anew if a byte changes it.
        """
        (last,) = self.tokenizer.pieces(self.window[-1:])
        in_run = last.startswith("<0x") and len(self.window) < 4 * WINDOW_TOKENS
        return not (in_run or decoded.endswith("\ufffd"))


class TextStream:
    """A text that arrives a few tokens at a time and is emitted in parts that later tokens cannot change.

    Holds back the bytes of an incomplete character, and an end that may be the beginning of a stop string.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int], stop: Sequence[str]) -> None:
        self.stop, self.arrived = stop, GrowingText(tokenizer, prompt)
        self.num_emitted = 0
        """Characters emitted so far."""
        self.stopped = False
        """Whether a stop string has arrived."""

    def add(self, tokens: Sequence[int]) -> str:
        """Returns the text that can be emitted once these tokens have arrived. Tokens after a stop string are dropped."""
        text = self.arrived.add(tokens)
        self.stopped = self.has_stop(text)
        if self.stopped:
            self.drop_tokens(len(tokens))
            return self.finish()
        safe = text.rstrip("\ufffd")  # how a decoder writes the first bytes of a character
        held = max((partial_stop_length(safe, stop) for stop in self.stop), default=0)
        return self.emit(safe[: len(safe) - held])

    def finish(self) -> str:
        """Returns the rest of the text, after the last token."""
        return self.emit(truncate_at_stop(self.text(), self.stop))

    def drop_tokens(self, number: int) -> None:
        """Drops, among the last `number` tokens, those after the token that completes a stop string."""
        tokens = self.arrived.tokens
        counts = range(len(tokens) - number + 1, len(tokens))
        further = bisect.bisect_left(counts, True, key=lambda count: self.has_stop(self.text(count)))
        del tokens[counts.start + further :]

    def has_stop(self, text: str) -> bool:
        return any(s in text for s in self.stop)

    @property
    def num_tokens(self) -> int:
        """The number of tokens so far, up to the one that completes a stop string."""
        return len(self.arrived.tokens)

    def text(self, count: int | None = None) -> str:
        """Returns the text of the first `count` tokens, by default of all so far, decoded as a whole."""
        return decode_after(self.arrived.tokenizer, self.arrived.prompt, self.arrived.tokens[:count])

    def emit(self, text: str) -> str:
        """Returns the part of `text` that has not been emitted yet."""
        new = text[self.num_emitted :]
        self.num_emitted = max(self.num_emitted, len(text))
        return new


def partial_stop_length(text: str, stop: str) -> int:
    """Returns the number of characters at the end of the text that may be the beginning of the stop string."""
    longest = min(len(stop) - 1, len(text))
    for length in range(longest, 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
