"""Oracles: files written by hand, byte for byte, with the pairs or the message they must give."""

import json
from pathlib import Path

import pytest

from flaxformer_lite.data.records import Pair
from flaxformer_lite.data.text_files import TSV, JSONLines, ParallelText
from tests.support.files import PAIRS, file, message


def test_files_of_different_length(tmp_path: Path) -> None:
    source, target = file(tmp_path, "x.de", "a\nb\nc\n"), file(tmp_path, "x.en", "a\nb\n")
    assert message(ParallelText(source=source, target=target)).startswith(f"3 lines in {source} but 2 in {target}: ")


def test_patterns_read_several_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, content in (("b.de", "zwei\n"), ("a.de", "eins"), ("a.en", "one\n"), ("b.en.gz", "two\n")):
        file(tmp_path, name, content, packed=name.endswith("gz"))
    source = ParallelText(source=f"{tmp_path}/*.de", target=f"{tmp_path}/*.en*")
    fractions: list[float] = []
    assert list(source.stream(None, fractions.append)) == [Pair("eins", "one"), Pair("zwei", "two")]
    assert fractions == [0.5, 1.0]
    assert [version.split()[0] for version in source.versions()] == [
        f"{tmp_path}/{n}" for n in ("a.de", "b.de", "a.en", "b.en.gz")
    ]
    table = [file(tmp_path, f"{n}.tsv", f"{n}\tx\n") for n in (1, 2)]
    assert TSV(path=f"{tmp_path}/?.tsv").open() == [Pair("1", "x"), Pair("2", "x")]
    before = TSV(path=table[0]).versions()
    file(tmp_path, "1.tsv", "longer\tx\n")
    assert TSV(path=table[0]).versions() != before


def test_files_of_a_pattern_belong_together_one_by_one(tmp_path: Path) -> None:
    """Two cut files whose lines add up would shift every pair after the first cut."""
    for name, content in (("1.de", "a\nb\nc\n"), ("2.de", "d\ne\n"), ("1.en", "a\nb\n"), ("2.en", "c\nd\ne\n")):
        file(tmp_path, name, content)
    source = ParallelText(source=f"{tmp_path}/*.de", target=f"{tmp_path}/*.en")
    assert message(source).startswith(f"3 lines in {tmp_path}/1.de but 2 in {tmp_path}/1.en: ")
    file(tmp_path, "3.en", "x\n")
    assert message(source).startswith(f"{tmp_path}/*.de matches 2 files but {tmp_path}/*.en 3: ")


def test_a_bad_row_of_a_pattern_is_named_by_its_own_file_and_line(tmp_path: Path) -> None:
    for n in (1, 2):
        file(tmp_path, f"{n}.jsonl", '{"source": "a", "target": "A"}\n' + "{\n" * (n - 1))
        file(tmp_path, f"{n}.tsv", "a\tA\n" + "b\n" * (n - 1))
    assert message(JSONLines(path=f"{tmp_path}/*.jsonl")).startswith(f"{tmp_path}/2.jsonl:2: not JSON")
    assert message(TSV(path=f"{tmp_path}/*.tsv")).startswith(f"{tmp_path}/2.tsv:2: 1 column(s)")


def test_empty_files(tmp_path: Path) -> None:
    empty, good = file(tmp_path, "empty", ""), file(tmp_path, "good", "a\n")
    for source in (
        ParallelText(source=good, target=empty),
        ParallelText(source=empty, target=empty),
        TSV(path=empty),
        JSONLines(path=file(tmp_path, "empty", "", packed=True)),
    ):
        assert message(source) == f"{empty}: the file is empty"


def test_empty_sides_and_empty_lines_of_tables(tmp_path: Path) -> None:
    tsv = file(tmp_path, "x.tsv", "a\tA\n\n \tB\nc\t\n \nd\tD\n")
    assert message(TSV(path=tsv)).startswith(f"{tsv}:2: the source is empty")
    assert list(TSV(path=tsv, empty_lines="drop").open()) == [Pair("a", "A"), Pair("d", "D")]
    lines = ['{"source": "a", "target": "A"}', "", '{"source": "b", "target": " "}', '{"source": "d", "target": "D"}']
    json_lines = file(tmp_path, "x.jsonl", "\n".join(lines))
    assert message(JSONLines(path=json_lines)).startswith(f"{json_lines}:2: the source is empty")
    assert list(JSONLines(path=json_lines, empty_lines="drop").open()) == [Pair("a", "A"), Pair("d", "D")]
    blank = file(tmp_path, "blank", "\n\n")
    assert message(TSV(path=blank, empty_lines="drop")) == f"{blank}: no pair of sentences in it"


def test_rows_with_too_few_columns(tmp_path: Path) -> None:
    path = file(tmp_path, "x.tsv", "a\tA\tx\nb\tB\n")
    assert message(TSV(path=path, target_column=2)).startswith(f"{path}:2: 2 column(s) between tabs, but column 2")


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"source_column": -1}, r"tsv\.source_column is -1: "),
        ({"target_column": -2}, r"tsv\.target_column is -2: "),
        ({"target_column": 0}, r"tsv\.source_column and tsv\.target_column are both 0: "),
    ],
)
def test_impossible_columns(setting: dict[str, int], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        TSV(path="x.tsv", **setting)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("not json", "not JSON"),
        ('{"source": "a"', "not JSON"),
        ("[" * 100_000, "not JSON"),
        (
            '{"source": "a", "meta": {"x": {"y": 1}, "z": 2}}',
            "no field target; the fields are source, meta.x.y, meta.z",
        ),
        ('["a", "b"]', "no field source; the fields are none"),
        ('"a source and a target"', "no field source; the fields are none"),
        ('{"source": "a", "target": "b"} {}', "not JSON"),
        ('{"source": 3, "target": "b"}', "field source holds int '3', not a string"),
        ('{"source": "a", "target": null}', "field target holds NoneType 'None', not a string"),
        ('{"source": {"de": "a"}, "target": "b"}', "field source holds dict"),
        ('{"source": "\\ud83d", "target": "b"}', "field source holds half a surrogate pair"),
    ],
)
def test_bad_json_lines_are_located(tmp_path: Path, line: str, expected: str) -> None:
    path = file(tmp_path, "x.jsonl", f'{{"source": "a", "target": "b"}}\n{line}\n')
    assert message(JSONLines(path=path)).startswith(f"{path}:2: {expected}")


def test_tables_without_a_source_give_documents(tmp_path: Path) -> None:
    documents = [Pair("", target) for _, target, _ in PAIRS]
    tsv = file(tmp_path, "x.tsv", "".join(f"{i}\t{t}\n" for i, (_, t, _) in enumerate(PAIRS)))
    json_lines = file(tmp_path, "x.jsonl", "".join(json.dumps({"text": t}) + "\n" for _, t, _ in PAIRS))
    assert list(TSV(path=tsv, source_column=None).open()) == documents
    assert list(JSONLines(path=json_lines, source_field=None, target_field="text").open()) == documents
    blank = file(tmp_path, "blank.jsonl", '{"text": "a"}\n{"text": " "}\n')
    source = JSONLines(path=blank, source_field=None, target_field="text")
    assert message(source) == f"{blank}:2: the text is empty; correct the data"
    assert list(JSONLines(path=blank, source_field=None, target_field="text", empty_lines="drop").open()) == [
        Pair("", "a")
    ]
