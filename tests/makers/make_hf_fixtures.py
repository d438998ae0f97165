"""Makes the folders in tests/fixtures/hf: tiny random models as Hugging Face saves them, their inputs and their outputs.

It imports only the other side (torch, transformers, sentence-transformers, safetensors), never flaxformer_lite. By hand:

    python tests/makers/make_hf_fixtures.py --seed 0 --out tests/fixtures/hf [--only llama] [--set layer_norm_eps=0.01]

The models are the rows of tests/fixtures/hf/variants.json (or of --variants FILE). Nothing is downloaded. A fixture is a function
of (seed, row, --set): a new row leaves the others as they are. tests/fixtures/hf/README.md describes the files.
"""

import argparse
import copy
import hashlib
import json
import os
import platform
import shutil
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.support.paths import FIXTURES

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import numpy as np
import safetensors
import safetensors.torch
import torch
import transformers

MAX_NEW_TOKENS = 8
NUM_BEAMS = 4
BEAM = f"gen/beam{NUM_BEAMS}"
MIN_GAP = 1e-3  # the smallest margin of a choice over its nearest rival that a fixture may contain
PATIENCE = 40  # tries for a generation that also has an early end, and a beam that differs from greedy
TOLERANCE = 1e-5  # between the peer's own attention implementations, and between a model and its reloaded folder
LENGTHS = (11, 9, 6, 3)  # tokens in each row of the inputs; the rest is padding
DECODER_LENGTHS = (9, 7, 9, 4)
SENTENCES = ["a cab", "Bad face, faded!", "über egg", "z"]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One row of variants.json: a class, the options of its configuration, and what to do around it."""

    family: str
    name: str
    kind: str
    "encoder, causal, seq2seq, sentence or pytorch"
    class_name: str
    options: dict
    "all arguments of the configuration (of the class itself for pytorch)"
    note: str = ""
    exotic: bool = False
    "an option that usual checkpoints do not have: an importer may refuse it by name instead"
    generate: bool = True
    "whether a causal or seq2seq model also generates"
    generation: dict = field(default_factory=dict)
    "further entries of generation_config.json"
    token_types: bool = False
    "whether token_type_ids are given"
    edit: str = ""
    "the function below that rewrites the saved folder as older releases wrote it, or in another precision"
    add_pooling_layer: bool = True
    max_shard_size: int = 10**9
    pad_inside: bool = False
    "whether a pad id stands inside a row, visible"
    pooling: str = ""
    dense: list = field(default_factory=list)
    "width, bias and activation (a class of torch.nn) of each dense layer after pooling"
    normalize: bool = False
    prompts: dict = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.family}/{self.name}"


def read_variants(path: Path) -> list[Variant]:
    table = json.loads(path.read_text())
    rows = []
    for row in table["variants"]:
        options = table["bases"][row.pop("base")] | row.pop("options")
        rows.append(Variant(class_name=row.pop("class"), options=options, **row))
    return rows


# ---- weights and inputs ----------------------------------------------------------------------------------------------


def generator(*key) -> np.random.Generator:
    """A NumPy generator that depends on the words of the key and on nothing else."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256("/".join(map(str, key)).encode()).digest()[:8], "big"))


def deviation(name: str, shape: tuple, t5: bool) -> float:
    if len(shape) == 1 or "final_logits_bias" in name:
        return 0.1 if name.endswith("weight") else 0.25
    table = any(word in name for word in ("embed", "wte", "wpe", "shared", "relative_attention_bias"))
    return (1.0 if t5 else 0.5) if table else 0.3


def fill(model: torch.nn.Module, variant: Variant, seed: int, attempt: int = 0) -> None:
    """Draws every parameter: matrices ± 0.3, tables ± 0.5 (pad rows too), norm scales 1 (Gemma: 0) ± 0.1, biases ± 0.25."""
    fixed = "embed_positions" if variant.class_name.startswith(("Marian", "Pegasus", "RoFormer")) else "nothing"
    fixed = "position_embeddings" if variant.options.get("sinusoidal_pos_embds") else fixed
    tensors = dict(model.named_parameters())
    tensors |= {name: tensor for name, tensor in model.named_buffers() if name.endswith("final_logits_bias")}
    rounded = {"as_bfloat16": torch.bfloat16, "as_float16": torch.float16}.get(variant.edit, torch.float32)
    with torch.no_grad():
        for name, tensor in tensors.items():
            if fixed in name:
                continue
            centre = round(float(tensor.mean())) if tensor.ndim == 1 and name.endswith("weight") else 0.0
            noise = generator(seed, variant.label, attempt, name).standard_normal(tuple(tensor.shape))
            noise *= deviation(name, tensor.shape, "T5" in variant.class_name)
            tensor.copy_(torch.from_numpy((centre + noise).astype(np.float32)).to(rounded))


def build(variant: Variant) -> torch.nn.Module:
    cls = getattr(transformers, variant.class_name)
    config = cls.config_class(**copy.deepcopy(variant.options), attn_implementation="eager")
    model = cls(config, **pooler_argument(variant)).eval()
    untied = variant.options.get("tie_word_embeddings") is False or variant.class_name == "MT5ForConditionalGeneration"
    if "T5" in variant.class_name and "Gemma" not in variant.class_name and untied:
        # version 5 ties T5 at birth whatever the configuration says; a loaded lm_head is what separates the two
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
        model.all_tied_weights_keys.pop("lm_head.weight")
    for key, value in variant.generation.items():
        setattr(model.generation_config, key, value)
    return model


def pooler_argument(variant: Variant) -> dict:
    return {} if variant.add_pooling_layer else {"add_pooling_layer": False}


def padded(rows: list, pad: int, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    width = max(map(len, rows))
    ids, mask = np.full((len(rows), width), pad, np.int32), np.zeros((len(rows), width), np.int32)
    for i, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[i, place], mask[i, place] = row, 1
    return ids, mask


def make_inputs(variant: Variant, config, seed: int) -> dict:
    """The arrays under in/, and under left/ for causal models: the same rows padded on the left, with their positions."""
    rng = generator(seed, variant.label, "inputs")
    pad, start = config.pad_token_id, getattr(config, "decoder_start_token_id", None)
    special = {pad, config.eos_token_id, start}

    def draw(lengths, vocab: int) -> list:
        return [rng.choice([i for i in range(vocab) if i not in special], length).tolist() for length in lengths]

    rows = draw(LENGTHS, config.vocab_size)
    if variant.kind == "seq2seq":
        rows = [[*row[:-1], config.eos_token_id] for row in rows]
    if variant.pad_inside:
        rows[0][4] = pad
    ids, mask = padded(rows, pad)
    inputs = {"in/input_ids": ids, "in/attention_mask": mask}
    if variant.token_types:
        types = getattr(config, "type_vocab_size", config.vocab_size)
        inputs["in/token_type_ids"] = (rng.integers(0, types, ids.shape) * mask).astype(np.int32)
    headless = "Sequence" in variant.class_name
    if variant.kind == "causal" and not (headless or variant.token_types or "Bert" in variant.class_name):
        inputs["left/input_ids"], left = padded(rows, pad, left=True)
        inputs["left/attention_mask"] = left
        inputs["left/position_ids"] = ((left.cumsum(1) - 1) * left).astype(np.int32)
    if variant.kind == "seq2seq" and not headless:
        targets = draw(
            [length - 1 for length in DECODER_LENGTHS], getattr(config, "decoder_vocab_size", config.vocab_size)
        )
        targets = [[pad if start is None else start, *row] for row in targets]
        inputs["in/decoder_input_ids"], inputs["in/decoder_attention_mask"] = padded(targets, pad)
    return inputs


def tensors_of(inputs: dict, group: str, *names: str) -> dict:
    found = {key.removeprefix(group): value for key, value in inputs.items() if key.startswith(group)}
    return {key: torch.from_numpy(value).long() for key, value in found.items() if not names or key in names}


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().numpy().astype(np.float32 if tensor.is_floating_point() else np.int32)


# ---- outputs ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def forward(model, arguments: dict) -> dict:
    """Everything the model says, by the names of the fixtures without the prefix out/."""
    said = model(**arguments, output_hidden_states=True)
    states = said.get("decoder_hidden_states") or said.hidden_states
    found = {f"hidden_state_{i}": state for i, state in enumerate(states)} | {"last_hidden_state": states[-1]}
    found |= {f"encoder_hidden_state_{i}": state for i, state in enumerate(said.get("encoder_hidden_states") or ())}
    body = getattr(model, model.base_model_prefix, None)
    if getattr(body, "pooler", None) is not None:
        found["pooled"] = body(**arguments).pooler_output
    names = {"logits": "logits", "prediction_logits": "logits", "seq_relationship_logits": "next_sentence_logits"}
    if isinstance(model, transformers.ElectraForPreTraining):  # one class of each token
        said["logits"] = said["logits"][..., None]
    names |= {"pooler_output": "pooled", "encoder_last_hidden_state": "encoder_last_hidden_state"}
    if "start_logits" in said:
        found["logits"] = torch.stack([said["start_logits"], said["end_logits"]], -1)
    found |= {ours: said[theirs] for theirs, ours in names.items() if said.get(theirs) is not None}
    return {name: array(tensor) for name, tensor in found.items()}


def difference(first: dict, second: dict, arguments: dict) -> float:
    """The largest difference at positions that are not padding."""
    worst = 0.0
    for name, value in first.items():
        gap = np.abs(value - second[name])
        mask = arguments.get(
            "attention_mask" if "encoder_" in name else "decoder_attention_mask", arguments.get("attention_mask")
        )
        if value.ndim == 3 and value.shape[:2] == tuple(mask.shape):
            gap = gap[mask.numpy() == 1]
        worst = max(worst, float(gap.max()))
    return worst


class BeamWatch:
    """Stands inside a beam search of the peer and keeps the smallest margin by which it decided anything."""

    hooks = ("_get_top_k_continuations", "_update_finished_beams", "_check_early_stop_heuristic")

    def __init__(self, model, end: set):
        self.smallest, self.end, self.model, self.final = np.inf, torch.tensor(sorted(end)), model, ()
        self.originals = {name: getattr(model, name) for name in self.hooks}

    def __enter__(self):
        for name, watcher in zip(self.hooks, (self.continuations, self.finished, self.stop), strict=True):
            setattr(self.model, name, watcher)
        return self

    def __exit__(self, *_):
        for name in self.hooks:
            delattr(self.model, name)
        for row in self.final:  # which finished hypothesis is the answer
            self.boundary(row, 1)

    def note(self, margin) -> None:
        self.smallest = min(self.smallest, abs(float(margin)))

    def boundary(self, values, count: int) -> None:
        values = sorted((float(value) for value in values if value > -1e8), reverse=True)
        if len(values) > count:
            self.note(values[count - 1] - values[count])

    def continuations(self, **kwargs):
        beams, scores = kwargs["num_beams"], kwargs["accumulated_log_probs"]
        ending = torch.isin(torch.arange(scores.shape[-1]) % (scores.shape[-1] // beams), self.end)
        for row in scores:
            self.boundary(row[~ending], beams)  # which hypotheses go on
            best = torch.sort(row, descending=True).values
            for value in row[ending & (row > -1e8)]:  # which may end: only those among the best
                self.note(value - best[beams if value >= best[beams - 1] else beams - 1])
        return self.originals["_get_top_k_continuations"](**kwargs)

    def finished(self, **kwargs):
        result = self.originals["_update_finished_beams"](**kwargs)
        self.final = result[1]
        return result

    def stop(self, **kwargs):
        length = (kwargs["cur_len"] - kwargs["decoder_prompt_len"]) ** kwargs["length_penalty"]
        for running, done, scores in zip(
            kwargs["running_beam_scores"], kwargs["is_sent_finished"], kwargs["beam_scores"], strict=True
        ):
            if done.all():
                self.note(running[0] / length - scores.min())
        return self.originals["_check_early_stop_heuristic"](**kwargs)


def trimmed(sequences: torch.Tensor, prompt: int, end: set) -> tuple[np.ndarray, np.ndarray]:
    """The new tokens, -1 after the end, and how many they are (the end token counts)."""
    new = array(sequences[:, prompt:])
    new = np.pad(new, ((0, 0), (0, MAX_NEW_TOKENS - new.shape[1])), constant_values=-1)
    ends = np.isin(new, sorted(end))
    lengths = np.where(ends.any(1), ends.argmax(1) + 1, MAX_NEW_TOKENS).astype(np.int32)
    return np.where(np.arange(MAX_NEW_TOKENS) < lengths[:, None], new, -1), lengths


@torch.no_grad()
def generate(model, variant: Variant, arguments: dict) -> dict:
    """Greedy and, unless greedy has a near tie already, beam search; margins included."""
    eos = model.generation_config.eos_token_id
    end = set(eos) if isinstance(eos, list) else {eos}
    prompt = 1 if variant.kind == "seq2seq" else arguments["input_ids"].shape[1]
    common = dict(
        arguments, max_new_tokens=MAX_NEW_TOKENS, do_sample=False, return_dict_in_generate=True, output_scores=True
    )
    if getattr(model.config, "num_decoder_layers", 2) > 2:
        common["use_cache"] = False  # the peer's cache has as many layers as the encoder and fails
    out = model.generate(**common, num_beams=1)
    tokens, lengths = trimmed(out.sequences, prompt, end)
    gap = np.inf
    for step, scores in enumerate(out.scores):
        best = torch.sort(scores, descending=True).values[:, :2].numpy()[lengths > step]
        gap = min(gap, float((best[:, 0] - best[:, 1]).min(initial=np.inf)))
    found = {f"gen/{name}": array(value) for name, value in arguments.items()}
    found |= {"gen/greedy": tokens, "gen/greedy_length": lengths, "gen/greedy_gap": np.float32(gap)}
    if gap < MIN_GAP:
        return found
    with BeamWatch(model, end) as watch:
        out = model.generate(**common, num_beams=NUM_BEAMS)
    tokens, lengths = trimmed(out.sequences, prompt, end)
    found |= {BEAM: tokens, f"{BEAM}_length": lengths, f"{BEAM}_score": array(out.sequences_scores)}
    return found | {f"{BEAM}_gap": np.float32(watch.smallest)}


def generation_of(model, variant: Variant, inputs: dict) -> dict:
    group = "left/" if "left/input_ids" in inputs else "in/"
    arguments = tensors_of(inputs, group, "input_ids", "attention_mask")
    if "Bert" in variant.class_name:  # its positions do not follow a mask: one row without padding
        arguments = {name: value[:1] for name, value in arguments.items()}
    return generate(model, variant, arguments)


def quality(found: dict) -> int:
    """0: a near tie. 1: none. 2: also, a row ends early, another does not, and the beam finds something else than greedy."""
    if min(found["gen/greedy_gap"], found.get(f"{BEAM}_gap", 0)) < MIN_GAP:
        return 0
    lengths = found["gen/greedy_length"]
    mixed = lengths.min() < MAX_NEW_TOKENS and (len(lengths) == 1 or lengths.max() == MAX_NEW_TOKENS)
    return 2 if mixed and (found[BEAM] != found["gen/greedy"]).any() else 1


def fill_well(model, variant: Variant, inputs: dict, seed: int) -> tuple[int, dict]:
    """Weights whose generation has no near ties: the first good one of a numbered row of tries, and what it generates."""
    safe = None
    for attempt in range(5 * PATIENCE):
        fill(model, variant, seed, attempt)
        if not (variant.generate and variant.kind in ("causal", "seq2seq")):
            return attempt, {}
        found = generation_of(model, variant, inputs)
        if quality(found) == 2:
            return attempt, found
        if safe is None and quality(found) == 1:
            safe = attempt
        if safe is not None and attempt >= PATIENCE:
            fill(model, variant, seed, safe)
            return safe, generation_of(model, variant, inputs)
    raise RuntimeError(f"{variant.label}: no weights without near ties in {5 * PATIENCE} tries; choose another seed")


# ---- folders as older releases wrote them ----------------------------------------------------------------------------
# Each function gets the tensors, config.json and generation_config.json, and changes them in place.


def copy_tensor(tensors: dict, source: str, *targets: str) -> None:
    tensors.update({target: tensors[source].clone() for target in targets})


def older(config: dict) -> None:
    config["torch_dtype"] = config.pop("dtype")
    config.pop("transformers_version")
    if config.get("tie_word_embeddings"):
        config.pop("tie_word_embeddings")


def hub_rope(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    kind = parameters.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {"type": kind, **parameters}


def hub_llama(tensors: dict, config: dict, generation: dict) -> None:
    hub_rope(tensors, config, generation)
    width = config.pop("head_dim")
    for layer in range(config["num_hidden_layers"]):
        table = 1.0 / config["rope_theta"] ** (torch.arange(0, width, 2).float() / width)
        tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = table


def hub_window(tensors: dict, config: dict, generation: dict) -> None:
    hub_rope(tensors, config, generation)
    config.pop("layer_types")


def hub_qwen(tensors: dict, config: dict, generation: dict) -> None:
    hub_window(tensors, config, generation)
    config.update({"use_sliding_window": False, "sliding_window": 3, "max_window_layers": 1})


def hub_hunyuan(tensors: dict, config: dict, generation: dict) -> None:
    """The library reads a missing option of ties as untied, so that it stays."""
    tied = config["tie_word_embeddings"]
    hub_rope(tensors, config, generation)
    of_rope = {"beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
    config["rope_scaling"] |= of_rope
    config.update({"tie_word_embeddings": tied, "attention_head_dim": config["head_dim"], "eod_token_id": 5})
    config.update(
        {"use_qk_norm": True, "mlp_bias": False, "norm_type": "rms", "num_experts": 1, "xdrope_section": None}
    )
    config.update(
        {"cla_share_factor": 2, "dense_list": [20, 0], "pool_type": "last", "anyres_vit_max_image_size": None}
    )


def hub_part(tensors: dict, config: dict, generation: dict) -> None:
    parameters = config["rope_parameters"]
    config["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
    hub_rope(tensors, config, generation)


def hub_phi3(tensors: dict, config: dict, generation: dict) -> None:
    hub_part(tensors, config, generation)
    config.pop("partial_rotary_factor")
    config["auto_map"] = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "x.Phi3ForCausalLM"}


def hub_bloom(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    config.update({"n_embed": config.pop("hidden_size"), "num_attention_heads": config.pop("n_head")})
    config.update({"offset_alibi": 100, "masked_softmax_fusion": True, "bias_dropout_fusion": True})


def hub_olmo3(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    scaling = config.pop("rope_parameters")["full_attention"]
    config.pop("layer_types")
    config.update({"rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling})


def hub_smollm3(tensors: dict, config: dict, generation: dict) -> None:
    hub_rope(tensors, config, generation)
    config.update({"max_window_layers": 28, "pretraining_tp": 2})


def hub_exaone4(tensors: dict, config: dict, generation: dict) -> None:
    hub_rope(tensors, config, generation)
    config["sliding_window_pattern"] = "LLLG"


def hub_ernie(tensors: dict, config: dict, generation: dict) -> None:
    hub_rope(tensors, config, generation)
    config["auto_map"] = {"AutoConfig": "configuration_ernie4_5.Ernie4_5_Config"}


def hub_gpt_neo(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    config.pop("attention_layers")
    config.update({"gradient_checkpointing": False, "summary_type": "cls_index", "summary_first_dropout": 0.1})
    size = config["max_position_embeddings"]
    for layer in range(config["num_layers"]):
        attention = f"transformer.h.{layer}.attn.attention"
        tensors[f"{attention}.bias"] = torch.tril(torch.ones(size, size, dtype=torch.uint8))[None, None]
        tensors[f"{attention}.masked_bias"] = torch.tensor(-1e9)


def hub_gpt_neox(tensors: dict, config: dict, generation: dict) -> None:
    parameters = config["rope_parameters"]
    config["rotary_pct"] = parameters.pop("partial_rotary_factor")
    hub_rope(tensors, config, generation)
    config["rotary_emb_base"] = config.pop("rope_theta")
    config.pop("rope_scaling")
    config.pop("attention_bias")
    rotated = int(config["hidden_size"] // config["num_attention_heads"] * config["rotary_pct"])
    store_masks(tensors, "gpt_neox.layers.{}.attention", config["num_hidden_layers"], config["max_position_embeddings"])
    for layer in range(config["num_hidden_layers"]):
        rates = 1.0 / config["rotary_emb_base"] ** (torch.arange(0, rotated, 2).float() / rotated)
        tensors[f"gpt_neox.layers.{layer}.attention.rotary_emb.inv_freq"] = rates


def hub_gptj(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    config.update({"gradient_checkpointing": False, "rotary": True, "scale_attn_weights": True})
    config.update({"summary_type": "cls_index", "summary_first_dropout": 0.1})
    store_masks(tensors, "transformer.h.{}.attn", config["n_layer"], config["n_positions"])


def store_masks(tensors: dict, module: str, layers: int, size: int) -> None:
    for layer in range(layers):
        tensors[f"{module.format(layer)}.bias"] = torch.tril(torch.ones(size, size, dtype=torch.bool))[None, None]
        tensors[f"{module.format(layer)}.masked_bias"] = torch.tensor(-1e9)


def hub_falcon(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    for name in (
        "rope_parameters",
        "activation",
        "ffn_hidden_size",
        "max_position_embeddings",
        "num_ln_in_parallel_attn",
    ):
        config.pop(name, None)
    config.pop("num_kv_heads")
    config.update({"apply_residual_connection_post_layernorm": False, "n_head": 6, "n_layer": 2, "ff_factor": 4})
    config["auto_map"] = {
        "AutoConfig": "configuration_falcon.FalconConfig",
        "AutoModelForCausalLM": "x.FalconForCausalLM",
    }


def hub_xglm(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    module = transformers.models.xglm.modeling_xglm.XGLMSinusoidalPositionalEmbedding
    table = module(config["max_position_embeddings"], config["d_model"], config["pad_token_id"]).weights
    tensors["model.embed_positions.weights"] = table.clone()


def hub_gemma(tensors: dict, config: dict, generation: dict) -> None:
    hub_rope(tensors, config, generation)
    config.update({"hidden_act": "gelu", "hidden_activation": None})


def hub_gemma2(tensors: dict, config: dict, generation: dict) -> None:
    hub_window(tensors, config, generation)
    config.update({"hidden_act": "gelu_pytorch_tanh", "cache_implementation": "hybrid"})


def hub_t5gemma(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    for name in ("encoder", "decoder"):
        config[name]["rope_theta"] = config[name].pop("rope_parameters")["rope_theta"]
    copy_tensor(tensors, "model.decoder.embed_tokens.weight", "lm_head.out_proj.weight")


def hub_gemma3(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters["full_attention"].pop("rope_theta")
    config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = parameters["full_attention"]
    for key in ("layer_types", "_sliding_window_pattern", "use_bidirectional_attention"):
        config.pop(key)
    config["sliding_window_pattern"] = 3


def hub_bert(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    config.update(
        {"architectures": ["BertForMaskedLM"], "position_embedding_type": "absolute", "gradient_checkpointing": False}
    )
    for name in [name for name in tensors if "LayerNorm" in name]:
        tensors[name.replace("weight", "gamma").replace("bias", "beta")] = tensors.pop(name)
    tensors["bert.embeddings.position_ids"] = torch.arange(config["max_position_embeddings"])[None]
    copy_tensor(tensors, "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight")
    copy_tensor(tensors, "cls.predictions.bias", "cls.predictions.decoder.bias")


def hub_bert_tokens(tensors: dict, config: dict, generation: dict) -> None:
    """A pooler beside the classifier of tokens, which the class does not read."""
    older(config)
    width = config["hidden_size"]
    tensors["bert.pooler.dense.weight"] = torch.ones(width, width)
    tensors["bert.pooler.dense.bias"] = torch.ones(width)


def hub_eurobert(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    parameters = config.pop("rope_parameters")
    config.pop("classifier_pooling")
    config.update(
        {"rope_theta": parameters["rope_theta"], "rope_scaling": None, "clf_pooling": "late", "is_causal": False}
    )
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "mask_token": "<|mask|>"}
    config.update(
        names | {"pad_token": "<|end_of_text|>", "hidden_dropout": 0.0, "auto_map": {"AutoModel": "x.EuroBertModel"}}
    )


def hub_modernbert(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    parameters = config.pop("rope_parameters")
    config["global_rope_theta"] = parameters["full_attention"]["rope_theta"]
    config["local_rope_theta"] = parameters["sliding_attention"]["rope_theta"]
    config.pop("layer_types")
    more = {
        "global_attn_every_n_layers": 2,
        "layer_norm_eps": config["norm_eps"],
        "position_embedding_type": "absolute",
    }
    config.update(more | {"gradient_checkpointing": False, "reference_compile": None})


def hub_roberta(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    tensors["roberta.embeddings.position_ids"] = torch.arange(config["max_position_embeddings"])[None]
    copy_tensor(tensors, "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight")
    copy_tensor(tensors, "lm_head.bias", "lm_head.decoder.bias")


def hub_gpt2(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    size = config["n_positions"]
    config.update({"n_ctx": size, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}})
    for name in list(tensors):
        tensors[name.removeprefix("transformer.")] = tensors.pop(name)
    for layer in range(config["n_layer"]):
        tensors[f"h.{layer}.attn.bias"] = torch.tril(torch.ones(size, size))[None, None]


def hub_t5_1_1(tensors: dict, config: dict, generation: dict) -> None:
    config["torch_dtype"] = config.pop("dtype")
    for key in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "transformers_version"):
        config.pop(key)
    config.update({"tie_word_embeddings": False, "output_past": True})
    copy_tensor(tensors, "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def hub_mt5(tensors: dict, config: dict, generation: dict) -> None:
    config["torch_dtype"] = config.pop("dtype")
    for key in ("dense_act_fn", "is_gated_act", "transformers_version"):
        config.pop(key)
    config.update({"tie_word_embeddings": False, "output_past": True, "tokenizer_class": "T5Tokenizer"})
    copy_tensor(tensors, "shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def hub_t5(tensors: dict, config: dict, generation: dict) -> None:
    hub_t5_1_1(tensors, config, generation)
    for key in ("tie_word_embeddings", "feed_forward_proj"):  # absent from the first configurations: tied, relu
        config.pop(key)
    copy_tensor(tensors, "shared.weight", "lm_head.weight")
    bias = tensors["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.ones_like(bias)


def hub_bart(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    config.update({key: generation[key] for key in ("early_stopping", "length_penalty", "num_beams")})
    config.update({"normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": True})
    config.update({"static_position_embeddings": False, "add_bias_logits": False, "classif_dropout": 0.0})
    generation.clear()
    sides = ("encoder", "decoder")
    copy_tensor(
        tensors, "model.shared.weight", "lm_head.weight", *(f"model.{side}.embed_tokens.weight" for side in sides)
    )
    tensors.update({f"model.{side}.version": torch.full((1,), 3.0) for side in sides})


def hub_marian(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    config.update({"normalize_before": False, "add_final_layer_norm": False, "normalize_embedding": False})
    config.update({"static_position_embeddings": True, "add_bias_logits": False, "num_beams": 6})
    config["bad_words_ids"] = generation["bad_words_ids"]
    generation.clear()
    sides = ("encoder", "decoder")
    copy_tensor(
        tensors, "model.shared.weight", "lm_head.weight", *(f"model.{side}.embed_tokens.weight" for side in sides)
    )
    module = transformers.models.marian.modeling_marian.MarianSinusoidalPositionalEmbedding
    table = module(config["max_position_embeddings"], config["d_model"])
    tensors.update({f"model.{side}.embed_positions.weight": table.create_weight() for side in sides})


def hub_m2m(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    config.update({key: generation[key] for key in ("early_stopping", "num_beams")} | {"max_length": 200})
    generation.clear()
    sides = ("encoder", "decoder")
    copy_tensor(
        tensors, "model.shared.weight", "lm_head.weight", *(f"model.{side}.embed_tokens.weight" for side in sides)
    )
    module = transformers.models.m2m_100.modeling_m2m_100.M2M100SinusoidalPositionalEmbedding
    table = module(config["max_position_embeddings"], config["d_model"], config["pad_token_id"]).weights
    tensors.update({f"model.{side}.embed_positions.weights": table.clone() for side in sides})


def hub_electra(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    tensors["electra.embeddings.position_ids"] = torch.arange(config["max_position_embeddings"])[None]


def hub_mpnet(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    tensors["mpnet.embeddings.position_ids"] = torch.arange(config["max_position_embeddings"])[None]
    copy_tensor(tensors, "mpnet.embeddings.word_embeddings.weight", "lm_head.decoder.weight")
    copy_tensor(tensors, "lm_head.bias", "lm_head.decoder.bias")


def hub_deberta(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    config["pos_att_type"] = "|".join(config["pos_att_type"])
    width = config["hidden_size"]
    shapes = {
        "dense.weight": (width, width),
        "dense.bias": (width,),
        "LayerNorm.weight": (width,),
        "LayerNorm.bias": (width,),
    }
    shapes |= {"classifier.weight": (1, width), "classifier.bias": (1,)}
    tensors |= {f"mask_predictions.{name}": torch.ones(shape) for name, shape in shapes.items()}
    tensors["deberta.embeddings.position_embeddings.weight"] = torch.ones(config["max_position_embeddings"], width)


def hub_albert(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    config.update({"down_scale_factor": 1, "gap_size": 0, "net_structure_type": 0, "num_memory_blocks": 0})
    tensors["albert.embeddings.position_ids"] = torch.arange(config["max_position_embeddings"])[None]
    copy_tensor(tensors, "albert.embeddings.word_embeddings.weight", "predictions.decoder.weight")
    copy_tensor(tensors, "predictions.bias", "predictions.decoder.bias")


def hub_pegasus(tensors: dict, config: dict, generation: dict) -> None:
    older(config)
    config.update({key: generation[key] for key in ("early_stopping", "length_penalty", "num_beams")})
    config.update({"normalize_before": True, "add_final_layer_norm": True, "normalize_embedding": False})
    config.update({"static_position_embeddings": True, "extra_pos_embeddings": 1, "add_bias_logits": False})
    config.update({"force_bos_token_to_be_generated": False, "max_length": 64, "classif_dropout": 0.0})
    generation.clear()
    sides = ("encoder", "decoder")
    copy_tensor(
        tensors, "model.shared.weight", "lm_head.weight", *(f"model.{side}.embed_tokens.weight" for side in sides)
    )
    module = transformers.models.pegasus.modeling_pegasus.PegasusSinusoidalPositionalEmbedding
    table = module(config["max_position_embeddings"], config["d_model"]).create_weight()
    tensors.update({f"model.{side}.embed_positions.weight": table.clone() for side in sides})


def hub_mbart(tensors: dict, config: dict, generation: dict) -> None:
    hub_bart(tensors, config, generation)
    config.update({"normalize_before": True, "add_final_layer_norm": True, "extra_pos_embeddings": 2})


def as_bfloat16(tensors: dict, config: dict, generation: dict) -> None:
    config["dtype"] = "bfloat16"
    tensors.update({name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()})


def as_float16(tensors: dict, config: dict, generation: dict) -> None:
    config["dtype"] = "float16"
    tensors.update({name: tensor.to(torch.float16) for name, tensor in tensors.items()})


def hub_minilm(folder: Path) -> None:
    modules = read_json(folder / "modules.json")
    for module in modules:
        module["type"] = f"sentence_transformers.models.{module['type'].rsplit('.', 1)[1]}"
    write_json(folder / "modules.json", modules)
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    pooling = {f"pooling_mode_{mode}": mode == "mean_tokens" for mode in modes}
    pooling["word_embedding_dimension"] = read_json(folder / "config.json")["hidden_size"]
    write_json(folder / "1_Pooling/config.json", pooling)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 17, "do_lower_case": False})
    shutil.rmtree(folder / "2_Normalize")


# ---- saving ----------------------------------------------------------------------------------------------------------


def read_json(path: Path):
    return json.loads(path.read_text()) if path.exists() else {}


def write_json(path: Path, value) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def apply_edit(folder: Path, edit) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    config, generation = read_json(folder / "config.json"), read_json(folder / "generation_config.json")
    edit(tensors, config, generation)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    if not generation:
        (folder / "generation_config.json").unlink(missing_ok=True)


def check(model, variant: Variant, folder: Path, inputs: dict, outputs: dict, found: dict) -> None:
    """The saved folder, read again by the peer, says the same; so does the peer's other attention implementation."""
    arguments = tensors_of(inputs, "in/")
    more = {
        "dtype": torch.float32,
        "attn_implementation": "eager",
        "output_loading_info": True,
        **pooler_argument(variant),
    }
    again, info = type(model).from_pretrained(folder, **more)
    assert not info["missing_keys"] and not info["mismatched_keys"], (variant.label, info)
    assert variant.edit or not info["unexpected_keys"], (variant.label, info)
    worst = difference(outputs, forward(again.eval(), arguments), arguments)
    assert worst <= TOLERANCE, f"{variant.label}: reloaded differs by {worst}"
    if found:
        for name, value in generation_of(again, variant, inputs).items():
            assert np.allclose(value, found[name], atol=TOLERANCE), f"{variant.label}: reloaded {name} differs"
    if again._supports_sdpa and variant.family not in (
        "gemma2",
        "t5gemma",
    ):  # their soft cap exists in the eager form only
        again.set_attn_implementation("sdpa")
        worst = difference(outputs, forward(again, arguments), arguments)
        assert worst <= TOLERANCE, f"{variant.label}: sdpa differs by {worst}"


def settings(model) -> dict:
    """The generation settings that were in force, defaults spelled out."""
    names = (
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "decoder_start_token_id",
        "forced_bos_token_id",
        "forced_eos_token_id",
    )
    defaults = dict.fromkeys([*names, "bad_words_ids"])
    defaults |= {
        "length_penalty": 1.0,
        "early_stopping": False,
        "no_repeat_ngram_size": 0,
        "min_length": 0,
        "repetition_penalty": 1.0,
    }
    values = {name: getattr(model.generation_config, name, None) for name in defaults}
    values = {name: defaults[name] if value is None else value for name, value in values.items()}
    return values | {"max_new_tokens": MAX_NEW_TOKENS, "do_sample": False, "num_beams": [1, NUM_BEAMS]}


def write_io(folder: Path, variant: Variant, seed: int, arrays: dict, **more) -> None:
    modules = {"torch": torch, "transformers": transformers, "safetensors": safetensors, "numpy": np}
    versions = {name: module.__version__ for name, module in modules.items()} | {"python": platform.python_version()}
    meta = asdict(variant) | {"seed": seed, "versions": versions} | more
    assert all(np.isfinite(value).all() for value in arrays.values())
    np.savez_compressed(folder / "io.npz", meta=np.array(json.dumps(meta, sort_keys=True)), **arrays)
    for file in folder.rglob("*.safetensors"):
        file.chmod(0o644)


# ---- the kinds -------------------------------------------------------------------------------------------------------


def make_model(variant: Variant, folder: Path, seed: int) -> dict:
    model = build(variant)
    inputs = make_inputs(variant, model.config, seed)
    attempt, found = fill_well(model, variant, inputs, seed)
    outputs = forward(model, tensors_of(inputs, "in/"))
    model.save_pretrained(folder, max_shard_size=variant.max_shard_size)
    if variant.edit:
        apply_edit(folder, globals()[variant.edit])
    check(model, variant, folder, inputs, outputs, found)
    arrays = inputs | {f"out/{name}": value for name, value in outputs.items()} | found
    if variant.class_name == "BartForSequenceClassification":  # what it feeds to its decoder
        shift = transformers.models.bart.modeling_bart.shift_tokens_right
        ids = torch.from_numpy(inputs["in/input_ids"])
        arrays["out/decoder_input_ids"] = array(
            shift(ids, model.config.pad_token_id, model.config.decoder_start_token_id)
        )
    if "left/input_ids" in inputs:
        left = forward(model, tensors_of(inputs, "left/"))
        arrays |= {f"left/{name}": left[name] for name in ("logits", "last_hidden_state") if name in left}
    write_io(folder, variant, seed, arrays, attempt=attempt, generation_settings=settings(model) if found else None)
    return arrays


def make_sentence(variant: Variant, folder: Path, seed: int) -> dict:
    """A sentence-transformers folder, with a WordPiece tokenizer of single letters."""
    import sentence_transformers
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    model = build(variant)
    fill(model, variant, seed)
    letters = [chr(ord("a") + i) for i in range(26)]
    kind, special = transformers.BertTokenizerFast, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    if isinstance(model, transformers.MPNetModel):
        kind, special = transformers.MPNetTokenizerFast, ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    words = [*special, *letters, *("##" + letter for letter in letters)]
    tokenizer = kind(vocab={word: i for i, word in enumerate(words)}, model_max_length=17)
    if not isinstance(model, transformers.BertModel):
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    bare = folder / "bare"
    model.save_pretrained(bare)
    tokenizer.save_pretrained(bare)
    width = model.config.hidden_size
    modules = [Transformer(str(bare)), Pooling(width, pooling_mode=variant.pooling)]
    for number, (wider, bias, activation) in enumerate(variant.dense):
        step = Dense(width, wider, bias, getattr(torch.nn, activation)())
        for name, tensor in step.named_parameters():
            noise = generator(seed, variant.label, f"dense {number}", name).standard_normal(tuple(tensor.shape))
            tensor.data = torch.from_numpy((0.3 * noise).astype(np.float32))
        modules.append(step)
        width = wider
    modules += [Normalize()] * variant.normalize
    prompts = {"prompts": variant.prompts} if variant.prompts else {}
    whole = sentence_transformers.SentenceTransformer(modules=modules, device="cpu", **prompts)
    whole.save_pretrained(str(folder), create_model_card=False)
    shutil.rmtree(bare)
    batch = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    outputs = forward(model, batch)
    outputs |= {"pooler_output": outputs["pooled"]} if "pooled" in outputs else {}
    outputs["pooled"] = whole.encode(SENTENCES)
    for name in variant.prompts:
        outputs[f"pooled_{name}"] = whole.encode(SENTENCES, prompt_name=name)
    if variant.edit:
        globals()[variant.edit](folder)
    again = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)
    assert np.abs(again - outputs["pooled"]).max() <= TOLERANCE, variant.label
    arrays = {f"in/{name}": array(value) for name, value in batch.items()} | {
        f"out/{name}": value for name, value in outputs.items()
    }
    write_io(
        folder, variant, seed, arrays, sentences=SENTENCES, sentence_transformers=sentence_transformers.__version__
    )
    return arrays


def make_pytorch(variant: Variant, folder: Path, seed: int) -> dict:
    """torch.nn.Transformer: a state dict, floating-point inputs, PyTorch's masks (True = hidden)."""
    torch.backends.mha.set_fastpath_enabled(False)  # the fast path writes zeros at padded positions
    model = torch.nn.Transformer(**variant.options).eval()
    fill(model, variant, seed)
    rng, width = generator(seed, variant.label, "inputs"), variant.options["d_model"]
    arrays, states = {}, {}
    for name, lengths in (("src", LENGTHS), ("tgt", DECODER_LENGTHS)):
        hidden = np.arange(max(lengths)) >= np.array(lengths)[:, None]
        arrays[f"in/{name}"] = rng.standard_normal((*hidden.shape, width)).astype(np.float32)
        arrays[f"in/{name}_key_padding_mask"] = hidden
    arrays["in/tgt_mask"] = np.triu(np.ones((max(DECODER_LENGTHS),) * 2, bool), 1)
    for prefix, side in (("encoder_", model.encoder), ("", model.decoder)):
        for i, layer in enumerate(side.layers):
            name = f"out/{prefix}hidden_state_{i + 1}"
            layer.register_forward_hook(lambda _module, _args, out, name=name: states.__setitem__(name, array(out)))
        side.register_forward_hook(
            lambda _m, _a, out, name=f"out/{prefix}last_hidden_state": states.__setitem__(name, array(out))
        )
    with torch.no_grad():
        given = {name.removeprefix("in/"): torch.from_numpy(value) for name, value in arrays.items()}
        model(**given, memory_key_padding_mask=given["src_key_padding_mask"])
    folder.mkdir(parents=True)
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    arrays |= states
    write_io(folder, variant, seed, arrays)
    return arrays


MAKERS = {
    "encoder": make_model,
    "causal": make_model,
    "seq2seq": make_model,
    "sentence": make_sentence,
    "pytorch": make_pytorch,
}


# ---- the command -----------------------------------------------------------------------------------------------------


def folder_size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def report(variant: Variant, folder: Path, arrays: dict, seconds: float) -> str:
    """One line of the table: class, size, spread of the last hidden state, time, margins and quality of the generation."""
    gaps = [f"{name.removeprefix('gen/')} {float(arrays[name]):.4f}" for name in arrays if name.endswith("_gap")]
    gaps += [f"quality {quality(arrays)}"] if gaps else []
    numbers = (
        f"{folder_size(folder) / 1000:5.1f} kB  std {arrays['out/last_hidden_state'].std():4.2f}  {seconds:4.1f} s"
    )
    return f"{variant.label:37} {variant.class_name:34} {numbers}  {', '.join(gaps)}"


def overridden(variant: Variant, entries: list[str]) -> Variant:
    """The variant with the values of --set, as far as its configuration has such a key."""
    values = {key: json.loads(value) for key, value in (entry.split("=", 1) for entry in entries)}
    pytorch = variant.kind == "pytorch"
    known = variant.options if pytorch else getattr(transformers, variant.class_name).config_class().to_dict()
    options = variant.options | {key: value for key, value in values.items() if key in known}
    return Variant(**asdict(variant) | {"options": options})


def parse() -> argparse.Namespace:
    table = FIXTURES / "hf/variants.json"
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder; what it holds of the variants made is replaced"
    )
    parser.add_argument("--only", metavar="FAMILY", help="one family, or FAMILY/NAME")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=JSON", help="for every variant whose config has KEY"
    )
    parser.add_argument("--variants", type=Path, default=table, help="another table")
    return parser.parse_args()


def main() -> None:
    arguments, begin = parse(), time.monotonic()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="enable_nested_tensor")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    variants = [v for v in read_variants(arguments.variants) if arguments.only in (None, v.family, v.label)]
    if not variants:
        raise SystemExit(f"--only {arguments.only}: no such family or variant in {arguments.variants}")
    for variant in variants:
        folder, start = arguments.out / variant.label, time.monotonic()
        if (folder / "io.npz").exists():
            shutil.rmtree(folder)
        torch.manual_seed(0)
        arrays = MAKERS[variant.kind](overridden(variant, arguments.set), folder, arguments.seed)
        print(report(variant, folder, arrays, time.monotonic() - start), flush=True)
    total = sum(folder_size(arguments.out / variant.label) for variant in variants)
    print(f"{len(variants)} variants, {total / 1e6:.2f} MB, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
