"""`evaluate` without a model: the length penalty, runs that are compared, and runs that cannot be."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from flaxformer_lite.base.console import Progress
from flaxformer_lite.cli import translation
from flaxformer_lite.cli.commands import evaluate
from flaxformer_lite.config import Config
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.objectives import CausalLM, SpanCorruption, TokenLabels
from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.core.text import Languages
from flaxformer_lite.files.data import TSV, Dates, Mixture, ParallelText
from flaxformer_lite.files.records import Pairs
from flaxformer_lite.metrics import translations as metrics
from flaxformer_lite.metrics.translations import MetricConfig, compare_systems
from flaxformer_lite.run import Run
from flaxformer_lite.run.scoring import ScoredData, score, scored_data
from flaxformer_lite.tools import scores
from flaxformer_lite.workdir import RunFolder
from tests.support.commands import evaluate_arguments
from tests.support.experiments import tiny_config, with_train
from tests.support.text_runs import DECODER, MODEL, text_run, token_run

CONFIG = replace(tiny_config(), decode=replace(tiny_config().decode, beam_size=5))
NO_DATA = replace(tiny_config().data, train=None, eval=None)
WITHOUT_DATA = replace(with_train(tiny_config(), text_metrics=()), data=NO_DATA)
TARGETS = [pair.target for pair in CONFIG.data.eval.open()]


class Answers(Run):
    """A run without a model, whose answers are right with a high exponent."""

    def hypotheses(self, texts: list[str], *, alpha: float, **_: Any) -> list[list[ScoredText]]:
        return [[ScoredText(TARGETS[i] if alpha > 1 else "0", 0.0)] for i in range(len(texts))]


class Named(Answers):
    """A run whose name says which of its answers are right: of `3` the first three."""

    def hypotheses(self, texts: list[str], **_: Any) -> list[list[ScoredText]]:
        right = int(self.folder.path.name)
        return [[ScoredText(TARGETS[i] if i < right else "no\rdate", 0.0)] for i in range(len(texts))]

    def metrics(self, pairs: list[Pair], *, parts: dict[str, slice], **_: Any) -> dict[str, float]:
        return {"loss": 0.5} | {f"{part}/loss": float(len(pairs[where])) for part, where in parts.items()}


RUN = Answers(RunFolder("run"), CONFIG, {}, None, 3)


def test_a_split_without_rows_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Nothing(Dates):
        def open(self, *_: Any):
            return []

    config = replace(CONFIG, data=replace(CONFIG.data, eval=Nothing(num_examples=1, seed=0, split="held_out")))
    for others in ((), (Named(RunFolder("other"), config, {}, None, 3),)):
        run = Named(RunFolder(tmp_path / "20"), config, {}, None, 3, others=others)
        monkeypatch.setattr(translation, "load_runs", lambda *_, run=run: run)
        with pytest.raises(ValueError, match=r"^data\.eval has no rows: correct it, or give source and target"):
            evaluate.run(evaluate_arguments("run", "--split", "eval"))


def test_terms_that_a_translation_cannot_have_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """Law: a warning of the search reaches stderr where texts are forced; otherwise it repeats those of the metrics."""

    class Telling(Named):
        def hypotheses(self, texts: list[str], *, warn: Any, **_: Any) -> list[list[ScoredText]]:
            warn("line 1 has no room")
            return super().hypotheses(texts)

    monkeypatch.setattr(translation, "load_runs", lambda *_: Telling(RunFolder(tmp_path / "20"), CONFIG, {}, None, 3))
    evaluate.run(evaluate_arguments("run", "--split", "eval"))
    assert "no room" not in capsys.readouterr().err
    evaluate.run(evaluate_arguments("run", "--split", "eval", "--placeholders"))
    assert "warning: eval: line 1 has no room\n" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_is_null_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    class Spoilt(Named):
        def metrics(self, *_: Any, **__: Any) -> dict[str, float]:
            return {"loss": float("nan")}

    run = Spoilt(RunFolder(tmp_path / "20"), CONFIG, {}, None, 3)
    monkeypatch.setattr(translation, "load_runs", lambda *_: run)
    evaluate.run(evaluate_arguments("run", "--split", "eval"))
    for text in (capsys.readouterr().out, (tmp_path / "20/evaluations/eval.json").read_text()):
        assert json.loads(text, parse_constant=float)["loss"] is None


def test_each_source_of_a_mixture_has_scores_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """By hand: all twenty answers are right in the first source and none of the five in the second."""
    few = replace(CONFIG.data.eval, num_examples=5)  # the same five that the first one begins with
    mixture = Mixture(sources=(CONFIG.data.eval, few), names=("many", "few"))
    config = replace(CONFIG, data=replace(CONFIG.data, eval=mixture))
    monkeypatch.setattr(translation, "load_runs", lambda *_: Named(RunFolder(tmp_path / "20"), config, {}, None, 3))
    evaluate.run(evaluate_arguments("run"))
    report = json.loads(capsys.readouterr().out)
    names = ("sentences", "exact_match", "loss")
    assert [report[name] for name in names] == [25, 0.8, 0.5]
    assert [[report[f"{part}/{name}"] for name in names] for part in ("many", "few")] == [[20, 1, 20], [5, 0, 5]]
    assert report["many/bleu"] == pytest.approx(100) and report["few/chrf"] < report["chrf"] < 100
    assert not [name for name in report if name.startswith("few/") and name.endswith("signature")]
    from_python = Named(RunFolder(tmp_path / "20"), config, {}, None, 3).evaluate("eval")
    assert from_python.items() <= report.items() and len(from_python) > 20


class Directed(Run):
    """A run of several languages, whose translation of a text is the text with the two codes before it."""

    def between(self, source: str | None = None, target: str | None = None) -> "Directed":
        return replace(self, folder=RunFolder(f"{source} {target}"))

    def hypotheses(self, texts: list[str], *, progress: ProgressCallback, **_: Any) -> list[list[ScoredText]]:
        progress("translating", len(texts), len(texts))
        return [[ScoredText(f"{self.folder.path} {text}", 0.0)] for text in texts]

    def metrics(self, pairs: list[Pair], **_: Any) -> dict[str, float]:
        return {}


def test_pairs_of_several_directions_have_their_translations_in_their_places(monkeypatch: pytest.MonkeyPatch):
    """By hand: directions take turns. Progress counts the pairs of those before."""
    labels = ["de en", "fr de", "de en", "de fr", "fr de"]
    pairs = [
        Pair(f"text {number}", f"{label} text {number}", languages=tuple(label.split()))
        for number, label in enumerate(labels)
    ]
    config = replace(CONFIG, data=replace(CONFIG.data, languages=Languages(codes=("de", "en", "fr"))))
    run, done = Directed(RunFolder("run"), config, {}, None, 3), list[int]()
    monkeypatch.setattr(Progress, "update", lambda _, activity, step: done.append(step))
    report, hypotheses = score(run, ScoredData("eval", pairs, {}, MetricConfig()), {})
    assert hypotheses == [pair.target for pair in pairs] and report["exact_match"] == 1
    assert done == [0, 2, 4, 5]


class Copies(Run):
    """A run whose answers are the source, twice, and another one."""

    others = ()

    def hypotheses(self, texts: list[str], **_: Any) -> list[list[ScoredText]]:
        return [[ScoredText(text, -1.0), ScoredText(text, -2.0), ScoredText("no", -3.0)] for text in texts]

    def metrics(self, pairs: list[Pair], **_: Any) -> dict[str, float]:
        return {}


CHINESE = (["我喜欢新加坡的天气。", "今天天气很好。"], ["我很喜欢新加坡的天气。", "今天的天气很好。"])


@pytest.mark.parametrize(
    ("ending", "settings", "options", "tokenizer"),
    [
        ("zh", {}, [], "zh"),
        ("txt", {}, [], "zh"),
        ("th", {}, [], "char"),
        ("txt", {"language": "my_MM"}, [], "char"),
        ("zh", {"bleu_tokenizer": "intl"}, [], "intl"),
        ("zh", {"bleu_tokenizer": "intl"}, ["--bleu-tokenizer", "char"], "char"),
    ],
)
def test_bleu_is_that_of_the_target_language(
    ending: str, settings: dict, options: list[str], tokenizer: str, tmp_path: Path, monkeypatch, capsys
):
    """Oracle: sacreBLEU, for `evaluate` on files and on data.eval, and --minimum-risk."""
    files = [tmp_path / "a.en", tmp_path / f"b.{ending}"]
    for file, lines in zip(files, CHINESE, strict=True):
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = ParallelText(source=str(files[0]), target=str(files[1]))
    config = replace(CONFIG, data=replace(CONFIG.data, eval=source), metrics=MetricConfig(**settings))
    run = Copies(RunFolder(tmp_path / "run"), config, {}, None, 3)
    monkeypatch.setattr(translation, "load_runs", lambda *_: run)
    expected = BLEU(tokenize=tokenizer).corpus_score(CHINESE[0], [CHINESE[1]]).score
    for words in ([], ["--source", *map(str, files[:1]), "--target", str(files[1])], ["--minimum-risk", "bleu"]):
        evaluate.run(evaluate_arguments("run", *words, *options))
        report = json.loads(capsys.readouterr().out)
        assert f"tok:{tokenizer}|" in report["bleu_signature"] and report["bleu"] == pytest.approx(expected)


def test_a_tokenizer_that_is_not_installed_is_refused_before_anything_is_translated(monkeypatch: pytest.MonkeyPatch):
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not installed")

    monkeypatch.setattr(translation, "load_runs", lambda *_: RUN)
    monkeypatch.setattr(metrics, "check_installed", refuse)
    monkeypatch.setattr(Answers, "hypotheses", lambda *_, **__: pytest.fail("translated"))
    with pytest.raises(ValueError, match=r"^ja-mecab is not installed"):
        evaluate.run(evaluate_arguments("run", "--bleu-tokenizer", "ja-mecab"))


def test_parts_in_several_languages_have_their_own_tokenizer(tmp_path: Path, monkeypatch, capsys):
    """Oracle: sacreBLEU. The tokenizer of most words is that of the whole; a part with another one has its signature."""
    for name, lines in {"zh": CHINESE[1], "de": ["Heute ist das Wetter sehr gut und warm ."] * 9}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    sources = tuple(ParallelText(source=str(tmp_path / name), target=str(tmp_path / name)) for name in ("zh", "de"))
    data = replace(CONFIG.data, eval=Mixture(sources=sources, names=("zh", "de")))
    run = Copies(RunFolder(tmp_path / "run"), replace(CONFIG, data=data), {}, None, 3)
    monkeypatch.setattr(translation, "load_runs", lambda *_: run)
    evaluate.run(evaluate_arguments("run"))
    report = json.loads(capsys.readouterr().out)
    assert "tok:13a" in report["bleu_signature"] and "tok:zh" in report["zh/bleu_signature"]
    assert "de/bleu_signature" not in report and report["zh/bleu"] == pytest.approx(100)


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Types `evaluate` with runs by their numbers of right answers; the config of each may be another."""

    def compare(*names: str, options: tuple[str, ...] = (), **configs: Any) -> None:
        paths = {name: str(tmp_path / name.strip("_")) for name in names}
        by_path = {path: configs.get(name, CONFIG) for name, path in paths.items()}
        for path in by_path:
            Path(path).mkdir(exist_ok=True)
        monkeypatch.setattr(scores, "open_run", lambda path: SimpleNamespace(config=lambda: by_path[path]))
        monkeypatch.setattr(
            "flaxformer_lite.run.run.load", lambda path, **_: Named(RunFolder(path), by_path[path], {}, None, 3)
        )
        evaluate.run(evaluate_arguments(*paths.values(), *options))

    return compare


def test_runs_are_compared_by_paired_bootstrap(compared, tmp_path: Path, capsys: pytest.CaptureFixture):
    """Oracle: `metrics.compare_systems` on the same answers, and by hand: equal answers have p 1, no right one a small p."""
    compared("20", "0", "19")
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert [run["exact_match"] for run in report["runs"]] == [1.0, 0.0, 0.95] and report["sentences"] == 20
    systems = {str(tmp_path / n): [*TARGETS[: int(n)], *["no\rdate"] * (20 - int(n))] for n in ("20", "0", "19")}
    expected = compare_systems(systems, TARGETS)
    assert report["comparison"] == [json.loads(json.dumps(found._asdict())) for found in expected]
    first, worst, close = report["comparison"][:3]
    assert first["score"] == pytest.approx(100) and first["p_value"] is None
    assert worst["p_value"] < 0.01 < close["p_value"]
    assert re.search(rf"BLEU   {re.escape(str(tmp_path / '0'))}   +0\.00 ± 0\.00   p = 0\.00", err)
    assert "chrF2|nrefs:1" in err


class Lengths(Named):
    """A metric that counts the letters of a translation, and of the reference where it gets one."""

    rates_with = (True,)

    def rate(self, sources: list[str], translations: list[str], references: list[str], **_: Any) -> np.ndarray:
        return np.array([len(text) for text in translations], np.float32) / np.array(list(map(len, references)))


def test_a_metric_rates_the_translations_of_all_runs(compared, tmp_path: Path, monkeypatch, capsys):
    """By hand: right dates have the length of their references, the others eight tenths of it."""
    metric = Lengths(RunFolder(tmp_path / "lengths"), CONFIG, {}, None, 3)
    monkeypatch.setattr(scores, "metrics_in", lambda paths: {"lengths": metric} if paths else {})
    compared("20", "5", options=("--metric", "lengths"))
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert [run["lengths"] for run in report["runs"]] == pytest.approx([1.0, (5 + 15 * 0.7) / 20])
    first, second = report["comparison"][-2:]
    assert (first["metric"], first["score"], first["interval"], first["p_value"]) == ("lengths", 1.0, 0.0, None)
    assert second["p_value"] < 0.01 and "lengths" in err and "1.0000 ± 0.0000" in err
    lines = (tmp_path / "5" / "evaluations" / "eval-ratings.jsonl").read_text().splitlines()
    assert [json.loads(line)["lengths"] for line in lines] == pytest.approx([1.0] * 5 + [0.7] * 15)
    compared("20", "6")
    assert not (tmp_path / "20" / "evaluations" / "eval-ratings.jsonl").exists()  # of translations that are replaced


def test_the_files_of_an_evaluation_go_line_by_line(compared, tmp_path: Path):
    """A program that reads sources, translations and references with any line break finds as many of each."""
    compared("20", "1")
    for folder in ("20", "1"):
        files = [(tmp_path / folder / "hypotheses" / f"eval.{kind}") for kind in ("source", "txt", "reference")]
        assert [len(file.read_text().splitlines()) for file in files] == [20, 20, 20]
    assert files[2].read_text().splitlines() == TARGETS and files[1].read_text().splitlines()[1] == "no date"
    assert json.loads((tmp_path / "1" / "evaluations" / "eval.json").read_text())["exact_match"] == 0.05


def test_runs_that_cannot_be_compared_are_refused_before_anything_is_translated(compared, monkeypatch):
    other = replace(CONFIG, data=replace(CONFIG.data, eval=Dates(num_examples=20, seed=9, split="held_out")))
    longer = replace(CONFIG, data=replace(CONFIG.data, eval=Dates(num_examples=21, seed=0, split="held_out")))
    monkeypatch.setattr(Named, "hypotheses", lambda *_, **__: pytest.fail("translated"))
    for changed, message in (
        (other, "the pairs of the data of .* differ: give the same files"),
        (longer, "the pairs of the data of .* differ"),
        (replace(CONFIG, metrics=MetricConfig(bleu_tokenizer="none")), "the metrics of .* differ: .* --bleu-tokenizer"),
    ):
        with pytest.raises(ValueError, match=message):
            compared("20", "0", **{"0": changed})
    with pytest.raises(ValueError, match="name each once"):
        compared("20", "_20")
    with pytest.raises(ValueError, match="leave --ensemble out"):
        compared("20", "0", options=("--ensemble", "1"))


@pytest.mark.parametrize("settings", [{"beam_size": 4}, {"bleu_tokenizer": "zh"}])
def test_settings_of_translations_are_refused_by_a_run_that_makes_none(settings: dict[str, Any]):
    run = Named(
        RunFolder("run"),
        replace(with_train(CONFIG, text_metrics=()), objective=SpanCorruption(first_sentinel=140)),
        {},
        None,
        3,
    )
    with pytest.raises(ValueError, match=f"^{next(iter(settings))}: for translations, which this run does not make"):
        run.evaluate("eval", **settings)


def test_another_file_is_scored_as_the_data_of_the_run(tmp_path: Path):
    """Law: the pairs are those of the run's own kind of source; the file's name is that of its figures."""
    base = tiny_config()
    record = Pairs(source=1, target=0)
    config = replace(base, data=replace(base.data, train=TSV(path="nowhere", record=record)))
    file = tmp_path / "test.tsv"
    file.write_text("b\ta\nd\tc\n")
    data = scored_data(config, None, None, None, file=str(file))
    assert data.pairs == [Pair("a", "b"), Pair("c", "d")] and data.name == "test.tsv"
    with pytest.raises(ValueError, match="--data is for one file of labelled data: leave out --split"):
        scored_data(config, "test", None, None, file=str(file))
    with pytest.raises(ValueError, match=r"^x\.conll: the run's data has no fields for such a file: give"):
        scored_data(config, None, None, None, file="x.conll")


@pytest.mark.parametrize(
    ("config", "content", "remedy"),
    [
        (
            text_run(replace(MODEL, **DECODER), objective=CausalLM()).config,
            "one\ntwo\n",
            "give --data FILE, or set data.test",
        ),
        (text_run().config, '{"text": "one", "label": "low"}\n', "give --data FILE, or set data.test"),
        (WITHOUT_DATA, "", "give source and target, or set data.test"),
        (token_run(TokenLabels(labels=("O", "B-A"))).config, "", "set data.test in the config$"),
    ],
    ids=["decoder", "classes", "translator", "words"],
)
def test_the_remedy_for_a_run_without_data_is_not_refused(config: Config, content: str, remedy: str, tmp_path: Path):
    """Law: what is named is read, and a file that is refused is not named."""
    file = tmp_path / ("rows.jsonl" if content.startswith("{") else "rows.txt")
    file.write_text(content)
    for split in (None, "eval"):
        with pytest.raises(ValueError, match=rf"data\.eval is None in the config: {remedy}"):
            scored_data(config, split)
    if content:
        assert len(scored_data(config, file=str(file)).pairs) == content.count("\n")
    else:
        with pytest.raises(ValueError, match=rf"rows\.txt: the run's data has no fields for such a file: {remedy}"):
            scored_data(config, file=str(file))
