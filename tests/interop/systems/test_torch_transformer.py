"""Oracle: `torch.nn.Transformer` itself, as it was saved and run (tests/fixtures/hf/pytorch_transformer), through the commands."""

import json
from pathlib import Path
from typing import Any

import chex
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite.core.model import PRE_NORM, ModelConfig, RMSNorm, Transformer
from flaxformer_lite.core.predictions.forward import forward
from flaxformer_lite.core.search.settings import DecodeConfig
from flaxformer_lite.interop.name_map import from_params, to_params
from flaxformer_lite.interop.systems.torch_transformer import SYSTEM
from tests.support.commands import Command
from tests.support.paths import FIXTURES
from tests.support.quick import quick
from tests.support.torch_files import called, write_archive, write_torch

DATA = FIXTURES / "hf/pytorch_transformer"
VARIANTS = sorted(folder.name for folder in DATA.iterdir())


pytestmark = pytest.mark.usefixtures("one_device")


def fixture(name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The arguments of the constructor, and the inputs and outputs."""
    with np.load(DATA / name / "io.npz", allow_pickle=False) as file:
        return json.loads(str(file["meta"]))["options"], {key: file[key] for key in file.files if key != "meta"}


@pytest.mark.parametrize("name", quick(VARIANTS, "pre_gelu".__eq__))
def test_a_state_dict_gives_the_same_outputs_and_is_exported_equal(name: str) -> None:
    """Padding masks included; PyTorch's causal mask is what a decoder here always has."""
    options, io = fixture(name)
    weights = load_file(DATA / name / "model.safetensors")
    names, model = SYSTEM.name_map(options), SYSTEM.model_config(options)
    params = to_params(weights, names, model)
    assert (io["in/tgt_mask"] == ~np.tri(io["in/tgt"].shape[1], dtype=bool)).all()
    source_mask, target_mask = ~io["in/src_key_padding_mask"], ~io["in/tgt_key_padding_mask"]
    given = {"inputs_embeds": io["in/src"], "attention_mask": source_mask}
    given |= {"decoder_inputs_embeds": io["in/tgt"], "decoder_attention_mask": target_mask}
    said = forward(Transformer(model), {"params": params}, DecodeConfig(), **given)
    assert said.logits is None and said.encoder_last_hidden_state is not None
    assert np.abs(said.last_hidden_state - io["out/last_hidden_state"])[target_mask].max() < 1e-4
    assert np.abs(said.encoder_last_hidden_state - io["out/encoder_last_hidden_state"])[source_mask].max() < 1e-4
    back = from_params(params, names)
    assert back.keys() == weights.keys() and all((back[key] == weights[key]).all() for key in weights)


def test_the_commands_import_and_export_it(tmp_path: Path, command: Command) -> None:
    weights, config, run = DATA / "pre_gelu/model.safetensors", tmp_path / "arguments.json", tmp_path / "run"
    config.write_text(json.dumps(fixture("pre_gelu")[0]))
    command("import", "torch-transformer", weights, run, "--config", config)
    command("export", "torch-transformer", run, tmp_path / "back.safetensors")
    there, back = load_file(weights), load_file(tmp_path / "back.safetensors")
    assert there.keys() == back.keys()
    assert all(there[key].tobytes() == back[key].tobytes() and there[key].shape == back[key].shape for key in there)


@pytest.mark.parametrize("name", VARIANTS)
def test_arguments_translate_back(name: str) -> None:
    options, _ = fixture(name)
    model = SYSTEM.model_config(options)
    assert SYSTEM.config_for(model) == options


def test_absent_arguments_are_the_constructors_defaults() -> None:
    """By hand from its signature: six layers of width 512, post-norm, relu, epsilon 1e-5."""
    model = SYSTEM.model_config({})
    assert (model.d_model, model.num_heads, model.d_ff) == (512, 8, 2048)
    assert model.num_encoder_layers == model.num_decoder_layers == 6
    assert (model.activation, model.norm.epsilon, model.residual.post) == ("relu", 1e-5, "dan")
    assert SYSTEM.model_config({"batch_first": False, "device": None, "custom_encoder": None}) == model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"custom_encoder": "mine"},
            r"^the config's custom_encoder is \"mine\": this option is not implemented here, and the model may differ by it\Z",
        ),
        ({"activation": "silu"}, r"^the config's activation is \"silu\": it should be one of relu, gelu\Z"),
        ({"nhead": "8"}, r"^the config's nhead is \"8\": it should be a whole number\Z"),
        ({"num_encoder_layers": 0}, r"^the config's num_encoder_layers is 0: a stack needs at least 1 layer here\Z"),
        ({"nhead": 7}, r"model\.d_model 512 is not divisible by model\.num_heads 7"),
    ],
)
def test_arguments_that_do_not_fit_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SYSTEM.model_config(options)


def test_arrays_that_do_not_fit_are_named(tmp_path: Path, command: Command) -> None:
    options, _ = fixture("post_relu")
    weights = load_file(DATA / "post_relu/model.safetensors")
    names, model = SYSTEM.name_map(options), SYSTEM.model_config(options)
    fused = "decoder.layers.1.multihead_attn.in_proj_weight"
    with pytest.raises(ValueError, match=rf"of another shape: {fused} \(\(44, 15\), the config needs \(45, 15\)\)"):
        to_params(weights | {fused: weights[fused][1:]}, names, model)
    with pytest.raises(ValueError, match=rf"1 array missing: {fused} \(45, 15\)"):
        to_params({key: x for key, x in weights.items() if key != fused}, names, model)
    config = tmp_path / "arguments.json"
    config.write_text(json.dumps(options))
    save_file({"embedding.weight": np.zeros((3, 15), np.float32), **weights}, tmp_path / "more.safetensors")
    words = ("import", "torch-transformer", tmp_path / "more.safetensors", tmp_path / "run", "--config", config)
    command.mistake(*words)
    assert not (tmp_path / "run").exists()


def test_a_state_dict_of_torch_save_is_read_and_no_code_of_a_file_is_run(tmp_path: Path, command: Command) -> None:
    config, weights = tmp_path / "arguments.json", load_file(DATA / "pre_gelu/model.safetensors")
    read = ("import", "torch-transformer", tmp_path / "model.pt")
    config.write_text(json.dumps(fixture("pre_gelu")[0]))
    write_torch(tmp_path / "model.pt", weights)
    command(*read, tmp_path / "run", "--config", config)
    command("export", "torch-transformer", tmp_path / "run", tmp_path / "back.safetensors")
    chex.assert_trees_all_equal(load_file(tmp_path / "back.safetensors"), weights)
    write_archive(tmp_path / "model.pt", called("os.mkdir", str(tmp_path / "made")), {})
    message = command.mistake(*read, tmp_path / "2", "--config", config)
    assert "asks for os.mkdir, and no code of a file is run" in message
    assert not (tmp_path / "made").exists() and not (tmp_path / "2").exists()


def test_models_of_another_kind_are_refused() -> None:
    model = SYSTEM.model_config({})
    with pytest.raises(ValueError, match=r"torch-transformer has no model like this one: model\.norm is RMSNorm"):
        SYSTEM.config_for(ModelConfig(**{**vars(model), "norm": RMSNorm(epsilon=1e-5)}))
    with pytest.raises(ValueError, match=r"model\.vocab_size is 9"):
        SYSTEM.config_for(ModelConfig(vocab_size=9, residual=PRE_NORM))
