"""Oracle: the library's own model of texts and pictures, asked with a text alone; its published files, by their options."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flaxformer_lite.core.model.transformer import Transformer
from flaxformer_lite.core.predictions.forward import forward
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.interop.exporting import export_hf
from flaxformer_lite.interop.hf.import_folder import read_folder
from flaxformer_lite.interop.hf.multimodal import text_config, text_tensors
from flaxformer_lite.interop.importing import import_hf
from flaxformer_lite.run import load
from tests.support import needs
from tests.support.limits import assert_close

PUBLISHED = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
"""`config.json` of google/gemma-3-4b-it, whose text half leaves out what is usual."""
TEXT = {
    "vocab_size": 41,
    "hidden_size": 18,
    "intermediate_size": 23,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 6,
    "query_pre_attn_scalar": 10,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
    },
    "final_logit_softcapping": 3.0,
    "attention_bias": True,
}
VISION = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 8,
    "patch_size": 4,
}
IDS = np.array([[5, 9, 13, 2, 7, 30, 31, 8, 6, 11, 12]])


def test_the_published_options_are_those_of_the_text_half() -> None:
    half = text_config(PUBLISHED)
    assert half["model_type"] == "gemma3_text" and half["architectures"] == ["Gemma3ForCausalLM"]
    assert (half["vocab_size"], half["num_attention_heads"], half["hidden_size"]) == (262208, 8, 2560)
    assert half["eos_token_id"] == [1, 106]
    assert not half.keys() & {"vision_config", "text_config", "mm_tokens_per_image", "image_token_index"}
    other = {"model_type": "llama", "text_config": {}}
    assert text_config(other) == other
    assert text_config(PUBLISHED | {"unheard_of": 1})["unheard_of"] == 1  # refused by name where options are read


@pytest.mark.parametrize("start", ["language_model.model.", "model.language_model."])
def test_the_tensors_of_pictures_are_left_out_by_name(start: str) -> None:
    names = (f"{start}norm.weight", "vision_tower.a.weight", "vision_tower.b.weight", "multi_modal_projector.c.weight")
    tensors, note = text_tensors({name: np.zeros(1) for name in names})
    assert [*tensors] == ["model.norm.weight"]
    for part in ("vision_tower (2 tensors", "multi_modal_projector (1 tensor: multi_modal_projector.c.weight)"):
        assert part in note
    assert text_tensors(tensors) == (tensors, "")


def save(folder: Path, seed: int, **options: Any) -> Any:
    import torch
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    torch.manual_seed(seed)
    config = Gemma3Config(
        text_config=TEXT | options, vision_config=VISION, mm_tokens_per_image=4, image_token_index=40, **options
    )
    model = Gemma3ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    for x in model.parameters():
        x.data = torch.randn_like(x) * 0.3
    model.save_pretrained(folder)
    return model


@needs.transformers
@pytest.mark.parametrize(
    ("start", "tied"), [("", True), pytest.param("model.language_model.", False, marks=pytest.mark.slow)]
)
def test_the_text_half_answers_as_the_whole_model(tmp_path: Path, start: str, tied: bool) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = save(tmp_path / "whole", seed=3, tie_word_embeddings=tied)
    file = tmp_path / "whole" / "model.safetensors"
    if start:  # as some releases named them
        names = {"language_model.model.": start, "language_model.lm_head.": "lm_head."}
        tensors = {re.sub("|".join(names), lambda m: names[m[0]], name): x for name, x in load_file(file).items()}
        save_file(tensors, file, {"format": "pt"})
    found = read_folder(tmp_path / "whole")
    with torch.no_grad():
        expected = model(input_ids=torch.tensor(IDS)).logits.numpy()
        greedy = model.generate(torch.tensor(IDS), max_new_tokens=8, do_sample=False)[0, IDS.shape[1] :].tolist()
    logits = forward(Transformer(found.model), {"params": found.params}, found.decode, input_ids=IDS).logits
    assert_close(logits, expected)

    run = load(import_hf(tmp_path / "whole", tmp_path / "run"))
    assert isinstance(run.config.decode, DecodeConfig)
    (answer,) = run.completions_of_ids(IDS.tolist(), max_new_tokens=8)
    ends = [i for i, token in enumerate(greedy) if token in run.config.decode.eos_ids]
    assert answer[0].tokens == greedy[: ends[0] if ends else None]

    export_hf(tmp_path / "run", tmp_path / "again")
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["model_type"] == "gemma3_text" and config["architectures"] == ["Gemma3ForCausalLM"]
    half, info = AutoModelForCausalLM.from_pretrained(
        tmp_path / "again", output_loading_info=True, attn_implementation="eager"
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        assert_close(half(torch.tensor(IDS)).logits.numpy(), expected)
    whole, text = load_file(file), load_file(tmp_path / "again" / "model.safetensors")
    kept, _ = text_tensors(whole)
    assert text.keys() == kept.keys() and all(text[name].tobytes() == kept[name].tobytes() for name in text)


@needs.transformers
def test_what_the_library_reads_and_no_text_half_has_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "whole", seed=4)
    file = tmp_path / "whole" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"per_layer_config": {"0": {}}}))
    with pytest.raises(ValueError, match="per_layer_config is "):
        read_folder(tmp_path / "whole")
    file.write_text(json.dumps(config | {"text_config": config["text_config"] | {"is_causal": True}}))
    with pytest.raises(ValueError, match="is_causal is true"):
        read_folder(tmp_path / "whole")
