"""Compiles a config's step for a TPU slice, on any machine: memory, operations, exchanges and the time at least.

Other options are settings of CONFIG, as for `train`: --data.rows-multiple 256. Needs libtpu: pip install "flaxformer-lite[tpu]".
"""

import argparse
import dataclasses
import json
from typing import TYPE_CHECKING, Any

from flaxformer_lite.base.console import Progress, note

if TYPE_CHECKING:
    import flaxformer_lite.config
    import flaxformer_lite.tools.planning


TAKES_SETTINGS = True
"""Options that are not its own are settings of CONFIG."""

UNROLLED = 2
"""Layers in one iteration that are planned as they stand: a loop over two compiles no faster (docs/scaling.md)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "config", metavar="CONFIG", help="a config file, .py or .json, a run folder, or a name such as quickstart"
    )
    parser.add_argument(
        "--topology", required=True, metavar="CHIP:AxB", help="the slice: v5e:4x4, v5p:4x4x4, v6e:1x1, …"
    )
    parser.add_argument(
        "--mesh", metavar="AXIS=N,…", help="sizes of data, fsdp and tensor; default: train.mesh of the config"
    )
    parser.add_argument("--decode", action="store_true", help="plan the decoding step, one more token for every row")
    parser.add_argument("--json", action="store_true", help="write JSON")


def run(arguments: argparse.Namespace) -> None:
    import jax

    from flaxformer_lite.cli.experiments import config_of, parse_mesh
    from flaxformer_lite.tools.planning import make_plan

    # Nothing is computed here, and the accelerator may be in use.
    jax.config.update("jax_platforms", "cpu")
    config = config_of(arguments.config, arguments.flags)
    mesh = None if arguments.mesh is None else parse_mesh(arguments.mesh)
    about = None
    if not arguments.decode and not any(
        word.replace("_", "-").startswith("--model.scan-unroll") for word in arguments.flags
    ):
        config, about = in_a_loop(config)
    if about is not None:
        note(about)
    with Progress() as progress:
        progress.update(f"compiling for {arguments.topology}")
        plan = make_plan(config, arguments.topology, mesh, decode=arguments.decode)
    print(json.dumps(as_json(plan) | {"note": about}, indent=2) if arguments.json else in_words(plan))


def in_a_loop(config: "flaxformer_lite.config.Config") -> tuple["flaxformer_lite.config.Config", str | None]:
    """Returns the config with more than `UNROLLED` layers in a loop, and the note that says so; another as it is, and None."""
    model = config.model
    unroll = min(model.scan_unroll, max(model.num_encoder_layers, model.num_decoder_layers))
    if unroll <= UNROLLED:
        return config, None
    about = (
        "planned with the layers in a loop, which compiles faster and may need more memory and HBM traffic: "
        f"--model.scan-unroll {unroll} plans the config's own form"
    )
    return dataclasses.replace(config, model=dataclasses.replace(model, scan_unroll=1)), about


def as_json(plan: "flaxformer_lite.tools.planning.Plan") -> dict[str, Any]:
    report = dataclasses.asdict(plan)
    if plan.compiled is not None:
        report["compiled"]["needed_bytes"] = plan.compiled.needed_bytes
    return report | {"bound": plan.bound}


def in_words(plan: "flaxformer_lite.tools.planning.Plan") -> str:
    """Returns the plan for a terminal, every figure with its origin."""
    mesh = ", ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    lengths = " + ".join(str(n) for n in (plan.source_length, plan.target_length) if n)
    lines = [
        f"{plan.step} step on {plan.topology}: {plan.chips} chips, {plan.devices} devices; mesh {mesh}",
        f"{plan.rows} rows of {lengths}",
        *plan.attention,
        "",
        "memory of a device" + " " * 27 + "MiB",
        *(f"  {name:<39} {mib(size)}" for name, size in plan.shard_bytes.items() if size),
        f"  {'these shards, summed':<39} {mib(sum(plan.shard_bytes.values()))}",
    ]
    compiled = plan.compiled
    if compiled is None:
        return "\n".join([*lines, f"  does not fit. The compiler: {plan.refusal}"])
    lines += [
        f"  {'the same with padding, by the compiler':<39} {mib(compiled.argument_bytes)}",
        f"  {'temporaries, by the compiler':<39} {mib(compiled.temporary_bytes)}",
        f"  {'outputs that reuse no argument':<39} {mib(compiled.output_bytes - compiled.alias_bytes)}",
        f"  {'program':<39} {mib(compiled.code_bytes)}",
        f"  {'needed, of ' + format(plan.hbm_bytes // 2**20, ',') + ' MiB':<39} {mib(compiled.needed_bytes)}",
        f"  {'fits' if plan.fits else 'does not fit'}",
        "",
        "operations of all devices" + " " * 20 + "TFLOP",
        f"  {'model, by formula':<39} {tera(plan.model_flops)}",
        f"  {'  of which queries with keys and values':<39} {tera(plan.attention_flops)}",
        f"  {'products in the compiled program':<39} {tera(compiled.flops * plan.devices)}",
        f"  {'cost analysis, loops counted once':<39} {tera(compiled.flops_once * plan.devices)}",
    ]
    if compiled.kernels:
        lines.append(
            f"  {compiled.kernels:,} calls of kernels on each device are not in the last two; their time is estimated by formula"
        )
    if None in compiled.loops.values():
        lines.append("  some loops have an unknown number of trips: they count once")
    lines += ["", "data exchanged by a device, in the compiled program"]
    lines += [
        f"  {e.kind:<18} {e.axes:<16} {e.count:>6} times {mib(e.bytes)} MiB {e.seconds * 1e3:>10,.3f} ms"
        for e in plan.exchanges
    ] or ["  nothing"]
    lines += ["", "least time, by published figures" + " " * 28 + "ms"]
    rows = list(plan.seconds.items())
    if plan.kernel_seconds:
        rows.insert(1, ("  of which attention kernels (estimated by formula)", plan.kernel_seconds))
    lines += [f"  {name:<51} {seconds * 1e3:>10,.3f}" for name, seconds in rows]
    times = list(plan.seconds.values())
    lines += [
        f"bound by {plan.bound}; {max(times) * 1e3:,.3f} ms per step if they overlap, else {sum(times) * 1e3:,.3f}",
        f"figures of the chip: {', '.join(plan.sources)}",
    ]
    return "\n".join(lines)


def mib(size: float) -> str:
    return f"{size / 2**20:>10,.1f}"


def tera(flops: float) -> str:
    return f"{flops / 1e12:>10,.4f}"
