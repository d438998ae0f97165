"""Prints a script by which a shell completes commands, options, config names and settings: `flaxformer-lite completion bash`.

docs/install.md says where the script goes. It is made once and starts nothing when a key is pressed; make it again after an update.
"""

import argparse
import functools
import importlib
from types import ModuleType

from flaxformer_lite.cli.main import COMMANDS, add_common, docstring
from flaxformer_lite.shipped_configs import shipped_configs

TEMPLATES = {
    "bash": """\
_flaxformer_lite() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command= options= names= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${{COMP_WORDS[i]}} == -* ]] || {{ command=${{COMP_WORDS[i]}}; break; }}
    done
    case $command in
        "") names="{commands}" ;;
{cases}
    esac
    [[ $word == -* ]] && names=$options
    COMPREPLY=($(compgen -W "$names" -- "$word"))
}}
complete -o default -F _flaxformer_lite flaxformer-lite""",
    "zsh": """\
#compdef flaxformer-lite
autoload -U +X bashcompinit && bashcompinit
{bash}
# The first Tab loads this file, and completes too.
if [[ ${{funcstack[1]}} == _flaxformer-lite ]]; then _bash_complete -o default -F _flaxformer_lite; fi""",
    "fish": "{lines}",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=sorted(TEMPLATES), help=", ".join(TEMPLATES))


def run(arguments: argparse.Namespace) -> None:
    print(script(arguments.shell))


def script(shell: str) -> str:
    """Returns the script for a shell."""
    configs, settings = list(shipped_configs()), setting_options()
    options = {name: [*command_options(name), *settings * takes_settings(name)] for name in COMMANDS}
    names = {name: configs * takes_config(name) for name in COMMANDS}
    if shell == "fish":
        about = {name: docstring(file).splitlines()[0].replace("'", "\\'") for name, file in COMMANDS.items()}
        lines = [
            f"complete -c flaxformer-lite -n __fish_use_subcommand -f -a {name} -d '{about[name]}'" for name in COMMANDS
        ]
        for name in COMMANDS:
            seen = f"complete -c flaxformer-lite -n '__fish_seen_subcommand_from {name}'"
            lines += [f"{seen} -l {option.removeprefix('--')}" for option in options[name]]
            lines += [f"{seen} -a '{' '.join(names[name])}'"] * bool(names[name])
        return TEMPLATES["fish"].format(lines="\n".join(lines))
    cases = [
        f'        {name}) options="{" ".join(options[name])}" names="{" ".join(names[name])}" ;;' for name in COMMANDS
    ]
    bash = TEMPLATES["bash"].format(commands=" ".join(COMMANDS), cases="\n".join(cases))
    return TEMPLATES[shell].format(bash=bash) if shell == "zsh" else bash


def module_of(command: str) -> ModuleType:
    """Returns the module of a command."""
    return importlib.import_module(f"flaxformer_lite.cli.commands.{COMMANDS[command]}")


def parser_of(command: str) -> argparse.ArgumentParser:
    """Returns a parser with the arguments of a command."""
    parser = argparse.ArgumentParser()
    module_of(command).add_arguments(parser)
    add_common(parser, command)
    return parser


def command_options(command: str) -> list[str]:
    """Returns the long options of a command."""
    return [option for action in parser_of(command)._actions for option in action.option_strings if option[:2] == "--"]


def takes_config(command: str) -> bool:
    """Returns whether an argument of a command is a config."""
    return any(action.metavar == "CONFIG" or action.dest == "name" for action in parser_of(command)._actions)


def takes_settings(command: str) -> bool:
    """Returns whether a command takes the settings of a config as options."""
    return hasattr(module_of(command), "TAKES_SETTINGS")


@functools.cache
def setting_options() -> list[str]:
    """Returns the options for the settings of all configs that come with the package."""
    from flaxformer_lite.config import load_config
    from flaxformer_lite.config.differences import flatten

    found = dict.fromkeys(setting for name in shipped_configs() for setting in flatten(load_config(name)))
    return [f"--{setting.replace('_', '-')}" for setting in sorted(found) if setting.rpartition(".")[2] != "kind"]
