"""The report: what it reads from run folders, what it compares, and the page, also in a real browser."""

import dataclasses
import html.parser
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.config.serialize import to_json
from flaxformer_lite.files.data import ParallelText
from flaxformer_lite.files.tokenizers.kinds import save_tokenizer
from flaxformer_lite.run import AttentionWeights
from flaxformer_lite.tools.report import ReportContent, make_report, tabs, write_page
from flaxformer_lite.tools.report.facts import RunFacts, shown_steps
from flaxformer_lite.tools.report.page import report_page
from flaxformer_lite.tools.report.scores import evaluate_table, significance_tables, training_table
from flaxformer_lite.tools.report.tabs import Attended, packed
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.samples import Sample
from tests.support import needs
from tests.support.chromium import opened
from tests.support.experiments import tiny_config, with_train

HOSTILE = "</script><script>document.title='hacked'</script><img src=x onerror=\"document.title='hacked'\">"
"""A sentence that would be a script, were it not escaped."""
REFERENCES = [f"line {i} of the reference" for i in range(12)]
SAMPLES = "source:     {source}\nreference:  right\nhypothesis: {hypothesis}\n"


def make_run(path: Path, best: float, seed: int) -> Path:
    """Writes the files of a run of 20 steps with two evaluations; nothing is trained."""
    for side in ("source", "target"):
        path.parent.joinpath(side).write_text("".join(f"{line}\n" for line in REFERENCES), encoding="utf-8")
    pairs = ParallelText(source=str(path.parent / "source"), target=str(path.parent / "target"))
    config = with_train(tiny_config(), steps=20, seed=seed)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, train=pairs, eval=pairs))
    for folder in ("samples", "hypotheses", "evaluations"):
        (path / folder).mkdir(parents=True)
    (path / "config.json").write_text(to_json(config), encoding="utf-8")
    assert config.data.tokenizer is not None
    save_tokenizer(config.data.tokenizer.train(REFERENCES, 149), path)
    rows = [{"step": step, "split": "train", "loss": 5 - step / 10, "gradient_norm": 1.5} for step in range(1, 21)]
    rows += [{"step": 10, "split": "eval", "loss": best}, {"step": 20, "split": "eval", "loss": 4.5, HOSTILE: 1.0}]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for step, hypothesis in ((10, "wrong"), (20, "right")):
        name = f"eval-step-{step:08}.txt"
        blocks = [SAMPLES.format(source=source, hypothesis=hypothesis) for source in ("one", HOSTILE)]
        (path / "samples" / name).write_text("\n".join(blocks), encoding="utf-8")
        written = [line if seed else line.replace("line", hypothesis) for line in REFERENCES]
        (path / "hypotheses" / name).write_text("".join(f"{line}\n" for line in written), encoding="utf-8")
    figures = {"run": "x", "split": "eval", "weights": "last", "step": 20, "bleu": 31.25, "bleu_signature": "tok:13a"}
    (path / "evaluations" / "eval.json").write_text(json.dumps(figures))
    return path


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [make_run(root / "first", 2.0, seed=0), make_run(root / "second", 3.0, seed=1)]


@pytest.fixture(scope="module")
def runs(folders: list[Path]) -> list[RunFacts]:
    return [RunFacts(path.name, str(path), RunFolder(path)) for path in folders]


def weights() -> AttentionWeights:
    generator = np.random.default_rng(0)
    encoder, decoder, cross = (
        generator.dirichlet(np.ones(s), (2, 3, t)).astype(np.float32) for t, s in ((3, 3), (2, 2), (2, 3))
    )
    return AttentionWeights(["a", HOSTILE, "a"], ["<s>", "b"], encoder, decoder, cross)


def test_facts_are_those_of_the_files(runs: list[RunFacts]):
    first = runs[0]
    assert list(first.samples) == [10, 20]
    assert first.samples[20] == [Sample("one", "right", "right"), Sample(HOSTILE, "right", "right")]
    name, lines = first.hypotheses("eval") or ("", [])
    assert (name, len(lines)) == ("eval-step-00000020", 12)
    assert first.hypotheses("test") is None


def test_of_many_evaluations_twelve_are_shown():
    assert shown_steps(list(range(0, 1000, 10)))[::11] == [0, 990]
    assert len(shown_steps(list(range(50)))) == 12
    assert shown_steps([3, 7]) == [3, 7]


def test_tables_have_the_best_and_the_last_evaluation(runs: list[RunFacts]):
    """Hand-worked: the loss is best at step 10."""
    table = training_table(runs)
    assert table is not None
    assert [row[:4] for row in table.rows] == [
        ["first", "best loss", "10", "2"],
        ["first", "last", "20", "4.5"],
        ["second", "best loss", "10", "3"],
        ["second", "last", "20", "4.5"],
    ]
    with open(runs[0].folder.metrics, "a", encoding="utf-8") as file:
        file.write('{"step": 30, "split": "eval", "loss": NaN}\n')
    table = training_table([RunFacts("first", "", runs[0].folder)])
    assert table is not None
    assert [row[:4] for row in table.rows] == [["first", "best loss", "10", "2"], ["first", "last", "30", "–"]]
    reports = evaluate_table(runs[:1])
    assert reports is not None
    assert reports.head == ["run", "split", "weights", "step", "bleu"]
    assert reports.rows == [["first", "eval", "last", "20", "31.25"]] and reports.note == "tok:13a"
    assert training_table([]) is evaluate_table([]) is None


def test_runs_are_compared_on_the_same_references_only(runs: list[RunFacts], folders: list[Path], tmp_path: Path):
    (table,) = significance_tables(runs)
    names = [[metric, run] for metric in ("BLEU", "chrF2") for run in ("first", "second")]
    assert [row[:2] for row in table.rows] == names
    assert [row[3] for row in table.rows] == ["–", "0.0010"] * 2
    assert "hypotheses/eval-step-00000020.txt" in table.note and "paired" in table.note
    for run, worse in zip(runs, (0.0, 0.5), strict=True):
        (run.folder.path / "evaluations").mkdir(exist_ok=True)
        rows = "".join(f'{{"comet": {0.8 - worse + i / 1000}}}\n' for i in range(12))
        (run.folder.path / "evaluations" / "eval-step-00000020-ratings.jsonl").write_text(rows, encoding="utf-8")
    (rated,) = significance_tables(runs)
    assert [row[:2] for row in rated.rows[4:]] == [["comet", "first"], ["comet", "second"]]
    assert rated.rows[4][2].startswith("0.8055 ±") and rated.rows[5][3] == "0.0010"
    for run in runs:
        (run.folder.path / "evaluations" / "eval-step-00000020-ratings.jsonl").write_text('{"comet": 1.0}\n')
    (alone,) = significance_tables(runs[:1])
    assert alone.head == table.head[:3] and alone.rows == [row[:3] for row in table.rows[::2]]
    assert "paired" not in alone.note
    other = RunFacts("other", "", RunFolder(make_run(tmp_path / "other", 1.0, seed=2)))
    (tmp_path / "target").write_text("other\n" * 12, encoding="utf-8")
    (same,) = significance_tables([*runs, other])
    assert same.rows == table.rows


def test_weights_are_packed_for_the_page():
    """Oracle: the page's own formula, in NumPy."""
    import base64

    found, array = packed(weights(), "cross"), weights().cross
    numbers = np.frombuffer(base64.b64decode(found["weights"]), "<u2").reshape(array.shape)
    np.testing.assert_allclose(numbers / 65_535, array, atol=1e-5)
    assert (found["layers"], found["heads"], found["queries"]) == (2, 3, ["0000b", "0001(end)"])


@pytest.fixture(scope="module")
def report(folders: list[Path]) -> ReportContent:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tabs, "attended", lambda run, *_: [Attended(f"{run.name}: {HOSTILE}", weights())])
        return make_report([str(path) for path in folders], [], lambda *_: None)


class Elements(html.parser.HTMLParser):
    """The elements of a page, and the texts of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts.append(data)


@needs.altair
def test_the_page_is_whole_and_texts_of_strangers_are_text(report: ReportContent):
    """Law: the page has the two scripts and the data, no other script, no handler and no address."""
    text = report_page(report, "window.vegaEmbed = 0;")
    elements = Elements(text)
    scripts = [attributes for tag, attributes in elements.found if tag == "script"]
    assert [script.get("type") for script in scripts] == ["application/json"] * 2 + [None] * 2
    assert not [tag for tag, attributes in elements.found if tag in ("img", "link", "iframe") or "src" in attributes]
    assert "<img" not in text and text.count("hacked") > 10
    drawn = json.loads(elements.scripts[0])
    figures = [attributes["data-chart"] for _, attributes in elements.found if "data-chart" in attributes]
    assert sorted(figures) == sorted(drawn)
    assert len(figures) == len(report.curves) + len(report.data) + 1 and "loss" in report.curves
    assert len(json.loads(elements.scripts[1])) == 2
    assert not report.notes


@needs.altair
def test_parts_that_cannot_be_made_are_named(folders: list[Path], tmp_path: Path):
    """A run whose data and weights are gone still has its curves."""
    path = make_run(tmp_path / "alone", 2.0, seed=3)
    for side in ("source", "target"):
        (tmp_path / side).unlink()
    (path / "evaluations" / "eval.json").write_text("{", encoding="utf-8")
    (path / "samples" / "eval-step-00000020.txt").write_bytes(b"\xff")
    shown: list[tuple[str, int, int]] = []
    found = make_report([str(path)], ["a sentence"], lambda *part: shown.append(part), "average:9")
    assert [(done, total) for _, done, total in shown] == [(i, 6) for i in range(6)]
    assert (shown[0][0], shown[-1][0]) == ("curves", "alone: attention")
    assert "loss" in found.curves
    counts = {tab: len(notes) for tab, notes in found.notes.items()}
    assert counts == {"scores": 2, "translations": 1, "data": 1, "attention": 1}
    (note,) = found.notes["attention"]
    assert note.startswith("alone: attention: weights is 'average:9', but train.keep_latest keeps")
    assert all(part in report_page(found, "") for part in ("Left out: alone: lengths", "Left out: significance"))


def test_attention_is_of_samples_else_of_the_first_words_of_the_data(
    runs: list[RunFacts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tabs, "MOST_CHARACTERS", 7)
    assert tabs.default_sentences(runs[0]) == ["one", HOSTILE]
    path = make_run(tmp_path / "bare", 2.0, seed=4)
    shutil.rmtree(path / "samples")
    assert tabs.default_sentences(RunFacts("", "", RunFolder(path))) == ["line 0", "line 1", "line 2"]


def test_settings_that_differ_come_first(runs: list[RunFacts]):
    lines = tabs.settings_of(runs)
    assert lines[0] == {"path": "train.seed", "values": ["0", "1"], "differs": True}
    assert not any(line["differs"] for line in lines[1:])


@needs.altair
def test_settings_that_were_changed_are_a_table_with_their_steps(runs: list[RunFacts], tmp_path: Path):
    """Oracle: by hand; without a change there is no table."""
    assert tabs.change_tables(runs) == []
    folder = RunFolder(make_run(tmp_path / "changed", 2.0, seed=4))
    folder.append({"step": 3, "split": "change", "settings": {"optimizer.schedule.peak_rate": [2e-3, 1e-3]}})
    (table,) = tabs.change_tables([runs[0], RunFacts("changed", "", folder)])
    assert table.rows == [["changed", "3", "optimizer.schedule.peak_rate", "0.002", "0.001"]]
    assert "peak_rate" in report_page(ReportContent(title="", runs=[], changes=[table]), "")


@pytest.mark.slow
@needs.altair
@needs.chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (390, "light")])
def test_the_page_works_in_chromium(report: ReportContent, tmp_path: Path, width: int, scheme: str):
    """Law: no console message, no request, every figure drawn, every tab shown, hovers, and no sideways scroll."""
    page = tmp_path / "report.html"
    write_page(report, page)
    with opened(page.as_uri(), width, scheme, own=("file:",)) as (tab, heard):
        for button in tab.query_selector_all("[role=tab]"):
            button.click()
            panel = f"#{button.get_attribute('aria-controls')}"
            tab.wait_for_function(
                f"[...document.querySelectorAll('{panel} [data-chart]')].every((f) => f.querySelector('svg.marks path'))"
            )
            shown = [p.get_attribute("id") for p in tab.query_selector_all("[role=tabpanel]") if p.is_visible()]
            assert shown == [panel[1:]]
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), panel
        tab.click("#tab-attention")
        before = tab.inner_html("figure.map svg.marks")
        tab.select_option("select[name=head]", index=2)  # after the mean and the first one
        tab.wait_for_function(
            "(old) => ![old, undefined].includes(document.querySelector('figure.map svg.marks')?.innerHTML)", arg=before
        )
        tab.hover("figure.map svg.marks .mark-rect path >> nth=1")
        tab.wait_for_selector("#vg-tooltip-element.visible")
        tip = tab.inner_text("#vg-tooltip-element")
        assert f"{weights().cross[1, 1, 0, 1]:.3f}" in tip and HOSTILE[:40] in tip
        tab.click("#tab-curves")
        box = tab.query_selector("#curves figure svg.marks").bounding_box()
        tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        tab.wait_for_function("document.querySelector('#vg-tooltip-element.visible')?.innerText.includes('loss')")
        assert tab.title() == "first, second · flaxformer_lite"
    assert heard == []
