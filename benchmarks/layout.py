"""Compares layouts of kernels and heads for TPUs: each sublayer in each layout, compiled by the TPU's own compiler.

python benchmarks/layout.py [--chips v5e v5p v6e] [--sublayers attention feed_forward] [--json FILE]

No TPU is needed, but libtpu: pip install "flaxformer-lite[tpu]". Each sublayer is compiled for one chip in bfloat16 with float32
parameters, forward alone and with the gradient by parameters and input. The columns:

  accessed  bytes by the compiler's cost analysis, which also counts arrays that stay on the chip
  HBM       bytes to and from memory, counted in the compiled program (flaxformer_lite/tools/planning/program.py)
  temp      bytes of temporaries, by the compiler
  copies    operations that only copy or transpose, alone or in a fused kernel of their own
  GFLOP     of the matrix products in the compiled program
"""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from flaxformer_lite.core.model.attention import attention_weights, weighted_values
from flaxformer_lite.tools.planning.program import read_program
from flaxformer_lite.tools.planning.topology import describe_slice

Params = dict[str, Any]
Forward = Callable[[Params, jax.Array], jax.Array]
BFLOAT16, FLOAT32 = jnp.bfloat16, jnp.float32


class Shape(NamedTuple):
    """Rows, length, width, heads, their width, and the inner width of the gated feed-forward layer."""

    B: int
    T: int
    D: int
    N: int
    H: int
    F: int


SHAPES = (Shape(8, 512, 1024, 16, 64, 4096), Shape(2, 2048, 2048, 16, 128, 5632), Shape(64, 128, 512, 8, 64, 2048))


class Form(NamedTuple):
    """One layout of a sublayer: the shapes of its kernels, and its function."""

    sublayer: str
    name: str
    kernels: Callable[[Shape], dict[str, tuple[int, ...]]]
    forward: Callable[[Shape], Forward]


# Attention -------------------------------------------------------------------------------------------------------------


def attend(query: jax.Array, key: jax.Array, value: jax.Array, scale: float) -> jax.Array:
    """Returns the weighted sum of values by einsum, as the package computes it; all arrays are `[B, T, N, H]`."""
    weights = attention_weights(query, key, mask=None, bias=None, scale=scale)
    return weighted_values(weights.astype(BFLOAT16), value)


def einsum_4d(s: Shape) -> Forward:
    def forward(p: Params, x: jax.Array) -> jax.Array:
        q, k, v = (jnp.einsum("BTD,DNH->BTNH", x, p[name]) for name in ("query", "key", "value"))
        return jnp.einsum("BTNH,NHD->BTD", attend(q, k, v, s.H**-0.5), p["out"])

    return forward


def matrix_einsum(s: Shape) -> Forward:
    def forward(p: Params, x: jax.Array) -> jax.Array:
        q, k, v = ((x @ p[name]).reshape(s.B, s.T, s.N, s.H) for name in ("query", "key", "value"))
        return attend(q, k, v, s.H**-0.5).reshape(s.B, s.T, -1) @ p["out"]

    return forward


def matrix_transposed(s: Shape) -> Forward:
    """Returns attention with rank-2 activations and heads transposed before the positions, as in BERT's code."""

    def forward(p: Params, x: jax.Array) -> jax.Array:
        flat = x.reshape(s.B * s.T, s.D)
        q, k, v = (
            (flat @ p[name]).reshape(s.B, s.T, s.N, s.H).transpose(0, 2, 1, 3) for name in ("query", "key", "value")
        )
        scores = jnp.matmul(q, k.swapaxes(2, 3), preferred_element_type=FLOAT32) * s.H**-0.5
        mixed = jax.nn.softmax(scores).astype(BFLOAT16) @ v
        return (mixed.transpose(0, 2, 1, 3).reshape(s.B * s.T, -1) @ p["out"]).reshape(s.B, s.T, s.D)

    return forward


def fused_qkv(s: Shape) -> Forward:
    def forward(p: Params, x: jax.Array) -> jax.Array:
        q, k, v = (part.reshape(s.B, s.T, s.N, s.H) for part in jnp.split(x @ p["qkv"], 3, axis=-1))
        return attend(q, k, v, s.H**-0.5).reshape(s.B, s.T, -1) @ p["out"]

    return forward


def matrices(s: Shape) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys(("query", "key", "value"), (s.D, s.N * s.H)) | {"out": (s.N * s.H, s.D)}


# Feed-forward ----------------------------------------------------------------------------------------------------------


def gate_and_up(s: Shape) -> Forward:
    return lambda p, x: (jax.nn.silu(x @ p["gate"]) * (x @ p["up"])) @ p["down"]


def fused_gate_up(s: Shape) -> Forward:
    def forward(p: Params, x: jax.Array) -> jax.Array:
        gate, up = jnp.split(x @ p["gate_up"], 2, axis=-1)
        return (jax.nn.silu(gate) * up) @ p["down"]

    return forward


def gate_and_up_flat(s: Shape) -> Forward:
    """Returns the gated feed-forward layer on rank-2 activations."""

    def forward(p: Params, x: jax.Array) -> jax.Array:
        return gate_and_up(s)(p, x.reshape(s.B * s.T, s.D)).reshape(s.B, s.T, s.D)

    return forward


FORMS = (
    Form(
        "attention",
        "4-D kernels, einsum",
        lambda s: dict.fromkeys(("query", "key", "value"), (s.D, s.N, s.H)) | {"out": (s.N, s.H, s.D)},
        einsum_4d,
    ),
    Form("attention", "matrices, einsum scores (ours)", matrices, matrix_einsum),
    Form("attention", "matrices, transposed heads", matrices, matrix_transposed),
    Form(
        "attention",
        "one matrix for QKV, einsum scores",
        lambda s: {"qkv": (s.D, 3 * s.N * s.H), "out": (s.N * s.H, s.D)},
        fused_qkv,
    ),
    Form(
        "feed_forward",
        "gate and up (ours)",
        lambda s: {"gate": (s.D, s.F), "up": (s.D, s.F), "down": (s.F, s.D)},
        gate_and_up,
    ),
    Form(
        "feed_forward",
        "gate and up, rank-2 activations",
        lambda s: {"gate": (s.D, s.F), "up": (s.D, s.F), "down": (s.F, s.D)},
        gate_and_up_flat,
    ),
    Form(
        "feed_forward",
        "one matrix for gate and up",
        lambda s: {"gate_up": (s.D, 2 * s.F), "down": (s.F, s.D)},
        fused_gate_up,
    ),
)


# Compiled --------------------------------------------------------------------------------------------------------------


def measure(form: Form, shape: Shape, chip: str, device: Any, *, backward: bool) -> dict[str, Any]:
    """Returns the compiler's figures for a sublayer."""
    sharding, forward = SingleDeviceSharding(device), form.forward(shape)
    params = {
        name: jax.ShapeDtypeStruct(size, FLOAT32, sharding=sharding) for name, size in form.kernels(shape).items()
    }
    x = jax.ShapeDtypeStruct((shape.B, shape.T, shape.D), BFLOAT16, sharding=sharding)

    def run(params: Params, x: jax.Array) -> jax.Array:
        return forward(jax.tree.map(lambda kernel: kernel.astype(BFLOAT16), params), x)

    def gradient(params: Params, x: jax.Array, out_gradient: jax.Array) -> Any:
        out, pull = jax.vjp(run, params, x)
        return out, *pull(out_gradient)

    started = time.perf_counter()
    compiled = (jax.jit(gradient).lower(params, x, x) if backward else jax.jit(run).lower(params, x)).compile()
    text = compiled.as_text()
    cost, program = compiled.cost_analysis(), read_program(text)
    return {
        "chip": chip,
        "sublayer": form.sublayer,
        "form": form.name,
        **shape._asdict(),
        "pass": "forward and backward" if backward else "forward",
        "accessed_bytes": cost["bytes accessed"],
        "hbm_bytes": program.hbm_bytes,
        "temporary_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "copies": num_copies(text),
        "flops": cost["flops"],
        "compile_seconds": time.perf_counter() - started,
    }


def num_copies(text: str) -> int:
    """Returns the number of operations that only copy or transpose, without moves between HBM and the chip."""
    return len(
        re.findall(
            r"^  (?:ROOT )?%(?:copy|transpose|copy_fusion|transpose_copy_fusion|copy_bitcast_fusion)[.\d]* = ",
            text,
            re.M,
        )
    )


def results(chips: list[str], sublayers: list[str]) -> Iterator[dict[str, Any]]:
    for backward in (True, False):
        for shape in SHAPES:
            for chip in chips:
                (device, *_) = describe_slice(f"{chip}:1x1x1" if chip == "v5p" else f"{chip}:1x1").devices
                for form in FORMS:
                    if form.sublayer in sublayers:
                        yield measure(form, shape, chip, device, backward=backward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chips", nargs="+", default=["v5e", "v5p", "v6e"])
    parser.add_argument("--sublayers", nargs="+", default=["attention", "feed_forward"])
    parser.add_argument("--json", metavar="FILE", help="append the results to this file, one per line")
    arguments = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    print(f"{'chip':<5}{'B×T×D, N×H or F':<26}{'form':<36}{'pass':<22}accessed    HBM   temp copies  GFLOP")
    for r in results(arguments.chips, arguments.sublayers):
        inner = f"{r['N']}×{r['H']}" if r["sublayer"] == "attention" else str(r["F"])
        shape = f"{r['B']}×{r['T']}×{r['D']}, {inner}"
        mega = "".join(f"{r[name] / 1e6:7,.0f}" for name in ("accessed_bytes", "hbm_bytes", "temporary_bytes"))
        print(
            f"{r['chip']:<5}{shape:<26}{r['form']:<36}{r['pass']:<22} {mega}{r['copies']:>7}{r['flops'] / 1e9:>7,.1f}",
            flush=True,
        )
        if arguments.json:
            with open(arguments.json, "a", encoding="utf-8") as file:
                file.write(json.dumps(r) + "\n")


if __name__ == "__main__":
    main()
