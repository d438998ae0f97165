"""The try-it page: one document with its style and script inside; a browser runs no other script and loads nothing else."""

import functools

from flaxformer_lite.tools.pages import STYLE, digest, resource


@functools.cache
def page() -> tuple[str, str]:
    """Returns the page, and the content security policy of its response."""
    script = resource("flaxformer_lite.tools.serve", "page.js")
    style = STYLE + resource("flaxformer_lite.tools.serve", "page.css")
    text = (
        resource("flaxformer_lite.tools.serve", "page.html").replace("/*style*/", style).replace("/*script*/", script)
    )
    policy = (
        f"default-src 'none'; img-src data:; connect-src 'self'; style-src '{digest(style)}'; script-src '{digest(script)}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return text, policy
