"""Options of commands that are settings of decoding, and messages on settings in the words of these options."""

import argparse
import re
from collections.abc import Callable
from typing import Any


def add_setting(
    parser: argparse.ArgumentParser, option: str, setting: str, kind: Callable[[str], Any], metavar: str, about: str
) -> None:
    """Adds an option for the setting `decode.{setting}`, for example `beam_size` or `sampling.top_k`."""
    parser.add_argument(option, dest=setting, type=kind, metavar=metavar, help=about)
    parser.set_defaults(settings={**(parser.get_default("settings") or {}), setting: option})


def typed_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of the typed settings, by the last part of their names."""
    return {setting.rpartition(".")[2]: getattr(arguments, setting) for setting in typed_options(arguments)}


def typed_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Returns the typed options, by their settings."""
    settings: dict[str, str] = getattr(arguments, "settings", {})
    return {setting: option for setting, option in settings.items() if getattr(arguments, setting) is not None}


def as_flags(message: str, arguments: argparse.Namespace) -> str:
    """Returns a message with each setting replaced by the option that was typed for it, and a group by all its typed options.

    A setting that was not typed keeps its name; its option is added in parentheses.
    """
    typed = typed_options(arguments)

    def of_setting(found: re.Match[str]) -> str:
        path = found[1]
        options = [option for setting, option in typed.items() if f"{setting}.".startswith(f"{path}.")]
        if options:
            return " and ".join(options)
        option = getattr(arguments, "settings", {}).get(path)
        return found[0] if option is None else f"{found[0]} ({option})"

    def of_option(found: re.Match[str]) -> str:
        return f"--{found[0]}" if getattr(arguments, found[0], None) else found[0]

    return re.sub(r"^\w+(?= is )", of_option, re.sub(r"\bdecode\.(\w+(?:\.\w+)*)", of_setting, message))
