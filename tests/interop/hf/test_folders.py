"""Oracle: the files themselves. Folders and runs that cannot be converted are refused by name; commands import and export."""

import dataclasses
import importlib.util
import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.norms import LayerNorm
from flaxformer_lite.core.model.positions import ALiBi, Rotary
from flaxformer_lite.core.objectives import Classification, SentenceEmbeddings, Seq2Seq
from flaxformer_lite.core.reading.heads import DenseLayer, Pooler, SentenceEmbedding
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.interop import FAMILIES, Options
from flaxformer_lite.interop.ctranslate2 import export_run
from flaxformer_lite.interop.differences import check_same
from flaxformer_lite.interop.exporting import export, export_hf, first_fitting, write_hf
from flaxformer_lite.interop.hf import sentence
from flaxformer_lite.interop.hf.card import About
from flaxformer_lite.interop.hf.folder import copy_companions
from flaxformer_lite.interop.hf.import_folder import max_length, read_folder
from flaxformer_lite.interop.hf.options import architecture_of, library_options, num_labels
from flaxformer_lite.interop.hf.sentence import Steps, read_steps, similarity_note
from flaxformer_lite.interop.hf.tokenizer_files import find_tokenizers
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.interop.name_map import placeholders
from flaxformer_lite.interop.weight_files import read_file
from flaxformer_lite.run import load, write_run
from flaxformer_lite.tasks.rank.answers import scores_pairs
from flaxformer_lite.workdir.folder import RunFolder
from tests.support import needs
from tests.support.commands import Command
from tests.support.hf_folders import (
    DATA,
    DECODER,
    TRAINED_HERE,
    copied,
    fixture,
    imported,
    random_params,
    with_options,
    with_tensors,
)
from tests.support.library_words import words
from tests.support.paths import FIXTURES
from tests.support.quick import quick
from tests.support.torch_files import write_torch

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


pytestmark = pytest.mark.usefixtures("one_device")


# Options --------------------------------------------------------------------------------------------------------------


def test_the_class_is_the_first_of_a_list() -> None:
    assert architecture_of(Options({"architectures": ["GPT2LMHeadModel", "x"]})) == "GPT2LMHeadModel"
    assert architecture_of(Options({})) == ""
    with pytest.raises(ValueError, match="architectures is 5: it should be a list"):
        architecture_of(Options({"architectures": 5}))


def test_options_that_change_nothing_are_passed_over(tmp_path: Path) -> None:
    """Among them null for an option that the library reads, and dropout of another rate."""
    harmless = {"torch_dtype": "float16", "use_cache": False, "is_causal": None, "max_length": 20, "do_sample": True}
    model = read_folder(with_options(copied("bert/model", tmp_path), **harmless, hidden_dropout_prob=0.3)).model
    assert model.dropout.residual_rate == 0.3
    assert model == dataclasses.replace(read_folder(DATA / "bert/model").model, dropout=model.dropout)


def test_options_that_no_release_reads_are_noted_once(tmp_path: Path) -> None:
    own = {"pooler_type": "first_token_transform", "a.new-option": {"of": 1}, "_of_it": 0.5, "alpha": 7}
    read = read_folder(with_options(copied("bert/model", tmp_path), **own, another=None))
    assert read.model == read_folder(DATA / "bert/model").model
    assert read.notes == [
        "config.json has _of_it, a.new-option, alpha, pooler_type: transformers reads no such option of a bert model, left out"
    ]


def test_a_scheme_of_positions_that_a_family_never_had_changes_nothing(tmp_path: Path) -> None:
    folder = with_options(copied("modernbert/untied_biases", tmp_path), position_embedding_type="sans_pos")
    (told,) = read_folder(folder).notes
    assert "has position_embedding_type: " in told


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("family", ["every", *FAMILIES])
def test_the_list_of_options_has_all_that_the_installed_library_reads(family: str) -> None:
    """Oracle: its source. If this fails after an update, tests/makers/make_config_words.py makes the list anew."""
    known = library_options()
    library = Path(importlib.util.find_spec("transformers").origin).parent
    assert words(library, family) <= {*known["every"], *known[family]}


def test_a_regression_to_several_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match=r'problem_type is "regression": .*the head has 2'):
        num_labels(Options({"problem_type": "regression", "num_labels": 2}))
    assert num_labels(Options({"problem_type": "regression", "num_labels": 1})) == 1
    assert num_labels(Options({"problem_type": "multi_label_classification", "num_labels": 3})) == 3


def test_a_tokenizer_that_knows_no_limit_limits_nothing(tmp_path: Path) -> None:
    assert max_length(tmp_path, {}, ModelConfig(**DECODER)) is None
    for length, expected in ((10**30, None), (77, 77)):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": length}))
        assert max_length(tmp_path, {}, ModelConfig(**DECODER)) == expected


# Tensors --------------------------------------------------------------------------------------------------------------


def test_a_tied_table_may_stand_under_its_other_name(tmp_path: Path) -> None:
    table = "bert.embeddings.word_embeddings.weight"
    folder = with_tensors(copied("bert/hub_layout", tmp_path), {table: None})
    found = read_folder(folder).params["embedding"]["embedding"]
    assert (found == load_file(DATA / "bert/hub_layout" / WEIGHTS)[table]).all()


# Files ----------------------------------------------------------------------------------------------------------------


def test_a_folder_without_readable_weights_is_refused(tmp_path: Path) -> None:
    folder = copied("bert/model", tmp_path)
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=f"{WEIGHTS} cannot be read as safetensors .*: copy it again"):
        read_folder(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=f"has neither {WEIGHTS} nor {INDEX}"):
        read_folder(folder)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(
        ValueError, match=r"pytorch_model\.bin: it is damaged, or holds no state dict: copy the file again"
    ):
        read_folder(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json cannot be read as JSON"):
        read_folder(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config\.json"):
        read_folder(folder)
    with pytest.raises(ValueError, match="does not exist"):
        read_folder(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["model-00001-of-00002.safetensors"], r"has model-00001-of-00002\.safetensors without .*index\.json.*copy it"),
        (
            ["consolidated.safetensors"],
            r"has consolidated\.safetensors, but no model\.safetensors: give it that name if",
        ),
        (["adapter_model.safetensors"], r"has adapter_model\.safetensors without adapter_config\.json"),
        (
            ["checkpoint-500/model.safetensors"],
            r"weights in checkpoint-500/model\.safetensors: name the folder checkpoint-500",
        ),
        (
            ["training_args.bin", "pytorch_model-00001-of-00002.bin"],
            r"has pytorch_model-00001-of-00002\.bin without pytorch_model\.bin\.index\.json",
        ),
        (["training_args.bin", "optimizer.pt", "rng_state_0.pth"], "has neither model.safetensors nor"),
        (
            ["checkpoint-9/pytorch_model.bin"],
            r"weights in checkpoint-9/pytorch_model\.bin: name the folder checkpoint-9",
        ),
        (["consolidated.00.pth"], r"has consolidated\.00\.pth, but no pytorch_model\.bin: give it that name if"),
        (["adapter_model.bin"], r"has adapter_model\.bin without adapter_config\.json"),
        (["model.ckpt"], r"has model\.ckpt, which is not read"),
        (
            ["tf_model.h5"],
            r"has tf_model\.h5, which is not read, and no model\.safetensors: name the model that it was made of",
        ),
        (["onnx/model.onnx"], r"has onnx/model\.onnx, which is not read, and no model\.safetensors: name the model"),
        (
            ["model.Q4_K_M.gguf"],
            r"by AutoModelForCausalLM\.from_pretrained\(FOLDER, gguf_file=\"model\.Q4_K_M\.gguf\"\)\.save_pretrained\(NEW\) and ",
        ),
    ],
)
def test_the_reason_for_no_weights_names_the_files_that_are_there(files: list[str], said: str, tmp_path: Path) -> None:
    folder = copied("bert/model", tmp_path)
    (folder / WEIGHTS).unlink()
    for file in files:
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(b"x")
    with pytest.raises(ValueError, match=said):
        read_folder(folder)


def test_a_config_in_a_folder_below_is_named(tmp_path: Path) -> None:
    copied("bert/model", tmp_path).rename(tmp_path / "0_Transformer")
    with pytest.raises(
        ValueError, match=r"no config\.json, but 0_Transformer/config\.json exists: name the folder .*0_Tr"
    ):
        read_folder(tmp_path)


@pytest.mark.parametrize("number", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4"])
def test_number_types_of_quantized_weights_are_refused_by_name(number: str, tmp_path: Path) -> None:
    folder = copied("bert/model", tmp_path)
    shape = [16] if number == "F4" else [8]
    entry = {"some.weight": {"dtype": number, "shape": shape, "data_offsets": [0, 8]}}
    header = json.dumps(entry).encode()
    header += b" " * (-len(header) % 8)
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    said = rf"some\.weight has the number type {number}.* quantized .*: they are not read; save the model in bfloat16 or float32"
    with pytest.raises(ValueError, match=said):
        read_folder(folder)


def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path: Path) -> None:
    folder = copied("llama/mqa_sharded", tmp_path)
    _, second = sorted(path.name for path in folder.glob("model-*"))
    index = json.loads((folder / INDEX).read_text())
    (folder / INDEX).write_text(json.dumps(index | {"weight_map": index["weight_map"] | {"stray": second}}))
    with pytest.raises(ValueError, match="does not fit its files, by stray"):
        read_folder(folder)
    (folder / INDEX).write_text(json.dumps(index))
    (folder / second).unlink()
    with pytest.raises(ValueError, match=f"names {second}, which is not in the folder"):
        read_folder(folder)
    (folder / INDEX).write_text("{}")
    with pytest.raises(ValueError, match="has no weight_map"):
        read_folder(folder)


CROSS_ENCODER = {
    "modules.json": [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"}],
    "sentence_bert_config.json": {"transformer_task": "sequence-classification", "module_output_name": "scores"},
    "config_sentence_transformers.json": {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None,
                                          "activation_fn": "torch.nn.modules.activation.Sigmoid"},
}  # fmt: skip
"""The files that sentence-transformers 6.2 writes beside a model that scores pairs."""


def test_a_cross_encoder_comes_with_its_files_and_goes_with_them(tmp_path: Path) -> None:
    """Also with the option that older releases wrote into config.json. A prompt that is always read is refused."""
    folder = with_options(copied("bert/regression", tmp_path), sentence_transformers={"activation_fn": "x"})
    for name, document in CROSS_ENCODER.items():
        (folder / name).write_text(json.dumps(document))
    run = load(import_hf(folder, tmp_path / "run"))
    assert scores_pairs(run.text_model) and run.config.model.sentence_embedding is None
    export_hf(tmp_path / "run", tmp_path / "out")
    for name, document in CROSS_ENCODER.items():
        assert json.loads((tmp_path / "out" / name).read_text()) == document
    program = CROSS_ENCODER["config_sentence_transformers.json"] | {"default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(program))
    with pytest.raises(ValueError, match=r'default_prompt_name is "query"'):
        read_folder(folder)


@pytest.mark.slow
@needs.sentence_transformers
def test_scores_of_pairs_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    """A cross-encoder that it saved, and its own reading of the export: sigmoids of the run's numbers."""
    from sentence_transformers import CrossEncoder
    from transformers import BertTokenizerFast

    folder = copied("bert/regression", tmp_path)
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "mat"])
    )
    BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(str(folder))
    CrossEncoder(str(folder), device="cpu").save_pretrained(str(tmp_path / "theirs"))
    run = load(import_hf(tmp_path / "theirs", tmp_path / "run"))
    export_hf(tmp_path / "run", tmp_path / "out")
    reader = CrossEncoder(str(tmp_path / "out"), device="cpu")
    pairs = [("the cat", "sat"), ("on the mat", "the cat sat"), ("a", "a")]
    wanted = 1 / (1 + np.exp(-run.relevance(pairs).astype(np.float64)))
    np.testing.assert_allclose(reader.predict(pairs), wanted, rtol=1e-5)


def test_a_dense_layer_is_read_from_either_file_and_without_one_named(tmp_path: Path) -> None:
    folder = copied("embeddinggemma/two_dense", tmp_path)
    wanted, dense = read_folder(folder), folder / "3_Dense"
    write_torch(dense / "pytorch_model.bin", load_file(dense / WEIGHTS))
    (dense / WEIGHTS).unlink()
    jax.tree.map(np.testing.assert_array_equal, read_folder(folder).params, wanted.params)
    (dense / "pytorch_model.bin").unlink()
    with pytest.raises(ValueError, match=r"3_Dense has no model\.safetensors .*: copy it there too"):
        read_folder(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_dense", "one_dense"])
def test_dense_layers_and_prompts_come_and_go_with_a_sentence_encoder(name: str, tmp_path: Path) -> None:
    theirs, (arrays, meta) = DATA / "embeddinggemma" / name, fixture(f"embeddinggemma/{name}")
    run = load(import_hf(theirs, tmp_path / "run"))
    assert np.abs(run.embed(meta["sentences"]) - arrays["out/pooled"]).max() < 1e-5
    prompts = {"query": "task", "document": "title"} if name == "two_dense" else {"query": "", "document": ""}
    assert isinstance(run.config.objective, SentenceEmbeddings)
    assert dict(run.config.objective.prompts) == prompts
    for prompt, text in prompts.items():
        if text:
            found = run.embed([text + sentence for sentence in meta["sentences"]])
            assert np.abs(found - arrays[f"out/pooled_{prompt}"]).max() < 1e-5
    export_hf(tmp_path / "run", tmp_path / "out")
    for path in theirs.rglob("*.json"):
        if path.name != "config.json" or path.parent != theirs:
            assert (tmp_path / "out" / path.relative_to(theirs)).read_bytes() == path.read_bytes()
    for path in theirs.rglob(WEIGHTS):
        ours, wanted = read_file(tmp_path / "out" / path.relative_to(theirs)), read_file(path)
        assert ours.keys() == wanted.keys() and all(ours[key].tobytes() == x.tobytes() for key, x in wanted.items())


def test_a_sentence_encoder_with_dense_layers_that_was_made_here_is_written(tmp_path: Path) -> None:
    """Its files are read back as the same steps, prompts and weights; another way to compare vectors stays."""
    dense = (DenseLayer(width=5, activation="relu"), DenseLayer(width=7, bias=False))
    model = dataclasses.replace(
        TRAINED_HERE["bert sentences"], sentence_embedding=SentenceEmbedding(pooling="cls", dense=dense)
    )
    chosen = SentenceEmbeddings(prompts=(("query", "q: "), ("document", "")), default_prompt="query")
    (tmp_path / "files").mkdir()
    program = tmp_path / "files/config_sentence_transformers.json"
    program.write_text(json.dumps({"similarity_fn_name": "dot", "prompts": {"old": "x"}}))
    params, config = (
        random_params(model),
        Config(
            model=model, objective=chosen, data=DataConfig(tokenizer=None, max_source_length=9, max_target_length=9)
        ),
    )
    write_hf(config, params, {}, tmp_path / "files", None, tmp_path / "out", About("a", 1, []))
    again = read_folder(tmp_path / "out")
    assert again.model.sentence_embedding == model.sentence_embedding
    pairs = zip(jax.tree.leaves(again.params), jax.tree.leaves(params), strict=True)
    assert all(x.tobytes() == y.tobytes() for x, y in pairs)
    steps = read_steps(tmp_path / "out")
    assert steps.dense == ("2_Dense", "3_Dense") and steps.default_prompt == "query"
    assert dict(steps.prompts) == dict(chosen.prompts)
    assert json.loads((tmp_path / "out/config_sentence_transformers.json").read_text())["similarity_fn_name"] == "dot"
    assert again.notes == []  # of vectors of length 1 the order is the same
    changed = dataclasses.replace(model.sentence_embedding, normalize=False)
    assert "compares vectors by 'dot' (similarity_fn_name)" in similarity_note(tmp_path / "out", changed)
    wrong = SentenceEmbedding(dense=(DenseLayer(width=5, activation="gelu_tanh"),))
    with pytest.raises(
        ValueError, match=r"dense has the activation gelu_tanh: .* one of linear, tanh, relu, gelu, silu"
    ):
        sentence.documents(model, Steps(wrong, ("2_Dense",)), 9, tmp_path / "files")


@pytest.mark.parametrize("name", ["vocab.txt", "1_Pooling/config.json", "1_Pooling"])
def test_a_link_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    """Its content would be in the run. The cache of the hub has links to files of the same model."""
    folder = copied("minilm/mean", tmp_path)
    cached = Path(shutil.copytree(folder, tmp_path / "models--a--b/snapshots/0"))
    for place in (folder, cached):
        original = tmp_path / "models--a--b/blobs" / name
        original.parent.mkdir(parents=True, exist_ok=True)
        if (place / name).exists():
            os.replace(place / name, original)
        (place / name).symlink_to(original)
        if place == folder:
            for read in (read_folder, lambda place: copy_companions(place, tmp_path / "copy")):
                with pytest.raises(ValueError, match=r"is a link to .*, outside of .*: put a copy of the file there"):
                    read(place)
            shutil.rmtree(original, ignore_errors=True)
    (tmp_path / "current").symlink_to(cached)
    for place in (cached, tmp_path / "current"):
        assert read_folder(place).model.sentence_embedding is not None


def test_files_of_a_config_that_is_not_there_come_with_their_remedy(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    for place, what in ((tmp_path, "has no config.json"), (tmp_path / "a.gguf", "is not a folder")):
        with pytest.raises(ValueError, match=rf"{what}, and a\.gguf is not read: transformers reads it; save what"):
            read_folder(place)


def test_links_are_followed_where_the_user_allows_it(tmp_path: Path) -> None:
    """The run is the one of the folder without links."""
    folder = copied("minilm/mean", tmp_path)
    plain = load(import_hf(folder, tmp_path / "plain"))
    for name in (WEIGHTS, "tokenizer.json"):
        os.replace(folder / name, tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(ValueError, match=r"put a copy of the file there, or allow links by --follow-links"):
        import_hf(folder, tmp_path / "refused")
    linked = load(import_hf(folder, tmp_path / "linked", follow_links=True))
    assert jax.tree.all(jax.tree.map(np.array_equal, linked.params, plain.params))
    kept = tmp_path / "linked/huggingface/tokenizer.json"
    assert not kept.is_symlink() and kept.read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_a_link_to_itself_or_out_of_a_folder_called_snapshots_is_no_way_out(tmp_path: Path) -> None:
    """Only the blobs beside `snapshots` are the hub's."""
    folder = Path(shutil.copytree(DATA / "minilm/mean", tmp_path / "snapshots/0"))
    (folder / "vocab.txt").symlink_to("vocab.txt")
    assert "vocab.txt" not in copy_companions(folder, tmp_path / "copy")
    (tmp_path / "secret").touch()
    (folder / "chat_template.jinja").symlink_to("../../secret")
    with pytest.raises(ValueError, match=r"chat_template.jinja is a link to .*secret, outside of .*snapshots/0"):
        copy_companions(folder, tmp_path / "copy")


# Commands -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_commands_import_and_export_a_sentence_encoder(tmp_path: Path, command: Command) -> None:
    """With its tokenizer, which makes of the sentences what the library's did, and every file as it came."""
    theirs, run, out = DATA / "minilm/hub_layout", tmp_path / "run", tmp_path / "out"
    command("import", "hf", theirs, run)
    command("export", "hf", run, out)
    for name in ("tokenizer.json", "tokenizer_config.json", "modules.json", "1_Pooling/config.json"):
        assert (out / name).read_bytes() == (theirs / name).read_bytes()
    assert (out / WEIGHTS).read_bytes() == (theirs / WEIGHTS).read_bytes()
    loaded, (arrays, meta) = load(run), fixture("minilm/hub_layout")
    assert loaded.config.data.max_source_length == 17
    tokenizer = loaded.required_tokenizers.source
    rows = [tokenizer.with_special_tokens(tokenizer.encode(sentence)).tokens for sentence in meta["sentences"]]
    assert rows == [
        row[mask == 1].tolist() for row, mask in zip(arrays["in/input_ids"], arrays["in/attention_mask"], strict=True)
    ]
    assert np.abs(loaded.embed(meta["sentences"]) - arrays["out/pooled"]).max() < 1e-5
    said = command("import", "hf", DATA / "bert/hub_layout", tmp_path / "bert").err
    assert "skipped bert.embeddings.position_ids: a constant of this architecture" in said and "no tokenizer" in said


@pytest.mark.slow
@pytest.mark.parametrize("label", ["qwen2/plain", "qwen3/plain"])
def test_a_folder_without_special_ids_is_imported_and_used(label: str, tmp_path: Path, command: Command) -> None:
    """As the library writes a model of its plain configuration: ids that are null, and no settings of generation."""
    theirs, out = (
        with_options(copied(label, tmp_path), bos_token_id=None, eos_token_id=None, pad_token_id=None),
        tmp_path / "out",
    )
    (theirs / "generation_config.json").write_text('{"_from_model_config": true, "transformers_version": "5.23.0"}')
    command("import", "hf", theirs, tmp_path / "run")
    run, (arrays, _) = load(tmp_path / "run"), fixture(label)
    inputs = {name.removeprefix("in/"): x for name, x in arrays.items() if name.startswith("in/")}
    assert np.abs(run.forward(**inputs).logits - arrays["out/logits"]).max() < 1e-4
    assert (run.config.decode.bos_id, run.config.decode.eos_ids) == (None, ())
    [[answer]] = run.completions_of_ids([[5, 7]], max_new_tokens=4)
    assert len(answer.tokens) == 4
    with pytest.raises(ValueError, match="prompt 0 has no tokens"):
        run.completions_of_ids([[]])
    with pytest.raises(ValueError, match=r"decode\.eos_ids is \(\), but CTranslate2 needs a token that ends"):
        export_run(run.config, run.params, None, out)
    ended = dataclasses.replace(run.config.decode, eos_ids=(2,))
    with pytest.raises(ValueError, match=r"decode\.bos_id is None, but answers of this model start from it: set it"):
        export_run(dataclasses.replace(run.config, decode=ended), run.params, None, out)
    command("export", "hf", tmp_path / "run", out)
    assert read_folder(out).decode == run.config.decode


def test_commands_refuse_contradicting_arguments(tmp_path: Path, command: Command) -> None:
    folder, run, out = DATA / "distilbert/model", tmp_path / "run", tmp_path / "o"
    command("import", "hf", folder, run)
    for given, said in (
        (("import", "hf", folder, tmp_path / "x", "--config", "c.json"), "leave it out"),
        (("import", "paddle", "w.npz", tmp_path / "x"), "--config is missing"),
        (("import", "hf", DATA / "bert/causal", tmp_path / "x"), "bert/causal: config.json: is_decoder is true"),
        (("import", "hf", folder, run), "exists already"),
        (("export", "hf", run, tmp_path), "exists already"),
        (("export", "hf", run, out, "--family", "bert"), "no model like this one: model.num_token_types"),
        (("export", "hf", run, out, "--family", "elmo"), "family is elmo: choose one of"),
        (("export", "paddle", run, "o", "--family", "bert"), "--family is bert, but paddle has no such option"),
        (("export", "hf", run, out, "--weights-dtype", "int8"), "--weights-dtype is int8, but hf has no such option"),
    ):
        assert said in command.mistake(*given)
    assert not out.exists() and not list(tmp_path.glob(".*unfinished"))


# Models trained here --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", quick(TRAINED_HERE, "llama".__eq__))
def test_a_model_that_was_trained_here_becomes_a_folder(name: str, tmp_path: Path, command: Command) -> None:
    """The first family that can express the model; the folder is read as the same model, with the names of its classes."""
    model = TRAINED_HERE[name]
    classes = model.head is None and model.pooler is not None
    config = Config(
        model=model,
        objective=Classification(classes=("yes", "no", "perhaps")) if classes else Seq2Seq(),
        data=DataConfig(tokenizer=None, max_source_length=19, max_target_length=19),
    )
    params = random_params(model)
    write_run(RunFolder(tmp_path / "run"), config, 5, params, "a test")
    command("export", "hf", tmp_path / "run", tmp_path / "out")
    found = read_folder(tmp_path / "out")
    assert found.family.model_type == name.partition(" ")[0]
    check_same(found.model, model)
    assert flatten_dict(found.params).keys() == flatten_dict(params).keys()
    assert all((x == flatten_dict(params)[path]).all() for path, x in flatten_dict(found.params).items())
    if classes:
        assert found.config["id2label"] == {"0": "yes", "1": "no", "2": "perhaps"}


def test_the_nearest_family_is_that_of_the_stacks() -> None:
    """Oracle: ModernBERT's own stacks under a head of another family: the head's fields are the difference."""
    pooler = Pooler(token="each", activation=None, num_classes=5)
    small: Any = {"vocab_size": 29, "d_model": 12, "num_heads": 3, "d_ff": 17, "num_encoder_layers": 2}
    model = dataclasses.replace(FAMILIES["modernbert"].template, **small, head=None, pooler=pooler)
    families = {name: FAMILIES[name] for name in ("bert", "modernbert", "eurobert")}
    with pytest.raises(ValueError, match=r"nearest is modernbert, but model\.pooler\.activation is None, not 'gelu'"):
        first_fitting(model, placeholders(model), families)
    own = dataclasses.replace(pooler, activation="gelu", dense_bias=False, norm=True)
    model = dataclasses.replace(model, pooler=own)
    assert first_fitting(model, placeholders(model), families).config["model_type"] == "modernbert"


@pytest.mark.slow
def test_a_model_of_no_family_is_refused_with_the_reason_of_the_nearest() -> None:
    """Oracle: made from a family's own model by hand, so that this family is the nearest and these settings are the difference.

    Of few families: with StarCoder2's a model without a table of positions is nearer to that family than to GPT-2.
    """
    families = {name: FAMILIES[name] for name in ("gpt2", "llama", "bert")}
    bert, llama = TRAINED_HERE["bert classes"], TRAINED_HERE["llama"]
    for model, nearest, reason in (
        (ModelConfig(**DECODER, positions=ALiBi()), "gpt2", r"model\.positions is ALiBi, not Learned"),
        (dataclasses.replace(llama, activation="relu"), "llama", r"model\.activation is relu, not one of reglu, geglu"),
        (dataclasses.replace(bert, scale_embeddings=True), "bert", r"model\.scale_embeddings is True, not False"),
    ):
        message = rf"^no Hugging Face family has a model like this one; the nearest is {nearest}, but {reason}"
        with pytest.raises(ValueError, match=message) as raised:
            first_fitting(model, random_params(model), families)
        assert "docs/systems/huggingface.md" in str(raised.value) and len(str(raised.value)) < 450
    model = dataclasses.replace(TRAINED_HERE["bert"], scale_embeddings=True)
    with pytest.raises(ValueError, match=r"model.scale_embeddings is True, not False"):
        export(model, random_params(model), FAMILIES["bert"])


OLDER_NAMES = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "layer_norm_eps": "layer_norm_epsilon",
    "rope_theta": "rotary_emb_base",
    "hidden_dropout_prob": "resid_pdrop",
}


def test_nomic_berts_options_have_their_older_names_too(tmp_path: Path) -> None:
    """A file that came with code of its own; a newer name comes before the older one."""
    plain = imported("nomic_bert/model")
    config = plain.config | {"rope_theta": 77.0, "layer_norm_eps": 0.03, "hidden_dropout_prob": 0.25}
    older = {name: config[new] for new, name in OLDER_NAMES.items()} | {"embd_pdrop": 0.25}
    left_out = {"rope_parameters", "head_dim", "max_position_embeddings", *OLDER_NAMES}
    kept = {name: x for name, x in config.items() if name not in left_out}
    folder = copied("nomic_bert/model", tmp_path)
    (folder / "config.json").write_text(json.dumps(kept | older | {"auto_map": {"AutoModel": "x"}, "n_positions": 64}))
    model = read_folder(folder).model
    assert model.positions == Rotary(base=77.0) and model.norm == LayerNorm(epsilon=0.03)
    assert model.dropout.residual_rate == model.dropout.embedding_rate == 0.25
    check_same(model, dataclasses.replace(plain.model, positions=model.positions, norm=model.norm))
    with_options(folder, rope_parameters={"rope_type": "default", "rope_theta": 50.0}, layer_norm_eps=0.01)
    model = read_folder(folder).model
    assert model.positions == Rotary(base=50.0) and model.norm == LayerNorm(epsilon=0.01)


def test_a_tokenizer_that_no_file_holds_is_not_read(tmp_path: Path) -> None:
    """The library's class of RoFormer splits texts by jieba, whatever `vocab.txt` and `tokenizer.json` say."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    found = find_tokenizers(tmp_path, {"model_type": "roformer"})
    assert found.tokenizers is None and found.note.startswith("a RoFormerTokenizer is not read: it splits texts by")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    assert find_tokenizers(tmp_path, {"model_type": "roformer"}).tokenizers is not None


def test_pegasuss_ids_are_not_those_of_its_sentencepiece_model(tmp_path: Path) -> None:
    """The library's class puts 103 tokens before the pieces; its `tokenizer.json` has them."""
    shutil.copyfile(FIXTURES / "tokenizer_folders/t5.model", tmp_path / "spiece.model")
    assert find_tokenizers(tmp_path, {"model_type": "bert"}).tokenizers is not None
    found = find_tokenizers(tmp_path, {"model_type": "pegasus"})
    assert found.tokenizers is None
    assert found.note.startswith(
        "the folder has spiece.model, and a PegasusTokenizer is not read from that: save a tokeniz"
    )
