"""A Hugging Face family: one `model_type`, with a table of options and a table of weights, both read in both directions.

Names of tensors are the library's own for the model with a head, so with the prefix of the base model (`bert.encoder.…`). A file
without that prefix is read as if it had it.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.interop.differences import resolved
from flaxformer_lite.interop.hf.options import UsualIds
from flaxformer_lite.interop.name_map import PYTORCH, Leaves, Names, NumpyArrays, Tensors, WeightName, name_map
from flaxformer_lite.interop.options import Draft, Options, Table, read_table, write_table

ANSWERS = "qa_outputs.weight"
"""The tensor of a head that finds answers, which most families have."""
ANSWERING = "ForQuestionAnswering"
"""The end of the name of a class that finds answers."""
OF_TOKENS = "ForTokenClassification"
"""The end of the name of a class for classes of tokens."""


class IgnorableTensor(NamedTuple):
    """A tensor that some files have and the model does not need. Its values are checked all the same."""

    pattern: str
    """A regular expression that matches the whole name."""
    expected: str
    """The expected values, in words, for the error."""
    fits: Callable[[np.ndarray, NumpyArrays, ModelConfig], bool]
    """Returns whether the values are the expected ones, given the tensor, all tensors of the file, and the model."""
    copy_of: tuple[str, ...] = ()
    """The tensors that it may repeat. If the file has only copies of a needed tensor, the first of them replaces it."""


class ClassNames(NamedTuple):
    """The classes of a family, by their heads."""

    base: str
    """Without a head."""
    language_model: str
    """With logits of the vocabulary."""
    classifier: str
    """With only the logits of classes, of a whole text."""
    of_tokens: str = ""
    """With logits of classes of each token; empty: the family has no such class here."""
    of_answers: str = ""
    """With two logits of each token, as an answer's first and last one; empty: the family has no such class here."""

    def of(self, model: ModelConfig, names: Collection[str] = ()) -> str:
        """Returns the class of a model; `names` are those of `Family.architecture`."""
        if model.head is not None:
            return self.language_model
        if model.pooler is None or not model.pooler.num_classes:
            return self.base
        if model.pooler.token != "each":
            return self.classifier
        return self.of_answers if ANSWERS in names or self.of_answers in names else self.of_tokens


def classes_of(name: str, language_model: str = "ForMaskedLM") -> ClassNames:
    """Returns the classes of a family whose names start with `name`; `language_model` is the end of that class."""
    heads = ("Model", language_model, "ForSequenceClassification", OF_TOKENS, ANSWERING)
    return ClassNames(*(f"{name}{head}" for head in heads))


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`: its options and its tensors, both ways."""

    model_type: str
    prefix: str
    """The start of the names of the base model's tensors, dot included; empty where the tensors have no prefix."""
    base: str
    """The class of the base model, which is saved without the prefix."""
    answers_prefix: str = ""
    """The prefix in files of the class that finds answers, if it is another."""
    special: UsualIds = UsualIds()
    """The special ids where `config.json` has none."""
    head_prefixes: tuple[str, ...] = ()
    """The starts of the names of tensors outside of the base model."""
    template: ModelConfig
    """The constants of the family, and the values of options that `config.json` leaves out."""
    table: Table
    """The options, in the order in which they are read."""
    read_heads: Callable[[Options, Draft, NumpyArrays], None]
    """Sets the heads and the tied tables of the draft, after the table: the tensors decide which exist."""
    architecture: Callable[[ModelConfig, Collection[str]], str]
    """Returns the class for a model. Gets the names of the imported tensors, and the class that the file states; for a model that
    was trained here none, or `ANSWERS`."""
    names: Callable[[ModelConfig, str], Names]
    """Returns the table of names. Gets the model and the class."""
    leaves: Leaves = PYTORCH
    buffers: tuple[str, ...] = ()
    """Parameters that the reference library does not train."""
    length: str = ""
    """The option for the longest text, where positions are computed; empty: the table writes it, or the family has none."""
    ignorable: tuple[IgnorableTensor, ...] = ()
    """Tensors that a file may have besides. A tensor that the name map reads is never among them."""
    unused_norm: str = ""
    """The norm that our stack of layers allocates for its first layer, which the family does not have; empty: no such norm."""
    like_unused: str = ""
    """The name of a norm of the same shape, which each file has."""

    def model_config(self, options: Options, tensors: NumpyArrays) -> ModelConfig:
        """Returns our model for `config.json` and all tensors. Raises: ValueError that names an option that does not fit."""
        draft = read_table(self.table, options, self.template)
        self.read_heads(options, draft, tensors)
        model: ModelConfig = draft.build()
        return model

    def options_for(self, model: ModelConfig) -> dict[str, Any]:
        """Returns `config.json` for a model, without special ids. Raises: ValueError for a setting it cannot express."""
        return write_table(self.table, resolved(model))

    def name_map(self, model: ModelConfig, architecture: str) -> list[WeightName]:
        """Returns the parameters of the model that the class has a name for."""
        return name_map(self.names(model, architecture), model, self.leaves)

    def full_names(self, weights: NumpyArrays) -> Tensors:
        """Returns the tensors under names with the prefix; norms of the oldest files get their present names."""
        tensors = {}
        bare = self.prefix and not any(name.startswith(self.prefix) for name in weights)
        for name, x in weights.items():
            if self.answers_prefix and name.startswith(self.answers_prefix):
                name = self.prefix + name.removeprefix(self.answers_prefix)
            elif bare and not name.startswith(self.head_prefixes):
                name = self.prefix + name
            tensors[name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")] = x
        for end, value in (("weight", 1), ("bias", 0)):
            if self.unused_norm and f"{self.like_unused}.{end}" in tensors:
                tensors[f"{self.unused_norm}.{end}"] = np.full_like(tensors[f"{self.like_unused}.{end}"], value)
        return tensors

    def split_ignorable(
        self, tensors: NumpyArrays, wanted: Collection[str], model: ModelConfig
    ) -> tuple[Tensors, list[str]]:
        """Returns the needed tensors, and the names of the ignorable ones.

        A copy replaces a wanted tensor that is not in the file.

        Raises: ValueError where the values of an ignorable tensor are not the expected ones.
        """
        tensors = dict(tensors)
        skipped = []
        matches = [
            (name, ignorable)
            for ignorable in self.ignorable
            for name in sorted(tensors.keys() - set(wanted))
            if re.fullmatch(ignorable.pattern, name)
        ]
        for name, ignorable in matches:
            for original in ignorable.copy_of:
                if original in wanted:
                    tensors.setdefault(original, tensors[name])
        for name, ignorable in matches:
            if not ignorable.fits(tensors[name], tensors, model):
                raise ValueError(f"the tensor {name} should be {ignorable.expected}: it has other values")
            skipped.append(name)
        return {name: x for name, x in tensors.items() if name not in skipped}, skipped

    def saved_names(self, weights: NumpyArrays, architecture: str) -> Tensors:
        """Returns the tensors under the names that the class saves them with, without the norm that it does not have."""
        if self.unused_norm:
            weights = {name: x for name, x in weights.items() if not name.startswith(f"{self.unused_norm}.")}
        finds_answers = architecture.endswith(ANSWERING) and self.answers_prefix
        if architecture != self.base and not finds_answers:
            return dict(weights)
        prefix = self.answers_prefix if finds_answers else ""
        return {
            prefix + name.removeprefix(self.prefix) if name.startswith(self.prefix) else name: x
            for name, x in weights.items()
        }


# Ignorable tensors ----------------------------------------------------------------------------------------------------


def tied_copies(original: str, *names: str) -> list[IgnorableTensor]:
    """Returns tied tensors that a file repeats under these names, equal to the original."""

    def fits(x: np.ndarray, weights: NumpyArrays, model: ModelConfig) -> bool:
        return tensors_equal(x, weights.get(original))

    expected = f"equal to {original}, with which it is tied"
    return [IgnorableTensor(re.escape(name), expected, fits, (original,)) for name in names]


def first_of(tensors: NumpyArrays, *names: str) -> np.ndarray | None:
    """Returns the first of these tensors that is in the file; None if none is."""
    return next((tensors[name] for name in names if name in tensors), None)


def tensors_equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Returns whether both tensors are present and equal."""
    return a is not None and b is not None and np.array_equal(a, b)


def position_ids(pattern: str) -> IgnorableTensor:
    """Returns a tensor of the position ids 0, 1, 2, …, `[P]` or `[1, P]`."""
    return IgnorableTensor(pattern, "0, 1, 2, …", lambda x, *_: bool((x.ravel() == np.arange(x.size)).all()))


def never_read(pattern: str, why: str) -> IgnorableTensor:
    """Returns a tensor that the library itself does not read, whatever its values."""
    return IgnorableTensor(pattern, why, lambda *_: True)
