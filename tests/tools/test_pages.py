"""Parts of pages: digests as browsers compute them, and the files of the package."""

from flaxformer_lite.tools.pages import STYLE, policy_digest, resource


def test_a_digest_is_the_one_that_browsers_compute():
    """Oracle: the example of the specification, 2.3.1: `alert('Hello, world.');`."""
    assert policy_digest("alert('Hello, world.');") == "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng="


def test_the_style_has_both_schemes():
    assert resource("flaxformer_lite.tools", "pages.css") == STYLE and "prefers-color-scheme: dark" in STYLE
