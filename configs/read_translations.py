"""An encoder reads English sentences beside their German translations, some of whose tokens are to be told.

Source:   the pairs of Multi30k, a line each: the sentence and its translation. examples/planted_errors.py writes them
          (docs/neural-scores.md).
Command:  python examples/planted_errors.py data/multi30k en de
          python train.py configs/read_translations.py
Expected: 3.085 nats a token to be told, and 0.454 of them right, on the 1,013 pairs of val, after 2,400 steps (5 epochs). 8 minutes
          of CPU time, on a core that other work was using too.
Vary it:  `rate_translations` starts from its weights, and learns to rate translations.
"""

import dataclasses

from flaxformer_lite.config import Config, TrainConfig, load_config
from flaxformer_lite.core.objectives import MaskedLM
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.files.data import DataConfig, PlainText
from flaxformer_lite.files.tokenizers import SentencePiece


def get_config() -> Config:
    tiny = load_config("tiny_mlm")
    return dataclasses.replace(
        tiny,
        model=dataclasses.replace(tiny.model, vocab_size=4_001, d_ff=256),  # the last id covers subwords
        objective=MaskedLM(mask_token=4_000, mask_rate=0.2),
        data=DataConfig(
            train=PlainText(path="rated/train.txt", documents="lines"),
            eval=PlainText(path="rated/val.txt", documents="lines"),
            tokenizer=SentencePiece(),
            tokens_per_batch=48 * 48,
            rows_multiple=16,
            bucket_lengths=(48,),
            max_source_length=48,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.98), schedule=Cosine(peak_rate=2e-3, warmup_steps=100), weight_decay=0.01
        ),
        train=TrainConfig(steps=2_400, log_every=200, eval_every=1_200, checkpoint_every=1_200, best_metric="accuracy"),
    )
