"""The whole of `pair`: the data, the teachers' part of it, the training, the scores, the export and the report, each made once."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from flaxformer_lite.base.atomic_files import write_json
from flaxformer_lite.base.console import note
from flaxformer_lite.engine import Engine
from flaxformer_lite.engine.rules import CannotAnswer
from flaxformer_lite.interop.exporting import export_ctranslate2
from flaxformer_lite.metrics.translations import text_report
from flaxformer_lite.run import Run, load
from flaxformer_lite.run.description import describe_teachers
from flaxformer_lite.run.scoring import ScoredData, scored_data
from flaxformer_lite.tools.making.finishing import exported_once, report_once, scored_once
from flaxformer_lite.tools.making.timing import deadline_of
from flaxformer_lite.tools.pair.folder import parallel
from flaxformer_lite.tools.pair.models import NO_MODELS, Models
from flaxformer_lite.tools.pair.preparing import SPLITS, prepare
from flaxformer_lite.tools.pair.teaching import teacher_scores
from flaxformer_lite.training import train

EXPORT_SCORES = "evaluations/ctranslate2.json"


class Made(NamedTuple):
    """The results of `make` in a run folder."""

    scores: dict[str, Any]
    """Scores of the held-out test data, with the step of the run; `teacher` has those of the teachers."""
    exported: Path | None
    """The folder of CTranslate2, with weights of eight bits; None for a model that CTranslate2 does not have."""
    exported_scores: dict[str, Any] | None
    """Scores of the export in int8; None without CTranslate2."""
    report: Path | None
    """The page; None without Altair."""


def make(
    files: Sequence[str],
    folder: Path,
    *,
    columns: Sequence[int | str] = (),
    keep: Collection[str] = (),
    hours: float | None = None,
    engine: Engine = "auto",
    models: Models = NO_MODELS,
    tell: Callable[[str], None] = lambda result: None,
) -> Made | None:
    """Makes a translator of parallel files in a run folder, or continues it; None if a signal stopped the training.

    Args:
        files: a file of sources and one of targets, or one table with both; `columns` are those of the table.
        keep: rules of the cleaning that remove nothing, of `RULES`, and with teachers of `OF_ANSWERS`.
        hours: the time for all but the translations of teachers; None: what the text is worth.
        engine: what translates the held-out text, and for teachers; see `Run.searching`.
        models: the teachers, and the run that the training starts from.
        tell: is called with each result, a line, once it is there.

    Raises: ValueError for files that are no pairs, and for a folder that was made of something else.
    """
    config = prepare(files, keep, folder, deadline_of(hours), columns, models, engine)
    if train(config, folder):
        note(f"{folder} is not finished: the same command trains to step {config.train.steps:,}, scores and exports")
        return None
    here = replace(config.data, test=parallel(folder / "data", SPLITS["test"]))  # the folder may have been moved
    run = load(folder)
    data = scored_data(replace(config, data=here), "test", None, None)
    scores = scored_once(run, data, {"engine": engine}, ["ctranslate2", EXPORT_SCORES])
    taught = teacher_scores(folder)
    if taught.is_file():
        scores["teacher"] = json.loads(taught.read_bytes())
    tell(f"BLEU {scores['bleu']:.2f}  {scores['bleu_signature']}  ({scores['sentences']:,} sentences held out)")
    if "teacher" in scores:
        tell(f"BLEU {scores['teacher']['bleu']:.2f}  of the teacher; learned from: {describe_teachers(run.folder)}")

    def export(exported: Path) -> None:
        export_ctranslate2(folder, exported, weights_dtype="int8")

    exported = exported_once(folder / "ctranslate2", export, "CTranslate2")
    exported_scores = None
    if exported is not None:
        bytes_of_all = sum(file.stat().st_size for file in exported.iterdir())
        tell(f"{exported}: {bytes_of_all / 1e6:,.1f} MB in int8, for CTranslate2")
        exported_scores = int8_scored_once(run, data, exported)
    if exported_scores is not None:
        tell(f"BLEU {exported_scores['bleu']:.2f}  in int8, by --engine ctranslate2 --weights-dtype int8")
    page = report_once(folder)
    if page is not None:
        tell(str(page))
    return Made(scores, exported, exported_scores, page)


def int8_scored_once(run: Run, data: ScoredData, exported: Path) -> dict[str, Any] | None:
    """Returns the scores of the translations with weights of eight bits; None, with a note, if CTranslate2 cannot make them."""
    file = exported.parent / EXPORT_SCORES
    if not file.is_file():
        try:
            sources = [pair.source for pair in data.pairs]
            options = {"engine": "ctranslate2", "weights_dtype": "int8"}
            texts = run.translate(
                sources, warn=lambda line: None, **options
            )  # whose warnings the run's own scores told
        except (CannotAnswer, OSError) as error:
            note(f"{exported} is made, and its BLEU left out: {error}")
            return None
        scores = options | text_report(texts, [pair.target for pair in data.pairs], data.metrics)
        write_json(file, scores)
    saved: dict[str, Any] = json.loads(file.read_bytes())
    return saved
