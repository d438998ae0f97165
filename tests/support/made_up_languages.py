"""Pairs of two made-up languages, of which every translation is known."""

import random
from pathlib import Path

from flaxformer_lite.core.data import Pair

NUMBER = 3_000


def write(folder: Path, pairs: list[Pair]) -> list[str]:
    """Writes two parallel files and returns their names."""
    for side, end in enumerate(("xa", "yb")):
        (folder / f"text.{end}").write_text("".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return [str(folder / f"text.{end}") for end in ("xa", "yb")]


def languages(seed: int = 0) -> list[Pair]:
    """Sentences of a small grammar, and their translations: word by word, in another order, with another ending."""
    draw = random.Random(seed)

    def word(consonants: str, vowels: str) -> str:
        return "".join(draw.choice(consonants) + draw.choice(vowels) for _ in range(draw.choice((2, 3))))

    lexicon = [(word("bdgklpv", "aeu"), word("hmnrst", "aiou")) for _ in range(400)]
    pairs = []
    for _ in range(NUMBER):
        words = [lexicon[int(400 * draw.random() ** 2)] for _ in range(draw.randrange(5, 13))]
        pairs.append(Pair(" ".join(w[0] for w in words) + ".", " ".join(w[1] for w in reversed(words)) + "."))
    return pairs
