"""GTE: post-norm encoders with rotary positions, gated feed-forward layers with one bias, BERT's pooler and RoBERTa's other head.

The names of tensors within layers are those of the code that came with the first files, whose model_type was "new".

Reference: Zhang et al. 2024, arXiv:2407.19669.
"""

from dataclasses import replace

from flaxformer_lite.core.model import LanguageModelHead, ModelConfig, Pooler, Rotary
from flaxformer_lite.interop.hf import bert, llama
from flaxformer_lite.interop.hf.family import Family, classes_of, tied_copies
from flaxformer_lite.interop.hf.nomic_bert import ROTARY
from flaxformer_lite.interop.hf.options import UsualIds, num_labels
from flaxformer_lite.interop.name_map import Names, NumpyArrays, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, option

CLASSES = classes_of("Gte")._replace(of_answers="")


def read_inner_dropout(options: Options, draft: Draft) -> None:
    """Sets the rate within feed-forward layers, which is that of the residual sums."""
    draft["dropout.feed_forward_rate"] = draft["dropout.residual_rate"]


def read_heads(options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    draft["head"] = LanguageModelHead(bias=True, transform="gelu") if "lm_head.dense.weight" in tensors else None
    has_classes, has_pooler = "classifier.weight" in tensors, "gte.pooler.dense.weight" in tensors
    draft["pooler"] = Pooler(num_classes=num_labels(options) if has_classes else 0) if has_pooler else None
    if has_classes and not has_pooler:
        draft["pooler"] = bert.labels_of_tokens(options)


LAYER = {
    "attention/{query,key,value}": "attention.qkv_proj",
    "attention/out": "attention.o_proj",
    "attention_post_norm": "attn_ln",
    "feed_forward/{up,gate}": "mlp.up_gate_proj",
    "feed_forward/down": "mlp.down_proj",
    "feed_forward_post_norm": "mlp_ln",
}
NAMES: Names = {
    "embedding": "gte.embeddings.word_embeddings",
    "token_type_embedding": "gte.embeddings.token_type_embeddings",
    "encoder/embedding_norm": "gte.embeddings.LayerNorm",
    **prefixed("encoder/layers/", "gte.encoder.layer.{i}.", LAYER),
    "head/transform": "lm_head.dense",
    "head/norm": "lm_head.norm",
    "pooler/dense": "gte.pooler.dense",
    "pooler/classes": "classifier",
}


def names(model: ModelConfig, architecture: str) -> Names:
    return {
        **NAMES,
        **({"head/bias": "lm_head.decoder.bias"} if model.share_target_output else {"head": "lm_head.decoder"}),
    }


FAMILIES = (
    Family(
        model_type="gte",
        prefix="gte.",
        base=CLASSES.base,
        special=UsualIds(pad=1),
        head_prefixes=("lm_head.", "classifier."),
        template=replace(
            bert.TEMPLATE,
            vocab_size=250048,
            num_token_types=1,
            positions=Rotary(base=160_000.0),
            activation="geglu",
            feed_forward_bias=False,
            feed_forward_out_bias=True,
            dropout=replace(bert.TEMPLATE.dropout, attention_rate=0.0),
        ),
        table=(
            *bert.WIDTHS,
            Entry(read_inner_dropout),
            option("type_vocab_size", "num_token_types"),
            llama.ACTIVATION,
            *ROTARY,
        ),
        read_heads=read_heads,
        architecture=CLASSES.of,
        names=names,
        length="max_position_embeddings",
        ignorable=tuple(tied_copies("gte.embeddings.word_embeddings.weight", "lm_head.decoder.weight")),
    ),
)
