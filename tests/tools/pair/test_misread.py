"""Damage in a part of a text. Oracle: texts of many languages that were damaged on purpose, and odd but good ones."""

import random
import re

import pytest

from flaxformer_lite.tools.pair.markup import has_markup
from flaxformer_lite.tools.pair.misread import is_misread
from tests.support.misread import misread

TEXTS = (
    "Ein Mann schläft auf der Straße.", "„Größe“ – 5 €", "Ávila – schön", "Le garçon a été là, à côté.", "« Où ? » l’élève",
    "¿Qué pasó ayer, señor?", "Amanhã não há pão.", "È così; perché no?", "Zażółć gęślą jaźń.", "Příliš žluťoučký kůň úpěl.",
    "Árvíztűrő tükörfúrógép", "Și ăsta țipă.", "Şu ağaç çok güzel, İstanbul.", "Hún fór heim í gær.", "Blåbær på fjället",
    "Żebyś wiedział…", "Šis ir mans draugs.", "Мужчина спит.", "Ой, і є її їжа.", "Ο άνθρωπος κοιμάται.", "האיש ישן.",
    "الرجل نائم.",
    "一个人在睡觉。", "男の人が寝ている。", "남자가 자고 있다.", "आदमी सो रहा है।", "ชายคนหนึ่งกำลังนอนหลับ", "Người đàn ông đang ngủ.",
    "“Fine,” he said – it’s 5 °C…", "a → b ≤ c, 3 × 4", "😀 ok", "π ≈ 3",
)  # fmt: skip


def character(text: str, draw: random.Random) -> str:
    i = draw.choice([i for i, character in enumerate(text) if not character.isascii()])
    return text[:i] + misread(text[i]) + text[i + 1 :]


def word(text: str, draw: random.Random) -> str:
    chosen = draw.choice([found for found in re.finditer(r"\S+", text) if not found[0].isascii()])
    return text[: chosen.start()] + misread(chosen[0]) + text[chosen.end() :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text, draw: misread(text),
        lambda text, draw: text.encode().decode("latin-1"),
        lambda text, draw: misread(misread(text)),
        word,
        character,
        lambda text, draw: word(text, draw) + " → Łódź",
        lambda text, draw: text[:3] + "\ufffd" + text[3:],
    ],
    ids=["Windows-1252", "Latin-1", "twice", "a word", "a character", "beside good ones", "lost"],
)
def test_misread_parts_are_found_in_every_language(damage):
    draw = random.Random(0)
    made = [damage(text, draw) for text in TEXTS for _ in range(10)]
    missed = [text for text in made if not is_misread(text)]
    assert len(missed) <= 0.02 * len(made), missed


GOOD = (
    "Â", "Ã", "Ä", "Ã ", "Ä“, sagte er", "das „Ä“", "Der Umlaut “Ä”", "Viel Spaß“, rief er", "CAFÉ”", "MANHÃ”", "NESCAFÉ®",
    "Il a crié…”", "voilà…»", "un « café\u00a0» noir", "à\u00a0« moi", "«Sé»—dijo", "víš…", "léž“", "Úžasný", "Íšenie", "Öž",
    "5×½", "GRÖ\u00adSSE", "ÉCOLE", "A–Ä–Ö", "l’É’, dit-on", "payé\u00a0£5", "Ä… ich weiß nicht", "plain",
)  # fmt: skip


@pytest.mark.parametrize("text", [*TEXTS, *GOOD])
def test_good_texts_stay(text: str):
    assert not is_misread(text)


MARKUP = (
    "&quot;Yes&quot;", "Q&amp;A", "it&#39;s", "it&#x27;s", "a&nbsp;b", "&lt;b&gt;", "&eacute;t&eacute;", "&amp;quot;", "&hellip;",
    "& quot ; yes", "& # 39 ;", "stone &amp tile", "&nbsp Text", "don&#39t", "<p>A dog.", "one<br/>two", "<br />", "</P>",
    '<a href="x.html">here</a>', "<b>Stop</b>", "<font color=red>x", "<IMG SRC='a'>", "<!-- note -->", "</title>",
    '<option value="1">', "<![CDATA[x]]>", "<h1>Title</h1>",
)  # fmt: skip
NO_MARKUP = (
    "&", "AT&T", "R&D;", "Q&A; B&B;", "Tom & Jerry", "salt & pepper;", "?a=1&copy=2&lt=3&amp=4", "rock & #10", "M&A; P&L;", "a < b",
    "a<b and c>d", "I <3 you", "if a < b && b > c", "<name>", "<source> <file>", "<--", "2 < 3 > 1", "{name} %s",
)  # fmt: skip


def test_entities_and_tags_are_found():
    assert [text for text in MARKUP if not has_markup(text)] == []
    assert [text for text in NO_MARKUP if has_markup(text)] == []
