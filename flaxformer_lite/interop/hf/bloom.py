"""BLOOM: a decoder with ALiBi, a norm of the embeddings, and one matrix that holds queries, keys and values by head.

Reference: BigScience Workshop 2022, arXiv:2211.05100.
"""

from flaxformer_lite.core.model import ALiBi
from flaxformer_lite.interop.hf import llama
from flaxformer_lite.interop.hf.family import classes_of
from flaxformer_lite.interop.hf.options import UsualIds
from flaxformer_lite.interop.hf.parallel_branches import FEED_FORWARD, FUSED, TEMPLATE
from flaxformer_lite.interop.name_map import prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, only, option, replaced

BLOOM = replaced(
    TEMPLATE,
    {
        "vocab_size": 250880,
        "d_model": 64,
        "num_heads": 8,
        "num_decoder_layers": 2,
        "positions": ALiBi(),
        "embedding_norm": True,
        "residual.branches": "sequential",
        "share_target_output": True,
    },
)


def size(name: str, other: str, path: str) -> Entry:
    """Returns the entry of a size, which has another name in some files; as in the library, that name comes first."""

    def read(options: Options, draft: Draft) -> None:
        draft[path] = options.integer(other, options.integer(name, draft[path]))

    return Entry(read, option(name, path).write)


def read_width(options: Options, draft: Draft) -> None:
    """Sets the inner width, which is four times the model's."""
    draft["d_ff"] = 4 * draft["d_model"]


LAYER = llama.NORMS_BEFORE | prefixed("", "self_attention.", FUSED) | FEED_FORWARD

FAMILIES = (
    llama.decoder_family(
        "bloom",
        classes_of("Bloom", "ForCausalLM"),
        UsualIds(bos=1, eos=2),
        BLOOM,
        (
            option("vocab_size", "vocab_size"),
            size("hidden_size", "n_embed", "d_model"),
            size("n_head", "num_attention_heads", "num_heads"),
            size("n_layer", "num_hidden_layers", "num_decoder_layers"),
            Entry(read_width),
            option("layer_norm_epsilon", "norm.epsilon"),
            option("hidden_dropout", "dropout.residual_rate"),
            option("attention_dropout", "dropout.attention_rate"),
            option("initializer_range", "initializer.stddev"),
            option("tie_word_embeddings", "share_target_output"),
            only("apply_residual_connection_post_layernorm", False),
            ignored("slow_but_exact"),  # the order of a sum
        ),
        {
            "embedding": "transformer.word_embeddings",
            "decoder/embedding_norm": "transformer.word_embeddings_layernorm",
            **prefixed("decoder/layers/", "transformer.h.{i}.", LAYER),
            "decoder/final_norm": "transformer.ln_f",
        },
        of_tokens="classifier",
    ),
)
