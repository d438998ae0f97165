"""Compares translation on the CPU with CTranslate2 or Hugging Face: the same weights, the same sentences, the same beam.

python benchmarks/decode.py RUN --sentences FILE --peer ctranslate2 [--beam-size 1 5] [--batch 64] [--threads 1] [--rounds 5]
python benchmarks/decode.py --shape m30k --peer ctranslate2

With `--shape` a model of that size with random weights translates 64 sources of 15 random tokens, and every answer has 20 tokens.

Needs ctranslate2, or torch and transformers. The run is exported to the peer first. Both sides get token ids, run in processes of
their own on the same cores, and take turns. The first pass over the sentences, which compiles, and the first round are not counted.
If the rounds of the peer differ by more than 10 % there is no ratio, and the exit status is 1. The columns:

  tokens / CPU s, tokens / s   generated tokens, the end included, per second; the median over the rounds
  ratio                        ours divided by the peer's, round by round: the median, and the least and the most
  same                         sentences with the same tokens
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from sides import SHAPES, VOCAB_SIZE, ask, refusal, start

PEERS = ("ctranslate2", "hf")
MAX_LENGTH = 128
"""The most tokens of an answer."""
SOURCES, SOURCE_LENGTH, ANSWER_LENGTH = 64, 15, 20
"""Random sources, their tokens, and the tokens of an answer to them, its end included."""

Ids = list[list[int]]
Translate = Callable[[Ids], Ids]


class Times(NamedTuple):
    """Seconds of one pass over the sentences, and the tokens of its answers."""

    cpu: float
    wall: float
    tokens: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", nargs="?", help="a run folder; or --shape")
    parser.add_argument("--sentences", metavar="FILE", help="one sentence a line; with RUN")
    parser.add_argument("--shape", choices=SHAPES, help="random weights and tokens, in place of RUN and FILE")
    parser.add_argument("--peer", choices=PEERS)
    parser.add_argument("--beam-size", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--weights-dtype", choices=("float32", "bfloat16"), default="float32", help="our side")
    parser.add_argument("--peer-type", default="float32", help="compute type of CTranslate2, such as int8")
    parser.add_argument("--batch", type=int, default=64, help="sentences of a batch, on both sides")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=256, help="lines of the file that are used")
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "IDS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options)
        return
    if (options.run is None) == (options.shape is None) or (options.run is None) == (options.sentences is not None):
        parser.error("either RUN and --sentences, or --shape")
    with tempfile.TemporaryDirectory() as folder:
        if options.shape:
            options.run = random_run(options.shape, Path(folder))
        found = [compare(options, beam, Path(folder)) for beam in options.beam_size]
    sys.exit(0 if all(found) else 1)


def compare(options: argparse.Namespace, beam: int, folder: Path) -> bool:
    """Lets both sides take turns, and prints the rows of the table; returns whether their ratio can be trusted."""
    ids, exported = folder / "ids.json", folder / str(options.peer)
    if not ids.exists():
        encode(options, ids)
    if options.peer and not exported.exists():
        words = [sys.executable, "-m", "flaxformer_lite", "export", options.peer, options.run, str(exported)]
        subprocess.run(words, check=True)
    sides = {"ours": options.run} | ({options.peer: str(exported)} if options.peer else {})
    processes = {side: start(words_of(side, path, ids, beam, options), options.threads) for side, path in sides.items()}
    answers: dict[str, Ids] = {}
    rounds: dict[str, list[Times]] = {side: [] for side in sides}
    for side, process in processes.items():
        answers[side] = ask(process)
    for number in range(options.rounds + 1):
        for side, process in processes.items():
            times = Times(*ask(process))
            rounds[side] += [times] if number else []
    for process in processes.values():
        process.communicate("end\n")
    return report(beam, rounds, answers)


def random_run(shape: str, folder: Path) -> str:
    """Writes a run with random weights, and `ids.json` with random sources; returns the run folder."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from flaxformer_lite.config import Config
    from flaxformer_lite.core.model import POST_NORM, Inputs, LayerNorm, ModelConfig, Normal, Transformer
    from flaxformer_lite.core.model.positions import Sinusoidal
    from flaxformer_lite.core.objectives import Seq2Seq
    from flaxformer_lite.files.data import DataConfig, ParallelText
    from flaxformer_lite.run import write_run
    from flaxformer_lite.workdir import RunFolder

    sizes = SHAPES[shape]
    model = ModelConfig(  # Marian's kind, which both peers have
        residual=POST_NORM,
        norm=LayerNorm(epsilon=1e-5),
        positions=Sinusoidal(layout="half_split"),
        initializer=Normal(stddev=0.02),
        vocab_size=VOCAB_SIZE,
        d_model=sizes.d_model,
        d_ff=sizes.d_ff,
        num_heads=sizes.num_heads,
        num_encoder_layers=sizes.layers,
        num_decoder_layers=sizes.layers,
    )
    nowhere = ParallelText(source="-", target="-")
    config = Config(model=model, objective=Seq2Seq(), data=DataConfig(train=nowhere, eval=nowhere, tokenizer=None))
    tokens = jnp.ones((1, 2), jnp.int32)
    init = jax.jit(Transformer(model).init)
    variables = init(jax.random.key(0), Inputs(source_tokens=tokens, target_tokens=tokens))
    write_run(RunFolder(folder / "run"), config, 0, variables["params"], "random")
    sources = np.random.default_rng(0).integers(4, VOCAB_SIZE, (SOURCES, SOURCE_LENGTH))
    (folder / "ids.json").write_text(json.dumps(sources.tolist()))
    return str(folder / "run")


def lengths(options: argparse.Namespace) -> tuple[int, int]:
    """Returns the fewest and the most tokens of an answer, its end included."""
    return (ANSWER_LENGTH, ANSWER_LENGTH) if options.shape else (0, MAX_LENGTH)


def encode(options: argparse.Namespace, ids: Path) -> None:
    """Writes the token ids of the sentences, with the end that the model reads."""
    import flaxformer_lite

    lines = Path(options.sentences).read_text(encoding="utf-8").splitlines()[: options.lines]
    tokenizer = flaxformer_lite.load(options.run).required_tokenizers.source
    ids.write_text(json.dumps([tokenizer.as_source(row) for row in tokenizer.encode_batch(lines)]))


def words_of(side: str, path: str, ids: Path, beam: int, options: argparse.Namespace) -> list[str]:
    """Returns the words that start the process of one side."""
    words = [__file__, path, *(["--shape", options.shape] if options.shape else []), "--measure", side, str(ids)]
    words += ["--weights-dtype", options.weights_dtype, "--peer-type", options.peer_type]
    return [*words, "--beam-size", str(beam), "--batch", str(options.batch), "--threads", str(options.threads)]


def report(beam: int, rounds: dict[str, list[Times]], answers: dict[str, Ids]) -> bool:
    """Prints speeds and ratios; returns False where the rounds allow no ratio."""
    print(f"\nbeam {beam}\n{'':14} {'tokens / CPU s':>14} {'tokens / s':>11}")
    for side, times in rounds.items():
        rates = [statistics.median(t.tokens / seconds for t, seconds in pairs) for pairs in by_clock(times)]
        print(f"{side:14} {rates[0]:14.0f} {rates[1]:11.0f}")
    why = None
    if len(rounds) == 2:
        ours, theirs = rounds.values()
        why = refusal([*rounds][1], [times.cpu for times in theirs])
        found = sorted((a.tokens / a.cpu) / (b.tokens / b.cpu) for a, b in zip(ours, theirs, strict=True))
        same = sum(a == b for a, b in zip(*answers.values(), strict=True))
        print(why or f"ratio by CPU   {statistics.median(found):.2f}   ({found[0]:.2f} to {found[-1]:.2f})")
        print(f"same           {same} of {len(answers['ours'])}")
    return why is None


def by_clock(times: list[Times]) -> tuple[list[tuple[Times, float]], list[tuple[Times, float]]]:
    return [(t, t.cpu) for t in times], [(t, t.wall) for t in times]


def measure(options: argparse.Namespace) -> None:
    """Answers the first line with the answers, and each further line with the times of one more pass."""
    side, ids = options.measure
    sources: Ids = json.loads(Path(ids).read_text())
    translate = {"ours": ours, "ctranslate2": ctranslate2, "hf": hugging_face}[side](options)
    answers = None
    for line in sys.stdin:
        if line.strip() != "go":
            break
        cpu, wall = time.process_time(), time.perf_counter()
        found = translate(sources)
        times = Times(time.process_time() - cpu, time.perf_counter() - wall, sum(len(row) + 1 for row in found))
        print(json.dumps(found if answers is None else times), flush=True)
        answers = found


def ours(options: argparse.Namespace) -> Translate:
    import flaxformer_lite

    run, beam = flaxformer_lite.load(options.run, weights_dtype=options.weights_dtype), options.beam_size[0]
    fewest, most = lengths(options)
    settings = {"beam_size": beam, "num_hypotheses": 1, "min_new_tokens": fewest, "max_new_tokens": most}

    def translate(sources: Ids) -> Ids:
        longest = 2 ** (max(map(len, sources)) - 1).bit_length()  # as batches round it up
        answers = run.hypotheses_of_ids(sources, batch_tokens=options.batch * longest, **settings)
        return [best[0].tokens for best in answers]

    return translate


def ctranslate2(options: argparse.Namespace) -> Translate:
    import ctranslate2 as library

    folder = Path(options.run)
    translator = library.Translator(
        str(folder), device="cpu", compute_type=options.peer_type, inter_threads=1, intra_threads=options.threads
    )
    source, target = ("source", "target") if (folder / "source_vocabulary.json").exists() else ("shared", "shared")
    names, ids_of = (json.loads((folder / f"{side}_vocabulary.json").read_text()) for side in (source, target))
    numbers = {name: number for number, name in enumerate(ids_of)}
    fewest, most = lengths(options)
    config = json.loads((folder / "config.json").read_text())
    own = slice(int(config["add_source_bos"]), -1 if config["add_source_eos"] else None)  # the library adds the others

    def translate(sources: Ids) -> Ids:
        tokens = [[names[i] for i in row[own]] for row in sources]
        results = translator.translate_batch(
            tokens,
            beam_size=options.beam_size[0],
            max_batch_size=options.batch,
            min_decoding_length=fewest,
            max_decoding_length=most,
        )
        return [[numbers[name] for name in result.hypotheses[0]] for result in results]

    return translate


def hugging_face(options: argparse.Namespace) -> Translate:
    import torch
    from transformers import AutoModelForSeq2SeqLM

    torch.set_num_threads(options.threads)
    model = AutoModelForSeq2SeqLM.from_pretrained(options.run).eval()
    pad, end = model.generation_config.pad_token_id, model.generation_config.eos_token_id
    fewest, most = lengths(options)

    def translate(sources: Ids) -> Ids:
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        answers: dict[int, list[int]] = {}
        for at in range(0, len(order), options.batch):
            members = order[at : at + options.batch]
            width = len(sources[members[0]])
            tokens = torch.tensor([sources[i] + [pad] * (width - len(sources[i])) for i in members])
            with torch.inference_mode():
                found = model.generate(
                    input_ids=tokens,
                    attention_mask=(tokens != pad).long(),
                    num_beams=options.beam_size[0],
                    min_new_tokens=fewest,
                    max_new_tokens=most,
                )
            for i, row in zip(members, found[:, 1:].tolist(), strict=True):
                answers[i] = row[: row.index(end)] if end in row else row
        return [answers[i] for i in range(len(sources))]

    return translate


if __name__ == "__main__":
    main()
