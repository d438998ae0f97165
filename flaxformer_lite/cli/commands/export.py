"""Writes the parameters of a run with the names and shapes of another system.

SYSTEM is hf, ctranslate2 or a system of docs/systems. OUT is a new folder for Hugging Face or CTranslate2, for other systems an
.npz or .safetensors file. With --push, OUT is ORG/NAME, a model of the Hugging Face hub, and the folder becomes one commit there.
The system must support the model. An imported run is exported bit for bit. Adapters (model.lora) are merged into the weights; with
--adapters only the adapters are written.
"""

import argparse

from flaxformer_lite.cli.options import SYSTEMS, add_run

TARGET_SYSTEMS = sorted([*SYSTEMS, "ctranslate2", "hf"])
FAMILIES = (
    "gpt2, llama, mistral, qwen2, qwen3, hunyuan_v1_dense, gemma, gemma2, gemma3_text, phi3, glm, glm4, "
    "starcoder2, stablelm, helium, ernie4_5, seed_oss, ministral, granite, olmo, olmo2, olmo3, smollm3, "
    "exaone4, gpt_neo, opt, xglm, "
    "gpt_neox, gptj, phi, falcon, cohere, bloom, bert, roberta, distilbert, xlm-roberta, camembert, data2vec-text, "
    "megatron-bert, roberta-prelayernorm, t5, mt5, umt5, bart, mvp, marian, mbart, m2m_100, pegasus, blenderbot, "
    "t5gemma, modernbert, eurobert, electra, roformer, deberta-v2, nomic_bert, jina_embeddings_v3, gte, mpnet, albert"
)
"""Families of Hugging Face's, in the order in which they are tried; their files need JAX."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("system", metavar="SYSTEM", choices=TARGET_SYSTEMS, help=", ".join(TARGET_SYSTEMS))
    add_run(parser)
    parser.add_argument("output", metavar="OUT", help="the folder (hf, ctranslate2) or the file to write")
    parser.add_argument("--config", metavar="CONFIG.json", help="the system's own config, if its names depend on it")
    parser.add_argument(
        "--family",
        metavar="FAMILY",
        help=f"hf: {FAMILIES}; default: the family the run was imported from, or the first that fits",
    )
    parser.add_argument("--push", action="store_true", help="hf: OUT is ORG/NAME, a model of the hub; push to it")
    parser.add_argument("--private", action="store_true", help="with --push: create a private model; default: public")
    parser.add_argument("--license", metavar="ID", help="hf: the licence that the model card states, such as mit")
    parser.add_argument("--adapters", action="store_true", help="hf: write only the adapters, as a folder of PEFT")
    parser.add_argument(
        "--weights-dtype",
        choices=("float32", "bfloat16", "int8"),
        help="ctranslate2: the type in which matrices are stored; int8 has a quarter of the bytes; default: float32",
    )
    parser.add_argument("--weights", help="last, best, ema or average:N; by default the config's weights")


def run(arguments: argparse.Namespace) -> None:
    check_system_options(arguments)
    from flaxformer_lite.interop.exporting import export_ctranslate2, export_file, export_hf  # with JAX

    folder, output, weights = arguments.folder, arguments.output, arguments.weights
    if arguments.system == "hf":
        options = {name: getattr(arguments, name) for name in ("family", "license", "push", "private", "adapters")}
        export_hf(folder, output, weights=weights, **options)
    elif arguments.system == "ctranslate2":
        export_ctranslate2(folder, output, weights=weights, weights_dtype=arguments.weights_dtype or "float32")
    else:
        export_file(folder, arguments.system, output, config=arguments.config, weights=weights)


def check_system_options(arguments: argparse.Namespace) -> None:
    """Raises: ValueError for an option that the system does not have."""
    systems = {"config": SYSTEMS, "weights_dtype": ["ctranslate2"]}
    for option in ("config", "weights_dtype", "family", "license", "push", "private", "adapters"):
        fits = arguments.system in systems.get(option, ["hf"])
        value = getattr(arguments, option)
        if value and not fits:
            typed = "" if value is True else f" is {value}"
            raise ValueError(
                f"--{option.replace('_', '-')}{typed}, but {arguments.system} has no such option: leave it out"
            )
