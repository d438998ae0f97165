"""EuroBERT: the parts of Llama in an encoder, with heads for masked words, texts and tokens.

Reference: Boizard et al. 2025, arXiv:2503.05500.
"""

from typing import Any

from flaxformer_lite.core.model import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.interop.hf import llama
from flaxformer_lite.interop.hf.family import Family, classes_of, tied_copies
from flaxformer_lite.interop.hf.options import UsualIds, num_labels
from flaxformer_lite.interop.name_map import Names, NumpyArrays, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, only, option, replaced, required

CLASSES = classes_of("EuroBert")._replace(of_answers="")
TABLE_NAME, HEAD_NAME = "model.embed_tokens.weight", "lm_head.weight"
POOLINGS = {"bos": "first", "mean": "mean", "late": "late_mean"}
"""Our token of a pooler, by `classifier_pooling`."""

TEMPLATE = replaced(
    llama.TEMPLATE,
    {
        "vocab_size": 128256,
        "num_encoder_layers": 12,
        "num_decoder_layers": 0,
        "norm.epsilon": 1e-5,
        "head": LanguageModelHead(),
        "pooler": Pooler(token="late_mean", activation="gelu"),
    },
)


def pooling_options(model: ModelConfig) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in POOLINGS.items()}
    return {"classifier_pooling": names[model.pooler.token]} if model.pooler and model.pooler.token in names else {}


def read_heads(options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    llama.read_head(CLASSES.base, TABLE_NAME, HEAD_NAME, options, draft, tensors)
    if "classifier.weight" not in tensors:
        draft["pooler"] = None
        return
    draft["head"], draft["pooler.num_classes"] = None, num_labels(options)
    if "dense.weight" not in tensors:
        draft["pooler.token"], draft["pooler.activation"] = "each", None


def names(model: ModelConfig, architecture: str) -> Names:
    return {
        "embedding": "model.embed_tokens",
        **prefixed("encoder/layers/", "model.layers.{i}.", llama.LAYER),
        "encoder/final_norm": "model.norm",
        "head": "lm_head",
        "pooler/dense": "dense",
        "pooler/classes": "classifier",
    }


FAMILIES = (
    Family(
        model_type="eurobert",
        prefix="model.",
        base=CLASSES.base,
        special=UsualIds(pad=128001, bos=128000, eos=128001),
        head_prefixes=("lm_head.", "dense.", "classifier."),
        template=TEMPLATE,
        table=(
            required("num_hidden_layers", "num_encoder_layers"),
            *llama.SHARED,
            llama.ATTENTION_BIAS,
            option("mlp_bias", "feed_forward_bias", "head.bias"),
            llama.ACTIVATION,
            llama.ROTARY,
            llama.HEADS_DIVIDE,
            Entry(
                lambda options, draft: draft.set(
                    "pooler.token", POOLINGS[options.text("classifier_pooling", "late", POOLINGS)]
                ),
                pooling_options,
            ),
            # Of the files that came with code of their own.
            only("is_causal", False),
            only("clf_pooling", "late"),
            ignored("auto_map", "hidden_dropout", "bos_token", "eos_token", "pad_token", "mask_token"),
        ),
        read_heads=read_heads,
        architecture=CLASSES.of,
        names=names,
        length="max_position_embeddings",
        ignorable=(*tied_copies(TABLE_NAME, HEAD_NAME),),
    ),
)
