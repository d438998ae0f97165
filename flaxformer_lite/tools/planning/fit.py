"""Settings with which a train step fits into the memory of a device, found by compiling the step with few of them.

`same_numbers` lists settings that cost only time, the cheapest first; `optimizers` and `smaller_batches` list those that train
another model. All are nearly sorted by memory, so a search by halves compiles few steps. A candidate is a dict of settings, those
of the command.
"""

import bisect
import itertools
import math
import operator
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from flaxformer_lite.base import hardware
from flaxformer_lite.base.console import Progress
from flaxformer_lite.config import Config
from flaxformer_lite.config.differences import flatten
from flaxformer_lite.config.options import apply_options, as_options, options_in
from flaxformer_lite.core.base.progress import ProgressCallback, no_progress
from flaxformer_lite.core.data.batch_plan import batch_shapes
from flaxformer_lite.core.model import LanguageModelHead
from flaxformer_lite.core.optim import AdamW
from flaxformer_lite.core.parallel.mesh import check_rows, make_mesh, row_groups
from flaxformer_lite.core.parallel.sharding import shard_bytes
from flaxformer_lite.tools.planning.plan import Step, compiled_or_refused, mib, plan_bucket, planned_step, read_memory
from flaxformer_lite.tools.planning.topology import describe_slice

Settings = dict[str, Any]
"""Values by the paths of settings, which differ from those of a config."""

BUSY = 4096
"""Positions of a micro-batch that keep a device busy while it reads, and with `fsdp` gathers, its parameters. They take two
operations each for every two bytes, and a v6e makes 918e12 / 200e9 = 4,590 operations while a byte comes over its links, a v5e
1,970."""
REMAT = ("none", "dots", "full")
"""The values of model.remat, by the time that they cost."""
CHANGES = {
    "optimizer.algorithm.moment_dtype": "rounds the averages of gradients to 8 bits of precision",
    "optimizer.algorithm": "is another optimizer, with the same learning rates: compare its first losses",
    "data.tokens_per_batch": "is a smaller batch: it may need a lower learning rate, and more steps",
    "data.rows": "is the batch: a smaller one may need a lower learning rate, and more steps",
}
"""Settings that change the numbers of a run, and their effect."""
COLUMNS = {
    "micro-batches": "train.num_micro_batches",
    "remat": "model.remat",
    "loss chunk": "model.head.loss_chunk",
    "optimizer": "optimizer.algorithm.kind",
    "moments": "optimizer.algorithm.moment_dtype",
    "tokens a batch": "data.tokens_per_batch",
    "rows a batch": "data.rows",
}
"""The settings of a trial that a table shows."""


class Trial(NamedTuple):
    """A step that was compiled, with the bytes that a device needs at its peak; infinity where the compiler does not say."""

    settings: Settings
    needed_bytes: float
    fits: bool


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The result of a search: all trials in their order, and the one that was chosen; None if nothing fits."""

    config: Config
    limit_bytes: int
    trials: list[Trial]
    found: Trial | None


def find_fit(
    config: Config,
    devices: Sequence[jax.Device],
    limit_bytes: int,
    own_bytes: int = 0,
    progress: ProgressCallback = no_progress,
) -> Fit:
    """Searches the cheapest settings with which the train step needs at most `limit_bytes` on each device.

    The batch never becomes larger than that of `config`. `own_bytes`: memory that the process has besides.

    Raises: ValueError if the mesh or the rows do not fit the devices.
    """
    mesh, before = make_mesh(config.train.mesh, devices), flatten(config)
    check_rows(*config.data.rows_divisor, mesh, config.train.num_micro_batches)
    groups = row_groups(mesh)
    trials = dict[str, Trial]()

    def attempt(settings: Settings) -> Trial:
        settings = {setting: value for setting, value in settings.items() if before.get(setting) != value}
        options = as_options(settings)
        if options not in trials:
            progress(f"compiling, trial {len(trials) + 1}", 0, 0)
            changed = with_settings(config, settings)
            longest = max(batch_shapes(config.objective, changed.data), key=lambda bucket: bucket.lengths)
            steps = (planned_step(changed, mesh, bucket) for bucket in {plan_bucket(changed), longest})
            needed = max(map(memory, steps)) + own_bytes
            trials[options] = Trial(settings, needed, needed <= limit_bytes)
        return trials[options]

    def first_fit(candidates: list[Settings]) -> int:
        return bisect.bisect_left(candidates, True, key=lambda settings: attempt(settings).fits)

    unchanged = attempt({})
    best = unchanged if unchanged.fits else None
    if best is None:
        for others, cut in ((optimizers(config), True), (smaller_batches(config, groups), False)):
            ladders = [
                [other | same for same in same_numbers(with_settings(config, other), groups, cut=cut)]
                for other in others
            ]
            chosen = first_fit([ladder[-1] for ladder in ladders])
            if chosen < len(ladders):
                ladder = ladders[chosen]
                best = attempt(ladder[first_fit(ladder)])
                break
    if best is not None:  # fewer micro-batches than that, if the next smaller number fits
        parts = [*micro_batch_numbers(config, groups, below=(before | best.settings)["train.num_micro_batches"])]
        if parts and attempt(best.settings | parts[-1]).fits:
            best = attempt(best.settings | parts[first_fit([best.settings | fewer for fewer in parts])])
    return Fit(config=config, limit_bytes=limit_bytes, trials=[*trials.values()], found=best)


def memory(step: Step) -> float:
    """Returns the bytes of a device that a step needs at its peak, by the compiler; if it refuses the step, by its message."""
    compiled, refusal = compiled_or_refused(step)
    if compiled is not None:
        return read_memory(compiled).needed_bytes
    used = re.search(r"Used ([\d.]+)([KMG]) of|temporaries \(([\d.]+)([KMG])\)", refusal or "")
    if used is None:
        return math.inf
    number, unit = filter(None, used.groups())
    arguments = 0 if used[1] else shard_bytes(step.arguments)
    return arguments + float(number) * 1024 ** (1 + "KMG".index(unit))


# Candidates -------------------------------------------------------------------------------------------------------------


def with_settings(config: Config, settings: Settings) -> Config:
    """Returns the config that the options of these settings make. Raises: ValueError where they do not fit it."""
    return apply_options(config, shlex.split(as_options(settings)))


def same_numbers(config: Config, groups: int, *, cut: bool = True) -> list[Settings]:
    """Returns settings that compute the same numbers up to rounding in ever less memory; each has those of the one before it.

    A chunked loss costs little time, and so do micro-batches while they keep the device busy. Then layers are recomputed. Small
    micro-batches are the last, since each reads and exchanges all parameters.

    groups: the number of parts into which the devices divide the rows of a batch. cut: whether to use micro-batches.
    """
    bucket = plan_bucket(config)
    steps = list[Settings]()
    length = bucket.lengths.target if config.model.num_decoder_layers else bucket.lengths.source
    if isinstance(config.model.head, LanguageModelHead) and config.model.head.loss_chunk is None and length > 16:
        steps.append({"model.head.loss_chunk": max(16, length // 8)})
    more = [*micro_batch_numbers(config, groups, above=config.train.num_micro_batches)] if cut else []
    busy = bucket.rows * sum(bucket.lengths) / groups / BUSY
    steps += [parts for parts in more if parts["train.num_micro_batches"] <= busy]
    steps += [{"model.remat": remat} for remat in REMAT[REMAT.index(config.model.remat) + 1 :]]
    steps += [parts for parts in more if parts["train.num_micro_batches"] > busy]
    legal = [step for step in steps if is_legal(config, step)]
    return [*itertools.accumulate(legal, operator.or_, initial=Settings())]


def micro_batch_numbers(config: Config, groups: int, above: int = 0, below: float = math.inf) -> Iterator[Settings]:
    """Yields the numbers of micro-batches that leave every batch as it is. `data.rows_multiple` rises where it must, for these."""
    setting, divisor = config.data.rows_divisor
    rows = math.gcd(*(bucket.rows for bucket in batch_shapes(config.objective, config.data)))
    for number in range(1, rows // groups + 1):
        if rows % (groups * number) == 0 and above < number < below:
            yield {
                "train.num_micro_batches": number,
                setting: divisor if divisor % (groups * number) == 0 else rows,
            }


def optimizers(config: Config) -> list[Settings]:
    """Returns the config's own optimizer, as no settings, and others with ever smaller states."""
    if not isinstance(config.optimizer.algorithm, AdamW):
        return [Settings()]
    moments = {"optimizer.algorithm.moment_dtype": "bfloat16"}
    return [{}, moments, {"optimizer.algorithm": "adafactor", "optimizer.algorithm.scale_by_parameter": False}]


def smaller_batches(config: Config, groups: int) -> list[Settings]:
    """Returns ever smaller batches down to a row on each device, with the smallest optimizer.

    They are not cut: micro-batches keep a sum of gradients, as large as the parameters, which a step of one batch does not have.
    """
    smaller, tokens, rows = list[Settings](), config.data.tokens_per_batch, config.data.rows
    whole = {**optimizers(config)[-1], "train.num_micro_batches": 1}
    if rows is not None:
        halves = itertools.takewhile(lambda half: half > groups, (rows >> times for times in range(1, rows)))
        fewer = dict.fromkeys((*(half // groups * groups for half in halves), groups))
        return [{**whole, "data.rows": number} for number in fewer]
    whole["data.rows_multiple"] = groups
    while not smaller or plan_bucket(with_settings(config, smaller[-1])).rows > groups:
        tokens //= 2
        smaller.append({**whole, "data.tokens_per_batch": tokens})
    return smaller


def is_legal(config: Config, settings: Settings) -> bool:
    """Returns whether a config takes these settings: some objectives read all logits, or cannot divide a batch."""
    try:
        with_settings(config, settings)
    except ValueError:
        return False
    return True


def fit_on(config: Config, topology: str | None = None, num_slices: int = 1, memory: str | None = None) -> Fit:
    """Searches settings of a config that fit into the memory of a device: of a slice, or of this machine.

    memory: less than a device has, such as 12GiB.

    Raises: ValueError for what is no slice or no size.
    """
    if topology in (None, "cpu"):
        devices: Sequence[Any] = jax.devices()
        taken = (hardware.process_memory() or 0) // len(devices)
        most = hardware.usable_memory() // len(devices)
    else:
        slice_ = describe_slice(topology, num_slices)
        devices = slice_.devices
        taken = 0
        most = slice_.chip.hbm_bytes // slice_.devices_per_chip
    with Progress() as progress:
        limit = most if memory is None else min(most, bytes_of_size(memory))
        return find_fit(config, devices, limit, taken, progress.of)


def bytes_of_size(text: str) -> int:
    """Returns the bytes of a size such as 12GiB."""
    number = re.fullmatch(r"(\d+(?:\.\d+)?) ?([MG])iB", text)
    if number is None or float(number[1]) == 0:
        raise ValueError(f"--memory is {text!r}: it must be a size such as 12GiB or 800MiB")
    return int(float(number[1]) * 2 ** (20 if number[2] == "M" else 30))


# For a terminal, and as JSON -------------------------------------------------------------------------------------------


def command(name: str, words: Sequence[str], settings: Settings) -> str:
    """Returns the command that trains config `name` with the options `words` and with these settings, which replace theirs."""
    kept = list[str]()
    for option, typed in options_in(words):
        path = option.removeprefix("--").replace("-", "_")
        if not any(f"{path}.".startswith(f"{setting}.") for setting in settings):
            kept += [option, *typed]
    file = Path(name)
    folder = file.parent if file.name == "config.json" else file
    is_run = (folder / "config.json").is_file() and (kept or settings)
    folder_option = ["--workdir", f"{folder}-fit"] if is_run else []  # the run keeps its settings
    return " ".join(
        filter(None, ("flaxformer-lite train", shlex.join([name, *folder_option, *kept]), as_options(settings)))
    )


def fit_as_json(fit: Fit, command: str | None) -> dict[str, object]:
    """Returns all figures; `found` is None if nothing fits."""
    trials = [
        trial._asdict() | ({} if math.isfinite(trial.needed_bytes) else {"needed_bytes": None}) for trial in fit.trials
    ]
    best = None if fit.found is None else {**fit.found._asdict(), "command": command}
    return {"limit_bytes": fit.limit_bytes, "trials": trials, "found": best}


def trials_in_words(fit: Fit, command: str | None) -> str:
    """Returns a table of the trials, the memory that is needed and left, the numbers that change, and the command."""
    lines = [
        f"memory of a device: {mib(fit.limit_bytes).strip()} MiB. Settings that were compiled, in this order:",
        "",
        *trial_lines(fit),
    ]
    if fit.found is None:
        return "\n".join(lines)
    settings = fit.found.settings
    free = fit.limit_bytes - fit.found.needed_bytes
    lines += ["", f"needed: {mib(fit.found.needed_bytes).strip()} MiB; free: {mib(free).strip()} MiB"]
    changed = [setting for setting in CHANGES if setting in settings]
    lines += [f"{setting} {settings[setting]} {CHANGES[setting]}" for setting in changed]
    rates = (rate for name, rate in flatten(fit.config).items() if re.search(r"dropout\..*_rate$|lora\.dropout$", name))
    if "train.num_micro_batches" in settings and any(rates):
        lines.append("train.num_micro_batches changes the random numbers of dropout")
    elif not changed:
        lines.append(
            "losses are those of the config as it is, up to rounding" if settings else "the config fits as it is"
        )
    return "\n".join([*lines, "", command or ""])


def nothing_fits(fit: Fit) -> str:
    """Returns the message of a search that found nothing, with the trial that needs the least memory."""
    least = min(fit.trials, key=lambda trial: trial.needed_bytes)
    needs = f"needs {mib(least.needed_bytes).strip()} MiB" if math.isfinite(least.needed_bytes) else "is refused"
    return (
        f"none of these fits into {mib(fit.limit_bytes).strip()} MiB: the smallest {needs}, with "
        f"{as_options(least.settings) or 'the config as it is'}; choose a smaller model, or several devices"
    )


def trial_lines(fit: Fit) -> Iterator[str]:
    """Yields lines: of each trial the settings in which they differ, and the memory."""
    values = [flatten(with_settings(fit.config, trial.settings)) for trial in fit.trials]
    columns = {name: [str(row.get(setting)) for row in values] for name, setting in COLUMNS.items()}
    columns = {name: cells for name, cells in columns.items() if len({*cells}) > 1}
    columns["MiB"] = [mib(trial.needed_bytes).strip() for trial in fit.trials]
    columns[""] = ["fits" if trial.fits else "does not fit" for trial in fit.trials]
    for row in zip(*([name, *cells] for name, cells in columns.items()), strict=True):
        yield "  ".join(
            f"{cell:>{max(map(len, (name, *cells)))}}" for cell, (name, cells) in zip(row, columns.items(), strict=True)
        )
