from flaxformer_lite.core.data.records import Lengths, Pair
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.core.text import Bytes, Tokenizers
from flaxformer_lite.files.data.reading import evaluation_records


def test_truncation_leaves_room_for_eos_and_reports_the_line():
    warnings: list[str] = []
    tokenizers, pairs = Tokenizers(*[Bytes().train([], 260)] * 2), [Pair("x" * n, "ab") for n in (5, 6, 7)]
    kept = evaluation_records(pairs, tokenizers, Seq2Seq(), Lengths(6, 9), warnings.append)
    assert [len(record.source) for record in kept] == [5, 5, 5]
    assert [line.split(":")[0] for line in warnings] == ["line 2", "line 3"]
