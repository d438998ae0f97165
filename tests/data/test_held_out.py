"""Laws of texts that are held out: no text is on two sides, however it comes; the sides are a function of text and seed."""

import dataclasses
from pathlib import Path

import pytest

from flaxformer_lite.config.serialize import from_json, to_json
from flaxformer_lite.data import CSV, DataConfig, Dates, Mixture, Pair, PlainText
from flaxformer_lite.data.held_out import HeldOut, Split
from flaxformer_lite.data.mixture import open_parts
from flaxformer_lite.data.store import TokenStore
from flaxformer_lite.text import Tokenizers
from flaxformer_lite.text.characters import CharacterTokenizer
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


def test_the_name_of_the_target_column_is_that_of_all_sides(csv: CSV):
    """Law: BLEU's tokenizer follows from the language that a column is named by, in each split."""
    data = DataConfig(train=dataclasses.replace(csv, target_column="de"), held_out=0.1)
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
