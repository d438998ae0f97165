"""CPU microseconds of one thread for a row of a batch, by config: random documents, the config's own objective and lengths.

python benchmarks/rows.py [--configs bert_base …] [--batches 8]

The least of all batches is printed, and a digest of all their bits: a change of the code that makes rows must keep it. A host feeds
its devices by one such thread, so a step of R rows on it needs at least R times as long.
"""

import argparse
import hashlib
import time
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from sides import processor

from flaxformer_lite.config import Config, load_config
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import TokenPair
from flaxformer_lite.core.text import SpecialIds

CONFIGS = ("bert_base", "t5_1_1_base", "gpt2_small", "transformer_base_wmt14")


def dataset(config: Config, documents: int = 3000) -> Dataset[Any]:
    """Returns batches of random tokens: pairs of sentences for translation, else documents of 400 tokens at the median."""
    draw, ids = np.random.default_rng(0), config.objective.num_tokenizer_ids(config.model.vocab_size)
    median = 25 if config.objective.translates else 400

    def text() -> Any:
        return draw.integers(4, ids, int(np.clip(draw.lognormal(np.log(median), 1), 4, 20_000))).astype(np.int32)

    nothing = np.zeros(0, np.int32)
    records = [TokenPair(text() if config.objective.translates else nothing, text()) for _ in range(documents)]
    tokenizer: Any = SimpleNamespace(special=SpecialIds(size=ids), vocab_size=ids, as_source=lambda ids: [*ids, 3])
    return Dataset.training(records, config.objective, config.data, 0, tokenizer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=CONFIGS)
    parser.add_argument("--batches", type=int, default=8)
    options = parser.parse_args()
    print(processor(), flush=True)
    for name in options.configs:
        data, digest, least = dataset(load_config(name)), hashlib.sha256(), float("inf")
        for step in range(options.batches):
            start = time.thread_time()
            batch = data.batch(step)
            rows = jax.tree.leaves(batch)[0].shape[0]
            least = min(least, (time.thread_time() - start) / rows)
            for leaf in jax.tree.leaves(batch):
                digest.update(leaf.tobytes())
        print(f"{name:<24}{least * 1e6:>7.0f} us a row   {digest.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
