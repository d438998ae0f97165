"""The rules of `pair`. Oracle: pairs of two made-up languages that were broken on purpose, so it is known which."""

import random
import unicodedata
from collections.abc import Callable
from functools import partial

import pytest

from flaxformer_lite.cli.commands.pair import RULE_NAMES
from flaxformer_lite.core.data import Pair
from flaxformer_lite.tools.pair import OF_ANSWERS, RULES, clean
from flaxformer_lite.tools.pair.lexical import translation_scores
from tests.support.made_up_languages import NUMBER, languages
from tests.support.misread import misread

Break = Callable[[Pair, Pair, random.Random], Pair]


def half(text: str, draw: random.Random) -> str:
    words = text.split()
    return " ".join(words[: len(words) // 2] if draw.random() < 0.5 else words[len(words) // 2 :])


def letters(draw: random.Random) -> str:
    return "".join(draw.choice("qxzw%#&j 7") for _ in range(30))


BROKEN: dict[str, Break] = {
    "no target": lambda pair, other, draw: Pair(pair.source, " "),
    "dashes": lambda pair, other, draw: Pair("-- !", pair.target),
    "copied": lambda pair, other, draw: Pair(pair.source, pair.source),
    "copied, changed": lambda pair, other, draw: Pair(pair.source, half(pair.source, draw) + " " + pair.source.upper()),
    "repeated": lambda pair, other, draw: other,
    "of another pair": lambda pair, other, draw: Pair(pair.source, other.target),
    "wrong language": lambda pair, other, draw: Pair(pair.source, other.source),
    "sides swapped": lambda pair, other, draw: Pair(pair.target, pair.source),
    "wrong script": lambda pair, other, draw: Pair(pair.source, "Женщина переходит улицу с большой сумкой"),
    "half of the target": lambda pair, other, draw: Pair(pair.source, half(pair.target, draw)),
    "half of the source": lambda pair, other, draw: Pair(half(pair.source, draw), pair.target),
    "garbage": lambda pair, other, draw: Pair(letters(draw), pair.target),
    "boilerplate": lambda pair, other, draw: Pair(pair.source, "tolu mase rimo kana tesi"),
    "misread": lambda pair, other, draw: Pair(pair.source, (pair.target + " süß").encode().decode("latin-1")),
    "misread in a part": lambda pair, other, draw: Pair(pair.source, f"{pair.target} → {misread('süß')}"),
    "entities": lambda pair, other, draw: Pair(f"&quot;{pair.source}&quot;", f"&quot;{pair.target}&quot;"),
    "tags": lambda pair, other, draw: Pair(f"<p>{pair.source}<br/>", f"<p>{pair.target}<br/>"),
}


def broken(share: float) -> tuple[list[Pair], dict[int, str]]:
    """The pairs, of which a share is broken, and how each of those is; a block of them is shifted by a line."""
    pairs, draw = languages(), random.Random(1)
    kinds = [*BROKEN, "shifted"]
    each = int(share * NUMBER / len(kinds))
    shifted = range(NUMBER - each - 1, NUMBER - 1)
    how = dict.fromkeys(shifted, "shifted")
    made = [*pairs]
    for i in shifted:
        made[i] = Pair(pairs[i].source, pairs[i + 1].target)
    numbers = draw.sample(range(NUMBER // 4, NUMBER - each - 1), each * len(BROKEN))
    for place, i in enumerate(numbers):
        kind = [*BROKEN][place % len(BROKEN)]
        made[i], how[i] = BROKEN[kind](pairs[i], pairs[draw.randrange(NUMBER // 4)], draw), kind
    return made, how


def test_at_least_95_of_100_broken_pairs_are_found_and_few_others():
    made, how = broken(0.3)
    cleaned = clean(made)
    found = {i for numbers in cleaned.found.values() for i in numbers}
    missed = [kind for i, kind in how.items() if i not in found]
    assert len(missed) < 0.05 * len(how), missed
    assert len(found - how.keys()) < 0.03 * NUMBER
    assert sorted([*cleaned.kept, *found]) == [*range(NUMBER)]


def test_of_good_pairs_few_are_lost():
    assert len(clean(languages()).kept) > 0.97 * NUMBER


def test_each_rule_finds_pairs_and_is_off_where_it_is_asked_to_be():
    made, _ = broken(0.3)
    assert all(clean(made).found.values())
    for rule in RULES:
        assert clean(made[:100], {rule}).found.keys() == RULES.keys() - {rule}


@pytest.mark.parametrize("same", [str.upper, "{}!".format, " {}".format, partial(unicodedata.normalize, "NFD")])
def test_texts_are_compared_in_the_normal_form(same: Callable[[str], str]):
    """By hand: a copy, and a pair that comes again, are found with another case, a sign, spaces, and another form of é."""
    pairs = [Pair("un café", "a coffee"), Pair("le café", same("le café")), Pair(same("un café"), same("a coffee"))]
    assert RULES["identical"].broken(pairs).tolist() == [False, True, False]
    assert RULES["duplicate"].broken(pairs).tolist() == [False, False, True]


def test_odd_texts_are_cleaned_too():
    pairs = languages()[:60]
    one_target = [Pair(pair.source, "tolu") for pair in pairs]
    empty = [Pair("", "")] * 30
    for made in (
        [],
        pairs[:1],
        one_target,
        empty,
        pairs[:30] + empty,
        [Pair(pair.source, pair.source) for pair in pairs],
    ):
        for off in ((), ("empty",), ("empty", "identical", "duplicate")):
            cleaned = clean(made, off)
            assert len(cleaned.kept) + sum(map(len, cleaned.found.values())) == len(made)


def test_the_options_are_the_rules():
    assert (*RULES, *OF_ANSWERS) == RULE_NAMES


def test_a_pair_does_not_vouch_for_itself():
    """Law: words that stand in one pair alone say nothing for it, though no other pair contradicts them."""
    pairs = languages()[:400]
    pairs[7] = Pair("zzza zzzb zzzc", "yyya yyyb yyyc")
    found, chance = translation_scores([pair.source for pair in pairs], [pair.target for pair in pairs])
    assert found[7] <= 0 < sorted(found)[100]
    assert chance.shape == found.shape


def test_markup_on_either_side_is_found():
    """An entity or a tag is enough, on one side."""
    pairs = [Pair("a &amp; b", "a b"), Pair("a b", "a <b>b</b>"), Pair("a < b", "a & b")]
    assert RULES["markup"].broken(pairs).tolist() == [True, True, False]
