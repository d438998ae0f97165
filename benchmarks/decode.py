"""Compares translation on the CPU with CTranslate2 or Hugging Face: the same weights, the same sentences, the same beam.

python benchmarks/decode.py RUN --sentences FILE --peer ctranslate2 [--beam-size 1 5] [--batch 64] [--threads 1] [--rounds 5]
python benchmarks/decode.py --shape m30k --peer ctranslate2

With `--engine` our side answers by CTranslate2 too, as `run.translate(…, engine="ctranslate2")` does: the row shows what that costs
beside CTranslate2 alone. With `--shape` a model of that size with random weights translates 64 sources of 15 random tokens, and
every answer has 20 tokens.

Needs ctranslate2, or torch and transformers. The run is exported to each peer first. All sides get token ids in one process, in
turns. The first pass over the sentences, which compiles, and the first round are not counted. With `--alone` one side has the
process for itself. If the rounds of a peer differ by more than 10 % there is no ratio to it, and the exit status is 1. The columns:

  tokens / CPU s, tokens / s   generated tokens, the end included, per second; the median over the rounds
  ratio                        ours divided by the peer's tokens / CPU s, round by round: the median, and the least and the most
  same                         sentences with the same tokens as ours
"""

import argparse
import functools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from sides import SHAPES, VOCAB_SIZE, Ratio, Times, processor, ratio, refusal, settle, take_turns

PEERS = ("ctranslate2", "hf")
MAX_LENGTH = 128
"""The most tokens of an answer."""
SOURCES, SOURCE_LENGTH, ANSWER_LENGTH = 64, 15, 20
"""Random sources, their tokens, and the tokens of an answer to them, its end included."""

Ids = list[list[int]]
Translate = Callable[[Ids, int], Ids]
"""A side: from sources and a beam size to the answers."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", nargs="?", help="a run folder; or --shape")
    parser.add_argument("--sentences", metavar="FILE", help="one sentence a line; with RUN")
    parser.add_argument("--shape", choices=SHAPES, help="random weights and tokens, in place of RUN and FILE")
    parser.add_argument("--peer", choices=PEERS, nargs="*", default=["ctranslate2"])
    parser.add_argument(
        "--engine", action="store_true", help="ours by engine ctranslate2 too, in --peer-type; with RUN"
    )
    parser.add_argument("--alone", choices=("ours", "engine", *PEERS), help="one side, with no other in its process")
    parser.add_argument("--beam-size", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--weights-dtype", choices=("float32", "bfloat16"), default="float32", help="our side")
    parser.add_argument("--peer-type", default="float32", help="compute type of CTranslate2, such as int8")
    parser.add_argument("--batch", type=int, default=64, help="sentences of a batch, on both sides")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=256, help="lines of the file that are used")
    options = parser.parse_args()
    if (options.run is None) == (options.shape is None) or (options.run is None) == (options.sentences is not None):
        parser.error("either RUN and --sentences, or --shape")
    settle(options.threads)
    print(processor(), flush=True)
    if options.shape and options.engine:
        parser.error("--engine is for RUN: answers of one length are not its own")
    names = [options.alone] if options.alone else ["ours", *(["engine"] if options.engine else []), *options.peer]
    with tempfile.TemporaryDirectory() as folder:
        if options.shape:
            options.run, sources = random_run(options.shape, Path(folder))
        else:
            sources = encoded(options)
        sides = {name: open_side(name, options, Path(folder)) for name in names}
        trusted = [compare(sides, sources, beam, options.rounds) for beam in options.beam_size]
    sys.exit(0 if all(trusted) else 1)


def open_side(name: str, options: argparse.Namespace, folder: Path) -> Translate:
    """Returns a side, for which the run is exported first if it is a peer."""
    if name == "ours":
        return ours(options, options.run)
    if name == "engine":
        return ours(options, options.run, engine="ctranslate2", weights_dtype=options.peer_type)
    exported = str(folder / name)
    subprocess.run([sys.executable, "-m", "flaxformer_lite", "export", name, options.run, exported], check=True)
    return {"ctranslate2": ctranslate2, "hf": hugging_face}[name](options, exported)


def compare(sides: dict[str, Translate], sources: Ids, beam: int, rounds: int) -> bool:
    """Lets the sides take turns, and prints the table; returns whether every peer has a ratio."""
    calls = {name: functools.partial(translate, sources, beam) for name, translate in sides.items()}
    answers = {name: call() for name, call in calls.items()}
    times = take_turns(calls, rounds)
    refusals = {name: refusal(name, [t.cpu for t in times[name]]) for name in [*sides][1:]}
    lines = report(beam, times, answers, [name for name, why in refusals.items() if why is None])
    print("\n".join([*lines, *filter(None, refusals.values())]), flush=True)
    return not any(refusals.values())


def report(beam: int, times: dict[str, list[Times]], answers: dict[str, Ids], trusted: list[str]) -> list[str]:
    """Returns the lines of the table, with a ratio to those peers whose rounds allow one."""
    lines = ["", f"beam {beam:<10}{'tokens / CPU s':>15}{'tokens / s':>12}{'ratio':>22}{'same':>12}"]
    first = next(iter(answers))
    by_cpu = {name: [t.cpu / tokens_of(answers[name]) for t in times[name]] for name in times}
    for name, rows in answers.items():
        rates = [1 / statistics.median(by_cpu[name]), tokens_of(rows) / statistics.median(t.wall for t in times[name])]
        same = f"{sum(a == b for a, b in zip(rows, answers[first], strict=True))} of {len(rows)}"
        mine: Ratio | str = ratio(by_cpu[first], by_cpu[name]) if name in trusted else ""
        lines.append(f"{name:15}{rates[0]:15,.0f}{rates[1]:12,.0f}{mine!s:>22}{same if name != first else '':>12}")
    return lines


def tokens_of(answers: Ids) -> int:
    """Returns the number of tokens, with the end of each answer."""
    return sum(len(row) + 1 for row in answers)


def random_run(shape: str, folder: Path) -> tuple[str, Ids]:
    """Writes a run with random weights; returns its folder, and random sources."""
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
    return str(folder / "run"), sources.tolist()


def lengths(options: argparse.Namespace) -> tuple[int, int]:
    """Returns the fewest and the most tokens of an answer, its end included."""
    return (ANSWER_LENGTH, ANSWER_LENGTH) if options.shape else (0, MAX_LENGTH)


def encoded(options: argparse.Namespace) -> Ids:
    """Returns the token ids of the sentences, with the end that the model reads."""
    import flaxformer_lite

    lines = Path(options.sentences).read_text(encoding="utf-8").splitlines()[: options.lines]
    tokenizer = flaxformer_lite.load(options.run).required_tokenizers.source
    return [tokenizer.as_source(row) for row in tokenizer.encode_batch(lines)]


def ours(options: argparse.Namespace, folder: str, **engine: str) -> Translate:
    import flaxformer_lite

    run = flaxformer_lite.load(folder, weights_dtype=options.weights_dtype)
    fewest, most = lengths(options)
    settings = {"num_hypotheses": 1, "min_new_tokens": fewest, "max_new_tokens": most, **engine}

    def translate(sources: Ids, beam: int) -> Ids:
        longest = 2 ** (max(map(len, sources)) - 1).bit_length()  # as batches round it up
        answers = run.hypotheses_of_ids(sources, batch_tokens=options.batch * longest, beam_size=beam, **settings)
        return [best[0].tokens for best in answers]

    return translate


def ctranslate2(options: argparse.Namespace, exported: str) -> Translate:
    import ctranslate2 as library

    folder = Path(exported)
    translator = library.Translator(
        exported, device="cpu", compute_type=options.peer_type, inter_threads=1, intra_threads=options.threads
    )
    source, target = ("source", "target") if (folder / "source_vocabulary.json").exists() else ("shared", "shared")
    names, ids_of = (json.loads((folder / f"{side}_vocabulary.json").read_text()) for side in (source, target))
    numbers = {name: number for number, name in enumerate(ids_of)}
    fewest, most = lengths(options)
    config = json.loads((folder / "config.json").read_text())
    own = slice(int(config["add_source_bos"]), -1 if config["add_source_eos"] else None)  # the library adds the others

    def translate(sources: Ids, beam: int) -> Ids:
        tokens = [[names[i] for i in row[own]] for row in sources]
        results = translator.translate_batch(
            tokens,
            beam_size=beam,
            max_batch_size=options.batch,
            min_decoding_length=fewest,
            max_decoding_length=most,
        )
        return [[numbers[name] for name in result.hypotheses[0]] for result in results]

    return translate


def hugging_face(options: argparse.Namespace, exported: str) -> Translate:
    import torch
    from transformers import AutoModelForSeq2SeqLM

    torch.set_num_threads(options.threads)
    model = AutoModelForSeq2SeqLM.from_pretrained(exported).eval()
    pad, end = model.generation_config.pad_token_id, model.generation_config.eos_token_id
    fewest, most = lengths(options)

    def translate(sources: Ids, beam: int) -> Ids:
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
                    num_beams=beam,
                    min_new_tokens=fewest,
                    max_new_tokens=most,
                )
            for i, row in zip(members, found[:, 1:].tolist(), strict=True):
                answers[i] = row[: row.index(end)] if end in row else row
        return [answers[i] for i in range(len(sources))]

    return translate


if __name__ == "__main__":
    main()
