"""Labels for words: the code in sentences of Python's help topics, learned from 500 sentences with spans.

Source:   lab/recipes.md has the lines of Python that write the sentences: the quotes around code are left out, and tell where
          it is. The weights are those of `tiny_modernbert`, which has read the topics without labels, quotes included.
Command:  python train.py configs/tiny_modernbert.py
          python train.py configs/label_code_names.py
Expected: F1 0.743 of 300 held-out sentences of Python 3.11, after 200 steps (6 epochs), one seed; the same training from random
          weights 0.475. One minute of CPU time, on 2 cores that other work was using too. all-MiniLM-L6-v2 had 0.852 after 160
          steps at 2e-4, in five minutes.
Vary it:  objective.pieces="all"; another encoder in place of `tiny_modernbert`.
"""

import dataclasses

from flaxformer_lite.config import Config, TrainConfig, load_config
from flaxformer_lite.core.model import Pooler
from flaxformer_lite.core.objectives import TokenLabels
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.files.data import DataConfig, JSONLines
from flaxformer_lite.files.records import Entities
from flaxformer_lite.files.tokenizers import FromRun

LABELS = ("O", "B-CODE", "I-CODE")


def get_config() -> Config:
    def sentences(split: str) -> JSONLines:
        return JSONLines(path=f"code_names/{split}.jsonl", record=Entities())

    tiny = load_config("tiny_modernbert")
    return dataclasses.replace(
        tiny,
        model=dataclasses.replace(
            tiny.model,
            head=None,
            # the head of the library's ModernBERT, so that the run can be exported
            pooler=Pooler(token="each", activation="gelu", dense_bias=False, norm=True, num_classes=len(LABELS)),
        ),
        objective=TokenLabels(labels=LABELS),
        data=DataConfig(
            train=sentences("train"),
            eval=sentences("valid"),
            tokenizer=FromRun(path="runs/tiny_modernbert"),
            tokens_per_batch=16 * 96,
            rows_multiple=16,
            bucket_lengths=(48, 96),
            max_source_length=96,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(), schedule=Cosine(peak_rate=1e-3, warmup_steps=20), weight_decay=0.01
        ),
        train=TrainConfig(
            steps=200,
            log_every=50,
            eval_every=100,
            checkpoint_every=100,
            init_from="runs/tiny_modernbert",
            init_fresh=("pooler/*",),
            best_metric="f1",
        ),
    )
