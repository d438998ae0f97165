"""Sentence encoders in the layout of sentence-transformers: `modules.json` and a pooling config beside the model.

Reference: Reimers and Gurevych 2019, arXiv:1908.10084, section 3.
"""

from pathlib import Path
from typing import Any, Literal

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.model.config import ModelConfig, SentenceEmbedding
from flaxformer_lite.interop.hf.folder import read_any_json, read_json
from flaxformer_lite.interop.options import Options

Pooling = Literal["mean", "max", "cls", "last"]
POOLINGS: dict[str, Pooling] = {"mean": "mean", "max": "max", "cls": "cls", "lasttoken": "last"}
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


def read_embedding(folder: Path) -> SentenceEmbedding | None:
    """Returns the settings that turn a text into one vector; None for a folder without a sentence encoder.

    Raises: ValueError that names a step or an option that is not implemented.
    """
    modules = read_any_json(folder / "modules.json")
    if not modules:
        return None
    if not isinstance(modules, list):
        raise ValueError(f"{folder / 'modules.json'} holds a {type(modules).__name__}: it should be a list of steps")
    kinds = [str(module.get("type", "")).rsplit(".", 1)[-1] for module in modules if isinstance(module, dict)]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]) or modules[0].get("path"):
        raise ValueError(
            f"{folder / 'modules.json'} has the steps {', '.join(kinds)}: Transformer (in the folder itself), Pooling and perhaps "
            "Normalize are implemented"
        )
    check_texts(folder)
    if (path := str(modules[1].get("path"))) in ("", "..") or Path(path).name != path:
        raise ValueError(f"{folder / 'modules.json'} has the path {cut(path)}: a step should be in a folder beside it")
    pooling_file = f"{path}/config.json"
    options = Options(read_json(folder / pooling_file), f"{pooling_file}: ")
    flags = [name for name in OLDER if options.flag(name, False)]
    if options.has("pooling_mode") or not flags:
        mode = options.text("pooling_mode", "mean", POOLINGS)
    else:
        mode = OLDER[flags[0]]
        if len(flags) > 1 or mode not in POOLINGS:
            raise options.wrong(flags[-1], f"one of {', '.join(POOLINGS)} alone is implemented")
    options.finish(("embedding_dimension", "word_embedding_dimension", "include_prompt"))
    return SentenceEmbedding(pooling=POOLINGS[mode], normalize=len(kinds) == 3)


def check_texts(folder: Path) -> None:
    """Raises: ValueError where the folder changes texts before they are tokenized."""
    texts, model = (
        Options(read_json(folder / name), f"{name}: ")
        for name in ("sentence_bert_config.json", "config_sentence_transformers.json")
    )
    texts.only("do_lower_case", False)
    texts.only("transformer_task", "feature-extraction")
    texts.finish(("max_seq_length", "modality_config", "module_output_name", "model_args", "tokenizer_args"))
    model.only("default_prompt_name")
    model.finish(("__version__", "model_type", "prompts", "similarity_fn_name", "truncate_dim"))


def documents(model: ModelConfig, max_length: int) -> dict[str, Any]:
    """Returns the additional files of a sentence encoder; none for another model."""
    embedding = model.sentence_embedding
    if embedding is None:
        return {}
    theirs = {ours: theirs for theirs, ours in POOLINGS.items()}[embedding.pooling]
    steps = ["Transformer", "Pooling", *(["Normalize"] if embedding.normalize else [])]
    paths = ["", *(f"{i}_{step}" for i, step in enumerate(steps) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{step}"}
        for i, (step, path) in enumerate(zip(steps, paths, strict=True))
    ]
    pooling: dict[str, Any] = {name: mode == theirs for name, mode in OLDER.items()}
    return {
        "modules.json": modules,
        "1_Pooling/config.json": {"word_embedding_dimension": model.d_model, **pooling},
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
    }
