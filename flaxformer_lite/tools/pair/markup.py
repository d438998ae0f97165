"""Entities and tags of HTML, which texts of the web keep where a program did not read them: "&quot;", "<br/>"."""

import re
from html.entities import html5

PLAIN_ELEMENTS = (
    "a|abbr|acronym|b|bdo|big|blockquote|body|br|center|cite|dd|div|dl|dt|em|figure|font|h[1-6]|hr|html|i|iframe|img|ins|li|nobr|"
    "noscript|ol|p|pre|q|ruby|s|script|small|span|strike|strong|sub|sup|svg|tbody|td|tfoot|th|thead|tr|tt|u|ul|wbr"
)
"""The elements whose names in angle brackets are always tags."""
OTHER = (
    "address|article|aside|audio|base|button|caption|code|col|del|details|fieldset|footer|form|frame|head|header|input|kbd|label|"
    "legend|link|main|map|mark|menu|meta|nav|object|option|param|picture|rp|rt|samp|section|select|source|style|summary|table|"
    "textarea|time|title|var|video"
)
"""Elements whose names stand for a user's word in texts about programs: <source> is a tag only with attributes or a slash."""
ATTRIBUTE = r"""\s+[\w:-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[^\s"'<>]+)"""
TAG = re.compile(
    rf"<(?:{PLAIN_ELEMENTS})(?:{ATTRIBUTE})*\s*/?>|<(?:{OTHER})(?:(?:{ATTRIBUTE})+\s*/?|\s*/)>|</(?:{PLAIN_ELEMENTS}|{OTHER})\s*>"
    r"|<!--|<!\[CDATA\[|<!DOCTYPE\b",
    re.IGNORECASE,
)
USUAL = "amp|quot|apos|nbsp|lt|gt"
NUMBER = "(?:[0-9]{2,7}|x[0-9a-f]{2,6})"
ENTITY = re.compile(rf"&(\w+;)|&\s?#\s?{NUMBER}\s?;|&#{NUMBER}|&\s?(?:{USUAL})\s?;|&(?:{USUAL})\b(?!=)", re.IGNORECASE)
"""A name that HTML's table may have; a number; the usual names, also with spaces inside or without their semicolon."""


def has_markup(text: str) -> bool:
    """Returns whether a text has an entity or a tag of HTML."""
    if "<" in text and TAG.search(text):
        return True
    return "&" in text and any(match[1] is None or match[1] in html5 for match in ENTITY.finditer(text))
