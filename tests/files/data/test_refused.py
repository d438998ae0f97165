"""Oracle: rows of which it is written down which ones a tokenizer refuses, and whose source drops them."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flaxformer_lite.base.console import Progress, warn_once
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.data.token_arrays import TokenArrays, TokenShard
from flaxformer_lite.core.objectives import Classification, Regression
from flaxformer_lite.core.text import Characters, Tokenizers
from flaxformer_lite.core.text.pairs import EncodedPair, Extent
from flaxformer_lite.files.data import TSV, JSONLines, Mixture
from flaxformer_lite.files.data.reading import evaluation_records
from flaxformer_lite.files.data.refused import Origin, tell_refused
from flaxformer_lite.files.records import Classes
from flaxformer_lite.training.data import read_data
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.experiments import tiny_config
from tests.support.files import file


class Picky(Tokenizers):
    """Tokenizers that refuse a pair whose source is "bad"."""

    def refusal(self, pair: Pair) -> str | None:
        return f"{pair[1]} is refused" if pair[0] == "bad" else None

    def encode_pairs(self, pairs: Sequence[Pair]) -> Iterator[EncodedPair]:
        for pair, encoded in zip(pairs, super().encode_pairs(pairs), strict=True):
            yield EncodedPair([], [], extent=Extent.REFUSED) if self.refusal(pair) else encoded


CHARACTERS = Characters().train(["good bad 12"], 20)
TOKENIZERS = Picky(CHARACTERS, CHARACTERS)


def tell(source: TSV | Mixture) -> None:
    pairs = list(source.stream())
    tell_refused(TokenArrays([TokenShard.of_pairs(pairs, TOKENIZERS)]), TOKENIZERS, Origin(source, "data.train"), pairs)


def test_each_source_of_a_mixture_has_its_own_rule(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Two rows of the first one are dropped, with the line of the first of them; the other one stops."""
    first = TSV(path=file(tmp_path, "a.tsv", "good\t1\nbad\t2\nbad\t12\n"), bad_rows="drop")
    second = TSV(path=file(tmp_path, "b.tsv", "good\t1\ngood\t2\nbad\t21\n"))
    tell(first)
    assert re.search(r"2 bad rows were left out, the first of them: .*a\.tsv:2: 2 is refused", capsys.readouterr().err)
    warn_once.cache_clear()
    with pytest.raises(Mistake, match=r"21 is refused; .*--data\.train\.sources\.1\.bad-rows drop") as caught:
        tell(Mixture(sources=(first, second)))
    assert (caught.value.file, caught.value.line) == (second.path, 3)
    assert "a.tsv:2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("objective", "wrong", "words"),
    [
        (
            Classification(classes=("art", "law"), labels="several"),
            '["law", "se"]',
            "the label 'se', which is not one of",
        ),
        (Classification(classes=("art", "law")), '"se"', "the label 'se', which is not one of"),
        (Regression(), '"much"', "the label 'much', which is no finite number"),
    ],
)
def test_an_unknown_label_has_its_file_and_line(objective: Any, wrong: str, words: str, tmp_path: Path):
    """In training and in evaluation, of the first such row of a mixture, dropped ones left out."""
    right = "1" if isinstance(objective, Regression) else '"law"'
    lines = [f'{{"text": "good", "label": {label}}}\n' for label in (right, right, wrong, wrong)]
    sources = (
        JSONLines(path=file(tmp_path, "a.jsonl", lines[0]), record=Classes()),
        JSONLines(
            path=file(tmp_path, "b.jsonl", "\n".join(lines)), record=Classes(),
            empty_lines="drop",
        ),
    )  # fmt: skip
    mixture = Mixture(sources=sources, weights=(0.5, 0.5))
    data = dataclasses.replace(tiny_config().data, train=mixture, eval=None, tokenizer=Characters())
    config: Any = SimpleNamespace(data=data, objective=objective, tokenizer_sizes=(20, 20))
    with pytest.raises(Mistake, match=rf"it has {words}.*\(data\.train\.sources\.1\.record\.label names") as caught:
        read_data(config, RunFolder(tmp_path / "run"), Progress())
    assert (caught.value.file, caught.value.line) == (sources[1].path, 5)
    pairs = sources[1].open()
    with pytest.raises(Mistake, match=rf"it has {words}.*\(data\.eval\.record\.label names") as caught:
        evaluation_records(pairs, TOKENIZERS, objective, Lengths(9, 9), print, Origin(sources[1], "data.eval"))
    assert (caught.value.file, caught.value.line) == (sources[1].path, 5)


def test_nothing_is_read_again_where_nothing_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = TSV(path=file(tmp_path, "a.tsv", "good\t1\ngood\t2\n"))
    records = TokenArrays([TokenShard.of_pairs(list(source.stream()), TOKENIZERS)])
    monkeypatch.setattr(TSV, "located", None)
    tell_refused(records, TOKENIZERS, Origin(source, "data.train"))
