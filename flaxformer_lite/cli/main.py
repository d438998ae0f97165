"""The command line: `flaxformer-lite COMMAND …`, or `python -m flaxformer_lite COMMAND …`; `train.py` is its command `train`.

A command is a file of `commands/`, imported once it was typed; its function `run` imports what needs JAX. So help and wrong words
are answered at once.
"""

import argparse
import ast
import contextlib
import functools
import importlib
import importlib.resources
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from flaxformer_lite import tasks
from flaxformer_lite.base.console import LOGGER, Failure, Terminal, write_line
from flaxformer_lite.base.hardware import check_platforms, installed_versions
from flaxformer_lite.cli import commands
from flaxformer_lite.cli.commands.task import TaskCommand
from flaxformer_lite.cli.options import add_imports, add_option, import_typed, spelled
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.base.suggest import suggest

COMMANDS = {
    "train": "train",
    "prepare": "prepare",
    "translate": "translate",
    "generate": "generate",
    **tasks.TASK_FOLDERS,
    "evaluate": "evaluate",
    "mine": "mine",
    "inspect": "inspect",
    "rows": "rows",
    "seen": "seen",
    "rerun": "rerun",
    "sync": "sync",
    "report": "report",
    "serve": "serve",
    "fit": "fit",
    "pair": "pair",
    "plan": "plan",
    "import": "import_weights",
    "export": "export",
    "extend": "extend",
    "trim": "trim",
    "configs": "configs",
    "doctor": "doctor",
}
"""Every command and its file in `commands/`; of a task, its folder."""

READ_NO_RUN = ("configs", "doctor")
"""The commands that read no run, and so need no classes of its config."""
INTERRUPTED = 130
"""The exit status after Ctrl-C."""
OUT_OF_MEMORY = (
    "not enough memory ({}): give shorter texts, a smaller beam or a lower decode.batch_tokens; in training a lower "
    "data.tokens_per_batch or a higher train.num_micro_batches"
)


class Parser(argparse.ArgumentParser):
    """Reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        fail(f"{message}; `{self.prog} --help` tells more")


def main(words: Sequence[str] | None = None) -> None:
    """Runs the command in `words`, by default those of the command line; a user's mistake is one line and exit status 2."""
    if sys.stderr is None:  # as after `2>&-`: the next file that is opened would get what is written to stderr
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    words = sys.argv[1:] if words is None else words
    typed = next((word for word in words if not word.startswith("-")), None)
    if typed is None:
        overview().parse_args(words)
        overview().error(f"a command is missing: {', '.join(COMMANDS)}")
    if typed not in COMMANDS:
        fail(
            f"there is no command {typed}{suggest(typed, COMMANDS, cutoff=0.4) or '; there are ' + ', '.join(COMMANDS)}"
        )
    place = words.index(typed)
    run(typed, [*words[:place], *words[place + 1 :]])


def overview() -> Parser:
    """Returns the parser of no command, whose help lists all of them."""
    lines = [f"  {name:<10} {about(name).splitlines()[0]}" for name in COMMANDS]
    parser = Parser(
        prog="flaxformer-lite",
        usage="%(prog)s COMMAND …",
        description="Trains Transformers and uses them; `%(prog)s COMMAND --help` tells more.\n\ncommands:\n"
        + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    version = installed_versions(["flaxformer-lite"]).get("flaxformer-lite", "not installed")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")
    return parser


def about(name: str) -> str:
    """Returns the docstring of a command, from its file: a command is not imported, and `python -OO` drops docstrings."""
    file = COMMANDS[name]
    room, place = (tasks, f"{file}/lines.py") if name in tasks.TASK_FOLDERS else (commands, f"{file}.py")
    source = importlib.resources.files(room).joinpath(place).read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


@functools.cache
def command_of(name: str) -> Any:
    """Returns a command: a file of `commands/`, or what a task has in its place."""
    if name in tasks.TASK_FOLDERS:
        return TaskCommand(name)
    return importlib.import_module(f"{commands.__name__}.{COMMANDS[name]}")


def run(name: str, words: Sequence[str]) -> None:
    """Runs a command with its arguments, and ends the process where that fails."""
    command = command_of(name)
    # The options of `train CONFIG` are settings, its --help among them: they are CONFIG's to read.
    takes_settings = hasattr(command, "TAKES_SETTINGS") and any(not word.startswith("-") for word in words)
    parser = parser_of(name, add_help=not takes_settings or hasattr(command, "OWN_HELP"))
    # Options may stand between RUN and FILE.
    arguments, unknown = parser.parse_known_intermixed_args(words)
    LOGGER.setLevel(logging.WARNING if arguments.quiet else logging.INFO)
    options = re.findall(r"--[\w.-]+", parser.format_usage())
    if wrong := [word for word in unknown if not takes_settings or suggest(word, options, cutoff=0.85)]:
        hint = suggest(wrong[0], options) or f"; its options are {', '.join(options)}"
        fail(f"{name} does not take {' '.join(wrong)}{hint}")
    arguments.flags = unknown
    if sys.stdout is None and not takes_settings:
        fail("there is no standard output to write to: open it")
    with mistakes(arguments):
        import_typed(arguments)
        command.run(arguments)


def parser_of(name: str, add_help: bool) -> Parser:
    """Returns the parser of a command."""
    parser = Parser(
        prog=f"flaxformer-lite {name}",
        description=about(name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=add_help,
    )
    command_of(name).add_arguments(parser)
    if name not in READ_NO_RUN:
        add_imports(parser)
    add_option(
        parser,
        "--quiet",
        decides=False,
        action="store_true",
        help="write only results, warnings and errors: no progress",
    )
    return parser


@contextlib.contextmanager
def mistakes(arguments: argparse.Namespace) -> Iterator[None]:
    """Within it, what a user can mend ends the process with one line and status 2, Ctrl-C without a line and status 130."""
    prepare_stdout()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the results has closed: nobody reads a message, and Python must not print one at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        message = message_of(error, arguments)
        if message is None:
            raise
        fail(message, status=1 if isinstance(error, Failure) else 2)


def prepare_stdout() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # as the input is, whatever the locale says
        if sys.stdout.isatty():
            sys.stdout = Terminal(sys.stdout)


def message_of(error: Exception, arguments: argparse.Namespace) -> str | None:
    """Returns the line that tells a user what to mend; None: an error of another kind."""
    text = str(error)
    match error:
        case OSError():
            return f"{error.filename}: {error.strerror}" if error.filename else error.strerror or text
        case ValueError():
            return str(Mistake.of(error).spelled(spelled(arguments)))
        case Failure():
            return text
        case MemoryError():
            return OUT_OF_MEMORY.format("the system gives no more")
        case AssertionError():
            try:
                check_platforms()
            except ValueError as wrong:
                return str(wrong)
        case RuntimeError() if (
            "Unable to initialize backend" in text
        ):  # by its name, with those that JAX has, and a remedy
            return f"JAX_PLATFORMS is {os.environ.get('JAX_PLATFORMS', 'not set')}: {' '.join(text.split())}"
        case RuntimeError() if "can't start new thread" in text:
            return "the system gives this process no more threads: raise `ulimit -v`, `ulimit -d` or `ulimit -u`"
        case RuntimeError() if "RESOURCE_EXHAUSTED" in text:  # so JAX reports that there is no memory
            return OUT_OF_MEMORY.format(text)
    return None


def fail(message: str, status: int = 2) -> NoReturn:
    write_line(f"error: {message}")
    sys.exit(status)
