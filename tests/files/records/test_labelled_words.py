"""Oracles: an independent count of characters, piece by piece, for drawn words of all scripts; records and labels by hand."""

import dataclasses
import json
import random
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from flaxformer_lite.base.console import warn_once
from flaxformer_lite.core.data import Lengths, Pair
from flaxformer_lite.core.objectives import TokenLabels
from flaxformer_lite.core.reading.objectives import PIECE_LABELS
from flaxformer_lite.core.text import Bytes, Characters, Tokenizer, Tokenizers
from flaxformer_lite.files.data import CoNLL, DataSource, JSONLines, Parquet
from flaxformer_lite.files.data.reading import reader_of, tokenize
from flaxformer_lite.files.data.refused import Origin
from flaxformer_lite.files.records import Entities, Words
from flaxformer_lite.files.records.words import (
    LabelTokenizers,
    first_tokens,
    joined_words,
    pair_of_spans,
    pair_of_words,
    with_tokens,
    words_of_tokens,
)
from flaxformer_lite.files.tokenizers import SentencePiece
from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from tests.support.files import file, message

NAMES = TokenLabels(labels=("O", "B-PER", "I-PER", "B-LOC"))
CHARACTERS = Characters().train(["abcdefghijklmnopqrstuvwxyz ABC."], 60)


def reader(objective: TokenLabels = NAMES, tokenizer: Tokenizer = CHARACTERS) -> LabelTokenizers:
    made = reader_of(objective, Tokenizers(tokenizer, tokenizer), Path("nowhere"), Lengths(99, 0))
    assert isinstance(made, LabelTokenizers)
    return made


def labels_of(pair: Pair, objective: TokenLabels = NAMES) -> list[str]:
    """The label of each token of a pair: a star behind it for a further piece, · for a token of no word."""
    (record,) = tokenize([pair], reader(objective))
    names = ["·"] + [f"{label}{star}" for label in objective.labels for star in ("", "*")]
    return [names[number] for number in record.array(PIECE_LABELS).tolist()]


# Alignment ------------------------------------------------------------------------------------------------------------

BLOCKS = (
    *((0x41, 0x5B), (0x61, 0x7B), (0xC0, 0x250), (0x370, 0x3FF), (0x400, 0x460), (0x531, 0x556), (0x5D0, 0x5EB)),
    *((0x620, 0x64B), (0x904, 0x93A), (0x985, 0x98D), (0xE01, 0xE31), (0x10D0, 0x10F1), (0x1200, 0x1249)),
    *((0x3041, 0x3097), (0x4E00, 0x4E80), (0xAC00, 0xAC80), (0x1F600, 0x1F640), (0x21, 0x3B), (0x30, 0x3A)),
)
"""Ranges of letters of many scripts, emoji, signs and digits."""
MARKS = "\u0301\u0308\u093e\u0e31\ufe0f\u200d"
"""Accents, vowel signs, and what joins emoji."""
INVISIBLE = "\u200b\u00ad\u2060\ufeff"
SPACES = "\u00a0\u2003\u3000\t\u2028"


def drawn_words(number: int = 10_000) -> list[str]:
    """Words of one script each; some have marks, zero-width characters or spaces of any kind inside, or have nothing else."""
    rng = random.Random(11)
    words = []
    for _ in range(number):
        low, high = rng.choice(BLOCKS)
        letters = [c for c in (chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 9))) if c.isprintable()]
        word = "".join(c + rng.choice(MARKS) if rng.random() < 0.08 else c for c in letters)
        kind = rng.random()
        if kind < 0.06:
            place = rng.randint(0, len(word))
            word = word[:place] + rng.choice(INVISIBLE + SPACES) + word[place:]
        elif kind < 0.09:
            word = rng.choice(["", *INVISIBLE, *SPACES, "\u200b\u200b"])
        words.append(word)
    return words


WORDS = drawn_words()


def trained(
    model: object, trainer: trainers.Trainer, normalizer: object, splitter: object, decoder: object
) -> JsonTokenizer:
    made = tokenizers.Tokenizer(model)
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer, made.decoder = splitter, decoder
    made.train_from_iterator([" ".join(WORDS[i : i + 50]) for i in range(0, len(WORDS), 50)], trainer)
    return JsonTokenizer.of(made.to_str(), {"unk_token": "[UNK]"})


def byte_level() -> JsonTokenizer:
    """GPT-2's kind."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    return trained(models.BPE(), trainer, None, pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel())


def word_piece() -> JsonTokenizer:
    """BERT's kind: lower case, without accents and control characters."""
    trainer = trainers.WordPieceTrainer(vocab_size=3000, special_tokens=["[UNK]"], show_progress=False)
    return trained(
        models.WordPiece(unk_token="[UNK]"),
        trainer,
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
        decoders.WordPiece(),
    )


LINES = [" ".join(WORDS[i : i + 50]).replace("\u2028", " ") for i in range(0, len(WORDS), 50)]


def sentence_piece(model_type: str) -> Callable[[], Tokenizer]:
    return lambda: SentencePiece(model_type=model_type, byte_fallback=True).train(LINES, 3200)


def bytes_of_pieces(tokenizer: Tokenizer, ids: list[int], is_byte_level: bool) -> Iterator[bytes]:
    """Yields the bytes of the text that each token writes."""
    alphabet = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in alphabet]
    of_sign = {chr(byte): byte for byte in alphabet} | {chr(256 + n): byte for n, byte in enumerate(others)}
    for piece in tokenizer.pieces(ids):
        if is_byte_level:
            yield bytes(of_sign[sign] for sign in piece)
        elif len(piece) == 6 and piece.startswith("<0x"):
            yield bytes.fromhex(piece[3:5])
        else:
            yield piece.replace("▁", " ").encode()


def owners_by_bytes(words: list[str], written: list[bytes], is_byte_level: bool) -> list[int]:
    """The word of each token, -1 for none, by counting bytes: of spaces, and of words that follow one another.

    SentencePiece writes a space before the text, which belongs to the first word, and one for several or none.
    """
    text = " ".join(words)
    of_byte = [-1 if word is None else word for word, c in character_owners(words) for _ in c.encode()]
    data, place, owners = text.encode(), 0, []
    for piece in written:
        number = []
        for byte in piece:
            while place < len(data) and data[place] != byte and byte != 0x20:
                assert data[place] == 0x20, "only spaces may be left out"
                place += 1
            if place < len(data) and data[place] == byte:
                number.append(of_byte[place])
                place += 1
        is_before = not is_byte_level and not data[:place].strip(b" ")
        owners.append(next((word for word in (of_byte if is_before else number) if word >= 0), -1))
    assert not data[place:].strip(b" "), "all is written"
    return owners


def character_owners(words: list[str]) -> Iterator[tuple[int | None, str]]:
    for number, word in enumerate(words):
        yield from [(None, " ")] if number else []
        yield from ((number, c) for c in word)


SENTENCES = [WORDS[i : i + 20] for i in range(0, len(WORDS), 20)]


@pytest.mark.parametrize(
    ("make", "is_byte_level"),
    [(byte_level, True), (sentence_piece("bpe"), False), (sentence_piece("unigram"), False)],
    ids=["byte-level BPE", "BPE", "unigram"],
)
def test_no_drawn_word_is_misaligned(make: Callable[[], Tokenizer], is_byte_level: bool) -> None:
    """Law: a token belongs to the first word that it writes a byte of."""
    tokenizer, wrong = make(), 0
    texts = [joined_words(words) for words in SENTENCES]
    for words, (text, places), read in zip(
        SENTENCES, texts, tokenizer.encode_spans([text for text, _ in texts]), strict=True
    ):
        written = list(bytes_of_pieces(tokenizer, read.ids, is_byte_level))
        expected = owners_by_bytes(words, written, is_byte_level)
        found = words_of_tokens(text, places, read.spans)
        wrong += sum(a != b for a, b in zip(expected, found, strict=True))
        assert set(first_tokens(words_of_tokens(text, places, read.spans))) == {word for word in expected if word >= 0}
    assert wrong == 0


READ_OTHERWISE = [
    "½cup",
    "㍿",
    "ﬁn",
    "①②",
    "ｆｕｌｌ",
    "e\u0301te\u0301",
    "\u1100\u1161",
    "ﷺ",
    "ǆ",
    "Ⅷ",
    "²³",
    "x½",
    "\u200bﬁ\u2028",
]
"""Words that a normalizer makes longer, shorter, or of other characters."""


def bert(word: str) -> str:
    """A word as BERT reads it, by Unicode's tables, one character at a time."""
    kept = [c for c in word if unicodedata.category(c)[0] != "C" and not c.isspace()]
    apart = unicodedata.normalize("NFD", "".join(kept))
    return "".join(c.lower() for c in apart if unicodedata.category(c) != "Mn")


def nfkc(word: str) -> str:
    """A word in Unicode's compatible composition."""
    return unicodedata.normalize("NFKC", word)


def composed() -> JsonTokenizer:
    """XLM-R's kind."""
    trainer = trainers.UnigramTrainer(vocab_size=3400, special_tokens=["[UNK]"], unk_token="[UNK]", show_progress=False)
    signs = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return trained(models.Unigram(), trainer, normalizers.NFKC(), *signs)


def normalized_pieces(model_type: str) -> Tokenizer:
    """T5's kind."""
    settings = SentencePiece(model_type=model_type, byte_fallback=True, normalization="nmt_nfkc")
    return settings.train([*LINES, " ".join(READ_OTHERWISE)], 3400)


@pytest.mark.parametrize(
    "kind", ["WordPiece", "unigram of tokenizers", "BPE of SentencePiece", "unigram of SentencePiece"]
)
def test_no_drawn_word_is_misaligned_by_a_normalizer(kind: str) -> None:
    """Law: the pieces of a word, one after the other, are the word as it is read alone; one that nothing is left of has none."""
    rng, wrong = random.Random(1), 0
    drawn = rng.sample([*WORDS, *READ_OTHERWISE * 40], 10_000)
    if kind == "WordPiece":
        tokenizer, read_alone = word_piece(), bert
    elif kind == "unigram of tokenizers":
        tokenizer, read_alone = composed(), nfkc
    else:
        tokenizer = normalized_pieces(kind.split()[0].lower())
        read_alone = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.to_bytes()).normalize
    sentences = [drawn[i : i + 20] for i in range(0, len(drawn), 20)]
    texts = [joined_words(words) for words in sentences]
    encoded = tokenizer.encode_spans([text for text, _ in texts])
    for words, (text, places), read in zip(sentences, texts, encoded, strict=True):
        owners = words_of_tokens(text, places, read.spans)
        assert [owner for owner in owners if owner >= 0] == sorted(owner for owner in owners if owner >= 0)
        for number, word in enumerate(words):
            ids = [i for i, owner in zip(read.ids, owners, strict=True) if owner == number]
            expected = "".join(read_alone(word).replace("▁", "").split())
            if tokenizer.unk_id in ids:
                wrong += not expected
            else:
                pieces = [piece.removeprefix("##") for piece in tokenizer.pieces(ids)]
                spelled = b"".join(bytes.fromhex(p[3:5]) if p.startswith("<0x") else p.encode() for p in pieces)
                wrong += "".join(spelled.decode().replace("▁", "").split()) != expected
    assert wrong == 0


# Labels of tokens -------------------------------------------------------------------------------------------------------


def test_a_word_without_a_token_has_no_label_and_shifts_no_other() -> None:
    """By hand, on characters: an empty word in the middle, and labels by number."""
    pair = pair_of_words(["ab", "", "c", "d"], ["B-PER", "O", 2, "B-LOC"])
    assert pair == Pair("", "ab  c d", '{"words": [[0, 2, "B-PER"], [3, 3, "O"], [4, 5, 2], [6, 7, "B-LOC"]]}')
    assert labels_of(pair) == ["B-PER", "I-PER*", "·", "·", "I-PER", "·", "B-LOC"]
    assert reader().refusal(pair) == "word 2, '' has no token of its own, so the label does not count"


@pytest.mark.parametrize(
    ("scheme", "labels", "given", "units"),
    [
        ("bio", ("O", "B-PER", "I-PER", "B-LOC"), "B-PER I-PER O", "B-PER I-PER I-PER I-PER I-PER O O"),
        ("bio", ("O", "B-PER", "I-PER", "B-LOC"), "I-PER B-LOC O", "I-PER I-PER I-PER B-LOC B-LOC O O"),
        ("bioes", ("O", "B-A", "I-A", "E-A", "S-A"), "B-A E-A S-A", "B-A I-A I-A I-A E-A B-A E-A"),
        ("bioes", ("O", "B-A", "I-A", "E-A", "S-A"), "S-A I-A O", "B-A I-A E-A I-A I-A O O"),
        ("plain", ("O", "N", "V"), "N V O", "N N N V V O O"),
    ],
)
def test_units_of_a_word_have_its_entity(scheme: Any, labels: tuple[str, ...], given: str, units: str) -> None:
    """By hand: three units, two, two; a label without I- in the labels stays."""
    pair = pair_of_words(["a.b", "c.", ".d"], given.split())
    found = labels_of(pair, TokenLabels(labels=labels, scheme=scheme))
    assert [label for label in found if label != "·"] == units.split()


def test_a_unit_without_a_token_of_its_own_is_not_the_end_of_an_entity() -> None:
    """By hand: of `a.b` a token has the sign and b, of `.c` one has all; a list of words and a span have the same labels."""
    one = reader(TokenLabels(labels=("O", "B-A", "I-A", "E-A", "S-A"), scheme="bioes"))
    tokens = [(0, 1), (1, 3), (4, 6)]
    for pair in (pair_of_words(["a.b", ".c"], ["S-A", "S-A"]), pair_of_spans("a.b .c", [[0, 3, "A"], [4, 6, "A"]])):
        assert one._piece_labels(pair, tokens) == ([3, 7, 9], [])


def test_a_model_from_elsewhere_reads_whole_words() -> None:
    """By hand: further pieces of a word have no label of their own."""
    pair = pair_of_words(["a.b", "c"], ["B-PER", "O"])
    whole = dataclasses.replace(reader(), whole=True)
    (record,) = tokenize([pair], whole)
    assert record.array(PIECE_LABELS).tolist() == [3, 6, 6, 0, 1]


def test_spans_become_labels_by_the_scheme() -> None:
    """By hand: a span begins inside a word, which is learned whole, one of three words, one of one; a comma is a word."""
    pair = pair_of_spans("ab, cde f", [{"start": 5, "end": 9, "type": "PER"}, [0, 2, "PER"]])
    assert pair.label == '{"spans": [[0, 2, "PER"], [5, 9, "PER"]]}'
    assert labels_of(pair) == ["B-PER", "I-PER*", "O", "·", "B-PER", "I-PER*", "I-PER*", "·", "I-PER"]
    assert (
        reader().refusal(pair) == "the span (5, 9, 'PER') cuts a word, and is learned as 'cde f', as a text is labelled"
    )
    bioes = TokenLabels(labels=("O", "B-PER", "I-PER", "E-PER", "S-PER"), scheme="bioes")
    assert labels_of(pair, bioes) == ["S-PER", "S-PER*", "O", "·", "B-PER", "I-PER*", "I-PER*", "·", "E-PER"]
    both = pair_of_spans("abc d", [[0, 1, "PER"], [1, 3, "LOC"]])
    assert labels_of(both) == ["B-PER", "I-PER*", "I-PER*", "·", "O"]
    assert (
        reader().refusal(both)
        == "the span (0, 1, 'PER') cuts a word, and is learned as 'abc', as a text is labelled, and 1 more"
    )
    assert reader().refusal(pair_of_spans("ab, c", [[0, 2, "PER"], [2, 5, "PER"]])) is None
    three = pair_of_spans("a b c", [[0, 5, "PER"]])
    assert labels_of(three, bioes) == ["B-PER", "·", "I-PER", "·", "E-PER"]
    plain = TokenLabels(labels=("O", "PER"), scheme="plain")
    assert labels_of(three, plain) == ["PER", "·", "PER", "·", "PER"]


def test_a_token_belongs_to_the_first_word_of_which_it_has_a_visible_character() -> None:
    """By hand: tokens of two words, of an empty word, of a word's last space and the next word, of an invisible word alone."""
    text, words, tokens = "abcde", [(0, 2), (2, 2), (3, 5)], [(0, 0), (0, 4), (4, 5), (5, 5)]
    assert words_of_tokens(text, words, tokens) == [-1, 0, 2, -1]
    assert first_tokens(words_of_tokens(text, words, tokens)) == {0: 1, 2: 2}
    assert words_of_tokens(text, [], tokens) == [-1] * 4 and words_of_tokens(text, words, []) == []
    text, words = "a\u2003 b \u200b c", [(0, 2), (3, 4), (5, 6), (7, 8)]
    assert words_of_tokens(text, words, [(0, 1), (1, 4), (4, 8)]) == [0, 1, 3]
    assert words_of_tokens("\u2003 \u200b", [(0, 1), (2, 3)], [(0, 3), (0, 2)]) == [1, 0]
    assert words_of_tokens(text, words, [(0, 2), (2, 4), (4, 6), (6, 8)]) == [0, 1, 2, 3]


def test_words_of_a_text_that_one_token_reads_are_one_word() -> None:
    """By hand: "a(), b": the token "()," is one word; a token of two words that have tokens of their own joins none."""
    words = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6)]
    assert with_tokens("a(), b", words, [(0, 1), (1, 4), (4, 6)]) == [(0, 1), (1, 4), (5, 6)]
    assert with_tokens("a(), b", words, [(0, 2), (2, 3), (3, 6)]) == [(0, 2), (2, 3), (3, 6)]
    assert with_tokens("a(), b", words, [(0, 3), (1, 2), (3, 4), (5, 6)]) == words
    assert with_tokens("a(), b", words, []) == words


@pytest.mark.parametrize("tokenizer", [Bytes().train([], 260), SentencePiece().train(["ab cd ef gh"] * 9, 20)])
def test_every_tokenizer_reads_words(tokenizer: Tokenizer) -> None:
    (record,) = tokenize([pair_of_words(["ab", "cd"], ["B-PER", "B-LOC"])], reader(tokenizer=tokenizer))
    labels = record.array(PIECE_LABELS).tolist()
    assert [number for number in labels if number % 2] == [3, 7] and len(labels) == len(record.target)


# Files ------------------------------------------------------------------------------------------------------------------


def in_lines(folder: Path, *records: object) -> str:
    return file(folder, "x.jsonl", "".join(json.dumps(record) + "\n" for record in records))


def words(path: str) -> JSONLines:
    return JSONLines(path=path, record=Words(labels="tags.ner"))


def spans(path: str) -> JSONLines:
    return JSONLines(path=path, record=Entities())


GOOD = {"tokens": ["a"], "tags": {"ner": ["O"]}}


def told(source: DataSource) -> str:
    """The error of tokenizing a source."""
    with pytest.raises(ValueError) as caught:
        tokenize(source.open(), reader(), Origin(source, "data.train"))
    return str(caught.value)


def test_a_label_that_the_objective_lacks_is_located(tmp_path: Path) -> None:
    path = in_lines(tmp_path, GOOD, {"tokens": ["a", "b"], "tags": {"ner": ["O", "B-ORG"]}})
    assert told(words(path)) == (
        f"{path}:2: word 2, 'b', has the label 'B-ORG', which is not one of objective.labels (O, B-PER, I-PER, B-LOC): add it "
        "there, or correct the data; or leave out such rows (--data.train.bad-rows drop)"
    )
    for number in (4, -1):
        path = in_lines(tmp_path, {"tokens": ["a"], "tags": {"ner": [number]}})
        assert told(words(path)).startswith(f"{path}:1: word 1, 'a', has the label {number}, which is not one of")
    path = in_lines(tmp_path, {"text": "ab", "spans": [[0, 2, "ORG"]]})
    assert told(spans(path)).startswith(f"{path}:1: the span (0, 2, 'ORG') has the label 'B-ORG', which is not one of")
    path = in_lines(tmp_path, {"text": "ab", "spans": [[0, 2, "I-PER"]]})
    assert told(spans(path)).startswith(
        f"{path}:1: the span (0, 2, 'I-PER') has the label of a word: a span has the type of"
    )
    path = in_lines(tmp_path, {"source": "a", "target": "b"})
    assert told(JSONLines(path=path)).startswith(f"{path}:1: it has no labels of words: set the record")


def test_rows_that_are_dropped_and_words_without_a_token_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    warn_once.cache_clear()
    path = in_lines(
        tmp_path,
        GOOD,
        {"tokens": ["a"], "tags": {"ner": ["X"]}},
        {"tokens": ["a", "", ""], "tags": {"ner": ["B-PER", "O", "O"]}},
    )
    source = JSONLines(path=path, record=Words(labels="tags.ner"), bad_rows="drop")
    records = tokenize(source.open(), reader(), Origin(source, "data.train"))
    rows = NAMES.make_rows(records, Lengths(9, 0), 0, CHARACTERS)
    assert [row.label.tolist() for row in rows] == [[0, 1, 0], [0, 3, 0, 0, 0]]
    said = capsys.readouterr().err
    assert f"1 bad rows were left out, the first of them: {path}:2: word 1, 'a', has the label 'X'" in said
    assert (
        f"1 rows were not read as a whole: {path}:3: word 2, '' has no token of its own, so the label does not count, and 1 more"
        in said
    )


CONLL = """-DOCSTART- -X- O

# id 3
Ab NNP B-PER
c NN O

# id 4
-DOCSTART- -X- O
# x O
D\tNNP\tB-LOC
"""


def test_columns_are_read(tmp_path: Path) -> None:
    path = file(tmp_path, "x.conll", CONLL)
    rows = list(CoNLL(path=path, comment="# ").located())
    assert [(row.pair.target, row.number) for row in rows] == [("Ab c", 4), ("D", 10)]
    assert json.loads(rows[0].pair.label) == {"words": [[0, 2, "B-PER"], [3, 4, "O"]]}
    first = next(iter(CoNLL(path=path, comment="# ", record=Words(words=1, labels=0)).open()))
    assert (first.target, json.loads(first.label)["words"][0]) == ("NNP NN", [0, 3, "Ab"])
    bad = file(tmp_path, "bad.conll", "a O\n\nb O\nc\n")
    assert message(CoNLL(path=bad)) == (
        f"{bad}:3: line 4, 'c', has a word without a label: add it, or -100 for a word that does not count; if it is a comment, "
        "set conll.comment to its beginning"
    )
    assert "line 1, 'a O', has 2 columns, but conll.record.labels is 2" in message(
        CoNLL(path=bad, record=Words(words=0, labels=2))
    )


def test_a_space_that_does_not_break_ends_no_word(tmp_path: Path) -> None:
    path = file(tmp_path, "x.conll", "a O\n10\u00a0000  B-LOC\n\n1\u3000 2\tO\n")
    assert [pair.target for pair in CoNLL(path=path).open()] == ["a 10\u00a0000", "1\u3000 2"]


def test_ranges_and_empty_nodes_of_conllu_are_no_words(tmp_path: Path) -> None:
    """By hand; a word such as 3.1 in columns of another format stays, and so does an index of a word."""
    rows = [("1-2", "du", "_"), ("1", "de", "ADP"), ("2", "le", "DET"), ("2.1", "bon", "_"), ("3", "2-3", "NUM")]
    lines = ["\t".join([number, word, word, tag, *"______"]) for number, word, tag in rows]
    path = file(tmp_path, "x.conllu", "# text = du 2-3\n" + "\n".join(lines) + "\n")
    (pair,) = CoNLL(path=path, record=Words(words=1, labels=3), comment="# ").open()
    assert pair == pair_of_words(["de", "le", "2-3"], ["ADP", "DET", "NUM"])
    other = file(tmp_path, "x.conll", "3.1\tO\n1-2\tB-LOC\n")
    assert CoNLL(path=other).open() == [pair_of_words(["3.1", "1-2"], ["O", "B-LOC"])]
    ten = file(tmp_path, "ten", "3.1" + "\tO" * 9 + "\n")
    assert CoNLL(path=ten).open() == [pair_of_words(["3.1"], ["O"])]


def test_a_word_without_a_label_does_not_count(tmp_path: Path) -> None:
    """By hand: null, an empty text and -100 in lists and columns; a token of such a word has no mark, and is no loss of a label."""
    record = {"tokens": ["ab", "c", "d", "", "e"], "tags": {"ner": [None, "", -100, "", 1]}}
    (pair,) = words(in_lines(tmp_path, record)).open()
    path = file(tmp_path, "x.conll", "ab\t\nc -100\nd O\n")
    (columns,) = CoNLL(path=path).open()
    assert labels_of(pair) == ["·"] * 8 + ["B-PER"] and reader().refusal(pair) is None
    assert labels_of(columns) == ["·"] * 5 + ["O"]


def test_columns_of_tables_are_lists(tmp_path: Path) -> None:
    pyarrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    table = pyarrow.table({"tokens": [["a", "b"]], "ner": [[1, 0]], "other": [3]})
    parquet.write_table(table, tmp_path / "x.parquet")
    source = Parquet(path=str(tmp_path / "x.parquet"), record=Words(labels="ner"))
    assert source.open() == [pair_of_words(["a", "b"], [1, 0])]
    assert labels_of(source.open()[0]) == ["B-PER", "·", "O"]
    assert source.record.texts == ()
