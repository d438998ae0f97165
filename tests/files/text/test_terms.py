"""Terms of a source, by hand; mistakes in files of terms."""

import time
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.files.text.terms import PLACEHOLDER, Needed, Terms, going_on, inner_ids
from flaxformer_lite.files.tokenizers.subwords import SentencePiece

TERMS = {
    "dog": "Hund",
    "New York": "New York",
    "York": "Yorkshire",
    "US": "USA",
    "credit card": "Kreditkarte",
    "犬": "狗",
}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("A Dog, and a dog.", {Needed("Hund"): 1}),
        ("hotdog dogs us", {}),
        ("York is not New York; the US", {Needed("Yorkshire"): 1, Needed("New York"): 1, Needed("USA"): 1}),
        ("小犬です", {Needed("狗", True): 1}),
        (
            "<b>dog</b> {name}: <b>%s</b>, www.x.org/a.",
            {
                Needed("<b>"): 2, Needed("</b>", True): 2, Needed("Hund"): 1, Needed("{name}"): 1,
                Needed("%s", True): 1, Needed("www.x.org/a"): 1,
            },
        ),
    ],
)  # fmt: skip
def test_the_texts_that_a_translation_needs(source: str, expected: dict[Needed, int]):
    assert Terms.of(TERMS, placeholders=True).needed(source) == expected


@pytest.mark.parametrize(
    "placeholder",
    [
        "<b>", "</b>", "</b >", "<br/>", "<br />", "<my-tag>", "<x:y z='1'>", '<a href="x>y">', "<a href=/b?c=d>",
        "<input disabled>",        '<a title="a < b" href=\'c\' >', "<ünïcode>", "<_x.y>", "<0>", "</12>",
        "<3/>", "<!-- a > b -->", "<!DOCTYPE html>",
        "<?xml version='1.0'?>", "<![CDATA[a < b]]>", "<p\nid=x>",
        "{name}", "{}", "{0}", "{0:.2f}", "{a.b[c]!r:>{width}}", "{: >10}", "{x: d}", "{0,number,integer}",
        "{{name}}",
        "{{ name }}",        "{{ user.name | upper }}", "{{{raw}}}", "{% if x %}", "{# note #}", "${VAR}",
        "#{name}", "%{count}", "{ name }",
        "{d:%Y-%m-%d}",        "%s", "%d", "%1$s", "%-5d", "%.2f", "%05d", "%+d", "%#x", "%*d", "%.*f", "%lld",
        "%zu", "%hhx", "%'d", "%@", "%1$@", "%%",
        "%(name)s", "%(first name)s", "%(x)-5.2f", "%5.1f", "%c", "%Lf",
        "https://x.org", "http://x.org:8080/a?b=c&d=%20#e", "https://en.wikipedia.org/wiki/Foo_(bar)",
        "https://x.org/a_(b_(c))/d",
        "http://[2001:db8::1]:80/x", "ftp://me:pw@x.org/a", "www.x.org/a", "https://müller.de/straße",
        "https://x.org/{id}/y",
        "https://x.org/a;b=c,d", "http://[::1]", "HTTPS://X.ORG/",
        "me@x.org", "mailto:me@x.org", "mailto:me@x.org?subject=a%20b", "first.last+tag@sub.x.co.uk", "o'brien@x.ie",
        '"a..b"@x.org',        "müller@bücher.de", "用户@例子.广告", "अजय@डाटा.भारत", "me@[192.168.0.1]",
        "me@[IPv6:2001:db8::1]", "a!b#c@x-y.org",
    ],
)  # fmt: skip
def test_a_placeholder_is_found_whole(placeholder: str):
    """By hand, from the specifications: in a sentence, in brackets, at its end, and beside a full stop."""
    for text in ("{} is it", "so (in {}) it", "it is {}", "it is {}.", "it is {}, or"):
        found = Terms.of(None, placeholders=True).needed(text.replace("{}", placeholder, 1))
        assert [needed.text for needed in found] == [placeholder], text


@pytest.mark.parametrize(
    "text",
    [
        "50 % discount", "50% of all", "a 50% discount", "100%ig", "eine 50%ige Lösung", "%50 indirim", "100 %",
        "I <3 you",
        "a < b > c",        "x<1 and y>2", "{see below}", "{1, 2, 3}", "{", "}", "$100", "a@b", "@name", "#tag",
        "http://", "www.", "1:2",
        "{count, plural}",        "a%20b", "<>", "</>", "< b>", "100% sure", "%50de",
    ],
)  # fmt: skip
def test_signs_of_other_uses_are_no_placeholders(text: str):
    assert not Terms.of(None, placeholders=True).needed(text)


def test_placeholders_are_looked_for_in_time_that_goes_with_the_length():
    """Texts that begin forms again and again and end none: twice as long takes no four times as long."""
    for part in ('<a b="', "<a b ", "<!--", "{{", "{a:{", "a@", "http://x(", "%(", "<a x='>", "a" * 70, "www.((", '"a'):
        seconds = []
        for times in (500, 2_000):
            start = time.process_time()
            for _ in PLACEHOLDER.finditer(part * times):
                pass
            seconds.append(time.process_time() - start)
        assert seconds[1] < 0.05 + 10 * seconds[0], part


@pytest.mark.parametrize(
    ("term", "source"),
    [
        ("dog", "İzmir: the DOG"), ("istanbul", "in İstanbul'da"), ("café", "ein cafe\u0301 bitte"), ("cafe\u0301", "CAFÉ"),
        ("New York", "in New\u00a0York"), ("new york", "NEW \n York"), ("straße", "die STRASSE."), ("strasse", "Straße"),
        ("λόγος", "ΛΌΓΟΣ"), ("office", "an oﬃce"), ("Office", "Oﬃce"), ("Vertrag", "der Ver\u00adtrag"), ("ﬁsh", "a fish"),
        ("각", "(\u1100\u1161\u11a8)"), ("dog", "a dog\u200b."), ("US", "ß US"), ("q\u0307\u0323", "q\u0323\u0307!"),
    ],
)  # fmt: skip
def test_a_term_is_found_however_it_is_written(term: str, source: str):
    assert list(Terms.of({term: "X"}).needed(source)) == [Needed("X")]


@pytest.mark.parametrize(
    ("term", "source"),
    [
        ("cafe", "cafe\u0301"), ("s", "ß"), ("stras", "straß"), ("f", "ﬁ"), ("dog", "dog\u00adhouse"), ("dog", "İdog"),
        ("US", "us"), ("가", "\u1100\u1161\u11a8"), ("か", "か\u3099"), ("İzmir", "izmir"), ("i", "ı"), ("dog", "do\u0323g"),
    ],
)  # fmt: skip
def test_a_term_is_no_part_of_a_word_or_of_a_letter(term: str, source: str):
    assert not Terms.of({term: "X"}).needed(source)


def test_a_term_with_capitals_comes_before_one_without():
    terms = Terms.of({"us": "uns", "US": "USA"})
    assert [list(terms.needed(source)) for source in ("US", "Us")] == [[Needed("USA")], [Needed("uns")]]


def test_a_placeholder_behind_another_form_of_a_text_is_found():
    """By hand: characters that fold to two, and marks, stand before, inside and behind it."""
    needed = Terms.of({"é": "E"}, placeholders=True).needed("ßİ <e\u0301>\u0301 e\u0301 {é}\u200b{x}")
    assert needed == {Needed("<e\u0301>"): 1, Needed("E"): 1, Needed("{é}"): 1, Needed("{x}", True): 1}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dog", "line 3: 0 tabs: write a term, one tab"),
        ("dog\t", "line 3: 'dog' → '': neither text may be empty"),
        ("cat\tHund", "line 3: 'cat' is 'Hund' here and 'Katze' in .*line 1"),
        ("ca\u00adt\tHund", "line 3: .* is 'Hund' here and 'Katze' in .*line 1"),
        ("\u200b\tHund", "line 3: .* → 'Hund': neither text may be empty"),
        ("dog\tHünd", "line 3: 'Hünd' is not in the vocabulary"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path, line: str, message: str):
    file = tmp_path / "terms.tsv"
    file.write_text(f"cat\tKatze\n\n{line}\n", encoding="utf-8")
    tokenizer = SentencePiece().train(["a Katze and ein Hund."] * 9, 31)
    with pytest.raises(ValueError, match=message):
        Terms.read(str(file)).check(tokenizer)


def test_pieces_inside_a_word_are_those_without_a_space():
    """By hand: the ids that go on with a word, and a term with a space before it and without."""
    tokenizer = SentencePiece().train(["a bab. bab, a"] * 9, 12)
    pieces = {tokenizer.piece(i): i for i in range(12)}
    found = np.flatnonzero(going_on(tokenizer, 15))
    letters = {piece for piece in pieces if piece.isalpha() and piece.isascii()}
    assert {tokenizer.piece(i) for i in found} == letters | {"<pad>", "<unk>", "<s>"}
    inner, glued = (tokenizer.pieces(inner_ids(tokenizer, Needed("bab", alone))) for alone in (False, True))
    assert "".join(inner) == "▁bab" and "".join(glued) == "bab"
