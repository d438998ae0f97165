"""The whole of `fit`: the task, the config, the training, the scores, the export and the report, each made once."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flaxformer_lite import tasks
from flaxformer_lite.base.atomic_files import write_json, write_whole
from flaxformer_lite.base.console import note
from flaxformer_lite.base.sealed_files import text_digest
from flaxformer_lite.config import Config, load_config, to_json
from flaxformer_lite.config.options import as_options, options_in, unknown_option
from flaxformer_lite.config.settings import MARKS
from flaxformer_lite.files.data.held_out import SPLITS
from flaxformer_lite.files.data.mixture import open_parts
from flaxformer_lite.interop.exporting import export_hf, exports_in_words, own_family
from flaxformer_lite.run import Run
from flaxformer_lite.run.scoring import scored_data
from flaxformer_lite.run.train import train
from flaxformer_lite.tasks.commands import use_command
from flaxformer_lite.tasks.recipe import Examples, Recipe
from flaxformer_lite.tools.fit import chat
from flaxformer_lite.tools.fit.choosing import chosen, tell_classes
from flaxformer_lite.tools.fit.confusion import confusion_once
from flaxformer_lite.tools.fit.data import OpenedData, RowsOrName, as_json_lines, open_data, search_rows
from flaxformer_lite.tools.making.finishing import exported_once, report_once, scored_once
from flaxformer_lite.tools.making.starting import is_begun, run_path, tell_continued
from flaxformer_lite.tools.making.timing import deadline_of
from flaxformer_lite.workdir import RunFolder, open_run

CONFUSION = "evaluations/test-confusion.json"


def fit(
    model: str,
    data: RowsOrName,
    output: str | Path,
    *,
    task: str | None = None,
    eval: RowsOrName | None = None,
    test: RowsOrName | None = None,
    text: Sequence[str] = (),
    label: Sequence[str] = (),
    hours: float | None = None,
    settings: Mapping[str, Any] | Sequence[str] = (),
    tell: Callable[[str], None] = lambda result: None,
) -> Run:
    """Tunes a model on rows of data in the run folder `output`, or continues it; returns the run, as `load(output)` does.

    `run.test_scores` has the scores on the test.

    Ctrl-C saves a checkpoint, and that run is returned; its `stopped` is True. The same call continues it.

    Args:
        model: a run folder, a Hugging Face folder, or ORG/NAME of the hub.
        data: a file or a data set by its name; or rows: dicts, a table of pandas, a `datasets.Dataset`.
        task: that of the data, where the fields do not say it: classify, regression, label, answer, embed, rank, chat.
        eval: data that chooses the best step; None: held-out rows of `data`.
        test: data for the scores, which are read once; None: held-out rows of `data`.
        text: the field of the text, or those of two.
        label: the field of the label, or one for each label.
        hours: the time for all of it; None: what the rows are worth.
        settings: those of `train`, such as {"train.seed": 1}, or the words of a command line. A run continues with others as far
            as `train` continues with them: with more epochs, for example.
        tell: is called with each result, a line, once it is there.

    Raises: ValueError for data that no task reads, and for a folder that was made of something else.
    """
    deadline = deadline_of(hours)
    output, words = Path(output), shlex.split(as_options(settings)) if isinstance(settings, Mapping) else [*settings]
    judged = search_rows(str(data)) if isinstance(data, str | Path) else {}
    given: dict[str, RowsOrName] = {
        **judged,
        **{name: one for name, one in {"eval": eval, "test": test}.items() if one is not None},
    }
    given.setdefault("train", data)
    lines = {name: as_json_lines(rows) for name, rows in given.items() if not isinstance(rows, str | Path)}
    read = {name: open_data(str(rows), (*text, *label)) for name, rows in given.items() if name not in lines}
    versions = {name: [text_digest(lines[name])] if name in lines else read[name].versions for name in given}
    asked = {
        "model": model,
        "data": versions["train"],
        "eval": versions.get("eval", []),
        "test": versions.get("test", []),
        "task": task or [],
        "text": [*text],
        "label": [*label],
    }
    check_words(words, hours)
    made_of = output / "start" / "made_of.json"
    file = output / "config.json"
    # An earlier call that trained nothing, such as a refused one, binds no other.
    is_free = made_of.is_file() and not RunFolder(output).trained
    if not is_free and is_begun(output, made_of, asked, "fit") and file.is_file():
        tell_continued(output, hours)
        config = load_config(str(file), words)
    else:
        for name, some in lines.items():
            path = rows_file(output, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, some)
            read[name] = open_data(str(path))
        sources = [read[name].source for name in SPLITS if name in read]
        config = prepared(model, read, Examples(read["train"].rows, sources, task, text, label), words, deadline)
        made_of.parent.mkdir(parents=True, exist_ok=True)
        write_json(made_of, asked)
        if not file.is_file():  # else the training compares them
            write_whole(file, to_json(config))
    # The folder may have been moved.
    row_sources = {name: replace(getattr(config.data, name), path=str(rows_file(output, name))) for name in lines}
    tested = scored_data(replace(config, data=replace(config.data, **row_sources)), "test")
    run = train(config, output)
    if run.stopped:
        note(f"{output} is not finished: the same command trains to step {config.train.steps:,}, scores and exports")
        return run
    scores = scored_once(run, tested, {}, ["export", CONFUSION])
    tell(f"{scores_in_words(scores, config.train.best_metric)}  ({len(tested.pairs):,} rows held out)")
    if getattr(run.config.objective, "labels", None) == "one":
        confusion_once(run, tested.pairs, output / CONFUSION, tell)
    exported = exported_once(output / "export", lambda folder: export_hf(output, folder), "Hugging Face")
    if exported is not None:
        tell(f"{exported}: for Hugging Face's library")
    page = report_once(output)
    if page is not None:
        tell(str(page))
    tell(f"\nflaxformer-lite {use_command(config)} {output}\nflaxformer-lite serve {output}")
    if judged:
        tell(f"flaxformer-lite evaluate {output} --search {data}")
    return run


def scores_in_words(scores: Mapping[str, object], best_metric: str) -> str:
    """Returns the figures of all rows, the metric of the best step first; those of one type of entity (`f1_PER`) are left out."""
    names = [name for name, value in scores.items() if isinstance(value, float)]
    of_all = [name for name in names if not any(name.startswith(f"{other}_") for other in names)]
    return "  ".join(f"{name} {scores[name]:.4g}" for name in sorted(of_all, key=lambda name: name != best_metric))


def rows_file(output: Path, name: str) -> Path:
    """Returns the file of rows from Python, or of a search, in a run folder."""
    return (output / "start" / f"{name}.jsonl").absolute()


def prepared(
    model: str,
    read: Mapping[str, OpenedData],
    examples: Examples,
    words: Sequence[str],
    deadline: float | None,
) -> Config:
    """Returns the config for the data and the model; reads what is held out."""
    recipe = found(examples)
    others = {name: read[name].source(recipe.source.record) for name in ("eval", "test") if name in read}
    start = run_path(model)
    config = chosen(recipe, start, others, deadline, words)
    sources = {split: config.data.source(split) for split in SPLITS}
    pairs = {split: open_parts(source, f"data.{split}")[0] for split, source in sources.items() if source is not None}
    trained = pairs.pop("train")
    fields = ", ".join(map(str, recipe.source.record.fields.values()))
    exported = exports_in_words(config, own_family(open_run(start).imported))
    held_out = " and ".join(f"{len(some):,} for {split}" for split, some in pairs.items())
    note(f"{recipe.task}: {len(trained):,} rows with {fields}; {held_out}; {exported}")
    classes = getattr(config.objective, "classes", ())
    if classes:
        tell_classes(trained, pairs, classes)
    return config


def check_words(words: Sequence[str], hours: float | None) -> None:
    """Checks the settings of a command line by their names. Raises: ValueError for one that is unknown, and for two lengths."""
    for option, _ in options_in(words):
        setting = option[2:].replace("-", "_")
        if not {setting, setting.replace(".no_", ".")} & {*MARKS}:
            raise ValueError(unknown_option(option, dict.fromkeys(MARKS)))
        if hours is not None and setting in ("train.epochs", "train.steps"):
            raise ValueError(
                f"--hours is {hours}, and {option} sets the length of the training too: leave one of them out"
            )


def found(examples: Examples) -> Recipe:
    """Returns the recipe of the task that fits the fields. Raises: ValueError if no task fits, or several do."""
    if not examples.rows:
        raise ValueError("the data has no rows: give data with a row for each example")
    if len(examples.texts) > 2:
        raise ValueError(f"--text is {' '.join(examples.texts)}: it must be one field or two")
    recipes = {**tasks.recipes(), "chat": chat.recipe}
    if examples.task not in (None, *recipes):
        raise ValueError(f"--task is {examples.task}: the tasks are {', '.join(recipes)}")
    read = {name: recipes[name] for name in recipes if examples.task in (None, name)}
    recipes_of_rows = (recipe(examples) for recipe in dict.fromkeys(read.values()))
    made = {recipe.task: recipe for recipe in recipes_of_rows if recipe is not None}
    if len(made) == 1:
        recipe = next(iter(made.values()))
        if len(examples.labels) > 1 and recipe.task != "classify":
            raise ValueError(
                f"--label is {' '.join(examples.labels)}, and the task is {recipe.task}: give one field of labels"
            )
        return recipe
    said = f"several tasks read them ({', '.join(made)})" if made else f"no task reads them ({', '.join(read)})"
    raise ValueError(
        f"the fields are {', '.join(examples.fields)}, and {said}: name the task by --task, and the fields by --text and --label"
    )
