"""The systems that a model can be exported to."""

import contextlib
from collections.abc import Iterable

from flaxformer_lite.config import Config
from flaxformer_lite.interop.ctranslate2.export import unsupported_settings
from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.interop.hf.export import first_fitting
from flaxformer_lite.interop.name_map import from_params, placeholders
from flaxformer_lite.interop.systems import SYSTEMS

NAMES = {"hf": "Hugging Face", "ctranslate2": "CTranslate2"}


def fitting_systems(config: Config) -> list[str]:
    """Returns the systems that a run's model can be exported to, as `export` calls them; for hf with the family."""
    return [name for name, obstacles in export_obstacles(config).items() if not obstacles]


def exports_in_words(config: Config) -> str:
    """Returns a line such as `Hugging Face: no (norm); CTranslate2: yes`, with the settings that keep a model from a system."""
    words = []
    for name, obstacles in export_obstacles(config).items():
        system, _, family = name.partition(" ")
        said = f"no ({', '.join(obstacles)})" if obstacles else f"yes {family}".strip()
        words.append(f"{NAMES.get(system, system)}: {said}")
    return "; ".join(words)


def export_obstacles(config: Config) -> dict[str, list[str]]:
    """Returns the groups of settings that keep a model from a system; none for a system that it fits.

    hf has those of the nearest family. An older system is there if the model fits it.
    """
    model = config.model
    zeros = placeholders(model)
    prompts = [] if config.objective.prompt_attention == "causal" else ["objective"]
    found = {}
    try:
        family = first_fitting(model, zeros).config["model_type"]
        found["hf" if prompts else f"hf ({family})"] = prompts
    except CannotExpress as error:
        found["hf"] = prompts + groups(error.settings) or ["model"]
    endless = [] if config.decode.eos_ids else ["decode.eos_ids"]
    found["ctranslate2"] = prompts + groups(unsupported_settings(model)) + endless
    for name, system in SYSTEMS.items():
        with contextlib.suppress(ValueError):
            from_params(zeros, system.name_map(system.config_for(model)))
            found[name] = []
    return found


def groups(settings: Iterable[str]) -> list[str]:
    """Returns the groups of a model's settings, each once: `positions` of `model.positions.layout`."""
    return list(dict.fromkeys(path.split(".")[1] for path in settings))
