"""T5 and T5 1.1: encoder–decoder or encoder alone, RMS norm, no biases but a learned one on the scores, no scale of the scores.

Version 1.0 has relu, ties the head to the embeddings and multiplies the decoder's output by `d_model ** -0.5`; 1.1 has a gated gelu
(the tanh form), a head of its own and no factor.

Reference: Raffel et al. 2019, arXiv:1910.10683; Shazeer 2020, arXiv:2002.05202 (1.1).
"""

from collections.abc import Collection
from typing import Any

from flaxformer_lite.interop.hf.family import Family, copies, linear, norm, same, stacked, table, unused
from flaxformer_lite.interop.hf.settings import ACTIVATIONS, GATED, THEIR_ACTIVATIONS, Settings, SpecialIds
from flaxformer_lite.interop.name_map import Arrays, WeightName
from flaxformer_lite.model.attention import DotProduct
from flaxformer_lite.model.config import LanguageModelHead, ModelConfig
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.feed_forward import Activation
from flaxformer_lite.model.norms import RMSNorm
from flaxformer_lite.model.positions import RelativeBias

SHARED, HEAD = "shared.weight", "lm_head.weight"
FEED_FORWARD: dict[str, str] = (
    THEIR_ACTIVATIONS
    | {gated: f"gated-{THEIR_ACTIVATIONS[plain]}" for plain, gated in GATED.items()}
    | {"geglu_tanh": "gated-gelu", "geglu": "gated-gelu_python"}
)
"""Our activations: `feed_forward_proj`. There, gated-gelu means the tanh form."""


def model_config(settings: Settings, weights: Arrays) -> ModelConfig:
    """The model in our terms. The tensors say whether there is a decoder, and whether the head has a matrix of its own."""
    d_model, num_layers = settings.integer("d_model", 512), settings.integer("num_layers", 6)
    num_decoder_layers = settings.integer("num_decoder_layers", num_layers)
    has_decoder = any(name.startswith("decoder.block.") for name in weights)
    # `tie_word_embeddings` false has always meant: no factor. Newer files say so by another name, and that name goes first.
    scaled = settings.flag("scale_decoder_outputs", settings.flag("tie_word_embeddings", True))
    has_head = has_decoder and (HEAD in weights or settings.architecture != "T5Model")
    tied = not has_head or (HEAD not in weights and settings.flag("tie_word_embeddings", True))
    dropout_rate = settings.number("dropout_rate", 0.1)
    settings.ignore("n_positions")  # how long the texts of pretraining were: relative positions have no end
    return ModelConfig(
        vocab_size=settings.integer("vocab_size", 32128),
        d_model=d_model,
        num_heads=settings.integer("num_heads", 8),
        d_ff=settings.integer("d_ff", 2048),
        num_encoder_layers=num_layers,
        num_decoder_layers=num_decoder_layers if has_decoder else 0,
        attention=DotProduct(d_key=settings.integer("d_kv", 64), bias=False, scale=1.0),
        positions=RelativeBias(
            num_buckets=settings.integer("relative_attention_num_buckets", 32),
            max_distance=settings.integer("relative_attention_max_distance", 128),
        ),
        feed_forward_bias=False,
        activation=activation(settings),
        norm=RMSNorm(epsilon=settings.number("layer_norm_epsilon", 1e-6)),
        dropout=DropoutRates(
            embedding_rate=dropout_rate,
            attention_rate=dropout_rate,
            feed_forward_rate=dropout_rate,
            residual_rate=dropout_rate,
        ),
        scale_embeddings=False,
        share_target_output=tied or same(weights.get(HEAD), weights.get(SHARED)),
        head=LanguageModelHead(scale=d_model**-0.5 if scaled else 1.0) if has_head else None,
    )


def activation(settings: Settings) -> Activation:
    """`feed_forward_proj`, as in gated-gelu, or what newer files spell out beside it, which goes first."""
    *gate, name = settings.text("feed_forward_proj", "relu").split("-")
    if gate not in ([], ["gated"]):
        raise settings.wrong("feed_forward_proj", "it should be an activation, or gated- and an activation")
    name = settings.text("dense_act_fn", "gelu_new" if (gate, name) == (["gated"], "gelu") else name)
    said_by = "dense_act_fn" if settings.has("dense_act_fn") else "feed_forward_proj"
    gated = settings.flag("is_gated_act", bool(gate))
    known = {theirs: ours for theirs, ours in ACTIVATIONS.items() if not gated or ours in GATED}
    if name not in known:
        raise settings.wrong(said_by, f"the activation should be one of {', '.join(known)}")
    return GATED[known[name]] if gated else known[name]


def settings_of(model: ModelConfig) -> dict[str, Any]:
    """`config.json` for a model like that."""
    if not isinstance(model.positions, RelativeBias):
        raise ValueError(f"model.positions is {type(model.positions).__name__} (there: RelativeBias)")
    if not isinstance(model.attention, DotProduct):
        raise ValueError(f"model.attention is {type(model.attention).__name__} (there: DotProduct)")
    scaled = model.head is None or model.head.scale != 1
    return {
        "vocab_size": model.vocab_size,
        "d_model": model.d_model,
        "d_kv": model.attention.heads(model.d_model, model.num_heads).d_key,
        "d_ff": model.d_ff,
        "num_layers": model.num_encoder_layers,
        "num_decoder_layers": model.num_decoder_layers or model.num_encoder_layers,
        "num_heads": model.num_heads,
        "relative_attention_num_buckets": model.positions.num_buckets,
        "relative_attention_max_distance": model.positions.max_distance,
        "dropout_rate": model.dropout.residual_rate,
        "layer_norm_epsilon": model.norm.epsilon,
        "feed_forward_proj": FEED_FORWARD.get(model.activation, model.activation),
        "scale_decoder_outputs": scaled,
        "tie_word_embeddings": scaled or model.share_target_output,
    }


def architecture(model: ModelConfig, names: Collection[str]) -> str:
    """The class with these stacks."""
    if model.num_decoder_layers == 0:
        return "T5EncoderModel"
    return "T5Model" if model.head is None else "T5ForConditionalGeneration"


def name_map(model: ModelConfig, architecture: str) -> list[WeightName]:
    """Every parameter under the library's names."""
    weights = table("embedding", "shared")
    for side, num_layers in (("encoder", model.num_encoder_layers), ("decoder", model.num_decoder_layers)):
        if num_layers:
            weights += [
                *stacked(layer(side, model.activation in GATED.values()), num_layers),
                *table(f"{side}/position_bias", f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"),
                *norm(f"{side}/final_norm", f"{side}.final_layer_norm", bias=False),
            ]
    if model.head is not None and not model.share_target_output:
        weights += linear("head", "lm_head", bias=False)
    return weights


def layer(side: str, gated: bool) -> list[WeightName]:
    """One layer of a stack: its sublayers are numbered."""
    here, there = f"{side}/layers", f"{side}.block.{{i}}.layer"
    attentions = {"attention": "SelfAttention"} | ({"cross_attention": "EncDecAttention"} if side == "decoder" else {})
    weights = []
    for number, (ours, theirs) in enumerate(attentions.items()):
        for role in ("query", "key", "value", "out"):
            weights += linear(f"{here}/{ours}/{role}", f"{there}.{number}.{theirs}.{role[0]}", bias=False)
        weights += norm(f"{here}/{ours}_pre_norm", f"{there}.{number}.layer_norm", bias=False)
    last = f"{there}.{len(attentions)}"
    kernels = {"gate": "wi_0", "up": "wi_1", "down": "wo"} if gated else {"up": "wi", "down": "wo"}
    for ours, theirs in kernels.items():
        weights += linear(f"{here}/feed_forward/{ours}", f"{last}.DenseReluDense.{theirs}", bias=False)
    return weights + norm(f"{here}/feed_forward_pre_norm", f"{last}.layer_norm", bias=False)


NEEDLESS = (
    *copies(SHARED, "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", HEAD),
    unused(
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
        "a bias that the library does not read",
    ),
)
"""The shared table stored again, and a bias on the scores of the cross-attention, which has none."""

FAMILIES = (
    Family(
        model_type="t5",
        prefix="",
        base="T5Model",
        special=SpecialIds(pad=0, eos=1),
        model_config=model_config,
        architecture=architecture,
        name_map=name_map,
        needless=NEEDLESS,
        settings_of=settings_of,
    ),
)
