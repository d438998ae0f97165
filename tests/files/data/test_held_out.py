"""Laws of texts that are held out: no text is on two sides, however it comes; the sides are a function of text and seed."""

import dataclasses
import json
import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.files.data import (
    CSV,
    TSV,
    DataConfig,
    DataSource,
    Dates,
    JSONLines,
    Mixture,
    PlainText,
    text_files,
)
from flaxformer_lite.files.data.held_out import HeldOut, Split
from flaxformer_lite.files.data.mixture import open_parts
from flaxformer_lite.files.data.store import PairStream, TokenStore
from flaxformer_lite.files.records import Classes, Pairs, Questions
from flaxformer_lite.files.text.files import line_chunks
from flaxformer_lite.files.text.normal_form import bare_words
from tests.support.experiments import tiny_config
from tests.support.files import file

SPLITS: tuple[Split, ...] = ("train", "eval", "test")


def opened(data: DataConfig, split: Split) -> list[Pair]:
    source = data.source(split)
    assert source is not None
    return list(source.open(f"data.{split}"))


@pytest.fixture
def csv(tmp_path: Path) -> CSV:
    """2,000 rows: each source has two targets, of which the first comes twice."""
    rows = [f"{n % 667} words,{n % 1334}" for n in range(2000)]
    return CSV(path=file(tmp_path, "x.csv", "\n".join(["en,de", *rows])), header=True)


def test_each_text_is_on_one_side_and_nothing_is_lost(csv: CSV):
    data = DataConfig(train=csv, held_out=0.1)
    sides = {split: opened(data, split) for split in SPLITS}
    assert sorted(pair for pairs in sides.values() for pair in pairs) == sorted(csv.open())
    texts = {split: {pair.source for pair in pairs} for split, pairs in sides.items()}
    assert not texts["train"] & texts["eval"] | texts["train"] & texts["test"] | texts["eval"] & texts["test"]
    assert 40 < len(texts["eval"]) < 95 and 40 < len(texts["test"]) < 95, "a tenth of 667 is 67, with 7.7 to spare"
    assert [pair for pair in csv.open() if pair in set(sides["train"])] == sides["train"], "the order stays"


def test_a_class_may_have_any_name(tmp_path: Path):
    """`candidates` is none of the signs that tell a query with candidates from a text with a class."""
    path = file(tmp_path, "x.tsv", "".join(f"{n} {{}}\tcandidates\n" for n in range(100)))
    data = DataConfig(train=TSV(path=path, record=Classes(text=0, label=1)), held_out=0.1)
    assert sum(len(opened(data, split)) for split in SPLITS) == 100


def rule_by_hand(data: DataConfig, sources: Sequence[DataSource]) -> list[Pair]:
    """Returns the pairs of the training: those that are in no other split, and share no text with one that is."""
    held = [pair for split in ("eval", "test") for pair in opened(data, split)]  # type: ignore[arg-type]
    texts = {bare_words(text) for pair in held for text in pair[:2]} - {""}
    pairs = (pair for source in sources for pair in source.open())
    return [
        pair for pair in pairs if pair not in held and not texts & {bare_words(pair.source), bare_words(pair.target)}
    ]


def test_no_text_of_either_side_is_in_the_training(tmp_path: Path, capsys: pytest.CaptureFixture):
    """By hand: 300 pairs, each in both directions, some with a target that comes again, in another form and as a document."""
    pairs = [(f"Café {n}", f"a coffee {n % 250}") for n in range(300)]
    pairs += [(f"un {n}", f"A COFFEE\u00a0{n}!") for n in range(40)]
    pairs += [(unicodedata.normalize("NFD", f"café {n}"), f"another {n}") for n in range(40, 80)]
    table = file(tmp_path, "x.tsv", "".join(f"{a}\t{b}\n" for a, b in pairs))
    there, back = TSV(path=table), TSV(path=table, record=Pairs(source=1, target=0))
    alone = PlainText(path=file(tmp_path, "x.txt", "\n".join(b for _, b in pairs)), documents="lines")
    for sources in ((there,), (there, back), (there, alone), (alone, back)):
        data = DataConfig(train=Mixture(sources=sources) if len(sources) > 1 else sources[0], held_out=0.1)
        train, expected = opened(data, "train"), rule_by_hand(data, sources)
        assert train == expected and len(expected) > 100
        left_out = [int(line.split(" pairs ")[1].split()[0]) for line in capsys.readouterr().err.splitlines()]
        held = sum(len(opened(data, split)) for split in SPLITS[1:])
        assert sum(left_out) == len(pairs) * len(sources) - len(train) - held > 0
        assert sum(1 for _ in data.source("left out").stream()) == sum(left_out)  # type: ignore[union-attr]


def test_questions_on_one_text_are_on_one_side(tmp_path: Path):
    """Of 40 questions, five on each of 200 texts, none is left out; 479 of 1,000 were, when the questions decided."""
    rows = [
        {"question": f"question {(i + i // 200) % 40}?", "context": f"text {i % 200}", "answers": []}
        for i in range(1_000)
    ]
    lines = "\n".join(map(json.dumps, rows))
    data = DataConfig(train=JSONLines(path=file(tmp_path, "x.jsonl", lines), record=Questions()), held_out=0.1)
    texts = {split: [pair.target for pair in opened(data, split)] for split in SPLITS}
    assert sum(map(len, texts.values())) == 1_000 and all(texts.values())
    assert all(split.count(text) == 5 for split in texts.values() for text in {*split})


def test_the_number_of_pairs_that_are_left_out_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture):
    """By hand: all targets are one of two words, which are held out too; a source that is read again says nothing more."""
    lines = [f"question {n}\t{('yes', 'no', f'word {n}')[n % 3]}\n" for n in range(90)]
    data = DataConfig(train=TSV(path=file(tmp_path, "x.tsv", "".join(lines))), held_out=0.1)
    source = data.source("train")
    assert source is not None
    train = list(source.open("data.train"))
    assert {pair.target for pair in train}.isdisjoint({"yes", "no"}) and list(source.open("data.train")) == train
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(
        r"warning: data\.train: of 90 pairs \d\d are left out: data\.eval or data\.test .*set data\.eval", line
    )
    Path(data.train.path).write_text("".join(lines[::3]))  # type: ignore[union-attr]
    with pytest.raises(
        ValueError, match=r"leaves none of the 30 texts .*\(\d\d are left out: data\.eval or data\.test"
    ):
        opened(data, "train")


def test_the_held_out_texts_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A start reads the training data several times. Documents, whose own hash says all, need no pass before."""
    opened_files: list[str] = []
    monkeypatch.setattr(text_files, "line_chunks", lambda path, *a: opened_files.append(path) or line_chunks(path, *a))
    pairs = TSV(path=file(tmp_path, "x.tsv", "".join(f"a {n}\tb {n}\n" for n in range(99))))
    lines = PlainText(path=file(tmp_path, "x.txt", "".join(f"a {n}\n" for n in range(99))), documents="lines")
    counts = []
    for source in (Mixture(sources=(pairs, dataclasses.replace(pairs, record=Pairs(source=1, target=0)))), lines):
        train = DataConfig(train=source, held_out=0.1).source("train")
        assert train is not None
        for _ in range(3):
            opened_files.clear()
            list(train.stream())
            counts.append(sum(1 for path in opened_files if path.endswith(("tsv", "txt"))))
    assert counts[0] > counts[1] == counts[2] and counts[4] == counts[5] and counts[3] == counts[4] + 1


def test_a_training_can_be_stopped_while_the_held_out_texts_are_read(csv: CSV):
    """The interruption comes before the first pair."""

    def stop(activity: str, done: int, total: int) -> None:
        raise KeyboardInterrupt(f"{activity}: {done} of {total}")

    stream = PairStream(DataConfig(train=csv, held_out=0.1).source("train"), "data.train", stop)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt, match=r"^reading data.train: 0 of 0$"):
        next(iter(stream))
    texts = stream.source.texts  # type: ignore[attr-defined]
    assert texts.sorted is None


def test_the_name_of_the_target_column_is_that_of_all_sides(csv: CSV):
    """Law: BLEU's tokenizer follows from the language that a column is named by, in each split."""
    data = DataConfig(train=dataclasses.replace(csv, record=Pairs(source=0, target="de")), held_out=0.1)
    assert [getattr(data.source(split), "target_names", list)() for split in SPLITS] == [["de"]] * 3


def test_the_sides_are_those_of_every_release():
    """Oracle: worked out once. Another hash would put texts that a run was trained on into its test."""
    source = HeldOut(source=Dates(), split="train", held=("eval", "test"), share=0.2, seed=7)
    found = {source.split_of(Pair(str(n), "")): n for n in reversed(range(30))}
    assert found == {"train": 0, "eval": 5, "test": 1}
    assert source.split_of(Pair("", " 5\n")) == source.split_of(Pair("5", "other")) == "eval"
    other = dataclasses.replace(source, seed=8)
    assert [other.split_of(Pair(str(n), "")) for n in range(30)] != [
        source.split_of(Pair(str(n), "")) for n in range(30)
    ]


def test_a_split_that_has_data_of_its_own_takes_none(csv: CSV):
    """The texts that are held out for `eval` stay the same ones."""
    both, one = DataConfig(train=csv, held_out=0.1), DataConfig(train=csv, test=Dates(num_examples=3), held_out=0.1)
    assert opened(one, "eval") == opened(both, "eval") and one.source("test") is one.test
    assert len(opened(one, "train")) == len(opened(both, "train")) + len(opened(both, "test"))
    assert DataConfig(train=csv).source("train") is csv and DataConfig(train=csv).source("eval") is None
    for data in ({"train": csv, "eval": csv, "test": csv}, {}):
        with pytest.raises(ValueError, match=r"^data\.held_out is 0\.1, but data\..*: set it to 0, or change that$"):
            DataConfig(**data, held_out=0.1)


def test_a_mixture_holds_the_same_texts_out_of_each_source(csv: CSV, tmp_path: Path):
    """A text that two sources have is on one side; the mixture keeps its names and shares."""
    lines = "\n".join(pair.source for pair in csv.open())
    other = PlainText(path=file(tmp_path, "x.txt", lines), documents="lines")
    data = DataConfig(train=Mixture(sources=(csv, other), names=("a", "b"), weights=(1.0, 3.0)), held_out=0.1)
    source = data.source("train")
    assert isinstance(source, Mixture) and source.part_names == ("a", "b") and source.weights == (1.0, 3.0)
    pairs, parts = open_parts(data.source("eval"), "data.eval")  # type: ignore[arg-type]
    texts = [{pair.source or pair.target for pair in pairs[part]} for part in parts.values()]
    assert list(parts) == ["a", "b"] and texts[0] == texts[1]
    assert not texts[0] & {pair.source or pair.target for pair in opened(data, "train")}


def test_what_is_wrong_names_the_setting_of_the_training_data(csv: CSV, tmp_path: Path):
    gap = PlainText(path=file(tmp_path, "x.txt", "one text"))
    for split, words in (("eval", "1 texts of data.train for data.eval"), ("test", "for data.test")):
        with pytest.raises(ValueError, match=rf"^data\.held_out is 0\.1, which leaves none of the .*{words}: choose"):
            opened(DataConfig(train=gap, held_out=0.1), split)  # type: ignore[arg-type]
    Path(csv.path).write_text("a,b\nc\n")
    with pytest.raises(ValueError, match=r"--data\.train\.bad-rows drop"):
        opened(DataConfig(train=dataclasses.replace(csv, header=False), held_out=0.1), "eval")


def test_a_config_holds_out_in_training_and_is_written(csv: CSV, tmp_path: Path):
    """The checks that ask for `data.eval` are content; a store of the training texts is another one with another share."""
    tiny = tiny_config()
    data = dataclasses.replace(tiny.data, train=csv, eval=None, test=None, held_out=0.1)
    config = dataclasses.replace(tiny, data=data, weights="best")
    assert from_json(to_json(config)) == config
    both = Tokenizers(*[CharacterTokenizer("ab")] * 2)
    folders = set()
    for share in (0.0, 0.1, 0.2):
        source = dataclasses.replace(data, held_out=share).source("train")
        assert source is not None and source.versions() == csv.versions()
        folders.add(TokenStore.of(tmp_path, source, both).folder)
    assert len(folders) == 3


def test_the_store_of_a_part_is_another_one_where_another_part_changes(csv: CSV, tmp_path: Path):
    """What one source holds out decides what is left of the other."""
    back, both = dataclasses.replace(csv, record=Pairs(source=1, target=0)), Tokenizers(*[CharacterTokenizer("ab")] * 2)
    other = CSV(path=file(tmp_path, "y.csv", "en,de\na,b\n"), header=True)
    folders = []
    for sources in ((csv, back), (csv, other), (csv, other)):
        Path(other.path).write_text("en,de\na,b\n" + "c,d\n" * len(folders))
        train = DataConfig(train=Mixture(sources=sources), held_out=0.1).source("train")
        assert isinstance(train, Mixture)
        folders.append(TokenStore.of(tmp_path, train.sources[0], both).folder)
    assert len(set(folders)) == 3


class WithBlanks(DataSource):
    """A source of a user's, which yields a pair without texts."""

    kind = "with_blanks"

    def open(self, setting: str | None = None) -> Sequence[Pair]:
        return [Pair("", ""), *(Pair(f"text {i}", f"Text {i}") for i in range(40))]


def test_a_pair_without_texts_belongs_to_one_side():
    sides = [
        HeldOut(source=WithBlanks(), among=(WithBlanks(),), split=split, held=("eval",), share=0.25, seed=0)
        for split in ("train", "eval")
    ]
    assert sum(list(side.stream()).count(Pair("", "")) for side in sides) == 1
