"""Laws of every source: empty lines, messages with a remedy, the same pairs in every format; and one from outside."""

import dataclasses
import json
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.files.data import CSV, TSV, DataConfig, DataSource, Dates, JSONLines, ParallelText
from flaxformer_lite.files.data.mixture import SourceKinds
from flaxformer_lite.files.records import Classes, Pairs
from tests.support.experiments import tiny_config, train_losses
from tests.support.files import PAIRS, file, message

LABELLED = [Pair("", "good", "pos"), Pair("", "so so", "0"), Pair("", "bad", "-1.5")]


def kinds_of(base: type) -> set[type]:
    """The classes of the package with a kind of their own, at any depth."""
    found = set().union(*(kinds_of(one) for one in base.__subclasses__()))
    return found | ({base} if "kind" in vars(base) and base.__module__.startswith("flaxformer_lite") else set())


def test_the_union_has_every_source() -> None:
    assert set(typing.get_args(SourceKinds)) == kinds_of(DataSource)


@pytest.mark.parametrize("packed", [False, True])
def test_every_format_gives_the_same_pairs(tmp_path: Path, packed: bool) -> None:
    german, english = ("\n".join(side) for side in zip(*(pair[:2] for pair in PAIRS), strict=True))
    rows = [
        {"id": i, "source": s, "target": t, "translation": {"de": s, "en": t}} for i, (s, t, *_) in enumerate(PAIRS)
    ]
    json_lines = file(tmp_path, "x.jsonl", "".join(json.dumps(row) + "\r\n" for row in rows), packed)
    tsv = file(tmp_path, "x.tsv", "".join(f"{i}\t{t}\t{s}\t\n" for i, (s, t, *_) in enumerate(PAIRS)), packed)
    csv = file(tmp_path, "x.csv", "".join(f'"{t}",{i},{s}\r\n' for i, (s, t, *_) in enumerate(PAIRS)), packed)
    sources = [
        ParallelText(
            source=file(tmp_path, "x.de", german, packed), target=file(tmp_path, "x.en", english + "\n", packed)
        ),
        TSV(path=tsv, record=Pairs(source=2, target=1)),
        CSV(path=csv, record=Pairs(source=2, target=0)),
        JSONLines(path=json_lines),
        JSONLines(path=json_lines, record=Pairs(source="translation.de", target="translation.en")),
    ]
    for source in sources:
        pairs = source.open()
        assert list(pairs) == PAIRS
        assert len(pairs) == 3
        assert pairs[1] == PAIRS[1]
        assert isinstance(pairs[1], Pair)
    assert isinstance(Dates(num_examples=1).open()[0], Pair)


def test_every_table_gives_labels(tmp_path: Path) -> None:
    """Strings as they are, numbers as JSON writes them; of pairs and of single texts."""
    tsv = file(tmp_path, "x.tsv", "".join(f"{label}\t{text}\n" for _, text, label, *_ in LABELLED))
    assert list(TSV(path=tsv, record=Classes(text=1, label=0)).open()) == LABELLED
    values = ["pos", 0, -1.5]
    lines = [json.dumps({"text": pair.target, "y": {"z": value}}) for pair, value in zip(LABELLED, values, strict=True)]
    json_lines = file(tmp_path, "x.jsonl", "\n".join(lines))
    assert list(JSONLines(path=json_lines, record=Classes(label="y.z")).open()) == LABELLED
    tsv = file(tmp_path, "pairs.tsv", "1\ta\tb\ttrue\n")
    assert list(TSV(path=tsv, record=Classes(source=1, text=2, label=3)).open()) == [Pair("a", "b", "true")]
    assert message(TSV(path=tsv, record=Classes(source=0, text=1, label=9))).startswith(
        f"{tsv}:1: 4 column(s) between tabs, but column 9"
    )
    bad = file(tmp_path, "bad.jsonl", '{"text": "a", "y": null}')
    assert message(JSONLines(path=bad, record=Classes(label="y"))) == (
        f"{bad}:1: field y holds NoneType 'None': it must be a string"
    )
    with pytest.raises(ValueError, match=r"^tsv\.record\.text and tsv\.record\.label are both 1: "):
        TSV(path="x", record=Classes(source=0, text=1, label=1))


def test_any_number_of_labels_is_a_list(tmp_path: Path) -> None:
    """By hand: a list of strings and numbers in a field; in a cell the parts between separators, none of an empty cell."""
    rows = [{"text": "a", "y": ["b, c", "ü", 7]}, {"text": "d", "y": []}, {"text": "e", "y": "f"}]
    path = file(tmp_path, "x.jsonl", "\n".join(map(json.dumps, rows)))
    fields: dict = {"record": Classes(label="y")}
    wanted = [Pair("", "a", '["b, c", "ü", "7"]'), Pair("", "d", "[]"), Pair("", "e", "f")]
    assert list(JSONLines(path=path, **fields).open()) == wanted
    bad = file(tmp_path, "bad.jsonl", '{"text": "a", "y": ["b", null]}')
    assert message(JSONLines(path=bad, **fields)) == f"{bad}:1: field y holds NoneType 'None': it must be a string"
    tsv = file(tmp_path, "x.tsv", "a\tb, c|ü |\nd\t\n")
    source = TSV(path=tsv, record=Classes(text=0, label=1, separator="|"))
    assert list(source.open()) == [Pair("", "a", '["b, c", "ü"]'), Pair("", "d", "[]")]
    for settings in ({"separator": "|", "label": ("a", "b")}, {"separator": ""}):
        with pytest.raises(ValueError, match=r"^record\.separator is '.?' and record\.label .*: give a sign"):
            Classes(**settings)


@pytest.mark.parametrize("white", ["", "  ", " \t\u3000", "\u2028"])
def test_empty_lines_stop_or_are_dropped(tmp_path: Path, white: str) -> None:
    source = file(tmp_path, "x.de", f"a\nb\nc\n{white}\n")
    target = file(tmp_path, "x.en", f"A\n{white}\nC\nD\n")
    stopped = message(ParallelText(source=source, target=target))
    assert stopped == f"{target}:2: the target is empty; correct the data"
    assert message(ParallelText(source=target, target=source)).startswith(f"{target}:2: the source is empty; ")
    kept = ParallelText(source=source, target=target, empty_lines="drop").open()
    assert list(kept) == [Pair("a", "A"), Pair("c", "C")]


def test_messages_name_the_setting_of_the_split_at_fault(tmp_path: Path) -> None:
    gap, whole = file(tmp_path, "gap", "a\n\n"), file(tmp_path, "whole", "a\nb\n")
    tsv, lines = file(tmp_path, "x.tsv", "a\tA\n\n"), file(tmp_path, "x.jsonl", "\n")
    for source in (ParallelText(source=gap, target=whole), TSV(path=tsv), JSONLines(path=lines)):
        for setting in ("data.train", "data.eval", "data.test"):
            with pytest.raises(ValueError, match=rf", or drop such pairs \(--{setting}\.empty-lines drop\)$"):
                source.open(setting)


def test_an_empty_line_of_several_files_is_named_by_its_own(tmp_path: Path) -> None:
    """Line 5 of all is line 2 of the second file; an empty first file has no line."""
    for side in ("de", "en"):
        for number, text in enumerate(("", "a\nb\nc\n", "d\ne\n")):
            file(tmp_path, f"{number}.{side}", text)
    target = file(tmp_path, "2.en", "d\n \n")
    assert message(ParallelText(source=f"{tmp_path}/*.de", target=f"{tmp_path}/*.en")).startswith(
        f"{target}:2: the target"
    )
    file(tmp_path, "1.tsv", "a\tA\n" * 3)
    tsv = file(tmp_path, "2.tsv", "d\tD\n\n")
    assert message(TSV(path=f"{tmp_path}/*.tsv")).startswith(f"{tsv}:2: the source is empty")


@dataclass(frozen=True, kw_only=True)
class Reversed(DataSource):
    """Numbers, to be written backwards."""

    kind: Literal["reversed"] = "reversed"
    num_examples: int = 64

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        return [Pair(str(n), str(n)[::-1]) for n in range(1000, 1000 + self.num_examples)]


@dataclass(frozen=True, kw_only=True)
class ExtendedData(DataConfig):
    """The settings of the data with the new name in the union of sources."""

    train: SourceKinds | Reversed


@pytest.mark.slow
def test_a_source_from_outside_the_package_trains() -> None:
    """Law: the contract of `DataSource` is all that training needs."""
    data = {"tokenizer": Characters(), "tokens_per_batch": 128, "rows_multiple": 8, "bucket_lengths": (8,)}
    config = dataclasses.replace(tiny_config(), data=ExtendedData(train=Reversed(), eval=Dates(num_examples=9), **data))
    losses = train_losses(config, 16)
    assert losses[-1] < losses[0] - 0.5


def test_bad_rows_are_listed_ten_at_a_time_or_left_out(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """All of a file at once: correcting one a start takes as many starts."""
    rows = ["a\tA", *("no tab" for _ in range(12)), "b\tB"]
    tsv = TSV(path=file(tmp_path, "x.tsv", "\n".join(rows)))
    with pytest.raises(ValueError) as caught:
        tsv.open("data.train")
    text = str(caught.value)
    assert text.startswith(f"12 bad rows, the first of them: {tsv.path}:2: 1 column(s) between tabs, ")
    assert text.count(": 1 column(s)") == 10 and f"{tsv.path}:11: " in text
    assert text.endswith("; or leave out such rows (--data.train.bad-rows drop)")
    assert list(dataclasses.replace(tsv, bad_rows="drop").open()) == [Pair("a", "A"), Pair("b", "B")]
    assert capsys.readouterr().err.startswith(f"warning: 12 bad rows were left out, the first of them: {tsv.path}:2: ")
    objects = ['{"source": "a", "target": "A"}', "[", '{"source": "a"}', '{"source": 1, "target": "A"}']
    lines = JSONLines(path=file(tmp_path, "x.jsonl", "\n".join(objects)))
    assert message(lines).startswith("3 bad rows") and list(dataclasses.replace(lines, bad_rows="drop").open()) == [
        Pair("a", "A")
    ]


def test_a_bad_first_row_ends_the_reading_or_is_left_out(tmp_path: Path) -> None:
    """Then the settings are wrong, most likely: one row is named, though the next one is bad too."""
    tsv = TSV(path=file(tmp_path, "x.tsv", "no tab\nno tab\nb\tB\n"))
    assert message(tsv) == f"{tsv.path}:1: 1 column(s) between tabs, but column 1, counted from 0, is needed"
    assert list(dataclasses.replace(tsv, bad_rows="drop").open()) == [Pair("b", "B")]
