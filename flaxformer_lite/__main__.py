"""The commands: `python -m flaxformer_lite COMMAND RUN …`, also installed as `flaxformer-lite`."""

import argparse
import difflib
import importlib
import pkgutil
import sys

from flaxformer_lite import commands


def main() -> None:
    """Runs the command that was typed; a user's mistake becomes one line and exit status 2."""
    names = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    parser = argparse.ArgumentParser(
        prog="flaxformer-lite", description="Uses what train.py has made.", allow_abbrev=False
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    typed = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), None)
    if typed is not None and typed not in names:
        near = difflib.get_close_matches(typed, names, 1, cutoff=0.4)
        hint = f"perhaps you meant {near[0]}" if near else f"the commands are {', '.join(names)}"
        fail(f"there is no command {typed}; {hint}")
    for name in names:
        command = importlib.import_module(f"{commands.__name__}.{name}")
        summary = (command.__doc__ or "").strip()
        subparser = subparsers.add_parser(
            name, help=summary.splitlines()[0], description=summary, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except BrokenPipeError:
        # Whoever read our results has closed: there is no one left to tell.
        sys.stderr.close()
        sys.exit(1)
    except (ValueError, OSError) as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


def fail(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
