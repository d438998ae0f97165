"""Makes the folders in tests/fixtures/peft: random adapters as PEFT saves them on models of tests/fixtures/hf, and their answers.

It imports only the other side (torch, transformers, peft), never flaxformer_lite. By hand, in the folder of the repository:

    python tests/makers/make_peft_fixtures.py --out tests/fixtures/peft

`io.npz` has the logits for the inputs of the base's own `io.npz`. Nothing is downloaded.
"""

import argparse
import os
from pathlib import Path

from tests.support.paths import FIXTURES

os.environ.update(HF_HUB_OFFLINE="1")

import numpy as np
import peft
import torch
import transformers

BASES = {"llama": "llama/gqa_llama3", "t5": "t5/relu_tied", "bert": "bert/masked_lm", "gpt2": "gpt2/tied"}
ATTENTION = ["q_proj", "v_proj"]
ADAPTERS = {
    "llama_plain": ("llama", {"r": 4, "lora_alpha": 8, "target_modules": ATTENTION}),
    "llama_patterns": (
        "llama",
        {
            "r": 3,
            "lora_alpha": 5,
            "target_modules": "all-linear",
            "rank_pattern": {"layers.1.self_attn.q_proj": 5, "up_proj": 2},
            "alpha_pattern": {r"layers\.0\..*k_proj": 7.5, "up_proj": 3},
        },
    ),
    "llama_one_layer": (
        "llama",
        {"r": 4, "lora_alpha": 3, "target_modules": ["down_proj", "o_proj"], "layers_to_transform": [1]},
    ),
    "t5_rslora": ("t5", {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": ["q", "v", "wo"]}),
    "bert_default": (
        "bert",
        {"r": 4, "lora_alpha": 16, "lora_dropout": 0.1, "target_modules": ["query", "value", "dense"]},
    ),
    "gpt2_fused": ("gpt2", {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True}),
}
"""By name the base, and the arguments of `LoraConfig`."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    for seed, (name, (base, options)) in enumerate(ADAPTERS.items()):
        torch.manual_seed(seed)
        folder = FIXTURES / "hf" / BASES[base]
        config = transformers.AutoConfig.from_pretrained(folder)
        model = getattr(transformers, config.architectures[0]).from_pretrained(folder).float()
        adapted = peft.get_peft_model(model, peft.LoraConfig(**options)).eval()
        with torch.no_grad():
            for path, x in adapted.named_parameters():
                if "lora_" in path:
                    x.normal_(std=0.2)
        with np.load(folder / "io.npz") as file:
            inputs = {key.removeprefix("in/"): torch.tensor(file[key]) for key in file.files if key.startswith("in/")}
        with torch.no_grad():
            logits = adapted(**inputs).logits.numpy()
        adapted.peft_config["default"].base_model_name_or_path = f"tests/fixtures/hf/{BASES[base]}"
        adapted.save_pretrained(out / name)
        (out / name / "README.md").unlink()
        np.savez(out / name / "io.npz", logits=logits)
        print(name, logits.shape)


if __name__ == "__main__":
    main()
