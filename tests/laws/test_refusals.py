"""Law: a refusal names only facts. Inputs are broken in drawn places; each statement of the message is compared with the input.

The oracle reads the message and the input alone: it knows the statements below by their words, and not which break was drawn.
The draws are the same in every run, and others with another FLAXFORMER_LITE_SEED.
"""

import ast
import csv
import dataclasses
import io
import json
import operator
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.config.differences import flatten
from flaxformer_lite.config.load import load_config
from flaxformer_lite.config.options import apply_options
from flaxformer_lite.files.data import CSV, TSV, JSONLines, ParallelText
from flaxformer_lite.files.data.source import DataSource
from tests.support.paths import ROOT

SEED = int(os.environ.get("FLAXFORMER_LITE_SEED", "0"))


def refusal(action: Callable[[], object]) -> str:
    """Returns the message with which an action is refused, and "" where it is not."""
    try:
        action()
    except ValueError as error:
        return str(error)
    return ""


# Settings ---------------------------------------------------------------------------------------------------------------

VALUES = (
    "-1",
    "0",
    "1",
    "2",
    "3",
    "7",
    "0.5",
    "1.5",
    "1e-50",
    "nan",
    "inf",
    "99999999999",
    "True",
    "None",
    "abc",
    "x y",
)
"""Values that are drawn for any setting; most settings have no use for most of them."""
BOUNDS: Mapping[str, Callable[[float, float], bool]] = {
    "at least": operator.ge,
    "above": operator.gt,
    "at most": operator.le,
    "below": operator.lt,
}


def typed(word: str) -> Any:
    """Returns a word of a command line as the value that it spells."""
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return float(word) if word in ("nan", "inf") else word


def shown(value: Any) -> set[str]:
    """Returns the ways in which messages write a value, or the words of a command line that spell it."""
    items = value if isinstance(value, tuple) else (value,)
    return {repr(value), str(value), repr(items), repr(tuple(map(str, items))), repr(" ".join(map(str, items)))}


def wrong_statements(message: str, actual: Mapping[str, Any], setting: str) -> Iterator[str]:
    """Yields the untrue statements of a message on settings: a value that a setting does not have, a bound that it keeps."""
    for path in re.findall(r"(?<![\w.])[a-z]\w*(?:\.[a-z]\w*)+(?= is )", message):
        words = message.split(f"{path} is ", 1)[1]
        negated = words.removeprefix("not ")
        if path in actual and re.match(r"['\"\d(\-]|True|False|None|nan|inf", negated):
            told = any(negated.startswith(text) for text in shown(actual[path]))
            if told == words.startswith("not "):
                yield f"{path} is {actual[path]!r}"
    rule = re.search(rf"{re.escape(setting)} is [^:]*: it must be ([^;]*)", message)
    value = actual[setting]
    if rule is None or isinstance(value, bool) or not isinstance(value, int | float):
        return
    alternatives = re.split(r", or | or ", rule[1])
    for alternative in alternatives:
        bounds = re.findall(rf"({'|'.join(BOUNDS)}) (-?[\d.e+]*\d)", alternative)
        fits = bool(bounds) and all(BOUNDS[words](value, float(limit)) for words, limit in bounds)
        other_type = ("whole number" in alternative and not isinstance(value, int)) or "each" in alternative
        if fits and not other_type and not (isinstance(value, float) and "finite" in alternative):
            yield f"{setting} = {value!r} is {alternative}"


@pytest.mark.parametrize("name", ["quickstart", "char_lm", "tiny_mlm", "multi30k_en_de_student", "chat_dates_lora"])
def test_a_refused_setting_has_the_value_and_breaks_the_rule_that_are_named(name: str):
    config = load_config(str(ROOT / "configs" / f"{name}.py"))
    settings, chance = flatten(config), random.Random(f"{SEED} {name}")
    names = [path for path in settings if not path.endswith("kind")]
    refused = 0
    for _ in range(150):
        setting, word = chance.choice(names), chance.choice(VALUES)
        option = f"--{setting.replace('_', '-')}"
        message = refusal(lambda option=option, word=word: apply_options(config, [option, *word.split()]))
        if message:
            refused += 1
            actual = settings | {setting: typed(word) if " " not in word else tuple(map(typed, word.split()))}
            wrong = list(wrong_statements(message, actual, setting))
            assert not wrong, f"{option} {word} is refused, but {wrong}: {message}"
    assert refused > 50


def test_the_oracle_of_settings_sees_untrue_statements():
    """A message with another value, or with a bound that the value keeps, is found."""
    actual = {"train.steps": 7, "train.seed": 3}
    for message, number in (
        ("train.steps is 7: it must be at least 8", 0),
        ("train.steps is 8: it must be at least 9", 1),
        ("train.steps is 7: it must be at least 7", 1),
        ("train.steps is 7, but train.seed is 4: choose another", 1),
        ("train.steps is 7: it must be a whole number, at least 1 and at most 6", 0),
    ):
        assert len(list(wrong_statements(message, actual, "train.steps"))) == number


# Files ------------------------------------------------------------------------------------------------------------------

ROWS = [(f"word number {i}", f"Wort Nummer {i}, ja") for i in range(7)]


def as_csv(rows: list[tuple[str, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


FORMS: dict[str, tuple[Callable[[list[tuple[str, ...]]], str], Callable[[Path], DataSource]]] = {
    "tsv": (
        lambda rows: "".join("\t".join(row) + "\n" for row in rows),
        lambda path: TSV(path=str(path)),
    ),
    "csv": (as_csv, lambda path: CSV(path=str(path))),
    "jsonl": (
        lambda rows: "".join(json.dumps({"source": row[0], "target": row[1]}) + "\n" for row in rows),
        lambda path: JSONLines(path=str(path)),
    ),
    "txt": (
        lambda rows: "".join(row[1] + "\n" for row in rows),
        lambda path: ParallelText(source=str(path.with_suffix(".en")), target=str(path)),
    ),
}
"""A writer of rows and a source that reads them, by the end of the file's name."""


def broken(content: bytes, chance: random.Random) -> bytes:
    """Returns a file of which one line is damaged, missing, twice there, or of another kind."""
    lines = content.split(b"\n")[:-1]
    i = chance.randrange(len(lines))
    line = lines[i]
    cut = chance.randrange(len(line) + 1)
    lines[i : i + 1] = chance.choice(
        [
            [line[:cut] + b"\xfc" + line[cut:]],
            [line[:cut]],
            [line[:cut] + chance.choice([b"\t", b",", b'"', b"\x00", b"{", b"\\ud800"]) + line[cut:]],
            [b""],
            [],
            [line, line],
            [b"null"],
            [b'{"source": 5, "target": null}'],
            [b'{"source": "a"}'],
            [b'["a", "b"]'],
            [line.replace(b"source", b"text")],
            [line.replace(b"\t", b";").replace(b",", b";")],
        ]
    )
    return b"".join(line + b"\n" for line in lines)


def wrong_places(message: str, folder: Path) -> Iterator[str]:
    """Yields the statements of a message on lines of files that are not so."""
    for name, number, rest in re.findall(rf"{re.escape(str(folder))}/([\w.]+):(\d+): ([^;]*(?:;[^;]*)?)", message):
        lines = (folder / name).read_bytes().split(b"\n")
        if int(number) > len(lines) - 1:
            yield f"{name} has {len(lines) - 1} lines"
            continue
        line = lines[int(number) - 1]
        checks = {
            r"not UTF-8 \(byte 0x(\w\w)\)": lambda m, line=line: bytes.fromhex(m[1]) in line and not decodes(line),
            r"the (?:source|target|text) is empty": lambda m, line=line: empty_side(line),
            r"^(\d+) column\(s\) between tabs": lambda m, line=line: int(m[1]) == line.count(b"\t") + 1,
            r"but the first row has (\d+)": lambda m, lines=lines, name=name: (
                int(m[1]) == len(next(csv.reader([lines[0].decode()], delimiter="\t" if name.endswith("tsv") else ",")))
            ),
            r"not JSON": lambda m, line=line: not is_json(line),
            r"no field (\w+)": lambda m, line=line: m[1] not in as_object(line),
            r"the fields are ([\w, ]+)$": lambda m, line=line: m[1].split(", ") == list(as_object(line)),
            r"field (\w+) holds (?!half)(\w+)": lambda m, line=line: type(as_object(line)[m[1]]).__name__ == m[2],
            r"half a surrogate pair": lambda m, line=line: b"\\ud800" in line,
        }
        known = {words: re.search(words, rest) for words in checks}
        for words, match in known.items():
            if match and not checks[words](match):
                yield f"line {number} is {line!r}"
    for count, name in re.findall(rf"(\d+) lines in {re.escape(str(folder))}/([\w.]+)", message):
        if (folder / name).read_bytes().count(b"\n") != int(count):
            yield f"{name} has other lines"


def decodes(line: bytes) -> bool:
    try:
        return line.decode() is not None
    except UnicodeDecodeError:
        return False


def is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def as_object(line: bytes) -> dict[str, Any]:
    value = json.loads(line)
    return value if isinstance(value, dict) else {}


def empty_side(line: bytes) -> bool:
    """Returns whether a line has a side without text, in any of the forms."""
    if line.startswith(b"{"):
        return not all(str(text).strip() for text in as_object(line).values())
    cells = line.split(b"\t") + next(csv.reader([line.decode()]), [""]) if b"\t" not in line else line.split(b"\t")
    return not line.strip() or not all(cell.strip() for cell in cells)


@pytest.mark.parametrize("form", FORMS)
def test_a_refused_file_is_as_the_message_says(form: str, tmp_path: Path):
    """Each place that is named has what the message says of it, and lines before the first break are read."""
    write, source = FORMS[form]
    chance, refused = random.Random(f"{SEED} {form}"), 0
    (tmp_path / "a.en").write_text("".join(row[0] + "\n" for row in ROWS))
    path = tmp_path / f"a.{form}"
    for _ in range(120):
        path.write_bytes(broken(write(list(ROWS)).encode(), chance))
        message = refusal(lambda: list(source(path).stream("data.train")))
        if message:
            refused += 1
            wrong = list(wrong_places(message, tmp_path))
            assert str(tmp_path) in message and not wrong, f"{message}\nbut {wrong}:\n{path.read_bytes()!r}"
            if "--data.train.bad-rows drop" in message:  # the remedy that is named is one
                list(dataclasses.replace(source(path), bad_rows="drop", empty_lines="drop").stream())
    assert refused > 20
