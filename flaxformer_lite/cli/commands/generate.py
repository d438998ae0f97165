"""Goes on with prompts: given as arguments, in files, from a pipe, or typed.

One prompt on a terminal is answered as the text is written; one prompt elsewhere gives its text as it is. Of several prompts or
samples each text is a line, in order, with \\\\ for a backslash and \\n for the end of a line. Only texts go to stdout, without
their prompts. Tokens are the most probable ones unless the config's decode.sampling says otherwise, or one of --temperature,
--top-k, --top-p, --min-p, --seed and --samples is given; --beam searches.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from flaxformer_lite.cli.input_lines import LineChunk, chosen_blocks
from flaxformer_lite.cli.options import add_setting, typed_settings
from flaxformer_lite.console import Progress
from flaxformer_lite.run import Run, load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="RUN", help="the run folder")
    parser.add_argument(
        "prompts", metavar="PROMPT", nargs="*", default=[], help='what to go on from, "" for nothing; by default stdin'
    )
    parser.add_argument("--file", metavar="FILE", action="append", default=[], help="a file with a prompt a line")
    parser.add_argument(
        "--ids", action="store_true", help="read and write token ids, apart by spaces; BOS is not added"
    )
    add_setting(
        parser, "--max-new-tokens", "max_new_tokens", int, "N", "by default what the config's decode says, or 100"
    )
    add_setting(
        parser, "--temperature", "sampling.temperature", float, "T", "divides the scores; 0 takes the best token"
    )
    add_setting(parser, "--top-k", "sampling.top_k", int, "K", "draw from the K most probable tokens")
    add_setting(parser, "--top-p", "sampling.top_p", float, "P", "draw from the best tokens with this probability")
    add_setting(parser, "--min-p", "sampling.min_p", float, "P", "draw from tokens P times as probable as the best")
    add_setting(parser, "--repetition-penalty", "repetition_penalty", float, "X", "above 1: say again less")
    parser.add_argument("--stop", metavar="TEXT", action="append", default=[], help="end before this; may be repeated")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="what is drawn depends on it and the prompt's number; by default 0"
    )
    add_setting(parser, "--samples", "num_hypotheses", int, "N", "texts for each prompt")
    add_setting(parser, "--beam", "beam_size", int, "N", "beam size; by default the config's decode.beam_size")
    parser.add_argument("--weights", help="last, best, ema or average:N; by default the config's weights")


def run(arguments: argparse.Namespace) -> None:
    if arguments.prompts and arguments.file:
        raise ValueError("there are prompts and --file: give one or the other")
    if arguments.ids and arguments.stop:
        raise ValueError("--stop is for texts: leave it out, or --ids")
    if arguments.beam_size is not None and arguments.seed is not None:
        raise ValueError("--seed is for drawing, --beam for searching: give one or the other")
    one = len(arguments.prompts) == 1
    given = iter([LineChunk(arguments.prompts, "the arguments", 0, "prompt")])
    blocks = given if arguments.prompts else chosen_blocks(arguments.file, "go on from")
    loaded = load(arguments.folder, weights=arguments.weights)
    decode = chosen_settings(loaded, arguments)
    settings = loaded.generation_decoder(**decode).config
    one = one and settings.num_hypotheses == 1
    first = 0
    for block in blocks:
        if streams(arguments, settings.beam_size, settings.num_hypotheses) and len(block.lines) == 1:
            write_streamed(loaded, block, arguments, first, decode)
        else:
            for text in texts(loaded, block, arguments, first, decode):
                print(text if one else text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r"))
            sys.stdout.flush()
        first += len(block.lines)


def chosen_settings(loaded: Run, arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings of decoding that are given; a seed, or more than one sample without a beam, draws."""
    decode = typed_settings(arguments)
    if "beam_size" not in decode and (arguments.seed is not None or decode.get("num_hypotheses", 1) > 1):
        decode.setdefault("temperature", getattr(loaded.config.decode.sampling, "temperature", 1.0))
    return decode


def streams(arguments: argparse.Namespace, beam_size: int, samples: int) -> bool:
    """Whether a text is shown while it is written."""
    return sys.stdout.isatty() and not arguments.ids and beam_size == samples == 1


def write_streamed(
    loaded: Run, block: LineChunk, arguments: argparse.Namespace, first: int, decode: dict[str, Any]
) -> None:
    told: dict[str, Any] = {"seed": arguments.seed or 0, "first_index": first, "warn": block.warn, **decode}
    with block.naming(first):
        for part in loaded.stream(block.lines[0], stop=arguments.stop, **told):
            print(part, end="", flush=True)
    print()


def texts(
    loaded: Run, block: LineChunk, arguments: argparse.Namespace, first: int, decode: dict[str, Any]
) -> Iterator[str]:
    """The texts for all prompts of a block, in order; `first` is the number of the first of them."""
    with Progress(len(block.lines)) as progress, block.naming(first):
        told: dict[str, Any] = {"seed": arguments.seed or 0, "first_index": first, **decode}
        told["progress"] = lambda done, of: progress.update("writing", done)
        if arguments.ids:
            prompts = [numbers(block, number) for number in range(len(block.lines))]
            answers = loaded.completions_of_ids(prompts, **told)
            return (" ".join(map(str, answer.tokens)) for answer in itertools.chain(*answers))
        found = loaded.completions(block.lines, stop=arguments.stop, warn=block.warn, **told)
        return (text for text, _ in itertools.chain(*found))


def numbers(block: LineChunk, number: int) -> list[int]:
    """The token ids in a line. Raises: ValueError where it holds something else."""
    line = block.lines[number]
    if not all(word.isdecimal() for word in line.split()):
        raise ValueError(f"{block.place(number)}: {line[:40]!r} is no list of token ids, numbers apart by spaces")
    return [int(word) for word in line.split()]
