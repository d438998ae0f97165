"""The configs that come with the package: `configs/` lies beside it in a checkout, and inside it in a wheel."""

import ast
from pathlib import Path

PACKAGE_FOLDER = Path(__file__).parents[1]
FOLDER = next(folder for folder in (PACKAGE_FOLDER / "configs", PACKAGE_FOLDER.parent / "configs") if folder.is_dir())


def shipped_configs() -> dict[str, Path]:
    """Returns the file of every config by its name, such as `quickstart`, in alphabetical order."""
    return {file.stem: file for file in sorted(FOLDER.glob("*.py")) if file.stem != "__init__"}


def header(file: Path) -> str:
    """Returns the first line of a config's docstring, which says what it trains. The file is not run."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]
