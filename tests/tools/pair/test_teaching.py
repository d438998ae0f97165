"""Teachers of `pair`. Oracle: two made-up languages of which every translation is known; the teacher is told what to answer.

Laws: no held-out sentence is taught; killed anywhere, the same command ends with the same files; what differs is refused by name.
"""

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flaxformer_lite.core.base.progress import no_progress
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.objectives import Regression
from flaxformer_lite.core.search.answers import Hypothesis
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.files.data import Mixture
from flaxformer_lite.files.text.normal_form import bare_words
from flaxformer_lite.run import Run, write_run
from flaxformer_lite.tools.pair import OF_ANSWERS, RULES, Models, clean, models, preparing, recipe, teaching
from flaxformer_lite.tools.pair.folder import parallel
from flaxformer_lite.workdir import RunFolder
from flaxformer_lite.workdir.folder import new_run
from tests.support.commands import Command
from tests.support.experiments import normal_params, tiniest_config
from tests.support.made_up_languages import write
from tests.support.paths import ROOT
from tests.support.toy_pair import KNOWN, MONO, PAIRS, REAL, make_right, prepare


def write_teacher(folder: RunFolder) -> None:
    """Writes a run with random parameters, which knows all signs of the two languages."""
    config = tiniest_config()
    data = dataclasses.replace(config.data, max_source_length=200, max_target_length=200, bucket_lengths=(200,))
    config = dataclasses.replace(config, data=data)
    tokenizer = Characters().train([text for pair in PAIRS for text in pair[:2]], config.model.vocab_size)
    tokenizers = Tokenizers(tokenizer, tokenizer)
    write_run(folder, config, 0, normal_params(config, 0), "a test", tokenizers=tokenizers)


@pytest.fixture
def teacher(toy: Path) -> str:
    write_teacher(RunFolder("teacher"))
    return "teacher"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the teacher was asked; it answers with the right translation."""
    return make_right(monkeypatch)


def further(*more: str) -> tuple[str, ...]:
    if not more and Path("mono.xa").exists():
        return ("mono.xa",)
    Path("mono.xa").write_text("".join(f"{line}\n" for line in (*(pair.source for pair in MONO), *more)))
    return ("mono.xa",)


def lines(file: str) -> list[str]:
    return Path(file).read_text(encoding="utf-8").splitlines()


def held_out(run: str) -> list[str]:
    return [line for name in ("valid", "test") for end in ("xa", "yb") for line in lines(f"{run}/data/{name}.{end}")]


def taught(run: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(run, "data/taught").iterdir()}


def test_no_held_out_sentence_is_taught(teacher: str, asked: list[str], capsys: pytest.CaptureFixture):
    """Whatever its case and signs; nor does the teacher answer with one."""
    held = room_of_held_out()
    mono = further(*(text.upper() + " !" for text in held), "", REAL[0].source, "sa new line, and a long one too")
    KNOWN["sa new line, and a long one too"] = min(held, key=len).capitalize()
    prepare(Models(teachers=(teacher,), mono=mono))
    sides = [{bare_words(line) for line in lines(f"run/data/taught/pairs.{end}")} for end in ("xa", "yb")]
    test = set(map(bare_words, held_out("run")))
    assert not (sides[0] | sides[1]) & test and {bare_words(pair.source) for pair in MONO} <= sides[0]
    assert len(test) == len(held) == 40
    err = capsys.readouterr().err
    assert "103 further lines were read: 40 are held-out sentences, 2 are empty or come again, 61 are kept" in err
    assert json.loads(Path("run/data/taught/made_of.json").read_text())["removed"]["held_out"] == 1
    assert len(asked) == 10 + 180 + 61, "the test, the sources of the training, and the further lines"


def room_of_held_out() -> list[str]:
    """The sentences that a run of REAL holds out."""
    prepare(Models(), "other")
    return held_out("other")


def test_a_teacher_may_live_in_a_bucket(teacher: str, asked: list[str], tmp_path: Path):
    with new_run(url := f"file://{tmp_path}/bucket/teacher") as folder:
        write_teacher(folder)
    for model, output in (teacher, "run"), (url, "other"):
        prepare(Models(teachers=(model,), mono=further()), output)
    assert taught("run") == taught("other") and len(taught("run")) > 1


def test_people_and_teacher_are_mixed(teacher: str, asked: list[str]):
    """By default every pair comes equally often; a share is that of the rows. The size is chosen by all pairs."""
    by_size = prepare(Models(teachers=(teacher,), mono=further()), "run").data.train
    assert isinstance(by_size, Mixture) and by_size.names == ("people", "taught") and by_size.weights is None
    half = prepare(Models(teachers=(teacher,), mono=further(), share=0.75), "half").data.train
    assert half.weights == (0.25, 0.75)
    sizes = [len(list(source.stream())) for source in half.sources]
    made = json.loads(Path("half/data/taught/made_of.json").read_text())
    assert sizes == [180, 60] and made["removed"]["duplicate"] == 180, "where the teacher says what people say"


def test_the_size_is_chosen_by_all_pairs(teacher: str, asked: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recipe, "MODEL_SIZES", (recipe.MODEL_SIZES[0]._replace(pairs=200), recipe.MODEL_SIZES[1]))
    assert prepare(Models(), "alone").model.d_model == 8
    assert prepare(Models(teachers=(teacher,), mono=further())).model.d_model == 16


def test_each_fault_of_a_teacher_is_found():
    """By hand: the rules for answers, and those of pairs after them."""
    source, target = PAIRS[0][:2]
    loop = f"{target} " + "meno so " * 5
    pairs = [
        *PAIRS[:60],
        Pair(PAIRS[61].source, loop),
        Pair(PAIRS[62].source, PAIRS[62].target[:-1] + "!" * 9),  # signs alone
        Pair(PAIRS[63].source, PAIRS[63].target, "cut"),
        Pair(PAIRS[64].source, PAIRS[64].source),
        Pair("ha ha ha ha ha " + source, "ho ho ho ho ho " + target),
    ]
    found = clean(pairs, ("translation", "language", "length"), {**OF_ANSWERS, **RULES}).found
    wanted = {"repeats": [60], "cut": [62], "identical": [63]}
    assert {name: numbers for name, numbers in found.items() if numbers} == wanted


def test_an_answer_as_long_as_the_teacher_writes_may_be_cut(teacher: str, monkeypatch: pytest.MonkeyPatch):
    """By hand: a source of 4 letters has at most 2 * 5 + 10 with its end, or 17 positions, and 199 letters are read."""
    run = Models(teachers=(teacher,)).load_teachers()
    assert (run.config.decode.max_length(5), run.translator.form.most) == (20, 200)
    assert labels(run, {4: 19, 0: 0, 199: 1, 200: 1}, monkeypatch) == ["", "", "", "cut"]
    assert labels(run, {4: 20}, monkeypatch) == ["cut"]
    monkeypatch.setattr(run.kept.decoders[run.config.decode.program], "max_positions", 17)
    assert labels(run, {4: 16, 3: 17}, monkeypatch) == ["", "cut"]


def test_an_answer_that_ends_by_force_may_be_cut(teacher: str, monkeypatch: pytest.MonkeyPatch):
    """By hand: of the 20 tokens of a source of 4 letters the last one is the forced end, which no answer lists."""
    run = Models(teachers=(teacher,)).load_teachers()
    decode = replace(run.config.decode, forced_eos_id=run.config.decode.eos_ids[0])
    forced = replace(run, config=replace(run.config, decode=decode))
    assert labels(forced, {4: 18}, monkeypatch) == [""] and labels(forced, {4: 19}, monkeypatch) == ["cut"]


def test_repetitions_are_found_unless_the_source_has_them():
    """By hand: four equal words, with and without signs; a sentence of twelve words twice, and one of Chinese."""
    long = "the small dog that lives in the old house runs to me"
    loops = ["la la la la", "Ja, ja, ja, ja.", f"{long}. {long.capitalize()}!", f"so {long} {long} {long}"]
    loops += ["他每天早上都和他的小狗一起去公园散步并且很开心。" * 2]
    fine = [
        "la la la",
        "no, no, no!",
        "very, very good",
        "the dog and the dog",
        f"{long}, and {long[:15]}",
        "1,000,000",
    ]
    copied = ["It costs 100000000.", "hahahahaha", "Nooooooooo!", "ACGTACGTACGTACGT", "....................."]
    repeats = OF_ANSWERS["repeats"].broken
    assert not repeats([Pair(text, text) for text in copied]).any()
    sources = ("Ein Hund läuft.", "Danke schön. Danke schön.", "谢谢。谢谢。")
    pairs = [Pair(source, text) for source in sources for text in loops + fine]
    assert repeats(pairs).tolist() == [True] * len(loops) + [False] * (len(pairs) - len(loops))


def labels(run: Run, answers: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of sources of so many letters, whose answers have so many tokens, of which some are no text."""
    hypotheses = [[Hypothesis([0] * number, 0.0)] for length, number in answers.items() if length]
    monkeypatch.setattr(Run, "hypotheses_of_ids", lambda *_, **options: hypotheses)
    return [label for label, _ in teaching.labelled(run, ["e" * n for n in answers], "jax", no_progress)]


@pytest.mark.parametrize("place", ["in a piece", "between pieces", "while it is filtered", "before it is filtered"])
def test_killed_anywhere_the_same_command_goes_on(
    place: str, teacher: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
):
    """Law: the files are those of a run that was not killed, no finished piece is translated again, and no half is whole."""
    monkeypatch.setattr(teaching, "LINES_OF_PIECE", 50)
    models = Models(teachers=(teacher,), mono=further())
    prepare(models, "whole")
    asked.clear()

    def kill(*_: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    def labelled_until(run: Run, sources: Sequence[str], *options: Any) -> list[tuple[str, str]]:
        return kill() if len(asked) >= 110 else answer(run, sources, *options)

    answer = teaching.labelled
    with monkeypatch.context() as killed:
        if place == "in a piece":
            killed.setattr(teaching, "labelled", labelled_until)
        else:
            name = {"between pieces": "corpus.Corpus.write", "while it is filtered": "write_pairs"}
            killed.setattr(f"flaxformer_lite.tools.pair.teaching.{name.get(place, 'filter_answers')}", kill)
        with pytest.raises(KeyboardInterrupt):
            prepare(models)
    assert not Path("run/data/taught").exists() and not Path("run/config.json").exists()
    prepare(models)
    assert taught("run") == taught("whole")
    again = 50 if place == "between pieces" else 0
    assert len(asked) == 10 + 240 + again
    assert Path("run/config.json").read_text() == Path("whole/config.json").read_text().replace("/whole/", "/run/")


@pytest.mark.slow
@pytest.mark.rare
def test_sigkill_at_any_moment_changes_no_byte(teacher: str, asked: list[str], monkeypatch: pytest.MonkeyPatch):
    """Law: killed at moments that are drawn by seed, the command ends with the files of a run that was not killed."""
    monkeypatch.setattr(teaching, "LINES_OF_PIECE", 10)
    models, draw = Models(teachers=(teacher,), mono=further()), random.Random(0)
    prepare(models, "whole")
    command, environment = [sys.executable, "-m", "tests.support.toy_pair"], os.environ | {"PYTHONPATH": str(ROOT)}
    statuses, seconds = [-signal.SIGKILL], 0.1
    while statuses[-1] == -signal.SIGKILL:  # longer and longer, so that it ends on a slow machine too
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds * draw.random())
            child.kill()
        statuses.append(child.returncode)
        seconds *= 1.15
    assert len(statuses) > 6 and statuses[-1] == 0
    prepare(models)
    assert taught("run") == taught("whole")
    assert Path("run/config.json").read_text() == Path("whole/config.json").read_text().replace("/whole/", "/run/")


def test_a_start_with_something_else_is_refused_by_name(teacher: str, asked: list[str]):
    mono = further()
    prepare(Models(teachers=(teacher,), mono=mono, share=0.5))
    Path("mono2.xa").write_text("bade\n")
    for changed, name in (
        (Models(teachers=(teacher, teacher), mono=mono, share=0.5), "teacher"),
        (Models(teachers=(teacher,), mono=("mono2.xa",), share=0.5), "mono"),
        (Models(teachers=(teacher,), mono=mono, share=0.6), "taught"),
        (Models(teachers=(teacher,), mono=mono, share=0.5, start=teacher), "start"),
        (Models(teachers=(teacher,), share=0.5), "mono"),
        (Models(), "mono and taught and teacher"),
    ):
        with pytest.raises(ValueError, match=rf"run was made of other {name} \(.*\): give those again"):
            prepare(changed)


def test_a_teacher_that_has_changed_is_refused(teacher: str, asked: list[str], monkeypatch: pytest.MonkeyPatch):
    """Half of the translations are those of its earlier weights."""
    with monkeypatch.context() as killed:
        killed.setattr(teaching, "filter_answers", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(Models(teachers=(teacher,)))
    config = Path(teacher, "config.json")
    config.write_text(config.read_text().replace('"beam_size": 1', '"beam_size": 2'))
    with pytest.raises(ValueError, match=r"answers was begun with teachers = .* and this start has"):
        prepare(Models(teachers=(teacher,)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--mono a.xa", "--mono is for --teacher: add that, or leave --mono out"),
        ("--taught 0.5", "--taught is for --teacher"),
        ("--to de", "--to is for --teacher or --start"),
        ("--start teacher --like de", "--like is for --start and --pieces"),
        ("--trim", "--trim is for --start: add that, or leave --trim out"),
        ("--start teacher --pieces 9", "--pieces is for --start and --like"),
        ("--start teacher --pieces 9 --like de --to x", "name it and the other one by --from and --to"),
        ("--teacher teacher --taught 1", "--taught is 1.0: it must be a share above 0 and below 1"),
        ("--teacher teacher --mono none.xa", "none.xa: no such file"),
        ("--teacher teacher --mono blank.xa", "--mono: blank.xa has no text: give a file of sentences"),
        ("--teacher teacher --from en", "error: --from and --to name languages, but no model here reads any"),
        ("--teacher ./none", "none does not exist: train one with"),
        ("--start ./none", "none does not exist: train one with"),
        ("--start teacher --to de", "no model here reads any: leave them out"),
    ],
)
def test_a_mistake_is_one_line(words: str, message: str, teacher: str, asked: list[str], command: Command):
    Path("blank.xa").write_text(" \n\n")
    assert message in command.mistake("pair", *write(Path(), REAL), "-o", "run", *words.split(), "--quiet")


def test_a_teacher_of_another_language_is_told_of(teacher: str, asked: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(teaching, "labelled", lambda run, sources, *_: [("", source) for source in sources])
    with pytest.raises(ValueError, match="none of the 180 translations of the teacher is kept: look at them in"):
        prepare(Models(teachers=(teacher,)))


@pytest.mark.parametrize(("best", "kept"), [("highest", slice(36, None)), ("lowest", slice(None, 144))])
def test_a_metric_leaves_the_worst_rated_pairs_out(toy: Path, monkeypatch: pytest.MonkeyPatch, best: str, kept: slice):
    """By hand: the metric counts letters of both sides. What is held out stays, whatever its rating."""

    def rate(sources: Sequence[str], translations: Sequence[str], **_: Any) -> np.ndarray:
        ratings = np.array([len(source + text) for source, text in zip(sources, translations, strict=True)], float)
        ratings[np.argsort(ratings, kind="stable")[:: len(ratings) - 1] if lost else []] = np.nan
        return ratings

    lost = False
    rater = SimpleNamespace(rates_with=(False,), rate=rate, sign=Regression(best=best).rating.sign)
    monkeypatch.setattr(models, "load", lambda path: rater)
    held = room_of_held_out()
    whole = [len(a + b) for a, b in zip(lines("other/data/train.xa"), lines("other/data/train.yb"), strict=True)]
    prepare(Models(filter="metric", best=0.8))
    left = [len(a + b) for a, b in zip(lines("run/data/train.xa"), lines("run/data/train.yb"), strict=True)]
    assert len(whole) == 180 and sorted(left) == sorted(whole)[kept]
    assert held == held_out("run")
    assert sum(line.startswith("rating\t") for line in lines("run/data/removed.tsv")) == 36
    lost = True  # of the shortest and of the longest: both are among the worst, and 34 of the others
    prepare(Models(filter="metric", best=0.8), "lost")
    left = [len(a + b) for a, b in zip(lines("lost/data/train.xa"), lines("lost/data/train.yb"), strict=True)]
    assert sorted(left) == (sorted(whole)[35:-1] if best == "highest" else sorted(whole)[1:145])
    with pytest.raises(ValueError, match=r"made of other best"):
        prepare(Models(filter="metric", best=0.7))


def test_a_filter_that_needs_references_is_refused(toy: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(models, "load", lambda path: SimpleNamespace(rates_with=(True,)))
    with pytest.raises(ValueError, match=r"^--filter comet needs references: name a metric that reads none"):
        prepare(Models(filter="comet"))
    with pytest.raises(ValueError, match=r"^--best is for --filter: add that"):
        Models(best=0.5)


@pytest.mark.parametrize("rule", ["held_out", "rating", "none", "cut"])
def test_only_a_rule_of_the_pairs_is_switched_off(rule: str, toy: Path):
    """`cut` is a rule with a teacher alone; what keeps held-out sentences away is none."""
    with pytest.raises(ValueError, match=rf"^--keep has {rule}: the rules are empty, .*, and with --teacher cut and"):
        prepare(Models(), off=(rule,))


def test_a_mistake_in_a_name_leaves_the_folder_free(teacher: str, asked: list[str]):
    with pytest.raises(ValueError, match="none does not exist"):
        prepare(Models(teachers=("./none",)))
    with pytest.raises(ValueError, match="none does not exist"):
        prepare(Models(teachers=(teacher,), start="./none"))
    assert not asked and prepare(Models(teachers=(teacher,), mono=further())).data.train.names == ("people", "taught")


def test_the_hours_begin_after_the_teacher(teacher: str, asked: list[str], monkeypatch: pytest.MonkeyPatch):
    """The clock says that the teacher took 5,000 seconds, more than the 3,600 that are left."""
    now, deadlines = [0.0], list[float]()

    def teach(*_: Any) -> Any:
        now[0] += 5000
        return parallel(Path("run/data"), "train")

    def choose(pairs: Any, output: Path, deadline: float, *_: Any, **__: Any) -> None:
        deadlines.append(deadline)
        raise KeyboardInterrupt

    monkeypatch.setattr(preparing, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(preparing, "check_time", lambda *_: None)
    monkeypatch.setattr(preparing, "taught_pairs", teach)
    monkeypatch.setattr(preparing, "choose_config", choose)
    with pytest.raises(KeyboardInterrupt):
        preparing.prepare(write(Path(), REAL), (), Path("run"), 3600.0, (), Models(teachers=(teacher,)))
    assert deadlines == [8600.0]


def test_teachers_of_a_teacher_are_teachers(teacher: str, asked: list[str]):
    first = {"name": "large", "license": "mit"}
    RunFolder(teacher).add_teachers([first, first])
    prepare(Models(teachers=(teacher, teacher), mono=further()))
    assert RunFolder("run").teachers == [{"name": "teacher", "license": None}, first]
    Path("next").mkdir()
    RunFolder("next").keep_origin(RunFolder("run"))
    assert RunFolder("next").teachers == RunFolder("run").teachers
