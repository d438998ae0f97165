"""Rules that find pairs which are no translations. All they know is the text itself: no model, no list of words."""

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.text.normal_form import bare_words
from flaxformer_lite.tools.pair.lexical import is_first, translation_scores
from flaxformer_lite.tools.pair.markup import has_markup
from flaxformer_lite.tools.pair.misread import is_misread

Broken = Bool[np.ndarray, "N"]
FEWEST_COUNTED = 20
"""Pairs below which nothing is said by counts."""
SPREAD = 1.4826
"""The standard deviation of a normal distribution in median deviations, which broken pairs hardly move."""
TEXTS_AT_ONCE = 50_000
"""Texts whose characters are counted at once."""
TABLE_BITS = 20
"""The logarithm of the places in which three characters in a row are counted; a few share one."""


class PairRule(NamedTuple):
    """A way to find broken pairs."""

    finds: str
    """The fault of the pairs that the rule finds."""
    broken: Callable[[Sequence[Pair]], Broken]
    """Returns whether each pair has the fault."""
    fewest: int = 1
    """The number of pairs from which on the rule looks at them."""


Rules = Mapping[str, PairRule]
"""Rules by their names, in the order in which they look at the pairs that are left."""


def each(is_broken: Callable[[Pair], bool]) -> Callable[[Sequence[Pair]], Broken]:
    """Returns the function of a rule that looks at each pair by itself."""
    return lambda pairs: np.array([*map(is_broken, pairs)], bool)


def duplicate(pairs: Sequence[Pair]) -> Broken:
    return ~is_first((bare_words(pair.source), bare_words(pair.target)) for pair in pairs)


def length(pairs: Sequence[Pair]) -> Broken:
    source = np.array([len(pair.source.strip()) or 1 for pair in pairs], float)
    target = np.array([len(pair.target.strip()) or 1 for pair in pairs], float)
    usual = np.ones(len(pairs), bool)
    spread = 0.0
    for _ in range(6):  # without those far away, what is usual is known better
        scale = np.median(target[usual] / source[usual])
        ratio = np.log((target + 5) / (scale * source + 5))  # five characters more: short texts differ more
        spread = SPREAD * float(np.median(abs(ratio[usual])))
        usual = abs(ratio) <= 2.5 * spread
    middle = float(np.median(target))
    half = math.log((middle + 5) / (middle / 2 + 5))
    return abs(ratio) > max(2 * spread, half - 1.85 * spread)  # 96 of 100 halves, and never what is usual


def language(pairs: Sequence[Pair]) -> Broken:
    texts = [f" {' '.join(pair[:2][side].lower().split())} " for side in (0, 1) for pair in pairs]
    once = np.zeros(len(texts), bool)
    once[list({text: number for number, text in enumerate(texts)}.values())] = True
    blocks = [grams(texts[start : start + TEXTS_AT_ONCE]) for start in range(0, len(texts), TEXTS_AT_ONCE)]
    number = np.concatenate([counts for _, counts in blocks]).clip(min=1)
    broken = np.zeros(len(texts), bool)
    for _ in range(3):  # without those found, the next are rarer
        learns = np.split(once & ~broken, range(TEXTS_AT_ONCE, len(texts), TEXTS_AT_ONCE))
        ofs = np.split(np.repeat([0, 1], len(pairs)), range(TEXTS_AT_ONCE, len(texts), TEXTS_AT_ONCE))
        tables = np.zeros((2, 2**TABLE_BITS))
        for (places, counts), learn, side in zip(blocks, learns, ofs, strict=True):
            for s in (0, 1):
                tables[s] += np.bincount(places[np.repeat(learn & (side == s), counts)], minlength=2**TABLE_BITS)
        rates = np.log(tables.sum(1) + 1)
        means = []
        for (places, counts), side in zip(blocks, ofs, strict=True):
            line = np.repeat(np.arange(len(counts)), counts)
            for across in (0, 1):
                table = (side ^ across)[line]
                seen = (tables[table, places] - (1 - across)).clip(0)  # but for the text itself
                means.append(np.bincount(line, np.log(seen + 0.1) - rates[table], len(counts)))
        likely, other = (np.concatenate(means[across::2]) / number for across in (0, 1))
        for here in (slice(len(pairs)), slice(len(pairs), None)):
            usual = (likely[here] - np.median(likely[here])) * np.sqrt(number[here].clip(max=60))
            nearer = likely[here] - other[here]
            middle = float(np.median(nearer))
            limit = min(0.0, middle - 4 * SPREAD * float(np.median(abs(nearer - middle))))
            broken[here] = (usual < -4 * SPREAD * np.median(abs(usual))) | (nearer < limit)
    return broken[: len(pairs)] | broken[len(pairs) :]


def grams(texts: Sequence[str]) -> tuple[Int[np.ndarray, "_"], Int[np.ndarray, "N"]]:
    """Returns the place in a table of every three characters in a row, text by text, and their number in each text."""
    codes = np.frombuffer("\n".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    line = np.cumsum(codes == 10)
    inside = (line[:-2] == line[2:]) & (codes[:-2] != 10)
    key = (codes[:-2] << np.uint64(42)) | (codes[1:-1] << np.uint64(21)) | codes[2:]
    hashed = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - TABLE_BITS)  # Knuth's multiplicative hashing
    return hashed[inside].astype(np.int32), np.bincount(line[:-2][inside], minlength=len(texts))


def translation(pairs: Sequence[Pair]) -> Broken:
    scores, chance = translation_scores([pair.source for pair in pairs], [pair.target for pair in pairs])
    # Where the text is too small to tell, good pairs come as low as their best come high: few of them are lost.
    return scores < min(np.quantile(chance, 0.99), 2 * np.median(scores) - np.quantile(scores, 0.98))


REPEATED = re.compile(r"(.{2,60}?)\1{3}|(.{20,}?)\2")
"""A part of a text that comes four times in a row, or a long one twice."""
AGAIN = re.compile(r"\b(.+? )\1|(.{2,60}?)\2{3}")
"""Words that come twice in a row, or a part of a text that comes four times."""


def repeats(pair: Pair) -> bool:
    source, target = (f"{bare_words(text)} " for text in pair[:2])
    return bool(REPEATED.search(target) and not AGAIN.search(source))


RULES: Rules = {
    "empty": PairRule(
        "a side without a letter or a digit",
        each(lambda pair: not all(any(map(str.isalnum, text)) for text in pair[:2])),
    ),
    "encoding": PairRule(
        "characters that were lost, or UTF-8 that was read as Latin-1 or Windows-1252, in any part of a side",
        each(lambda pair: any(map(is_misread, pair[:2]))),
    ),
    "markup": PairRule("entities or tags of HTML", each(lambda pair: any(map(has_markup, pair[:2])))),
    "identical": PairRule(
        "the same text on both sides", each(lambda pair: bare_words(pair.source) == bare_words(pair.target))
    ),
    "duplicate": PairRule("a pair that an earlier line has", duplicate),
    "length": PairRule("one side too long or too short for the other", length, FEWEST_COUNTED),
    "language": PairRule(
        "another script or language than the rest of its side, or no language at all", language, FEWEST_COUNTED
    ),
    "translation": PairRule(
        "no more words that translate each other than in two sentences put together by chance",
        translation,
        FEWEST_COUNTED,
    ),
}
OF_ANSWERS: Rules = {
    "cut": PairRule(
        "a source longer than the teacher reads, or a translation as long as it writes",
        each(lambda pair: pair.label == "cut"),
    ),
    "repeats": PairRule("a translation that says the same again and again, of a source that does not", each(repeats)),
}
"""The rules that look at the translations of a teacher before the others do."""


class Cleaned(NamedTuple):
    """Pairs, and what each rule found among them."""

    kept: list[int]
    """Numbers of the pairs that no rule found, from 0."""
    found: dict[str, list[int]]
    """Numbers of the pairs that each rule found first."""


def clean(pairs: Sequence[Pair], off: Collection[str] = (), rules: Rules = RULES) -> Cleaned:
    """Returns what the rules find, but those in `off`."""
    left = np.arange(len(pairs))
    numbers = dict[str, list[int]]()
    for name, rule in rules.items():
        if name in off:
            continue
        broken = np.zeros(len(left), bool)
        if len(left) >= rule.fewest:
            broken = rule.broken([pairs[i] for i in left.tolist()])
        numbers[name] = left[broken].tolist()
        left = left[~broken]
    return Cleaned(left.tolist(), numbers)
