"""Serves runs on this machine: a page to try them, JSON endpoints by what a run does, and OpenAI's interface for its clients.

Only this machine reaches the server, unless --host says otherwise; then clients need the token in the environment variable
FLAXFORMER_LITE_TOKEN. Ctrl-C and SIGTERM end it once the open requests are answered. Needs the extra `serve`.
"""

import argparse
import importlib.util
import os

from flaxformer_lite.base.console import note
from flaxformer_lite.cli.options import add_option, add_weights, chosen_weights, typed_engine
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.tools.serve import Limits

LIMIT_OPTIONS = {
    "seconds": ("--timeout", "SECONDS", "from a request to the end of its answer, waiting and compiling included"),
    "queue": ("--queue", "N", "texts that wait for the model"),
    "texts": ("--max-texts", "N", "texts in a request, and in one call to the model"),
    "new_tokens": ("--max-new-tokens", "N", "tokens that a request may ask for in an answer"),
    "streams": ("--streams", "N", "texts that are streamed at once; further ones wait"),
}
"""The limits that have an option, with its value's name and meaning."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "run folders; the first that fits answers by default"
    add_option(parser, "folders", decides=False, is_run=True, metavar="RUN", nargs="+", help=about)
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at; default: 127.0.0.1, this machine alone"
    )
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one; default: 8000")
    parser.add_argument(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a further name of this server, such as that of the proxy before it; may be repeated",
    )
    add_weights(parser, "each config's weights", engine="auto")
    parser.add_argument(
        "--warm-up",
        action="store_true",
        help="compile what requests with default settings need before listening; default: at the first request of a shape",
    )
    defaults = Limits()
    for name, (option, metavar, about) in LIMIT_OPTIONS.items():
        default = getattr(defaults, name)
        parser.add_argument(
            option,
            dest=name,
            metavar=metavar,
            type=type(default),
            default=default,
            help=f"{about}; default: {default:g}",
        )


def run(arguments: argparse.Namespace) -> None:
    if not 0 <= arguments.port < 2**16:
        raise ValueError(f"--port is {arguments.port}: it must be between 0 and 65535")
    try:
        limits = Limits(**{name: getattr(arguments, name) for name in LIMIT_OPTIONS})
    except Mistake as error:
        raise error.spelled({f"serve.{name}": option for name, (option, *_) in LIMIT_OPTIONS.items()}) from None
    for package in ("jinja2", "prometheus_client", "starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            message = f'serve needs {package}, which is not installed: pip install "flaxformer-lite[serve]"'
            raise ValueError(message)
    from flaxformer_lite.tools.serve.server import serve  # JAX comes with it, and a mistake needs none

    stopped = serve(
        arguments.folders,
        limits,
        host=arguments.host,
        port=arguments.port,
        allowed_hosts=arguments.allow_host,
        weights=chosen_weights(arguments),
        engine=typed_engine(arguments),
        warm_up=arguments.warm_up,
        say=note,
    )
    if not stopped:
        os._exit(0)
