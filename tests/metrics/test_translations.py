"""Metrics of translations. Oracle: worked by hand, sacreBLEU's own classes, and the signatures that it writes."""

import sys
import urllib.error
from typing import get_args

import numpy as np
import pytest
from sacrebleu.metrics.base import Metric, Signature
from sacrebleu.metrics.base import Score as NumScore
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from flaxformer_lite.base import console
from flaxformer_lite.config.train import TextMetric
from flaxformer_lite.metrics import translations as metrics
from flaxformer_lite.metrics.translations import (
    METRICS,
    MetricConfig,
    bleu,
    chrf,
    compare_ratings,
    compare_systems,
    exact_match,
    language_of,
    of_parts,
    resolve,
    text_scores,
    with_language,
    with_references,
)

SENTENCES = {
    "zh": ["我很喜欢新加坡的天气。", "今天的天气很好。", "请使用 TensorFlow 运行 Python 脚本。"],
    "ja": ["彼は本を読んでいます。", "今日は天気がとてもいいです。", "東京大学"],
    "ko": ["그는 책을 읽고 있습니다.", "오늘은 날씨가 아주 좋습니다."],
    "th": ["วันนี้อากาศดีมาก", "เขากำลังอ่านหนังสืออยู่ที่บ้าน"],
    "lo": ["ມື້ນີ້ອາກາດດີຫຼາຍ"],
    "km": ["ថ្ងៃនេះអាកាសធាតុល្អណាស់"],
    "my": ["ဒီနေ့ ရာသီဥတု ကောင်းတယ်", "သူစာဖတ်နေတယ်"],
    "bo": ["དེ་རིང་གནམ་གཤིས་ཡག་པོ་འདུག"],
}
"""Sentences of languages without spaces, and of Korean, whose words are long."""

PARTS = {"de": slice(1), "fr": slice(1, 3)}


@pytest.fixture(autouse=True)
def fresh_process():
    console.warn_once.cache_clear()
    metrics.check_installed.cache_clear()


@pytest.fixture
def without_mecab(monkeypatch: pytest.MonkeyPatch):
    """A machine without the optional packages; the test machine may have them."""
    for package in ("MeCab", "mecab_ko"):
        monkeypatch.setitem(sys.modules, package, None)
    for module in ("ja_mecab", "ko_mecab"):
        monkeypatch.delitem(sys.modules, f"sacrebleu.tokenizers.tokenizer_{module}", raising=False)


def test_parts_of_a_mixture_have_figures_of_their_own_rows():
    """By hand: the longest sum of two columns, of the rows of each part."""
    figures = of_parts(lambda a, b: {"most": max(map(sum, zip(a, b, strict=True)))}, PARTS, [1, 2, 3], (10, 90, 20))
    assert figures == {"de/most": 11, "fr/most": 92}


def test_answers_without_a_reference_are_left_out():
    assert with_references(["a", "b", "c"], ["x", None, ""]) == (["a", "c"], ["x", ""])
    assert with_references(["a"], [None]) == with_references([], []) == ([], [])


def test_metrics_by_hand():
    """Oracle: BLEU of four words, the last one wrong, is (3/4 * 2/3 * 1/2 * 1/(2 * 1))^(1/4), smoothed."""
    references = ["a b c d"]
    assert exact_match(["x", "y"], ["x", "z"]) == (0.5, "", 0, 0)
    assert bleu(references, references).value == pytest.approx(100)
    score = bleu(["a b c e"], references)
    assert score.value == pytest.approx(100 * (3 / 4 * 2 / 3 * 1 / 2 * 1 / 2) ** 0.25)
    assert (score.hypothesis_words, score.reference_words) == (4, 4)
    assert chrf(references, references).value == pytest.approx(100) and chrf(["x"], references).value == 0


def test_tokenized_text_is_split_at_spaces_only():
    """Law: only the tokenizer in the signature, and the score of punctuation differ."""
    found = [bleu(["a , b c d"], ["a, b c d"], MetricConfig(bleu_tokenizer=name)) for name in ("13a", "none")]
    assert ["tok:13a" in score.signature for score in found] == [True, False] and "tok:none" in found[1].signature
    assert found[0].value == pytest.approx(100) and found[1].value < 99
    assert bleu(["A b c d"], ["a b c d"], lowercase=True).value == pytest.approx(100)


def test_metrics_by_name():
    """Law: each is the function of that name, under the settings that it is given; all names of a config are among them."""
    texts, config = ["A b c d", "x y"], MetricConfig(chrf_word_order=2)
    scores = text_scores(METRICS, texts, ["a b c d", "x y"], config)
    assert scores.keys() > {*get_args(TextMetric)} and scores["exact_match"] == (0.5, "", 0, 0)
    assert scores["chrf"] == chrf(texts, ["a b c d", "x y"], config) and "nw:2" in scores["chrf"].signature
    assert scores["bleu"].value < scores["bleu_lowercase"].value == pytest.approx(100)
    assert text_scores(("bleu",), texts, texts, config).keys() == {"bleu"}


def test_paired_bootstrap_tells_a_difference_from_none():
    """Laws: equal scores have p 1 (sacreBLEU's own count would say 0.001), a clear difference a small p, the first system none."""
    references = [f"the cat number {i} sat on the mat" for i in range(40)]
    worse = [line.replace("sat", "sits") for line in references]
    found = compare_systems({"worse": worse, "same": worse, "better": references}, references)
    assert [(c.system, c.metric) for c in found] == [
        (system, metric) for metric in ("BLEU", "chrF2") for system in ("worse", "same", "better")
    ]
    assert [c.p_value for c in found] == [None, 1.0, pytest.approx(1 / 1001)] * 2
    assert found[2].score == pytest.approx(100) and "bs:1000" in found[2].signature


# Languages without spaces ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", SENTENCES)
def test_the_references_choose_the_tokenizer_of_bleu(language: str, without_mecab, capsys: pytest.CaptureFixture):
    """Oracle: sacreBLEU with the tokenizer of that language; before, 13a gave 0."""
    references = SENTENCES[language]
    hypotheses = [line[:-2] + "X" for line in references]
    expected = BLEU(tokenize="zh" if language == "zh" else "char")
    found = bleu(hypotheses, references)
    assert found.value == expected.corpus_score(hypotheses, [references]).score > 50
    assert found.signature == str(expected.get_signature())
    warned = capsys.readouterr().err
    package = {"ja": "'sacrebleu[ja]'", "ko": "'sacrebleu[ko]'"}.get(language, "")
    assert (f"pip install {package}" in warned) if package else not warned


@pytest.mark.parametrize(
    ("texts", "config", "name"),
    [
        (SENTENCES["zh"], {"language": "ja"}, "ja-mecab"),
        (SENTENCES["zh"], {"language": "de"}, "13a"),
        (["plain words"], {"language": "tha_Thai"}, "char"),
        (SENTENCES["ja"], {}, "ja-mecab"),
        (SENTENCES["ko"], {}, "ko-mecab"),
        (SENTENCES["zh"], {"language": "zh", "bleu_tokenizer": "intl"}, "intl"),
        (["Der Ausdruck 天气 heißt Wetter, und das ist alles."], {}, "13a"),
        (["2026-11-20", ""], {}, "13a"),
        (["天气 " + 10 * "a"], {}, "13a"),
        (["天气 " + 9 * "a"], {}, "zh"),
        (["東京大学の学生"], {}, "ja-mecab"),
        (["我们在商店里看到了优の良品的店"], {}, "zh"),
    ],
)
def test_the_language_chooses_it_where_it_is_known(texts, config, name: str, monkeypatch: pytest.MonkeyPatch):
    """Oracle: by hand, as if all packages were installed."""
    monkeypatch.setattr(metrics, "check_installed", lambda name: None)
    assert resolve(MetricConfig(**config), texts) == MetricConfig(bleu_tokenizer=name)


def test_names_of_files_and_codes_of_languages():
    """Oracle: by hand; `.gz` is no language, nor is a word, and two languages are none."""
    codes = ["zh", "zh_CN", "ZH-hant", "zho_Hans", "cmn", "jap", "ja_XX", "kor_Hang", "mya_Mymr", "de", "text", ""]
    assert [language_of(code) for code in codes] == ["zh"] * 5 + ["ja", "ja", "ko", "my", None, None, None]
    names = [["a/train.en-zh.zh.gz"], ["translation.ja"], ["x.th", "y.tha"], ["x.th", "y.ja"], ["x.zh", "target"], []]
    assert [with_language(MetricConfig(), found).language for found in names] == ["zh", "ja", "th", None, None, None]
    assert with_language(MetricConfig(language="ko"), ["train.zh"]).language == "ko"
    with pytest.raises(ValueError, match=r"^metrics\.language is 'Chinese': it must be a code of two or three letters"):
        MetricConfig(language="Chinese")


@pytest.mark.parametrize(("name", "package"), [("ja-mecab", "sacrebleu[ja]"), ("ko-mecab", "sacrebleu[ko]")])
def test_a_tokenizer_that_is_not_installed_is_refused_with_its_package(name, package: str, without_mecab):
    with pytest.raises(ValueError) as caught:
        bleu(["x"], ["x"], MetricConfig(bleu_tokenizer=name))
    start = f"metrics.bleu_tokenizer is '{name}', which is not installed: pip install '{package}'"
    assert str(caught.value).startswith(start) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["spm", "flores101", "flores200"])
def test_a_vocabulary_that_cannot_be_downloaded_is_one_line(name, tmp_path, monkeypatch: pytest.MonkeyPatch):
    from sacrebleu.tokenizers import tokenizer_spm

    def fail(*_: str) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(tokenizer_spm, "download_file", fail)
    name_there = "flores101" if name == "spm" else name
    message = (
        rf"'{name_there}', which is not installed: .* could not download its model \(<urlopen error no network>\); copy"
    )
    with pytest.raises(ValueError, match=message):
        bleu(["x"], ["x"], MetricConfig(bleu_tokenizer=name))


def test_orders_of_chrf():
    """Oracle: sacreBLEU's chrF++."""
    hypotheses, references = ["the cat sat"], ["a cat sat down"]
    found = chrf(hypotheses, references, MetricConfig(chrf_word_order=2, chrf_char_order=5))
    assert found.value == CHRF(word_order=2, char_order=5).corpus_score(hypotheses, [references]).score
    assert "nc:5|nw:2" in found.signature
    compared = compare_systems({"one": hypotheses}, references, MetricConfig(chrf_word_order=2))
    assert [c.metric for c in compared] == ["BLEU", "chrF2++"] and "nw:2" in compared[1].signature
    plus = MetricConfig(chrf_word_order=2)
    assert text_scores(("chrf",), hypotheses, references, plus)["chrf"].value == (
        CHRF(word_order=2).corpus_score(hypotheses, [references]).score
    )


class Given(Metric):
    """A metric of sacreBLEU whose sentences have given numbers; the text of a sentence is its number."""

    _SIGNATURE_TYPE = Signature

    def _aggregate_and_compute(self, stats: list) -> NumScore:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])

    def _compute_score_from_stats(self, stats: list) -> NumScore:
        return NumScore("Given", float(stats[0] / stats[1]))

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, refs: list[str]) -> dict:
        return {}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict) -> list:
        return [float(hypothesis), 1.0]


def test_ratings_are_compared_as_sacrebleu_compares_a_metric():
    draw = np.random.default_rng(0)
    first = draw.normal(0.8, 0.1, 60).round(4)
    ratings = {"first": first, "near": (first + draw.normal(0.01, 0.05, 60)).round(4), "same": first}
    texts = [(name, [str(x) for x in values]) for name, values in ratings.items()]
    test = PairedTest(texts, {"Given": Given()}, [[""] * 60], test_type="bs", n_samples=1000)
    _, theirs = test()
    found = compare_ratings({name: values.tolist() for name, values in ratings.items()}, "given")
    for ours, result in zip(found, theirs["Given"], strict=True):
        assert ours.score == pytest.approx(result.score, abs=1e-6)
        assert ours.interval == pytest.approx(result.ci, abs=1e-5)
    assert found[0].p_value is None and found[2].p_value == 1.0
    assert found[1].p_value == pytest.approx(theirs["Given"][1].p_value, abs=0.003)
