"""A plan for a terminal, and as JSON."""

import dataclasses
from typing import Any

from flaxformer_lite.tools.planning.plan import Plan


def as_json(plan: Plan) -> dict[str, Any]:
    report = dataclasses.asdict(plan)
    if plan.compiled is not None:
        report["compiled"]["needed_bytes"] = plan.compiled.needed_bytes
    return report | {"bound": plan.bound}


def in_words(plan: Plan) -> str:
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
