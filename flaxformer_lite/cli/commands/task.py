"""The command of a task: lines in, its answers out."""

import argparse
import functools
import importlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from flaxformer_lite import tasks
from flaxformer_lite.base.atomic_files import atomic_write, require_absent
from flaxformer_lite.cli.answering import Answering
from flaxformer_lite.cli.input_lines import LineChunk, TextColumns, chosen_blocks, columns, text_columns
from flaxformer_lite.cli.options import (
    JSON_LINES,
    add_lines,
    add_option,
    add_output,
    chosen_output,
    chosen_weights,
    run_by_engine,
    typed,
)
from flaxformer_lite.cli.output import Output, write_answers, write_pieces
from flaxformer_lite.tasks.lines import Columns, TaskLines

if TYPE_CHECKING:
    from flaxformer_lite.run import Run
    from flaxformer_lite.tasks.engine_model import EngineModel
    from flaxformer_lite.tasks.task import Task, TextModel


class TaskCommand:
    """The command of a task, as the files of `commands/` are: `add_arguments` and `run`."""

    def __init__(self, name: str) -> None:
        module = importlib.import_module(f"{tasks.__name__}.{tasks.TASK_FOLDERS[name]}.lines")
        self.name = name
        self.lines: type[TaskLines[Any]] = module.Lines

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        engine = "auto" if self.lines.by_engine else None
        add_lines(parser, engine, **({"kind": JSON_LINES} if self.lines.of_objects else {}))
        parser.set_defaults(column=[], output=None, pieces=None, part=None, join=False)
        if self.lines.file:
            add_output(parser, self.name, self.lines.file)
        self.lines.add_arguments(functools.partial(add_option, parser))
        if self.lines.file == "":
            add_output(parser, self.name)

    def run(self, arguments: argparse.Namespace) -> None:
        form = typed(self.lines, arguments)
        output = chosen_output(arguments)
        if output.join_if_alone(takes_file=bool(form.file)):
            return
        if output.output is not None and not output.is_folder:
            require_absent(Path(output.output), "file")
        texts = TextColumns(whole_lines=True)
        if form.texts != 0:
            texts = text_columns(arguments.folder, arguments.files, arguments.column, wanted=form.texts)
        blocks = chosen_blocks(arguments.files, form.verb, texts, arguments.pieces or form.at_once)
        task = form.task(next(task for task in tasks.tasks() if task.name == self.name))
        check = functools.partial(check_model, form, task)
        run, model = opened_run(arguments, form, check)
        check(model)  # before the first line is read
        write(blocks, TaskAnswering(model, task, form), chosen_output(arguments), run)  # the engine decides the answers


def check_model(form: TaskLines[Any], task: "Task[Any, Any]", model: "TextModel") -> None:
    """Raises: ValueError for what keeps the model from the task, or from the form of its lines."""
    form.check(model)
    task.check(model)


def opened_run(
    arguments: argparse.Namespace, form: TaskLines[Any], check: "Callable[[TextModel], None]"
) -> "tuple[Run | EngineModel, TextModel]":
    """Returns the run, and its model that reads texts, by CTranslate2 or by JAX. check: see `open_model`."""
    from flaxformer_lite.tasks.engine_model import open_model

    @functools.cache
    def by_jax() -> "Run":
        from flaxformer_lite.run import load

        return load(arguments.folder, **chosen_weights(arguments))

    opened = functools.partial(open_model, otherwise=lambda: by_jax().text_model, check=check)
    read: Any = run_by_engine(arguments, opened) if form.by_engine else None
    run = by_jax() if read is None else read
    return run, run.text_model if read is None else read


@dataclass(frozen=True)
class TaskAnswering(Answering[tuple[Any, Any]]):
    """Lines as they were read, each with its answer; None is that of a blank line, which is not asked."""

    model: "TextModel"
    task: "Task[Any, Any]"
    form: TaskLines[Any]

    @property
    def columns(self) -> Columns[Any]:
        return self.form.columns(self.model)

    def read(self, block: LineChunk, number: int) -> Any:
        if not block.has_text(number):
            return None
        wanted = self.form.texts
        with block.naming(number):
            texts = [block.lines[number]] if wanted in (0, 1) and not block.rows else columns(block, number, wanted)
            read = self.form.read(texts)
            self.task.check_asked(self.model, self.form.asked(read), number)
        return read

    def answers(self, block: LineChunk) -> Iterable[tuple[Any, Any]]:
        read = {number: one for number, one in enumerate(block.read) if one is not None}
        answers = dict[int, Any]()
        if read:
            with block.reporting(self.form.doing) as report:
                lines = [block.before + 1 + number for number in read]
                asked = list(map(self.form.asked, read.values()))
                answers |= zip(read, self.task.answers(self.model, asked, **report, lines=lines), strict=True)
        return [(one, answers.get(number)) for number, one in enumerate(block.read)]

    def written(self, index: int, answer: tuple[Any, Any]) -> Sequence[Sequence[str]]:
        if answer[1] is None:
            return self.unanswered(index)
        lines = self.form.written(*answer, self.model)
        return [[f"{index} ||| {line}"] for (line,) in lines] if self.form.numbered else lines

    def unanswered(self, index: int) -> Sequence[Sequence[str]]:
        return [] if self.form.numbered else [[]]

    def save(self, file: IO[bytes], blocks: Iterable[LineChunk]) -> None:
        """Writes the answers to chunks into a file."""
        answers = list[Any]()
        for block in blocks:
            for lines in block.answerable(self.read):
                answers += [None] if lines is None else [answer for _, answer in self.answers(lines)]
        self.form.save(file, answers, self.model)

    def as_file(self, block: LineChunk) -> bytes:
        """Returns the answers to a chunk as a file."""
        file = io.BytesIO()
        self.save(file, [block])
        return file.getvalue()


def write(blocks: Iterable[LineChunk], answering: TaskAnswering, output: Output, run: "Run | EngineModel") -> None:
    """Writes the answers to stdout, into one file, or into a folder of files."""
    file = answering.form.file
    if output.output is None or not file:
        write_answers(blocks, answering, output, [run])
    elif output.is_folder:
        write_pieces(lambda: ((block, answering.as_file) for block in blocks), output, [run], Path(file).suffix)
    else:
        with atomic_write(Path(output.output)) as unfinished, open(unfinished, "wb") as opened:
            answering.save(opened, blocks)
