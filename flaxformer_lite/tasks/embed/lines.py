"""Writes one vector for each line: as a JSON list, or all of them into an .npy file, or a folder of them.

With --similarity a line is a query and a document, separated by a tab, and the result is the cosine of their vectors. A line that
is not UTF-8 is reported; its answer is empty, in an .npy file a row of nan. So is that of a blank line. The result for a TSV or CSV
is the same table with one more column.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from flaxformer_lite.tasks.lines import Columns, TaskLines

if TYPE_CHECKING:
    from flaxformer_lite.tasks.task import TextModel


@dataclass(frozen=True)
class Lines(TaskLines[Any]):
    similarity: bool
    """Whether a line is a pair, whose answer is the cosine of its vectors."""
    prompt: str | None
    width: int | None
    output: str | None = None

    verb = "embed"
    doing = "embedding"
    file = "FILE.npy"

    @classmethod
    def add_arguments(cls, add: Callable[..., None]) -> None:
        add("--similarity", action="store_true", help="lines are pairs of texts: write their cosines")
        add("--prompt", metavar="NAME", help="which of objective.prompts is before each text; '': none")
        add("--width", type=int, metavar="N", help="write only the first N values, scaled to length 1")

    def __post_init__(self) -> None:
        if self.output is not None and self.similarity:
            raise ValueError("--output writes vectors and --similarity cosines: leave one of them out")

    def task(self, usual: Any) -> Any:
        embed = replace(usual, prompt=self.prompt, width=self.width)
        return embed.pairs() if self.similarity else embed

    @property
    def texts(self) -> int:
        return 2 if self.similarity else 1

    def columns(self, model: "TextModel") -> Columns[Any]:
        if self.similarity:
            return {"similarity": lambda cosine: f"{cosine:.6f}"}
        # the shortest digits that give the same float32
        return {"vector": lambda vector: json.dumps([float(str(x)) for x in vector])}

    def read(self, texts: Sequence[str]) -> str | Sequence[str]:
        return tuple(texts) if self.similarity else texts[0]

    def save(self, file: IO[bytes], answers: Sequence[Any], model: "TextModel") -> None:
        from flaxformer_lite.tasks.embed.answers import matrix

        np.save(file, matrix(answers, self.width or model.vector_width))
