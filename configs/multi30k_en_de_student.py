"""English to German on Multi30k, a student of three models: sequence-level distillation, the best of these recipes.

Source:   Kim & Rush 2016, arXiv:1606.07947: half of the pairs have translations of an ensemble. Its members, one a seed, are runs
          of `multi30k_en_de_minimum_risk.py`; docs/multi30k.md has the commands that train them and write `train.ensemble.de`.
Command:  python train.py configs/multi30k_en_de_student.py
          flaxformer-lite evaluate runs/multi30k_en_de_student
Expected: 5.7 epochs of 58,000 pairs, 36 minutes of a CPU core, after 6 hours for the members; validation BLEU 42.30; test BLEU
          41.53 ± 0.39 (tokenize=none, three seeds; docs/multi30k.md has each).
Vary it:  another member to continue: --train.init-from RUN --data.tokenizer.path RUN.
"""

import dataclasses

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.data import Mixture, ParallelText
from flaxformer_lite.optim import Cosine
from flaxformer_lite.text import FromRun

TRANSLATIONS = "data/multi30k/train.ensemble.de"
MEMBER = "runs/multi30k_en_de_minimum_risk"


def get_config() -> Config:
    config = load_config("multi30k_en_de_rotary")
    people = config.data.train
    assert isinstance(people, ParallelText)
    ensemble = dataclasses.replace(people, target=TRANSLATIONS)
    return dataclasses.replace(
        config,
        data=dataclasses.replace(
            config.data,
            train=Mixture(sources=(people, ensemble), names=("people", "ensemble")),
            tokenizer=FromRun(path=MEMBER),
        ),
        optimizer=dataclasses.replace(config.optimizer, schedule=Cosine(peak_rate=1e-3, warmup_steps=200)),
        train=dataclasses.replace(config.train, init_from=MEMBER, steps=5_000, eval_every=1_000, checkpoint_every=500),
        decode=dataclasses.replace(config.decode, alpha=2.2),
    )
