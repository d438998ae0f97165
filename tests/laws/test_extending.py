"""Law: the code in docs/extending.md is that of the tests it names, and its diffs apply to the files they name."""

import re

import pytest

from tests.support.paths import ROOT

GUIDE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
SECTIONS = GUIDE.split("\n## ")[1:]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_the_guide_shows_tested_code(section: str):
    (test,) = re.findall(r"^From \[.*?\]\(\.\./(tests/[^)]+)\)", section, re.MULTILINE)
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert code in (ROOT / test).read_text(encoding="utf-8")
    (diff,) = re.findall(r"```diff\n(.*?)```", section, re.DOTALL)
    name, *changes = diff.splitlines()
    lines = (ROOT / name.removeprefix("--- ")).read_text(encoding="utf-8").splitlines()
    assert changes and all(change[1:] in lines for change in changes if change.startswith("-"))
