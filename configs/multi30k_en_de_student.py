"""English to German on Multi30k, a student of three models: sequence-level distillation, the best of these recipes.

Source:   Kim & Rush 2016, arXiv:1606.07947: a third of the pairs have an ensemble's best translation, and a third that of its 8
          best which is nearest to the people's. Its members, one a seed, are runs of `multi30k_en_de_minimum_risk.py`;
          lab/multi30k.md has the commands that train them and write the two files.
Command:  python train.py configs/multi30k_en_de_student.py
          flaxformer-lite evaluate runs/multi30k_en_de_student
Expected: 5.3 epochs of 87,000 pairs, 27 minutes of a CPU core, after 3 hours for the members; validation BLEU 42.14; test BLEU
          41.97 ± 0.22 (tokenize=none, three seeds; lab/multi30k.md has each).
Vary it:  another member to continue: --train.init-from RUN --data.tokenizer.path RUN.
"""

import dataclasses

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.core.optim import Cosine
from flaxformer_lite.files.data import Mixture, ParallelText
from flaxformer_lite.files.tokenizers import FromRun

BEST = "data/multi30k/train.ensemble.de"
NEAREST = "data/multi30k/train.nearest.de"
MEMBER = "runs/multi30k_en_de_minimum_risk"


def get_config() -> Config:
    config = load_config("multi30k_en_de_rotary")
    people = config.data.train
    assert isinstance(people, ParallelText)
    best, nearest = (dataclasses.replace(people, target=file) for file in (BEST, NEAREST))
    dropout = dataclasses.replace(config.model.dropout, embedding_rate=0.1, residual_rate=0.1)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, dropout=dropout),
        data=dataclasses.replace(
            config.data,
            train=Mixture(sources=(people, best, nearest), names=("people", "ensemble", "nearest")),
            tokenizer=FromRun(path=MEMBER),
        ),
        optimizer=dataclasses.replace(config.optimizer, schedule=Cosine(peak_rate=1e-3, warmup_steps=200)),
        train=dataclasses.replace(config.train, init_from=MEMBER, steps=7_000, eval_every=1_000, checkpoint_every=500),
        decode=dataclasses.replace(config.decode, alpha=1.8),
    )
