"""Layouts of a checkpoint's tensors: files, names, tied tables, number types. Oracle: the folder as the library wrote it.

The names are those that PyTorch (compiled, parallel, sharded models), PEFT, Lightning, sentence-transformers, the library's base
models and `save_model` of safetensors leave. Draws are a function of the seed, which is in the name of the test.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file

from flaxformer_lite.interop import FAMILIES, SYSTEMS, read_folder
from flaxformer_lite.interop.hf.folder import INDEX, WEIGHTS, read_json, read_tensors
from flaxformer_lite.interop.name_map import from_params, unwrapped
from flaxformer_lite.interop.weight_files import read_file
from tests.support.hf_folders import DATA, imported, random_params
from tests.support.quick import quick

LLAMA = (("lm_head.weight", "model.embed_tokens.weight"),)
T5 = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
BART = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
)
HEAD_BIASES = ("lm_head.bias", "lm_head.decoder.bias")
BERT_BIASES = ("cls.predictions.bias", "cls.predictions.decoder.bias")


def table_of(body: str, head: str) -> tuple[str, str]:
    return f"{body}.embeddings.word_embeddings.weight", f"{head}.weight"


BERT_TABLE = ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight")
ROBERTA_TABLE = ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight")
TIED: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("llama/gqa_llama3", "mistral/no_window", "qwen2/window", "qwen3/bias"), LLAMA),
    **dict.fromkeys(("gemma/plain", "gemma2/plain", "gemma3/plain", "hunyuan/plain"), LLAMA),
    **dict.fromkeys(("phi3/part_window", "glm4/whole_tied", "starcoder2/plain", "stablelm/bias_part"), LLAMA),
    **dict.fromkeys(
        ("helium/bias_tied", "ernie4_5/plain", "seed_oss/out_bias", "ministral/mixed", "xglm/plain"), LLAMA
    ),
    **dict.fromkeys(("gpt2/tied", "gpt_neo/plain"), (("lm_head.weight", "transformer.wte.weight"),)),
    "gpt_neox/sequential_tied": (("embed_out.weight", "gpt_neox.embed_in.weight"),),
    "gptj/whole_tied": (("lm_head.weight", "transformer.wte.weight"),),
    "bloom/plain": (("lm_head.weight", "transformer.word_embeddings.weight"),),
    "falcon/plain": (("lm_head.weight", "transformer.word_embeddings.weight"),),
    **dict.fromkeys(("phi/grouped_norms", "cohere/plain", "stablelm/parallel"), LLAMA),
    "opt/plain": (("lm_head.weight", "model.decoder.embed_tokens.weight"),),
    **dict.fromkeys(("glm/plain", "phi3/tokens", "opt/answers"), ()),
    "exaone4/whole_tied": LLAMA,
    "exaone4/tokens": (),
    "smollm3/plain": LLAMA,
    "smollm3/tokens": (),
    "olmo3/two_rotaries": LLAMA,
    "olmo3/classification": (),
    "olmo2/bias_yarn": LLAMA,
    "olmo2/classification": (),
    "olmo/bias_tied": LLAMA,
    "olmo/classification": (),
    "granite/plain": LLAMA,
    "granite/model": (),
    "bert/masked_lm": (BERT_TABLE, ("cls.predictions.bias", "cls.predictions.decoder.bias")),
    "roberta/masked_lm": (ROBERTA_TABLE, ("lm_head.bias", "lm_head.decoder.bias")),
    "modernbert/masked_lm": (("model.embeddings.tok_embeddings.weight", "decoder.weight"),),
    "eurobert/tied_biases": (("model.embed_tokens.weight", "lm_head.weight"),),
    **dict.fromkeys(("modernbert/token_classification", "eurobert/classification", "gemma3/bidirectional"), ()),
    "distilbert/masked_lm": (("distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"),),
    "t5/relu_tied": ((*T5, "lm_head.weight"),),
    "t5_1_1/gated_gelu": (T5,),
    "t5gemma/plain": (("model.decoder.embed_tokens.weight", "lm_head.out_proj.weight"),),
    "bart/plain": (BART,),
    "bart/model": (BART[:3],),
    "marian/shared": (BART,),
    "marian/separate": (BART[2:],),
    **dict.fromkeys(("llama/mha", "llama/model", "gpt2/untied", "gpt2/model", "gpt2/classification", "bert/model"), ()),
    **dict.fromkeys(("m2m_100/nllb", "mbart/plain"), (BART,)),
    **dict.fromkeys(("mt5/plain", "umt5/encoder", "xlm_roberta/classification", "camembert/model"), ()),
    **dict.fromkeys(("bert/regression", "roberta/classification", "distilbert/classification", "bart/untied"), ()),
    "data2vec_text/masked_lm": (table_of("data2vec_text", "lm_head.decoder"), HEAD_BIASES),
    "roberta_prelayernorm/masked_lm": (table_of("roberta_prelayernorm", "lm_head.decoder"), HEAD_BIASES),
    "albert/masked_lm": (table_of("albert", "predictions.decoder"), ("predictions.bias", "predictions.decoder.bias")),
    "mpnet/masked_lm": (table_of("mpnet", "lm_head.decoder"), HEAD_BIASES),
    "jina_v3/masked_lm": (ROBERTA_TABLE, HEAD_BIASES),
    "megatron_bert/pretraining": (BERT_TABLE, BERT_BIASES),
    "deberta_v2/masked_lm": (table_of("deberta", "cls.predictions.decoder"), BERT_BIASES),
    "roformer/masked_lm": (table_of("roformer", "cls.predictions.decoder"), BERT_BIASES),
    "nomic_bert/masked_lm": (table_of("nomic_bert", "cls.predictions.decoder"), BERT_BIASES),
    "gte/masked_lm": (("gte.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),),
    "electra/masked_lm": (table_of("electra", "generator_lm_head"),),
    **dict.fromkeys(("pegasus/plain", "mvp/plain", "blenderbot/plain"), (BART,)),
}
"""Names that the model gives one tensor, by folder."""

STARTS = (
    "",
    "",
    "_orig_mod.",
    "module.",
    "base_model.model.",
    "module._orig_mod.",
    "_orig_mod.module.",
    "model.",
    "0.auto_model.",
)
INNER = ("", "", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


def repeated(label: str) -> dict[str, np.ndarray]:
    """The folder's tensors under their full names, tied ones under all of theirs."""
    found = imported(label).family.full_names(read_tensors(DATA / label))
    for group in TIED[label]:
        found |= dict.fromkeys(group, next(found[name] for name in group if name in found))
    return found


def write(folder: Path, label: str, tensors: dict[str, np.ndarray], parts: int = 1) -> Path:
    """A copy of the folder's config with these tensors in one file, or in several with an index."""
    folder.mkdir()
    (folder / "config.json").write_bytes((DATA / label / "config.json").read_bytes())
    tensors = {name: np.ascontiguousarray(x) for name, x in tensors.items()}
    if parts == 1:
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})
        return folder
    names, files = list(tensors), [f"model-{i + 1:05}-of-{parts:05}.safetensors" for i in range(parts)]
    for i, file in enumerate(files):
        save_file({name: tensors[name] for name in names[i::parts]}, folder / file)
    weight_map = {name: files[i % parts] for i, name in enumerate(names)}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def check_same(folder: Path, label: str, dtype: Any = np.float32) -> None:
    found, plain = read_folder(folder), imported(label)
    assert (found.model, found.architecture) == (plain.model, plain.architecture)
    ours, theirs = flatten_dict(found.params), flatten_dict(plain.params)
    assert ours.keys() == theirs.keys()
    assert all((x == theirs[path].astype(dtype).astype(np.float32)).all() for path, x in ours.items())


def test_every_family_is_drawn() -> None:
    assert {read_json(DATA / label / "config.json")["model_type"] for label in TIED} == {*FAMILIES}


@pytest.mark.parametrize("seed", quick(range(80), lambda seed: seed < 6))
def test_a_drawn_layout_is_read_as_the_plain_folder_or_refused_by_name(seed: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(seed)
    label = list(TIED)[seed % len(TIED)]
    family, tensors = imported(label).family, repeated(label)
    for group in TIED[label]:
        kept = generator.permutation(group)[: generator.integers(1, len(group) + 1)]
        tensors = {name: x for name, x in tensors.items() if name not in group or name in kept}
    damage = generator.choice(["none", "none", "none", "missing", "added"])
    if damage == "missing":
        named = str(generator.choice(sorted(name for name in tensors if re.search(r"\.\d\.", name))))
        del tensors[named]
    elif damage == "added":
        named = "model.surplus.weight"
        tensors[named] = np.zeros(3, np.float32)
    dtype = np.dtype(str(generator.choice(["float32", "float16", "bfloat16"])))
    start, inner = str(generator.choice(STARTS)), str(generator.choice(INNER))
    bare = generator.random() < 0.3 and damage == "none"
    laid_out = {}
    for name, x in tensors.items():
        base = family.prefix if name.startswith(family.prefix) else ""
        name = name.removeprefix(base) if bare else base + re.sub(r"(\.\d\.)", rf"\1{inner}", name.removeprefix(base))
        laid_out[start + name] = x.astype(dtype)
    folder = write(tmp_path / "model", label, laid_out, int(generator.integers(1, 4)))
    print(f"seed {seed}: {label}, {sorted(laid_out)[:3]} …, {dtype}, {damage}")
    if damage == "none":
        check_same(folder, label, dtype)
        return
    with pytest.raises(ValueError) as raised:
        read_folder(folder)
    assert named.removeprefix(family.prefix) in str(raised.value)


@pytest.mark.parametrize("label", ["llama/gqa_llama3", "t5/relu_tied", "bart/plain", "marian/separate", "gpt2/tied"])
def test_a_tied_table_may_stand_under_any_of_its_names(label: str, tmp_path: Path) -> None:
    [group] = TIED[label]
    for name in group:
        others = {*group} - {name}
        tensors = {key: x for key, x in repeated(label).items() if key not in others}
        check_same(write(tmp_path / name, label, tensors), label)


def test_metadata_name_the_tied_tensors_that_were_not_stored(tmp_path: Path) -> None:
    """As `save_model` writes them, also where the config ties nothing."""
    save_file(
        {"lm_head.weight": np.ones((2, 3), np.float32)}, tmp_path / WEIGHTS, {"format": "pt", "embed": "lm_head.weight"}
    )
    found = read_file(tmp_path / WEIGHTS)
    assert found.keys() == {"lm_head.weight", "embed"} and (found["embed"] == 1).all()


REFUSED = [
    (
        r"(.*norm)",
        r"a.\1",
        "5 arrays missing: .*; 5 arrays left over: a.model.*: the weights and the config are of different",
    ),
    (
        r"(.*\.1.*q_proj)",
        r"\1.lora_A",
        "1 array left over: .*merge them into the weights, as by PEFT's merge_and_unload$",
    ),
    (r"model\.norm", r"model.rest", r"model.rest.weight \(20,\): the weights and the config are of different models$"),
]


@pytest.mark.parametrize(("pattern", "new", "complaint"), REFUSED)
def test_names_that_do_not_fit_are_compared(pattern: str, new: str, complaint: str, tmp_path: Path) -> None:
    tensors = {re.sub(f"^{pattern}", new, name): x for name, x in read_tensors(DATA / "llama/mha").items()}
    with pytest.raises(ValueError, match=complaint):
        read_folder(write(tmp_path / "model", "llama/mha", tensors))


def test_what_is_left_out_of_names_is_noted(tmp_path: Path) -> None:
    tensors = {f"module.net.{name}": x for name, x in read_tensors(DATA / "llama/mha").items()}
    found = read_folder(write(tmp_path / "model", "llama/mha", tensors))
    assert found.notes == ["the names of the arrays are read without 'module.' and 'net.'"]
    assert imported("llama/mha").notes == []
    del tensors["module.net.model.norm.weight"]
    with pytest.raises(
        ValueError, match=r"1 array missing: model\.norm\.weight .* \(the names of .* 'module\.' and 'net\.'\)$"
    ):
        read_folder(write(tmp_path / "less", "llama/mha", tensors))


def test_two_models_in_one_file_are_not_one(tmp_path: Path) -> None:
    tensors = {
        f"{side}.{name}": x for side in ("query", "text") for name, x in read_tensors(DATA / "bert/model").items()
    }
    with pytest.raises(ValueError, match=r"39 arrays left over: bert\.query\."):
        read_folder(write(tmp_path / "model", "bert/model", tensors))


def test_weights_of_older_systems_may_be_wrapped_too() -> None:
    """Of a torch.nn.Transformer on several devices."""
    system = SYSTEMS["torch-transformer"]
    config = system.config_for(system.template)
    names = system.name_map(config)
    plain = from_params(random_params(system.model_config({"d_model": 8, "nhead": 2, "dim_feedforward": 5})), names)
    found, note = unwrapped({f"module.{name}": x for name, x in plain.items()}, plain.keys())
    assert found.keys() == plain.keys() and all(found[name] is x for name, x in plain.items())
    assert note == "the names of the arrays are read without 'module.'" and unwrapped(plain, plain.keys()) == (
        plain,
        "",
    )
