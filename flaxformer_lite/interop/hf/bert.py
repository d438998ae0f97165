"""BERT: post-norm encoder, pooler, and the heads for masked tokens, next sentences and classes.

Reference: Devlin et al. 2018, arXiv:1810.04805.
"""

from collections.abc import Collection

from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.interop.hf.family import Family, never_read, position_ids, tied_copies
from flaxformer_lite.interop.hf.options import ACTIVATION, SpecialIds, num_labels
from flaxformer_lite.interop.name_map import Arrays, Names, prefixed
from flaxformer_lite.interop.options import Draft, Kind, Options, option
from flaxformer_lite.model.config import POST_NORM, LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.layers import DropoutRates, Normal
from flaxformer_lite.model.norms import LayerNorm
from flaxformer_lite.model.positions import Learned

TEMPLATE = ModelConfig(
    vocab_size=30522,
    d_model=768,
    num_heads=12,
    d_ff=3072,
    num_encoder_layers=12,
    num_decoder_layers=0,
    num_token_types=2,
    positions=Learned(max_positions=512),
    activation="gelu",
    norm=LayerNorm(epsilon=1e-12),
    residual=POST_NORM,
    dropout=DropoutRates(feed_forward_rate=0.0),
    embedding_norm=True,
    scale_embeddings=False,
    initializer=Normal(),
)


def at_least_one_type(num_token_types: int) -> int:
    if num_token_types == 0:
        raise CannotExpress("model.num_token_types is 0, and at least 1 is needed", ["model.num_token_types"])
    return num_token_types


TABLE = (
    option("vocab_size", "vocab_size"),
    option("hidden_size", "d_model"),
    option("num_attention_heads", "num_heads"),
    option("intermediate_size", "d_ff"),
    option("num_hidden_layers", "num_encoder_layers"),
    option("type_vocab_size", "num_token_types", kind=Kind(Options.integer, at_least_one_type)),
    option("max_position_embeddings", "positions.max_positions"),
    option("hidden_act", "activation", kind=ACTIVATION),
    option("layer_norm_eps", "norm.epsilon"),
    option("hidden_dropout_prob", "dropout.residual_rate", "dropout.embedding_rate"),
    option("attention_probs_dropout_prob", "dropout.attention_rate"),
    option("initializer_range", "positions.stddev", "initializer.stddev"),
    option("tie_word_embeddings", "share_target_output"),
)


def read_heads(options: Options, draft: Draft, tensors: Arrays) -> None:
    num_classes = 2 if "cls.seq_relationship.weight" in tensors else 0
    if "classifier.weight" in tensors:
        num_classes = num_labels(options)
    has_head = "cls.predictions.transform.dense.weight" in tensors
    draft["head"] = LanguageModelHead(bias=True, transform=draft["activation"]) if has_head else None
    draft["pooler"] = Pooler(num_classes=num_classes) if "bert.pooler.dense.weight" in tensors else None


def architecture(model: ModelConfig, names: Collection[str]) -> str:
    classes = model.pooler is not None and model.pooler.num_classes > 0
    if model.head is not None:
        return "BertForPreTraining" if classes else "BertForMaskedLM"
    if classes:
        next_sentence = "cls.seq_relationship.weight" in names
        return "BertForNextSentencePrediction" if next_sentence else "BertForSequenceClassification"
    return "BertModel"


EMBEDDINGS = {
    "embedding": "embeddings.word_embeddings",
    "token_type_embedding": "embeddings.token_type_embeddings",
    "encoder/positions": "embeddings.position_embeddings",
    "encoder/embedding_norm": "embeddings.LayerNorm",
}
LAYER = {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/out": "attention.output.dense",
    "attention_post_norm": "attention.output.LayerNorm",
    "feed_forward/up": "intermediate.dense",
    "feed_forward/down": "output.dense",
    "feed_forward_post_norm": "output.LayerNorm",
}
HEADS = {
    "head/transform": "cls.predictions.transform.dense",
    "head/norm": "cls.predictions.transform.LayerNorm",
    "pooler/dense": "bert.pooler.dense",
}


def names(model: ModelConfig, architecture: str) -> Names:
    classes = "classifier" if architecture == "BertForSequenceClassification" else "cls.seq_relationship"
    return {
        **prefixed("", "bert.", EMBEDDINGS),
        **prefixed("encoder/layers/", "bert.encoder.layer.{i}.", LAYER),
        **HEADS,
        **head_output(model, "cls.predictions"),
        "pooler/classes": classes,
    }


def head_output(model: ModelConfig, there: str) -> Names:
    """Returns the name of the last layer of a head, which is a bias alone where the embeddings are its kernel."""
    return {"head/bias": f"{there}.bias"} if model.share_target_output else {"head": f"{there}.decoder"}


FAMILIES = (
    Family(
        model_type="bert",
        prefix="bert.",
        base="BertModel",
        special=SpecialIds(pad=0),
        head_prefixes=("cls.", "classifier."),
        template=TEMPLATE,
        table=TABLE,
        read_heads=read_heads,
        architecture=architecture,
        names=names,
        ignorable=(
            *tied_copies("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
            *tied_copies("cls.predictions.bias", "cls.predictions.decoder.bias"),
            never_read(r"cls\.predictions\.bias", "unused: an untied head has a bias of its own"),
            position_ids(r"bert\.embeddings\.position_ids"),
        ),
    ),
)
