"""Prompts to texts that continue them, whatever searches: what the generators of a `Run` and of an `EngineRun` have in common."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flaxformer_lite.base.console import warn
from flaxformer_lite.base.remote_files import local_files
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.search import DecodeConfig, Request
from flaxformer_lite.core.search.answers import Hypothesis, ScoredText, warn_of_missing
from flaxformer_lite.core.search.generation import (
    TextStream,
    check_stop,
    decode_after,
    encode_prompt,
    generation_settings,
    truncate_at_stop,
    watch_stops,
)
from flaxformer_lite.core.search.request import requests_in_order
from flaxformer_lite.core.text import Tokenizer, Tokenizers
from flaxformer_lite.engine.texts import Searcher, WarnCallback, check_list, required_tokenizers
from flaxformer_lite.files.tokenizers.kinds import TEMPLATE_FILES

if TYPE_CHECKING:
    from flaxformer_lite.files.chats.chat import ChatTemplate  # with NumPy

Generation = Generator[str, None, TextStream]
"""Parts of a text, and at the end the whole."""


@dataclass(frozen=True)
class TextGenerator:
    """Continues prompts, whatever searches."""

    searcher: Searcher
    tokenizers: Tokenizers | None
    decode: DecodeConfig
    """The settings of decoding where a call has no others."""
    run: str
    """The run folder, or the URL of one."""

    @property
    def tokenizer(self) -> Tokenizer:
        return required_tokenizers(self.tokenizers, self.run).target

    def decoder(self, **decode: Any) -> Any:
        """Returns what searches under the settings with `decode` changed, settings of `Sampling` too.

        Raises: ValueError if nothing does.
        """
        return self.searcher.search(generation_settings(self.decode, decode))

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
        decoder = self.decoder(**decode)
        tokenizer = self.tokenizer
        self.searcher.unknown.report(prompts, warn)
        check_stop(stop)
        rows = [encode_prompt(tokenizer, prompt, decoder.config.bos_id) for prompt in prompts]
        watch = watch_stops(tokenizer, rows, [stop] * len(rows))
        weights = self.searcher.weights(decoder)
        answers = decoder.generate(weights, requests_in_order(rows, seed, first_index), progress, watch=watch)
        texts = list[list[ScoredText]]()
        for row, ranked in zip(rows, answers, strict=True):
            texts.append([])
            for answer in ranked:
                text = truncate_at_stop(decode_after(tokenizer, row, answer.tokens), stop)
                texts[-1].append(ScoredText(text, answer.score))
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
        return decoder.generate(self.searcher.weights(decoder), requests_in_order(prompts, seed, first_index), progress)

    def check_prompts(self, prompts: Sequence[str | Sequence[int]], decoder: Any, first_index: int = 0) -> None:
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
        prompt: str | Sequence[int],
        *,
        stop: Sequence[str] = (),
        seed: int = 0,
        first_index: int = 0,
        warn: WarnCallback = warn,
        **decode: Any,
    ) -> Iterator[str]:
        """Returns an iterator over parts of the text that continues a prompt (`Run.stream`), or that answers one of token ids."""
        decoder = self.decoder(**decode)
        before = list[int]()
        if isinstance(prompt, str):
            self.searcher.unknown.report([prompt], warn)
            prompt = before = encode_prompt(self.tokenizer, prompt, decoder.config.bos_id)
        else:
            self.check_prompts([prompt], decoder)
        return self.streamed(decoder, Request(prompt, seed=seed, index=first_index), stop, before)

    def chat(
        self, messages: Sequence[Mapping[str, object]], *, warn: WarnCallback = warn, **options: Any
    ) -> Iterator[str]:
        """Returns an iterator over parts of the answer to a conversation: see `Run.chat`."""
        from flaxformer_lite.files.chats.chat import encode_marked, flat_message  # with NumPy
        from flaxformer_lite.files.chats.messages import Conversation

        template = self.template()
        if template is None:
            raise ValueError(
                f"{self.run} has no chat template: put a chat_template.jinja there, or use it without a chat"
            )
        read = Conversation.of(list(messages)).messages
        self.searcher.unknown.report([flat_message(message)["content"] for message in read[-1:]], warn)
        (prompt,) = encode_marked([template.whole_prompt(read)], self.tokenizer)
        return self.stream(prompt.ids, warn=warn, **options)

    def streamed(self, decoder: Any, request: Request, stop: Sequence[str], before: Sequence[int] = ()) -> Generation:
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

    def template(self) -> "ChatTemplate | None":
        """Returns the chat template of the run folder; None without one. Raises: ValueError for a file that is not JSON."""
        from flaxformer_lite.files.chats.chat import read_chat_template  # with NumPy

        with local_files(self.run, TEMPLATE_FILES) as folder:
            return read_chat_template(folder, self.tokenizer)
