"""Vectors of texts, and the cosines of the vectors of a query and a document."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from flaxformer_lite.core.base.bounds import PositiveInt
from flaxformer_lite.core.reading.heads import check_one_stack
from flaxformer_lite.engine.heads import unit_vectors
from flaxformer_lite.tasks.commands import use_command
from flaxformer_lite.tasks.task import Report, Task, Text, TextModel

Vector = Float[np.ndarray, "D"]


def matrix(vectors: Sequence[Vector | None], width: int) -> Float[np.ndarray, "N D"]:
    """Returns vectors of `width` values as the rows of a matrix; None: a row of nan."""
    missing = np.full(width, np.nan, np.float32)
    return np.array([missing if one is None else one for one in vectors], np.float32).reshape(-1, width)


@dataclass(frozen=True)
class Embed(Task[str, Vector]):
    """The vector of each text, by `model.sentence_embedding`."""

    prompt: Text | None = None
    """The name of the one of `objective.prompts` that stands before each text; "": none; None: the run's own."""
    width: PositiveInt | None = None
    """The number of values of a vector, its first ones scaled to length 1 (`objective.widths`); None: the whole vector."""

    name = "embed"
    reads = "texts"
    asked = Text

    def check(self, model: TextModel) -> None:
        if model.config.model.sentence_embedding is None:
            raise ValueError(
                f"model.sentence_embedding is None, so the run {model.path} makes no vectors: use "
                f"{use_command(model.config)}, or a run that has it set"
            )
        check_one_stack(model.config.model, f"the run {model.path}")
        if self.width is not None and not 1 <= self.width <= model.vector_width:
            raise ValueError(
                f"the width is {self.width}, but vectors have {model.vector_width} values: choose 1 to {model.vector_width}"
            )
        self.before(model)

    def pairs(self) -> "Compare":
        """Returns the task of comparing the vectors of pairs, with the same options."""
        return Compare(self)

    def before(self, model: TextModel) -> str:
        """Returns the text before each text. Raises: ValueError for a prompt that the objective does not have."""
        return model.config.objective.text_before(self.prompt)

    def lengths(self, model: TextModel, asked: str) -> list[int]:
        return [model.length(self.before(model) + asked)]

    def answered(self, model: TextModel, asked: Sequence[str], report: Report) -> list[Vector]:
        before = self.before(model)
        vectors = model.predict("vectors", [before + text for text in asked], report)
        return vectors if self.width is None or not vectors else list(unit_vectors(np.stack(vectors)[:, : self.width]))

    def sides(self, model: TextModel, sides: Sequence[Sequence[str]], report: Report) -> list[Float[np.ndarray, "N D"]]:
        """Returns the vectors of the texts of each side. Equal texts are read once, as those of the first line."""
        whole = list(itertools.chain(*sides))
        lines = [*report.lines] * len(sides)
        firsts = dict(zip(reversed(whole), reversed(lines), strict=True))
        numbers = {text: number for number, text in enumerate(dict.fromkeys(whole))}
        report = report._replace(lines=list(map(firsts.__getitem__, numbers)))
        vectors = np.stack(self.answered(model, list(numbers), report))
        return [vectors[[numbers[text] for text in texts]] for texts in sides]


@dataclass(frozen=True)
class Compare(Task[tuple[str, str], float]):
    """The cosine of the vectors of each pair, of a query and a document."""

    embed: Embed = Embed()
    """The task that makes the vectors; without a prompt each side has its own prompt."""

    field = "pairs"

    def check(self, model: TextModel) -> None:
        self.embed.check(model)

    def sides(self, model: TextModel) -> list[Embed]:
        """Returns what makes the vectors of queries, and of documents."""
        prompts = model.config.objective.side_prompts
        if self.embed.prompt is not None:
            return [self.embed] * len(prompts)
        return [replace(self.embed, prompt=prompt) for prompt in prompts]

    def lengths(self, model: TextModel, asked: tuple[str, str]) -> list[int]:
        query, document = asked
        of_query, of_document = self.sides(model)
        return of_query.lengths(model, query) + of_document.lengths(model, document)

    def answered(self, model: TextModel, asked: Sequence[tuple[str, str]], report: Report) -> list[float]:
        sides = [
            unit_vectors(*embed.sides(model, [texts], report))
            for embed, texts in zip(self.sides(model), zip(*asked, strict=True), strict=False)
        ]
        return np.einsum("ND,ND->N", *sides).tolist() if sides else []
