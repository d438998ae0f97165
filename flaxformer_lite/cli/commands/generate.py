"""Continues prompts: from arguments, files, a pipe, or typed.

One prompt on a terminal is answered token by token; elsewhere its text is written unchanged. For several prompts or samples each
text is one line, in order, with \\\\ for a backslash and \\n for the end of a line. Only the new texts go to stdout. A line that is
too long or not UTF-8 is reported, and its texts are empty. Each token is the most probable one, unless decode.sampling of the
config or one of --temperature, --top-k, --top-p, --min-p, --seed and --samples draws tokens; --beam-size searches.

With --chat the prompts are a user's messages of one conversation, one after the other, and the texts the answers to them, by the
run's chat template.
"""

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flaxformer_lite.cli.input_lines import LineChunk, add_column, answer_lines, chosen_blocks, text_columns
from flaxformer_lite.cli.options import add_setting, add_weights, chosen_weights, typed_settings

if TYPE_CHECKING:
    from flaxformer_lite.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument(
        "prompts", metavar="PROMPT", nargs="*", default=[], help='the text to continue, "" for none; default: stdin'
    )
    parser.add_argument(
        "--file", metavar="FILE", action="append", default=[], help="a file with one prompt on each line"
    )
    add_column(parser)
    parser.add_argument("--chat", action="store_true", help="answer the prompts as messages of one conversation")
    parser.add_argument("--system", metavar="TEXT", help="the system prompt of --chat")
    parser.add_argument(
        "--ids", action="store_true", help="read and write token ids separated by spaces; BOS is not added"
    )
    most = "most tokens to write; default: decode.max_new_tokens, or 100"
    add_setting(parser, "--max-new-tokens", "max_new_tokens", int, "N", most)
    add_setting(parser, "--temperature", "sampling.temperature", float, "T", "divides logits; 0 takes the best token")
    add_setting(parser, "--top-k", "sampling.top_k", int, "K", "draw from the K most probable tokens")
    add_setting(parser, "--top-p", "sampling.top_p", float, "P", "draw from the best tokens with this probability")
    add_setting(parser, "--min-p", "sampling.min_p", float, "P", "draw from tokens P times as probable as the best")
    add_setting(parser, "--repetition-penalty", "repetition_penalty", float, "X", "above 1: repeat less")
    parser.add_argument(
        "--stop", metavar="TEXT", action="append", default=[], help="stop before this text; may be repeated"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of the draws, together with the number of the prompt; default: 0"
    )
    add_setting(parser, "--samples", "num_hypotheses", int, "N", "texts for each prompt")
    add_setting(parser, "--beam-size", "beam_size", int, "N", "beam size; default: decode.beam_size of the config")
    add_weights(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.prompts and arguments.file:
        raise ValueError("there are prompts and --file: leave one of them out")
    if arguments.prompts and arguments.column:
        raise ValueError("--column is for a table in --file, but there are prompts: leave one of them out")
    if arguments.ids and arguments.stop:
        raise ValueError("--stop is for texts, but --ids writes none: leave one of them out")
    if arguments.system is not None and not arguments.chat:
        raise ValueError("--system is for --chat: add it, or leave --system out")
    if arguments.chat and (arguments.ids or (arguments.num_hypotheses or 1) > 1 or (arguments.beam_size or 1) > 1):
        raise ValueError("--chat writes one answer while it is generated: leave out --ids, --samples and --beam-size")
    if arguments.beam_size is not None and arguments.seed is not None:
        raise ValueError("--seed is for drawing, --beam-size for searching: leave one of them out")
    from flaxformer_lite.run import load  # with JAX

    blocks = (
        iter([LineChunk(arguments.prompts, "the arguments", 0, "prompt")])
        if arguments.prompts
        else chosen_blocks(arguments.file, "continue", text_columns(arguments, arguments.file, wanted=1, first=True))
    )
    loaded = load(arguments.folder, **chosen_weights(arguments))
    decode = typed_settings(arguments)
    if "beam_size" not in decode and (arguments.seed is not None or decode.get("num_hypotheses", 1) > 1):
        decode.setdefault("temperature", getattr(loaded.config.decode.sampling, "temperature", 1.0))
    decoder = loaded.generation_decoder(**decode)
    samples = decoder.config.num_hypotheses
    unchanged = len(arguments.prompts) == 1 and samples == 1
    streams = sys.stdout.isatty() and not arguments.ids and decoder.config.beam_size == samples == 1
    first = 0

    if arguments.chat:
        decode |= {"beam_size": 1, "num_hypotheses": 1}
        streams = sys.stdout.isatty()
        answer_lines(blocks, chatting(loaded, arguments, decode, unchanged, streams))
        return

    def check(block: LineChunk, number: int) -> None:
        prompt = block.token_ids(number) if arguments.ids else block.lines[number]
        with block.naming(number):
            loaded.check_prompts([prompt], decoder)

    def empty() -> list[str]:
        nonlocal first
        first += 1
        return [""] * samples

    def answer(block: LineChunk) -> Iterator[str]:
        """Yields the texts for all prompts of a chunk, in order; `first` is the number of its first prompt."""
        nonlocal first
        options: dict[str, Any] = {"seed": arguments.seed or 0, "first_index": first, **decode}
        first += len(block.lines)
        if streams and len(block.lines) == 1:
            for text in loaded.stream(block.lines[0], stop=arguments.stop, warn=block.warn, **options):
                print(text, end="", flush=True)
            yield ""
            return
        with block.reporting("writing") as report:
            options["progress"] = report["progress"]
            if arguments.ids:
                prompts = [block.token_ids(number) for number in range(len(block.lines))]
                completions = loaded.completions_of_ids(prompts, **options)
                texts = [" ".join(map(str, one.tokens)) for one in itertools.chain(*completions)]
            else:
                answers = loaded.completions(block.lines, stop=arguments.stop, warn=block.warn, **options)
                texts = [text for text, _ in itertools.chain(*answers)]
        for text in texts:
            yield text if unchanged else one_line(text)

    if arguments.prompts:  # a mistake in one of them stops all
        for block in blocks:
            for number in range(len(block.lines)):
                check(block, number)
            answer_lines([block], answer)
    else:
        answer_lines(blocks, answer, check, empty)


def one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def chatting(
    run: "Run", arguments: argparse.Namespace, decode: dict[str, Any], unchanged: bool, streams: bool
) -> Callable[[LineChunk], Iterator[str]]:
    """Returns a function that yields the answers to further messages of a user, and remembers the conversation."""
    messages = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]

    def answer(block: LineChunk) -> Iterator[str]:
        for line in block.lines:
            messages.append({"role": "user", "content": line})
            options: dict[str, Any] = {"seed": arguments.seed or 0, "first_index": len(messages), **decode}
            text = ""
            for piece in run.chat(messages, stop=arguments.stop, warn=block.warn, **options):
                text += piece
                if streams:
                    print(piece, end="", flush=True)
            messages.append({"role": "assistant", "content": text})
            yield "" if streams else text if unchanged else one_line(text)

    return answer
