"""Continues prompts: from arguments, files, a pipe, or typed.

One prompt on a terminal is answered token by token; elsewhere its text is written unchanged. For several prompts or samples each
text is one line, in order, with \\\\ for a backslash and \\n for the end of a line. Only the new texts go to stdout. A line that is
too long or not UTF-8 is reported, and its texts are empty. Each token is the most probable one, unless decode.sampling of the
config or one of --temperature, --top-k, --top-p, --min-p, --seed and --samples draws tokens; --beam-size searches.

With --chat the prompts are a user's messages of one conversation, one after the other, and the texts the answers to them, by the
run's chat template.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from flaxformer_lite.cli.answering import Answering
from flaxformer_lite.cli.input_lines import LineChunk, NoBadLines, chosen_blocks, text_columns
from flaxformer_lite.cli.options import (
    add_column,
    add_option,
    add_output,
    add_run,
    add_setting,
    add_weights,
    chosen_output,
    chosen_weights,
    run_by_engine,
    typed_settings,
)
from flaxformer_lite.cli.output import write_answers
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.engine.generation import TextGenerator


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_option(
        parser,
        "prompts",
        decides=False,
        metavar="PROMPT",
        nargs="*",
        default=[],
        help='the text to continue, "" for none; default: stdin',
    )
    add_option(
        parser,
        "--file",
        decides=False,
        dest="files",
        metavar="FILE",
        action="append",
        default=[],
        help="a file with one prompt on each line",
    )
    add_column(parser)
    add_option(parser, "--chat", action="store_true", help="answer the prompts as messages of one conversation")
    add_option(parser, "--system", metavar="TEXT", help="the system prompt of --chat")
    add_option(
        parser, "--ids", action="store_true", help="read and write token ids separated by spaces; BOS is not added"
    )
    most = "most tokens to write; default: decode.max_new_tokens, or 100"
    add_setting(parser, "--max-new-tokens", "max_new_tokens", int, "N", most)
    add_setting(parser, "--temperature", "sampling.temperature", float, "T", "divides logits; 0 takes the best token")
    add_setting(parser, "--top-k", "sampling.top_k", int, "K", "draw from the K most probable tokens")
    add_setting(parser, "--top-p", "sampling.top_p", float, "P", "draw from the best tokens with this probability")
    add_setting(parser, "--min-p", "sampling.min_p", float, "P", "draw from tokens P times as probable as the best")
    add_setting(parser, "--repetition-penalty", "repetition_penalty", float, "X", "above 1: repeat less")
    add_option(
        parser, "--stop", metavar="TEXT", action="append", default=[], help="stop before this text; may be repeated"
    )
    add_option(
        parser,
        "--seed",
        type=int,
        metavar="N",
        help="seed of the draws, together with the number of the prompt; default: 0",
    )
    add_setting(parser, "--samples", "num_hypotheses", int, "N", "texts for each prompt")
    add_setting(parser, "--beam-size", "beam_size", int, "N", "beam size; default: decode.beam_size of the config")
    add_weights(parser, engine="auto")
    add_output(parser, "generate")


def run(arguments: argparse.Namespace) -> None:
    check_generation(arguments)
    output = chosen_output(arguments)
    if output.join_if_alone():
        return
    blocks: Iterable[LineChunk]
    if arguments.prompts:  # a mistake in one of them stops all
        blocks = [LineChunk(arguments.prompts, "the arguments", 0, "prompt", NoBadLines())]
    else:
        texts = text_columns(arguments.folder, arguments.files, arguments.column, wanted=1, first=True)
        blocks = chosen_blocks(arguments.files, "continue", texts, arguments.pieces)
    loaded = opened_generator(arguments)
    write_answers(blocks, continuing(loaded.generator, arguments), chosen_output(arguments), [loaded])


def opened_generator(arguments: argparse.Namespace) -> Any:
    """Returns the run that continues prompts, by CTranslate2 or by JAX."""
    from flaxformer_lite.core.search.generation import generation_settings
    from flaxformer_lite.engine.engine_run import open_obeying

    def changed(own: DecodeConfig) -> DecodeConfig:
        return generation_settings(own, decode_settings(own, arguments))

    run: Any = run_by_engine(arguments, functools.partial(open_obeying, "Generator", changed))
    if run is None:
        from flaxformer_lite.run import load  # with JAX

        run = load(arguments.folder, **chosen_weights(arguments))
    return run


def check_generation(arguments: argparse.Namespace) -> None:
    """Raises: ValueError if the options do not go together."""
    if arguments.prompts and arguments.files:
        raise ValueError("there are prompts and --file: leave one of them out")
    if arguments.prompts and arguments.column:
        raise ValueError("--column is for a table in --file, but there are prompts: leave one of them out")
    if arguments.output is not None and (arguments.prompts or arguments.chat):
        raise ValueError("-o is for the prompts of a --file, each by itself: leave out prompts and --chat, or -o")
    if arguments.ids and arguments.stop:
        raise ValueError("--stop is for texts, but --ids writes none: leave one of them out")
    if arguments.system is not None and not arguments.chat:
        raise ValueError("--system is for --chat: add it, or leave --system out")
    if arguments.chat and (arguments.ids or (arguments.num_hypotheses or 1) > 1 or (arguments.beam_size or 1) > 1):
        raise ValueError("--chat writes one answer while it is generated: leave out --ids, --samples and --beam-size")
    if arguments.beam_size is not None and arguments.seed is not None:
        raise ValueError("--seed is for drawing, --beam-size for searching: leave one of them out")


def continuing(generator: TextGenerator, arguments: argparse.Namespace) -> Answering[list[str]]:
    """Returns the way in which prompts are answered."""
    decode = decode_settings(generator.decode, arguments)
    decoder = generator.decoder(**decode)
    shape = decoder.config
    terminal = sys.stdout.isatty() and arguments.output is None
    options = {"seed": arguments.seed or 0, **decode}
    write = str if len(arguments.prompts) == shape.num_hypotheses == 1 else escaped_line
    if arguments.ids:
        return ContinuingIds(generator, decoder, options, write)
    options["stop"] = arguments.stop
    if arguments.chat:
        messages = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
        return Chatting(generator, options | {"beam_size": 1, "num_hypotheses": 1}, write, terminal, messages)
    streams = terminal and shape.beam_size == shape.num_hypotheses == 1
    return (Streaming if streams else Continuing)(generator, decoder, options, write)


def decode_settings(own: DecodeConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the typed settings; a seed and samples are for drawing, so they turn it on."""
    decode = typed_settings(arguments)
    if "beam_size" not in decode and (arguments.seed is not None or decode.get("num_hypotheses", 1) > 1):
        decode.setdefault("temperature", getattr(own.sampling, "temperature", 1.0))
    return decode


def escaped_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


@dataclass(frozen=True)
class Continuing(Answering[list[str]]):
    """The texts that continue a prompt."""

    generator: TextGenerator
    decoder: Any
    """The search."""
    options: dict[str, Any]
    """Keywords of `TextGenerator.completions`."""
    write: Callable[[str], str]
    """Returns a text as it is printed."""

    def read(self, block: LineChunk, number: int) -> str | list[int]:
        with block.naming(number):
            self.generator.check_prompts([block.lines[number]], self.decoder)
        return block.lines[number]

    def answers(self, block: LineChunk) -> list[list[str]]:
        with block.reporting("writing") as report:
            answers = self.generator.completions(
                block.lines, progress=report["progress"], warn=block.warn, first_index=block.index, **self.options
            )
        return [[text for text, _ in answer] for answer in answers]

    def written(self, index: int, answer: list[str]) -> list[list[str]]:
        return [[self.write(text)] for text in answer]

    def unanswered(self, index: int) -> list[list[str]]:
        return [[]] * self.decoder.config.num_hypotheses


class ContinuingIds(Continuing):
    """The token ids that continue token ids."""

    def read(self, block: LineChunk, number: int) -> list[int]:
        with block.naming(number):
            prompt = block.token_ids(number)
            self.generator.check_prompts([prompt], self.decoder)
        return prompt

    def answers(self, block: LineChunk) -> list[list[str]]:
        with block.reporting("writing") as report:
            answers = self.generator.completions_of_ids(
                block.read, progress=report["progress"], first_index=block.index, **self.options
            )
        return [[" ".join(map(str, one.tokens)) for one in answer] for answer in answers]


class Streaming(Continuing):
    """The text that continues a prompt; that of a single prompt is printed token by token."""

    def answers(self, block: LineChunk) -> list[list[str]]:
        if len(block.lines) > 1:
            return super().answers(block)
        for piece in self.generator.stream(block.lines[0], warn=block.warn, first_index=block.index, **self.options):
            print(piece, end="", flush=True)
        return [[""]]


@dataclass(frozen=True)
class Chatting(Answering[list[str]]):
    """The answer to the next message of a user, in a conversation that is remembered."""

    generator: TextGenerator
    options: dict[str, Any]
    """Keywords of `TextGenerator.chat`."""
    write: Callable[[str], str]
    """Returns a text as it is printed."""
    streams: bool
    """Whether an answer is printed token by token."""
    messages: list[dict[str, str]]
    """The conversation so far."""

    def answers(self, block: LineChunk) -> Iterator[list[str]]:
        for line in block.lines:
            self.messages.append({"role": "user", "content": line})
            pieces = self.generator.chat(self.messages, warn=block.warn, first_index=len(self.messages), **self.options)
            text = ""
            for piece in pieces:
                text += piece
                if self.streams:
                    print(piece, end="", flush=True)
            self.messages.append({"role": "assistant", "content": text})
            yield [""] if self.streams else [text]

    def written(self, index: int, answer: list[str]) -> list[list[str]]:
        return [[self.write(text)] for text in answer]
