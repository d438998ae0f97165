"""The whole way through the core, in a minute on a quiet CPU: token ids → Dataset → train_step → Decoder.

A model learns to reverse sequences. Nothing here reads a file: `train.py` adds data, checkpoints, evaluation, devices, messages.
"""

import functools

import jax
import numpy as np

from flaxformer_lite.core.data import BatchShapes, TokenPair
from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.model import ModelConfig, Transformer
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.core.optim import AdamW, Cosine, OptimizerConfig
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.step import TrainTask, train_step
from flaxformer_lite.core.text.special_ids import EOS, SPECIALS

STEPS = 600
VOCAB_SIZE = 12

# 1. Records: pairs of source and target ids, without special ids. The first four ids are PAD, UNK, BOS and EOS.
rng = np.random.default_rng(0)
sources = [rng.integers(len(SPECIALS), VOCAB_SIZE, rng.integers(2, 7)) for _ in range(4096)]
records = [TokenPair(source, source[::-1]) for source in sources]

# 2. Batches: batch s is a function of the seed and s. The objective makes its rows, with BOS, EOS, padding and masks.
objective = Seq2Seq()
shapes = BatchShapes(bucket_lengths=(8,), max_source_length=8, max_target_length=8, tokens_per_batch=512)
dataset = Dataset.training(records, objective, shapes, seed=0)

# 3. A train step: model, loss, gradient and optimizer are one pure function of the task, the state and the batch.
config = ModelConfig(
    vocab_size=VOCAB_SIZE, d_model=64, num_heads=4, d_ff=128, num_encoder_layers=1, num_decoder_layers=1
)
optimizer = OptimizerConfig(algorithm=AdamW(), schedule=Cosine(peak_rate=5e-3, warmup_steps=40))
task = TrainTask(
    model=Transformer(config),
    objective=objective,
    optimizer=optimizer.build(total_steps=STEPS, d_model=config.d_model),
    seed=0,
)
state = jax.jit(task.initialize)()
step = jax.jit(functools.partial(train_step, task), donate_argnums=0)
for number in range(STEPS):
    state, measured = step(state, dataset.batch(number))
    if (number + 1) % 100 == 0:
        print(f"step {number + 1}: loss {measured['loss']:.3f}")

# 4. Answers: the decoder takes ids with EOS, and returns the ids of the best answers with their scores.
decoder = Decoder(task.model, DecodeConfig(beam_size=4))
asked = [[5, 6, 7], [11, 10, 4, 8], [9, 9, 5, 4, 10, 6]]
answers = decoder.generate({"params": state.params}, [[*source, EOS] for source in asked])
for source, (best, *_) in zip(asked, answers, strict=True):
    print(source, "→", best.tokens, f"(score {best.score:.2f})")
