"""Writes rated/: translations as they are, rated 1, and with an error of one of six kinds, rated 0; and the pairs as plain text.

python examples/planted_errors.py data/multi30k en de     for configs/read_translations.py and configs/rate_translations.py
"""

import gzip
import json
import random
import sys
from pathlib import Path

KINDS = ("dropped word", "swapped words", "wrong number", "negation", "untranslated word", "repeated phrase")
NUMBERS = ("zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn")
NEGATED = {"ein": "kein", "eine": "keine", "einen": "keinen", "einem": "keinem", "einer": "keiner"}


def planted(kind: str, source: list[str], words: list[str], draw: random.Random) -> list[str]:
    """Returns the words of a translation with an error; without a place for that kind of error, the words as they are."""
    i, length = draw.randrange(len(words) - 1), draw.choice([1, 2, 3])
    wrong = list(words)
    if kind == "dropped word":
        del wrong[i]
    elif kind == "swapped words":
        wrong[i], wrong[i + 1] = wrong[i + 1], wrong[i]
    elif kind == "untranslated word":
        wrong[i] = draw.choice(source)
    elif kind == "repeated phrase":
        wrong[i:i] = wrong[i : i + length]
    else:
        others = dict.fromkeys(NUMBERS) if kind == "wrong number" else NEGATED
        places = [place for place, word in enumerate(words) if word.lower() in others]
        for place in places and [draw.choice(places)]:
            word = words[place].lower()
            other = others[word] or draw.choice([number for number in NUMBERS if number != word])
            wrong[place] = other.capitalize() if words[place][0].isupper() else other
    return wrong


def pairs(folder: Path, split: str, languages: list[str]) -> list[tuple[str, str]]:
    files = [gzip.decompress((folder / f"{split}.{code}.gz").read_bytes()).decode() for code in languages]
    lines = zip(*(text.splitlines() for text in files), strict=True)
    stripped = [(source.strip(), translation.strip()) for source, translation in lines]
    return [(source, translation) for source, translation in stripped if source and len(translation.split()) > 3]


def main(folder: str, *languages: str) -> None:
    Path("rated").mkdir(exist_ok=True)
    others = [kind for kind in KINDS if kind != "wrong number"]
    for split, times in {"train": 2, "val": 1, "test_2016_flickr": 1}.items():
        place = Path("rated", split.split("_")[0])
        draw, rows, found = random.Random(0), [], pairs(Path(folder), split, [*languages])
        for number, (source, translation) in enumerate(found * times):
            words = translation.split()
            rows.append({"source": source, "translation": translation, "rating": 1, "kind": "none"})
            for kind in ("wrong number", *others[number % 5 :], *others):  # one translation in six has a number
                wrong = planted(kind, source.split(), words, draw)
                if wrong != words:
                    break
            rows.append({"source": source, "translation": " ".join(wrong), "rating": 0, "kind": kind})
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        place.with_suffix(".jsonl").write_text(lines, encoding="utf-8")
        text = "".join(f"{source} {translation}\n" for source, translation in found)
        place.with_suffix(".txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
