"""Answers of a run in one pass over a text: a method for each task of `tasks/`."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Unpack

import numpy as np
from jaxtyping import Float, PyTree

from flaxformer_lite.config import Config
from flaxformer_lite.core.model import Transformer
from flaxformer_lite.core.search.placement import ONE_DEVICE, Placement
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.engine.texts import ReadsTexts
from flaxformer_lite.tasks.classify.answers import Classify, ClassPrediction
from flaxformer_lite.tasks.embed.answers import Compare, Embed, matrix
from flaxformer_lite.tasks.fill_mask.answers import FillMask, TokenPrediction
from flaxformer_lite.tasks.label.answers import Label, LabelledWords
from flaxformer_lite.tasks.model import Reporting, TextModel
from flaxformer_lite.tasks.rank.answers import Query, Rank, RankedText, Relevance, sign
from flaxformer_lite.tasks.rate.answers import rated, rates_with
from flaxformer_lite.workdir import RunFolder


@dataclass(frozen=True, repr=False)
class TextPredictor(ReadsTexts):
    """A model with its parameters, tokenizers and config, which predicts for whole texts: vectors, classes, masked tokens."""

    folder: RunFolder
    config: Config
    params: PyTree
    tokenizers: Tokenizers | None
    """None if the weights were imported without a tokenizer."""
    step: int
    """The step of the checkpoint that holds the parameters; of an average, the newest one's."""
    placement: Placement = ONE_DEVICE
    """The devices that hold the parameters, their vocabulary padded where `tensor` devices do not divide it."""

    @property
    def path(self) -> Path:
        return self.folder.path

    @cached_property
    def text_model(self) -> TextModel:
        """The part of the run that reads texts in one pass."""
        return TextModel(self.path, self.config, self.params, self.tokenizers, self.placement)

    @property
    def model(self) -> Transformer:
        """The model with kernels that run on this machine."""
        return self.text_model.model

    def embed(
        self, texts: Sequence[str], *, prompt: str | None = None, width: int | None = None, **report: Unpack[Reporting]
    ) -> Float[np.ndarray, "N D"]:
        """Returns the vector of each text, by `model.sentence_embedding`.

        prompt: the name of the one of `objective.prompts` that stands before each text; "": none; None: the run's own. That is
        the one of its side (`objective.query_prompt`, `document_prompt`) for a text of a pair, of a ranking or of a search, and
        else `objective.default_prompt`.
        width: the number of values of a vector, its first ones scaled to length 1 (`objective.widths`); None: the whole vector.

        Truncates texts of more than `data.max_source_length` tokens, with a warning each.

        Example: `run.embed(["a cat", "a dog"]).shape`.

        Raises: ValueError if the model makes no vectors, or narrower ones, or the prompt is unknown.
        """
        vectors = Embed(prompt, width).answers(self.text_model, texts, **report)
        return matrix(vectors, width or self.text_model.vector_width)

    def classify(self, texts: Sequence[str | tuple[str, str]], **report: Unpack[Reporting]) -> list[ClassPrediction]:
        """Returns the class of each text or pair of texts with its probability, or all its labels; for a regression, the number.

        Classes are named as in `objective.classes`, else "0", "1" and so on. Truncates long texts as `embed` does.

        Example: `run.classify([("It rains.", "The sun shines.")])[0].label`.

        Raises: ValueError if the model has no classes or ranks, or was trained on single texts and is given a pair.
        """
        return Classify().answers(self.text_model, texts, **report)

    @property
    def sign(self) -> int:
        """1, or -1 where the lowest number is the best (`objective.best`)."""
        return sign(self.text_model)

    def relevance(self, pairs: Sequence[tuple[str, str]], **report: Unpack[Reporting]) -> Float[np.ndarray, "N"]:
        """Returns how well the second text of each pair answers the first: a cross-encoder's number, else the cosine of vectors.

        A low number is a good one where `objective.best` is "lowest".

        Example: `run.relevance([("capital of France", "Paris is its capital.")])`.

        Raises: ValueError if the model makes neither.
        """
        return np.array(Relevance().answers(self.text_model, pairs, **report), np.float32)

    def similarity(
        self,
        pairs: Sequence[tuple[str, str]],
        *,
        prompt: str | None = None,
        width: int | None = None,
        **report: Unpack[Reporting],
    ) -> Float[np.ndarray, "N"]:
        """Returns the cosine of the vectors of each pair, of a query and a document. The arguments are those of `embed`.

        Example: `run.similarity([("capital of France", "Paris is its capital.")])`.
        """
        return np.array(Compare(prompt, width).answers(self.text_model, pairs, **report), np.float32)

    @property
    def rates_with(self) -> tuple[bool, ...]:
        """Whether `rate` reads a reference: (True,) needs one, (False,) reads none, (True, False) reads one if it is given.

        Raises: ValueError if the run rates no translations.
        """
        return rates_with(self.text_model)

    def rate(
        self,
        sources: Sequence[str],
        translations: Sequence[str],
        references: Sequence[str] | None = None,
        **report: Unpack[Reporting],
    ) -> Float[np.ndarray, "N"]:
        """Returns the number of each translation; whether the highest or the lowest is the best is `objective.best`.

        Truncates long texts as `embed` does.

        Example: `run.rate(["ein Hund"], ["a dog"], ["a dog"])`.

        Raises: ValueError if the run rates no translations, or reads no reference, or needs one.
        """
        return rated(self.text_model, sources, translations, references, **report)

    def rank(self, query: str, candidates: Sequence[str], **report: Unpack[Reporting]) -> list[RankedText]:
        """Returns the candidates, each with its place in the list and its score by `relevance`, best first.

        Example: `run.rank("capital of France", ["It rains.", "Paris is its capital."])[0].index`.
        """
        return self.rankings([(query, candidates)], **report)[0]

    def rankings(
        self, asked: Sequence[tuple[str, Sequence[str]]], **report: Unpack[Reporting]
    ) -> list[list[RankedText]]:
        """Returns what `rank` does for each query with its candidates."""
        return Rank().answers(self.text_model, list(map(Query._make, asked)), **report)

    def label(self, texts: Sequence[str | Sequence[str]], **report: Unpack[Reporting]) -> list[LabelledWords]:
        """Returns the labels of the words of each text, a string or a list of words, and the entities that they spell: see `Label`.

        Example: `run.label(["Marie Curie was born in Warsaw."])[0].spans`.

        Raises: ValueError if the run was not trained to label words.
        """
        return Label().answers(self.text_model, texts, **report)

    def fill_mask(
        self, texts: Sequence[str], top: int = 5, **report: Unpack[Reporting]
    ) -> list[list[list[TokenPrediction]]]:
        """Returns the `top` most probable tokens at each [MASK] of each text, most probable first.

        Warns of texts without a mask. Truncates long texts as `embed` does.

        Example: `run.fill_mask(["The [MASK] is red."])[0][0][0].token`.

        Raises: ValueError if the model is no masked language model.
        """
        return FillMask(top).answers(self.text_model, texts, **report)
