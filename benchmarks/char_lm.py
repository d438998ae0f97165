"""Trains `configs/char_lm.py` and a plain PyTorch GPT of the same shape for the same CPU time on the same text, and compares them.

python benchmarks/char_lm.py [--cpu-minutes 3] [--seeds 1] [--peer-rates 1e-3 3e-3] [--json FILE]

Needs torch, which is no dependency of this package. The peer has what nanoGPT's character model for a CPU has: learned positions,
norms before the sublayers, no biases, exact GELU, the output tied to the embedding, initial deviation 0.02, AdamW (0.9, 0.99) with
decay 0.1 on matrices, gradients clipped at 1, 100 steps of warm-up and a cosine to a tenth of the peak rate, 12 random windows of
64 characters a step; compiled, with fused attention and fused AdamW. Its own peak rate is 1e-3; others are tried for it too.

Each side first measures its step, and then takes as many steps as fit into the minutes of CPU time, on one core with one thread.
Compiling is not counted on either side. Both are evaluated on the same rows of the held-out text, every character once, in rows
of 64.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sides import processor, run_alone, settle

TIMED_STEPS = 100
WARM_UP_STEPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu-minutes", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--peer-rates", type=float, nargs="*", default=[1e-3, 3e-3])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train_side(options)
        return
    settle(threads=1)
    print(processor(), flush=True)
    rows = []
    for seed in range(options.seeds):
        for side in ["ours", *(f"torch {rate:g}" for rate in options.peer_rates)]:
            words = [sys.executable, __file__, "--train", side, "--seed", str(seed)]
            figures = run_alone([*words, "--cpu-minutes", str(options.cpu_minutes)], {})
            if figures is None:
                sys.exit(f"{side} failed")
            rows.append({"side": side, "seed": seed, **figures})
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"options": vars(options), "processor": processor(), "rows": rows}, file, indent=1)


def train_side(options: argparse.Namespace) -> None:
    """Trains one side, and prints what it reached."""
    config, data = experiment(options.seed)
    side = ours if options.train == "ours" else pytorch
    rate = config.optimizer.schedule.peak_rate if side is ours else float(options.train.split()[1])
    print(json.dumps({"peak_rate": rate, **side(config, data, rate, options)}), flush=True)


def experiment(seed: int) -> tuple[Any, Any]:
    """Returns the shipped config with this seed, and its data."""
    from flaxformer_lite.config import load_config
    from flaxformer_lite.core.data.token_arrays import TokenArrays
    from flaxformer_lite.core.text import Tokenizers
    from flaxformer_lite.files.data.reading import tokenize
    from flaxformer_lite.training.data import make_datasets

    config = load_config("char_lm")
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, seed=seed))
    pairs = config.data.train.open("data.train")
    tokenizer = config.data.tokenizer.train([pair.target for pair in pairs], config.model.vocab_size)
    tokenizers = Tokenizers(tokenizer, tokenizer)
    return config, make_datasets(config, TokenArrays.of(tokenize(pairs, tokenizers)), tokenizers, warns=True)


def timed(step: Callable[[int], Any], steps: int) -> tuple[float, float]:
    """Returns the CPU and the wall seconds of this many steps."""
    cpu, wall = time.process_time(), time.perf_counter()
    for i in range(steps):
        step(i)
    return time.process_time() - cpu, time.perf_counter() - wall


def steps_that_fit(step: Callable[[int], Any], minutes: float) -> int:
    """Returns how many steps take these minutes of CPU time, at least two warm-ups of them."""
    timed(step, WARM_UP_STEPS)
    return max(200, round(60 * minutes * TIMED_STEPS / timed(step, TIMED_STEPS)[0]))


def ours(config: Any, data: Any, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """The trainer's own step, on its own batches."""
    import jax

    from flaxformer_lite.core.parallel import make_mesh
    from flaxformer_lite.core.runners import MeshRunner
    from flaxformer_lite.training import train_task
    from flaxformer_lite.training.ahead import batches_ahead
    from flaxformer_lite.training.evaluation import mean_metrics

    def trainer(steps: int) -> tuple[Any, Any, Callable[[int], None]]:
        train = dataclasses.replace(config.train, steps=steps)
        of_steps = dataclasses.replace(config, train=train)
        runner = MeshRunner(train_task(of_steps), make_mesh())
        batches = batches_ahead(data.train, 0, steps)
        held = {"state": runner.init()}

        def step(_: int) -> None:
            held["state"], measured = runner.train_step(held["state"], runner.shard_batch(next(batches)))
            float(measured["loss"])

        return runner, held, step

    _, _, trial = trainer(WARM_UP_STEPS + TIMED_STEPS)
    steps = steps_that_fit(trial, options.cpu_minutes)
    runner, held, step = trainer(steps)
    runner.train_step(runner.init(), runner.shard_batch(data.train.batch(0)))  # compiles
    cpu, wall = timed(step, steps)
    metrics = mean_metrics(runner, config.objective, held["state"].params, [data.eval.dataset], (), lambda *_: None)
    parameters = sum(x.size for x in jax.tree.leaves(held["state"].params))
    return {"steps": steps, "cpu_s": cpu, "wall_s": wall, "loss": metrics["loss"], "parameters": parameters}


def pytorch(config: Any, data: Any, rate: float, options: argparse.Namespace) -> dict[str, Any]:
    """A plain GPT, compiled, on random windows of the same characters."""
    import torch
    from torch import nn
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    model = config.model
    width, heads, length, rows = model.d_model, model.num_heads, config.data.max_target_length, 12

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width, bias=False) for _ in range(2))
            self.project, self.mix = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.widen, self.narrow = (
                nn.Linear(width, model.d_ff, bias=False),
                nn.Linear(model.d_ff, width, bias=False),
            )

        def forward(self, x: Any) -> Any:
            query, key, value = (
                y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in self.project(self.norms[0](x)).chunk(3, -1)
            )
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.mix(mixed.transpose(1, 2).flatten(2))
            return x + self.narrow(functional.gelu(self.widen(self.norms[1](x))))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.characters, self.places = nn.Embedding(model.vocab_size, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(model.num_decoder_layers))
            self.norm = nn.LayerNorm(width, bias=False)

        def start_anew(self) -> None:
            for name, matrix in self.named_parameters():
                if matrix.ndim == 2:
                    residual = name.endswith(("mix.weight", "narrow.weight"))
                    nn.init.normal_(matrix, std=0.02 / (2 * len(self.blocks)) ** 0.5 if residual else 0.02)
                else:
                    nn.init.ones_(matrix)

        def forward(self, tokens: Any, targets: Any) -> Any:
            x = self.characters(tokens) + self.places.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.characters.weight)
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")

    ends = data.train.special.eos
    stream = np.concatenate([[*record.target, ends] for record in data.records]).astype(np.int64)
    windows = torch.from_numpy(np.lib.stride_tricks.sliding_window_view(stream, length + 1).copy())

    gpt = GPT()
    loss_of = torch.compile(gpt)

    def trainer(steps: int) -> Callable[[int], None]:
        gpt.start_anew()
        matrices = [p for p in gpt.parameters() if p.ndim == 2]
        vectors = [p for p in gpt.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        adam = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), fused=True)

        def step(i: int) -> None:
            decay = 0.55 + 0.45 * np.cos(np.pi * min(1.0, max(0, i - 100) / max(1, steps - 100)))
            for group in adam.param_groups:
                group["lr"] = rate * min((i + 1) / 100, decay)
            chosen = windows[torch.randint(len(windows), (rows,))]
            loss = loss_of(chosen[:, :-1], chosen[:, 1:]).mean()
            adam.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
            adam.step()
            loss.item()

        return step

    steps = steps_that_fit(trainer(1), options.cpu_minutes)
    step = trainer(steps)
    cpu, wall = timed(step, steps)
    total, count = 0.0, 0.0
    with torch.no_grad():
        for i in range(data.eval.dataset.plan.batches_per_epoch):
            batch = data.eval.dataset.batch(i)
            tokens, targets = (
                torch.from_numpy(x.astype(np.int64)) for x in (batch.inputs.target_tokens, batch.targets)
            )
            losses = gpt(tokens, targets).double().numpy() * batch.weights.ravel()
            total, count = total + losses.sum(), count + batch.weights.sum()
    parameters = sum(p.numel() for p in gpt.parameters())
    return {"steps": steps, "cpu_s": cpu, "wall_s": wall, "loss": total / count, "parameters": parameters}


if __name__ == "__main__":
    main()
