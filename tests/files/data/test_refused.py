"""Oracle: rows of which it is written down which ones a tokenizer refuses, and whose source drops them."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.core.data.token_arrays import TokenArrays, TokenShard
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.core.text.tokenizer import EncodedPair
from flaxformer_lite.files.data import TSV, Mixture
from flaxformer_lite.files.data.refused import Origin, tell_refused
from tests.support.files import file


class Picky(Tokenizers):
    """Tokenizers that refuse a pair whose source is "bad"."""

    @property
    def refused(self) -> str:
        return "!"

    def refusal(self, pair: Sequence[str]) -> str | None:
        return f"{pair[1]} is refused" if pair[0] == "bad" else None

    def encode_pairs(self, pairs: Sequence[Sequence[str]]) -> Iterator[EncodedPair]:
        for pair, encoded in zip(pairs, super().encode_pairs(pairs), strict=True):
            yield EncodedPair([], [], self.refused) if self.refusal(pair) else encoded


CHARACTERS = Characters().train(["good bad 12"], 20)
TOKENIZERS = Picky(CHARACTERS, CHARACTERS)


def tell(source: TSV | Mixture) -> None:
    pairs = list(source.stream())
    tell_refused(TokenArrays([TokenShard.of(pairs, TOKENIZERS)]), TOKENIZERS, Origin(source, "data.train"), pairs)


def test_each_source_of_a_mixture_has_its_own_rule(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Two rows of the first one are dropped, with the line of the first of them; the other one stops."""
    first = TSV(path=file(tmp_path, "a.tsv", "good\t1\nbad\t2\nbad\t12\n"), bad_rows="drop")
    second = TSV(path=file(tmp_path, "b.tsv", "good\t1\ngood\t2\nbad\t21\n"))
    tell(first)
    assert re.search(r"2 bad rows were left out, the first of them: .*a\.tsv:2: 2 is refused", capsys.readouterr().err)
    warn_once.cache_clear()
    with pytest.raises(ValueError, match=r"b\.tsv:3: 21 is refused; .*--data\.train\.sources\.1\.bad-rows drop"):
        tell(Mixture(sources=(first, second)))
    assert "a.tsv:2" in capsys.readouterr().err


def test_nothing_is_read_again_where_nothing_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = TSV(path=file(tmp_path, "a.tsv", "good\t1\ngood\t2\n"))
    records = TokenArrays([TokenShard.of(list(source.stream()), TOKENIZERS)])
    monkeypatch.setattr(TSV, "located", None)
    tell_refused(records, TOKENIZERS, Origin(source, "data.train"))
