"""T5Gemma: two stacks of Gemma 2, the second with cross-attention; each has an embedding table and a group of options of its own.

An encoder reads whole sources here. The library's layers with a window read `sliding_window` tokens to either side, which is the
same for sources of up to `sliding_window` + 1 tokens.

Reference: Zhang et al. 2025, arXiv:2504.06225.
"""

import dataclasses
import functools
from collections.abc import Collection
from typing import Any

from flaxformer_lite.core.model.config import DecoderSize, ModelConfig, Residual
from flaxformer_lite.interop.differences import resolved
from flaxformer_lite.interop.hf import gemma, llama
from flaxformer_lite.interop.hf.family import Family, tied_copies
from flaxformer_lite.interop.hf.options import HARMLESS, UsualIds
from flaxformer_lite.interop.name_map import Names, Tensor, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, option, read_table, replaced, write_table

BASE, GENERATES = "T5GemmaModel", "T5GemmaForConditionalGeneration"
TABLE, HEAD = "model.decoder.embed_tokens.weight", "lm_head.out_proj.weight"
SHORTEST_WINDOW = 1024
"""The shortest window that an encoder may have: see above. All published models have 4096."""

STACK_ENTRIES = (*llama.TABLE, *gemma.GEMMA2_ENTRIES)
STACK_TEMPLATE = replaced(gemma.GEMMA2, {"residual": Residual(pre="n", post="nda", final="nd")})
"""One stack, as a model of its own. Dropout follows its last norm."""
TEMPLATE = replaced(STACK_TEMPLATE, {"num_encoder_layers": 1, "share_source_target": False})
OWN = (
    "num_decoder_layers",
    "vocab_size",
    "num_heads",
    "d_ff",
    "sliding_window",
    "head",
    "share_target_output",
    "dropout",
)
"""The settings in which the stacks may differ, or which the encoder's group does not decide."""


def read_stacks(options: Options, draft: Draft) -> None:
    """Reads the two groups. Raises: ValueError where they differ in a setting that is one for both stacks here."""
    stacks = []
    for name in ("encoder", "decoder"):
        group = options.group(name)
        group.ignore(*HARMLESS, "is_decoder", "cross_attention_hidden_size", "dropout_rate")
        stacks.append(read_table(STACK_ENTRIES, group, STACK_TEMPLATE).build())
    encoder, decoder = stacks
    if encoder.sliding_window is not None and encoder.sliding_window.size < SHORTEST_WINDOW:
        rule = f"it should be at least {SHORTEST_WINDOW} in an encoder, which reads whole sources here"
        raise options.group("encoder").wrong("sliding_window", rule)
    names = [field.name for field in dataclasses.fields(ModelConfig)]
    different = [name for name in names if name not in OWN and getattr(encoder, name) != getattr(decoder, name)]
    if different:
        listed = ", ".join(f"model.{name}" for name in different)
        raise ValueError(f"config.json: encoder and decoder differ in {listed}, which both stacks share here")
    draft |= {
        name: getattr(decoder, name) for name in names if name not in ("num_encoder_layers", "share_source_target")
    }
    draft |= {name: getattr(encoder, name) for name in ("vocab_size", "num_heads", "d_ff")}
    draft["num_encoder_layers"] = encoder.num_decoder_layers
    draft["target_vocab_size"] = None if decoder.vocab_size == encoder.vocab_size else decoder.vocab_size
    sizes = DecoderSize(num_heads=decoder.num_heads, d_ff=decoder.d_ff)
    draft["decoder"] = None if sizes == DecoderSize(num_heads=encoder.num_heads, d_ff=encoder.d_ff) else sizes


def stack_options(model: ModelConfig) -> dict[str, Any]:
    """Returns the two groups. The encoder's layers have no window."""
    alone = dataclasses.replace(model, num_encoder_layers=0, target_vocab_size=None, decoder=None, sliding_window=None)
    encoder = dataclasses.replace(alone, num_decoder_layers=model.num_encoder_layers)
    sizes = model.for_decoder
    decoder = dataclasses.replace(
        alone,
        num_heads=sizes.num_heads,
        d_ff=sizes.d_ff,
        vocab_size=model.output_size,
        sliding_window=model.sliding_window,
    )
    return {
        "encoder": write_table(STACK_ENTRIES, resolved(encoder)),
        "decoder": write_table(STACK_ENTRIES, resolved(decoder)),
        "vocab_size": model.output_size,
    }


def architecture(model: ModelConfig, names: Collection[str]) -> str:
    return BASE if model.head is None else GENERATES


PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
LAYER = {
    "attention_pre_norm": "pre_self_attn_layernorm",
    **prefixed("attention/", "self_attn.", PROJECTIONS),
    "attention_post_norm": "post_self_attn_layernorm",
    "cross_attention_pre_norm": "pre_cross_attn_layernorm",
    **prefixed("cross_attention/", "cross_attn.", PROJECTIONS),
    "cross_attention_post_norm": "post_cross_attn_layernorm",
    "feed_forward_pre_norm": "pre_feedforward_layernorm",
    **prefixed("feed_forward/", "mlp.", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
    "feed_forward_post_norm": "post_feedforward_layernorm",
}


def names(model: ModelConfig, architecture: str) -> Names:
    return {
        "source_embedding": "model.encoder.embed_tokens",
        **prefixed("encoder/layers/", "model.encoder.layers.{i}.", LAYER),
        "encoder/final_norm": "model.encoder.norm",
        "target_embedding": "model.decoder.embed_tokens",
        **prefixed("decoder/layers/", "model.decoder.layers.{i}.", LAYER),
        "decoder/final_norm": "model.decoder.norm",
        "head/kernel": Tensor(HEAD),
    }


FAMILIES = (
    Family(
        model_type="t5gemma",
        prefix="model.",
        base=BASE,
        special=UsualIds(pad=0, bos=2, eos=1),
        head_prefixes=("lm_head.",),
        template=TEMPLATE,
        table=(
            Entry(read_stacks, stack_options),
            option("dropout_rate", *(f"dropout.{name}_rate" for name in ("residual", "embedding", "feed_forward"))),
            option("attention_dropout", "dropout.attention_rate"),
            option("tie_word_embeddings", "share_target_output"),
            ignored("vocab_size", "classifier_dropout_rate"),
        ),
        read_heads=functools.partial(llama.read_head, BASE, TABLE, HEAD),
        architecture=architecture,
        names=names,
        ignorable=(*tied_copies(TABLE, HEAD),),
    ),
)
