"""Runs of untrained models that rank texts: by vectors of their letters, or by a number for a pair; and a folder to search."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from flaxformer_lite.core.model import DropoutRates, ModelConfig, Pooler, SentenceEmbedding
from flaxformer_lite.core.objectives import BaseObjective, Regression, SentenceEmbeddings
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.run import write_run
from flaxformer_lite.workdir import RunFolder, abstract_saved_params
from tests.support.experiments import tiny_config

LETTERS = "abcdefghijklmnopqrstuvwxyz "
WORDS = ("apple", "brick", "cloud", "dune", "east", "frost", "grape", "hill", "ink", "jewel", "kite")
CORPUS = {f"d{number}": f"{a} {b}" for number, (a, b) in enumerate(zip(WORDS, WORDS[3:], strict=False))}
QUERIES = {"q1": CORPUS["d4"], "q2": CORPUS["d0"], "never": "judged"}
JUDGEMENTS = {("q1", "d4"): 2, ("q1", "d3"): 1, ("q2", "d0"): 1, ("q2", "d7"): 0}


def write_search_run(folder: Path, *, reranks: bool, objective: BaseObjective | None = None) -> Path:
    """Writes a run that embeds texts, or one that scores pairs; objective: another one than the usual."""
    model = ModelConfig(
        vocab_size=31, d_model=12, num_heads=3, d_ff=17, num_encoder_layers=1, num_decoder_layers=0, num_token_types=2,
        pooler=Pooler(num_classes=1) if reranks else None, sentence_embedding=None if reranks else SentenceEmbedding(),
        dropout=DropoutRates(),
    )  # fmt: skip
    base = tiny_config()
    data = replace(base.data, train=None, eval=None, max_source_length=64)
    train = replace(base.train, text_metrics=())
    objective = objective or (Regression() if reranks else SentenceEmbeddings())
    config = replace(base, model=model, data=data, train=train, weights="last", objective=objective)
    rng = np.random.default_rng(4)
    params = jax.tree.map(lambda x: np.float32(0.5 * rng.normal(size=x.shape)), abstract_saved_params(config))
    tokenizer = CharacterTokenizer(LETTERS)
    write_run(RunFolder(folder), config, 0, params, "a test", tokenizers=Tokenizers(tokenizer, tokenizer))
    return folder


def write_search_folder(folder: Path) -> Path:
    """Writes a folder in BEIR's layout, whose documents have their first word as a title."""
    (folder / "qrels").mkdir(parents=True)
    titled = {id_: text.split() for id_, text in CORPUS.items()}
    documents = [{"_id": id_, "title": title, "text": text} for id_, (title, text) in titled.items()]
    queries = [{"_id": id_, "text": text} for id_, text in QUERIES.items()]
    rows = ["query-id\tcorpus-id\tscore", *(f"{q}\t{d}\t{score}" for (q, d), score in JUDGEMENTS.items())]
    (folder / "corpus.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in documents))
    (folder / "queries.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in queries))
    (folder / "qrels/test.tsv").write_text("".join(f"{row}\n" for row in rows))
    return folder
