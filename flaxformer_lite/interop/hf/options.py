"""The options of Hugging Face's `config.json` that all families share: activations, special ids, and those that change nothing."""

import functools
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flaxformer_lite.core.model import EmbeddingProjection, ModelConfig
from flaxformer_lite.core.reading.heads import Activation
from flaxformer_lite.interop.differences import CannotExpress
from flaxformer_lite.interop.options import UNKNOWN, Draft, Entry, Kind, Options, choice, ignored

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "linear",
}
"""Our activation, by theirs."""

THEIR_ACTIVATIONS = {str(ours): theirs for theirs, ours in reversed(ACTIVATIONS.items())} | {
    "gelu_tanh": "gelu_pytorch_tanh"
}
"""Their activation, by ours where it is not gated."""

GATED: dict[Activation, Activation] = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}
"""The gated feed-forward layer, by its activation."""

PLAIN = {gated: plain for plain, gated in GATED.items()}
"""The activation of a gated feed-forward layer."""

ACTIVATION = choice(ACTIVATIONS, THEIR_ACTIVATIONS)


def read_gated(options: Options, name: str, default: str) -> Activation:
    """Returns the gated feed-forward layer with the activation that an option names."""
    known = {theirs: GATED[ours] for theirs, ours in ACTIVATIONS.items() if ours in GATED}
    return known[options.text(name, default, known)]


def their_gated(activation: Activation) -> str:
    """Returns their activation of a gated feed-forward layer. Raises: CannotExpress for a layer that is not gated."""
    if activation not in PLAIN:
        raise CannotExpress(
            f"model.activation is {activation}, not one of {', '.join(GATED.values())}", ["model.activation"]
        )
    return THEIR_ACTIVATIONS[PLAIN[activation]]


GATED_ACTIVATION = Kind(read_gated, their_gated)

SUMMARY = ignored(
    *(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout"))
)
"""The options of a head that is not read, of multiple choice or of GPT2DoubleHeadsModel: its tensors would be left over."""


def embedding_width(name: str, usual: int | None = None, of: Literal["sum", "tokens"] = "sum") -> Entry:
    """Returns the entry of the width of embeddings, with a projection (`of`) where the layers have another width.

    usual: the width where the option is absent; None: that of the layers.
    """

    def read(options: Options, draft: Draft) -> None:
        width = options.integer(name, usual or draft["d_model"])
        same = width == draft["d_model"]
        draft["embedding_projection"] = None if same else EmbeddingProjection(width=width, of=of)

    return Entry(read, lambda model: {name: model.embedding_width})


class UsualIds(NamedTuple):
    """The library's special ids of a family, for those that `config.json` lacks; None: no such id."""

    pad: int | None = None
    bos: int | None = None
    eos: int | tuple[int, ...] | None = None
    start: int | None = None
    """The first token of an encoder–decoder's answer; None: BOS."""


SPECIAL_IDS = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "unk_token_id",
    "sep_token_id",
    "cls_token_id",
    "mask_token_id",
)

GENERATION = (
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_new_tokens",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "diversity_penalty",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "repetition_penalty",
    "length_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "num_return_sequences",
    "output_scores",
    "return_dict_in_generate",
    "remove_invalid_values",
    "renormalize_logits",
    "exponential_decay_length_penalty",
    "suppress_tokens",
    "begin_suppress_tokens",
    "cache_implementation",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "encoder_repetition_penalty",
)
"""Options of decoding. `decoding.py` reads them from `generation_config.json`; without this file, from `config.json`."""

HARMLESS = frozenset(
    {
        # the name of the folder, and the program that wrote it
        "_name_or_path",
        "_commit_hash",
        "architectures",
        "model_type",
        "transformers_version",
        "tokenizer_class",
        "_model_name_or_path",
        "name_or_path",
        "language",
        "datasets",
        "_num_labels",
        "finetuning_task",
        "task_specific_params",
        # the names of classes, and their loss
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "prefix",
        "is_encoder_decoder",
        # the function that a cross-encoder of sentence-transformers applies to its logit, and its release
        "sentence_transformers",
        "sbert_ce_default_activation_function",
        # the way of computing or storing, not the result
        "dtype",
        "torch_dtype",
        "use_cache",
        "gradient_checkpointing",
        "torchscript",
        "use_bfloat16",
        "_attn_implementation",
        "attn_implementation",
        "_attn_implementation_autoset",
        "chunk_size_feed_forward",
        "_flash_attn_2_enabled",
        "tf_legacy_loss",
        "return_dict",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "use_return_dict",
        "keys_to_ignore_at_inference",
        "unsloth_fixed",
        "unsloth_version",
        "pretraining_tp",
        # training only, where this package has no such setting
        "initializer_range",
        "initializer_factor",
        "init_std",
        "classifier_dropout",
        "classif_dropout",
        "seq_classif_dropout",
        "qa_dropout",
        "layerdrop",
        "encoder_layerdrop",
        "decoder_layerdrop",
        *SPECIAL_IDS,
        *GENERATION,
    }
)
"""Options that change no output of a model in evaluation."""

ONLY: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
}
"""Options with one value that is implemented, in every family that does not read them itself."""

OBEYED = {
    "auto_map": "the folder has code of its own, which is not run: delete the option if it computes what transformers has",
    "dual_chunk_attention_config": "vLLM reads long texts by it, transformers reads them otherwise: delete the option",
}
"""Options that no class of the library has and that others obey, with what the error says of them."""


@functools.cache
def library_options() -> dict[str, list[str]]:
    """Returns the options that transformers reads, by family; `every` has those of all families.

    The file has the present release. Options that only older ones read are in the tables of the families.
    """
    _, *lines = Path(__file__).with_name("words.txt").read_text("utf-8").replace("\n  ", " ").splitlines()
    return {name: words.split() for name, _, words in (line.partition(":") for line in lines)}


def refuse_unread(options: Options, model_type: str) -> str:
    """Refuses options that were not asked for, where they may change the model. Returns a note on the others; empty without any.

    A family that the library does not have may read any option.
    """
    known = library_options()
    if model_type not in known:
        options.finish({*HARMLESS, "auto_map"}, ONLY)
        return ""
    words = (*known["every"], *known[model_type])
    left = options.finish(HARMLESS, ONLY, dict.fromkeys(words, UNKNOWN) | OBEYED)
    if not left:
        return ""
    return f"config.json has {', '.join(left)}: transformers reads no such option of a {model_type} model, left out"


def padding_before(model: ModelConfig) -> int:
    """Returns the padding id, from which positions are counted. Raises: CannotExpress where they are counted otherwise."""
    pad_id, offset = model.position_padding_id, model.positions.offset
    if pad_id is None or offset != pad_id + 1:
        raise CannotExpress(
            f"it needs model.positions.offset to be model.position_padding_id + 1; they are {offset} and {pad_id}",
            ["model.position_padding_id", "model.positions.offset"],
        )
    return pad_id


def architecture_of(options: Options) -> str:
    """Returns the class that `config.json` names. It may be wrong: the tensors decide."""
    return str((options.items("architectures") or [""])[0])


def num_labels(options: Options) -> int:
    """Returns the number of classes of a classification head; the library's default is 2.

    Without `problem_type`, 1 class is a regression, and several are of single labels.

    Raises: ValueError where `problem_type` names another problem.
    """
    count = len(options.mapping("id2label")) or options.integer("num_labels", 2)
    if options.raw("problem_type") == "regression" and count != 1:
        raise options.wrong("problem_type", f"only regression to 1 number is implemented, and the head has {count}")
    return count
