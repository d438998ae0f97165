"""Benchmarks: what their sides share, small tables of those for a CPU, and toy forms of those for a device that is rarely there."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support import needs
from tests.support.paths import ROOT

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu  # type: ignore[import-not-found]

    return gpu


def test_the_report_has_an_mfu_only_where_the_peak_is_known(gpu: ModuleType):
    """Worked by hand: 4 TFLOP in 0.5, 0.8 and 1 s; 10 TFLOP/s at most."""
    planned = {"device": "a GPU", "rows": 2, "tokens": 1600, "parameters": 7, "kernels": ["attention by hand"]}
    planned |= {"weights": 3e12, "attention": 1e12, "memory": 3 * 2**30, "peak": 10e12}
    ours, theirs = (
        [{"seconds": s, "memory": memory, "loss": 4.5, "version": "none"} for s in times]
        for times, memory in (((0.5, 1.0, 0.8), 2**31), ((1.0, 1.1, 1.6), None))
    )
    lines = gpu.report("toy", planned, {"ours": ours, "torch": theirs})
    assert lines[0] == "toy on a GPU: 2 rows, 1,600 tokens, 7 parameters" and lines[1] == "attention by hand"
    assert lines[3].split() == ["ours", "800.0", "2,000", "5.00", "50.0%", "2.00", "4.500", "none"]
    assert lines[4].split() == ["torch", "1100.0", "1,455", "3.64", "36.4%", "–", "4.500", "none"]
    assert lines[5].split(maxsplit=2) == ["ratio", "2.00", "(1.10 to 2.00)"]
    assert "memory 3.00, 4.00 TFLOP a step: at least 400.0 ms" in lines[6] and "25.0% of it" in lines[8]
    unknown = gpu.report("toy", planned | {"peak": None}, {"ours": ours})
    assert unknown[3].split() == ["ours", "800.0", "2,000", "5.00", "–", "2.00", "4.500", "none"]
    assert "at least" not in unknown[4]
    small = gpu.report("toy", planned | {"weights": 1.5e9, "attention": 0.5e9, "memory": 2**20}, {"ours": ours})
    assert small[3].split()[3] == "2.5e-03" and "memory 9.8e-04, 2.0e-03 TFLOP a step" in small[4]


def test_there_is_no_ratio_where_the_rounds_of_the_baseline_differ(sides: ModuleType):
    """Worked by hand: 0.09 and 0.11 of a median of 1.0."""
    refusal = sides.refusal
    assert refusal("torch", [1.0, 1.05, 0.96]) is None
    why = refusal("torch", [1.0, 1.06, 0.95])
    assert why == "no ratio: the rounds of torch differ by 11%, more than 10%: try a quieter machine"


def toy(tmp_path: Path, shape: str, *words: str) -> tuple[dict, str]:
    """Returns the figures of a model's toy form, and what it prints."""
    few = "--toy --steps 1 --rounds 1 --shape"
    command = [sys.executable, str(FOLDER / "gpu.py"), *few.split(), shape, *words]
    environment = os.environ | {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    command += ["--json", str(tmp_path / "found")]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return json.loads((tmp_path / "found").read_text()), found.stdout


@needs.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "tokens"), [("transformer_big", 4 * (16 + 16)), ("bert_large", 64), ("llama_1b", 64)]
)
def test_the_toy_form_measures_the_real_step_beside_pytorch(shape: str, tokens: int, tmp_path: Path):
    """The peer has the same parameters; the benchmark itself refuses others."""
    figures, text = toy(tmp_path, shape, "--peer", "torch")
    planned, (ours,), (theirs,) = figures["plan"], figures["rounds"]["ours"], figures["rounds"]["torch"]
    assert (figures["shape"], planned["tokens"], planned["peak"]) == (shape, tokens, None)
    assert ours["memory"] > planned["memory"] > 4 * planned["parameters"] and planned["weights"] > planned["attention"]
    assert ours["seconds"] > 0 and 3 < ours["loss"] < 7 and "–" in text
    assert abs(ours["loss"] - theirs["loss"]) < 1 and "ratio" in text


@pytest.mark.slow
def test_a_mistake_is_a_readable_line():
    command = [sys.executable, str(FOLDER / "gpu.py"), "--toy", "--shape", "llama_1b", "model.d_model=33"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1 and "model.d_model" in found.stderr and "Traceback" not in found.stderr
    assert found.stderr.splitlines()[-1].startswith("llama_1b: plan failed")


def test_a_flipped_bit_is_reported_by_a_run_and_not_by_orbax(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What docs and README say of it; a bit of an array is flipped, as 9 of 10 bits of a checkpoint are."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import bit_flips  # type: ignore[import-not-found]

    counts = {side: bit_flips.count(side, tmp_path / side, 6, seed=1) for side in bit_flips.SIDES}
    assert counts["a run"] == {"reported": 6}
    assert counts["Orbax alone"]["wrong"] > 3


# Sides that take turns -------------------------------------------------------------------------------------------------


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import sides  # type: ignore[import-not-found]

    monkeypatch.setattr(sides, "PAUSE", 0.0)
    return sides


def test_sides_take_turns_and_the_first_round_is_not_counted(sides: ModuleType):
    calls: list[str] = []
    times = sides.take_turns({"ours": lambda: calls.append("ours"), "torch": lambda: calls.append("torch")}, rounds=2)
    assert calls == ["ours", "torch"] * 3
    assert [len(of_side) for of_side in times.values()] == [2, 2] and list(times) == ["ours", "torch"]


def test_cpu_seconds_are_those_of_all_threads(sides: ModuleType):
    """A side that computes in a thread of its own, as CTranslate2 does, and one that waits."""

    def in_a_thread() -> None:
        thread = threading.Thread(target=lambda: hashlib.sha256(bytes(200_000_000)).digest())
        thread.start()
        thread.join()

    busy, idle = sides.timed(in_a_thread), sides.timed(lambda: time.sleep(0.1))
    assert busy.cpu > 0.05 and idle.cpu < 0.05 and idle.wall >= 0.1


def test_ratios_are_of_rounds(sides: ModuleType):
    """Worked by hand: 2 / 1, 3 / 2 and 3 / 1."""
    assert str(sides.ratio([1.0, 2.0, 1.0], [2.0, 3.0, 3.0])) == "2.00 (1.50 to 3.00)"
    assert sides.Times(4.0, 2.0, 8.0).per(2) == (2.0, 1.0, 4.0) and sides.Times(4.0, 2.0, 8.0).cpu == 6.0


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (("cpu family\t: 6", "model\t\t: 207", "model name\t: A Xeon", "flags\t\t: avx2 avx512f avx512_bf16 amx_bf16"),
         ("A Xeon, ", "family 6, model 207, avx512f, avx512_bf16 and amx_bf16")),
        (("cpu family\t: 25", "model\t\t: 1", "model name\t: AMD EPYC", "flags\t\t: avx2"),
         ("AMD EPYC, ", "family 25, model 1, avx2, no bfloat16")),
        (("CPU implementer\t: 0x41",), ("", " cores")),
    ],
)  # fmt: skip
def test_the_processor_is_named(sides: ModuleType, tmp_path: Path, lines: tuple[str, ...], words: tuple[str, str]):
    """Two processors, as /proc/cpuinfo describes each: its last one counts; one whose description has other fields."""
    (tmp_path / "cpuinfo").write_text("\n".join([*lines, "", *lines, ""]))
    found = sides.processor(tmp_path / "cpuinfo")
    assert found.startswith(words[0]) and found.endswith(words[1])
    assert f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores" in found


def test_every_benchmark_that_measures_time_names_the_processor():
    """All but those that ask a TPU's compiler, and time only how long it takes."""
    texts = {path.name: path.read_text() for path in FOLDER.glob("*.py")}
    timing = {name for name, text in texts.items() if re.search(r"perf_counter\(|thread_time\(|take_turns\(", text)}
    assert {"train_step.py", "decode.py", "gpu.py", "serve.py", "rows.py"} <= timing
    silent = {name for name in timing if "print" in texts[name] and "processor()" not in texts[name]}
    assert silent == {"layout.py", "scaling.py"}


def benchmark(tmp_path: Path, *words: str) -> list[str]:
    """Returns the lines of a benchmark."""
    command = [sys.executable, str(FOLDER / words[0]), *words[1:]]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout.splitlines()


def in_rows(lines: list[str], *names: str) -> list[list[str]]:
    """Returns the cells of the rows with these names; a ratio is three words."""
    return [line.split() for name in names for line in lines if line.startswith(f"{name:14} ")]


@needs.torch
@pytest.mark.slow
def test_one_table_has_our_step_and_pytorch_eager_and_compiled(tmp_path: Path):
    lines = benchmark(tmp_path, "train_step.py", "--shape", "tiny", "--rounds", "1", "--steps", "1")
    ours, eager, compiled = in_rows(lines, "ours", "torch", "torch-compile")
    assert f"1 of {os.cpu_count()} cores" in lines[0] and len(ours) == 4
    for theirs in (eager, compiled):
        assert len(theirs) == 12 and float(theirs[8]) == pytest.approx(float(theirs[3]) / float(ours[3]), abs=0.02)


@needs.ctranslate2
@pytest.mark.slow
def test_translations_of_both_sides_are_the_same(tmp_path: Path):
    lines = benchmark(tmp_path, "decode.py", "--shape", "tiny", "--beam-size", "2", "--rounds", "1")
    ours, theirs = in_rows(lines, "ours", "ctranslate2")
    assert f"1 of {os.cpu_count()} cores" in lines[0] and len(ours) == 3
    assert theirs[-3:] == ["64", "of", "64"] and len(theirs) == 10


# Encoders from one start -----------------------------------------------------------------------------------------------

SENTENCES = [
    {"text": "Use pop() of a dict.", "spans": [{"start": 4, "end": 9, "label": "CODE"}]},
    {"text": "The name del is a word.", "spans": [{"start": 9, "end": 12, "label": "CODE"}]},
]
DOCUMENTS = ["a list of names", "a dict of words", "the del statement"]


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    import encoders  # type: ignore[import-not-found]

    return encoders


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with sentences and topics as lab/recipes.md writes them, few of them."""
    corpus = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(DOCUMENTS)]
    files: dict[str, list[dict[str, Any]]] = {
        "topics/corpus.jsonl": corpus,
        "topics/queries.jsonl": [{"_id": "q1", "text": "names"}, {"_id": "q2", "text": "words"}],
        "topics/train.jsonl": [{"query": f"{i} of {text}", "positive": text} for i in range(40) for text in DOCUMENTS],
        "code_names/train.jsonl": 20 * SENTENCES,
        "code_names/valid.jsonl": SENTENCES,
    }
    for name, rows in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "topics/qrels").mkdir()
    (tmp_path / "topics/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td0\t1\nq2\td1\t1\n")
    return tmp_path


FOUND: dict[str, tuple[list[object], list[object], float]] = {
    "classes": ([{"label": one} for one in "aabc"], ["a", "b", "b", "b"], (2 / 3 + 1 / 2 + 0) / 3),
    "labels": ([{"tags": ["B-x", "I-x", "O", "B-x"]}], [["B-x", "I-x", "O", "B-y"]], 0.5),
    "several": ([{"labels": ["p", "q"]}, {"labels": []}], [["p"], ["q"]], 0.5),
    "number": ([{"score": one} for one in (1, 2, 3)], [0.1, 7.0, 0.5], 0.5),
    "answers": ([{"answers": {"text": ["The red house."]}}], ["a red door"], 0.5),
    "search": ([], [(1, 0), (9, 1), (1, 0), (1, 1)], (1 + 1 / math.log2(3)) / 2),
}
"""What is true, what was found, and its score by hand."""


@pytest.mark.parametrize("kind", FOUND)
def test_one_score_of_a_tuned_model_for_all_sides(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import fine_tuning  # type: ignore[import-not-found]

    rows, found, expected = FOUND[kind]
    assert fine_tuning.score(kind, rows, found) == pytest.approx(expected)


def test_both_sides_of_the_encoders_have_one_score(encoders: ModuleType, texts: Path):
    """Worked by hand: ranks 1 and 3; one entity of two is found, and a second one with a wrong border."""
    vectors = {"names": (1, 0), "words": (0, 3), DOCUMENTS[0]: (9, 1), DOCUMENTS[1]: (5, -5), DOCUMENTS[2]: (1, 1)}
    assert encoders.ndcg(lambda chosen: [vectors[text] for text in chosen], texts / "topics") == pytest.approx(0.75)
    read = encoders.sentences(texts / "code_names/valid.jsonl")
    assert read[0] == (["Use", "pop", "(", ")", "of", "a", "dict", "."], ["O", "B-CODE", "I-CODE", "I-CODE", *"OOOO"])
    true = [labels for _, labels in read]
    found = [["O", "I-CODE", "I-CODE", "I-CODE", *"OOOO"], ["O", "B-CODE", "I-CODE", *"OOOO"]]
    assert encoders.entity_f1(found, true) == 0.5 and encoders.entity_f1(true, true) == 1
    assert encoders.entities(["B-CODE", "B-CODE", "I-CODE"]) == [(0, 1), (1, 3)]


@needs.sentence_transformers
@needs.datasets
@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.parametrize("table", ["search", "labels"])
def test_an_encoder_trains_beside_the_reference_library(table: str, texts: Path):
    """The second start is no dearer than the first and has the same score; the peer has about the seconds of each."""
    lines = benchmark(texts, "encoders.py", "--tables", table, "--steps", "3", "3")
    ours, again, *peers = in_rows(lines, "ours", "ours again", "peer")
    assert ours[3] == again[4] and float(again[3]) <= float(ours[2]) and len(peers) == 2
