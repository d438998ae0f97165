"""The commands: `python -m flaxformer_lite COMMAND RUN …`, also installed as `flaxformer-lite`."""

import argparse
import contextlib
import difflib
import importlib
import io
import os
import pkgutil
import re
import signal
import sys
from typing import NoReturn

from flaxformer_lite.cli import commands
from flaxformer_lite.cli.options import as_flags

INTERRUPTED = 130
"""The exit status after Ctrl-C."""


class Parser(argparse.ArgumentParser):
    """One that says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        fail(f"{message}; `{self.prog} --help` tells more")


def main() -> None:
    """Runs the command that was typed; a user's mistake becomes one line and exit status 2."""
    if sys.stderr is None:  # as after `2>&-`; print() would write errors among the results
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    typed = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    if typed is not None and typed not in names:
        fail(f"there is no command {typed}; {nearest(typed, names) or 'the commands are ' + ', '.join(names)}")
    parser = Parser(prog="flaxformer-lite", description="Uses what train.py has made.", allow_abbrev=False)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name in names:
        command = importlib.import_module(f"{commands.__name__}.{name}")
        summary = (command.__doc__ or "").strip()
        subparser = subparsers.add_parser(
            name, help=summary.splitlines()[0], description=summary, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    if typed is None:
        parser.parse_args()
        parser.error(f"give a command: {', '.join(names)}")
    chosen, place = subparsers.choices[typed], sys.argv.index(typed)
    # Options may stand between RUN and FILE, which subparsers alone do not allow.
    arguments, unknown = chosen.parse_known_intermixed_args(sys.argv[1:place] + sys.argv[place + 1 :])
    if unknown:
        options = re.findall(r"--[\w-]+", chosen.format_usage())
        hint = nearest(unknown[0], options) or f"its options are {', '.join(options)}"
        fail(f"{typed} does not take {' '.join(unknown)}; {hint}")
    follow(arguments)


def follow(arguments: argparse.Namespace) -> None:
    """Runs the command, and ends the process where that fails."""
    if sys.stdout is None:
        fail("there is no standard output to write to")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as the input is, whatever the locale says
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our results has closed: there is no one left to tell, nor when Python flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
    except ValueError as error:
        fail(as_flags(str(error), arguments))
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):  # so JAX says that there is no memory
            raise
        fail(
            f"not enough memory ({error}): give shorter texts, a smaller beam or a lower decode.batch_tokens in config.json"
        )
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def nearest(typed: str, names: list[str]) -> str:
    """A hint at the name that was meant, empty where none is near."""
    near = difflib.get_close_matches(typed, names, 1, cutoff=0.4)
    return f"perhaps you meant {near[0]}" if near else ""


def fail(message: str) -> NoReturn:
    print(f"error: {' '.join(message.splitlines())}", file=sys.stderr)
    sys.exit(2)


def program() -> None:
    """The whole process, which Ctrl-C ends without a word: at once while it starts, then by an exception."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        main()
    except SystemExit as end:
        if end.code != INTERRUPTED:
            raise
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(INTERRUPTED)  # what JAX is computing would crash while Python ends


if __name__ == "__main__":
    program()
