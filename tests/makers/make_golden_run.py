"""Writes `tests/fixtures/runs/format_1`: a run of two steps, as this release leaves it, with the digest of its parameters.

    python tests/makers/make_golden_run.py tests/fixtures/runs/format_1

A later release loads and continues it (`tests/laws/test_old_run.py`). The folder of an older format is never written again.
"""

import dataclasses
import json
import sys
from pathlib import Path

import flaxformer_lite
from flaxformer_lite.config.experiment import Config
from flaxformer_lite.training.loop import train
from flaxformer_lite.workdir import parameter_digest
from tests.support.experiments import tiny_config, with_train


def golden_config() -> Config:
    """The tiny experiment, narrower, on the date generator, which needs no files."""
    tiny = with_train(tiny_config(), steps=2, eval_every=2, checkpoint_every=2, log_every=1, text_metrics=())
    model = dataclasses.replace(tiny.model, d_model=6, d_ff=5, num_encoder_layers=1, num_decoder_layers=1)
    data = dataclasses.replace(tiny.data, bucket_lengths=(40,))
    return dataclasses.replace(tiny, model=model, data=data)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    train(golden_config(), folder)
    for file in (".lock", "train.log"):
        (folder / file).unlink()
    found = parameter_digest(flaxformer_lite.load(folder).params)
    (folder / "expected.json").write_text(json.dumps({"step": 2, "sha256": found}) + "\n", encoding="utf-8")
