"""Makes a run folder from the weights of another system.

SYSTEM is hf or one of those in docs/systems. For hf, WEIGHTS is a Hugging Face folder with config.json and model.safetensors; for
the others an .npz or .safetensors file under the names of the system, with --config, for bert-tf also a TensorFlow checkpoint. The
run can be inspected, used by the commands for such a model, be the start of a training (`--train.init-from RUN`) and be exported
again.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from flaxformer_lite.atomic_files import atomic_write, require_absent
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.data.config import DataConfig
from flaxformer_lite.inference.config import DecodeConfig
from flaxformer_lite.interop.hf.folder import copy_companions
from flaxformer_lite.interop.hf.import_folder import Imported, read_folder
from flaxformer_lite.interop.hf.tokenizer_files import read_tokenizers
from flaxformer_lite.interop.name_map import to_params
from flaxformer_lite.interop.systems import SYSTEMS
from flaxformer_lite.interop.weight_files import read_settings, read_weights
from flaxformer_lite.objectives import Objectives, default_objective
from flaxformer_lite.run import write_run
from flaxformer_lite.text.kinds import FromRun
from flaxformer_lite.text.tokenizer import Tokenizers
from flaxformer_lite.workdir.folder import RunFolder

NAMES = sorted([*SYSTEMS, "hf"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("system", metavar="SYSTEM", choices=NAMES, help=", ".join(NAMES))
    parser.add_argument("weights", metavar="WEIGHTS", help="the weights: a folder for hf, else a file")
    parser.add_argument("folder", metavar="RUN", help="the run folder to make")
    parser.add_argument("--config", metavar="CONFIG.json", help="the system's own config; hf has it in its folder")


def run(arguments: argparse.Namespace) -> None:
    output = RunFolder(arguments.folder)
    require_absent(output.path)
    if arguments.system == "hf":
        if arguments.config is not None:
            raise ValueError(
                f"--config {arguments.config}: hf reads the config.json in {arguments.weights}; leave it out"
            )
        count, arrays = import_folder(Path(arguments.weights), output)
    elif arguments.config is None:
        raise ValueError(f"--config is missing: {arguments.system} needs it to know the model's shape")
    else:
        count, arrays = import_file(arguments.system, arguments.weights, arguments.config, output)
    print(f"{count:,} parameters in {arrays} arrays are in {output.path}", file=sys.stderr)


def import_file(name: str, weights: str, config_file: str, output: RunFolder) -> tuple[int, int]:
    """Returns the number of parameters, and in how many arrays they were."""
    system = SYSTEMS[name]
    settings = read_settings(config_file)
    try:
        model, names = system.model_config(settings), system.name_map(settings)
    except ValueError as error:
        raise said_of(config_file, error) from None
    try:
        params = to_params(read_weights(weights), names, model)
    except ValueError as error:
        raise said_of(weights, error) from None
    limit = model.positions.max_positions or DataConfig.max_source_length
    data = DataConfig(tokenizer=None, max_source_length=limit, max_target_length=limit)
    origin = {"system": name, "weights": weights, "config": settings}
    config = Config(model=model, data=data, decode=decode_config(settings))
    with atomic_write(output.path) as unfinished:
        write_run(RunFolder(unfinished), config, 0, params, f"imported from {weights}", imported=origin)
    return sum(x.size for x in jax.tree.leaves(params)), sum(len(weight.names) for weight in names)


def said_of(path: str, error: ValueError) -> ValueError:
    """The error with the path that it is about, if it does not name it."""
    return error if path in str(error) else ValueError(f"{path}: {error}")


def decode_config(settings: Mapping[str, Any]) -> DecodeConfig:
    """The special ids that the system's config names; this package's where it names none."""
    theirs = {"pad_id": ("pad_idx", "src_pad_idx"), "bos_id": ("bos_idx",)}
    ids: dict[str, Any] = {ours: settings[name] for ours, names in theirs.items() for name in names if name in settings}
    if "eos_idx" in settings:
        ids["eos_ids"] = (settings["eos_idx"],)
    return DecodeConfig(**ids)


# Hugging Face ---------------------------------------------------------------------------------------------------------


def import_folder(folder: Path, output: RunFolder) -> tuple[int, int]:
    """Returns the number of parameters, and in how many arrays they were. What was left out is told on stderr."""
    try:
        found = read_folder(folder)
        tokenizers, note = read_tokenizers(folder, found.config, found.model.vocab_sizes)
    except ValueError as error:
        raise said_of(str(folder), error) from None
    config = Config(
        model=found.model,
        objective=objective(found),
        data=data_config(found, tokenizers, str(output.path)),
        decode=found.decode,
    )
    origin = {
        "system": "hf",
        "weights": str(folder),
        "config": found.config,
        "generation": found.generation,
        "architecture": found.architecture,
    }
    with atomic_write(output.path) as unfinished:
        made, said = RunFolder(unfinished), f"imported from {folder}"
        write_run(made, config, 0, found.params, said, tokenizers=tokenizers, imported=origin)
        copy_companions(folder, made.path / "huggingface")
    for told in found.notes:
        print(told, file=sys.stderr)
    for name in found.skipped:
        print(f"skipped {name}: a constant of this architecture, and its values are the expected ones", file=sys.stderr)
    if note:
        print(f"the run has no tokenizer, so it reads and writes token ids: {note}", file=sys.stderr)
    return sum(x.size for x in jax.tree.leaves(found.params)), sum(len(weight.names) for weight in found.names)


def objective(found: Imported) -> Objectives:
    """Returns the objective that the model is for, with the class names of its config."""
    num_classes = 0 if found.model.pooler is None else found.model.pooler.num_classes
    labels = found.config.get("id2label") or {}
    return default_objective(found.model, [str(labels.get(str(i), i)) for i in range(num_classes)])


def data_config(found: Imported, tokenizers: Tokenizers | None, run: str) -> DataConfig:
    """Texts may be as long as the folder says that the model reads; T5 says nothing, and reads any length."""
    limit = found.max_length or DataConfig.max_source_length
    one = tokenizers is None or (tokenizers.target is tokenizers.source and found.model.target_vocab_size is None)
    return DataConfig(
        tokenizer=None if tokenizers is None else FromRun(path=run),
        target_tokenizer=None if one else FromRun(path=run, side="target"),
        max_source_length=limit,
        max_target_length=limit,
    )
