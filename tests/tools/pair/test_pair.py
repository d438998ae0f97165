"""`pair` as it is typed. Laws: it continues where it was stopped, and what it chose is an ordinary config."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.config import load_config
from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.text.normal_form import bare_words
from flaxformer_lite.files.text.terms import Terms
from flaxformer_lite.files.tokenizers import load_tokenizers
from flaxformer_lite.tools.making import timing
from flaxformer_lite.tools.pair import folder as room
from flaxformer_lite.tools.pair import make, preparing, recipe
from flaxformer_lite.training import TrainingRun, loop
from flaxformer_lite.training.hooks import EachRow
from flaxformer_lite.training.rollback import judge
from tests.support import needs
from tests.support.commands import Command
from tests.support.made_up_languages import languages, write
from tests.support.paths import ROOT


def test_held_out_sentences_are_nowhere_else():
    """Law: no sentence of validation or test is in another split, on either side, whatever its case and punctuation."""
    pairs = languages()[:200]
    pairs += [Pair(pairs[i].source.upper(), pairs[i + 1].target) for i in range(40)]
    held = room.hold_out(pairs)
    chosen = {pair for split in held.values() for pair in split}
    assert [len(split) for split in held.values()] == [12, 12]
    others = {bare_words(text) for pair in pairs if pair not in chosen for text in pair[:2]}
    assert len({bare_words(text) for pair in chosen for text in pair[:2]} - others) == 48


@pytest.mark.slow
def test_rules_have_their_words_in_a_python_that_drops_docstrings(tmp_path: Path):
    """By hand: 2 of 60 pairs come again."""
    program = """
from pathlib import Path
from flaxformer_lite.tools.pair.folder import divide_pairs
from tests.support.made_up_languages import languages
divide_pairs([*languages()[:58], *languages()[:2]], [], {}, ("language", "length", "translation"), ("en", "de"), Path("data"), {})
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-OO", "-c", program], capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert "2 duplicate: a pair that an earlier line has; the first is number 59" in done.stderr


@pytest.mark.parametrize(
    "sharing",
    [
        lambda pair, new: Pair(pair.source, new),
        lambda pair, new: Pair(new, pair.target),
        lambda pair, new: Pair(pair.target, new),
        lambda pair, new: Pair(new, pair.source.upper() + "!"),
        lambda pair, new: Pair(unicodedata.normalize("NFD", pair.source), new),
        lambda pair, new: Pair(new, pair.target.replace(" ", "\u00a0")),
    ],
)
def test_a_sentence_that_comes_again_is_not_held_out(sharing: Callable[[Pair, str], Pair]):
    """By hand: of 21 pairs all but the first two share a sentence with another pair, on one side or across."""
    pairs = [Pair(f"é number {i}", f"ö Nummer {i}") for i in range(21)]
    others = [sharing(pair, f"new {i}") for i, pair in enumerate(pairs[2:])]
    held = room.hold_out([*pairs, *others])
    assert sorted(pair for split in held.values() for pair in split) == pairs[:2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.xa", "b.yb"], "no such file"),
        (["text.xa", "short.yb"], "300 lines in text.xa but 7 in short.yb"),
        (["text.xa", "text.yb", "text.xa"], "3 files"),
        (["text.xa", "text.yb", "--hours", "0.02"], "--hours is 0.02: it must be at least 0.05"),
        (["text.xa", "text.yb", "--keep", "none"], "--keep"),
        (["short.yb", "short.yb"], "0 pairs left"),
        (["four.tsv"], "four.tsv has 4 columns: 0 '1', 1 'a', 2 '2', 3 'b': choose that of the sources"),
        (["four.tsv", "--columns", "1", "1"], "--columns are both 1"),
        (["text.xa", "text.yb", "--columns", "0", "1"], "--columns is for one table"),
        (["text.xa", "four.tsv"], "four.tsv is a table by its name, and is read line by line: give one table"),
        (["pairs.jsonl"], "pairs.jsonl is JSON lines by its name: give two files of lines, or a table"),
    ],
)
def test_a_mistake_is_one_line(toy: Path, words: list[str], message: str, command: Command):
    write(toy, languages()[:300])
    (toy / "short.yb").write_text("a\n" * 7, encoding="utf-8")
    (toy / "four.tsv").write_text("1\ta\t2\tb\n" * 7, encoding="utf-8")
    (toy / "pairs.jsonl").touch()
    assert message in command.mistake("pair", *words, "-o", "run", "--quiet")


@pytest.mark.parametrize(
    ("name", "message"), [("mine", "was not made by `pair`"), (".data.0a1b.unfinished", "10 pairs left")]
)
def test_a_folder_of_something_else_is_refused(toy: Path, name: str, message: str, command: Command):
    """One in which a kill left half of the data is not: it is made anew."""
    files = write(toy, languages()[:10])
    (toy / "run").mkdir()
    (toy / "run" / name).touch()
    assert message in command.mistake("pair", *files, "-o", "run", "--quiet")


def rows_of(pairs: list[Pair], between: str) -> str:
    return "".join(f"{pair.source}{between}{pair.target}\n" for pair in pairs)


def test_one_table_is_read_as_two_files_are(tmp_path: Path, capsys: pytest.CaptureFixture):
    pairs = languages()[:50]
    assert room.read_pairs(write(tmp_path, pairs)) == pairs
    for name, between in (("a.tsv", "\t"), ("a.txt", "\t"), ("a.csv", ","), ("b.csv", ";"), ("c.csv", "\t")):
        (tmp_path / name).write_text(rows_of(pairs, between), encoding="utf-8")
        assert room.read_pairs([str(tmp_path / name)]) == pairs
    quoted = [Pair("one, two", 'a "b"\n; c'), Pair("d", "e")]
    (tmp_path / "d.csv").write_text('"one, two","a ""b""\n; c"\nd,e\n', encoding="utf-8")
    assert room.read_pairs([str(tmp_path / "d.csv")]) == quoted
    assert not capsys.readouterr().err
    with pytest.raises(ValueError, match="no row has a second column between tabs: give a second file"):
        room.read_pairs(write(tmp_path, pairs)[:1])


def test_a_row_with_other_columns_is_told_of_and_is_no_pair(tmp_path: Path, capsys: pytest.CaptureFixture):
    """A tab inside a text cuts it: its other half is not the translation."""
    pairs = languages()[:50]
    path = tmp_path / "text.tsv"
    path.write_text("two\tcats\tzwei\n" + rows_of(pairs, "\t") + "one column\n\n", encoding="utf-8")
    assert room.read_pairs([str(path)]) == [Pair("", ""), *pairs, Pair("", ""), Pair("", "")]
    assert f"warning: 2 rows with other columns, each counts as an empty pair; the first: {path}:1: 3 column(s)" in (
        capsys.readouterr().err
    )


def test_of_more_than_two_columns_those_of_the_texts_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture):
    """Tatoeba writes a number, a text, a number, a text: once ids were trained to sentences without a word."""
    pairs = languages()[:50]
    tatoeba, table, header = (str(tmp_path / name) for name in ("tatoeba.tsv", "three.csv", "header.csv"))
    rows = [f"{i}\t{pair.source}\t{i + 7}\t{pair.target}\n" for i, pair in enumerate(pairs)]
    Path(tatoeba).write_text("".join(rows), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"has 4 columns: 0 '0', 1 '.*', 2 '7', 3 '.*': .* --columns 1 3, or by the names"
    ):
        room.read_pairs([tatoeba])
    assert room.read_pairs([tatoeba], [1, 3]) == pairs
    assert not capsys.readouterr().err
    room.read_pairs([tatoeba], [0, 3])
    assert "column 0 has nothing but numbers" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"--columns has 4, but .* has 4 columns, counted from 0: 0 '0'"):
        room.read_pairs([tatoeba], [1, 4])
    Path(table).write_text("".join(f"{pair.source},{pair.target},x\n" for pair in pairs), encoding="utf-8")
    with pytest.raises(ValueError, match=r"has 3 columns: .* --columns 0 1"):
        room.read_pairs([table])
    Path(header).write_text(f"en;id;de\n{''.join(f'{pair.source};7;{pair.target}' + chr(10) for pair in pairs)}")
    assert room.read_pairs([header], ["de", "en"]) == [Pair(pair.target, pair.source) for pair in pairs]
    assert not capsys.readouterr().err
    room.read_pairs([header], [0, 2])
    assert "1: this row looks like a header, and is read like the others: if it is one, add --columns en de" in (
        capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="no columns 'fr': it is en, id, de"):
        room.read_pairs([header], ["en", "fr"])


def test_two_columns_with_names_give_the_splits_their_ends(toy: Path):
    (toy / "text.csv").write_text("xa,yb\n" + rows_of(languages()[:300], ","), encoding="utf-8")
    preparing.prepare([str(toy / "text.csv")], (), toy / "run", None, ["xa", "yb"])
    assert (toy / "run" / "data" / "train.xa").is_file() and (toy / "run" / "data" / "valid.yb").is_file()
    made = json.loads((toy / "run" / "data" / "made_of.json").read_text())
    assert made["columns"] == ["xa", "yb"] and made["read"] == 300


def test_time_that_others_need_is_not_given_to_steps(toy: Path, monkeypatch: pytest.MonkeyPatch):
    """By hand: of 190 seconds the steps get 100, of 1,000 seconds 850."""
    monkeypatch.setattr(recipe, "positions_per_second", lambda *_: 1e5)
    monkeypatch.setattr(recipe, "EPOCHS", (10**6, 10**6))
    monkeypatch.setattr(recipe, "HASTE", 0)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    (toy / "run").mkdir()
    short, long = (
        recipe.choose_config(languages()[:300], toy / "run", deadline).train.steps for deadline in (190.0, 1000.0)
    )
    assert long / short == pytest.approx(850 / 100, rel=1e-3)


def test_a_time_that_is_too_short_is_refused_with_what_would_do(toy: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: with the hours that the message asks for, the same text on the same machine is not refused, and with fewer it is."""
    monkeypatch.setattr(recipe, "positions_per_second", lambda *_: 50.0)
    monkeypatch.setattr(recipe, "HASTE", 0)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    (toy / "run").mkdir()

    def choose(seconds: float) -> int:
        return recipe.choose_config(languages()[:300], toy / "run", seconds).train.steps

    with pytest.raises(ValueError, match="--hours is too short: 100 seconds are left") as caught:
        choose(100.0)
    fewest, whole = (float(hours) for hours in re.findall(r"(?:add|or) (\d+\.\d\d)", str(caught.value)))
    assert choose(100 + 3600 * fewest) >= timing.MEASURED_STEPS
    with pytest.raises(ValueError, match="--hours is too short"):
        choose(100 + 3600 * (fewest - 0.02))
    assert choose(100 + 3600 * whole) == choose(10**9) > choose(100 + 3600 * fewest)


def test_a_time_that_is_too_short_for_the_cleaning_alone_is_refused_before_it(
    toy: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recipe, "CLEANING_SECONDS", 10.0)
    monkeypatch.setattr(preparing, "divide_pairs", lambda *_: pytest.fail("it was cleaned"))
    files = write(toy, languages()[:300])
    with pytest.raises(
        ValueError, match=r"cleaning 300 pairs, .* about 3,120 seconds, and 1,000 are left: add at least 0\.59"
    ):
        preparing.prepare(files, (), toy / "run", time.monotonic() + 1000)


def test_tags_names_and_addresses_can_be_written_though_the_text_has_none(toy: Path):
    """Oracle: what a placeholder must be is the text itself."""
    (toy / "run").mkdir()
    config = recipe.choose_config(languages()[:300], toy / "run", None)
    tokenizer = load_tokenizers(toy / "run").target
    texts = ("<b>", "</b>", "{name}", "%(count)s", '<a href="x">', "https://a.org/x_y?z=1&q=~2", "me@x.org", "O'K!")
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text and tokenizer.unk_id not in tokenizer.encode(text)
    needed, wrong = Terms((), placeholders=True).tokens("a <b>x</b> {name} %s me@x.org", tokenizer)
    assert len(needed) == 5 and not wrong
    assert "<" in config.data.tokenizer.user_symbols and "a" not in config.data.tokenizer.user_symbols


def test_a_training_that_is_stopped_says_what_is_left(toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("flaxformer_lite.tools.pair.making.prepare", lambda *_: load_config("multi30k_en_de_rotary"))
    monkeypatch.setattr("flaxformer_lite.tools.pair.making.train", lambda *_: signal.SIGTERM)
    status, said = command.ended("pair", *write(toy, languages()[:300]), "-o", "run")
    assert status == 130 and "run is not finished: the same command trains to step 12,000, scores" in said.err


@pytest.mark.slow
@needs.ctranslate2
@needs.altair
def test_from_two_files_to_a_report(toy: Path, command: Command, monkeypatch: pytest.MonkeyPatch):
    words = ["pair", *write(toy, languages()[:300]), "-o", "run", "--hours", "1"]
    with monkeypatch.context() as interrupted:
        interrupted.setattr(EachRow, "on_row", lambda *_: signal.raise_signal(signal.SIGINT))
        status, first = command.ended(*words)
    assert status == 130 and "interrupted while the speed was measured; the same command continues" in first.err
    with monkeypatch.context() as killed:
        killed.setattr("flaxformer_lite.tools.pair.preparing.write_whole", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            command(*words)
    of_killed = command.capsys.readouterr().err
    with monkeypatch.context() as stopped:

        def stop(run: TrainingRun, *others: Any) -> None:
            judge(run, *others)
            if run.config.train.steps > 2:  # not where the speed is measured
                signal.raise_signal(signal.SIGINT)

        stopped.setattr(loop, "judge", stop)
        status, stopped_at = command.ended(*words)
    expected = "; the same command continues from there\nrun is not finished: the same command trains to step"
    assert status == 130 and expected in stopped_at.err
    out, err = command(*words)
    run = toy / "run"
    made = json.loads((run / "data" / "made_of.json").read_text())
    assert made["read"] == 300 == made["kept"] + sum(made["removed"].values())
    told = first.err + of_killed + stopped_at.err + err
    assert told.count("pairs were read") == 1, "what was done before the kill was done again"
    assert out.count("BLEU ") == 2 and "nrefs:1" in out and f"flaxformer-lite translate {run.name}" in out
    assert (run / "report.html").is_file() and (run / "ctranslate2" / "model.bin").is_file()
    config = load_config(str(run))
    assert config == load_config(str(run / "config.json")) and config.model.d_model == 8
    (run / "evaluations" / "test.json").write_text("{}")  # of an `evaluate` with other settings
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*") if file.is_file() and file.name[0] != "."}
    again = command(*words)
    assert again.out == out and "--hours changes nothing now: for other hours give a new --output" in again.err
    results = list[str]()
    made_again = make(words[1:3], Path("run"), tell=results.append)
    assert made_again is not None and f"BLEU {made_again.scores['bleu']:.2f} " in out
    assert "\n".join(results) == out.split("\n\n")[0] and made_again.report == Path("run", "report.html")
    names = {file.name for file, when in before.items() if file.stat().st_mtime_ns != when}
    assert names <= {"config.json", "train.log"}, "a finished run was made again"
    scores = json.loads((run / "data" / "scores.json").read_text())
    (run / "data" / "scores.json").write_text(json.dumps(scores | {"step": scores["step"] - 1}))
    assert command(*words).out == out
    assert (run / "report.html").stat().st_mtime_ns > before[run / "report.html"], "the report of an older step stayed"
    assert "was made of other keep" in command.mistake(*words, "--keep", "length", "--quiet")
    moved = make(words[1:3], run.rename(toy / "moved"))
    assert moved is not None and moved.scores == made_again.scores, "a finished folder works where it was moved to"
