"""Growth of the data path: seconds and memory until the first batch, by the size of the corpus.

python benchmarks/data_growth.py --folder /tmp/growth --records 2000 200000 1000000 [--objective masked_lm] [--batches 300]

Generates corpora of made-up words with the frequencies of a natural text (a pair has two lines of 125 characters on average,
a document is one line) and trains one tokenizer on 50,000 of them. For each size, in a process of its own:

  library    the tokenizer library alone on all cores, on 50,000 records, scaled to the size
  first      the first start: everything is tokenized into the store
  second     the second start: the store is there
  tokens/s   of `--batches` batches after it, made ahead in a thread as in training: tokens that a model reads a second

Seconds are CPU / wall; those of the first start include its worker processes. Memory is the process's largest resident set at the
second start, after the batches, mapped files included; `own` is the part without them, which the kernel cannot drop.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from sides import processor

SAMPLE = 50_000
"""Records on which the tokenizer is trained, and the library alone is timed."""
OBJECTIVES = ("seq2seq", "causal_lm", "masked_lm", "span_corruption")
SUBWORDS, IDS = 16_000, 16_128
"""Ids of the tokenizer, and of the model, with room for sentinels and the mask."""
SYLLABLES = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er", "ist", "ung")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--records", type=int, nargs="+", default=[2_000, 200_000, 1_000_000])
    parser.add_argument(
        "--objective", choices=OBJECTIVES, default="seq2seq", help="all but seq2seq read lines, not pairs"
    )
    parser.add_argument("--length", type=int, default=256, help="positions of a row at most, on each side")
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.measure:
        print(json.dumps(measure(options, options.measure)))
        return
    print(processor(), flush=True)
    alone = library(options)
    rows = []
    print(
        f"{'records':>10} {'library':>8} {'first start':>16} {'second start':>14} {'GB':>6} {'own':>6} {'tokens/s':>10}"
    )
    for records in options.records:
        corpus(options, records)
        first, second = (start(options, records) for _ in range(2))
        row = {"records": records, "library_cpu": alone * records / SAMPLE, "first": first, "second": second}
        rows.append(row)
        print(
            f"{records:>10,} {row['library_cpu']:>8.1f} {first['cpu']:>8.1f} /{first['wall']:>6.0f} "
            f"{second['cpu']:>6.1f} /{second['wall']:>6.1f} {second['gb']:>6.2f} {second['own_gb']:>6.2f} "
            f"{second['tokens_per_second']:>10,.0f}",
            flush=True,
        )
    if options.json:
        Path(options.json).write_text(json.dumps({"processor": processor(), "rows": rows}, indent=2))


def start(options: argparse.Namespace, records: int) -> dict[str, Any]:
    """Returns the figures of one start, in a process of its own."""
    command = [sys.executable, __file__, "--folder", options.folder, "--measure", records, "--batches", options.batches]
    command += ["--objective", options.objective, "--length", options.length]
    found = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(found.stdout.splitlines()[-1])


def files(options: argparse.Namespace, records: int) -> list[Path]:
    return [
        options.folder / f"{records}.{side}" for side in (["a", "b"] if options.objective == "seq2seq" else ["text"])
    ]


def corpus(options: argparse.Namespace, records: int) -> None:
    """Writes the corpus of that size, unless it is there."""
    generator = np.random.default_rng(records)
    words = np.array(["".join(generator.choice(SYLLABLES, generator.integers(1, 5))) for _ in range(60_000)])
    weights = np.cumsum(1 / np.arange(2, len(words) + 2))
    for path in files(options, records):
        if path.is_file():
            continue
        with open(path.with_suffix(".part"), "w", encoding="utf-8") as file:
            for begin in range(0, records, 50_000):
                lengths = generator.integers(6, 28, min(50_000, records - begin))
                drawn = np.searchsorted(weights, generator.random(lengths.sum()) * weights[-1])
                lines = np.split(words[drawn], np.cumsum(lengths)[:-1])
                file.write("".join(" ".join(line) + "\n" for line in lines))
        path.with_suffix(".part").rename(path)


def library(options: argparse.Namespace) -> float:
    """Returns the CPU-seconds of the tokenizer library alone for `SAMPLE` records; trains the tokenizer if it is missing."""
    from flaxformer_lite.files.tokenizers import SentencePiece, load_tokenizer, save_tokenizer

    corpus(options, SAMPLE)
    texts = [line for path in files(options, SAMPLE) for line in path.read_text(encoding="utf-8").splitlines()]
    folder = options.folder / "tokenizer"
    if not folder.is_dir():
        save_tokenizer(SentencePiece().train(texts, SUBWORDS), folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.encode_batch(texts[:1000])
    before = time.process_time()
    tokenizer.encode_batch(texts)
    return time.process_time() - before


def measure(options: argparse.Namespace, records: int) -> dict[str, Any]:
    """Returns the figures of this start, from the settings to the first batches."""
    from flaxformer_lite.base.console import Progress
    from flaxformer_lite.config import Config
    from flaxformer_lite.core.model import ModelConfig
    from flaxformer_lite.core.objectives import CausalLM, MaskedLM, Seq2Seq, SpanCorruption
    from flaxformer_lite.files.data import DataConfig, ParallelText, PlainText
    from flaxformer_lite.files.tokenizers import FromRun
    from flaxformer_lite.training.ahead import batches_ahead
    from flaxformer_lite.training.data import read_data
    from flaxformer_lite.workdir import RunFolder

    paths = [str(path) for path in files(options, records)]
    objective = {
        "seq2seq": Seq2Seq(),
        "causal_lm": CausalLM(),
        "masked_lm": MaskedLM(mask_token=IDS - 1),
        "span_corruption": SpanCorruption(first_sentinel=IDS - 1),
    }[options.objective]
    source = (
        ParallelText(source=paths[0], target=paths[1])
        if options.objective == "seq2seq"
        else PlainText(path=paths[0], documents="lines")
    )
    stacks = {"causal_lm": {"num_encoder_layers": 0}, "masked_lm": {"num_decoder_layers": 0}}.get(options.objective, {})
    config = Config(
        model=ModelConfig(vocab_size=IDS, d_model=64, num_heads=4, d_ff=64, **stacks),
        objective=objective,
        data=DataConfig(
            train=source,
            tokenizer=FromRun(path=str(options.folder / "tokenizer")),
            tokens_per_batch=16_384,
            rows_multiple=8,
            max_source_length=options.length,
            max_target_length=options.length,
        ),
    )
    run = options.folder / f"run-{records}"
    run.mkdir(exist_ok=True)
    wall, cpu = time.perf_counter(), time.process_time()
    with Progress(1) as progress:
        data = read_data(config, RunFolder(run), progress)
    data.train.batch(0)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu + children.ru_utime + children.ru_stime,
    }
    wall, tokens = time.perf_counter(), 0
    for batch in batches_ahead(data.train, 1, options.batches + 1):
        masks = (batch.inputs.source_mask, batch.inputs.target_mask)
        tokens += sum(int(mask.sum()) for mask in masks if mask is not None)
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {
        **figures,
        "gb": int(status["VmHWM"].split()[0]) / 1e6,
        "own_gb": int(status["RssAnon"].split()[0]) / 1e6,
        "batches_wall": time.perf_counter() - wall,
        "tokens_per_second": tokens / (time.perf_counter() - wall),
        "cores": len(os.sched_getaffinity(0)),
    }


if __name__ == "__main__":
    main()
