"""Token stores that are made before a training: those of `prepare`."""

import tempfile
from pathlib import Path

from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import Config
from flaxformer_lite.files.data.store import PairStream, TokenStore
from flaxformer_lite.tools.corpus.part import WHOLE, Part
from flaxformer_lite.training.data import run_tokenizers
from flaxformer_lite.workdir import RunFolder


def make_stores(config: Config, progress: Progress, part: Part = WHOLE) -> list[Path]:
    """Makes one part of the token store of each source of `data.train`, and returns the folders of the stores.

    Raises: ValueError if the config names no training data, no tokenizer or no folder for the stores.
    """
    data = config.data
    source = config.data.source("train")
    if source is None or data.tokenizer is None or data.store is None:
        raise ValueError(
            "data.train, data.tokenizer or data.store is None: prepare needs all three; choose a folder with --data.store"
        )
    progress.update("preparing")
    with tempfile.TemporaryDirectory() as scratch:
        tokenizers = run_tokenizers(config, RunFolder(Path(scratch)), PairStream(source, "data.train", progress.within))
    parts = source.parts("data.train")
    stores = [TokenStore.of(Path(data.store), one, tokenizers, setting, progress.within) for setting, one in parts]
    for store in stores:
        if not store.build(tokenizers, progress.within, (part.number - 1, part.parts)):
            progress.say(f"part {part.number}/{part.parts} is made; other parts are missing")
    return [store.folder for store in stores]
