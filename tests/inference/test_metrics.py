"""Metrics of translations. Oracle: worked by hand, and the signatures that sacreBLEU writes."""

import pytest

from flaxformer_lite.inference.metrics import bleu, chrf, exact_match, text_metrics


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
