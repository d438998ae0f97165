"""The end of a command that makes a run: scores of the held-out test and a report, each made once."""

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flaxformer_lite.base.atomic_files import write_json
from flaxformer_lite.base.console import note
from flaxformer_lite.core.base.progress import no_progress
from flaxformer_lite.run import Run
from flaxformer_lite.run.scoring import TEST_SCORES, ScoredData, save_scores, score
from flaxformer_lite.workdir.folder import finite


def scored_once(run: Run, data: ScoredData, decode: Mapping[str, object], made: Sequence[str]) -> dict[str, Any]:
    """Returns the scores of a run at its step; new ones delete what was made of an earlier step.

    made: files and folders of the run.
    """
    folder = run.folder.path
    before = run.test_scores
    if before is not None:
        return before
    for name in ("report.html", *made):
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        (folder / name).unlink(missing_ok=True)
    scores, hypotheses = score(run, data, decode)
    about = {"run": str(folder), "split": data.name, "weights": run.config.weights, "step": run.step}
    scores = finite(about | scores)
    save_scores(run, scores, data.pairs, hypotheses)
    write_json(folder / TEST_SCORES, scores)
    return scores


def exported_once(exported: Path, export: Callable[[Path], None], system: str) -> Path | None:
    """Returns the folder of an export; None, with a note, for a model that the system does not have."""
    if not exported.is_dir():
        try:
            export(exported)
        except ValueError as error:
            note(f"left out: the folder for {system}: {error}")
            return None
    return exported


def report_once(folder: Path) -> Path | None:
    """Returns the page of the report; None, with a note, without Altair."""
    if importlib.util.find_spec("altair") is None:
        note('left out: the report needs altair (pip install "flaxformer-lite[report]")')
        return None
    page = folder / "report.html"
    if not page.is_file():
        from flaxformer_lite.tools.report import make_report, write_page

        write_page(make_report([str(folder)], [], no_progress), page)
    return page
