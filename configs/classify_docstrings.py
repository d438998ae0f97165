"""A classifier from an imported encoder: all-MiniLM-L6-v2 names the package of Python's library that a docstring is from.

Source:   lab/recipes.md has the lines of Python that write the examples, 40 docstrings of each of 8 packages, and 50 held out.
          Weights: sentence-transformers/all-MiniLM-L6-v2 of the hub, 22.7 million parameters, 90 MB.
Command:  flaxformer-lite import hf sentence-transformers/all-MiniLM-L6-v2 runs/minilm
          python train.py configs/classify_docstrings.py
Expected: accuracy 0.798, macro-F1 0.799 on 400 held-out docstrings of Python 3.11, after 120 steps (6 epochs), one seed; the same
          training from random weights: 0.385. Two minutes of CPU time, on 2 cores that other work was using too; 1.5 GiB.
Vary it:  --train.trainable "pooler/*" trains the head alone.
"""

import dataclasses

from flaxformer_lite.config import Config, TrainConfig, load_config
from flaxformer_lite.core.model import Pooler
from flaxformer_lite.core.objectives import Classification
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.files.data import TSV, DataConfig
from flaxformer_lite.files.records import Classes
from flaxformer_lite.files.tokenizers import FromRun

PACKAGES = ("asyncio", "email", "importlib", "logging", "multiprocessing", "tkinter", "unittest", "xml")


def get_config() -> Config:
    def examples(split: str) -> TSV:
        return TSV(path=f"docstrings/{split}.tsv", record=Classes(text=0, label=1))

    return Config(
        model=dataclasses.replace(
            load_config("bert_base").model,  # in the size of all-MiniLM-L6-v2
            d_model=384,
            d_ff=1536,
            num_encoder_layers=6,
            scan_unroll=6,
            head=None,
            pooler=Pooler(num_classes=len(PACKAGES)),
            dtype="float32",
        ),
        objective=Classification(classes=PACKAGES),
        data=DataConfig(
            train=examples("train"),
            eval=examples("valid"),
            tokenizer=FromRun(path="runs/minilm"),
            tokens_per_batch=16 * 32,
            rows_multiple=16,
            bucket_lengths=(32,),
            max_source_length=32,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(), schedule=Cosine(peak_rate=3e-4, warmup_steps=10), weight_decay=0.01
        ),
        train=TrainConfig(
            steps=120,
            log_every=40,
            eval_every=120,
            checkpoint_every=120,
            init_from="runs/minilm",
            init_fresh=("pooler/classes/*",),
            best_metric="accuracy",
        ),
    )
