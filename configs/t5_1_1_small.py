"""T5 1.1, small size: span corruption on C4 with the gated feed-forward.

Source:   configs/t5_1_1_base.py with the sizes of the 1.1 release: 8+8 layers, width 512, 6 heads of 64, 1,024 inside.
Command:  pip install "flaxformer_lite[hub]"; python train.py configs/t5_1_1_small.py
          flaxformer-lite evaluate runs/t5_1_1_small
Expected: no figure is published for pre-training this size; Raffel et al. 2019, arXiv:1910.10683, table 14, report 77.4 on GLUE for
          the small model of release 1.0. Not run here; 77 million parameters.
Vary it:  split="train[:1%]" for less text. `import hf` brings the published weights.
"""

import dataclasses

from flaxformer_lite.config import Config, load_config


def get_config() -> Config:
    config = load_config("t5_1_1_base")
    model = dataclasses.replace(
        config.model, d_model=512, num_heads=6, d_ff=1024, num_encoder_layers=8, num_decoder_layers=8
    )
    return dataclasses.replace(config, model=model)
