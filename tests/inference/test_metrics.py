"""Metrics of translations. Oracle: worked by hand, and the signatures that sacreBLEU writes."""

import pytest

from flaxformer_lite.inference.metrics import bleu, chrf, compare, exact_match, text_metrics


def test_metrics_by_hand():
    """Oracle: BLEU of four words, the last one wrong, is (3/4 * 2/3 * 1/2 * 1/(2 * 1))^(1/4), smoothed."""
    references = ["a b c d"]
    assert exact_match(["x", "y"], ["x", "z"]).value == 0.5
    assert bleu(references, references).value == pytest.approx(100)
    score = bleu(["a b c e"], references)
    assert score.value == pytest.approx(100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25)
    assert (score.hypothesis_words, score.reference_words) == (4, 4)
    assert chrf(references, references).value == pytest.approx(100) and chrf(["x"], references).value == 0


def test_tokenized_text_is_split_at_spaces_only():
    """Law: only the tokenizer in the signature, and the score of punctuation differ."""
    found = [bleu(["a , b c d"], ["a, b c d"], tokenized=tokenized) for tokenized in (False, True)]
    assert ["tok:13a" in score.signature for score in found] == [True, False] and "tok:none" in found[1].signature
    assert found[0].value == pytest.approx(100) and found[1].value < 99
    assert bleu(["A b c d"], ["a b c d"], lowercase=True).value == pytest.approx(100)


def test_metrics_by_name():
    assert text_metrics(("exact_match", "bleu"), ["a b c d"], ["a b c d"], tokenized=True) == {
        "exact_match": 1.0,
        "bleu": pytest.approx(100),
    }


def test_paired_bootstrap_tells_a_difference_from_none():
    """Laws: equal scores have p 1 (sacreBLEU's own count would say 0.001), a clear difference a small p, the first system none."""
    references = [f"the cat number {i} sat on the mat" for i in range(40)]
    worse = [line.replace("sat", "sits") for line in references]
    found = compare({"worse": worse, "same": worse, "better": references}, references, tokenized=False)
    assert [(c.system, c.metric) for c in found] == [
        (system, metric) for metric in ("BLEU", "chrF2") for system in ("worse", "same", "better")
    ]
    assert [c.p_value for c in found] == [None, 1.0, pytest.approx(1 / 1001)] * 2
    assert found[2].score == pytest.approx(100) and "bs:1000" in found[2].signature
