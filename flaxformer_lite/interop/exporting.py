"""One run to a folder or a file of another system: `export_hf`, `export_ctranslate2`, `export_file`."""

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
from flaxformer_lite.interop.hub import FORM
from flaxformer_lite.interop.hub import push as push_folder
from flaxformer_lite.interop.weight_files import read_settings, write_weights
from flaxformer_lite.run import Run, load
from flaxformer_lite.text.kinds import copy_hub_files
from flaxformer_lite.workdir.seal import check_origin


def export_hf(
    run: str | Path,
    output: str | Path,
    *,
    weights: str | None = None,
    family: str | None = None,
    license: str | None = None,
    push: bool = False,
    private: bool = False,
) -> None:
    """Writes the run in a folder as a new Hugging Face folder; with `push` as one commit of the hub's model `output`.

    `weights`: last, best, ema or average:N; None: the config's. `family`: the model type; None: the one that the run
    was imported from, or the first that fits. `license`: what the model card states. `private`: create a private model on the hub.
    Notes on stderr tell what the other system cannot express. The files of an imported tokenizer are copied.

    Example: `export_hf("runs/quickstart", "exported")`.

    Raises: ValueError if no family can express the model, or `output` is there already.
    """
    if push:
        match = FORM.fullmatch(str(output))
        if match is None or match[1] or match[3]:
            raise ValueError(f"push is set, but the output is {output}: give the model's name on the hub, ORG/NAME")
    elif private:
        raise ValueError("private is set without push: set both or none")
    else:
        require_absent(Path(output), "folder")
    if family not in (None, *FAMILIES):
        raise ValueError(f"family is {family}: choose one of {', '.join(FAMILIES)}")
    with exporting(run, weights, "hf") as (loaded, origin), tempfile.TemporaryDirectory() as made:
        check_prompts_are_causal(loaded, "hf")
        results = loaded.folder.results(loaded.step, weights or loaded.config.weights)
        notes: list[str] = []
        folder, files = Path(output), Path(made, "tokenizer")
        files.mkdir()
        copied = copy_companions(loaded.folder.path / "huggingface", files) + copy_hub_files(loaded.folder.path, files)
        if not origin and set(copied) <= {"chat_template.jinja"}:
            notes = write_tokenizers(files, loaded.tokenizers, loaded.config.model)
        about = About(folder.name, loaded.step, results, license)
        if push:
            folder, about = Path(made, "model"), about._replace(name=str(output))
        count, more = export_run(loaded.config, loaded.params, origin, files, family, folder, about)
        with kept_if_good(folder):
            hf.check_folder(folder, loaded.config.model, loaded.config.decode, loaded.params)
        if push:
            push_folder(folder, str(output), private=private, keep_card=license is None)
    report(notes + more, count, loaded, output)


def export_ctranslate2(run: str | Path, output: str | Path, *, weights: str | None = None) -> None:
    """Writes the run in a folder as a new folder for CTranslate2. `weights`: see `export_hf`.

    Raises: ValueError for a setting that CTranslate2 does not have, or if `output` is there already.
    """
    folder = Path(output)
    require_absent(folder, "folder")
    with exporting(run, weights, "ctranslate2") as (loaded, _):
        check_prompts_are_causal(loaded, "ctranslate2")
        count, notes = export.export_run(loaded.config, loaded.params, loaded.tokenizers, folder)
        with kept_if_good(folder):
            ctranslate2.check_folder(folder, loaded.config, loaded.params, loaded.tokenizers)
            copy_hub_files(loaded.folder.path, folder)
    report(notes, count, loaded, output)


def export_file(
    run: str | Path, system: str, output: str | Path, *, config: str | None = None, weights: str | None = None
) -> None:
    """Writes the parameters of a run as a file of an older system (docs/systems). `config`: that system's own config file, if
    names of its arrays depend on it. `weights`: see `export_hf`.

    Raises: ValueError if the system cannot express the model, or `output` is there already.
    """
    require_absent(Path(output), "file")
    with exporting(run, weights, system) as (loaded, origin):
        theirs = SYSTEMS[system]
        chosen = origin.get("config", {}) if config is None else read_settings(config)
        settings = theirs.config_for(loaded.config.model) | chosen
        arrays = from_params(loaded.params, theirs.name_map(settings))
        if theirs.check is not None:
            theirs.check(settings, arrays, loaded.config.model, loaded.params)
        write_weights(str(output), arrays)
    report([], len(arrays), loaded, output)


@contextlib.contextmanager
def exporting(run: str | Path, weights: str | None, system: str) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Shows that a run is being exported; yields it, loaded, and its `imported.json` if it was imported from that system, else {}.

    Raises: ValueError if `imported.json` is not the one that the run was made with.
    """
    with Progress() as progress:
        progress.update("exporting")
        loaded = load(run, weights=weights)
        origin = read_json(loaded.folder.path / "imported.json")
        check_origin(loaded.folder.path)
        yield loaded, origin if origin.get("system") == system else {}


def report(notes: list[str], count: int, loaded: Run, output: str | Path) -> None:
    """Warns of what the other system cannot express, and notes what was written."""
    for line in notes:
        warn(line)
    note(f"{count} arrays of step {loaded.step} are in {output}")


def check_prompts_are_causal(loaded: Run, system: str) -> None:
    """Raises: ValueError if the objective reads prompts in a way that the system does not have."""
    objective = loaded.config.objective
    if objective.prompt_attention != "causal":
        raise ValueError(
            f"objective.kind {objective.kind!r} reads prompts with {objective.prompt_attention} attention, but {system} "
            "reads every prompt causally: use the run with generate"
        )


@contextlib.contextmanager
def kept_if_good(folder: Path) -> Iterator[None]:
    """Deletes the folder if what is done within it fails."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder)
        raise
