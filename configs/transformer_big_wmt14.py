"""English to German on WMT14: the big model of the paper that the Transformer comes from.

Source:   Vaswani et al. 2017, arXiv:1706.03762, table 3 (big): width 1,024, 16 heads, 4,096 inside the feed-forward, dropout 0.3,
          the mean of the last 20 checkpoints; everything else is configs/transformer_base_wmt14.py.
Command:  pip install "flaxformer_lite[hub]"; python train.py configs/transformer_big_wmt14.py
          flaxformer-lite evaluate runs/transformer_big_wmt14
Expected: 28.4 BLEU on newstest2014 in the paper, tokenised with compounds split. 300,000 steps, 3.5 days on 8 P100 GPUs there. Not
          run here; 214 million parameters.
Vary it:  16 times larger batches and twice the rate reach 29.3 in Ott et al. 2018, arXiv:1806.00187 (28.6 by sacreBLEU).
"""

import dataclasses

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.core.model import DropoutRates


def get_config() -> Config:
    config = load_config("transformer_base_wmt14")
    rates = DropoutRates(embedding_rate=0.3, attention_rate=0.0, feed_forward_rate=0.0, residual_rate=0.3)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, d_model=1024, num_heads=16, d_ff=4096, dropout=rates),
        train=dataclasses.replace(config.train, steps=300_000, keep_latest=20),
        weights="average:20",
    )
