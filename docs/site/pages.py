"""Hook of MkDocs: pages that lie outside docs/ or are made of the package, and links that lead out of docs/.

Links are written for GitHub: relative paths of files in the repository. Here a link to a file that is a page of the site becomes a
link to that page, any other one a link to the file on GitHub.
"""

import ast
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "index.md": "README.md",
    "notebooks.md": "notebooks/README.md",
    "benchmarks.md": "benchmarks/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
"""Pages of the site and the files of the repository that they are."""
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)[^)\s#]+(?=[)#])")
"""The path in a Markdown link, without its anchor."""


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    from mkdocs.structure.files import File

    for name, path in ELSEWHERE.items():
        header = "---\nhide: [navigation]\n---\n" if name == "index.md" else ""
        files.append(File.generated(config, name, content=header + (ROOT / path).read_text(encoding="utf-8")))
    for name, content in api_pages().items():
        files.append(File.generated(config, f"api/{name}.md", content=content))
    return files


def api_pages() -> dict[str, str]:
    """Returns a page for each public face of the package: the names in its `__all__`."""
    pages, package = {}, ROOT / "flaxformer_lite"
    for file in sorted(package.rglob("__init__.py")):
        module = ".".join(file.parent.relative_to(ROOT).parts)
        names = public_names(ast.parse(file.read_text(encoding="utf-8")))
        if names:
            title = module.removeprefix("flaxformer_lite.")
            options = f"    options:\n      members: {names}\n"
            pages[title] = f"# {module}\n\n::: {module}\n{options}"
    return pages


def public_names(tree: ast.Module) -> list[str]:
    """Returns the names in `__all__`; none if there is no such list."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    source = ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return LINK.sub(lambda link: site_link(link[0], source, page.file.src_uri, config.extra["repository"]), markdown)


def site_link(target: str, source: str, page: str, repository: str) -> str:
    """Returns what a link of the repository's file `source` is on the site, where this file is `page`.

    Paths are those of the repository; a page's is relative to docs/.
    """
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    names = {file: name for name, file in ELSEWHERE.items()}
    if path in names or (path.startswith("docs/") and not path.endswith(".py")):
        name = names.get(path, path.removeprefix("docs/"))
        return posixpath.relpath(name, posixpath.dirname(page) or ".")
    if not (ROOT / path).exists():
        return target  # MkDocs reports it
    return f"{repository}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"
