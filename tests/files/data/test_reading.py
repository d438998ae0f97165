from pathlib import Path

import pytest

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.objectives import Instruction, Seq2Seq
from flaxformer_lite.core.text import Bytes, Tokenizers
from flaxformer_lite.files.data import DataConfig
from flaxformer_lite.files.data.reading import EvalData, evaluation_records, reader_of


def test_truncation_leaves_room_for_eos_and_reports_the_line():
    warnings: list[str] = []
    tokenizers, pairs = Tokenizers(*[Bytes().train([], 260)] * 2), [Pair("x" * n, "ab") for n in (5, 6, 7)]
    kept = evaluation_records(pairs, tokenizers, Seq2Seq(), Lengths(6, 9), warnings.append)
    assert [len(record.source) for record in kept] == [5, 5, 5]
    cut = "line 2: the source has 6 tokens and was cut to 5 (data.max_source_length) (and 1 more, such as line 3)"
    assert warnings == [cut]
    warnings.clear()
    evaluation_records([Pair("ab", "c"), Pair("d", "efgh")], tokenizers, Seq2Seq(), Lengths(4, 4), warnings.append)
    assert warnings == ["line 2: the target has 4 tokens and was cut to 3 (data.max_target_length)"]


def test_what_an_evaluation_leaves_out_is_told_to_whoever_makes_it(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Training and `run.metrics` alike: the question of the second conversation alone is longer than a row."""
    tokenizer, objective = Bytes().train([], 260), Instruction()
    config = DataConfig(max_source_length=2, max_target_length=40)
    reader = reader_of(objective, Tokenizers(tokenizer, tokenizer), tmp_path, config.longest)
    pairs = [Pair("a", "b"), Pair("long " * 9, "answer")]
    warn_once.cache_clear()
    EvalData(pairs, {}, objective, config, reader, 2, pytest.fail)
    assert "of 2 conversations 1 were left out, as even their last turn does not fit" in capsys.readouterr().err
