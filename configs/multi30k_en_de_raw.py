"""English to German on the plain text of Multi30k: cased, untokenised, scored with sacreBLEU's 13a.

Source:   the recipe of `multi30k_en_de_small_batches.py` with width 160 (2.71 million parameters) and dropout 0.2 for 24 epochs;
          lab/multi30k.md has the comparisons that chose them, on validation data.
Command:  python train.py configs/multi30k_en_de_raw.py      (docs/results.md: where the data is published)
          flaxformer-lite evaluate runs/multi30k_en_de_raw
Expected: 24 epochs, 80 minutes of a CPU core; validation loss 1.543, BLEU 39.46; test BLEU 38.51
          (sacreBLEU 13a, cased, seed 0), 39.11 and 38.62 with seeds 1 and 2.
Vary it:  your own text: --data.train.source a.en --data.train.target a.de, and the same for data.eval and data.test.
"""

import dataclasses

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.files.data import ParallelText
from flaxformer_lite.metrics import MetricConfig

FOLDER = "data/multi30k"


def get_config() -> Config:
    def pairs(split: str) -> ParallelText:
        return ParallelText(source=f"{FOLDER}/{split}.en.gz", target=f"{FOLDER}/{split}.de.gz")

    config = load_config("multi30k_en_de_small_batches")
    dropout = dataclasses.replace(config.model.dropout, embedding_rate=0.2, residual_rate=0.2)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, d_model=160, d_ff=320, dropout=dropout),
        data=dataclasses.replace(config.data, train=pairs("train"), eval=pairs("val"), test=pairs("test_2016_flickr")),
        metrics=MetricConfig(),
        train=dataclasses.replace(config.train, steps=10_700),
    )
