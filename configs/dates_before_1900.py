"""A translator to a new domain: the model of `quickstart` learns dates of 1500 to 1899, with old examples beside the new ones.

Source:   1,000 dates of the new domain, as `quickstart` has them for 1950 to 2049; of four rows one is an old example (replay).
Command:  python train.py configs/quickstart.py
          python train.py configs/dates_before_1900.py
Expected: exact match on 500 held-out dates of each domain, after 100 steps, one seed:
                                   new     old
            before                 0.204   0.996
            with replay            0.982   0.990
            new examples alone     0.980   0.892
          One minute of CPU time, on 2 cores that other work was using too.
Vary it:  --data.train.weights 0.9 0.1
"""

import dataclasses

from flaxformer_lite.config import Config, TrainConfig, load_config
from flaxformer_lite.core.optim import Cosine
from flaxformer_lite.files.data import Dates, Mixture
from flaxformer_lite.files.tokenizers import FromRun


def get_config() -> Config:
    base, names = load_config("quickstart"), ("new", "old")
    new, old = Dates(num_examples=1_000, first_year=1500, last_year=1899), Dates(seed=1)
    held_out = [dataclasses.replace(source, split="held_out", num_examples=500, seed=0) for source in (new, old)]
    return dataclasses.replace(
        base,
        data=dataclasses.replace(
            base.data,
            train=Mixture(sources=(new, old), names=names, weights=(0.75, 0.25)),
            eval=Mixture(sources=tuple(held_out), names=names),
            tokenizer=FromRun(path="runs/quickstart"),
        ),
        optimizer=dataclasses.replace(base.optimizer, schedule=Cosine(peak_rate=5e-4, warmup_steps=10)),
        train=TrainConfig(
            steps=100, eval_every=100, checkpoint_every=100, text_metrics=("exact_match",), init_from="runs/quickstart"
        ),
    )
