"""A search over Python's help topics by vectors: all-MiniLM-L6-v2 learns which sentence is from which paragraph.

Source:   lab/recipes.md has the lines of Python that write the 1,460 pairs, the 653 documents and the 121 held-out questions.
          Weights: sentence-transformers/all-MiniLM-L6-v2 of the hub, 22.7 million parameters, 90 MB. Each batch's
          other texts are the negatives (Henderson et al. 2017, arXiv:1705.00652, section 4.4).
Command:  flaxformer-lite import hf sentence-transformers/all-MiniLM-L6-v2 runs/minilm
          python train.py configs/search_topics.py
          flaxformer-lite evaluate runs/search_topics --search topics
Expected: nDCG@10 0.486 and recall@10 0.769 on Python 3.11, after one epoch, one seed; 0.458 and 0.702 before; 0.297 by the words
          alone (BM25). Three of the questions also open another paragraph, so they are in training: the other 118 have 0.489.
          Four minutes of CPU time, on 2 cores that other work was using too.
Vary it:  `flaxformer-lite mine` adds hard negatives (docs/search.md); --objective.num-negatives reads them.
"""

import dataclasses

from flaxformer_lite.config import Config, TrainConfig, load_config
from flaxformer_lite.core.model import SentenceEmbedding
from flaxformer_lite.core.objectives import SentenceEmbeddings
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.files.data import DataConfig, JSONLines
from flaxformer_lite.files.records import Pairs
from flaxformer_lite.files.tokenizers import FromRun


def get_config() -> Config:
    return Config(
        model=dataclasses.replace(
            load_config("classify_docstrings").model, pooler=None, sentence_embedding=SentenceEmbedding(pooling="mean")
        ),
        objective=SentenceEmbeddings(directions="both"),
        data=DataConfig(
            train=JSONLines(path="topics/train.jsonl", record=Pairs(source="query", target="positive")),
            held_out=0.02,
            tokenizer=FromRun(path="runs/minilm"),
            tokens_per_batch=32 * 64,
            rows_multiple=32,
            bucket_lengths=(64,),
            max_source_length=64,
        ),
        optimizer=OptimizerConfig(
            algorithm=AdamW(), schedule=Cosine(peak_rate=1e-4, warmup_steps=5), weight_decay=0.01
        ),
        train=TrainConfig(
            steps=45, log_every=15, eval_every=45, checkpoint_every=45, init_from="runs/minilm", best_metric="accuracy"
        ),
    )
