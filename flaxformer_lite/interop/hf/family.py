"""What a Hugging Face family is here, and the words that families are written in.

Names of tensors are the library's own for the model with a head, so with the prefix of the base model (`bert.encoder.…`).
A file without that prefix is read as if it had it.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from flaxformer_lite.interop.hf.settings import Settings, SpecialIds
from flaxformer_lite.interop.name_map import Arrays, Layout, WeightName
from flaxformer_lite.model.config import ModelConfig


class IgnorableTensor(NamedTuple):
    """A tensor that some files have and that the model does not need. What it holds is checked all the same."""

    pattern: str
    """A regular expression of the whole name."""
    expected: str
    """What it should be, in words, for the error."""
    fits: Callable[[np.ndarray, Arrays, ModelConfig], bool]
    """Whether it is that; gets the tensor, all tensors of the file, and the model."""
    of: str | None = None
    """Of which tensor it is a copy: where only copies are in the file, the first of them stands for the other."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One `model_type`: its options and its tensors, both ways."""

    model_type: str
    prefix: str
    """Before the names of the base model's tensors, dot included; empty where there is none."""
    base: str
    """The class of the base model, which is saved without the prefix."""
    special: SpecialIds
    """The special ids where `config.json` says nothing."""
    heads: tuple[str, ...] = ()
    """What the names of tensors outside of the base model begin with."""
    model_config: Callable[[Settings, Arrays], ModelConfig]
    """The model in our terms. Gets `config.json` and all tensors, which say what heads there are and what is tied."""
    architecture: Callable[[ModelConfig, Collection[str]], str]
    """The class for such a model. Gets the names of the tensors that were imported; none where it was trained here."""
    name_map: Callable[[ModelConfig, str], list[WeightName]]
    """Every parameter of the model and its name there. Gets the model and the class."""
    needless: tuple[IgnorableTensor, ...]
    """Tensors that such a file may have besides. What the name map reads is never among them."""
    settings_of: Callable[[ModelConfig], dict[str, Any]]
    """`config.json` for such a model, without special ids; raises a ValueError for what it cannot say."""

    def full_names(self, weights: Arrays) -> dict[str, np.ndarray]:
        """The tensors under names with the prefix, the oldest files' names of norms brought up to date."""
        tensors = {}
        bare = self.prefix and not any(name.startswith(self.prefix) for name in weights)
        for name, x in weights.items():
            name = self.prefix + name if bare and not name.startswith(self.heads) else name
            tensors[name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")] = x
        return tensors

    def pick(
        self, tensors: Arrays, wanted: Collection[str], model: ModelConfig
    ) -> tuple[dict[str, np.ndarray], list[str]]:
        """The tensors without those that are not needed, and the names of these.

        Where a wanted tensor is not in the file and a copy of it is, the copy is taken.

        Raises: ValueError where a tensor that is not needed holds something else than it should.
        """
        tensors, left_out = dict(tensors), []
        matches = [
            (name, needless)
            for needless in self.needless
            for name in sorted(tensors.keys() - set(wanted))
            if re.fullmatch(needless.pattern, name)
        ]
        for name, needless in matches:
            if needless.of is not None and needless.of in wanted:
                tensors.setdefault(needless.of, tensors[name])
        for name, needless in matches:
            if not needless.fits(tensors[name], tensors, model):
                raise ValueError(f"the tensor {name} should be {needless.expected}, and is something else")
            left_out.append(name)
        return {name: x for name, x in tensors.items() if name not in left_out}, left_out

    def saved_names(self, weights: Arrays, architecture: str) -> dict[str, np.ndarray]:
        """The tensors under the names that the class saves them with."""
        if architecture != self.base:
            return dict(weights)
        return {name.removeprefix(self.prefix): x for name, x in weights.items()}


# Tensors that are not needed ------------------------------------------------------------------------------------------


def copies(of: str, *names: str) -> list[IgnorableTensor]:
    """Tied tensors that are stored again under other names, equal to the one that is read."""

    def fits(x: np.ndarray, weights: Arrays, model: ModelConfig) -> bool:
        return same(x, weights.get(of))

    return [IgnorableTensor(re.escape(name), f"equal to {of}, with which it is tied", fits, of) for name in names]


def same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Whether both tensors are there and equal."""
    return a is not None and b is not None and np.array_equal(a, b)


def counting(pattern: str) -> IgnorableTensor:
    """Position ids 0, 1, 2, …, as `[P]` or `[1, P]`."""
    return IgnorableTensor(pattern, "0, 1, 2, …", lambda x, *_: bool((x.ravel() == np.arange(x.size)).all()))


def constant(pattern: str, value: float) -> IgnorableTensor:
    """A tensor of one value."""
    return IgnorableTensor(pattern, f"{value:g} everywhere", lambda x, *_: bool((x == value).all()))


def unused(pattern: str, why: str) -> IgnorableTensor:
    """A tensor that the library itself does not read, whatever it holds."""
    return IgnorableTensor(pattern, why, lambda *_: True)


# Names ----------------------------------------------------------------------------------------------------------------


def linear(ours: str, theirs: str, *, bias: bool = True) -> list[WeightName]:
    """A PyTorch Linear: `weight` `[out, in]` and, where it has one, `bias`."""
    kernel = WeightName(f"{ours}/kernel", (f"{theirs}.weight",), Layout.TRANSPOSED)
    return [kernel, WeightName(f"{ours}/bias", (f"{theirs}.bias",))] if bias else [kernel]


def norm(ours: str, theirs: str, *, bias: bool = True) -> list[WeightName]:
    """A norm: `weight` and, where it has one, `bias`."""
    scale = WeightName(f"{ours}/scale", (f"{theirs}.weight",))
    return [scale, WeightName(f"{ours}/bias", (f"{theirs}.bias",))] if bias else [scale]


def table(ours: str, theirs: str) -> list[WeightName]:
    """An embedding table."""
    return [WeightName(f"{ours}/embedding", (f"{theirs}.weight",))]


def stacked(weights: Iterable[WeightName], num_layers: int) -> list[WeightName]:
    """The weights of every layer, from those of one: `{i}` in their names stands for its number, from 0."""
    return [
        weight._replace(names=tuple(name.replace("{i}", str(i)) for i in range(num_layers) for name in weight.names))
        for weight in weights
    ]
