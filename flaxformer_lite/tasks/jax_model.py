"""The model of a run, by JAX."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.core.base.once import once
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.placement.placement import ONE_DEVICE, Placement
from flaxformer_lite.core.predictions.encoder import (
    BatchPredictor,
    estimated_ratings,
    predict_class_logits,
    predict_embeddings,
    predict_top_tokens,
    reads_first,
)
from flaxformer_lite.core.text import EncodedText
from flaxformer_lite.tasks.task import TextModel, Wanted


@once
def bound_predictor(
    model: Transformer, key: tuple[Any, ...], batch_tokens: int, pad_id: int, placement: Placement
) -> BatchPredictor:
    """Returns the predictor of a function with its first arguments. Equal models share it, and so its programs."""
    function, *arguments = key
    return BatchPredictor(model, functools.partial(function, *arguments), batch_tokens, pad_id, placement)


@dataclass(frozen=True)
class JaxModel(TextModel):
    """A model with its parameters, which JAX computes."""

    engine = "jax"
    params: PyTree = field(repr=False)
    placement: Placement = ONE_DEVICE
    """The devices that hold the parameters, their vocabulary padded where `tensor` devices do not divide it."""
    batch_predictors: dict[tuple[Any, ...], BatchPredictor] = field(default_factory=dict, repr=False, compare=False)
    """One for each function and its arguments, because each keeps what it compiled; other parameters share them."""

    @cached_property
    def model(self) -> Transformer:
        """The model with kernels that run on this machine."""
        return Transformer(self.config.model.for_use, self.placement.tensor)

    def batch_predictor(self, function: Callable[..., Any], *arguments: object) -> BatchPredictor:
        """Returns the compiled form of a function of `core/predictions/encoder.py`."""
        key = (function, *arguments)
        if key not in self.batch_predictors:
            sizes = self.config.decode.batch_tokens, self.tokenizer.pad_id
            self.batch_predictors[key] = bound_predictor(self.model, key, *sizes, self.placement)
        return self.batch_predictors[key]

    def read(self, wanted: Wanted, rows: Sequence[EncodedText], progress: ProgressCallback) -> list[Any]:
        if wanted == "vectors":
            return self.batch_predictor(predict_embeddings).predict({"params": self.params}, rows, None, progress)
        at_end = self.config.model.has_two_stacks and not reads_first(self.config.model)
        ends = [[self.end_position(row)] for row in rows] if at_end else None
        predictor = self.batch_predictor(predict_class_logits, self.config.decode.bos_id)
        return predictor.predict({"params": self.params}, rows, ends, progress)

    def top_tokens(
        self, top: int, rows: Sequence[EncodedText], positions: Sequence[Sequence[int]], progress: ProgressCallback
    ) -> list[object]:
        """Returns probabilities and ids of the most probable tokens at the positions of each row."""
        return self.batch_predictor(predict_top_tokens, top).predict({"params": self.params}, rows, positions, progress)

    def ratings(self, sides: Sequence[Float[np.ndarray, "B E"]]) -> Float[np.ndarray, "B"]:
        """Returns the numbers of translations, by `model.estimator`, from the vectors of sources, translations and references."""
        source, translation, *reference = sides
        numbers = estimated_ratings(self.model, {"params": self.params}, source, translation, *(reference or [source]))
        return np.asarray(numbers)

    def end_position(self, row: EncodedText) -> int:
        """Returns the position of the last end, the first of `decode.eos_ids`. Raises: ValueError if the text has none."""
        end = self.config.decode.eos_id
        if end not in row.tokens:
            raise ValueError(
                f"the tokenizer of {self.path} ends no text with {end}, the first of decode.eos_ids, where this model's "
                "classes are read: use Run.forward from Python, with attention_mask"
            )
        return len(row.tokens) - 1 - row.tokens[::-1].index(end)
