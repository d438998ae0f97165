"""Texts that continue prompts, and answers in a chat: `run.generator`."""

import collections.abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flaxformer_lite.base.console import warn
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.search.answers import Hypothesis, ScoredText, warn_of_missing
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.generation import (
    TextStream,
    check_generates,
    check_stop,
    decode_after,
    encode_prompt,
    generation_settings,
    truncate_at_stop,
    watch_stops,
)
from flaxformer_lite.core.search.request import Request, in_order
from flaxformer_lite.core.text import Tokenizer
from flaxformer_lite.engine.texts import WarnCallback, check_list, required
from flaxformer_lite.files.text.chat import ChatTemplate, encode_marked, joined, read_chat_template
from flaxformer_lite.files.text.messages import Conversation
from flaxformer_lite.run.searcher import RunSearcher
from flaxformer_lite.tasks.model import TextModel

Generation = collections.abc.Generator[str, None, TextStream]
"""Parts of a text, and at the end the whole."""


@dataclass(frozen=True)
class Generator:
    """Continues prompts with the parameters of a run."""

    searcher: RunSearcher

    @property
    def model(self) -> TextModel:
        return self.searcher.members[0]

    @property
    def tokenizer(self) -> Tokenizer:
        return required(self.model.tokenizers, self.model.path).target

    def decoder(self, **decode: Any) -> Decoder:
        """Returns the decoder of prompts under the config's settings with `decode` changed, settings of `Sampling` too.

        Raises: ValueError if the model does not continue prompts.
        """
        check_generates(self.model.config.model)
        return self.searcher.search(generation_settings(self.model.config.decode, decode))

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
        """Returns the `decode.num_hypotheses` texts that continue each prompt: see `Run.completions`."""
        check_list("prompts", prompts)
        decoder, tokenizer = self.decoder(**decode), self.tokenizer
        self.model.unknown.report(prompts, warn)
        check_stop(stop)
        rows = [encode_prompt(tokenizer, prompt, decoder.config.bos_id) for prompt in prompts]
        watch, weights = watch_stops(tokenizer, rows, [stop] * len(rows)), self.searcher.weights(decoder)
        answers = decoder.generate(weights, in_order(rows, seed, first_index), progress, watch=watch)
        texts = [
            [ScoredText(truncate_at_stop(decode_after(tokenizer, row, one.tokens), stop), one.score) for one in ranked]
            for row, ranked in zip(rows, answers, strict=True)
        ]
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
        """Returns the completions of token ids as token ids: see `Run.completions_of_ids`."""
        decoder = self.decoder(**decode)
        self.check_prompts(prompts, decoder, first_index)
        return decoder.generate(self.searcher.weights(decoder), in_order(prompts, seed, first_index), progress)

    def check_prompts(self, prompts: Sequence[str | Sequence[int]], decoder: Decoder, first_index: int = 0) -> None:
        """Checks prompts, as texts or token ids; `decoder` is that of `decoder`.

        Raises: ValueError for one with an id outside the vocabulary, one without a token, or one that is longer than the model's
        positions.
        """
        for number, prompt in enumerate(prompts, first_index):
            if isinstance(prompt, str):
                prompt = encode_prompt(self.tokenizer, prompt, decoder.config.bos_id)
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
        """Returns an iterator over parts of the text that continues a prompt: see `Run.stream`."""
        decoder, tokenizer = self.decoder(**decode), self.tokenizer
        self.model.unknown.report([prompt], warn)
        ids = encode_prompt(tokenizer, prompt, decoder.config.bos_id)
        return self.streamed(decoder, Request(ids, seed=seed, index=first_index), stop, ids)

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
        """Returns an iterator over parts of the answer to a conversation: see `Run.chat`."""
        decoder, tokenizer = self.decoder(**decode), self.tokenizer
        template = self.template()
        if template is None:
            raise ValueError(
                f"{self.model.path} has no chat template: put a chat_template.jinja there, or use it without a chat"
            )
        read = Conversation.of(list(messages)).messages
        self.model.unknown.report([joined(message)["content"] for message in read[-1:]], warn)
        (prompt,) = encode_marked([template.whole_prompt(read)], tokenizer)
        self.check_prompts([prompt.ids], decoder)
        return self.streamed(decoder, Request(prompt.ids, seed=seed, index=first_index), stop)

    def streamed(
        self, decoder: Decoder, request: Request, stop: Sequence[str], before: Sequence[int] = ()
    ) -> Generation:
        """Yields the answer to a request in parts, while it is generated; returns all of it.

        before: the tokens that its text continues.
        """
        check_stop(stop)
        text = TextStream(self.tokenizer, before, stop)
        for tokens in decoder.stream(self.searcher.weights(decoder), request):
            yield text.add(tokens)
            if text.stopped:
                return text
        yield text.finish()
        return text

    def template(self) -> ChatTemplate | None:
        """Returns the chat template of the run folder; None without one. Raises: ValueError for a file that is not JSON."""
        return read_chat_template(self.model.path, self.tokenizer)
