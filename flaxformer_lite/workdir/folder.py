"""The run folder: all files of a run.

config.json          every setting; `flaxformer-lite train RUN/config.json` trains with them again
metrics.jsonl        one JSON object per line: step, split, and every metric by its name
checkpoints/         one folder per step, written by Orbax
tokenizer.*          trained on the training text; target_tokenizer.* if the target has its own
samples/             source, reference and translation of a few sentences, a file for each of the last 20 evaluations
hypotheses/          all translations of an evaluation, one per line, of the same evaluations; sources and references of `evaluate`
evaluations/         the scores of `evaluate`, one JSON file per split
tensorboard/         event files of train.trackers; wandb/ those of Weights & Biases; trackers.json the names of the runs there
profile/             traces of train.profile
engine/              exports for CTranslate2, which translates on a CPU: engine/exports.py
imported.json        the origin of weights from another system, with that system's config; a run that starts from others has theirs
taught_by.json       the names and licences of the models whose translations the run learns from
huggingface/         files of the tokenizer of an imported model, such as its chat template: for exports and chats
train.log            the lines that were printed on the terminal
.lock                locked by the one process that trains; contains its mark, which processes on other hosts compare
.state.json          the marks of this folder, which a copy does not have: state.py
.run_id              a random number, the same in a run and in its copies: copies.py

A run at a URL lives in a bucket (bucket.py); its RunFolder has the working copy of this process.
"""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from flaxformer_lite.base.atomic_files import atomic_write, require_absent, require_local, write_json, write_whole
from flaxformer_lite.base.console import Failure, warn
from flaxformer_lite.base.model_names import HUB, full_name
from flaxformer_lite.base.remote_files import cached_models, is_url
from flaxformer_lite.base.stores import LEDGER
from flaxformer_lite.config import Config, from_json, to_json
from flaxformer_lite.config.differences import changed, describe_differences, differences, fixed, flatten
from flaxformer_lite.config.options import as_options
from flaxformer_lite.config.outside import import_options
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text import LanguageTokenizers, Tokenizers
from flaxformer_lite.files.data import DataConfig
from flaxformer_lite.files.data.store import train_tokenizers
from flaxformer_lite.files.tokenizers.kinds import (
    CHAT_TEMPLATES,
    HUB_FILES,
    SENTENCE_FILES,
    FromRun,
    copy_files,
    load_run_tokenizers,
    save_tokenizers,
)
from flaxformer_lite.workdir.bucket import RunBucket, bucket_to_train
from flaxformer_lite.workdir.manifest import TOKENIZER_FILES, sealed_config, steps_in, why_damaged
from flaxformer_lite.workdir.samples import Sample, evaluation_files, format_samples
from flaxformer_lite.workdir.state import STATE, mark, marks

T = TypeVar("T")
MOST_ANSWERS = 20
"""The most evaluations in training whose samples and hypotheses are kept; those of existing checkpoints are kept too."""
TAUGHT_BY = "taught_by.json"
NUM_SAMPLES = 10
"""Number of sentences in each file of samples/."""
IMPORTED = "imported.json"
COPIED_FILES = (IMPORTED, *CHAT_TEMPLATES, *(f"huggingface/{name}" for name in (*HUB_FILES, *SENTENCE_FILES)))
"""Files that came from another run, with its tokenizer or its weights."""


@contextlib.contextmanager
def locked(path: Path, mark: str, name: str) -> Iterator[None]:
    """Locks the file `path` of the run `name` and writes `mark` into it. The kernel releases the lock however the process ends.

    Raises: ValueError if another process holds the lock.
    """
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another process is training in {name}: wait until it has ended, or choose another --workdir"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS):
                raise
            warn(f"{path} cannot be locked ({error.strerror}): let only one process train in {name} at a time")
        file.truncate(0)
        file.write(mark)
        file.flush()
        os.fsync(file.fileno())  # processes on other hosts read it
        yield


def as_lines(texts: Iterable[str]) -> str:
    """Returns the texts as lines: line breaks inside a text, which would move the lines after it, become spaces."""
    return "".join(re.sub(r"[\r\n]+", " ", text) + "\n" for text in texts)


def finite(tree: object) -> Any:
    """Returns a row, or any tree of dicts and lists, with None for infinite or undefined numbers: JSON has no such numbers."""
    if isinstance(tree, dict):
        return {name: finite(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [finite(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def is_row(row: object) -> bool:
    """Returns whether a JSON value is a row of metrics: a step, a split, and numbers; None is a number that was not finite.

    A row of the split "change" has settings with their old and new values instead.
    """
    if not (isinstance(row, dict) and isinstance(row.get("split"), str) and type(row.get("step")) is int):
        return False
    if row["split"] == "change":
        return isinstance(row.get("settings"), dict) and all(
            isinstance(pair, list) and len(pair) == 2 for pair in row["settings"].values()
        )
    values = [value for name, value in row.items() if name != "split" and value is not None]
    return all(isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63) for value in values)


class RunFolder:
    """The files of one run.

    Args:
        silent: write no metrics, samples or hypotheses: of several processes only the first one reports.
        with_changes: whether the run continues with other settings, those that may change if that is asked for.
        bucket: the bucket of a run at the URL `path`: all files are those of the working copy.

    Raises: ValueError for a URL without `bucket`: `open_run` reads a run there.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        silent: bool = False,
        with_changes: bool = False,
        bucket: RunBucket | None = None,
    ):
        self.path = Path(path) if bucket is None else bucket.here
        require_local(self.path)
        self.silent, self.with_changes, self.bucket = silent, with_changes, bucket
        self.name = str(self.path) if bucket is None else bucket.store.url
        """The path or the URL of the run, for messages."""
        self._mark: str | None = None
        self._config_before: Config | None = None
        self.settled: Config | None = None
        """The config that this process trains, as it was typed, with the facts of the data once they are known."""
        self.shared = bucket is None
        """Whether all processes of a run reach this folder; of a run in a bucket each has its own working copy."""
        self.checkpoints = self.path / "checkpoints"
        self.metrics = self.path / "metrics.jsonl"

    @property
    def title(self) -> str:
        """The last part of the path or the URL of the run."""
        return self.name.rpartition("/")[2] if is_url(self.name) else self.path.resolve().name

    @property
    def called(self) -> str:
        """The name for messages: the name that was given of a model that was imported into the user's cache, else the run's own."""
        if self.path.parent != cached_models():
            return self.name
        return str(self.imported.get("weights", self.name)).removeprefix(HUB)

    def config(self) -> Config:
        """Returns the config of the run, in steps once the data was read. Raises: ValueError if the folder has none."""
        return self.typed_config().concrete

    def typed_config(self) -> Config:
        """Returns the config of the run as it was typed, with the facts of its data. Raises: ValueError if the folder has none."""
        file = self.path / "config.json"
        if not file.is_file():
            what = "holds no run (there is no config.json in it)" if self.path.is_dir() else "does not exist"
            raise ValueError(
                f"the run folder {self.name} {what}: train one with `flaxformer-lite train CONFIG --workdir {self.name}`, or "
                f"import a model of the hub with `flaxformer-lite import hf {full_name(self.title)} RUN`, and name RUN"
            )
        return from_json(file.read_bytes(), f"{self.name}/config.json")

    @property
    def trained(self) -> bool:
        """Whether the folder has a checkpoint."""
        return len(steps_in(self.checkpoints)) > 0

    @contextlib.contextmanager
    def lock(self, config: Config) -> Iterator[str]:
        """Locks the folder for a run of `config`, new or resumed, and writes its config.json.

        Yields a random mark, which only processes that see this folder can read. A user's mistake (a ValueError) before anything
        was trained leaves no files of a new run.

        Raises: ValueError if the folder belongs to another config or another process, holds other files, or has lost its
            checkpoints.
        """
        if self.bucket is None:
            self._check_place()
        existed = self.path.is_dir()
        self.path.mkdir(parents=True, exist_ok=True)
        self._mark = secrets.token_hex()
        held = contextlib.nullcontext() if self.bucket is None else self.bucket.held()
        with locked(self.path / ".lock", self._mark, self.name), held:
            is_run = (self.path / "config.json").is_file()
            self.write_config(config)
            try:
                self._note_checkpoints()
                yield self._mark
            except ValueError:
                if not is_run:
                    self._discard(with_folder=not existed)
                raise
            finally:
                self._note_checkpoints()

    def _check_place(self) -> None:
        """Raises: ValueError if the folder is a file or a URL, or holds other files than a run's."""
        require_local(self.path)
        if self.path.is_file():
            raise ValueError(f"--workdir {self.path} is a file: choose a folder")
        if (self.path / LEDGER).is_file():
            raise ValueError(
                f"--workdir {self.path} is a copy of a run in a bucket: continue it by --workdir file://{self.path.absolute()}"
            )
        is_run = (self.path / "config.json").is_file()
        # Hidden files do not count: the lock, and unfinished files of a process that was killed.
        if not is_run and self.path.is_dir() and any(not file.name.startswith(".") for file in self.path.iterdir()):
            raise ValueError(
                f"--workdir {self.path} holds files but no config.json, so it is no run folder: choose a new or empty one"
            )

    def receive(self) -> None:
        """Brings the working copy of a process that does not hold the run in a bucket to the state there."""
        if self.silent and self.bucket is not None:
            self.bucket.pull()

    def hand_on(self) -> None:
        """Copies what the process that holds a run in a bucket has written there, for the other processes."""
        if not self.silent and self.bucket is not None:
            self.bucket.push()

    def publish(self, *names: str) -> None:
        """Copies results, files of the working copy of a run in a bucket, there. Raises: StoreError if that fails."""
        if self.bucket is not None:
            self.bucket.publish(names)

    def why_damaged(self, step: int) -> str | None:
        """Returns why a checkpoint is damaged, in a few words, after reading all of it; None if all is as it was written."""
        if self.bucket is not None:
            return self.bucket.why_damaged(step)
        return why_damaged(self.checkpoints, step)

    def _note_checkpoints(self) -> None:
        """Marks the folder as trained if there is a checkpoint."""
        with contextlib.suppress(OSError):  # where nothing can be written, the training says so
            if self.trained:
                mark(self.path, trained=True)

    def _discard(self, with_folder: bool) -> None:
        """Deletes the files of a run before its first step; does nothing if there are others, such as rows or a checkpoint."""
        # The lock last: until then the folder is locked.
        folders = (
            "additional_chat_templates",
            "huggingface/additional_chat_templates",
            "huggingface/[0-9]_*",
            "huggingface",
        )
        names = ("config.json", "train.log", *TOKENIZER_FILES, *COPIED_FILES, *folders, STATE, ".lock")
        made = [file for name in names for file in self.path.glob(name)]
        with contextlib.suppress(OSError):
            if self.checkpoints.is_dir():
                self.checkpoints.rmdir()  # fails unless it is empty
            if self.metrics.is_file() and self.metrics.stat().st_size == 0:
                self.metrics.unlink()
            if set(self.path.glob("**/*")) <= set(made):
                for file in made:
                    file.rmdir() if file.is_dir() else file.unlink()
                if with_folder:
                    self.path.rmdir()

    def check_lock(self) -> None:
        """Raises: Failure if this process has locked the folder, and another one has locked it since `.lock` was deleted."""
        if self.bucket is not None and self.bucket.lost is not None:
            raise Failure(f"{self.bucket.lost}: this one stops and leaves all checkpoints as they are")
        file = self.path / ".lock"
        if self._mark is not None and file.exists() and file.read_text(encoding="utf-8") != self._mark:
            raise Failure(
                f"{file} was deleted, and another process has started to train in {self.path}: this one stops and leaves "
                "all checkpoints as they are"
            )

    def check_mark(self, mark: str) -> None:
        """Raises: ValueError if this is not the folder that a process, perhaps on another host, locked with that mark."""
        for wait in (0, 1, 2, 2):  # seconds: a network file system shows the mark late
            time.sleep(wait)
            with contextlib.suppress(OSError):
                if (self.path / ".lock").read_text(encoding="utf-8") == mark:
                    return
        raise ValueError(
            f"--workdir {self.path} is not the folder that the first process writes to: all hosts must reach the same one, or "
            "train in a bucket: --workdir gs://BUCKET/RUN"
        )

    def write_config(self, config: Config) -> None:
        """Writes config.json. Raises: ValueError if a model is being trained here with another config."""
        if (self.path / "config.json").is_file():
            self._config_before = self.typed_config()  # its periods made the rows and checkpoints so far
            config = self.continued(config)
            if self.differs_from(config):
                self.check_nothing_lost()
                # Nothing was trained with the old settings, so the files made from them are made again.
                for pattern in (*TOKENIZER_FILES, *COPIED_FILES, "metrics.jsonl"):
                    for file in self.path.glob(pattern):
                        file.unlink()
        self.settle(config)

    def differs_from(self, config: Config) -> bool:
        """Returns whether another config is here, with which nothing was trained. Raises: ValueError if a model was."""
        before, config = sealed_config(self.checkpoints) or self.typed_config(), self.continued(config)
        before = before if self.trained else replace(before, resolved=None)  # what was typed is compared
        different = differences(before.concrete, config.concrete, on_request=self.with_changes)
        if different and self.trained:
            raise ValueError(
                f"the run folder {self.name} was made with another config: {describe_differences(different)}. Use another "
                f"run folder, or the old settings{self._way_on(different, config)}"
            )
        return bool(different)

    def settle(self, config: Config) -> None:
        """Writes config.json, which of several processes in a folder the first one does, and keeps the config for checkpoints."""
        self.settled = config
        if not (self.silent and self.shared):
            write_whole(self.path / "config.json", to_json(config))

    def continued(self, config: Config) -> Config:
        """Returns a config with the facts of the data that the run was trained on; without any if nothing was trained."""
        before = sealed_config(self.checkpoints) or (self.typed_config() if self.trained else None)
        return replace(config, resolved=None) if before is None else config.continuing(before)

    def keep_config(self, config: Config) -> bool:
        """Restores config.json, if no step follows with this start's other settings or fewer steps. Returns whether it did."""
        before = self._config_before
        if before is None or not (
            differences(before.concrete, config) or config.train.steps < before.concrete.train.steps
        ):
            return False
        write_whole(self.path / "config.json", to_json(before))
        return True

    def _way_on(self, different: Mapping[str, tuple[object, object]], config: Config) -> str:
        """Returns the end of a message on settings that differ: the command that continues with them, if there is one."""
        if refused := fixed(different):
            return "" if len(refused) == len(different) else f"; no run continues with another {next(iter(refused))}"
        before = replace(self._config_before or self.typed_config(), resolved=config.resolved)
        changes = changed(flatten(before), flatten(config))
        if any(path.endswith(".kind") for path in changes):  # chosen in a config file, not on the command line
            return "; to continue with the new ones, add --continue-with-changes to the command"
        options = as_options({path: new for path, (_, new) in changes.items()})
        words = [
            "flaxformer-lite train",
            shlex.quote(f"{self.name}/config.json"),
            options,
            "--continue-with-changes",
        ]
        return f"; to continue with the new ones: `{' '.join(filter(None, words))}{import_options(config)}`"

    def check_nothing_lost(self) -> None:
        """Raises: ValueError if metrics.jsonl knows of steps whose checkpoints are gone: starting again would erase it.

        A run that was killed before its first checkpoint was complete has rows too: up to the second checkpoint, before which the
        trainer waits for the first, in a folder `checkpoints` that exists. It has no mark `trained`.
        """
        if self.trained or self.bucket is not None or not self.metrics.is_file():
            return  # the ledger of a bucket tells that there is no checkpoint
        config, last = (
            (self._config_before or self.typed_config()).concrete,
            max((row["step"] for row in self.rows()), default=0),
        )
        periods: list[float] = [config.train.checkpoint_every]
        if config.data.source("eval") is not None:
            periods.append(config.train.eval_every)
        due = sum(any(step % period == 0 for period in periods) for step in range(1, last))
        if last > 0 and (due > 1 or not self.checkpoints.is_dir() or "trained" in marks(self.path)):
            raise ValueError(
                f"{self.metrics} knows of {last} steps, but {self.checkpoints} has no checkpoint: mount or restore it; to start "
                f"from step 0, delete {self.metrics.name}"
            )

    def tokenizers(self, data: DataConfig, vocab_sizes: tuple[int, int], pairs: Iterable[Pair]) -> Tokenizers:
        """Returns the run's tokenizers. If the folder has none, trains them on `pairs` and saves them.

        The files beside the tokenizer of another run are copied too, before the tokenizer's file, which shows that all are there.
        """
        if not any(self.path.glob("tokenizer.*")):
            trained = train_tokenizers(data, vocab_sizes, pairs)
            if isinstance(data.tokenizer, FromRun):
                data.tokenizer.copy_files(data.target_tokenizer, self.path / "huggingface")
            save_tokenizers(trained, self.path)
        return self.load_tokenizers(data, vocab_sizes)

    def keep_origin(self, start: "RunFolder") -> None:
        """Copies the files of the system that the weights of the run `start` were imported from, with the mark that they train.

        Its teachers are those of this run too.
        """
        if self.silent:
            return
        self.add_teachers(start.teachers)
        if not (imported := start.imported):
            return
        copy_files(start.path / "huggingface", self.path / "huggingface", SENTENCE_FILES)
        write_json(self.path / IMPORTED, imported | {"trained": True})

    @property
    def imported(self) -> dict[str, Any]:
        """The content of imported.json; {} without it."""
        return self._read(IMPORTED, dict)

    @property
    def teachers(self) -> list[dict[str, Any]]:
        """The models whose translations the run learns from, as `as_teacher` describes them."""
        return self._read(TAUGHT_BY, lambda found: [{"name": one["name"], "license": one["license"]} for one in found])

    def _read(self, name: str, form: Callable[[Any], T]) -> T:
        """Returns the content of a JSON file in a form; an empty list has no file. Raises: ValueError for another form."""
        file = self.path / name
        try:
            return form(json.loads(file.read_bytes()) if file.is_file() else [])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise ValueError(f"{file} is garbled: restore it from a copy of the run") from None

    def add_teachers(self, more: Iterable[Mapping[str, object]]) -> None:
        """Adds models to `teachers`, each once."""
        known = self.teachers
        for one in more:
            known += [dict(one)] if one not in known else []
        if known:
            write_json(self.path / TAUGHT_BY, known)

    def as_teacher(self) -> dict[str, object]:
        """Returns the name of the run, of an imported one that of its model, and the licence that its model states, or None."""
        imported = self.imported
        weights = str(imported.get("weights", ""))
        name = weights.removeprefix("hf://") if weights.startswith("hf://") else Path(weights).name
        name = self.title if imported.get("trained") or not name else name
        return {"name": name, "license": imported.get("license")}

    def load_tokenizers(self, data: DataConfig, vocab_sizes: tuple[int, int]) -> Tokenizers:
        """Reads the run's tokenizers. Raises: ValueError if they are missing, damaged, or have ids past the `vocab_sizes`."""
        two = data.target_tokenizer is not None
        tokenizers = load_run_tokenizers(self.path, vocab_sizes, two=two, languages=data.languages)
        if isinstance(tokenizers, LanguageTokenizers) and tokenizers.own and data.subword_sampling is not None:
            raise ValueError(
                "data.subword_sampling is set, but pieces of added languages are not sampled: set it to None"
            )
        return tokenizers

    def append(self, row: dict[str, Any]) -> dict[str, Any]:
        """Adds a row to metrics.jsonl, and returns it as it stands in the file: None for a number that is not finite.

        Raises: Failure if another process trains in the folder, and writes these rows itself.
        """
        self.check_lock()
        row = finite(row)
        if not self.silent:
            with open(self.metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        return row

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of metrics.jsonl by their steps, without a last line that a crash left incomplete.

        A number that is not finite is None. If two processes wrote rows for one step, after `.lock` was deleted, the last counts.
        """
        if not self.metrics.is_file():
            return []
        rows: dict[tuple[int, str], dict[str, Any]] = {}
        for number, line in enumerate(self.metrics.read_text(encoding="utf-8", errors="replace").split("\n")[:-1], 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if is_row(row):
                key = row["step"], row["split"]
                if row["split"] == "change" and key in rows:
                    before = rows[key]["settings"]  # two changes, one after the other, are one
                    then = {name: [before.get(name, pair)[0], pair[1]] for name, pair in row["settings"].items()}
                    row["settings"] = before | then
                rows[key] = {"step": row["step"], "split": row["split"], **finite(row)}
            else:
                warn(f"{self.metrics}, line {number} is not a row of metrics: it was skipped")
        return sorted(rows.values(), key=lambda row: row["step"])

    def reports(self) -> list[dict[str, object]]:
        """Returns the reports of the command `evaluate`. Raises: ValueError for a file that is not a report."""
        reports = []
        for file in sorted((self.path / "evaluations").glob("*.json")):
            try:
                report = json.loads(file.read_bytes())
            except (OSError, ValueError, RecursionError):
                report = None
            if not isinstance(report, dict):
                raise ValueError(f"{file} is not a report of evaluate: delete it, or evaluate again")
            reports.append(report)
        return reports

    def results(self, step: int, weights: str) -> list[dict[str, Any]]:
        """Returns the reports of `evaluate` on these weights of that step, or else the row of its evaluation in training."""
        reports = [
            report for report in self.reports() if (report.get("step"), report.get("weights")) == (step, weights)
        ]
        if reports or weights not in ("last", "best"):  # training evaluates neither averages nor ema
            return reports
        return [row for row in self.rows() if row["step"] == step and row["split"] == "eval"]

    def truncate_metrics(self, step: int, *, evaluated: bool = True, log_every: int | None = None) -> None:
        """Deletes the rows after `step`, and the `eval` row at `step` unless `evaluated`: the run writes them again.

        Rows of settings that were changed after `step` move to `step`: the run goes on with these settings.

        With `log_every`, the steps between rows of training, it warns where rows before `step` are lost.
        """
        steps = [0, 0, *(row["step"] for row in self.rows() if row["split"] == "train" and row["step"] <= step)]
        if log_every is not None and step - steps[-1] >= max(log_every, steps[-1] - steps[-2]) and not self.silent:
            warn(
                f"{self.metrics} lacks the rows of steps {steps[-1] + 1} to {step}: it was cut or damaged, those are lost"
            )
        if self.metrics.is_file():
            rows = [
                {**row, "step": min(row["step"], step)}
                for row in self.rows()
                if row["step"] < step
                or (row["step"] == step and (evaluated or row["split"] != "eval"))
                or row["split"] == "change"
            ]
            self._write(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def write_hypotheses(self, name: str, pairs: Sequence[Pair], hypotheses: Sequence[str]) -> None:
        """Writes all hypotheses, one per line, and samples of them."""
        self._write(self.path / "hypotheses" / f"{name}.txt", as_lines(hypotheses))
        self.write_samples(name, pairs, hypotheses)

    def write_references(self, name: str, pairs: Sequence[Pair]) -> None:
        """Writes the sources and the references of hypotheses, line by line, for programs that score them."""
        self._write(self.path / "hypotheses" / f"{name}.source", as_lines([pair.source for pair in pairs]))
        self._write(self.path / "hypotheses" / f"{name}.reference", as_lines([pair.target for pair in pairs]))

    def write_samples(self, name: str, pairs: Sequence[Pair], hypotheses: Sequence[str]) -> None:
        """Writes the first hypotheses with their sources and references."""
        samples = [Sample(pair.source, pair.target, answer) for pair, answer in zip(pairs, hypotheses, strict=True)]
        self._write(self.path / "samples" / f"{name}.txt", format_samples(samples[:NUM_SAMPLES]))
        # Those of older evaluations go, except those whose checkpoint exists.
        for kind in ("samples", "hypotheses") if not self.silent else ():
            for step, file in list(evaluation_files(self.path / kind).items())[:-MOST_ANSWERS]:
                if not (self.checkpoints / str(step)).exists():
                    file.unlink()

    def _write(self, path: Path, text: str) -> None:
        if not self.silent:
            write_whole(path, text)


def check_new_run(path: str | Path) -> RunBucket | None:
    """Returns the bucket of a run that is to be written at a URL; None for a folder. Raises: ValueError if the place is taken."""
    bucket = bucket_to_train(path)
    if bucket is None:
        require_absent(Path(path))
    elif bucket.store.names():
        raise ValueError(f"{path} has files already: give an empty place")
    return bucket


@contextlib.contextmanager
def new_run(path: str | Path) -> Iterator[RunFolder]:
    """Yields the folder of a run that is to be written; at the end it is in its place, a folder or a URL, after an error nowhere.

    Raises: ValueError if the place is taken, or cannot be written.
    """
    bucket = check_new_run(path)
    if bucket is None:
        with atomic_write(Path(path)) as unfinished:
            yield RunFolder(unfinished)
        return
    with bucket.held():
        try:
            yield RunFolder(path, bucket=bucket)
        except BaseException:
            bucket.empty()
            raise
