"""Trainings that differ in a few settings and in their seeds: one after the other in one process, then a table and a chart."""

import contextlib
import itertools
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.console import Failure, note, warn
from flaxformer_lite.config import Config, load_config
from flaxformer_lite.config.options import as_option, options_in
from flaxformer_lite.tools.corpus.part import WHOLE, Part
from flaxformer_lite.tools.report.page import write_png
from flaxformer_lite.tools.report.plots import altair, curves_of, line_chart
from flaxformer_lite.tools.report.scores import score_shown
from flaxformer_lite.training import loop
from flaxformer_lite.training.summary import why_finished
from flaxformer_lite.workdir import RunFolder, open_checkpoints

SEED = "--train.seed"


class Member(NamedTuple):
    """A run of a sweep."""

    values: str
    """Its name without its seed."""
    config: Config
    folder: RunFolder

    @property
    def name(self) -> str:
        return self.folder.path.name


def sweep(
    path: str,
    output: str | Path,
    *,
    options: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    seeds: int | None = None,
    part: Part = WHOLE,
    with_changes: bool = False,
) -> list[str] | None:
    """Trains each combination of some settings with each seed, in folders below `output`; returns the lines of a table of scores.

    A run that is complete is not trained again. A run whose training fails is left out of the table, with a warning. None: the
    sweep was stopped, or runs of other parts are missing. The chart is `output`/sweep.png, where the extra `report` is installed.

    path: the config, as `load_config` takes it. sweeps: settings with values, such as "optimizer.schedule.peak-rate=1e-4,3e-4".
    seeds: the number of seeds, from that of the config on.

    Raises: ValueError that names the run, before anything is trained, for a mistake in its settings or its folder; what the last
        run raised, if all have failed.
    """
    members = members_of(path, Path(output), options, sweeps, seeds, with_changes)
    share = [member for index, member in enumerate(members) if part.takes(index)]
    for member in members:
        if (member.folder.path / "config.json").is_file():
            with mistakes_in_run(member.name):
                member.folder.differs_from(member.config)
    failed = dict[Path, Exception]()
    for number, member in enumerate(share, 1):
        note(f"run {number} of {len(share)}: {member.folder.path}")
        try:
            with mistakes_in_run(member.name):
                stopped = loop.train(member.config, member.folder.path, with_changes=with_changes)
        except (Failure, ValueError) as failure:
            warn(f"the run {member.name} has failed: {failure}")
            failed[member.folder.path] = failure
            continue
        if stopped:
            note("the sweep was stopped, so there is no table; the same command continues it")
            return None
    done = [member for member in members if member.folder.path not in failed and is_complete(member)]
    missing = len(members) - len(done) - len(failed)
    if missing:
        note(
            f"{missing} of {len(members)} runs are not complete: the table comes with the last --part, or without --part"
        )
        return None
    if not done:
        raise failed[share[-1].folder.path]
    lines = sweep_table(done)
    write_whole(Path(output, "sweep.txt"), "\n".join(lines) + "\n")
    draw(done, Path(output, "sweep.png"))
    return lines


def members_of(
    path: str, output: Path, options: Sequence[str], sweeps: Sequence[str], seeds: int | None, with_changes: bool
) -> list[Member]:
    """Returns the runs, those of several seeds behind each other. Raises: ValueError for a mistake in any of them."""
    axes = dict[str, list[str]]()
    for text in sweeps:
        option, values = axis(text)
        if option in axes or option in (typed for typed, _ in options_in(options)):
            raise ValueError(f"--sweep {text}: {option[2:]} is set twice: name it once")
        axes[option] = values
    if seeds is not None:
        if SEED in axes:
            raise ValueError(f"--seeds is {seeds}, and --sweep sets train.seed: leave one of them out")
        if seeds < 1:
            raise ValueError(f"--seeds is {seeds}: it must be at least 1")
        first = load_config(path, options).train.seed
        axes[SEED] = [str(first + i) for i in range(seeds)]
    members = []
    for combination in itertools.product(*axes.values()):
        chosen = dict(zip(axes, combination, strict=True))
        name = member_name(chosen)
        with mistakes_in_run(name):
            words = itertools.chain.from_iterable([option, *shlex.split(value)] for option, value in chosen.items())
            config = load_config(path, [*options, *words])
            if config.data.source("eval") is None:
                raise ValueError("data.eval is None, and runs are compared by it: set it, or data.held_out")
        without_seed = member_name({option: value for option, value in chosen.items() if option != SEED})
        members.append(Member(without_seed, config, RunFolder(output / name, with_changes=with_changes)))
    if len({member.name for member in members}) < len(members):
        raise ValueError(
            f"two runs would be in one folder of {', '.join(member.name for member in members)}: change a value"
        )
    return members


def axis(text: str) -> tuple[str, list[str]]:
    """Returns the option and the values of `SETTING=VALUE,VALUE`. Raises: ValueError for another text."""
    setting, _, listed = text.partition("=")
    values = listed.split(",")
    if not setting or not all(value.strip() for value in values) or len({*values}) < len(values):
        raise ValueError(
            f"--sweep is {text!r}: it must be a setting and values that differ, such as optimizer.schedule.peak-rate=1e-4,3e-4"
        )
    return as_option(setting.removeprefix("--")), values


def member_name(chosen: dict[str, str]) -> str:
    """Returns the name of a run by its settings: the last part of each, the whole one where two have the same."""
    last = [option[2:].rpartition(".")[2] for option in chosen]
    names = [end if last.count(end) == 1 else option[2:] for end, option in zip(last, chosen, strict=True)]
    values = (re.sub(r"[^\w.+-]+", "-", value) for value in chosen.values())
    return ",".join(f"{name}={value}" for name, value in zip(names, values, strict=True))


@contextlib.contextmanager
def mistakes_in_run(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"the run {name}: {error}") from None


def is_complete(member: Member) -> bool:
    """Returns whether a run has no step left."""
    folder = member.folder
    if not folder.trained:
        return False
    with open_checkpoints(folder.config(), folder, read_only=True) as checkpoints:
        return why_finished(folder.continued(member.config).concrete, checkpoints) is not None


def sweep_table(members: Sequence[Member]) -> list[str]:
    """Returns the best evaluation of each run, the best run first; then for runs with several seeds mean and standard deviation."""
    metric = members[0].config.train.best_metric
    best = {member.name: member.config.train.best_row(member.folder.rows()) or {} for member in members}
    sign = 1 if members[0].config.train.best_mode == "min" else -1
    ranked = sorted(members, key=lambda member: sign * best[member.name].get(metric, sign * math.inf))
    others = dict.fromkeys(name for row in best.values() for name in row if name not in ("step", "split", metric))
    head = ["run", "step", metric, *others]
    lines = [[member.name, *(score_shown(best[member.name].get(name)) for name in head[1:])] for member in ranked]
    for values in dict.fromkeys(member.values for member in ranked):
        rows = [best[member.name] for member in members if member.values == values]
        if len(rows) > 1:
            spreads = [spread([row.get(name) for row in rows]) for name in head[2:]]
            lines.append([f"{values or 'all'} ({len(rows)} seeds)", "", *spreads])
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (head, *lines)]


def spread(scores: Sequence[object]) -> str:
    """Returns mean and standard deviation of the numbers of several seeds; – where one is missing."""
    numbers = [float(score) for score in scores if isinstance(score, int | float)]
    return "–" if len(numbers) < len(scores) else f"{fmean(numbers):.5g} ± {stdev(numbers):.2g}"


def draw(members: Sequence[Member], path: Path) -> None:
    """Writes the chart of the metric that ranks the runs; a note says where the extra is missing."""
    metric = members[0].config.train.best_metric
    try:
        altair()
    except ValueError as error:
        note(f"{path} was not drawn: {error}")
        return
    write_png(line_chart(metric, curves_of({member.name: member.folder.rows() for member in members})[metric]), path)
