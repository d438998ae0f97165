"""Measures the train step on a GPU or a TPU: three models in bfloat16, beside what `plan` computes ahead, and beside PyTorch.

Then the model answers the batch's sources or texts, greedily and with 4 beams, its matrices in bfloat16.

python benchmarks/gpu.py [--shape llama_1b] [--peer torch] [--rows 8] [--json FILE] [SETTING=VALUE …]
python benchmarks/gpu.py --toy --peer torch     # tiny models on a CPU, to see that all of it runs

Without --shape all models, without --rows batches for 80 GB. SETTINGs change our config: model.remat=dots, model.scan_unroll=22.
Sides take turns, each turn in a process of its own, which has the device's memory alone; its first steps are not counted.

Every row is full. Our step is the trainer's, masks included. The peer (torch_models.py with torch.compile,
scaled_dot_product_attention and fused AdamW) gets the same tokens and no masks. Both sides keep parameters and averages in float32
and compute in bfloat16, with the config's dropout, but none in attention. If JAX and PyTorch do not fit one environment,
--peer-python is the Python of another one, with torch and numpy.

  ms a step, tokens/s, …   medians over the turns; source and target tokens
  MFU                      by the formula below the table; absent where the device's peak is not known
  memory                   the most that was in use on the device, in GiB; on a CPU that of the process
  ratio                    the peer's time divided by ours, turn by turn: the median, and the least and the most
  plan                     what `plan` computes before the first step: the compiler's memory, the operations by formula
"""

import argparse
import dataclasses
import json
import math
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sides import processor, run_alone

ROWS = {"transformer_big": 512, "bert_large": 64, "llama_1b": 8}
"""Rows of a batch, by the models of scaling.py: pairs of 64 + 64 tokens, rows of 512, rows of 2,048."""
TOY_ROWS, TOY_LENGTH, TOY_VOCAB = 4, 16, 97
WARM_UP = 5
"""Steps that are not counted, among them the one that compiles."""

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    parser.add_argument("--shape", choices=ROWS)
    parser.add_argument("--peer", choices=("torch",))
    parser.add_argument("--peer-python", default=sys.executable, metavar="PATH")
    parser.add_argument("--peer-mode", default="default", help="of torch.compile, such as max-autotune-no-cudagraphs")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="steps of a turn that are counted")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="append the figures to this file, a shape a line")
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        side, folder = options.measure
        try:
            print(
                json.dumps(
                    {"plan": plan, "ours": ours, "torch": pytorch, "decode": decoding}[side](options, Path(folder))
                )
            )
        except ValueError as error:
            sys.exit(f"error: {error}")
        return
    if min(options.rounds, options.steps, 1 if options.rows is None else options.rows) < 1:
        parser.error("--rows, --rounds and --steps: at least 1")
    if not options.toy and run_alone(
        [sys.executable, "-c", "import jax; print(int(jax.default_backend() == 'cpu'))"], {}
    ):
        parser.error("JAX has no accelerator here: `flaxformer-lite doctor` says why; --toy is for CPUs")
    if options.peer:
        ready = run_alone([options.peer_python, "-c", "import torch; print(int(torch.cuda.is_available()))"], {})
        if not ready and not (options.toy and ready == 0):
            parser.error(f"--peer torch: {options.peer_python} has no PyTorch, or its PyTorch finds no GPU")
    print(processor(), flush=True)
    failed = []
    for shape in [options.shape] if options.shape else ROWS:
        try:
            compare(options, shape)
        except RuntimeError as error:
            failed.append(f"{shape}: {error}")
            print(f"{failed[-1]}\n", flush=True)
    sys.exit("\n".join(failed) or None)


def compare(options: argparse.Namespace, shape: str) -> None:
    """Lets the sides take turns with a shape, and prints its table. Raises: RuntimeError if a side fails."""
    rounds: dict[str, list[Figures]] = {side: [] for side in ("ours", options.peer) if side}
    with tempfile.TemporaryDirectory() as folder:
        # One accelerator, with nearly all of its memory for JAX; what `plan` compiles is there for the turns.
        environment = {
            "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
            "XLA_PYTHON_CLIENT_MEM_FRACTION": os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.92"),
            "JAX_COMPILATION_CACHE_DIR": folder,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        # On busy cores threads wait for each other: a step of a toy in PyTorch took 450 to 790 ms with two, 38 to 48 with one.
        environment |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"} if options.toy else {}
        words = [__file__, *options.settings, "--shape", shape, "--steps", str(options.steps), *["--toy"] * options.toy]
        words += ["--rows", str(options.rows or (TOY_ROWS if options.toy else ROWS[shape]))]
        words += ["--peer-mode", options.peer_mode]

        def ask(side: str) -> Figures:
            print(f"{shape}: {side} …", file=sys.stderr, flush=True)
            python = options.peer_python if side == options.peer else sys.executable
            found = run_alone([python, *words, "--measure", side, folder], environment)
            if found is None:
                raise RuntimeError(f"{side} failed; if memory was short: fewer --rows, or model.remat=dots")
            return found

        planned = ask("plan")
        for _ in range(options.rounds):
            for side, turns in rounds.items():
                turns.append(ask(side))
                if turns[0]["parameters"] != planned["parameters"]:
                    raise RuntimeError(
                        f"{side} has {turns[0]['parameters']:,} parameters, not {planned['parameters']:,}"
                    )
        answered = ask("decode")
    print("\n".join([*report(shape, planned, rounds), *answered["lines"]]) + "\n", flush=True)
    if options.json:
        figures = {"plan": planned, "rounds": rounds, "decode": answered}
        with open(options.json, "a", encoding="utf-8") as file:
            file.write(
                json.dumps({"shape": shape, "options": vars(options), "processor": processor(), **figures}) + "\n"
            )


def report(shape: str, planned: Figures, rounds: dict[str, list[Figures]]) -> list[str]:
    """Returns the lines of a shape's table. MFU is absent where the peak of the device is not known."""
    operations, tokens, peak = planned["weights"] + planned["attention"], planned["tokens"], planned["peak"]
    size = f"{planned['rows']} rows, {tokens:,} tokens, {planned['parameters']:,} parameters"
    lines = [f"{shape} on {planned['device']}: {size}", *planned["kernels"]]
    lines.append(f"{'':8}{'ms a step':>10}{'tokens/s':>11}{'TFLOP/s':>9}{'MFU':>8}{'memory':>9}{'loss':>8}")
    for side, turns in rounds.items():
        seconds = statistics.median(turn["seconds"] for turn in turns)
        rates = f"{seconds * 1e3:10.1f}{tokens / seconds:11,.0f}{figure(operations / seconds / 1e12):>9}"
        mfu = "–" if peak is None else f"{operations / seconds / peak:.1%}"
        lines.append(
            f"{side:8}{rates}{mfu:>8}{in_gib(turns[-1]['memory']):>9}{turns[-1]['loss']:8.3f}  {turns[-1]['version']}"
        )
    if len(rounds) == 2:
        mine, theirs = rounds.values()
        ratios = sorted(b["seconds"] / a["seconds"] for a, b in zip(mine, theirs, strict=True))
        lines.append(f"{'ratio':8}{statistics.median(ratios):10.2f}   ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    least = f": at least {operations / peak * 1e3:.1f} ms at {peak / 1e12:,.1f} TFLOP/s, as published" if peak else ""
    lines += [
        f"{'plan':8}memory {in_gib(planned['memory'])}, {figure(operations / 1e12)} TFLOP a step{least}",
        "TFLOP a step = 6 × weights × positions + 6 × layers × heads × queries × keys × (width of a key + of a value), masked",
        f"pairs included; the second term is {planned['attention'] / operations:.1%} of it. MFU = TFLOP a step / seconds / peak.",
    ]
    return lines


def in_gib(memory: int | None) -> str:
    return "–" if memory is None else figure(memory / 2**30)


def figure(x: float) -> str:
    """Returns a number with two decimals, or as a power of ten if it is one of a toy."""
    return f"{x:.2f}" if x >= 0.1 else f"{x:.1e}"


# This package ----------------------------------------------------------------------------------------------------------


def experiment(options: argparse.Namespace) -> Any:
    """Returns the config of a shape, with its batch for one device and the settings of the command line."""
    from scaling import STUDIES, with_batch

    from flaxformer_lite.config.options import apply_options

    study = dataclasses.replace(STUDIES[options.shape], rows_per_chip=options.rows)
    if options.toy:
        study = dataclasses.replace(study, length=TOY_LENGTH)
    config = with_batch(study, chips=1, scaling="weak")
    model = config.model
    rates = dataclasses.replace(model.dropout, attention_rate=0.0)
    model = dataclasses.replace(model, dtype="bfloat16", remat="none", dropout=rates)
    if options.toy:
        attention: Any = model.attention
        attention = dataclasses.replace(attention, num_kv_heads=None if attention.num_kv_heads is None else 2)
        layers = {name: min(2, getattr(model, name)) for name in ("num_encoder_layers", "num_decoder_layers")}
        model = dataclasses.replace(
            model, vocab_size=TOY_VOCAB, d_model=32, num_heads=4, d_ff=64, attention=attention, **layers
        )
    objective: Any = config.objective
    if hasattr(objective, "mask_token"):
        config = dataclasses.replace(config, objective=dataclasses.replace(objective, mask_token=model.vocab_size - 1))
    words = [word for setting in options.settings for word in f"--{setting}".split("=", 1)]
    return apply_options(dataclasses.replace(config, model=model), words)


def random_data(config: Any) -> Any:
    """Returns a data set with one batch: random tokens, which with the special ones fill its rows."""
    import numpy as np

    from flaxformer_lite.core.data.dataset import Dataset
    from flaxformer_lite.core.data.records import TokenPair

    rng, most, rows = np.random.default_rng(0), config.model.vocab_size - 1, config.data.rows_multiple
    pairs = config.model.num_encoder_layers > 0 and config.model.num_decoder_layers > 0
    # A pair's sides end with EOS, an encoder's text is between BOS and EOS; a decoder reads all but the last of BOS, text, EOS.
    special = 2 if config.model.num_decoder_layers == 0 else 1
    length = config.data.lengths[0] - special
    sides = ((length if pairs else 0), length)
    return Dataset.training(
        [TokenPair(*(rng.integers(4, most, n) for n in sides)) for _ in range(rows)], config.objective, config.data, 0
    )


def one_device() -> Any:
    """Returns the mesh of the first device."""
    import jax

    from flaxformer_lite.core.parallel import make_mesh

    return make_mesh(devices=jax.devices()[:1])


def plan(options: argparse.Namespace, folder: Path) -> Figures:
    """Compiles the step as `plan` does, and writes what the peer reads: the config, and the batch."""
    import numpy as np

    from flaxformer_lite.config import to_json
    from flaxformer_lite.core.base.accelerators import peak_flops
    from flaxformer_lite.core.model.kernels import report_choices
    from flaxformer_lite.tools.planning.plan import compile_step, plan_bucket, planned_step

    mesh, config, kernels = one_device(), experiment(options), []
    step = planned_step(config, mesh, plan_bucket(config))
    with report_choices(kernels.append):
        compiled, refusal = compile_step(step)
    if compiled is None:
        sys.exit(refusal)
    batch = random_data(config).batch(0)
    inputs = batch.inputs
    tokens = {"source": inputs.source_tokens, "shifted": inputs.target_tokens}
    arrays = {name: x for name, x in (tokens | {"predicted": inputs.predict_positions}).items() if x is not None}
    np.savez(folder / "batch.npz", targets=np.where(batch.weights > 0, batch.targets, -1), **arrays)
    (folder / "config.json").write_text(to_json(config))
    kind = mesh.devices.flat[0].device_kind
    return {
        "device": kind,
        "peak": peak_flops(kind),
        "kernels": kernels,
        "rows": len(batch.targets),
        "tokens": sum(x.size for x in tokens.values() if x is not None),
        "parameters": number_of(step.parts["parameters"]),
        "memory": compiled.needed_bytes,
        **step.operations._asdict(),
    }


def ours(options: argparse.Namespace, folder: Path) -> Figures:
    """Measures the train step as the trainer compiles it."""
    import jax

    from flaxformer_lite.core.runners import MeshRunner
    from flaxformer_lite.training import train_task
    from flaxformer_lite.training.throughput import Throughput

    mesh, config = one_device(), experiment(options)
    data = random_data(config)
    batch, task = data.batch(0), train_task(config)
    runner = MeshRunner(task, mesh)
    state = runner.init()
    throughput = Throughput(config, state.params, data.plan, mesh.devices)

    def steps(number: int) -> float:
        nonlocal state
        for _ in range(number):
            state, measured = runner.train_step(state, runner.shard_batch(batch))
        jax.block_until_ready(state)
        return float(measured["loss"])

    figures = timed(options, steps) | {"memory": throughput.peak_memory(), "version": f"jax {jax.__version__}"}
    return figures | {"parameters": number_of(state.params)}


def decoding(options: argparse.Namespace, folder: Path) -> Figures:
    """Measures answers of `options.steps` tokens by random parameters: tokens a second, and the memory that the device needed."""
    import jax
    import numpy as np

    from flaxformer_lite.core.model import Transformer
    from flaxformer_lite.core.model.inputs import example_inputs
    from flaxformer_lite.core.model.layers import round_kernels
    from flaxformer_lite.core.search import DecodeConfig
    from flaxformer_lite.core.search.decoder import Decoder

    model = Transformer(experiment(options).model.for_use)
    if model.config.num_decoder_layers == 0:
        return {"lines": []}
    init = jax.jit(
        lambda: round_kernels(model.init(jax.random.key(0), example_inputs(model.config))["params"], "bfloat16")
    )
    params, rows, rng = init(), options.rows, np.random.default_rng(0)
    sources = rng.integers(4, model.config.vocab_size, (rows, 8 if options.toy else 64)).tolist()
    of_parameters, lines = sum(x.nbytes for x in jax.tree.leaves(params)), []
    for beams in (1, 4):
        settings = DecodeConfig(
            beam_size=beams, eos_ids=(), max_new_tokens=options.steps, max_length_ratio=0, batch_tokens=rows * 4096
        )
        decoder, seconds = Decoder(model, settings), []
        weights = decoder.lay_out({"params": params})
        for _ in range(1 + options.rounds):
            started = time.perf_counter()
            decoder.generate(weights, sources)
            seconds.append(time.perf_counter() - started)
        peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        rate = rows * options.steps / statistics.median(seconds[1:])
        memory = f"memory {in_gib(peak)}, parameters {in_gib(of_parameters)}"
        lines.append(f"{'decode':8}{rows} rows, {beams} beams: {rate:,.0f} tokens/s, {memory}")
    return {"lines": lines}


def number_of(parameters: Any) -> int:
    """Returns the number of parameters."""
    import jax

    return sum(x.size for x in jax.tree.leaves(parameters))


def timed(options: argparse.Namespace, steps: Callable[[int], float]) -> Figures:
    """Returns the seconds of a step, and the loss after the last one. `steps` waits until the device is done."""
    steps(WARM_UP)
    started = time.perf_counter()
    loss = steps(options.steps)
    seconds = (time.perf_counter() - started) / options.steps
    if not math.isfinite(loss):
        sys.exit(f"the loss is {loss} after {WARM_UP + options.steps} steps")
    return {"seconds": seconds, "loss": loss}


# PyTorch ---------------------------------------------------------------------------------------------------------------


def pytorch(options: argparse.Namespace, folder: Path) -> Figures:
    """Measures the same model in PyTorch, compiled. Imports nothing of this package."""
    import numpy as np
    import torch
    from torch_models import Transformer

    device = "cpu" if options.toy else "cuda"
    torch.manual_seed(0)
    config = json.loads((folder / "config.json").read_text())
    arrays = {
        name: torch.from_numpy(x.astype(np.int64)).to(device) for name, x in np.load(folder / "batch.npz").items()
    }
    length = max(x.shape[1] for x in arrays.values())
    with torch.device(device):
        model = Transformer(config["model"], length, config["objective"].get("label_smoothing", 0.0))
    optimizer, algorithm = config["optimizer"], config["optimizer"]["algorithm"]
    adam = torch.optim.AdamW(
        model.parameters(),
        lr=1e-4,
        betas=(algorithm["b1"], algorithm["b2"]),
        eps=algorithm["eps"],
        weight_decay=optimizer["weight_decay"],
        fused=True,
    )

    def loss_of(batch: dict[str, Any]) -> Any:
        """As ours: parameters in float32, which are rounded to bfloat16 at the start of a step."""
        weights = {name: x.to(torch.bfloat16) for name, x in model.named_parameters()}
        return torch.func.functional_call(model, weights, kwargs=batch)

    how = {"backend": "aot_eager"} if options.toy else {"mode": options.peer_mode}
    compiled = torch.compile(loss_of, fullgraph=True, **how)

    def steps(number: int) -> float:
        for _ in range(number):
            adam.zero_grad(set_to_none=True)
            loss = compiled(arrays)
            loss.backward()
            if optimizer["clip_norm"] is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), optimizer["clip_norm"])
            adam.step()
        if not options.toy:
            torch.cuda.synchronize()
        return float(loss.detach())

    figures = timed(options, steps)
    memory = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if options.toy else torch.cuda.max_memory_allocated()
    )
    parameters = sum(x.numel() for x in model.parameters())
    return figures | {"memory": memory, "version": f"torch {torch.__version__}", "parameters": parameters}


if __name__ == "__main__":
    main()
