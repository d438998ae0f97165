"""The page and PNG files. The page is a template with every script inside; its policy forbids a browser all others."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from flaxformer_lite.base.atomic_files import atomic_write, write_whole
from flaxformer_lite.core.base.progress import ProgressCallback
from flaxformer_lite.tools.pages import STYLE, policy_digest, resource
from flaxformer_lite.tools.report.plots import Chart, altair, attention_map
from flaxformer_lite.tools.report.tabs import ReportContent

PNG_DENSITY = 144
"""Points an inch of PNG files: twice the size of the page's."""


def write_page(report: ReportContent, path: Path) -> None:
    """Writes the page, completely or not at all. Raises: ValueError if the extra `report` is not installed."""
    write_whole(path, report_page(report, chart_library()))


def write_png(chart: Chart, path: Path) -> None:
    """Writes a chart, completely or not at all."""
    with atomic_write(path) as unfinished:
        chart.save(str(unfinished), format="png", ppi=PNG_DENSITY)


def write_charts(report: ReportContent, folder: Path, progress: ProgressCallback) -> None:
    """Writes every chart of a report into a folder, as a PNG file with the name of the chart."""
    figures = report.figures()
    for done, (name, chart) in enumerate(figures.items()):
        progress(f"writing {name}", done, len(figures))
        write_png(chart, folder / f"{file_name(name)}.png")


def file_name(name: str) -> str:
    """Returns a chart's name as one of a file: letters, digits, dots and dashes."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "chart"


def chart_library() -> str:
    """Returns the JavaScript that draws charts: Vega-Lite of the version that Altair writes for."""
    version = altair().SCHEMA_VERSION.removeprefix("v")
    import vl_convert

    version = ".".join(version.split(".")[:2])
    return vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]  # only its stub wants a snippet


def report_page(report: ReportContent, library: str) -> str:
    """Returns the page. Texts of runs are escaped, and a browser runs no script but the two whose digests the page names."""
    from jinja2 import Environment
    from markupsafe import Markup

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False}
    scripts = [script.replace("</script", "<\\/script") for script in (library, resource(__package__, "page.js"))]
    figures = {"curves": specs("curve", report.curves), "data": specs("data", report.data)}
    empty = attention_map(np.zeros((0, 0)), [], [])
    return environment.from_string(resource(__package__, "page.html")).render(
        report=report,
        figures=figures,
        charts={name: spec for group in figures.values() for name, spec in group.items()}
        | ({"attention": empty.to_dict()} if report.attention else {}),
        sentences=[sentence.packed() for sentence in report.attention],
        style=Markup(STYLE + resource(__package__, "page.css")),
        scripts=[Markup(script) for script in scripts],
        digests=[policy_digest(script) for script in scripts],
    )


def specs(group: str, figures: dict[str, Any]) -> dict[str, object]:
    """Returns the charts as Vega-Lite, under identifiers of their own."""
    return {f"{group}-{i}": json.loads(chart.to_json()) for i, chart in enumerate(figures.values())}
