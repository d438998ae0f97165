"""One suite for every family: a folder that cannot be read as it is meant is refused, by the name of what stands in the way.

`tests/interop/test_every_option.py` gives each option that is read all values of a wrong type, and a word that is none of its own.
"""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.interop.hf.import_folder import read_folder
from tests.support.hf_folders import copied, with_tensors

NESTED = "[" * 100_000
REFUSED: dict[tuple[str, str], list[tuple[Any, str]]] = {
    ("bert/model", "config.json"): [
        ({"model_type": "mamba"}, "model_type 'mamba' is not a family that is known here: .*bert"),
        ({"model_type": "deberta"}, "is not a family .*, xlm-roberta; of DeBERTa, versions 2 and 3 are known"),
        ({"model_type": "esm"}, "; ModelConfig has no embeddings that are scaled by the share of masked tokens"),
        ({"model_type": None}, "config.json has no model_type, which names the family: one of albert, bart, "),
        ({"model_type": ["bert"]}, r"model_type \['bert'\] is not a family"),
        ({"is_decoder": True}, ": only false is implemented"),
        (
            {"quantization_config": {"bits": 4}},
            ": quantized weights are not read: save the model in bfloat16 or float32",
        ),
        ({"per_layer_config": {"0": {}}}, ": this option is not implemented here"),
        ({"is_causal": True}, ": this option is not implemented here"),  # not of the class: its code reads it
        ({"sequence_bias": [[[3], 0.5]]}, ": this option is not implemented here"),  # of decoding
        ({"dual_chunk_attention_config": {"chunk_size": 9}}, ": vLLM reads long texts by it"),
        ({"auto_map": {"AutoModel": "modeling.BertModel"}}, ": the folder has code of its own, which is not run"),
        ({"hidden_size": 16}, "d_model"),
        ({"num_hidden_layers": 20_000}, "model.num_encoder_layers is 20000: it must be at .*most 10000"),
        ({"num_hidden_layers": 9_999}, r"is 9999, but the weights are \d\d arrays: the config does not fit"),
        (
            {"intermediate_size": 2**24},
            r"d_ff is 16777216, but the weights are \d,\d{3} numbers: the config does not fit",
        ),
        ({"vocab_size": 2**31}, "model.vocab_size is 2147483648: it must be .* and at most 2147483647"),
        ({"type_vocab_size": 10**400}, "model.num_token_types is 1000000"),
        (
            {"max_position_embeddings": 2**63},
            "model.positions.max_positions is 9223372036854775808: .* at most 2147483647",
        ),
    ],
    ("embeddinggemma/two_dense", "1_Pooling/config.json"): [
        ({"pooling_mode": "attention"}, ": it should be one of mean"),
        ({"pooling_mode": ["cls", "mean"]}, ": it should be a word"),
        ({"include_prompt": False}, ": only true"),
    ],
    ("embeddinggemma/two_dense", "2_Dense/config.json"): [
        ({"use_residual": True}, ": only false"),
        ({"module_input_name": "token_embeddings"}, ": only"),
        ({"activation_function": "torch.nn.Mish"}, ": it should"),
        ({"out_features": 30}, r"3_Dense/linear\.weight .*the config needs \(18, 30\)"),
    ],
    ("embeddinggemma/two_dense", "4_Normalize/config.json"): [({"module_output_name": "x"}, ": only")],
    ("embeddinggemma/two_dense", "sentence_bert_config.json"): [({"do_lower_case": True}, ": ")],
    ("embeddinggemma/two_dense", "config_sentence_transformers.json"): [
        ({"default_prompt_name": "title"}, ": it should be one of , document, query")
    ],
    ("minilm/mean", "config.json"): [(NESTED, "cannot be read as JSON: maximum recursion")],
    ("minilm/mean", "tokenizer_config.json"): [(NESTED, "cannot be read as JSON: maximum recursion")],
    ("minilm/mean", "modules.json"): [
        ("5", "modules.json holds a int: it should be a list of steps"),
        ('[{"type": "Transformer"}, {"type": "Pooling", "path": "../x"}]', r"has the path \.\./x: a step"),
        ('[{"type": "Transformer"}, {"type": "Pooling", "path": ".."}]', r"has the path \.\.: "),
        ('[{"type": "Transformer"}, {"type": "Pooling", "path": ""}]', "has the path : a"),
    ],
    ("bart/summary", "generation_config.json"): [
        ({"bad_words_ids": [[1, 2]]}, ": only words of one token"),
        ({"bad_words_ids": [["a"]]}, ": it should be a token id"),
        ({"early_stopping": "always"}, ""),
        ({"begin_suppress_tokens": [5]}, ""),
        ({"suppress_tokens": [7, 1.5]}, ": it should be a token id"),
        ({"eos_token_id": []}, ": it should be a token id, or a list"),
        ({"eos_token_id": [1, "x"]}, ": it should be a token id"),
        ({"pad_token_id": [1]}, ": it should be one token id"),
        ({"decoder_start_token_id": "</s>"}, ": it should be a token id"),
        ({"a_new_way": 2}, ""),
    ],
    ("bart/plain", "config.json"): [
        *(({name: True}, "") for name in ("normalize_before", "static_position_embeddings", "add_final_layer_norm")),
        ({"num_hidden_layers": 7}, ""),
    ],
    ("albert/model", "config.json"): [
        ({"num_hidden_groups": 3}, ": only 1 is implemented"),
        ({"inner_group_num": 2}, ": only 1 is implemented"),
    ],
    ("mpnet/model", "config.json"): [({"relative_attention_num_buckets": 16}, ": only 32 is implemented")],
    ("deberta_v2/masked_lm", "config.json"): [
        ({"relative_attention": False}, ": it should be true"),
        ({"conv_kernel_size": 3}, ": only 0 is implemented"),
        ({"embedding_size": 8}, ": only 15"),
        ({"attention_head_size": 7}, ": only 5"),
        ({"pooler_hidden_size": 7}, ": only 15"),
        *(({"pos_att_type": value}, ": it should be ") for value in ("p2p", ["c2p", 3], 4, None)),
        ({"norm_rel_ebd": "rms_norm"}, ": it should be one or several of none, layer_norm"),
    ],
    ("roformer/model", "config.json"): [({"rotary_value": True}, ": only false")],
    ("nomic_bert/model", "config.json"): [
        ({"prenorm": True}, ": only false"),
        ({"rotary_scaling_factor": 2.0}, ": that is not implemented"),
        ({"activation_function": "gelu"}, ': only "swiglu"'),
    ],
    ("mvp/plain", "config.json"): [({"use_prompt": True}, ": only false")],
    ("pegasus/plain", "config.json"): [({"normalize_before": False}, ": only true")],
    ("marian/shared", "config.json"): [({"normalize_embedding": True}, ""), ({"decoder_vocab_size": 11}, "")],
    ("t5_1_1/gated_gelu", "config.json"): [({"feed_forward_proj": name}, "") for name in ("half-gelu", "gated-tanh")],
    ("t5gemma/plain", "config.json"): [
        ({"encoder": {"sliding_window": 1023}}, r"encoder\.sliding_window is 1023: it should be at least 1024"),
        ({"encoder": {"hidden_size": 24}}, "encoder and decoder differ in model.d_model, which both stacks share here"),
        ({"decoder": {"attn_logit_softcapping": 2.0}}, "encoder and decoder differ in model.attention"),
        ({"decoder": {"is_causal": True}}, r"decoder\.is_causal is true: this option is not implemented here"),
    ],
}
"""By fixture and file: a text that takes the place of the file, or an option, with what the message says. A row that is empty or
begins with a colon follows the file and the option's value in the message. Options of a stack are added to the others of it."""
CASES = [(*place, *row) for place, rows in REFUSED.items() for row in rows]


@pytest.mark.parametrize(("label", "file", "change", "complaint"), CASES)
def test_what_is_not_read_is_named(label: str, file: str, change: Any, complaint: str, tmp_path: Path) -> None:
    folder = copied(label, tmp_path)
    if isinstance(change, dict):
        said = json.loads((folder / file).read_text())
        [(name, value)] = change.items()
        if complaint[:1] in ("", ":"):
            complaint = rf"{file}: {name} is {re.escape(json.dumps(value))}{complaint}"
        change = json.dumps(said | {name: said[name] | value if name in ("encoder", "decoder") else value})
    (folder / file).write_text(change)
    with pytest.raises(ValueError, match=complaint):
        read_folder(folder)


BIAS, TIED, IDS = "bert.pooler.dense.bias", "cls.predictions.decoder.weight", "bert.embeddings.position_ids"
MASK, NORM, MLP = "h.0.attn.bias", "model.norm.weight", "transformer.h.1.mlp.c_fc.bias"
TENSORS: dict[str, list[tuple[dict[str, np.ndarray | None], str]]] = {
    "bert/hub_layout": [
        ({BIAS: None}, rf"1 array missing: {BIAS} \(15,\)"),
        ({"stray": np.zeros(3, np.float32)}, r"1 array left over: stray \(3,\)"),
        ({BIAS: np.zeros(7, np.float32)}, rf"{BIAS} \(\(7,\), the config needs \(15,\)\)"),
        ({BIAS: np.zeros(15, np.float64)}, rf"not float32, float16 or bfloat16: {BIAS} \(float64\)"),
        ({BIAS: np.zeros(15, np.int8)}, rf"{BIAS} \(int8\)"),
        ({IDS: np.ones((1, 29), np.int64)}, f"{IDS} should be 0, 1, 2, …"),
        ({TIED: np.ones((41, 15), np.float32)}, f"{TIED} should be equal to bert.emb"),
    ],
    "gpt2/hub_layout": [({MASK: np.ones((1, 1, 29, 29), np.float32)}, rf"transformer\.{MASK} .*causal")],
    "gpt2/tied": [({MLP: None}, rf"1 array missing: {MLP} \(60,\)")],
    "llama/mha": [
        ({"score.bias": np.zeros(2, np.float32)}, r"1 array left over: score\.bias"),
        ({"lm_head.weight": None}, r"1 array missing: lm_head\.weight \(41, 20\)"),
    ],
    "qwen2/plain": [({NORM: np.zeros(3, np.float32)}, rf"{NORM} \(\(3,\), the config needs \(16,\)\)")],
    # Version 1.1 of T5 does not tie its head, nor does this T5Gemma, so that without its matrix the file is not whole.
    "t5_1_1/gated_gelu": [({"lm_head.weight": None}, r"lm_head\.weight")],
    "t5gemma/uneven": [({"lm_head.out_proj.weight": None}, r"lm_head\.out_proj\.weight")],
}
"""By fixture: tensors that are added, replaced, or (None) removed."""


@pytest.mark.parametrize(
    ("label", "tensors", "complaint"), [(label, *row) for label in TENSORS for row in TENSORS[label]]
)
def test_a_tensor_that_does_not_fit_is_named(
    label: str, tensors: dict[str, np.ndarray | None], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=complaint):
        read_folder(with_tensors(copied(label, tmp_path), tensors))
