"""Prints a script by which a shell completes commands, options, config names and settings: `flaxformer-lite completion bash`.

docs/install.md says where the script goes. It is made once and starts nothing when a key is pressed; make it again after an update.
"""

import argparse
import functools
import importlib
from collections.abc import Mapping
from types import ModuleType

from flaxformer_lite.base.shipped_configs import shipped_configs
from flaxformer_lite.cli.main import COMMANDS, add_common, docstring

TEMPLATES = {
    "bash": """\
_flaxformer_lite() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} command= options= flags= names= i
    for ((i = 1; i < COMP_CWORD; i++)); do
        [[ ${{COMP_WORDS[i]}} == -* ]] || {{ command=${{COMP_WORDS[i]}}; break; }}
    done
    case $command in
        "") names="{commands}" ;;
{cases}
    esac
    ((COMP_CWORD > i + 1)) && [[ ${{COMP_WORDS[i+1]}} != -* ]] && names=
    if [[ $previous == --* && " $flags " != *" $previous "* ]]; then
        names=
        case $command$previous in
{choices}
        esac
    elif [[ $word == -* ]]; then
        names=$options
    fi
    COMPREPLY=($(compgen -W "$names" -- "$word"))
}}
complete -o default -F _flaxformer_lite flaxformer-lite""",
    "zsh": """\
#compdef flaxformer-lite
autoload -U +X bashcompinit && bashcompinit
{bash}
# The first Tab loads this file, and completes too.
if [[ ${{funcstack[1]}} == _flaxformer-lite ]]; then _bash_complete -o default -F _flaxformer_lite; fi""",
}

SHELLS = ("bash", "fish", "zsh")

Options = dict[str, list[str] | None]
"""Options and the values that each may have: empty, if they are not a few words; None, if it takes no value."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(arguments: argparse.Namespace) -> None:
    print(script(arguments.shell))


def script(shell: str) -> str:
    """Returns the script for a shell."""
    configs, settings = list(shipped_configs()), setting_options()
    options = {name: command_options(name) | (settings if takes_settings(name) else {}) for name in COMMANDS}
    names = {name: configs * takes_config(name) for name in COMMANDS}
    if shell == "fish":
        return fish_script(options, names, configs)
    cases = [
        f'        {name}) options="{" ".join(options[name])}" names="{" ".join(names[name])}" '
        f'flags="{" ".join(option for option, values in options[name].items() if values is None)}" ;;'
        for name in COMMANDS
    ]
    choices = [
        f'            {name}{option}) names="{" ".join(values)}" ;;'
        for name in COMMANDS
        for option, values in options[name].items()
        if values
    ]
    lines = {"cases": "\n".join(cases), "choices": "\n".join(choices)}
    bash = TEMPLATES["bash"].format(commands=" ".join(COMMANDS), **lines)
    return TEMPLATES[shell].format(bash=bash) if shell == "zsh" else bash


def fish_script(options: Mapping[str, Options], names: Mapping[str, list[str]], configs: list[str]) -> str:
    """Returns the script for fish: `-r` is an option with a value, `-x -a` one with these values."""
    about = {name: docstring(file).splitlines()[0].replace("'", "\\'") for name, file in COMMANDS.items()}
    lines = [
        f"complete -c flaxformer-lite -n __fish_use_subcommand -f -a {name} -d '{about[name]}'" for name in COMMANDS
    ]
    for name in COMMANDS:
        seen = f"__fish_seen_subcommand_from {name}"
        for option, values in options[name].items():
            value = "" if values is None else f" -x -a '{' '.join(values)}'" if values else " -r"
            lines.append(f"complete -c flaxformer-lite -n '{seen}' -l {option.removeprefix('--')}{value}")
        if names[name]:
            first = f"{seen}; and not __fish_seen_subcommand_from {' '.join(configs)}"
            lines.append(f"complete -c flaxformer-lite -n '{first}' -a '{' '.join(names[name])}'")
    return "\n".join(lines)


def module_of(command: str) -> ModuleType:
    """Returns the module of a command."""
    return importlib.import_module(f"flaxformer_lite.cli.commands.{COMMANDS[command]}")


def parser_of(command: str) -> argparse.ArgumentParser:
    """Returns a parser with the arguments of a command."""
    parser = argparse.ArgumentParser()
    module_of(command).add_arguments(parser)
    add_common(parser, command)
    return parser


def command_options(command: str) -> Options:
    """Returns the long options of a command, each with its values."""
    return {
        option: None if action.nargs == 0 else [str(choice) for choice in action.choices or ()]
        for action in parser_of(command)._actions
        for option in action.option_strings
        if option[:2] == "--"
    }


def takes_config(command: str) -> bool:
    """Returns whether an argument of a command is a config."""
    return any(action.metavar == "CONFIG" or action.dest == "name" for action in parser_of(command)._actions)


def takes_settings(command: str) -> bool:
    """Returns whether a command takes the settings of a config as options."""
    return hasattr(module_of(command), "TAKES_SETTINGS")


@functools.cache
def setting_options() -> Options:
    """Returns the options for the settings of all configs that come with the package, each with its values."""
    from flaxformer_lite.config import load_config
    from flaxformer_lite.config.differences import flatten
    from flaxformer_lite.config.option_mistakes import as_option, choices_of, type_of

    configs = [load_config(name) for name in shipped_configs()]
    types = {setting: type_of(setting, config) for config in configs for setting in flatten(config)}
    return {
        as_option(setting): None if types[setting] is bool else choices_of(types[setting])
        for setting in sorted(types)
        if setting.rpartition(".")[2] != "kind"
    }
