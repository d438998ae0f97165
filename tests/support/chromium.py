"""A page in Chromium, and all that it should not say or ask for."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from tests.support import needs


@contextlib.contextmanager
def opened(url: str, width: int, scheme: str, *, own: tuple[str, ...]) -> Iterator[tuple[Any, list[str]]]:
    """Opens a page of that width in a light or a dark scheme, in which its background must be.

    Yields the tab, and a list of its console's messages, its errors, and its requests for anything but URLs that begin with `own`.
    """
    from playwright.sync_api import sync_playwright

    heard: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=needs.CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        tab.on("console", lambda message: heard.append(message.text))
        tab.on("pageerror", lambda error: heard.append(str(error)))
        tab.on("request", lambda sent: None if sent.url.startswith(own) else heard.append(sent.url))
        tab.goto(url)
        background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) > 382) == (scheme == "light")
        yield tab, heard
        browser.close()
