"""The rows of each step of a run, and the steps that read a record, by the batches of the trainer itself. Writes nothing.

A batch is a function of (seed, step), so nothing was recorded but the fingerprint of the data, and which batches were left out.
"""

import bisect
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from flaxformer_lite.base.console import Progress, printable, warn
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.data.batch_plan import PADDING_ROW
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.objectives import Batch
from flaxformer_lite.core.text import Tokenizer, Tokenizers
from flaxformer_lite.files.data import Mixture
from flaxformer_lite.files.data.held_out import SplitOrLeftOut
from flaxformer_lite.files.records.candidates import in_lines
from flaxformer_lite.files.text.normal_form import comparable
from flaxformer_lite.training import LoopState
from flaxformer_lite.training.data import RunData, look_at_data
from flaxformer_lite.training.setup import read_loop_state
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.manifest import check_seal, manifests

State = Literal["read", "skipped", "left out", "not yet"]
"""Whether a row was read, in a step whose update was skipped too, or left out by a rollback, or is still to come."""


class RecordPlace(NamedTuple):
    """A record of the training data."""

    record: int
    """The number of the record, from 0; those of a mixture are numbered one source after the other."""
    part: str
    """The name of its source in a mixture; empty without one."""
    files: tuple[str, str]
    """The names of the files of its source and of its target."""
    line: int
    """The number of its line in them, from 1."""

    def __str__(self) -> str:
        return f"{self.part + ': ' if self.part else ''}{self.files[0]}:{self.line}"


class RecordReading(NamedTuple):
    """A row of a batch that reads a record."""

    record: int
    step: int | None
    """The step that reads it, from 1; None if its batch was left out."""
    batch: int
    """The number of the batch, from 0."""
    row: int
    """The number of the row in the batch, from 0."""
    state: State
    epoch: int
    """From 1."""


@dataclass(frozen=True)
class RecordedRow:
    """A row as a step of the trainer received it."""

    step: int
    batch: int
    epoch: int
    """From 1."""
    row: int
    places: tuple[RecordPlace, ...]
    """The record of each piece in the row."""
    example: Batch
    """The arrays of the row, without the axis B, after sampling, masking and packing."""
    source: str
    """The text of the tokens that the encoder reads."""
    target: str
    """The text of the tokens that the decoder reads."""

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays by their names, as lists: tokens, targets, and the weights, 0 where a position does not count."""
        return {name: np.asarray(array).tolist() for name, array in leaves_by_path(self.example).items()}


@dataclass(frozen=True)
class Recording:
    """The steps of a run, with the data that they read."""

    folder: RunFolder
    config: Config
    data: RunData
    loop_state: LoopState
    """The numbers of the loop at the newest checkpoint: it knows of every rollback."""
    reached: int
    """The newest step that the run is known to have taken."""

    def batch(self, step: int) -> Batch:
        """Returns the batch of a step as the trainer makes it, as NumPy arrays. Raises: ValueError if there is no such step."""
        return self.data.train.batch(self.batch_of(step))

    def batch_of(self, step: int) -> int:
        """Returns the number of the batch that a step reads, from 0. Raises: ValueError if there is no such step."""
        if not 1 <= step <= self.config.train.steps:
            raise ValueError(f"step is {step}: the run has the steps 1 to {self.config.train.steps}")
        return self.loop_state.batch_of(step)

    def rows(self, *steps: int) -> list[RecordedRow]:
        """Returns the rows of steps in their order, without padding rows. Raises: ValueError as `batch` does."""
        return self.rows_of_batches({self.batch_of(step): step for step in steps})

    def rows_of_batches(self, steps: Mapping[int, int]) -> list[RecordedRow]:
        """Returns the rows of batches, from 0, each as its step reads it, or read it before a rollback left it out."""
        train, tokenizers, records = self.data.train, self.data.tokenizers, dict[tuple[int, int, int], list[int]]()
        for number in steps:
            for row, i in enumerate(train.plan.batch(number).examples.tolist()):
                if i != PADDING_ROW:
                    records[number, row, i] = train.records_read(i, number, row)
        places = self.places(itertools.chain(*records.values()))

        def recorded(number: int, row: int, i: int) -> RecordedRow:
            example = train.example(i, train.plan.batch(number).bucket.lengths, number, row)
            source = decoded(tokenizers.source, example.inputs.source_tokens)
            target = decoded(tokenizers.target, example.inputs.target_tokens)
            where = tuple(places[record] for record in records[number, row, i])
            epoch = number // train.plan.batches_per_epoch + 1
            return RecordedRow(steps[number], number, epoch, row, where, example, source, target)

        return [recorded(*at) for at in records]

    def readings(self, records: Sequence[int], text: str = "") -> list[RecordReading]:
        """Returns all rows that read a piece of one of the records, step after step to the last one of the training.

        text: of records that are cut into pieces only those rows count that have this text, if one has it.
        """
        train = self.data.train
        last = self.loop_state.batch_of(self.config.train.steps)
        wanted = set(records)
        rows = train.made.rows_of(records)
        of_pieces = train.made.spans.record
        asked = of_pieces[np.isin(of_pieces, records)]
        if text and len(asked) > len(np.unique(asked)):
            tokenizer = self.data.tokenizers.target
            texts = {i: [decoded(tokenizer, piece) for piece in train.rows[i].pieces] for i in rows.tolist()}
            form = comparable(text)
            having = [i for i, pieces in texts.items() if any(form in comparable(piece) for piece in pieces)]
            rows = np.array(having or rows, np.int64)
        rows = rows[train.plan.placed[rows]]
        readings = list[RecordReading]()
        for epoch in range(last // train.plan.batches_per_epoch + 1) if len(rows) else ():
            for batch, row in train.plan.find(rows, epoch):
                read = wanted.intersection(train.records_read(int(train.plan.batch(batch).examples[row]), batch, row))
                if batch <= last:
                    step, state = self._step_of(batch)
                    readings += [RecordReading(record, step, batch, row, state, epoch + 1) for record in sorted(read)]
        return readings

    def _step_of(self, batch: int) -> tuple[int | None, State]:
        """Returns the step that reads a batch, None if a rollback left it out, and the state of the batch's rows."""
        steps = range(1, self.config.train.steps + 1)
        step = bisect.bisect_left(steps, batch, key=self.loop_state.batch_of) + 1
        if self.loop_state.batch_of(step) != batch:
            return None, "left out"
        if step > self.reached:
            return step, "not yet"
        return step, "skipped" if step in self.loop_state.skipped_steps else "read"

    # Records and their texts ------------------------------------------------------------------------------------------

    def places(self, records: Iterable[int]) -> dict[int, RecordPlace]:
        """Returns the places of records by their numbers, from one pass over the texts up to the last of them."""
        wanted = set(records)
        places = dict[int, RecordPlace]()
        for place, _ in located(self.config) if wanted else ():
            if place.record in wanted:
                places[place.record] = place
                if len(places) == len(wanted):
                    break
        return places

    def why_never(self, record: int) -> str:
        """Returns why no step up to the last one reads a record."""
        train, data = self.data.train, self.config.data
        rows = train.made.rows_of([record])
        if not len(rows):
            return "the objective makes no row of it"
        if not train.plan.placed[rows].any():
            source, target = train.lengths[rows[0]].tolist()
            return (
                f"too long: it needs {source} + {target} tokens, data.max_source_length is {data.max_source_length} and "
                f"data.max_target_length {data.max_target_length}"
            )
        return f"no batch up to step {self.config.train.steps}, the last one, has it"


def located(config: Config, split: SplitOrLeftOut = "train") -> Iterator[tuple[RecordPlace, Pair]]:
    """Yields all records of a split with their texts, in the order of their numbers, with a few at a time in memory."""
    source = config.data.source(split)
    if source is None:
        return
    names = source.part_names if isinstance(source, Mixture) else ("",)
    number = 0
    for name, (setting, member) in zip(names, source.parts(f"data.{split}"), strict=True):
        for pair, files, line in member.located(setting):
            assert isinstance(pair, Pair)
            yield RecordPlace(number, name, files, line), in_lines(pair)
            number += 1


def open_recording(folder: RunFolder, progress: Progress | None = None, config: Config | None = None) -> Recording:
    """Reads the data of a run as its training does, and compares it with what the run was trained on. Writes nothing.

    The run may be training, or have been trained on other hosts or devices.

    config: the settings as they were typed; None: those of the folder. Settings that decide what is learned must be the same.

    Raises: ValueError if the folder holds no run, if it was not trained here, or if the data or the settings have changed since.
    """
    saved = folder.typed_config()
    config = saved if config is None else folder.continued(config)
    check_seal(folder.path, config, resumed=True)
    step, meta = next(((step, manifest["meta"]) for step, manifest in manifests(folder.checkpoints)), (0, None))
    if config.data.train is None or (meta is not None and meta["parameters_only"]):
        raise ValueError(
            f"{folder.called} took no step of a training: name a run that `flaxformer-lite train` has made"
        )
    with tempfile.TemporaryDirectory() as scratch:
        data = look_at_data(config, folder, Path(scratch), progress or Progress(silent=True))
    if meta is None:
        warn(f"{folder.name} has no checkpoint yet: whether the data is still that of its steps is not known")
        meta = {"data": data.train.fingerprint}
    loop_state = read_loop_state(meta, step, folder, data)
    reached = max([step, *(row["step"] for row in folder.rows() if row["split"] == "train")])
    return Recording(folder, data.config.concrete, data, loop_state, reached)


# A row as text --------------------------------------------------------------------------------------------------------


def decoded(tokenizer: Tokenizer, ids: object) -> str:
    """Returns the text of tokens, of several texts with a bar between; empty for None."""
    texts = [] if ids is None else np.atleast_2d(np.asarray(ids)).tolist()
    return " | ".join(tokenizer.decode(tokenizer.with_pieces(tokens)) for tokens in texts)


def show_row(model: ModelConfig, row: Batch, tokenizers: Tokenizers, most: int | None = None) -> list[str]:
    """Returns the text that the model reads in a row, and the text that it must predict; `_` where it predicts nothing.

    most: tokens that are shown of a text; None: all.
    """
    source, target, lines = tokenizers.source, tokenizers.target, []
    if row.inputs.source_tokens is not None:
        reader = "encoder" if model.num_encoder_layers else "decoder"  # of whole texts
        for ids in np.atleast_2d(np.asarray(row.inputs.source_tokens)):
            lines.append(f"  {reader} reads   {tokens_as_text(source, ids, most=most)}")
    if row.inputs.target_tokens is not None and model.num_decoder_layers:
        lines.append(f"  decoder reads   {tokens_as_text(target, np.asarray(row.inputs.target_tokens), most=most)}")
    if np.issubdtype(row.targets.dtype, np.integer) and row.targets.shape == row.weights.shape and model.pooler is None:
        shown = np.asarray(row.weights) > 0
        lines.append(f"  must predict    {tokens_as_text(target, np.asarray(row.targets), shown, most)}")
    else:
        lines.append(f"  must predict    {row.targets.tolist()}")
    return lines


def tokens_as_text(
    tokenizer: Tokenizer, ids: Int[np.ndarray, "T"], shown: Bool[np.ndarray, "T"] | None = None, most: int | None = None
) -> str:
    """Returns the tokens as text, without the padding at the end; ids that only the objective knows as numbers."""

    def label(i: int) -> str:
        return printable(tokenizer.piece(i, f"<{i}>")).replace("\n", "\\n")

    pad = tokenizer.special.pad
    tokens = ids.tolist()
    last = max((i for i, token in enumerate(tokens, 1) if token != pad), default=0)
    words = [label(token) if shown is None or shown[i] else "_" for i, token in enumerate(tokens[:last])]
    more = f" … ({len(words)} tokens)" if most is not None and len(words) > most else ""
    return " ".join(words[:most]) + more
