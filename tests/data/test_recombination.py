"""Laws of recombination: what is new stands in contexts that the corpus has; the same seed gives the same sentences."""

import random
from itertools import islice
from pathlib import Path

import pytest

from flaxformer_lite.data import recombination
from flaxformer_lite.data.recombination import Recombination, recombined

PEOPLE, COLOURS, PLACES = (
    ("man", "girl", "boy", "woman"),
    ("red", "blue", "green", "black"),
    ("beach", "street", "bench"),
)
ALL = [f"a {who} in a {colour} shirt sits on the {where} ." for who in PEOPLE for colour in COLOURS for where in PLACES]
LINES = [line for number, line in enumerate(ALL) if number % 5 in (0, 2)]
"""20 of 48 sentences, in which every word stands three times or oftener."""


@pytest.fixture(autouse=True)
def few_fixed_words(monkeypatch: pytest.MonkeyPatch):
    """Of so small a corpus, 30 words would be almost all."""
    monkeypatch.setattr(recombination, "MOST_COMMON", 4)


def test_swapped_words_stand_between_the_same_two_elsewhere():
    """Oracle: all sentences of this form; a fifth of 11 words are swapped, so two, or one where the second has no other."""
    corpus, generator = Recombination([line.split() for line in LINES]), random.Random(1)
    before = LINES[0].split()
    found = {" ".join(corpus.swapped(before, generator)) for _ in range(200)}
    assert len(found) > 5 and found <= set(ALL) - {LINES[0]}
    assert {sum(a != b for a, b in zip(line.split(), before, strict=True)) for line in found} == {2}


def test_rare_words_are_not_put_into_other_sentences(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recombination, "LEAST_COUNT", 100)
    corpus = Recombination([line.split() for line in LINES])
    assert corpus.swapped(LINES[0].split(), random.Random(0)) == LINES[0].split()


def test_joined_halves_meet_in_three_words():
    """Oracle: worked by hand. Before the seam stand "a man" and more; the others that have the same three words have its colour."""
    corpus, generator = Recombination([line.split() for line in LINES]), random.Random(1)
    found = {" ".join(corpus.joined(LINES[0].split(), generator)) for _ in range(300)}
    assert found == {f"a man in a red shirt sits on the {where} ." for where in PLACES} and len(found - set(LINES)) == 1
    short = ["a", "girl", "sits", "on", "the", "beach"]
    assert corpus.joined(short, generator) == short


def test_sentences_are_new_and_a_function_of_the_seed():
    found = list(recombined(LINES, 20))
    assert len(set(found)) == 20 and not set(found) & set(LINES)
    assert list(recombined(LINES, 20)) == found != list(recombined(LINES, 20, seed=1))
    assert list(islice(recombined([*LINES, "", "  "], 25), 20)) == found  # empty lines are no sentences


@pytest.mark.parametrize(("lines", "number"), [([], 1), (["", " "], 1), (["a b"], 2), (LINES, 29)], ids=str)
def test_a_text_that_is_used_up_is_an_error(lines: list[str], number: int):
    with pytest.raises(ValueError, match=rf"^{number:,} new sentences are asked for, but the \d+ of the text gave "):
        list(recombined(lines, number))


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture):
    from flaxformer_lite.cli.main import main

    (tmp_path / "a.en").write_text("\n".join(LINES) + "\n")
    main(["recombine", str(tmp_path / "a.en"), "-n", "7", "--seed", "3"])
    assert capsys.readouterr().out.splitlines() == list(recombined(LINES, 7, 3))
    for words, message in (
        (["-n", "0"], "--number is 0: it must be at least 1"),
        (["-n", "99999"], "99,999 new sentences"),
    ):
        with pytest.raises(SystemExit) as exit:
            main(["recombine", str(tmp_path / "a.en"), *words])
        assert exit.value.code == 2 and message in capsys.readouterr().err
