"""Lists the configs that come with the package, or prints one: `flaxformer-lite configs quickstart > mine.py`."""

import argparse

from flaxformer_lite.base.shipped_configs import header, shipped_configs
from flaxformer_lite.core.base.suggest import suggest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="the config to print; by default all are listed")


def run(arguments: argparse.Namespace) -> None:
    configs, name = shipped_configs(), arguments.name
    if name is None:
        width = max(map(len, configs))
        print("\n".join(f"{name:<{width}}  {header(file)}" for name, file in configs.items()))
    elif name in configs:
        print(configs[name].read_text(encoding="utf-8"), end="")
    else:
        raise ValueError(f"configs NAME is {name}: the names are {', '.join(configs)}{suggest(name, configs)}")
