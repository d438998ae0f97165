"""A metric of translations: a small encoder reads an English sentence with its German translation, and rates the pair.

Source:   examples/planted_errors.py makes rated pairs of Multi30k: translations as they are, rated 1, and with a planted error of
          one of six kinds, rated 0 (docs/neural-scores.md). The weights are those of `read_translations`.
Command:  python examples/planted_errors.py data/multi30k en de
          python train.py configs/read_translations.py
          python train.py configs/rate_translations.py
Expected: of the 1,000 translations of test_2016_flickr 955 are rated above the same translation with an error; Spearman 0.759 with
          the ratings of val. One seed; 6 minutes of CPU time, on a core that other work was using too. From random weights 695
          after the same steps: only wrong numbers and negations are found.
Vary it:  your own ratings: --data.train.path RATED.jsonl, with the fields source, translation and rating.
"""

import dataclasses

from flaxformer_lite.config import Config, TrainConfig, load_config
from flaxformer_lite.core.model import Pooler
from flaxformer_lite.core.objectives import Regression
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.files.data import DataConfig, JSONLines
from flaxformer_lite.files.records import Classes
from flaxformer_lite.files.tokenizers import FromRun


def get_config() -> Config:
    def rated(split: str) -> JSONLines:
        return JSONLines(
            path=f"rated/{split}.jsonl", record=Classes(source="source", text="translation", label="rating")
        )

    reading = load_config("read_translations")
    return dataclasses.replace(
        reading,
        model=dataclasses.replace(
            reading.model,
            head=None,
            num_token_types=2,
            pooler=Pooler(token="late_mean", num_classes=1),  # each token tells of errors near it
        ),
        objective=Regression(),
        data=DataConfig(
            train=rated("train"),
            eval=rated("val"),
            test=rated("test"),
            tokenizer=FromRun(path="runs/read_translations"),
            tokens_per_batch=64 * 48,
            rows_multiple=16,
            bucket_lengths=(32, 48, 96),
            max_source_length=96,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(b2=0.98), schedule=Cosine(peak_rate=1.5e-3, warmup_steps=150), weight_decay=0.01
        ),
        train=TrainConfig(
            steps=1_400,
            log_every=200,
            eval_every=700,
            checkpoint_every=700,
            init_from="runs/read_translations",
            init_fresh=("pooler/*", "*type*"),
            best_metric="spearman",
        ),
    )
