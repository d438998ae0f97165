"""`config.json` of a Hugging Face folder, read option by option, so that none is passed over in silence.

A family asks for the options it knows, with the default that the library itself has. In the end `finish` refuses every option that
nobody asked for, unless it is known to change no number of a model that evaluates.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from flaxformer_lite.model.feed_forward import Activation

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
"""Theirs: ours."""

THEIR_ACTIVATIONS = {str(ours): theirs for theirs, ours in reversed(ACTIVATIONS.items())} | {
    "gelu_tanh": "gelu_pytorch_tanh"
}
"""Ours, not gated: theirs."""

GATED: dict[Activation, Activation] = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}
"""An activation: the gated feed-forward layer with it."""

SPECIAL_IDS = (
    *("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id"),
    *("forced_eos_token_id", "unk_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
)


class SpecialIds(NamedTuple):
    """The special ids that the library gives a family where `config.json` says nothing; None: none."""

    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    start: int | None = None
    """What answers of an encoder–decoder start from; None: BOS."""


GENERATION = (
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "do_sample", "early_stopping", "num_beams"),
    *("num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff"),
    *("eta_cutoff", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"),
    *("bad_words_ids", "num_return_sequences", "output_scores", "return_dict_in_generate", "remove_invalid_values"),
    "renormalize_logits",
    *("exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "cache_implementation"),
)
"""How a text is made: read by `decoding.py`, from `generation_config.json` or, as older folders have it, from `config.json`."""

HARMLESS = frozenset(
    {
        # what the folder is called, and what made it
        *("_name_or_path", "_commit_hash", "architectures", "model_type", "transformers_version", "tokenizer_class"),
        *("auto_map", "name_or_path", "language", "datasets", "_num_labels", "finetuning_task", "task_specific_params"),
        # what classes are called, and how a loss is made of them
        *("id2label", "label2id", "num_labels", "problem_type", "prefix", "is_encoder_decoder"),
        # how it is computed or stored, not what
        *(
            "dtype",
            "torch_dtype",
            "use_cache",
            "gradient_checkpointing",
            "torchscript",
            "use_bfloat16",
            "pretraining_tp",
        ),
        *("_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "chunk_size_feed_forward"),
        *("_flash_attn_2_enabled", "tf_legacy_loss", "return_dict", "output_attentions", "output_hidden_states"),
        *("output_past", "use_return_dict", "keys_to_ignore_at_inference", "unsloth_fixed", "unsloth_version"),
        # training only, where this package has no such place
        *("initializer_range", "initializer_factor", "init_std", "classifier_dropout", "classif_dropout"),
        *("seq_classif_dropout", "qa_dropout", "layerdrop", "encoder_layerdrop", "decoder_layerdrop"),
        *SPECIAL_IDS,
        *GENERATION,
    }
)
"""Options that change nothing that a model in evaluation says of its inputs."""

ONLY: dict[str, Any] = {
    "is_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
    "quantization_config": None,
    "position_embedding_type": "absolute",
    "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
}
"""Options of every family that have one value here (a family that reads one of them decides itself)."""


class Settings:
    """The options of one JSON object. A getter's `default` is for an option that is absent or null.

    A wrong type or value is a ValueError that names the option, its value and what it should be.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config.json: ") -> None:
        self.values = dict(values)
        self._where = where
        self._asked: set[str] = set()
        self._groups: dict[str, Settings] = {}

    @property
    def architecture(self) -> str:
        """The class that the folder says it holds (it may be wrong: what tensors there are has the last word)."""
        found = self.values.get("architectures") or [""]
        return str(found[0])

    @property
    def num_labels(self) -> int:
        """How many classes a classification head has; the library's default is 2. One is a number, of more one is right.

        Raises: ValueError where `problem_type` says otherwise.
        """
        count = len(self.values.get("id2label") or {}) or self.integer("num_labels", 2)
        problem = self.values.get("problem_type")
        if problem == "multi_label_classification":
            raise self.wrong(
                "problem_type", "only classes of which one is right are implemented, not any number of them"
            )
        if problem == "regression" and count != 1:
            raise self.wrong("problem_type", f"only one number is implemented, and the head gives {count}")
        return count

    def has(self, name: str) -> bool:
        """Whether the option is there and not null."""
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        return int(self._value(name, (int,), default))

    def number(self, name: str, default: float | None = None) -> float:
        return float(self._value(name, (int, float), default))

    def flag(self, name: str, default: bool | None = None) -> bool:
        return bool(self._value(name, (bool,), default))

    def text(self, name: str, default: str | None = None, among: Collection[str] = ()) -> str:
        """A word, one of `among` where that is given."""
        value = str(self._value(name, (str,), default))
        if among and value not in among:
            raise self.wrong(name, f"it should be one of {', '.join(among)}")
        return value

    def activation(self, name: str, default: str) -> Activation:
        """Our name of the activation."""
        return ACTIVATIONS[self.text(name, default, ACTIVATIONS)]

    def optional_integer(self, name: str, absent: int | None = None) -> int | None:
        """A number where null means none; `absent` is for an option that is not there."""
        self._asked.add(name)
        return self.integer(name) if self.has(name) else None if name in self.values else absent

    def optional_number(self, name: str, absent: float | None = None) -> float | None:
        """The same for any number."""
        self._asked.add(name)
        return self.number(name) if self.has(name) else None if name in self.values else absent

    def items(self, name: str) -> list[Any]:
        """A list; an empty one where the option is absent or null."""
        return list(self._value(name, (list, tuple), []))

    def group(self, name: str) -> "Settings":
        """An object of further options, which are asked for likewise; without any where it is absent or null."""
        if name not in self._groups:
            self._groups[name] = Settings(self._value(name, (dict,), {}), f"{self._where}{name}.")
        return self._groups[name]

    def only(self, name: str, *allowed: Any) -> None:
        """Refuses an option that is there with another value than these (null is always allowed)."""
        self._asked.add(name)
        if self.has(name) and not any(equal(self.values[name], value) for value in allowed):
            values = " or ".join(json.dumps(value) for value in allowed)
            raise self.wrong(name, f"only {values} is implemented" if values else "that is not implemented")

    def ignore(self, *names: str) -> None:
        """Options that change nothing in this family."""
        self._asked.update(names)

    def finish(self, harmless: Collection[str] = HARMLESS, only: Mapping[str, Any] = ONLY) -> None:
        """Raises: ValueError that names an option which nobody asked for and which is not harmless, and its value."""
        for name, value in only.items():
            if name not in self._asked:
                self.only(name, value)
        for group in self._groups.values():
            group.finish((), {})
        for name in sorted(self.values.keys() - self._asked - set(harmless)):
            if self.has(name):
                raise self.wrong(name, "this option is not implemented here, and the model may differ by it")

    def wrong(self, name: str, rule: str) -> ValueError:
        """The error to raise for an option."""
        return ValueError(f"{self._where}{name} is {json.dumps(self.values.get(name))}: {rule}")

    def _value(self, name: str, kinds: tuple[type, ...], default: Any) -> Any:
        self._asked.add(name)
        if not self.has(name):
            if default is None:
                raise ValueError(f"{self._where}{name} is missing, and this family needs it")
            return default
        value = self.values[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}
            names |= {list: "a list", dict: "an object"}
            raise self.wrong(name, f"it should be {names[[kind for kind in kinds if kind in names][-1]]}")
        return value


def equal(a: Any, b: Any) -> bool:
    """Whether two JSON values are the same; true is not 1."""
    return bool(a == b and isinstance(a, bool) == isinstance(b, bool))
