"""The folder of `pair`: an ordinary run, with the texts that were cleaned and divided in `data/`.

data/train.*, data/valid.*, data/test.*    the sentences, line by line
data/mono.txt                              further lines of the source language; no held-out line is among them
data/removed.tsv                           the pairs that were found: rule, number of the pair, both texts
data/scores.json                           the scores that the command prints
data/made_of.json                          the files, the rules that were off, and how many pairs each rule found
"""

import itertools
import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.base.console import counted, note, warn
from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data import ParallelText
from flaxformer_lite.files.text.files import line_chunks
from flaxformer_lite.files.text.normal_form import bare_words
from flaxformer_lite.files.text.tables import container, is_blank, open_table, require_lines
from flaxformer_lite.interop.weight_files import new_folder
from flaxformer_lite.tools.pair.cleaning import OF_ANSWERS, RULES, Rules, clean

MOST_HELD_OUT = 1_000
"""Pairs of the validation and of the test, as many each; a twentieth of a smaller text."""


def read_pairs(files: Sequence[str], columns: Sequence[int | str] = ()) -> list[Pair]:
    """Returns the pairs of two parallel files, or of two columns of a table; a row that is no pair of texts is an empty one.

    columns: numbers from 0, or names in a header; (): the only two of the table.

    Raises: ValueError if one file has more lines than the other, or the columns are not these.
    """
    if len(files) == 1:
        return read_columns(files[0], columns)
    if columns:
        raise ValueError("--columns is for one table, but there are two files: leave it out")
    for file in files:
        require_lines(file, "give one table with both columns, or two files of lines")
    sides = [read_lines(file) for file in files]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{len(sides[0])} lines in {files[0]} but {len(sides[1])} in {files[1]}: parallel files need equally many lines"
        )
    return [Pair(*pair) for pair in zip(*sides, strict=True)]


def read_columns(file: str, columns: Sequence[int | str]) -> list[Pair]:
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
    header = table.header_in(numbers)
    if header:
        names = " ".join(map(shlex.quote, header))
        warn(
            f"{file}:1: this row looks like a header, and is read like the others: if it is one, add --columns {names}"
        )
    wrong, pairs = list[str](), list[Pair]()
    source, target = numbers
    for line, cells in table.rows:
        reason = "" if is_blank(cells) else table.wrong(cells, max(numbers))
        if reason:
            wrong.append(f"{file}:{line}: {reason}")
        is_pair = not reason and not is_blank(cells)
        pairs.append(Pair(cells[source], cells[target]) if is_pair else Pair("", ""))
    if wrong:
        warn(f"{counted(len(wrong), 'row')} with other columns, each counts as an empty pair; the first: {wrong[0]}")
    return pairs


def read_lines(file: str) -> list[str]:
    """Returns the lines of a file; one that is not UTF-8 is empty, and is told of."""
    bad: list[str] = []
    chunks = line_chunks(file, bad_line=lambda n, why: bad.append(f"{file}:{n}: {why}"))
    lines = list(itertools.chain.from_iterable(chunks))
    if bad:
        warn(f"{counted(len(bad), 'line')} cannot be read, and counts as empty; the first: {bad[0]}")
    return lines


def languages(files: Sequence[str]) -> list[str]:
    """Returns the last parts of two files' or columns' names, such as en and de, which BLEU reads; else source and target."""
    ends = [re.sub(r"\.(gz|bz2|xz|zst)$", "", file).rpartition(".")[2] for file in files]
    named = len(ends) == 2 and ends[0] != ends[1] and all(re.fullmatch(r"[^\W\d]\w{1,7}", end) for end in ends)
    return ends if named else ["source", "target"]


def divide_pairs(
    pairs: Sequence[Pair],
    mono: Sequence[str],
    asked: Mapping[str, object],
    off: Collection[str],
    ends: Sequence[str],
    folder: Path,
    of_training: Rules,
) -> None:
    """Writes the folder `data`: training, validation and test, which share no sentence, and the removed pairs.

    mono: further lines of the source language; the new ones that are not held out are written too. of_training: rules for
    the pairs that are not held out.

    Raises: ValueError if too few pairs are left.
    """
    cleaned = clean(pairs, off)
    note(f"{len(pairs):,} pairs were read")
    left = [pairs[i] for i in cleaned.kept]
    texts = {"train": left, **hold_out(left)}
    held = set(map(id, [*texts["valid"], *texts["test"]]))
    training = [i for i in cleaned.kept if id(pairs[i]) not in held]
    further_cleaned = clean([pairs[i] for i in training], off, of_training)
    texts["train"] = [pairs[training[i]] for i in further_cleaned.kept]
    rated = {name: [training[i] for i in numbers] for name, numbers in further_cleaned.found.items()}
    further = further_lines(mono, texts)
    facts = {**asked, "ends": ends, "mono_lines": len(further)}
    rules = {**RULES, **of_training}
    write_pairs(folder, texts, pairs, {**cleaned.found, **rated}, rules, facts, {"mono.txt": further})


def write_pairs(
    folder: Path,
    texts: Mapping[str, Sequence[Pair]],
    pairs: Sequence[Pair],
    found: Mapping[str, Sequence[int]],
    rules: Rules,
    facts: Mapping[str, Any],
    lines: Mapping[str, Sequence[str]] = {},
) -> None:
    """Writes a folder of pairs, which appears whole, and tells what the rules found.

    texts: the pairs of each file, whose sides end in `facts["ends"]`. pairs: those in which the rules found some, by their numbers.
    lines: further files. rules: those that found something.
    """
    for name, numbers in found.items():
        if numbers:
            sides = (side.strip() for side in pairs[numbers[0]][:2])
            example = " ||| ".join(side if len(side) <= 40 else f"{side[:40]}…" for side in sides)
            note(f"  {len(numbers):>8,} {name}: {rules[name].finds}; the first is number {numbers[0] + 1}: {example}")
    kept = len(pairs) - sum(map(len, found.values()))
    may_stay = any(found.get(name) for name in (*RULES, *OF_ANSWERS))
    note(f"  {kept:>8,} are kept{'; --keep RULE leaves a rule out' if may_stay else ''}")
    removed = list[str]()
    for name, numbers in found.items():
        for i in numbers:
            removed.append("\t".join([name, str(i + 1), *map(as_line, pairs[i][:2])]))
    sentences = dict[str, list[str]]()
    end_of_source, end_of_target = facts["ends"]
    for name, chosen in texts.items():
        sentences[f"{name}.{end_of_source}"] = [as_line(pair.source) for pair in chosen]
        sentences[f"{name}.{end_of_target}"] = [as_line(pair.target) for pair in chosen]
    counts = {name: len(numbers) for name, numbers in found.items()}
    made = {**facts, "read": len(pairs), "removed": counts, "kept": kept}
    with new_folder(folder, {"made_of.json": made}) as unfinished:
        for name, written in {**sentences, **lines, "removed.tsv": removed}.items():
            (unfinished / name).write_text("".join(f"{line}\n" for line in written), encoding="utf-8")


def further_lines(mono: Sequence[str], texts: Mapping[str, Sequence[Pair]]) -> list[str]:
    """Returns the lines that are neither empty, nor a source of the training, nor held out, nor one that came before."""
    held = set[str]()
    for pair in [*texts["valid"], *texts["test"]]:
        held |= {bare_words(pair.source), bare_words(pair.target)}
    seen = {"", *(bare_words(pair.source) for pair in texts["train"])}
    counts = Counter[str]()
    lines = list[str]()
    for line in mono:
        key = bare_words(line)
        reason = "again" if key in seen else ""
        if key in held:
            reason = "held out"
        counts[reason] += 1
        if not reason:
            lines.append(as_line(line))
            seen.add(key)
    if mono:
        note(
            f"{len(mono):,} further lines were read: {counts['held out']:,} are held-out sentences, {counts['again']:,} are empty "
            f"or come again, {len(lines):,} are kept"
        )
    return lines


def as_line(text: str) -> str:
    return " ".join(text.split())


def hold_out(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Returns validation and test: pairs whose sentences, without case and punctuation, are nowhere else, on either side.

    Raises: ValueError if no pair can be held out.
    """
    texts = [(bare_words(pair.source), bare_words(pair.target)) for pair in pairs]
    counts = Counter(itertools.chain.from_iterable(texts))
    alone = [i for i, (source, target) in enumerate(texts) if counts[source] == counts[target] == 1]
    most = min(MOST_HELD_OUT, len(pairs) // 20, len(alone) // 2)
    if most < 1:
        raise ValueError(
            f"{counted(len(pairs), 'pair')} left, and {len(alone)} share no sentence with another pair: at least 20 are needed, to "
            "hold some out"
        )
    drawn = np.random.default_rng(0).permutation(alone)[: 2 * most].tolist()
    return {"valid": [pairs[i] for i in sorted(drawn[:most])], "test": [pairs[i] for i in sorted(drawn[most:])]}


def parallel(data: Path, name: str) -> ParallelText:
    """Returns the source of a split, which is found from any folder."""
    data = data.absolute()
    ends = json.loads((data / "made_of.json").read_bytes())["ends"]
    return ParallelText(source=str(data / f"{name}.{ends[0]}"), target=str(data / f"{name}.{ends[1]}"))
