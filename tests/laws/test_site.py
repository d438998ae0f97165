"""Laws of the documentation: links lead to a file and a heading, every page is in the site's navigation, every setting on its page.

`mkdocs build --strict` checks the rest of the site in CI.
"""

import dataclasses
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from flaxformer_lite.config import Config
from flaxformer_lite.config.settings import TYPES
from tests.support.paths import ROOT

NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]


def hook(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES, SETTINGS = hook("pages"), hook("settings")


WRITTEN = sorted(
    {
        *ROOT.glob("*.md"),
        *(page for room in ("docs", "lab", "benchmarks", "notebooks") for page in (ROOT / room).rglob("*.md")),
    }
)


def slugs(page: Path) -> set[str]:
    """Returns the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    links = re.findall(r"\]\(([^)\s:]*?)(?:#([^)\s]*))?\)", text)
    missing = []
    for path, anchor in links:
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in slugs(target)):
            missing.append(f"{path}#{anchor}")
    assert not missing


def test_every_page_is_in_the_navigation():
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} | {*PAGES.ELSEWHERE, "settings.md"}
    pages |= {f"api/{name}.md" for name in PAGES.api_pages()}
    assert set(re.findall(r"[\w/.-]+\.md", NAVIGATION)) == pages


def test_every_setting_has_a_row_with_its_meaning():
    """Each dataclass once, with all its settings; `meaning` refuses a setting without a docstring."""
    page = SETTINGS.settings_page()
    parts = [hint for hint in SETTINGS.type_hints(Config).values() if SETTINGS.variants_in(hint)]
    rows = sum(len([field for field in dataclasses.fields(_type) if field.name != "kind"]) for _type in TYPES)
    assert page.count("\n| `") == rows - len(parts)
    linked, headings = set(re.findall(r"\]\(#(\w+)\)", page)), re.findall(r"\{ #(\w+) \}", page)
    assert linked == set(headings) and len(headings) == len(linked)
    assert "| `train.steps`<br>default `10000` | Optimizer steps of the whole run;" in page
    assert "*at least 1*" in page and "choose one" not in page


@pytest.mark.parametrize(
    ("target", "source", "page", "link"),
    [
        ("docs/install.md", "README.md", "index.md", "install.md"),
        ("../README.md", "docs/results.md", "results.md", "index.md"),
        ("../../CONTRIBUTING.md", "docs/systems/paddle.md", "systems/paddle.md", "../contributing.md"),
        ("huggingface.md", "docs/systems/paddle.md", "systems/paddle.md", "huggingface.md"),
        ("../configs/char_lm.py", "docs/model.md", "model.md", "R/blob/main/configs/char_lm.py"),
        ("pictures/terminal.py", "docs/training.md", "training.md", "R/blob/main/docs/pictures/terminal.py"),
        ("quickstart.ipynb", "notebooks/README.md", "notebooks.md", "R/blob/main/notebooks/quickstart.ipynb"),
        ("../nothing.md", "docs/model.md", "model.md", "../nothing.md"),
    ],
)
def test_links_lead_where_they_do_on_github(target: str, source: str, page: str, link: str):
    assert PAGES.site_link(target, source, page, "R") == link


def test_only_paths_are_links():
    text = "[a](x.md#b) [c](#d) [e](https://f) [g](mailto:h) `[i](j k)`"
    assert PAGES.LINK.findall(text) == ["x.md"]
