"""BERT, RoBERTa and DistilBERT: a post-norm encoder, a pooler, and heads for masked tokens, next sentences and classes.

RoBERTa counts positions from the padding id on. DistilBERT has no token types and no pooler, and names of its own. Data2Vec is a
RoBERTa. Megatron-BERT and RoBERTa-PreLayerNorm have norms before the sublayers, and one after the last layer.

References: Devlin et al. 2018, arXiv:1810.04805; Liu et al. 2019, arXiv:1907.11692; Sanh et al. 2019, arXiv:1910.01108; Shoeybi et
al. 2019, arXiv:1909.08053; Baevski et al. 2022, arXiv:2202.03555; Wettig et al. 2022, arXiv:2202.08005.
"""

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from flaxformer_lite.core.model import (
    POST_NORM,
    PRE_NORM,
    DropoutRates,
    LanguageModelHead,
    LayerNorm,
    ModelConfig,
    Normal,
    Pooler,
)
from flaxformer_lite.core.model.positions import FixedTable, Learned
from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.interop.hf.family import (
    ANSWERING,
    ANSWERS,
    ClassNames,
    Family,
    IgnorableTensor,
    classes_of,
    never_read,
    position_ids,
    tied_copies,
)
from flaxformer_lite.interop.hf.options import ACTIVATION, UsualIds, architecture_of, num_labels, padding_before
from flaxformer_lite.interop.name_map import Names, NumpyArrays, prefixed
from flaxformer_lite.interop.options import Draft, Entry, Kind, Options, Table, only, option

# BERT -----------------------------------------------------------------------------------------------------------------

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


WIDTHS = (
    option("vocab_size", "vocab_size"),
    option("hidden_size", "d_model"),
    option("num_attention_heads", "num_heads"),
    option("intermediate_size", "d_ff"),
    option("num_hidden_layers", "num_encoder_layers"),
    option("layer_norm_eps", "norm.epsilon"),
    option("hidden_dropout_prob", "dropout.residual_rate", "dropout.embedding_rate"),
    option("attention_probs_dropout_prob", "dropout.attention_rate"),
    option("tie_word_embeddings", "share_target_output"),
)
SIZES = (
    *WIDTHS,
    option("type_vocab_size", "num_token_types", kind=Kind(Options.integer, at_least_one_type)),
)
HIDDEN_ACT = option("hidden_act", "activation", kind=ACTIVATION)
STDDEV = option("initializer_range", "initializer.stddev")
TABLE = (
    *SIZES,
    HIDDEN_ACT,
    option("max_position_embeddings", "positions.max_positions"),
    option("initializer_range", "positions.stddev", "initializer.stddev"),
    only("position_embedding_type", "absolute"),  # the library had others up to version 4
)


def labels_of_tokens(options: Options) -> Pooler:
    """Returns the head that scores the classes of each token from the last layer itself."""
    return Pooler(token="each", activation=None, num_classes=num_labels(options))


def classes_layer(architecture: str, usual: str) -> Names:
    """Returns the name of the layer of classes: `usual`, but that of a head that finds answers."""
    return {"pooler/classes": "qa_outputs" if architecture.endswith(ANSWERING) else usual}


def unread(body: str, head: str) -> tuple[IgnorableTensor, ...]:
    """Returns the copies that files have of the tensors of a head, and what no model reads. `body`: the name of the base model.

    Older files have a pooler beside a classifier which reads the last layer itself.
    """
    return (
        *tied_copies(f"{body}.embeddings.word_embeddings.weight", f"{head}.decoder.weight"),
        *tied_copies(f"{head}.bias", f"{head}.decoder.bias"),
        never_read(rf"{re.escape(head)}\.bias", "unused: an untied head has a bias of its own"),
        position_ids(rf"{body}\.embeddings\.position_ids"),
        never_read(rf"{body}\.pooler\.dense\.(weight|bias)", "unused: the classifier reads the last layer itself"),
    )


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
}


def base_names(body: str, layer: Mapping[str, str] = LAYER) -> dict[str, str]:
    """Returns the names of the embeddings and the layers of the base model `body`."""
    return {
        **prefixed("", f"{body}.", EMBEDDINGS),
        **prefixed("encoder/layers/", f"{body}.encoder.layer.{{i}}.", layer),
    }


def head_output(model: ModelConfig, there: str) -> Names:
    """Returns the name of the last layer of a head, which has only a bias where the embeddings are its kernel."""
    return {"head/bias": f"{there}.bias"} if model.share_target_output else {"head": f"{there}.decoder"}


def read_heads(classes: ClassNames, body: str, options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    num_classes = 2 if "cls.seq_relationship.weight" in tensors else 0
    if "classifier.weight" in tensors:
        num_classes = num_labels(options)
    has_head = "cls.predictions.transform.dense.weight" in tensors
    draft["head"] = LanguageModelHead(bias=True, transform=draft["activation"]) if has_head else None
    draft["pooler"] = Pooler(num_classes=num_classes) if f"{body}.pooler.dense.weight" in tensors else None
    stated = (
        architecture_of(options) == classes.of_tokens
    )  # older files of this class have a pooler, which it does not read
    if ANSWERS in tensors or ("classifier.weight" in tensors and (draft["pooler"] is None or stated)):
        draft["pooler"] = labels_of_tokens(options)


def architecture(classes: ClassNames, model: ModelConfig, names: Collection[str]) -> str:
    usual, has_classes = classes.of(model, names), model.pooler is not None and model.pooler.num_classes > 0
    name = classes.base.removesuffix("Model")
    if usual == classes.language_model and has_classes:
        return f"{name}ForPreTraining"
    next_sentence = usual == classes.classifier and "cls.seq_relationship.weight" in names
    return f"{name}ForNextSentencePrediction" if next_sentence else usual


def names(classes: ClassNames, body: str, base: Names, model: ModelConfig, architecture: str) -> Names:
    place = "classifier" if architecture in (classes.classifier, classes.of_tokens) else "cls.seq_relationship"
    return {
        **base,
        **HEADS,
        **head_output(model, "cls.predictions"),
        "pooler/dense": f"{body}.pooler.dense",
        **classes_layer(architecture, place),
    }


def bert_family(model_type: str, name: str, template: ModelConfig, base: Names, body: str = "bert") -> Family:
    """Returns a family with BERT's heads. `name` begins the names of its classes; `base` names the tensors of the base model."""
    classes = classes_of(name)
    return Family(
        model_type=model_type,
        prefix=f"{body}.",
        base=classes.base,
        special=UsualIds(pad=0),
        head_prefixes=("cls.", "classifier.", "qa_outputs."),
        template=template,
        table=TABLE,
        read_heads=functools.partial(read_heads, classes, body),
        architecture=functools.partial(architecture, classes),
        names=functools.partial(names, classes, body, base),
        ignorable=unread(body, "cls.predictions"),
    )


BERT = bert_family("bert", "Bert", TEMPLATE, base_names("bert"))
MEGATRON_BERT = bert_family(
    "megatron-bert",
    "MegatronBert",
    replace(
        TEMPLATE,
        vocab_size=29056,
        d_model=1024,
        num_heads=16,
        d_ff=4096,
        num_encoder_layers=24,
        residual=PRE_NORM,
        embedding_norm=False,
    ),
    base_names("bert", LAYER | {"attention_pre_norm": "attention.ln", "feed_forward_pre_norm": "ln"})
    | {"encoder/final_norm": "bert.encoder.ln"},
)

# RoBERTa --------------------------------------------------------------------------------------------------------------


def read_padded_positions(options: Options, draft: Draft) -> None:
    """Reads the number of positions: the table also has the rows up to the padding id, which no position has."""
    pad_id, rows = options.integer("pad_token_id", 1), draft["positions.max_positions"]
    if rows - pad_id - 1 < 1:
        raise options.wrong("max_position_embeddings", f"with pad_token_id {pad_id} it should be at least {pad_id + 2}")
    draft["position_padding_id"] = pad_id
    draft["positions.offset"], draft["positions.max_positions"] = pad_id + 1, rows - pad_id - 1


def padded_position_options(model: ModelConfig) -> dict[str, object]:
    if type(model.positions) is not Learned:
        return {}
    pad_id = padding_before(model)
    return {"max_position_embeddings": model.positions.max_positions + pad_id + 1, "pad_token_id": pad_id}


def read_roberta_heads(body: str, options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    has_head = "lm_head.dense.weight" in tensors  # its activation is gelu, whatever `hidden_act` is
    draft["head"] = LanguageModelHead(bias=True, transform="gelu") if has_head else None
    draft["pooler"] = Pooler() if f"{body}.pooler.dense.weight" in tensors else None
    if "classifier.out_proj.weight" in tensors:
        draft["pooler"] = Pooler(num_classes=num_labels(options))
    elif "classifier.weight" in tensors or ANSWERS in tensors:
        draft["pooler"] = labels_of_tokens(options)


def roberta_names(body: str, base: Names, model: ModelConfig, architecture: str) -> Names:
    has_classes = model.pooler is not None and model.pooler.num_classes > 0
    of_tokens = model.pooler is not None and model.pooler.token == "each"
    return {
        **base,
        "head/transform": "lm_head.dense",
        "head/norm": "lm_head.layer_norm",
        **head_output(model, "lm_head"),
        "pooler/dense": "classifier.dense" if has_classes else f"{body}.pooler.dense",
        **classes_layer(architecture, "classifier" if of_tokens else "classifier.out_proj"),
    }


ROBERTA_TEMPLATE = replace(TEMPLATE, vocab_size=30522, position_padding_id=1, positions=Learned(offset=2))
ROBERTA_TABLE = (*TABLE, Entry(read_padded_positions, padded_position_options))


def roberta_family(
    model_type: str,
    name: str,
    body: str = "roberta",
    base: Names | None = None,
    template: ModelConfig = ROBERTA_TEMPLATE,
    table: Table = ROBERTA_TABLE,
) -> Family:
    """Returns a family with RoBERTa's heads. `base`: the names of the base model's tensors; None: RoBERTa's behind `body`."""
    classes = classes_of(name)
    return Family(
        model_type=model_type,
        prefix=f"{body}.",
        base=classes.base,
        special=UsualIds(pad=1, bos=0, eos=2),
        head_prefixes=("lm_head.", "classifier.", "qa_outputs."),
        template=template,
        table=table,
        read_heads=functools.partial(read_roberta_heads, body),
        architecture=classes.of,
        names=functools.partial(roberta_names, body, base or base_names(body)),
        ignorable=unread(body, "lm_head"),
    )


ROBERTA = roberta_family("roberta", "Roberta", template=replace(ROBERTA_TEMPLATE, vocab_size=50265))
XLM_ROBERTA, CAMEMBERT = roberta_family("xlm-roberta", "XLMRoberta"), roberta_family("camembert", "Camembert")
DATA2VEC = roberta_family("data2vec-text", "Data2VecText", "data2vec_text")
PRE_NORMS = {"attention_pre_norm": "attention.LayerNorm", "feed_forward_pre_norm": "intermediate.LayerNorm"}
ROBERTA_PRE_LAYER_NORM = roberta_family(
    "roberta-prelayernorm",
    "RobertaPreLayerNorm",
    "roberta_prelayernorm",
    base_names("roberta_prelayernorm", LAYER | PRE_NORMS) | {"encoder/final_norm": "roberta_prelayernorm.LayerNorm"},
    replace(ROBERTA.template, residual=PRE_NORM),
)

# DistilBERT -----------------------------------------------------------------------------------------------------------


def read_sinusoids(options: Options, draft: Draft) -> None:
    """Replaces the learned table where the config has sinusoids: they are stored as a fixed table."""
    if options.flag("sinusoidal_pos_embds", False):
        draft["positions"] = FixedTable()


def read_stddev(options: Options, draft: Draft) -> None:
    draft["initializer.stddev"] = options.number("initializer_range", 0.02)
    if type(draft["positions"]) is not FixedTable:
        draft["positions.stddev"] = draft["initializer.stddev"]


DISTILBERT_TABLE = (
    only("tie_weights_", True),
    option("vocab_size", "vocab_size"),
    option("dim", "d_model"),
    option("n_heads", "num_heads"),
    option("hidden_dim", "d_ff"),
    option("n_layers", "num_encoder_layers"),
    Entry(read_sinusoids, lambda model: {"sinusoidal_pos_embds": type(model.positions) is FixedTable}),
    option("max_position_embeddings", "positions.max_positions"),
    option("activation", "activation", kind=ACTIVATION),
    option("dropout", "dropout.residual_rate", "dropout.embedding_rate"),
    option("attention_dropout", "dropout.attention_rate"),
    Entry(read_stddev, lambda model: {"initializer_range": getattr(model.positions, "stddev", 0.02)}),
    option("tie_word_embeddings", "share_target_output"),
)


def read_distilbert_heads(options: Options, draft: Draft, tensors: NumpyArrays) -> None:
    has_head, has_classes = "vocab_transform.weight" in tensors, "pre_classifier.weight" in tensors
    draft["head"] = LanguageModelHead(bias=True, transform=draft["activation"]) if has_head else None
    draft["pooler"] = Pooler(activation="relu", num_classes=num_labels(options)) if has_classes else None
    if ANSWERS in tensors or ("classifier.weight" in tensors and not has_classes):
        draft["pooler"] = labels_of_tokens(options)


DISTILBERT_LAYER = {
    "attention/query": "attention.q_lin",
    "attention/key": "attention.k_lin",
    "attention/value": "attention.v_lin",
    "attention/out": "attention.out_lin",
    "attention_post_norm": "sa_layer_norm",
    "feed_forward/up": "ffn.lin1",
    "feed_forward/down": "ffn.lin2",
    "feed_forward_post_norm": "output_layer_norm",
}
DISTILBERT_NAMES: Names = {
    **prefixed("", "distilbert.", EMBEDDINGS),
    **prefixed("encoder/layers/", "distilbert.transformer.layer.{i}.", DISTILBERT_LAYER),
    "head/transform": "vocab_transform",
    "head/norm": "vocab_layer_norm",
    "head": "vocab_projector",
    "pooler/dense": "pre_classifier",
}
DISTILBERT = Family(
    model_type="distilbert",
    prefix="distilbert.",
    base="DistilBertModel",
    special=UsualIds(pad=0),
    head_prefixes=("vocab_", "pre_classifier.", "classifier.", "qa_outputs."),
    template=replace(TEMPLATE, num_encoder_layers=6, num_token_types=0),
    table=DISTILBERT_TABLE,
    read_heads=read_distilbert_heads,
    architecture=classes_of("DistilBert").of,
    names=lambda model, architecture: {**DISTILBERT_NAMES, **classes_layer(architecture, "classifier")},
    ignorable=(
        *tied_copies("distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"),
        position_ids(r"distilbert\.embeddings\.position_ids"),
    ),
)
FAMILIES = (BERT, ROBERTA, DISTILBERT, XLM_ROBERTA, CAMEMBERT, DATA2VEC, MEGATRON_BERT, ROBERTA_PRE_LAYER_NORM)
