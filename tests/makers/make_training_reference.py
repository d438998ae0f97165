"""Makes tests/fixtures/training_reference.npz: 30 steps of AdamW by PyTorch on Hugging Face's models, whole or by PEFT's adapters.

It imports only the other side (torch, transformers, peft), never flaxformer_lite. By hand:

    python tests/makers/make_training_reference.py tests/fixtures/training_reference.npz

The batches are drawn from a seed and kept: rows of several lengths, and of each row the first tokens as a prompt without loss.
Numbers are in float64. There is no dropout and no clipping. Matrices decay, vectors do not. Keys: MODEL/input_ids,
/attention_mask, /labels (-100: no loss), /loss and /gradient_norm, each with the axis of the 30 steps.
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1")

import numpy as np
import peft
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from tests.support.paths import FIXTURES, ROOT

MODELS = (
    *("hf/llama/gqa_llama3", "hf/gpt2/untied", "hf/bert/masked_lm", "hf/bart/plain", "hf/marian/shared"),
    *("hf/t5_1_1/gated_gelu", "peft/llama_plain", "peft/bert_default", "peft/t5_rslora"),
    *("hf/mpnet/masked_lm", "hf/gpt_neox/plain", "hf/olmo2/plain", "hf/albert/masked_lm", "hf/deberta_v2/masked_lm"),
    "hf/granite/plain",
)
"""Folders of tests/fixtures: whole models, and adapters, which alone train then."""
CLASSES = {
    **dict.fromkeys(("llama", "gpt2", "gpt_neox", "olmo2", "granite"), AutoModelForCausalLM),
    **dict.fromkeys(("bert", "mpnet", "albert", "deberta-v2"), AutoModelForMaskedLM),
}
STEPS, ROWS, LENGTH = 30, 4, 11


def draw(model: torch.nn.Module, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns one batch. A decoder's labels are its own tokens after the prompt; those of an encoder are every third token."""
    pad = model.config.pad_token_id or 0
    ids = [i for i in range(4, 40) if i != pad]
    lengths, prompts = rng.integers(5, LENGTH + 1, ROWS), rng.integers(1, 4, ROWS)
    mask = np.arange(LENGTH) < lengths[:, None]
    tokens = np.where(mask, rng.choice(ids, (ROWS, LENGTH)), pad)
    if model.config.is_encoder_decoder:
        counted = np.arange(LENGTH) < rng.integers(3, LENGTH + 1, ROWS)[:, None]
        labels = np.where(counted, rng.choice(ids, (ROWS, LENGTH)), -100)
    elif CLASSES.get(model.config.model_type) is AutoModelForMaskedLM:
        labels = np.where(mask & (np.arange(LENGTH) % 3 == 1), rng.choice(ids, (ROWS, LENGTH)), -100)
    else:
        labels = np.where(mask & (np.arange(LENGTH) >= prompts[:, None]), tokens, -100)
    return {"input_ids": tokens, "attention_mask": mask.astype(np.int64), "labels": labels}


def trained(name: str, seed: int) -> dict[str, np.ndarray]:
    """Returns the batches, losses and gradient norms of a model."""
    folder, adapters = FIXTURES / name, None
    if (folder / "adapter_config.json").is_file():
        base = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
        folder, adapters = ROOT / base, folder
    model_type = json.loads((folder / "config.json").read_text())["model_type"]
    model = CLASSES.get(model_type, AutoModelForSeq2SeqLM).from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager"
    )
    if adapters is not None:
        model = peft.PeftModel.from_pretrained(model, adapters, is_trainable=True).double()
    model.eval()  # no dropout
    if model_type == "marian":  # its class freezes the sinusoids; from_pretrained of transformers 5 forgets that
        for side in (model.model.encoder, model.model.decoder):
            side.embed_positions.weight.requires_grad = False
    matrices = [x for x in model.parameters() if x.ndim > 1 and x.requires_grad]
    vectors = [x for x in model.parameters() if x.ndim <= 1 and x.requires_grad]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99), eps=1e-8)
    rng, rows = np.random.default_rng(seed), []
    for _ in range(STEPS):
        batch = draw(model, rng)
        optimizer.zero_grad()
        loss = model(**{key: torch.from_numpy(x) for key, x in batch.items()}).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
        optimizer.step()
        rows.append(batch | {"loss": np.float64(loss.item()), "gradient_norm": np.float64(norm.item())})
    return {f"{name}/{key}": np.stack([row[key] for row in rows]) for key in rows[0]}


if __name__ == "__main__":
    arrays = [trained(name, seed) for seed, name in enumerate(MODELS)]
    np.savez_compressed(Path(sys.argv[1]), **{key: x for found in arrays for key, x in found.items()})
