"""Sentence encoders in the layout of sentence-transformers: `modules.json`, and a folder for each step after the model.

The steps are the model, pooling, any number of dense layers, and perhaps normalisation. Prompts stand in
`config_sentence_transformers.json`.

Reference: Reimers and Gurevych 2019, arXiv:1908.10084, section 3.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import safetensors.numpy

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.objectives import BaseObjective, Objectives
from flaxformer_lite.core.reading.heads import DenseLayer, SentenceEmbedding
from flaxformer_lite.files.text.json_objects import read_any_json
from flaxformer_lite.interop.hf import reranker
from flaxformer_lite.interop.hf.folder import WEIGHTS, read_json, stored
from flaxformer_lite.interop.name_map import NumpyArrays, Tensors, WeightName, name_map
from flaxformer_lite.interop.options import Options
from flaxformer_lite.interop.weight_files import read_file

PoolingName = Literal["mean", "weighted_mean", "mean_sqrt_length", "max", "cls", "last"]
POOLINGS: dict[str, PoolingName] = {
    "mean": "mean",
    "weightedmean": "weighted_mean",
    "mean_sqrt_len_tokens": "mean_sqrt_length",
    "max": "max",
    "cls": "cls",
    "lasttoken": "last",
}
"""Our pooling, by theirs."""

OLDER: dict[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
"""Their pooling, by the flag that older folders have for it."""

ACTIVATIONS: dict[str, Any] = {
    "torch.nn.modules.linear.Identity": "linear",
    "torch.nn.modules.activation.Tanh": "tanh",
    "torch.nn.modules.activation.ReLU": "relu",
    "torch.nn.modules.activation.GELU": "gelu",
    "torch.nn.modules.activation.SiLU": "silu",
}
"""Our activation of a dense layer, by theirs."""

PROGRAM = "config_sentence_transformers.json"
CROSS_ENCODERS = (["Transformer"], ["Transformer", "LogitScore"])
"""The steps of models that score pairs."""


class Steps(NamedTuple):
    """The steps of a folder after the model."""

    embedding: SentenceEmbedding | None
    dense: tuple[str, ...] = ()
    """The folders of the dense layers."""
    prompts: tuple[tuple[str, str], ...] = ()
    """Names of prompts with their texts, in the order of the names."""
    default_prompt: str | None = None
    words: tuple[int, ...] = ()
    """The tokens whose logits are the score of a pair (`LogitScore`); (): the model has classes."""
    messages: reranker.PairMessages | None = None
    """The messages in which a cross-encoder's chat template gets a pair; None: the tokenizer reads the pair."""
    template: str = ""
    """The template of a pair that an export has."""


# Reading --------------------------------------------------------------------------------------------------------------


def read_steps(folder: Path) -> Steps:
    """Returns the steps that turn a text into one vector, or a pair into a score; none for a folder without `modules.json`.

    Raises: ValueError that names a step or an option that is not implemented.
    """
    modules, where = read_any_json(folder / "modules.json"), folder / "modules.json"
    if not modules:
        return Steps(None)
    if not isinstance(modules, list):
        raise ValueError(f"{where} holds a {type(modules).__name__}: it should be a list of steps")
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules if isinstance(module, dict)]
    texts, program = (Options(read_json(folder / name), f"{name}: ") for name in ("sentence_bert_config.json", PROGRAM))
    if program.text("model_type", "SentenceTransformer") == "CrossEncoder" and kinds in CROSS_ENCODERS:
        scores = kinds == CROSS_ENCODERS[1]
        paths = paths_of(modules, where)
        words = reranker.read_words(module_options(folder, paths[0])) if scores else ()
        messages = reranker.read_pair_messages(texts, program)
        check_texts(texts, "text-generation" if scores else "sequence-classification")
        program.finish(("__version__", "activation_fn", "prompts"))  # the score is the number before that function
        return Steps(None, words=words, messages=messages)
    dense = kinds[2 : len(kinds) - (kinds[-1:] == ["Normalize"])]
    if kinds[:2] != ["Transformer", "Pooling"] or {*dense} - {"Dense"} or modules[0].get("path"):
        raise ValueError(
            f"{where} has the steps {', '.join(kinds)}: Transformer (in the folder itself), Pooling, any number of Dense and "
            "perhaps Normalize are implemented; in a CrossEncoder Transformer, and perhaps LogitScore"
        )
    paths = paths_of(modules, where)
    Options(texts.mapping("modality_config"), "sentence_bert_config.json: modality_config.").only("message")
    check_texts(texts, "feature-extraction")
    prompts = tuple(sorted((str(name), str(text)) for name, text in program.mapping("prompts").items()))
    default = program.text("default_prompt_name", "", ("", *dict(prompts))) or None
    program.finish(("__version__", "model_type", "similarity_fn_name", "truncate_dim"))
    dense_paths, normalize = tuple(paths[1 : 1 + len(dense)]), len(kinds) > 2 + len(dense)
    embedding = SentenceEmbedding(
        pooling=read_pooling(folder, paths[0]),
        dense=tuple(read_dense(folder, path) for path in dense_paths),
        normalize=normalize,
    )
    if normalize:
        step_options(folder, paths[-1]).finish()
    return Steps(embedding, dense_paths, prompts, default)


def paths_of(modules: Sequence[Mapping[str, Any]], where: Path) -> list[str]:
    """Returns the folders of the steps after the model. Raises: ValueError for one that is not beside the file `where`."""
    paths = [str(module.get("path")) for module in modules[1:]]
    for path in paths:
        if path in ("", "..") or Path(path).name != path:
            raise ValueError(f"{where} has the path {cut(path)}: a step should be in a folder beside it")
    return paths


def similarity_note(folder: Path, embedding: SentenceEmbedding | None) -> str:
    """Returns a note on a way to compare vectors in which texts have another order than by the cosine; "" for none."""
    name = read_json(folder / PROGRAM).get("similarity_fn_name")
    of_unit_length = embedding is None or embedding.normalize
    if name in (None, "cosine") or (of_unit_length and name in ("dot", "euclidean")):
        return ""
    return f"{PROGRAM} compares vectors by {name!r} (similarity_fn_name): here rank, mine and searches compare by the cosine"


def check_texts(texts: Options, task: str) -> None:
    """Raises: ValueError where a folder changes texts before they are tokenized, or its model is for another task."""
    texts.only("do_lower_case", False)
    texts.only("transformer_task", task)
    texts.finish(("max_seq_length", "modality_config", "module_output_name", "model_args", "tokenizer_args"))


def module_options(folder: Path, path: str) -> Options:
    return Options(read_json(folder / path / "config.json"), f"{path}/config.json: ")


def step_options(folder: Path, path: str) -> Options:
    """Returns the options of a step, which reads the vector of the text and writes it."""
    options = module_options(folder, path)
    options.only("module_input_name", "sentence_embedding")
    options.only("module_output_name", "sentence_embedding")
    return options


def read_pooling(folder: Path, path: str) -> PoolingName:
    options = module_options(folder, path)
    flags = [name for name in OLDER if options.flag(name, False)]
    if options.has("pooling_mode") or not flags:
        mode = options.text("pooling_mode", "mean", POOLINGS)
    else:
        mode = OLDER[flags[0]]
        if len(flags) > 1:
            raise options.wrong(flags[-1], f"one of {', '.join(POOLINGS)} alone is implemented")
    options.only("include_prompt", True)
    options.finish(("embedding_dimension", "word_embedding_dimension"))
    return POOLINGS[mode]


def read_dense(folder: Path, path: str) -> DenseLayer:
    options = step_options(folder, path)
    options.only("use_residual", False)
    activation = options.text("activation_function", "torch.nn.modules.activation.Tanh", ACTIVATIONS)
    layer = DenseLayer(
        width=options.integer("out_features"), activation=ACTIVATIONS[activation], bias=options.flag("bias", True)
    )
    options.finish(("in_features",))  # that of the weights is compared
    return layer


def dense_tensors(folder: Path, paths: Sequence[str]) -> Tensors:
    """Returns the weights of the dense layers, each under its folder. Raises: ValueError where a folder has none."""
    tensors: Tensors = {}
    for path in paths:
        if (file := stored(folder / path, WEIGHTS)) is None:
            raise ValueError(f"{folder / path} has no {WEIGHTS} with the weights of the dense layer: copy it there too")
        tensors |= {f"{path}/{name}": x for name, x in read_file(file).items()}
    return tensors


def with_prompts(objective: Objectives, steps: Steps) -> Objectives:
    """Returns the objective with the prompts of a folder's steps, if it is one of vectors."""
    if not hasattr(objective, "prompts"):
        return objective
    read: dict[str, Any] = {"prompts": steps.prompts, "default_prompt": steps.default_prompt}
    return dataclasses.replace(objective, **read)


# Writing --------------------------------------------------------------------------------------------------------------


def module_steps(model: ModelConfig, objective: BaseObjective, before: Steps) -> Steps:
    """Returns the steps of a run's folder; an objective without prompts leaves those of the folder that it started from."""
    if model.sentence_embedding is None:
        return Steps(None, template=objective.pair_template)
    prompts = tuple(sorted(getattr(objective, "prompts", before.prompts)))
    default = getattr(objective, "default_prompt", before.default_prompt)
    return Steps(model.sentence_embedding, dense_paths(model), prompts, default)


def dense_paths(model: ModelConfig) -> tuple[str, ...]:
    """Returns the folders of the dense layers in an export."""
    layers = () if model.sentence_embedding is None else model.sentence_embedding.dense
    return tuple(f"{i}_Dense" for i in range(2, 2 + len(layers)))


def dense_names(model: ModelConfig, paths: Sequence[str] | None = None) -> list[WeightName]:
    """Returns the names of the dense layers' weights, in these folders; None: in those of an export."""
    paths = dense_paths(model) if paths is None else paths
    return name_map({f"sentence_embedding/dense_{i}": f"{path}/linear" for i, path in enumerate(paths)}, model)


def without_dense(tensors: NumpyArrays) -> Tensors:
    """Returns the tensors of the model itself."""
    return {name: x for name, x in tensors.items() if "/" not in name}


def weight_files(tensors: NumpyArrays) -> dict[str, bytes]:
    """Returns the files of the dense layers' weights, by their paths."""
    files: dict[str, Tensors] = {}
    for name, x in tensors.items():
        path, slash, inner = name.partition("/")
        if slash:
            files.setdefault(f"{path}/{WEIGHTS}", {})[inner] = np.ascontiguousarray(x)
    return {path: safetensors.numpy.save(arrays, {"format": "pt"}) for path, arrays in files.items()}


def documents(model: ModelConfig, steps: Steps, max_length: int, files: Path) -> dict[str, Any]:
    """Returns the additional files of a sentence encoder or a cross-encoder; none for another model.

    `files` has those of the run that this one started from; the way to compare two vectors stays.
    """
    embedding, before = steps.embedding, read_json(files / PROGRAM)
    if embedding is None:
        if not steps.template and before.get("model_type") != "CrossEncoder":
            return {}
        program = {**before, "model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None}
        return {
            "modules.json": modules_of([""]),
            PROGRAM: program,
            **reranker.cross_encoder_files(steps.template, max_length),
        }
    written: dict[str, Any] = {"1_Pooling": pooling_options(embedding, model.d_model)}
    width = model.d_model
    for path, layer in zip(steps.dense, embedding.dense, strict=True):
        written[path] = dense_options(layer, width)
        width = layer.width
    if embedding.normalize:
        written[f"{len(written) + 1}_Normalize"] = {}
    program = {"prompts": dict(steps.prompts), "default_prompt_name": steps.default_prompt}
    return {
        "modules.json": modules_of(["", *written]),
        **{f"{path}/config.json": options for path, options in written.items() if options},
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        PROGRAM: {"similarity_fn_name": "cosine", **before, **program},
    }


def modules_of(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the steps in these folders; "": the model."""
    return [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{path[2:] or 'Transformer'}"}
        for i, path in enumerate(paths)
    ]


def pooling_options(embedding: SentenceEmbedding, width: int) -> dict[str, Any]:
    theirs = {ours: theirs for theirs, ours in POOLINGS.items()}[embedding.pooling]
    return {"word_embedding_dimension": width, **{name: mode == theirs for name, mode in OLDER.items()}}


def dense_options(layer: DenseLayer, width: int) -> dict[str, object]:
    """Returns the options of a dense layer over vectors of that width. Raises: ValueError for an activation that they lack."""
    names = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
    if layer.activation not in names:
        raise ValueError(
            f"model.sentence_embedding.dense has the activation {layer.activation}: sentence-transformers reads one of "
            f"{', '.join(names)}"
        )
    sizes = {"in_features": width, "out_features": layer.width, "bias": layer.bias}
    return sizes | {"activation_function": names[layer.activation]}
