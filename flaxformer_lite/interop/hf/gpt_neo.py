"""GPT-Neo: GPT-2 with three matrices for query, key and value, scores that are not scaled, and a window in every other layer.

Reference: Black et al. 2021, GPT-Neo, doi:10.5281/zenodo.5297715.
"""

from flaxformer_lite.core.model import DotProduct, DropoutRates, LayerNorm, Learned, ModelConfig, Normal, SlidingWindow
from flaxformer_lite.interop.hf import bart
from flaxformer_lite.interop.hf.family import classes_of, never_read
from flaxformer_lite.interop.hf.gpt2 import inner_width, names_with
from flaxformer_lite.interop.hf.llama import FULL, LOCAL, decoder_family, layer_types
from flaxformer_lite.interop.hf.options import ACTIVATION, SUMMARY, UsualIds
from flaxformer_lite.interop.name_map import prefixed
from flaxformer_lite.interop.options import Draft, Entry, Options, option

TEMPLATE = ModelConfig(
    vocab_size=50257,
    d_model=2048,
    num_heads=16,
    num_encoder_layers=0,
    num_decoder_layers=24,
    attention=DotProduct(bias=False, out_bias=True, scale=1.0),
    positions=Learned(max_positions=2048),
    activation="gelu_tanh",
    norm=LayerNorm(epsilon=1e-5),
    dropout=DropoutRates(embedding_rate=0.0, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.0),
    scale_embeddings=False,
    initializer=Normal(),
)

WORDS = {FULL: "global", LOCAL: "local"}
"""This family's words for the two types of layers."""


def read_attention(options: Options, draft: Draft) -> None:
    """Reads the layers' types: a word for each, or else groups of words with the number of their repetitions."""
    name = "attention_layers" if options.has("attention_layers") else "attention_types"
    groups, size = options.items("attention_types") or [[[*WORDS.values()], 12]], options.integer("window_size", 256)
    rule = f"it should be {' or '.join(WORDS.values())}, num_layers {draft['num_decoder_layers']} times"
    try:
        types = options.items("attention_layers") or [word for words, number in groups for word in words * number]
    except (TypeError, ValueError):
        raise options.wrong(name, f"{rule}, in groups [[WORD, …], NUMBER]") from None
    if len(types) != draft["num_decoder_layers"] or any(word not in WORDS.values() for word in types):
        raise options.wrong(name, rule)
    local = tuple(i for i, word in enumerate(types) if word == WORDS[LOCAL])
    layers = None if len(local) == len(types) else local
    draft["sliding_window"] = SlidingWindow(size=size, layers=layers) if local else None


def attention_options(model: ModelConfig) -> dict[str, object]:
    words = [WORDS[kind] for kind in layer_types(model)]
    size = {} if model.sliding_window is None else {"window_size": model.sliding_window.size}
    return {"attention_types": [[words, 1]], "attention_layers": words, **size}


TABLE = (
    option("vocab_size", "vocab_size"),
    option("hidden_size", "d_model"),
    option("num_heads", "num_heads"),
    option("num_layers", "num_decoder_layers"),
    inner_width("intermediate_size"),
    option("max_position_embeddings", "positions.max_positions"),
    option("activation_function", "activation", kind=ACTIVATION),
    option("layer_norm_epsilon", "norm.epsilon"),
    Entry(read_attention, attention_options),
    option("embed_dropout", "dropout.embedding_rate"),
    option("attention_dropout", "dropout.attention_rate"),
    option("resid_dropout", "dropout.residual_rate"),
    option("initializer_range", "positions.stddev", "initializer.stddev"),
    option("tie_word_embeddings", "share_target_output"),
    SUMMARY,
)

FAMILIES = (
    decoder_family(
        "gpt_neo",
        classes_of("GPTNeo", "ForCausalLM"),
        UsualIds(bos=50256, eos=50256),
        TEMPLATE,
        TABLE,
        names_with(prefixed("attention/", "attn.attention.", bart.ROLES)),
        never_read(r"transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)", "unused: masks follow from the config"),
        of_tokens="classifier",
    ),
)
