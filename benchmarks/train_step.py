"""Compares a train step on the CPU with PyTorch's: the same model, the same batch, dropout on, Adam, label smoothing.

python benchmarks/train_step.py --shape tiny [--peer torch torch-compile] [--threads 1] [--rounds 7] [--steps 5] [--json FILE]

Needs torch, and transformers for `--peer hf`; neither is a dependency of this package. `torch` is eager, and `-bf16` is autocast.
All sides run in one process and take turns of `--steps` steps; the first steps and the first round are not counted. With `--alone`
one side has the process for itself. Every row of the batch is full, so neither side pays for padding; PyTorch gets no padding mask.
If the rounds of a peer differ by more than 10 % there is no ratio to it, and the exit status is 1. The columns:

  user s, system s, wall s   of one step, the median over the rounds; CPU: user and system
  ratio                      the side's divided by ours, round by round: the median, and the least and the most

With `--peak` it also prints which part of the machine's float32 matrix product the step reaches (operations by training/flops.py).
"""

import argparse
import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from sides import SHAPES, VOCAB_SIZE, Ratio, Times, processor, ratio, refusal, settle, take_turns

CONFIG = "multi30k_en_de"
"""The config of this package that has everything but the sizes."""
ROWS, LENGTH = 128, 32
"""Rows of a batch, and the tokens of each on either side."""
PEERS = ("torch", "torch-compile", "torch-bf16", "torch-compile-bf16", "hf")
WARM_UP = 3
"""Steps that are not counted, among them the one that compiles."""

CLOCKS = ("cpu", "wall")

Step = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--peer", choices=PEERS, nargs="*", default=["torch", "torch-compile"])
    parser.add_argument(
        "--alone", choices=("ours", *PEERS), metavar="SIDE", help="one side, with no other in its process"
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="model.dtype of our side")
    parser.add_argument("--matmul-dtype", choices=("bfloat16",), help="model.matmul_dtype of our side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--peak", action="store_true", help="compare with the machine's matrix product")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    settle(options.threads)
    sys.exit(0 if compare(options) else 1)


def compare(options: argparse.Namespace) -> bool:
    """Lets the sides take turns, and prints the table; returns whether every peer has a ratio."""
    print(processor(), flush=True)
    sides = [options.alone] if options.alone else ["ours", *options.peer]
    calls = {side: functools.partial(several, warm(side, options), options.steps) for side in sides}
    turns = take_turns(calls, options.rounds)
    rounds = {side: [times.per(options.steps) for times in of_side] for side, of_side in turns.items()}
    refusals = {side: refusal(side, [times.cpu for times in rounds[side]]) for side in sides[1:]}
    ratios = {side: ratios_of(rounds["ours"], rounds[side]) for side, why in refusals.items() if not why}
    print("\n".join([*report(options, rounds, ratios), *filter(None, refusals.values())]))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"options": vars(options), "processor": processor(), "rounds": rounds, "ratios": ratios}, file)
    return len(ratios) == len(refusals)


def warm(side: str, options: argparse.Namespace) -> Step:
    """Makes a side, takes its first steps, and returns its step."""
    step, words = {"ours": ours, "hf": hugging_face}.get(side, pytorch)(side, options)
    several(step, WARM_UP - 1)
    print(f"{side}: {words}; loss {step():.3f}", flush=True)
    return step


def several(step: Step, number: int) -> None:
    for _ in range(number):
        step()


def ratios_of(ours: list[Times], theirs: list[Times]) -> dict[str, Ratio]:
    """Returns the ratios by both clocks."""
    return {clock: ratio([getattr(t, clock) for t in ours], [getattr(t, clock) for t in theirs]) for clock in CLOCKS}


def report(
    options: argparse.Namespace, rounds: dict[str, list[Times]], ratios: dict[str, dict[str, Ratio]]
) -> list[str]:
    """Returns the lines of the table: medians of the rounds, and the ratios that they allow."""
    sizes = f"{ROWS} rows of {LENGTH} + {LENGTH} tokens, {options.threads} thread(s)"
    lines = [f"{options.shape}: {sizes}; ours: dtype {options.dtype}, matmul_dtype {options.matmul_dtype}"]
    lines.append(f"{'':20}{'user s':>9}{'system s':>9}{'wall s':>9}{'ratio by CPU':>22}{'by wall':>22}")
    for side, times in rounds.items():
        medians = "".join(f"{statistics.median(column):9.3f}" for column in zip(*times, strict=True))
        lines.append(
            f"{side:20}{medians}" + "".join(f"{ratios[side][clock]!s:>22}" for clock in CLOCKS if side in ratios)
        )
    return lines


# This package ----------------------------------------------------------------------------------------------------------


def experiment(shape: str, **settings: Any) -> Any:
    """Returns the shipped config with a model of another size, and with these settings of the model."""
    from flaxformer_lite.config import load_config

    config, sizes = load_config(CONFIG), SHAPES[shape]
    model = dataclasses.replace(
        config.model,
        vocab_size=VOCAB_SIZE,
        num_encoder_layers=sizes.layers,
        num_decoder_layers=sizes.layers,
        scan_unroll=sizes.layers,
        d_model=sizes.d_model,
        d_ff=sizes.d_ff,
        num_heads=sizes.num_heads,
        **settings,
    )
    return dataclasses.replace(config, model=model)


def random_tokens(vocab_size: int) -> tuple[Any, Any]:
    """Returns sources and targets, full rows of them."""
    import numpy as np

    rng = np.random.default_rng(0)
    return tuple(rng.integers(4, vocab_size, (ROWS, LENGTH), dtype=np.int32) for _ in range(2))  # type: ignore[return-value]


def ours(side: str, options: argparse.Namespace) -> tuple[Step, str]:
    """The train step as the trainer compiles it."""
    import jax
    import numpy as np

    from flaxformer_lite.core.model import Inputs
    from flaxformer_lite.core.objectives import Batch
    from flaxformer_lite.core.parallel import make_mesh
    from flaxformer_lite.core.runners import MeshRunner
    from flaxformer_lite.training import train_task
    from flaxformer_lite.training.throughput import training_flops

    config = experiment(options.shape, dtype=options.dtype, matmul_dtype=options.matmul_dtype)
    source, target = random_tokens(config.model.vocab_size)
    shifted, all_tokens = np.roll(target, 1, 1), np.ones(source.shape, bool)
    inputs = Inputs(source_tokens=source, source_mask=all_tokens, target_tokens=shifted, target_mask=all_tokens)
    batch = Batch(inputs, target, np.ones(target.shape, np.float32))
    runner = MeshRunner(train_task(config), make_mesh())
    state = runner.init()
    words = f"jax {jax.__version__}, {sum(x.size for x in jax.tree.leaves(state.params)):,} parameters"
    if options.peak:
        operations = sum(training_flops(config.model, state.params, batch))
        words += f", {operations / 1e9:.1f} GFLOP a step, matrix product {matrix_peak() / 1e9:.1f} GFLOP/s"

    def step() -> float:
        nonlocal state
        state, measured = runner.train_step(state, runner.shard_batch(batch))
        return float(measured["loss"])

    return step, words


def matrix_peak(size: int = 2048) -> float:
    """Returns the operations a second of the best of ten products of float32 matrices."""
    import jax
    import jax.numpy as jnp

    product, x = jax.jit(jnp.matmul), jnp.ones((size, size))
    product(x, x).block_until_ready()
    times = []
    for _ in range(10):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


# PyTorch ---------------------------------------------------------------------------------------------------------------


def pytorch(side: str, options: argparse.Namespace) -> tuple[Step, str]:
    """The Transformer of torch_models.py in the same shape, with fused Adam."""
    import torch
    from torch_models import Transformer

    from flaxformer_lite.config import to_json

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    settings = json.loads(to_json(experiment(options.shape)))["model"]
    translator = Transformer(settings, LENGTH, label_smoothing=0.1)
    compiled = torch.compile(translator) if "compile" in side else translator
    half = side.endswith("bf16")

    def loss_of(source: Any, shifted: Any, target: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return compiled(target, source, shifted)

    return torch_step(translator, loss_of, settings["vocab_size"])


def torch_step(model: Any, loss_of: Callable[..., Any], vocab_size: int) -> tuple[Step, str]:
    """Returns a step with fused Adam, and the side in words."""
    import numpy as np
    import torch

    source, target = random_tokens(vocab_size)
    arrays = [torch.from_numpy(x.astype(np.int64)) for x in (source, np.roll(target, 1, 1), target)]
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step() -> float:
        adam.zero_grad(set_to_none=True)
        loss = loss_of(*arrays)
        loss.backward()
        adam.step()
        return float(loss.detach())

    return step, f"torch {torch.__version__}, {sum(p.numel() for p in model.parameters()):,} parameters"


def hugging_face(side: str, options: argparse.Namespace) -> tuple[Step, str]:
    """MarianMT of the same shape; its norms come after the sublayers."""
    import torch
    from torch.nn import functional
    from transformers import MarianConfig, MarianMTModel  # type: ignore[import-not-found]

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = experiment(options.shape).model
    sizes = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"attention_heads": model.num_heads, "ffn_dim": model.d_ff}.items()
    }
    config = MarianConfig(
        vocab_size=model.vocab_size,
        d_model=model.d_model,
        encoder_layers=model.num_encoder_layers,
        decoder_layers=model.num_decoder_layers,
        dropout=model.dropout.residual_rate,
        activation_function="relu",
        pad_token_id=0,
        decoder_start_token_id=0,
        scale_embedding=True,
        tie_word_embeddings=True,
        **sizes,
    )
    translator = MarianMTModel(config).train()

    def loss_of(source: Any, shifted: Any, target: Any) -> Any:
        logits = translator(input_ids=source, decoder_input_ids=shifted, use_cache=False).logits
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.1)

    return torch_step(translator, loss_of, model.vocab_size)


if __name__ == "__main__":
    main()
