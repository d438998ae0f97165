"""Compiles a config's train step for a TPU slice, on any machine: memory, operations, exchanges and the time at least.

Other options are settings of CONFIG, as for `train`: --train.mesh.fsdp -1, --data.rows-multiple 256. --topology needs libtpu:
pip install "flaxformer-lite[tpu]". With --devices nothing is compiled: it shows how each array of the training state is divided.
--fit searches settings that fit into the memory, and prints the command that trains with them; without --topology for this CPU.
"""

import argparse
import json
import shlex
from typing import TYPE_CHECKING

from flaxformer_lite.base.console import Failure, Progress

if TYPE_CHECKING:
    from flaxformer_lite.config import Config

TAKES_SETTINGS = True
"""Options that are not its own are settings of CONFIG."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONFIG", help="a config file, .py or .json, a run folder, or a name such as quickstart"
    )
    parser.add_argument("--topology", metavar="CHIP:AxB", help="the slice: v5e:4x4, v5p:4x4x4, v6e:1x1, …")
    slices = "several such slices, with a network between them; default: 1"
    parser.add_argument("--num-slices", type=int, default=1, metavar="N", help=slices)
    parser.add_argument(
        "--devices", type=int, metavar="N", help="show the sharding over N devices, and compile nothing"
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help="search the loss chunk, micro-batches, remat, optimizer and batch that fit into the memory of a device",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="with --fit: less memory than a device has, such as 12GiB; default: all of it",
    )
    parser.add_argument("--json", action="store_true", help="write JSON")


def run(arguments: argparse.Namespace) -> None:
    import jax

    from flaxformer_lite.config import load_config

    # Nothing is computed here, and the accelerator may be in use.
    jax.config.update("jax_platforms", "cpu")
    config = load_config(arguments.config, arguments.flags).concrete
    if arguments.fit or arguments.memory:
        plan_fit(arguments, config)
    else:
        plan_train_step(arguments, config)


def plan_train_step(arguments: argparse.Namespace, config: "Config") -> None:
    from flaxformer_lite.tools.planning import make_plan
    from flaxformer_lite.tools.planning.plan import plan_as_json, step_plan_in_words
    from flaxformer_lite.tools.planning.sharding import sharding_table

    if arguments.devices is not None and arguments.devices > 0 and arguments.topology is None:
        print(*sharding_table(config, arguments.devices), sep="\n")
        return
    if arguments.topology is None or arguments.devices is not None:
        raise ValueError("--topology or --devices: give a slice such as v5e:4x4, or a number of devices above 0")
    with Progress() as progress:
        progress.update(f"compiling for {arguments.topology}")
        plan = make_plan(config, arguments.topology, num_slices=arguments.num_slices)
    print(json.dumps(plan_as_json(plan), indent=2) if arguments.json else step_plan_in_words(plan))


def plan_fit(arguments: argparse.Namespace, config: "Config") -> None:
    from flaxformer_lite.tools.planning.fit import command, fit_as_json, fit_on, nothing_fits, trials_in_words

    if not arguments.fit:
        raise ValueError("--memory is for --fit: add --fit, or leave --memory out")
    if arguments.devices is not None:
        raise ValueError("--fit plans for this machine or for --topology: leave out --devices")
    result = fit_on(config, arguments.topology, arguments.num_slices, arguments.memory)
    words = None
    if result.found is not None:
        words = command(arguments.config, arguments.flags, result.found.settings)
        words += "".join(f" --import {shlex.quote(name)}" for name in arguments.imports)
    print(json.dumps(fit_as_json(result, words), indent=2) if arguments.json else trials_in_words(result, words))
    if words is None:
        raise Failure(nothing_fits(result))
