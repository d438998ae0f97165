"""Computes the plans of `docs/scaling.md`: four models on TPU slices, with fixed rows per chip (weak) or a fixed batch (strong).

python benchmarks/scaling.py [--models bert_large …] [--slices v5e:4x4 …] [--json FILE]

No TPU is needed, but libtpu: pip install "flaxformer-lite[tpu]". Set JAX_OPTIMIZATION_LEVEL=O1 to compile in about a
quarter of the time; the program is then less optimised, and needs a little more memory.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.config.load import load_config
from flaxformer_lite.core.model.attention import DotProduct
from flaxformer_lite.core.model.config import POST_NORM, LanguageModelHead
from flaxformer_lite.core.model.layers import DropoutRates, Normal
from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.objectives import MaskedLM
from flaxformer_lite.core.parallel.mesh import MeshConfig
from flaxformer_lite.tools.planning.plan import make_plan, plan_as_json
from flaxformer_lite.tools.planning.topology import describe_slice

SLICES = ("v5e:4x4", "v5e:16x16", "v5p:4x4x8", "v6e:8x8")


@dataclass(frozen=True)
class Study:
    """A model, the length of its rows, the rows per chip (weak scaling), and the rows of the fixed batch (strong scaling)."""

    config: Callable[[], Config]
    length: int
    rows_per_chip: int
    fixed_rows: int
    mesh: MeshConfig


def transformer_big() -> Config:
    return load_config("transformer_big_wmt14")


def bert_large() -> Config:
    """The large model of Devlin et al. 2018, arXiv:1810.04805, on rows of 512 tokens."""
    base = load_config("tiny_mlm")
    model = dataclasses.replace(
        base.model,
        vocab_size=30_522,
        d_model=1024,
        num_heads=16,
        d_ff=4096,
        num_encoder_layers=24,
        positions=Learned(max_positions=512),
        residual=POST_NORM,
        head=LanguageModelHead(bias=True, transform="gelu"),
        dropout=DropoutRates(embedding_rate=0.1, attention_rate=0.1, feed_forward_rate=0.0, residual_rate=0.1),
        initializer=Normal(stddev=0.02),
        dtype="bfloat16",
        scan_unroll=1,
        remat="dots",
    )
    assert isinstance(base.objective, MaskedLM)
    objective = dataclasses.replace(base.objective, mask_token=30_521)
    data = dataclasses.replace(base.data, max_source_length=512, bucket_lengths=(512,))
    return dataclasses.replace(base, model=model, objective=objective, data=data)


def llama_1b() -> Config:
    config = load_config("llama_1b")
    return dataclasses.replace(config, model=dataclasses.replace(config.model, remat="full"))


def llama_8b() -> Config:
    """The 8 billion parameters of Llama 3, Dubey et al. 2024, arXiv:2407.21783, table 3."""
    config = llama_1b()
    assert isinstance(config.model.attention, DotProduct)
    attention = dataclasses.replace(config.model.attention, num_kv_heads=8)
    model = dataclasses.replace(
        config.model,
        vocab_size=128_256,
        d_model=4096,
        num_heads=32,
        d_ff=14_336,
        num_decoder_layers=32,
        attention=attention,
    )
    return dataclasses.replace(config, model=model)


REPLICATED, SHARDED = MeshConfig(), MeshConfig(data=1, fsdp=-1)
STUDIES = {
    "transformer_big": Study(transformer_big, length=64, rows_per_chip=64, fixed_rows=4096, mesh=REPLICATED),
    "bert_large": Study(bert_large, length=512, rows_per_chip=8, fixed_rows=1024, mesh=REPLICATED),
    "llama_1b": Study(llama_1b, length=2048, rows_per_chip=2, fixed_rows=256, mesh=SHARDED),
    "llama_8b": Study(llama_8b, length=2048, rows_per_chip=1, fixed_rows=256, mesh=SHARDED),
}


def with_batch(study: Study, chips: int, scaling: str) -> Config:
    """Returns the study's config with its batch for a number of chips, in micro-batches where a chip has more than its share."""
    config = study.config()
    rows = study.rows_per_chip * chips if scaling == "weak" else study.fixed_rows
    parts = max(1, rows // (study.rows_per_chip * chips))
    data = dataclasses.replace(
        config.data,
        tokens_per_batch=rows * study.length,
        rows_multiple=rows,
        bucket_lengths=(study.length,),
        max_source_length=study.length,
        max_target_length=study.length,
    )
    return dataclasses.replace(config, data=data, train=dataclasses.replace(config.train, num_micro_batches=parts))


def report(name: str, topology: str, scaling: str) -> dict[str, Any]:
    study = STUDIES[name]
    config, started = with_batch(study, describe_slice(topology).chips, scaling), time.perf_counter()
    plan = plan_as_json(make_plan(config, topology, study.mesh))
    extra = {"model": name, "scaling": scaling, "num_micro_batches": config.train.num_micro_batches}
    return {**extra, **plan, "plan_seconds": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(STUDIES), choices=STUDIES)
    parser.add_argument("--slices", nargs="+", default=SLICES)
    parser.add_argument("--scaling", nargs="+", default=["weak", "strong"], choices=("weak", "strong"))
    parser.add_argument("--json", metavar="FILE", help="append the plans to this file, one per line")
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    print(
        f"{'model':<16}{'slice':<11}{'batch':<7}{'rows':>6}{'GiB':>7}  fits  {'compute':>9}{'HBM':>9}{'links':>9} ms  bound"
    )
    for topology in arguments.slices:
        for name in arguments.models:
            for scaling in arguments.scaling:
                r = report(name, topology, scaling)
                needed = "" if r["compiled"] is None else f"{r['compiled']['needed_bytes'] / 2**30:.1f}"
                times = (r["seconds"].get(part) for part in ("compute", "HBM", "interconnect"))
                shown = "".join("        –" if t is None else f"{t * 1e3:9.1f}" for t in times)
                fits, bound = "yes" if r["fits"] else "no", r["bound"] or r["refusal"]
                print(
                    f"{name:<16}{topology:<11}{scaling:<7}{r['rows']:>6}{needed:>7}  {fits:<4}  {shown}     {bound}",
                    flush=True,
                )
                if arguments.json:
                    with open(arguments.json, "a", encoding="utf-8") as file:
                        file.write(json.dumps(r) + "\n")


if __name__ == "__main__":
    main()
