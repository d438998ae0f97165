"""The work of `export`: one run to a folder or a file of another system."""

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flaxformer_lite.base.atomic_files import require_absent
from flaxformer_lite.base.console import Progress, note, warn
from flaxformer_lite.interop import FAMILIES, SYSTEMS, from_params
from flaxformer_lite.interop.ctranslate2 import check as ctranslate2
from flaxformer_lite.interop.ctranslate2 import export
from flaxformer_lite.interop.hf import check as hf
from flaxformer_lite.interop.hf.card import About
from flaxformer_lite.interop.hf.export import export_run
from flaxformer_lite.interop.hf.folder import copy_companions, read_json
from flaxformer_lite.interop.hf.tokenizer_export import write_tokenizers
from flaxformer_lite.interop.hub import check_target, push
from flaxformer_lite.interop.weight_files import read_settings, write_weights
from flaxformer_lite.run import Run, load
from flaxformer_lite.text.kinds import copy_hub_files
from flaxformer_lite.workdir.seal import check_origin


def run(arguments: argparse.Namespace) -> None:
    check_options(arguments)
    if not arguments.push:
        require_absent(Path(arguments.output), "file" if arguments.system in SYSTEMS else "folder")
    with Progress() as progress:
        progress.update("exporting")
        loaded = load(arguments.folder, weights=arguments.weights)
        count, notes = export_loaded(loaded, arguments)
    for line in notes:
        warn(line)
    note(f"{count} arrays of step {loaded.step} are in {arguments.output}")


def export_loaded(loaded: Run, arguments: argparse.Namespace) -> tuple[int, list[str]]:
    """Writes a run for another system, and compares both. Returns the number of arrays, and notes."""
    origin = imported(loaded, arguments.system)
    objective = loaded.config.objective
    if objective.prompt_attention != "causal" and arguments.system not in SYSTEMS:
        raise ValueError(
            f"objective.kind {objective.kind!r} reads prompts with {objective.prompt_attention} attention, but {arguments.system} "
            "reads every prompt causally: use the run with generate"
        )
    if arguments.system == "hf":
        return export_hf(loaded, origin, arguments)
    if arguments.system == "ctranslate2":
        output = Path(arguments.output)
        count, notes = export.export_run(loaded.config, loaded.params, loaded.tokenizers, output)
        with kept_if_good(output):
            ctranslate2.check_folder(output, loaded.config, loaded.params, loaded.tokenizers)
            copy_hub_files(loaded.folder.path, output)
        return count, notes
    system = SYSTEMS[arguments.system]
    chosen = origin.get("config", {}) if arguments.config is None else read_settings(arguments.config)
    settings = system.config_for(loaded.config.model) | chosen
    arrays = from_params(loaded.params, system.name_map(settings))
    if system.check is not None:
        system.check(settings, arrays, loaded.config.model, loaded.params)
    write_weights(arguments.output, arrays)
    return len(arrays), []


@contextlib.contextmanager
def kept_if_good(folder: Path) -> Iterator[None]:
    """Deletes the folder if what is done within it fails."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder)
        raise


def check_options(arguments: argparse.Namespace) -> None:
    """Raises: ValueError for an option that the system does not have, or a family that is not known."""
    is_hf = arguments.system == "hf"
    for option, fits in (
        ("config", arguments.system in SYSTEMS),
        ("family", is_hf),
        ("license", is_hf),
        ("push", is_hf),
    ):
        if (value := getattr(arguments, option)) and not fits:
            typed = "" if value is True else f" is {value}"
            raise ValueError(f"--{option}{typed}, but {arguments.system} has no such option: leave it out")
    if arguments.private and not arguments.push:
        raise ValueError("--private is for --push: add it, or leave --private out")
    if arguments.push:
        check_target(arguments.output)
    if arguments.family not in (None, *FAMILIES):
        raise ValueError(f"--family is {arguments.family}: choose one of {', '.join(FAMILIES)}")


def export_hf(loaded: Run, origin: dict[str, Any], arguments: argparse.Namespace) -> tuple[int, list[str]]:
    """Returns the number of tensors, and notes. Copies the files of an imported tokenizer, or else writes the run's own."""
    results = loaded.folder.results(loaded.step, arguments.weights or loaded.config.weights)
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        output, files = Path(arguments.output), Path(made, "tokenizer")
        files.mkdir()
        copied = copy_companions(loaded.folder.path / "huggingface", files) + copy_hub_files(loaded.folder.path, files)
        if not origin and set(copied) <= {"chat_template.jinja"}:
            notes = write_tokenizers(files, loaded.tokenizers, loaded.config.model)
        about = About(output.name, loaded.step, results, arguments.license)
        if arguments.push:
            output, about = Path(made, "model"), about._replace(name=arguments.output)
        count, more = export_run(loaded.config, loaded.params, origin, files, arguments.family, output, about)
        with kept_if_good(output):
            hf.check_folder(output, loaded.config.model, loaded.config.decode, loaded.params)
        if arguments.push:
            push(output, arguments.output, private=arguments.private, keep_card=arguments.license is None)
    return count, notes + more


def imported(loaded: Run, system: str) -> dict[str, Any]:
    """Returns the `imported.json` of a run that was imported from that system; {} for other runs."""
    origin = read_json(loaded.folder.path / "imported.json")
    check_origin(loaded.folder.path)
    return origin if origin.get("system") == system else {}
