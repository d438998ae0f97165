"""Nomic-BERT and Jina Embeddings v3: post-norm encoders with rotary positions and one matrix for query, key and value.

Nomic-BERT has gated feed-forward layers and no biases within its layers, with BERT's heads; Jina v3 has RoBERTa's. Both keep the
names of tensors of the code that came with them. Jina's adapters for tasks are separate folders of PEFT.

References: Nussbaum et al. 2024, arXiv:2402.01613; Sturua et al. 2024, arXiv:2409.10173.
"""

from dataclasses import replace

from flaxformer_lite.core.model import DotProduct, LanguageModelHead, LayerNorm, ModelConfig, Pooler, Rotary
from flaxformer_lite.interop.hf import bert, llama
from flaxformer_lite.interop.hf.family import Family, classes_of
from flaxformer_lite.interop.hf.options import PLAIN, SUMMARY, UsualIds, num_labels
from flaxformer_lite.interop.name_map import Names, NumpyArrays, prefixed
from flaxformer_lite.interop.options import OPTIONAL_INTEGER, Draft, Entry, Options, Table, ignored, only, option

# Both -----------------------------------------------------------------------------------------------------------------

LAYER = {
    "attention_post_norm": "norm1",
    "feed_forward/down": "mlp.fc2",
    "feed_forward_post_norm": "norm2",
}


def base_names(body: str, attention: str, layer: dict[str, str]) -> Names:
    """Returns the names of the base model `body`; `attention` is the name of that sublayer."""
    of_attention = {"attention/{query,key,value}": f"{attention}.Wqkv", "attention/out": f"{attention}.out_proj"}
    return {
        "embedding": f"{body}.embeddings.word_embeddings",
        "token_type_embedding": f"{body}.embeddings.token_type_embeddings",
        "encoder/embedding_norm": f"{body}.emb_ln",
        **prefixed("encoder/layers/", f"{body}.encoder.layers.{{i}}.", of_attention | LAYER | layer),
    }


def head_width(model: ModelConfig) -> dict[str, object]:
    """Returns the width of a head if all heads are not as wide as the model; the library does not read null as absent."""
    width = model.heads.d_key
    return {} if width * model.num_heads == model.d_model else {"head_dim": width}


ROTARY: Table = (
    option("head_dim", "attention.d_key", kind=OPTIONAL_INTEGER)._replace(write=head_width),
    llama.ROTARY,
    # The base of an older name was the default of the other names, and is read by now.
    Entry(lambda options, draft: draft.pop("positions.base", None)),
    bert.STDDEV,
)

# Nomic-BERT -----------------------------------------------------------------------------------------------------------

CLASSES = classes_of("NomicBert")._replace(of_answers="")
OLDER = (
    option("n_embd", "d_model"),
    option("n_head", "num_heads"),
    option("n_inner", "d_ff"),
    option("n_layer", "num_encoder_layers"),
    option("layer_norm_epsilon", "norm.epsilon"),
    option("rotary_emb_base", "positions.base"),
    option("attn_pdrop", "dropout.attention_rate"),
    option("resid_pdrop", "dropout.residual_rate"),
    option("embd_pdrop", "dropout.embedding_rate"),
)
"""The options of the files whose code came with them, which are named after GPT-2's."""

ABSENT = (
    *("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias", "prenorm", "parallel_block", "use_rms_norm"),
    *("causal", "rotary_emb_interleaved", "scale_attn_by_inverse_layer_idx", "parallel_block_tied_norm"),
)
"""The forms that the code behind these files had, and no file has."""


def read_older(options: Options, draft: Draft) -> None:
    """Reads the older names of options, before the newer ones."""
    for entry in OLDER:
        entry.read(options, draft)
    for name in ABSENT:
        options.only(name, False)
    options.only("scale_attn_weights", True)
    options.only("rotary_emb_fraction", 1)
    options.only("rotary_emb_scale_base")
    options.only("rotary_scaling_factor")
    options.only("activation_function", "swiglu")


def read_heads(options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    has_head = "cls.predictions.transform.dense.weight" in tensors
    draft["head"] = LanguageModelHead(bias=True, transform=PLAIN[draft["activation"]]) if has_head else None
    num_classes = num_labels(options) if "classifier.weight" in tensors else 0
    has_pooler = "nomic_bert.pooler.dense.weight" in tensors
    draft["pooler"] = Pooler(num_classes=num_classes) if has_pooler else None
    if num_classes and not has_pooler:
        draft["pooler"] = bert.labels_of_tokens(options)


NOMIC_LAYER = {"feed_forward/up": "mlp.fc11", "feed_forward/gate": "mlp.fc12"}
NOMIC_NAMES: Names = {
    **base_names("nomic_bert", "attn", NOMIC_LAYER),
    "head/transform": "cls.predictions.transform.dense",
    "head/norm": "cls.predictions.transform.layer_norm",
    "pooler/dense": "nomic_bert.pooler.dense",
    "pooler/classes": "classifier",
}
NOMIC_BERT = Family(
    model_type="nomic_bert",
    prefix="nomic_bert.",
    base=CLASSES.base,
    special=UsualIds(pad=0),
    head_prefixes=("cls.", "classifier."),
    template=replace(
        bert.TEMPLATE,
        vocab_size=30528,
        attention=DotProduct(bias=False, out_bias=False),
        positions=Rotary(base=1000.0),
        feed_forward_bias=False,
        activation="swiglu",
        dropout=replace(bert.TEMPLATE.dropout, embedding_rate=0.0, attention_rate=0.0, residual_rate=0.0),
    ),
    table=(
        Entry(read_older),
        *bert.SIZES,
        llama.ACTIVATION,
        *ROTARY,
        ignored("auto_map"),  # to the code that the library has since
        # Ways of computing, and lengths.
        ignored("use_flash_attn", "use_xentropy", "fused_bias_fc", "fused_dropout_add_ln"),
        ignored("dense_seq_output", "last_layer_subset", "pad_vocab_size_multiple", "reorder_and_upcast_attn"),
        ignored("n_positions", "max_trained_positions"),
        SUMMARY,
    ),
    read_heads=read_heads,
    architecture=CLASSES.of,
    names=lambda model, architecture: {**NOMIC_NAMES, **bert.head_output(model, "cls.predictions")},
    length="max_position_embeddings",
    ignorable=bert.unread("nomic_bert", "cls.predictions"),
)

# Jina v3 --------------------------------------------------------------------------------------------------------------

JINA_V3 = replace(
    bert.roberta_family(
        "jina_embeddings_v3",
        "JinaEmbeddingsV3",
        base=base_names("roberta", "mixer", {"feed_forward/up": "mlp.fc1"}),
        template=replace(
            bert.TEMPLATE,
            vocab_size=250002,
            d_model=1024,
            num_heads=16,
            d_ff=4096,
            num_encoder_layers=24,
            num_token_types=1,
            norm=LayerNorm(epsilon=1e-5),
            positions=Rotary(base=20_000.0),
        ),
        table=(*bert.SIZES, bert.HIDDEN_ACT, *ROTARY, only("lora_adaptations"), only("task_instructions")),
    ),
    length="max_position_embeddings",
)
FAMILIES = (NOMIC_BERT, JINA_V3)
