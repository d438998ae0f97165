"""English to German on the plain text of Multi30k: cased, untokenised, scored with sacreBLEU's 13a.

Source:   the model and the recipe of `multi30k_en_de.py`.
Command:  python train.py configs/multi30k_en_de_raw.py      (docs/results.md: where the data is published)
          flaxformer-lite evaluate runs/multi30k_en_de_raw
Expected: 3 minutes an epoch on one CPU core; with a rate of 0.003, test BLEU 35.9 (sacreBLEU 13a, cased) after 15 epochs, mean of
          5 checkpoints; the full 40 epochs have not been run.
Vary it:  your own text: --data.train.source a.en --data.train.target a.de, and the same for data.eval and data.test.
"""

import dataclasses

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.data import ParallelText

FOLDER = "data/multi30k"


def get_config() -> Config:
    def pairs(split: str) -> ParallelText:
        return ParallelText(source=f"{FOLDER}/{split}.en.gz", target=f"{FOLDER}/{split}.de.gz")

    config = load_config("multi30k_en_de")
    data = dataclasses.replace(
        config.data, train=pairs("train"), eval=pairs("val"), test=pairs("test_2016_flickr"), tokenized=False
    )
    return dataclasses.replace(config, data=data)
