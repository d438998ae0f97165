"""The folder of `pair`: an ordinary run, with the texts that were cleaned and divided in `data/`.

data/train.*, data/valid.*, data/test.*    the sentences, line by line
data/removed.tsv                           the pairs that were found: rule, number of the pair, both texts
data/scores.json                           the scores that the command prints
data/made_of.json                          the files, the rules that were off, and how many pairs each rule found
"""

import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.base.atomic_files import atomic_write, write_whole
from flaxformer_lite.base.console import counted, note, warn
from flaxformer_lite.config import Config, load_config, to_json
from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data import ParallelText
from flaxformer_lite.files.text.files import file_versions, line_chunks
from flaxformer_lite.files.text.normal_form import plain
from flaxformer_lite.files.text.tables import container, is_blank, open_table, require_lines
from flaxformer_lite.tools.pair.cleaning import RULES, clean
from flaxformer_lite.tools.pair.recipe import check_time, choose

MOST_HELD_OUT = 1_000
"""Pairs of the validation and of the test, as many each; a twentieth of a smaller text."""
SPLITS = {"train": "train", "eval": "valid", "test": "test"}


def prepare(
    files: Sequence[str],
    off: Collection[str],
    output: Path,
    deadline: float | None,
    columns: Sequence[int | str] = (),
) -> Config:
    """Cleans and divides the pairs and chooses the config, unless an earlier call did; returns the config.

    files: two parallel files, or one table with these columns. off: rules that remove nothing. deadline: by `time.monotonic`.

    Raises: ValueError for files that are no pairs, and for a folder that was made of something else.
    """
    versions = [version for file in files for version in file_versions(file)]
    asked = {"files": versions, "columns": [*columns], "keep": sorted(off)}
    data = output / "data"
    if (data / "made_of.json").is_file():
        before = json.loads((data / "made_of.json").read_text(encoding="utf-8"))
        if changed := [name for name, value in asked.items() if before.get(name, []) != value]:
            raise ValueError(
                f"{output} was made of other {' and '.join(changed)}: give those again to continue it, or another --output"
            )
    elif output.exists() and (not output.is_dir() or any(file.name[0] != "." for file in output.iterdir())):
        raise ValueError(f"--output {output} exists, and was not made by `pair`: give a new folder")
    else:
        ends = languages([str(column) for column in columns] or files)
        pairs = read_pairs(files, columns)
        check_time(len(pairs), deadline)
        divide(pairs, asked, off, ends, data)
    if not (output / "config.json").is_file():
        sources = {split: parallel(data, name) for split, name in SPLITS.items()}
        config = choose(list(sources["train"].stream()), output, deadline, **sources)
        write_whole(output / "config.json", to_json(config))
    else:
        hours = "" if deadline is None else "; --hours changes nothing now: for other hours give a new --output"
        note(f"{output} is continued: what was chosen for it stands, in {output / 'config.json'}{hours}")
    return load_config(str(output / "config.json"))


def read_pairs(files: Sequence[str], columns: Sequence[int | str] = ()) -> list[Pair]:
    """Returns the pairs of two parallel files, or of two columns of a table; a row that is no pair of texts is an empty one.

    columns: numbers from 0, or names in a header; (): the only two of the table.

    Raises: ValueError if one file has more lines than the other, or the columns are not these.
    """
    if len(files) == 1:
        return read_table(files[0], columns)
    if columns:
        raise ValueError("--columns is for one table, but there are two files: leave it out")
    for file in files:
        require_lines(file, "give a table alone, with both columns, or two files of lines")
    sides = [read_lines(file) for file in files]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{len(sides[0])} lines in {files[0]} but {len(sides[1])} in {files[1]}: parallel files need equally many lines"
        )
    return [Pair(*pair) for pair in zip(*sides, strict=True)]


def read_table(file: str, columns: Sequence[int | str]) -> list[Pair]:
    """Returns the pairs of a table: of a CSV with any delimiter if its name says so, of columns between tabs else."""
    if container(file) not in ("", "a table"):
        raise ValueError(f"{file} is {container(file)} by its name: give two files of lines, or a table as TSV or CSV")
    table = open_table(read_lines(file), file, header=any(isinstance(column, str) for column in columns))
    table.width = table.width or table.usual_width(2)
    if not table.width:
        raise ValueError(
            f"{file}: no row has a second column between {table.form.between}: give a second file, or a table"
        )
    if not columns and table.width > 2:
        texts = [str(number) for number in range(table.width) if not table.numbers_alone(number)]
        raise ValueError(
            f"{file} has {table.width} columns: {table.shown()}: choose that of the sources and that of the targets, such as "
            f"--columns {' '.join((texts if len(texts) > 1 else ['0', '1'])[:2])}, or by the names of a header"
        )
    numbers = [table.number(column) for column in columns or (0, 1)]
    for number in numbers:
        if number >= table.width:
            raise ValueError(
                f"--columns has {number}, but {file} has {table.width} columns, counted from 0: {table.shown()}"
            )
        if table.numbers_alone(number):
            warn(f"{file}: column {number} has nothing but numbers in the first rows; the columns are {table.shown()}")
    if header := table.header_in(numbers):
        names = " ".join(map(shlex.quote, header))
        warn(
            f"{file}:1: this row looks like a header, and is read like the others: if it is one, add --columns {names}"
        )
    wrong, pairs = list[str](), list[Pair]()
    for line, cells in table.rows:
        reason = "" if is_blank(cells) else table.wrong(cells, max(numbers))
        if reason:
            wrong.append(f"{file}:{line}: {reason}")
        pairs.append(Pair("", "") if reason or is_blank(cells) else Pair(*(cells[number] for number in numbers)))
    if wrong:
        warn(f"{counted(len(wrong), 'row')} with other columns, each counts as an empty pair; the first: {wrong[0]}")
    return pairs


def read_lines(file: str) -> list[str]:
    """Returns the lines of a file; one that is not UTF-8 is empty, and is told of."""
    bad: list[str] = []
    chunks = line_chunks(file, bad_line=lambda n, why: bad.append(f"{file}:{n}: {why}"))
    lines = [line for chunk in chunks for line in chunk]
    if bad:
        warn(f"{counted(len(bad), 'line')} cannot be read, and counts as empty; the first: {bad[0]}")
    return lines


def languages(files: Sequence[str]) -> list[str]:
    """Returns the last parts of two files' or columns' names, such as en and de, which BLEU reads; else source and target."""
    ends = [re.sub(r"\.(gz|bz2|xz|zst)$", "", file).rpartition(".")[2] for file in files]
    named = len(ends) == 2 and ends[0] != ends[1] and all(re.fullmatch(r"[^\W\d]\w{1,7}", end) for end in ends)
    return ends if named else ["source", "target"]


def divide(
    pairs: Sequence[Pair], asked: dict[str, Any], off: Collection[str], ends: Sequence[str], folder: Path
) -> None:
    """Writes the folder `data`: training, validation and test, of which no two share a sentence, and what was removed.

    Raises: ValueError if too few pairs are left.
    """
    cleaned = clean(pairs, off)
    note(f"{len(pairs):,} pairs were read")
    for name, numbers in cleaned.found.items():
        if numbers:
            sides = (side.strip() for side in pairs[numbers[0]][:2])
            example = " ||| ".join(side if len(side) <= 40 else f"{side[:40]}…" for side in sides)
            note(f"  {len(numbers):>8,} {name}: {RULES[name].__doc__}; the first is number {numbers[0] + 1}: {example}")
    note(f"  {len(cleaned.kept):>8,} are kept")
    left = [pairs[i] for i in cleaned.kept]
    texts = {"train": left, **hold_out(left)}
    held = {id(pair) for name in ("valid", "test") for pair in texts[name]}
    texts["train"] = [pair for pair in left if id(pair) not in held]
    with atomic_write(folder) as unfinished:
        unfinished.mkdir()
        for name, chosen in texts.items():
            for side, end in enumerate(ends):
                lines = "".join(" ".join(pair[side].split()) + "\n" for pair in chosen)
                (unfinished / f"{name}.{end}").write_text(lines, encoding="utf-8")
        removed = [
            f"{name}\t{i + 1}\t" + "\t".join(" ".join(t.split()) for t in pairs[i][:2])
            for name, f in cleaned.found.items()
            for i in f
        ]
        (unfinished / "removed.tsv").write_text("".join(line + "\n" for line in removed), encoding="utf-8")
        counts = {name: len(numbers) for name, numbers in cleaned.found.items()}
        made = asked | {"ends": ends, "read": len(pairs), "removed": counts, "kept": len(left)}
        (unfinished / "made_of.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def hold_out(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Returns validation and test: pairs whose sentences, without case and punctuation, are nowhere else, on either side.

    Raises: ValueError if there are none.
    """
    texts = [(plain(pair.source), plain(pair.target)) for pair in pairs]
    counts = Counter(itertools.chain.from_iterable(texts))
    alone = [i for i, (source, target) in enumerate(texts) if counts[source] == counts[target] == 1]
    most = min(MOST_HELD_OUT, len(pairs) // 20, len(alone) // 2)
    if most < 1:
        raise ValueError(
            f"{counted(len(pairs), 'pair')} left, {len(alone)} of which share no sentence with another: at least 20 are needed, to "
            "hold some out"
        )
    drawn = np.random.default_rng(0).permutation(alone)[: 2 * most].tolist()
    return {"valid": [pairs[i] for i in sorted(drawn[:most])], "test": [pairs[i] for i in sorted(drawn[most:])]}


def parallel(data: Path, name: str) -> ParallelText:
    """Returns the source of a split, which is found from any folder."""
    data = data.absolute()
    ends = json.loads((data / "made_of.json").read_text(encoding="utf-8"))["ends"]
    return ParallelText(source=str(data / f"{name}.{ends[0]}"), target=str(data / f"{name}.{ends[1]}"))
