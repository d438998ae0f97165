"""The folder of `pair`: an ordinary run, with the texts that were cleaned and divided in `data/`.

data/train.*, data/valid.*, data/test.*    the sentences, line by line
data/removed.tsv                           the pairs that were found: rule, number of the line, both texts
data/scores.json                           the scores that the command prints
data/made_of.json                          the files, the rules that were off, and how many pairs each rule found
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.base.atomic_files import atomic_write, write_whole
from flaxformer_lite.base.console import counted, note, warn
from flaxformer_lite.config import Config, load_config, to_json
from flaxformer_lite.data import Pair, ParallelText
from flaxformer_lite.text.files import file_versions, line_chunks
from flaxformer_lite.tools.pair.cleaning import RULES, clean, plain
from flaxformer_lite.tools.pair.recipe import choose

MOST_HELD_OUT = 1_000
"""Pairs of the validation and of the test, as many each; a twentieth of a smaller text."""
SPLITS = {"train": "train", "eval": "valid", "test": "test"}


def prepare(files: Sequence[str], off: Collection[str], output: Path, deadline: float | None) -> Config:
    """Cleans and divides the pairs and chooses the config, unless an earlier call did; returns the config.

    files: two parallel files, or one TSV. off: rules that remove nothing. deadline: by `time.monotonic`.

    Raises: ValueError for files that are no pairs, and for a folder that was made of something else.
    """
    asked = {"files": [version for file in files for version in file_versions(file)], "keep": sorted(off)}
    data = output / "data"
    if (data / "made_of.json").is_file():
        before = json.loads((data / "made_of.json").read_text(encoding="utf-8"))
        if changed := [name for name, value in asked.items() if before.get(name) != value]:
            raise ValueError(
                f"{output} was made of other {' and '.join(changed)}: give those again to continue it, or another --output"
            )
    elif output.exists() and (not output.is_dir() or any(file.name[0] != "." for file in output.iterdir())):
        raise ValueError(f"--output {output} is there, and was not made by `pair`: give a new folder")
    else:
        divide(read_pairs(files), asked, off, languages(files), data)
    if not (output / "config.json").is_file():
        sources = {split: parallel(data, name) for split, name in SPLITS.items()}
        config = choose(list(sources["train"].stream()), output, deadline, **sources)
        write_whole(output / "config.json", to_json(config))
    else:
        hours = "" if deadline is None else "; --hours changes nothing now: for other hours give a new --output"
        note(f"{output} is continued: what was chosen for it stands, in {output / 'config.json'}{hours}")
    return load_config(str(output / "config.json"))


def read_pairs(files: Sequence[str]) -> list[Pair]:
    """Returns the pairs of two parallel files, or of the first two columns of a TSV; a line that is no text is an empty one.

    Raises: ValueError if one file has more lines than the other, or one alone has no columns.
    """
    sides = [read_lines(file) for file in files]
    if len(sides) == 1:
        if not any("\t" in line for line in sides[0]):
            raise ValueError(f"{files[0]}: no line has a tab: give a second file, or one with two columns")
        rows = [[*line.split("\t"), "", ""] for line in sides[0]]
        return [Pair(row[0], row[1]) for row in rows]
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"{len(sides[0])} lines in {files[0]} but {len(sides[1])} in {files[1]}: parallel files need equally many lines"
        )
    return [Pair(*pair) for pair in zip(*sides, strict=True)]


def read_lines(file: str) -> list[str]:
    """Returns the lines of a file; one that is not UTF-8 is empty, and is told of."""
    bad: list[str] = []
    chunks = line_chunks(file, bad_line=lambda n, why: bad.append(f"{file}:{n}: {why}"))
    lines = [line for chunk in chunks for line in chunk]
    if bad:
        warn(f"{counted(len(bad), 'line')} cannot be read, and counts as empty; the first: {bad[0]}")
    return lines


def languages(files: Sequence[str]) -> list[str]:
    """Returns the last parts of two files' names, such as en and de, which BLEU reads; source and target if there are none."""
    ends = [re.sub(r"\.(gz|bz2|xz|zst)$", "", file).rpartition(".")[2] for file in files]
    named = len(ends) == 2 and ends[0] != ends[1] and all(re.fullmatch(r"\w{2,8}", end) for end in ends)
    return ends if named else ["source", "target"]


def divide(
    pairs: Sequence[Pair], asked: dict[str, Any], off: Collection[str], ends: Sequence[str], folder: Path
) -> None:
    """Writes the folder `data`: training, validation and test, of which no two share a sentence, and what was removed.

    Raises: ValueError if too few pairs are left.
    """
    cleaned = clean(pairs, off)
    note(f"{len(pairs):,} pairs were read")
    for name, found in cleaned.found.items():
        if found:
            sides = (side.strip() for side in pairs[found[0]][:2])
            example = " ||| ".join(side[:40] + "…" * (len(side) > 40) for side in sides)
            note(f"  {len(found):>8,} {name}: {RULES[name].__doc__}; the first is line {found[0] + 1}: {example}")
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
        counts = {name: len(found) for name, found in cleaned.found.items()}
        made = asked | {"ends": ends, "read": len(pairs), "removed": counts, "kept": len(left)}
        (unfinished / "made_of.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def hold_out(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """Returns validation and test: pairs whose sentences, without case and punctuation, are nowhere else in the text.

    Raises: ValueError if there are none.
    """
    keys = [[plain(pair[side]) for pair in pairs] for side in (0, 1)]
    counts = [Counter(side) for side in keys]
    alone = [i for i in range(len(pairs)) if counts[0][keys[0][i]] == counts[1][keys[1][i]] == 1]
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
