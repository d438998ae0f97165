"""Oracles: shares worked by hand, and all pairs of records compared one by one."""

import dataclasses
import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.config import Config
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.objectives import SentenceEmbeddings
from flaxformer_lite.core.reading.heads import SentenceEmbedding
from flaxformer_lite.files.data import JSONLines, ParallelText, PlainText
from flaxformer_lite.files.records import Candidates
from flaxformer_lite.tools.recorder.near import near_duplicates, ngrams
from tests.support.experiments import tiniest_config, with_train


def config_of(folder: Path, train: list[Pair], evaluated: list[Pair]) -> Config:
    for name, pairs in (("train", train), ("eval", evaluated)):
        for side in ("source", "target"):
            (folder / f"{name}.{side}").write_text("".join(getattr(pair, side) + "\n" for pair in pairs))
    files = {
        name: ParallelText(source=f"{folder}/{name}.source", target=f"{folder}/{name}.target")
        for name in ("train", "eval")
    }
    tiny = tiniest_config()
    return dataclasses.replace(tiny, data=dataclasses.replace(tiny.data, **files))


def test_the_share_is_that_of_the_common_three_words_of_both_sides(tmp_path: Path):
    """`a b c d e` has three n-grams and `v w x y` two; the second record of training has the first two of each: 4 of 5."""
    train = [Pair("a b c", "v w"), Pair("A, b c d!", "v w x y"), Pair("q", "q")]
    evaluated = [Pair("nothing like it", "at all"), Pair("a b c d e", "v w x y")]
    found = near_duplicates(config_of(tmp_path, train, evaluated))
    places = [(near.share, near.place.line, near.train and near.train[0].line) for near in found]
    assert places == [(0.8, 2, 2), (0.0, 1, None)]
    assert found[0].train and found[0].train[1] == train[1]
    assert ngrams(Pair("猫が好き", "x")) == ngrams(Pair("猫が好き。", "X")) and len(ngrams(Pair("猫が好き", "x"))) == 3
    assert [len(ngrams(pair)) for pair in (Pair("a", "a"), Pair("", "a b c d e f g h i"))] == [2, 2]


def test_candidates_are_compared_as_texts(tmp_path: Path):
    """The names of their fields are no words, so a query with another answer has no n-gram in common."""
    record = Candidates(query="q", positives="p", negatives=("n",))
    for name, texts in (("train", ("a", "b c d", "e f g")), ("eval", ("h", "i j k", 'e f "g"'))):
        (tmp_path / name).write_text(json.dumps(dict(zip("qpn", texts, strict=True))))
    files = {name: JSONLines(path=f"{tmp_path}/{name}", record=record) for name in ("train", "eval")}
    tiny = with_train(tiniest_config(), text_metrics=())
    data = dataclasses.replace(tiny.data, **files)
    changes = {"num_decoder_layers": 0, "head": None, "sentence_embedding": SentenceEmbedding()}
    model = dataclasses.replace(tiny.model, **changes)
    config = dataclasses.replace(tiny, data=data, objective=SentenceEmbeddings(), model=model)
    (near,) = near_duplicates(config)
    assert near.share == 1 / 5 and near.pair == Pair("h", 'i j k\ne f "g"')


def test_words_are_compared_in_the_normal_form():
    written = Pair("Un café, s'il vous plaît: Straße", "New York")
    other = Pair(unicodedata.normalize("NFD", written.source).upper(), "new\u00a0york")
    assert ngrams(written) == ngrams(other)


def test_words_of_scripts_without_spaces_are_characters():
    """By hand: six Thai characters are four n-grams of three; the vowels of a Hindi word divide it nowhere."""
    assert len(ngrams(Pair("กขคงจฉ", "x"))) == 4 + 1
    assert len(ngrams(Pair("हिन्दी", "x"))) == 1 + 1


def test_what_many_records_share_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """By hand: `a b c` is in two records of the evaluation, where one may have it; `v` is left, one of two n-grams."""
    monkeypatch.setattr("flaxformer_lite.tools.recorder.near.MOST_SHARING", 1)
    pairs = [Pair("a b c", "v"), Pair("a b c", "w")]
    assert [near.share for near in near_duplicates(config_of(tmp_path, pairs[:1], pairs))] == [0.5, 0]
    assert "1 n-gram of more than 1 records of data.eval are not looked for" in capsys.readouterr().err


def test_the_nearest_is_that_of_all_comparisons(tmp_path: Path):
    random = np.random.default_rng(4)

    def texts(number: int) -> list[Pair]:
        side = lambda: " ".join(random.choice(list("abc"), random.integers(1, 9)))  # noqa: E731
        return [Pair(side(), side()) for _ in range(number)]

    train, evaluated = texts(60), texts(20)
    found = near_duplicates(config_of(tmp_path, train, evaluated))
    assert len(found) == 20 and [near.share for near in found] == sorted((near.share for near in found), reverse=True)
    for near in found:
        own = ngrams(near.pair)
        shares = [len(own & ngrams(pair)) / len(own) for pair in train]
        assert near.share == max(shares)
        assert near.train is None or near.train[0].line - 1 == shares.index(max(shares))


def test_without_evaluation_data_there_is_nothing_to_compare(tmp_path: Path):
    tiny = tiniest_config()
    data = dataclasses.replace(tiny.data, train=PlainText(path="x"), eval=None)
    config = dataclasses.replace(with_train(tiny, text_metrics=()), data=data)
    with pytest.raises(ValueError, match=r"data\.eval or data\.train is None"):
        near_duplicates(config)
