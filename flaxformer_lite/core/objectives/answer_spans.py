"""Answers in texts: an encoder reads a question with a text, and marks the first and the last token of the answer."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flaxformer_lite.core.base.bounds import LARGEST
from flaxformer_lite.core.data.records import LabelledText, Lengths, TokenPair
from flaxformer_lite.core.data.token_arrays import Rows, Spans, TokenArrays
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.inputs import Outputs
from flaxformer_lite.core.objectives.base import check_pooler
from flaxformer_lite.core.objectives.batch import Batch, text_row
from flaxformer_lite.core.objectives.candidates import ABSENT_SCORE
from flaxformer_lite.core.objectives.classification import WholeTexts
from flaxformer_lite.core.objectives.losses import Counts, LossTerm, accuracy, cross_entropy
from flaxformer_lite.core.objectives.token_labels import token_logits
from flaxformer_lite.core.reading.objectives import ANSWER, AnswerWindows
from flaxformer_lite.core.text import SpecialIds, Tokenizer
from flaxformer_lite.core.text.characters import ByteTokenizer
from flaxformer_lite.core.text.pairs import Extent


@dataclass(frozen=True, kw_only=True)
class AnswerSpans(AnswerWindows, WholeTexts):
    """The part of a text that answers a question. `model.pooler` scores each token twice, as the answer's first and as its last.

        row   BOS question EOS, a window of the text, EOS

    A window without the whole answer has its answer at position 0. A question has at most half of a row. Evaluation reports
    `loss`, and `accuracy` of the first and the last tokens in windows; of the answers as texts `answer_exact` and `answer_f1`,
    which compare words as SQuAD's scores do.

    Reference: Devlin et al. 2018, arXiv:1810.04805, sections 4.2 and 4.3.
    """

    kind: Literal["answer_spans"] = "answer_spans"
    unit, counted = "questions", "places"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold and not self.unanswerable:
            raise ValueError(
                f"objective.threshold is {self.threshold}, but objective.unanswerable is False, so each question has an answer: "
                "leave it out, or set unanswerable to True"
            )

    @property
    def metric_names(self) -> tuple[str, ...]:
        return ("loss", "accuracy")

    @property
    def text_metric_names(self) -> tuple[str, ...]:
        return ("answer_exact", "answer_f1")

    def check_model(self, model: ModelConfig) -> None:
        """Raises: ValueError if the model has two stacks, or not two classes of each token."""
        super().check_model(model)
        check_pooler(model, 2, f"objective.kind '{self.kind}' needs", each=True)

    # From records to rows --------------------------------------------------------------------------------------------

    def make_rows(
        self, records: Sequence[TokenPair], longest: Lengths, seed: int, tokenizer: Tokenizer | None = None
    ) -> Rows:
        """Returns a row for each window of each text that could be read.

        Its label is the positions of the answer's first and last token, both 0 if the window lacks a part of the answer.
        """
        arrays, reader = TokenArrays.of(records), tokenizer or ByteTokenizer()
        kept = np.flatnonzero(arrays.extents != Extent.REFUSED)
        room = self.room(longest.source, reader)
        sizes = np.minimum(arrays.sizes[kept], [room // 2, LARGEST])
        starts = [self.starts(question, text, room) for question, text in sizes.tolist()]
        counts = list(map(len, starts))
        start, record = np.fromiter(itertools.chain(*starts), np.int64), np.repeat(kept, counts)
        question, text = np.repeat(sizes, counts, 0).T
        stop = np.minimum(start + room - question, text)

        def make(i: int) -> LabelledText:
            one = arrays[record[i]]
            first = int(start[i])
            window = self.window(one.source.tolist(), one.target.tolist(), first, room, reader)
            answer = one.array(ANSWER)
            is_inside = len(answer) and first <= answer[0] and answer[-1] < stop[i]
            places = tuple((answer - first + window.before).tolist()) if is_inside else (0, 0)
            return LabelledText.of(window.read, places)

        special = len(reader.with_special_tokens([], []).tokens)
        rows = Rows.source_only(special + question + stop - start, make, Spans.one_each(record, start, stop))
        cut = int((arrays.sizes[kept, 0] > room // 2).sum())
        rows.note = f"{cut:,} questions were cut, as data.max_source_length is {longest.source}" if cut else ""
        return rows

    def example(
        self, record: LabelledText, lengths: Lengths, generator: np.random.Generator, special: SpecialIds
    ) -> Batch:
        """Returns a row without the axis B, whose targets are two positions."""
        return text_row(np.array(record.label, np.int32), np.ones(2, np.float32), record, lengths, special)

    # From outputs to figures -----------------------------------------------------------------------------------------

    def loss(self, outputs: Outputs, batch: Batch) -> dict[str, LossTerm]:
        """Returns nats per place: the mean over the first and the last token of each answer."""
        return {"cross_entropy": cross_entropy(place_logits(outputs, batch), batch.targets, batch.weights)}

    def metrics(self, outputs: Outputs, batch: Batch) -> Counts:
        scored = place_logits(outputs, batch), batch.targets, batch.weights
        return {"loss": cross_entropy(*scored), "accuracy": accuracy(*scored)}


def place_logits(outputs: Outputs, batch: Batch) -> Float[Array, "B 2 T"]:
    """Returns the logits of each position as the answer's first and its last token; padding has no share of a softmax."""
    logits = jnp.swapaxes(token_logits(outputs), 1, 2)
    return jnp.where(jnp.asarray(batch.inputs.source_mask)[:, None], logits, ABSENT_SCORE)
