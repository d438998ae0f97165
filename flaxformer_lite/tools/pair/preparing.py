"""Preparation of `pair`: the data is divided, teachers make more of it, and the config is chosen, each once."""

import itertools
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.config import Config, load_config, to_json
from flaxformer_lite.engine import Engine
from flaxformer_lite.files.data import Mixture, ParallelText
from flaxformer_lite.files.text.files import file_versions
from flaxformer_lite.tools.making.starting import is_begun, tell_continued
from flaxformer_lite.tools.pair.cleaning import OF_ANSWERS, RULES
from flaxformer_lite.tools.pair.folder import divide_pairs, languages, parallel, read_lines, read_pairs
from flaxformer_lite.tools.pair.models import NO_MODELS, Models
from flaxformer_lite.tools.pair.recipe import check_time, choose_config
from flaxformer_lite.tools.pair.teaching import taught_pairs
from flaxformer_lite.workdir import open_run

SPLITS = {"train": "train", "eval": "valid", "test": "test"}


def prepare(
    files: Sequence[str],
    off: Collection[str],
    output: Path,
    deadline: float | None,
    columns: Sequence[int | str] = (),
    models: Models = NO_MODELS,
    engine: Engine = "auto",
) -> Config:
    """Cleans and divides the pairs, adds those of teachers and chooses the config, unless an earlier call did; returns the config.

    files: two parallel files, or one table with these columns. off: rules that remove nothing. deadline: by `time.monotonic`.
    engine: what translates for teachers.

    Raises: ValueError for files that are no pairs, and for a folder that was made of something else.
    """
    check_kept(off, models)
    versions = list(itertools.chain.from_iterable(map(file_versions, files)))
    asked = {"files": versions, "columns": [*columns], "keep": sorted(off), **models.asked()}
    data = output / "data"
    if not is_begun(output, data / "made_of.json", asked, "pair"):
        ends = languages([str(column) for column in columns] or files)
        pairs = read_pairs(files, columns)
        mono = list(itertools.chain.from_iterable(map(mono_lines, models.mono)))
        check_time(len(pairs) + len(mono), deadline)
        models.check()
        divide_pairs(pairs, mono, asked, off, ends, data, models.rated_rules())
    if not (output / "config.json").is_file():
        config = chosen_config(off, output, deadline, models, engine)
        write_whole(output / "config.json", to_json(config))
    else:
        tell_continued(output, deadline)
    return load_config(str(output / "config.json"))


def mono_lines(file: str) -> list[str]:
    """Returns the lines of a file of `--mono`. Raises: ValueError if all are blank."""
    lines = read_lines(file)
    if not any(map(str.strip, lines)):
        raise ValueError(f"--mono: {file} has no text: give a file of sentences, a line each")
    return lines


def check_kept(off: Collection[str], models: Models) -> None:
    """Raises: ValueError for a name that is no rule here."""
    rules = {*RULES, *(OF_ANSWERS if models.teachers else ())}
    unknown = sorted(set(off) - rules)
    if unknown:
        raise ValueError(
            f"--keep has {', '.join(unknown)}: the rules are {', '.join(RULES)}, and with --teacher {' and '.join(OF_ANSWERS)}"
        )


def chosen_config(off: Collection[str], output: Path, deadline: float | None, models: Models, engine: Engine) -> Config:
    """Returns the config for the divided pairs, and those that the teachers make of them."""
    splits: dict[str, ParallelText] = {split: parallel(output / "data", name) for split, name in SPLITS.items()}
    people = splits["train"]
    pairs = list(people.stream())
    sources = dict[str, ParallelText | Mixture](splits)
    text = {"source": Path(people.source), "target": Path(people.target)}
    start = models.starting_run(output / "start", text)
    if models.teachers:
        begun = time.monotonic()
        taught = taught_pairs(models, output, off, engine)
        deadline = None if deadline is None else deadline + time.monotonic() - begun  # the hours are for the rest
        pairs += taught.stream()
        weights = None if models.share is None else (1 - models.share, models.share)
        sources["train"] = Mixture(sources=(people, taught), names=("people", "taught"), weights=weights)
    languages = None if start is None else open_run(start).config().data.languages
    return choose_config(pairs, output, deadline, start, languages and models.directed(languages), **sources)
