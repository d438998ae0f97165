"""Makes a translator from two parallel files, or from a TSV or CSV: `flaxformer-lite pair a.en a.de -o runs/en-de [--hours 2]`.

It cleans the pairs, holds out validation and test, chooses a config, trains, scores, exports to CTranslate2 and writes a report.
Stopped, it ends with exit status 130, and the same command continues. Every choice is in RUN/config.json, which `train` runs alone.
"""

import argparse
import importlib.util
import json
import math
import shutil
import time
from pathlib import Path

RULE_NAMES = ("empty", "encoding", "markup", "identical", "duplicate", "length", "language", "translation")
"""The rules of the cleaning; named here too, because their file needs JAX."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a file of sources and one of targets, or one TSV or CSV with both"
    )
    parser.add_argument(
        "--columns",
        nargs=2,
        metavar=("SOURCE", "TARGET"),
        default=[],
        help="the columns of the table: numbers from 0, or names in its header; default: the only two",
    )
    parser.add_argument(
        "-o", "--output", metavar="RUN", required=True, help="the run folder; a new one, or one to continue"
    )
    parser.add_argument(
        "--hours", type=float, metavar="H", help="time for all, from 0.05 on; default: what the text is worth"
    )
    parser.add_argument(
        "--keep",
        metavar="RULE",
        action="append",
        default=[],
        choices=RULE_NAMES,
        help=f"keep the pairs that this rule would remove; may be repeated: {', '.join(RULE_NAMES)}",
    )


def run(arguments: argparse.Namespace) -> None:
    started, hours = time.monotonic(), arguments.hours
    if hours is not None and not (0.05 <= hours < math.inf):
        raise ValueError(f"--hours is {hours}: it must be at least 0.05; compiling and scores alone take two minutes")
    if len(arguments.files) > 2:
        raise ValueError(f"{len(arguments.files)} files: give a file of sources and one of targets, or one table")
    columns = [int(column) if column.isdecimal() else column for column in arguments.columns]
    if len({*columns}) < len(columns):
        raise ValueError(f"--columns are both {columns[0]!r}: choose two columns")
    from flaxformer_lite.base.atomic_files import write_whole
    from flaxformer_lite.base.console import note
    from flaxformer_lite.cli import scoring
    from flaxformer_lite.interop.exporting import export_ctranslate2
    from flaxformer_lite.run import load
    from flaxformer_lite.run.scoring import score, scored_data
    from flaxformer_lite.tools.pair import prepare, score_int8
    from flaxformer_lite.training import train
    from flaxformer_lite.workdir.folder import finite

    folder = Path(arguments.output)
    deadline = None if hours is None else started + 3600 * hours
    config = prepare(arguments.files, arguments.keep, folder, deadline, columns)
    if train(config, folder) is None:
        note(f"{folder} is not finished: the same command trains to step {config.train.steps:,}, scores and exports")
        raise KeyboardInterrupt
    loaded, data = load(folder), scored_data(config, "test", None, None)
    file, exported, page = folder / "data" / "scores.json", folder / "ctranslate2", folder / "report.html"
    of_export = folder / "evaluations" / "ctranslate2.json"
    scores = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if scores.get("step") != loaded.step:  # trained on since
        shutil.rmtree(exported, ignore_errors=True)
        for made in (of_export, page):
            made.unlink(missing_ok=True)
        scores, hypotheses = score(loaded, data, {})
        about = {"run": str(folder), "split": data.name, "weights": config.weights, "step": loaded.step}
        scores = finite(about | scores)
        scoring.save(loaded, scores, data.pairs, hypotheses)
        write_whole(file, json.dumps(scores, indent=2) + "\n")
    print(f"BLEU {scores['bleu']:.2f}  {scores['bleu_signature']}  ({scores['sentences']:,} sentences held out)")
    if not exported.is_dir():
        export_ctranslate2(folder, exported)
    if importlib.util.find_spec("ctranslate2") is None:
        note(f"{exported} is made, and its BLEU left out: CTranslate2 is not installed (pip install ctranslate2)")
    else:
        if not of_export.is_file():
            write_whole(of_export, json.dumps(score_int8(loaded, exported, data), indent=2) + "\n")
        print(
            f"BLEU {json.loads(of_export.read_text(encoding='utf-8'))['bleu']:.2f}  of CTranslate2 in int8: {exported}"
        )
    if importlib.util.find_spec("altair") is None:
        note('left out: the report needs altair (pip install "flaxformer-lite[report]")')
    else:
        if not page.is_file():
            from flaxformer_lite.tools.report import make_report, write_page

            write_page(make_report([str(folder)], [], lambda part, done, total: None), page)
        print(page)
    print(
        f"\nflaxformer-lite translate {folder} < FILE\nflaxformer-lite serve {folder}\nflaxformer-lite evaluate {folder}"
    )
