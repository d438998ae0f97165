"""Makes a run folder from the weights of another system.

SYSTEM is hf or a system of docs/systems. For hf, WEIGHTS is a Hugging Face folder with config.json and model.safetensors or
pytorch_model.bin, or a model of the hub, ORG/NAME or ORG/NAME@REVISION. (A folder of that name comes first; hf://ORG/NAME is
always the hub's.) For other systems it is an .npz, .safetensors or .pt file with the system's names, or for bert-tf a TensorFlow
checkpoint, and needs --config. The run can be inspected, used, trained further (`--train.init-from RUN`) and exported again.
"""

import argparse

from flaxformer_lite.cli.options import SYSTEMS

SOURCE_SYSTEMS = sorted([*SYSTEMS, "hf"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("system", metavar="SYSTEM", choices=SOURCE_SYSTEMS, help=", ".join(SOURCE_SYSTEMS))
    parser.add_argument(
        "weights", metavar="WEIGHTS", help="the weights: a folder or ORG/NAME for hf, a file for other systems"
    )
    parser.add_argument("folder", metavar="RUN", help="the new run folder")
    parser.add_argument("--config", metavar="CONFIG.json", help="the system's own config; for hf it is in the folder")
    parser.add_argument(
        "--follow-links", action="store_true", help="hf: read files of the folder that are links to files elsewhere"
    )


def run(arguments: argparse.Namespace) -> None:
    system, weights, config = arguments.system, arguments.weights, arguments.config
    if system == "hf" and config is not None:
        raise ValueError(f"--config is {config}, but hf reads the config.json in {weights}: leave it out")
    if system != "hf" and config is None:
        raise ValueError(f"--config is missing: {system} needs it to know the model's shape")
    from flaxformer_lite.interop.importing import import_file, import_hf  # with JAX

    if system == "hf":
        import_hf(weights, arguments.folder, follow_links=arguments.follow_links)
    else:
        import_file(system, weights, config, arguments.folder)
