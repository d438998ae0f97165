"""Laws of all sources: the same pairs and labels in every format, and each kind in the union."""

import json
import typing
from pathlib import Path

import pytest

from flaxformer_lite.data.built_in import Dates
from flaxformer_lite.data.mixture import SourceKinds
from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.source import DataSource
from flaxformer_lite.data.text_files import CSV, TSV, JSONLines, ParallelText
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
    german, english, _ = ("\n".join(side) for side in zip(*PAIRS, strict=True))
    rows = [{"id": i, "source": s, "target": t, "translation": {"de": s, "en": t}} for i, (s, t, _) in enumerate(PAIRS)]
    json_lines = file(tmp_path, "x.jsonl", "".join(json.dumps(row) + "\r\n" for row in rows), packed)
    tsv = file(tmp_path, "x.tsv", "".join(f"{i}\t{t}\t{s}\t\n" for i, (s, t, _) in enumerate(PAIRS)), packed)
    csv = file(tmp_path, "x.csv", "".join(f'"{t}",{i},{s}\r\n' for i, (s, t, _) in enumerate(PAIRS)), packed)
    sources = [
        ParallelText(
            source=file(tmp_path, "x.de", german, packed), target=file(tmp_path, "x.en", english + "\n", packed)
        ),
        TSV(path=tsv, source_column=2, target_column=1),
        CSV(path=csv, source_column=2, target_column=0),
        JSONLines(path=json_lines),
        JSONLines(path=json_lines, source_field="translation.de", target_field="translation.en"),
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
    tsv = file(tmp_path, "x.tsv", "".join(f"{label}\t{text}\n" for _, text, label in LABELLED))
    assert list(TSV(path=tsv, source_column=None, label_column=0).open()) == LABELLED
    values = ["pos", 0, -1.5]
    lines = [json.dumps({"text": pair.target, "y": {"z": value}}) for pair, value in zip(LABELLED, values, strict=True)]
    json_lines = file(tmp_path, "x.jsonl", "\n".join(lines))
    assert (
        list(JSONLines(path=json_lines, source_field=None, target_field="text", label_field="y.z").open()) == LABELLED
    )
    tsv = file(tmp_path, "pairs.tsv", "1\ta\tb\ttrue\n")
    assert list(TSV(path=tsv, source_column=1, target_column=2, label_column=3).open()) == [Pair("a", "b", "true")]
    assert message(TSV(path=tsv, label_column=9)).startswith(f"{tsv}:1: 4 column(s) between tabs, but column 9")
    bad = file(tmp_path, "bad.jsonl", '{"text": "a", "y": null}')
    assert message(JSONLines(path=bad, source_field=None, target_field="text", label_field="y")) == (
        f"{bad}:1: field y holds NoneType 'None': it must be a string"
    )
    with pytest.raises(ValueError, match=r"^tsv\.target_column and tsv\.label_column are both 1: "):
        TSV(path="x", label_column=1)
