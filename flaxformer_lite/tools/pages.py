"""Parts of HTML pages: the style that they share, the files of a package, and the digests with which a policy names scripts."""

import base64
import hashlib
import importlib.resources


def resource(package: str, name: str) -> str:
    return importlib.resources.files(package).joinpath(name).read_text(encoding="utf-8")


def policy_digest(content: str) -> str:
    """Returns the digest with which a page's policy names a script or a style.

    Reference: W3C, Content Security Policy Level 3, 2.3.1.
    """
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")


STYLE = resource("flaxformer_lite.tools", "pages.css")
"""Colours in light and dark, text, tables and forms."""
