"""English to German on Multi30k with rotary positions and SwiGLU: the lowest validation loss of these recipes, in half the steps.

Source:   the recipe of `multi30k_en_de_small_batches.py` with width 160 (2.72 million parameters) and dropout 0.2; rotary positions
          in place of sines, and SwiGLU of inner width 216 in place of ReLU of 320. lab/multi30k.md has the comparisons, on
          validation data.
Command:  python train.py configs/multi30k_en_de_rotary.py      (docs/results.md: where the data is published)
          flaxformer-lite evaluate runs/multi30k_en_de_rotary
Expected: 27 epochs, 80 minutes of a CPU core; validation loss 1.466, BLEU 41.17; test BLEU 40.22 ± 0.12 (tokenize=none, three
          seeds; lab/multi30k.md has each).
Vary it:  lab/multi30k.md has minimum-risk training, which continues such a run, and more.
"""

import dataclasses

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.core.model import Rotary


def get_config() -> Config:
    config = load_config("multi30k_en_de_small_batches")
    dropout = dataclasses.replace(config.model.dropout, embedding_rate=0.2, residual_rate=0.2)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model, d_model=160, d_ff=216, activation="swiglu", positions=Rotary(), dropout=dropout
        ),
        train=dataclasses.replace(config.train, steps=12_000),
    )
