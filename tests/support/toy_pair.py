"""`pair` with toy models and a teacher that is told what to answer; as a program, one command that may be killed."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.config import load_config
from flaxformer_lite.engine.texts import TextTranslator
from flaxformer_lite.run import Run
from flaxformer_lite.tools.making import timing
from flaxformer_lite.tools.pair import Models, preparing, recipe, teaching
from tests.support.made_up_languages import languages, write

PAIRS = languages()
REAL, MONO = PAIRS[:200], PAIRS[200:260]
KNOWN = {pair.source: pair.target for pair in PAIRS}


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (recipe.Size(10**6, 8, 8, 1, 2, 0.0), recipe.Size(10**9, 16, 16, 1, 2, 0.0))
    base = load_config(recipe.BASE)
    train = dataclasses.replace(base.train, text_metrics=(), best_metric="loss")
    decode = dataclasses.replace(base.decode, beam_size=1)
    monkeypatch.setattr(recipe, "MODEL_SIZES", sizes)
    monkeypatch.setattr(recipe, "load_config", lambda name: dataclasses.replace(base, train=train, decode=decode))
    monkeypatch.setattr(recipe, "EPOCHS", (1, 1))
    for module in (recipe, timing):
        monkeypatch.setattr(module, "MEASURED_STEPS", 2)


def make_right(monkeypatch: pytest.MonkeyPatch, seconds: float = 0.0) -> list[str]:
    """Lets the teacher answer with the right translation, in `seconds` a call. Returns what it was asked, which grows."""
    texts = list[str]()

    def translate(self: TextTranslator, sources: Sequence[str], **options: Any) -> list[str]:
        texts.extend(sources)
        time.sleep(seconds)
        return [KNOWN.get(source, "mena sota") for source in sources]

    def labelled(run: Run, sources: Sequence[str], *_: Any) -> list[tuple[str, str]]:
        return [("", text) for text in translate(run, sources)]

    monkeypatch.setattr(TextTranslator, "translate", translate)
    monkeypatch.setattr(teaching, "labelled", labelled)
    return texts


def prepare(models: Models, output: str = "run", off: Sequence[str] = ("translation",)) -> Any:
    """Prepares a run of REAL; what translates what is not learned from so few pairs."""
    files = ["text.xa", "text.yb"] if Path("text.xa").exists() else write(Path(), REAL)
    return preparing.prepare(files, off, Path(output), None, (), models, "jax")


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        make_right(patch, 0.05)
        patch.setattr(teaching, "LINES_OF_PIECE", 10)
        print("ready", flush=True)
        prepare(Models(teachers=("teacher",), mono=("mono.xa",)))
