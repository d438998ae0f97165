"""Adapters as the library PEFT saves them: `adapter_config.json` and `adapter_model.safetensors` beside a base model.

    base_model.model.MODULE.lora_A.weight   [rank, in]    A, transposed
    base_model.model.MODULE.lora_B.weight   [out, rank]   B, transposed; of projections in one matrix one after the other

Ours have one rank and one factor `alpha / rank`. The answers of others are read exactly: a lower rank gets columns of zeros, which
training leaves as they are, and another factor becomes part of B. A step of training then changes B otherwise than in PEFT. So it
does where PEFT has one A for several projections, which have one each here. Notes tell it.

Reference: https://huggingface.co/docs/peft/package_reference/lora
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import PyTree

from flaxformer_lite.base.console import counted
from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.model import LoRA, ModelConfig
from flaxformer_lite.interop.hf.folder import ADAPTER_WEIGHTS, INDEX, WEIGHTS, read_json, stored
from flaxformer_lite.interop.hf.import_folder import Imported
from flaxformer_lite.interop.hf.multimodal import text_names
from flaxformer_lite.interop.name_map import NumpyArrays, Tensors, WeightName, is_finite, listed, our_shapes, unwrapped
from flaxformer_lite.interop.options import Options
from flaxformer_lite.interop.weight_files import read_file

ADAPTER_CONFIG = "adapter_config.json"
START, A, B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
"""The start and the ends of the names of tensors."""
NAMED = re.compile(r"(\.lora_[AB])(\.[^.]+)(\.weight)$")
"""The end of a name with that of the adapter, such as `default`, which PEFT leaves out in a file."""

WITHOUT_EFFECT = (
    "task_type",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "runtime_config",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "fan_in_fan_out",
    "eva_config",
    "megatron_core",
    "qalora_group_size",
)
"""Options that say what the tensors say too, or how they were made."""


def is_adapter(folder: Path) -> bool:
    """Returns whether a folder holds nothing but adapters."""
    weights = stored(folder, WEIGHTS, INDEX, ADAPTER_WEIGHTS)
    return (folder / ADAPTER_CONFIG).is_file() and (weights is None or weights.stem == "adapter_model")


def base_name(folder: Path) -> str:
    """Returns the place of the base, ORG/NAME or a folder. Raises: ValueError where the config names none."""
    options = read_options(folder)
    name, revision = options.text("base_model_name_or_path"), options.raw("revision")
    return f"{name}@{revision}" if revision and not Path(name).exists() else name


def read_options(folder: Path) -> Options:
    """Returns the options that are not switched off."""
    config = read_json(folder / ADAPTER_CONFIG)
    return Options(
        {name: x for name, x in config.items() if x is not False and x not in ([], {})}, f"{ADAPTER_CONFIG}: "
    )


def read_adapters(folder: Path, base: Imported) -> Imported:
    """Returns the base with the adapters of a folder. Raises: ValueError that names what our adapters cannot be."""
    options = read_options(folder)
    options.only("peft_type", "LORA")
    options.only("bias", "none")
    options.only("init_lora_weights", True, "gaussian", "orthogonal", "eva")  # the others change the base too
    rank = options.integer("r", 8)
    alpha = options.number("lora_alpha", 8)
    dropout = options.number("lora_dropout", 0)
    power = 0.5 if options.flag("use_rslora", False) else 1.0
    ranks = read_pattern(options, "rank_pattern", (int,))
    alphas = read_pattern(options, "alpha_pattern", (int, float))
    options.finish(WITHOUT_EFFECT)
    if rank < 1:
        raise options.wrong("r", "it should be at least 1")
    if not alpha > 0:
        rule = "it should be above 0: with 0 the adapters do nothing, so import the base; with less, merge them by PEFT"
        raise options.wrong("lora_alpha", rule)

    known = set[str]()
    for weight in base.names:
        if weight.path.endswith("/kernel"):
            modules = [name.removesuffix(".weight") for name in weight.names]
            known.update(module + A for module in modules)
            known.update(module + B for module in modules)
    stored, renamed = unwrapped(text_names(read_tensors(folder)), known)
    tensors = base.family.full_names(stored)
    most = max((x.shape[0] for name, x in tensors.items() if name.endswith(A)), default=rank)
    factor = alpha / rank**power
    lora_alpha = alpha if (most, power) == (rank, 1) else factor * most
    params = flatten_dict(base.params, sep="/")
    targets, scaled, shared = list[str](), list[str](), list[str]()
    for weight in base.names:
        path = weight.path.removesuffix("/kernel")
        modules = [name.removesuffix(".weight") for name in weight.names]
        has_adapter = any(module + A in tensors or module + B in tensors for module in modules)
        if path == weight.path or not has_adapter:
            continue
        wide, narrow = params[weight.path].shape[-2:]
        a = np.zeros((len(modules), wide, most), np.float32)
        b = np.zeros((len(modules), most, narrow), np.float32)
        for i, module in enumerate(modules):
            if (module + A in tensors) != (module + B in tensors):
                raise ValueError(
                    f"{module} has an adapter without its other matrix: the file is not whole, copy it again"
                )
            if module + A in tensors:
                own_a = np.asarray(tensors[module + A], np.float32).T
                own_b = np.asarray(tensors[module + B], np.float32).T
                if weight.part is not None:
                    own_b = own_b[:, weight.part]
                theirs = module if module + A in stored else module.removeprefix(base.family.prefix)
                own_rank = int(of_pattern(ranks, theirs, rank))
                own_alpha = of_pattern(alphas, theirs, alpha)
                if (own_a.shape, own_b.shape) != ((wide, own_rank), (own_rank, narrow)):
                    raise ValueError(
                        f"{module} has an adapter of shapes {own_a.shape} and {own_b.shape}: they should be {(wide, own_rank)} and "
                        f"{(own_rank, narrow)}"
                    )
                a[i, :, :own_rank] = own_a
                share = np.float32(own_alpha / own_rank**power / (lora_alpha / most))
                b[i, :own_rank] = own_b * share
                if share != 1:
                    scaled.append(f"{module} ({share:.3g})")
                if weight.part is not None:
                    shared.append(module)
        targets.append(path)
        for name, x in (("lora_a", a), ("lora_b", b)):
            params[f"{path}/{name}/kernel"] = x if weight.stacked else x[0]
    check_read(tensors, known, targets)
    lora = LoRA(rank=most, alpha=lora_alpha, targets=tuple(targets), dropout=dropout)
    model = dataclasses.replace(base.model, lora=lora)
    lost = sorted(params.keys() ^ our_shapes(model).keys())
    if lost:
        raise ValueError(f"{lost[0].partition('/lora_')[0]} has an adapter: only projections can have one here")
    notes = list(base.notes)
    if renamed:
        notes.append(renamed)
    notes += training_notes(scaled, shared)
    return base._replace(model=model, params=unflatten_dict(params, sep="/"), notes=notes)


def training_notes(scaled: Sequence[str], shared: Sequence[str]) -> list[str]:
    """Returns notes on adapters whose training would not be that of PEFT; `scaled` and `shared` name them."""
    what = {
        "their alpha / rank, another than that of the run, became part of B": scaled,
        "one A for several projections, which have one each here": list(dict.fromkeys(shared)),
    }
    return [
        f"{counted(len(modules), 'adapter')} ({cut(', '.join(modules))}): {fact}; the answers are those of PEFT, further training "
        "is not"
        for fact, modules in what.items()
        if modules
    ]


def read_pattern(options: Options, name: str, kinds: tuple[type, ...]) -> dict[str, float]:
    """Returns the numbers of an object by their patterns. Raises: ValueError for another value, and for what is no pattern."""
    patterns = options.mapping(name)
    for pattern, value in patterns.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise options.wrong(name, f"{pattern} is no pattern ({error})") from None
        if type(value) not in kinds or not value > 0:
            number = "a number" if float in kinds else "a whole number"
            raise options.wrong(name, f"the value of {pattern} should be {number} above 0")
    return patterns


def read_tensors(folder: Path) -> Tensors:
    """Returns the tensors by names of the adapted class. Raises: ValueError where the file is missing or damaged."""
    path = stored(folder, ADAPTER_WEIGHTS)
    if path is None:
        raise ValueError(f"{folder} has no {ADAPTER_WEIGHTS}: copy it there too")
    weights = read_file(path)
    tensors = {NAMED.sub(r"\1\3", name).removeprefix(START): x for name, x in weights.items()}
    if len(tensors) < len(weights):
        raise ValueError(
            f"{path} holds several adapters, by {cut(min(weights))}: save each in a folder of its own by PEFT"
        )
    damaged = [name for name, x in tensors.items() if not is_finite(x)]
    if damaged:
        raise ValueError(f"{damaged[0]} has a NaN or an infinity: the file is damaged, or its training failed")
    return tensors


def check_read(tensors: NumpyArrays, known: Set[str], targets: Sequence[str]) -> None:
    """Raises: ValueError that lists the tensors that belong to no projection of the base."""
    left = listed("left over", tensors.keys() - known)
    if left:
        raise ValueError(f"{left}: only adapters of projections of the base are read; merge the others by PEFT")
    if not targets:
        raise ValueError(f"{ADAPTER_WEIGHTS} holds no adapter: name another folder")


def of_pattern(patterns: Mapping[str, float], module: str, default: float) -> float:
    """Returns the value of the first pattern that matches the end of a module's name, as PEFT finds it."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


# Export ---------------------------------------------------------------------------------------------------------------


def adapter_documents(
    lora: LoRA, params: PyTree, names: Sequence[WeightName], model: ModelConfig, base: str | None
) -> tuple[dict[str, Any], Tensors]:
    """Returns `adapter_config.json` and the tensors, by names of a family.

    Raises: ValueError for projections that the family keeps in one matrix: PEFT has one adapter for them.
    """
    flat = {path: np.asarray(x, np.float32) for path, x in flatten_dict(params, sep="/").items()}
    tensors: Tensors = {}
    adapted: set[str] = set()
    for weight in names:
        path = weight.path.removesuffix("/kernel")
        if f"{path}/lora_a/kernel" not in flat:
            continue
        if weight.part is not None:
            raise ValueError(
                f"{weight.names[0]} holds {path.rpartition('/')[2]} and others in one matrix, for which PEFT has one adapter: "
                "export the merged model, without adapters"
            )
        a, b = flat[f"{path}/lora_a/kernel"], flat[f"{path}/lora_b/kernel"]
        if not weight.stacked:
            a, b = a[None], b[None]
        for name, own_a, own_b in zip(weight.names, a, b, strict=True):
            module = name.removesuffix(".weight")
            adapted.add(module)
            tensors |= {f"{module}{A}": own_a.T, f"{module}{B}": own_b.T}
    ends = {module.rpartition(".")[2] for module in adapted}
    alike = set[str]()
    for weight in names:
        alike.update(name.removesuffix(".weight") for name in weight.names if name.endswith(".weight"))
    short = all(module in adapted for module in alike if module.rpartition(".")[2] in ends)
    task = None
    if model.num_decoder_layers and model.head is not None:
        task = "SEQ_2_SEQ_LM" if model.has_two_stacks else "CAUSAL_LM"
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base and base.removeprefix("hf://").partition("@")[0],
        "revision": base.partition("@")[2] if base and base.startswith("hf://") else None,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": sorted(ends if short else adapted),
        "bias": "none",
        "inference_mode": True,
    }
    return config, tensors
