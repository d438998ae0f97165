"""Loads exported folders with Hugging Face's library and compares what it says with the fixtures; prints the worst differences.

It imports only the other side (torch, transformers), never flaxformer_lite. By hand, after exporting as many of the fixtures as
wanted, under the same names:

    for folder in tests/fixtures/hf/*/*/config.json; do name=${folder#tests/fixtures/hf/}; name=${name%/config.json}
        flaxformer-lite import hf tests/fixtures/hf/$name runs/$name && mkdir -p exports/${name%/*} &&
        flaxformer-lite export hf runs/$name exports/$name; done
    python tests/makers/check_hf_exports.py exports tests/fixtures/hf
"""

import json
import os
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import numpy as np
import safetensors
import torch
import transformers

TOLERANCE = 1e-4
NAMES = {
    "logits": "logits",
    "prediction_logits": "logits",
    "seq_relationship_logits": "next_sentence_logits",
    "last_hidden_state": "last_hidden_state",
    "encoder_last_hidden_state": "encoder_last_hidden_state",
    "pooler_output": "pooled",
}
"""Fields of the library's outputs: keys of io.npz."""


def load(folder: Path) -> tuple[torch.nn.Module, list[str]]:
    """The model in float32, and complaints: tensors that the library missed or had no use for."""
    config = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, config["architectures"][0])
    no_pooler = {"add_pooling_layer": False} if not has_pooler(folder, kind.__name__) else {}
    model, info = kind.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **no_pooler
    )
    complaints = [
        f"{what} {name}" for what in ("missing_keys", "unexpected_keys", "mismatched_keys") for name in info[what]
    ]
    return model.eval(), complaints


def has_pooler(folder: Path, kind: str) -> bool:
    if kind not in ("BertModel", "RobertaModel"):
        return True
    with safetensors.safe_open(folder / "model.safetensors", "np") as file:
        return any(name.startswith("pooler.") for name in file.keys())  # noqa: SIM118


def worst(model: torch.nn.Module, arrays: dict[str, np.ndarray]) -> float:
    """The largest difference of any output where the mask is 1."""
    given = {name[3:]: torch.from_numpy(x) for name, x in arrays.items() if name.startswith("in/")}
    with torch.no_grad():
        outputs = model(**given)
    found = [0.0]
    for theirs, ours in NAMES.items():
        expected, output = arrays.get(f"out/{theirs}", arrays.get(f"out/{ours}")), outputs.get(theirs)
        if expected is not None and isinstance(output, torch.Tensor) and output.shape == expected.shape[:-1] != ():
            output = output.reshape(expected.shape)  # ELECTRA's one class of each token
        if expected is None or not isinstance(output, torch.Tensor) or expected.shape != tuple(output.shape):
            continue
        side = "attention_mask" if theirs.startswith("encoder") else "decoder_attention_mask"
        mask = given.get(side, given["attention_mask"]).numpy().astype(bool)
        difference = np.abs(output.numpy() - expected)
        found.append(float(difference[mask].max() if difference.ndim == 3 else difference.max()))
    assert len(found) > 1, "nothing to compare"
    return max(found)


def wrong_tokens(model: torch.nn.Module, arrays: dict[str, np.ndarray]) -> int:
    """How many tokens of the greedy search and of the beam search, with the exported settings, are not the fixture's."""
    if "gen/input_ids" not in arrays:
        return 0
    wrong, prompts = 0, torch.from_numpy(arrays["gen/input_ids"])
    start = 1 if model.config.is_encoder_decoder else prompts.shape[1]
    for name, beams in (("greedy", 1), ("beam4", 4)):
        mask, expected = torch.from_numpy(arrays["gen/attention_mask"]), arrays[f"gen/{name}"]
        more = {"num_beams": beams, "max_new_tokens": expected.shape[1], "do_sample": False, "use_cache": False}
        found = model.generate(input_ids=prompts, attention_mask=mask, **more)[:, start:].numpy()
        shown = expected[:, : found.shape[1]]
        wrong += int((found != shown)[shown >= 0].sum()) + int((expected[:, found.shape[1] :] >= 0).sum())
    return wrong


def main() -> None:
    exports, fixtures = Path(sys.argv[1]), Path(sys.argv[2])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    bad = 0
    for folder in sorted(path.parent for path in exports.glob("*/*/config.json")):
        label = folder.relative_to(exports)
        with np.load(fixtures / label / "io.npz", allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files if name != "meta"}
        model, complaints = load(folder)
        error, wrong = worst(model, arrays), wrong_tokens(model, arrays)
        # A tensor that is missing and changes nothing is one that the library does not use.
        bad += error > TOLERANCE or wrong > 0 or any(not complaint.startswith("missing") for complaint in complaints)
        tokens = f"{wrong} wrong tokens  " if "gen/input_ids" in arrays else ""
        print(f"{label!s:32} {type(model).__name__:36} {error:.1e}  {tokens}{'; '.join(complaints)}", flush=True)
    print(f"{bad} bad")
    raise SystemExit(bad > 0)


if __name__ == "__main__":
    main()
