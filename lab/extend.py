"""A 15th language for a model of dates in 14: what the new one learns and the old ones lose, by the share of replay.

    python lab/extend.py FOLDER

writes days in 15 languages, each to and from the ISO form; trains 14 of them (28 directions), adds Finnish by `extend`, and
fine-tunes the new run with different shares of old pairs. It prints a table.
"""

import datetime
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import flaxformer_lite
from flaxformer_lite.config import Config, TrainConfig, load_config
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.core.text import Languages
from flaxformer_lite.files.data import TSV, DataConfig, Mixture
from flaxformer_lite.files.data.built_in import date_languages, is_held_out, written_date
from flaxformer_lite.files.tokenizers import FromRun, SentencePiece
from flaxformer_lite.run.extending import extend

MONTHS = ["tammi", "helmi", "maalis", "huhti", "touko", "kesä", "heinä", "elo", "syys", "loka", "marras", "joulu"]
FINNISH = {
    "patterns": ["{weekday} {d}. {month} {y}", "{d}. {month} {y}", "{d}.{M}.{y}"],
    "weekdays": ["maanantaina", "tiistaina", "keskiviikkona", "torstaina", "perjantaina", "lauantaina", "sunnuntaina"],
    "months": [f"{month}kuuta" for month in MONTHS],
    "short_months": MONTHS,
}
"""Unicode CLDR 47, as the languages of the package."""
LANGUAGES = date_languages() | {"fi": FINNISH}
OLD = tuple(date_languages())
TRAIN, TEST, STEPS, FINE_STEPS = 3_000, 500, 1_400, 300
SHARES = (0.0, 0.1, 0.3, 0.5)


def write(folder: Path, split: str, number: int) -> None:
    """Writes days of a split in each language, to ISO in one of its formats, and from ISO in its second format."""
    first = datetime.date(1950, 1, 1).toordinal()
    for code, names in LANGUAGES.items():
        draw, days = random.Random(f"{split} {code}"), list[datetime.date]()
        while len(days) < number:
            day = datetime.date.fromordinal(first + draw.randrange(36_525))
            if is_held_out(day) == (split == "test"):
                days.append(day)
        to_iso = [f"{written_date(day, draw.choice(names['patterns']), names)}\t{day.isoformat()}\n" for day in days]
        from_iso = [f"{day.isoformat()}\t{written_date(day, names['patterns'][1], names)}\n" for day in days]
        (folder / f"{split}.{code}-iso.tsv").write_text("".join(to_iso), encoding="utf-8")
        (folder / f"{split}.iso-{code}.tsv").write_text("".join(from_iso), encoding="utf-8")


def sources(folder: Path, split: str, codes: tuple[str, ...]) -> tuple[TSV, ...]:
    directions = [pair for code in codes for pair in ((code, "iso"), ("iso", code))]
    return tuple(TSV(path=f"{folder}/{split}.{a}-{b}.tsv", languages=(a, b)) for a, b in directions)


def mixture(folder: Path, split: str, codes: tuple[str, ...], **weights: Any) -> Mixture:
    found = sources(folder, split, codes)
    return Mixture(sources=found, names=tuple("-".join(one.languages) for one in found), **weights)


def base_config(folder: Path) -> Config:
    quickstart = load_config("quickstart")
    return replace(
        quickstart,
        model=replace(quickstart.model, vocab_size=480, d_model=96, d_ff=192, num_decoder_layers=1, scan_unroll=1),
        data=DataConfig(
            train=mixture(folder, "train", OLD),
            test=mixture(folder, "test", OLD),
            tokenizer=SentencePiece(split_digits=True),
            languages=Languages(codes=(*OLD, "iso"), token="<{}>"),
            tokens_per_batch=1_024,
            bucket_lengths=(14, 24),
            max_source_length=24,
            max_target_length=24,
        ),
        decode=replace(quickstart.decode, max_new_tokens=24),
        train=TrainConfig(steps=STEPS, checkpoint_every=STEPS),
    )


def fine_tuning(folder: Path, start: Path, share: float) -> Config:
    """The config of `start`, on the pairs of the new language, with a share of replay."""
    config, codes = load_config(str(start / "config.json")), ("fi", *(OLD if share else ()))
    weights = tuple((1 - share) / 2 if code == "fi" else share / (2 * len(OLD)) for code in codes for _ in range(2))
    return replace(
        config,
        data=replace(
            config.data,
            train=mixture(folder, "train", codes, weights=weights),
            test=mixture(folder, "test", ("fi", *OLD)),
            tokenizer=FromRun(path=str(start)),
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(), schedule=Cosine(peak_rate=1e-3, warmup_steps=50), weight_decay=0.01
        ),
        train=TrainConfig(steps=FINE_STEPS, checkpoint_every=FINE_STEPS, init_from=str(start)),
    )


def matches(run: Path, codes: tuple[str, ...]) -> dict[str, float]:
    """Returns the exact matches of a run by direction."""
    scores = flaxformer_lite.load(run).evaluate("test")
    directions = [d for code in codes for d in (f"{code}-iso", f"iso-{code}")]
    return {direction: scores[f"{direction}/exact_match"] for direction in directions}


def row(name: str, found: dict[str, float], before: dict[str, float]) -> str:
    losses = {direction: before[direction] - found[direction] for direction in before}
    worst = max(losses, key=lambda direction: losses[direction])
    mean = sum(found[direction] for direction in before) / len(before)
    new = [f"{found[d]:.3f}" if d in found else "–" for d in ("fi-iso", "iso-fi")]
    return f"| {name} | {' | '.join(new)} | {mean:.4f} | {losses[worst]:+.3f} ({worst}) |"


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write(folder, "train", TRAIN)
    write(folder, "test", TEST)
    text = folder / "finnish.txt"
    lines = (folder / "train.fi-iso.tsv").read_text(encoding="utf-8").splitlines()
    text.write_text("".join(line.split("\t")[0] + "\n" for line in lines), encoding="utf-8")
    base, start = folder / "base", folder / "start"
    flaxformer_lite.train(base_config(folder), base)
    if not start.exists():
        extend(base, start, language="fi", like="sv", pieces=120, text=str(text))
    before = matches(base, OLD)
    assert matches(start, OLD) == before
    rows = [
        "| share of replay | Finnish to ISO | ISO to Finnish | mean of the old | largest loss |",
        "|---|---|---|---|---|",
    ]
    rows.append(row("before", before, before))
    for share in SHARES:
        tuned = folder / f"replay-{share}"
        flaxformer_lite.train(fine_tuning(folder, start, share), tuned)
        rows.append(row(f"{share:.0%}", matches(tuned, ("fi", *OLD)), before))
        (folder / "table.json").write_text(json.dumps(rows))
    print("\n".join(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
