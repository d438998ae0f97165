"""Laws of masks and of pairs of texts, and rows worked by hand."""

import jax
import numpy as np
import pytest

from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import Lengths, Pack, TokenPair
from flaxformer_lite.core.objectives import Batch, MaskedLM
from flaxformer_lite.core.objectives.masked_lm import row_of_texts, sample_masked_positions
from flaxformer_lite.core.text import DEFAULT_SPECIAL_IDS
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD
from flaxformer_lite.files.data.config import DataConfig
from tests.support.objectives import example, generator, record, theirs, unmasked

MASK = 28


def test_a_masked_row_by_hand():
    """Two pieces between BOS and EOS in a row of 14: round(0.25 · 8) = 2 of 8 tokens are predicted; there is room for 4."""
    objective = MaskedLM(mask_token=MASK, mask_rate=0.25)
    pack = Pack((np.array([4, 5, 6, 7, 8], np.int32), np.array([9, 10, 11], np.int32)))
    batch = example(objective, pack, Lengths(14, 0), 1, 2)
    assert unmasked(batch) == [BOS, 4, 5, 6, 7, 8, EOS, BOS, 9, 10, 11, EOS, PAD, PAD]
    assert batch.inputs.source_positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 0, 0]
    assert batch.inputs.source_segments.tolist() == [1] * 7 + [2] * 5 + [0] * 2
    assert batch.inputs.source_mask.tolist() == [True] * 12 + [False] * 2
    assert batch.weights.tolist() == [1, 1, 0, 0]
    assert batch.targets[2:].tolist() == batch.inputs.predict_positions[2:].tolist() == [0, 0]


def masked_rows(objective: MaskedLM, number: int = 300) -> list[Batch]:
    packs = objective.make_rows([record([], np.arange(4, 26).tolist() * 5)], Lengths(112, 0), 0)
    return [example(objective, packs[0], Lengths(112, 0), 7, i) for i in range(number)]


def test_the_first_token_is_one_of_those_that_are_counted():
    """By hand: round(0.15 · 10) = 2 tokens are predicted, round(0.15 · 9) would be 1."""
    batch = example(MaskedLM(mask_token=MASK), Pack((np.arange(4, 14, dtype=np.int32),)), Lengths(16, 0), 1, 2)
    assert batch.weights.tolist() == [1, 1, 0]


def test_80_percent_of_the_selected_tokens_are_masked_10_random_10_unchanged():
    """Law, within four standard deviations. A random token is drawn from 24 ids, so 1 of 24 of them looks kept."""
    rows = masked_rows(MaskedLM(mask_token=MASK))
    seen = np.concatenate([row.inputs.source_tokens[row.inputs.predict_positions[row.weights > 0]] for row in rows])
    expected = np.concatenate([row.targets[row.weights > 0] for row in rows])
    assert len(seen) == 300 * round(0.15 * 110)
    for share, found in (
        (0.8, seen == MASK),
        (0.1 + 0.1 / 24, seen == expected),
        (0.1 * 23 / 24, (seen != MASK) & (seen != expected)),
    ):
        assert abs(found.mean() - share) < 4 * np.sqrt(share * (1 - share) / len(seen))
    assert seen.min() == EOS + 1 and seen.max() == MASK
    positions = np.concatenate([row.inputs.predict_positions[row.weights > 0] for row in rows])
    assert set(positions.tolist()) == set(range(1, 111))  # never BOS or EOS, and every token now and then


def test_whole_words_are_chosen_whole():
    """Law: of each word all tokens are to be predicted or none; words end at white space. Oracle: the text split by hand."""
    text = "ab cde f ghij ab k"
    tokenizer = CharacterTokenizer(sorted(set(text)))
    document = record([], tokenizer.encode(text))
    words = [range(1, 3), range(4, 7), [8], range(10, 14), range(15, 17), [18], *([i] for i in (3, 7, 9, 14, 17))]
    for whole in (True, False):
        objective = MaskedLM(mask_token=MASK, mask_rate=0.3, whole_words=whole)
        (pack,) = objective.make_rows([document], Lengths(20, 0), 0, tokenizer)
        broken, most = 0, 0
        for i in range(100):
            batch = example(objective, pack, Lengths(20, 0), i, 0)
            chosen = set(batch.inputs.predict_positions[batch.weights > 0].tolist())
            broken += any(0 < len(chosen & set(word)) < len(word) for word in words)
            most = max(most, len(chosen))
        assert (broken == 0) == whole
        assert most == round(0.3 * 18)


def test_no_two_texts_of_a_row_share_a_word():
    """Law: two tokens have one number if and only if they are of one text and had one number there. Oracle: pairs in Python."""
    draw = np.random.default_rng(0)
    for _ in range(50):
        texts = [np.sort(draw.integers(0, 9, n)) for n in draw.integers(0, 8, 4).tolist()]
        pairs = [
            (text, word) for text, words in enumerate(texts) for word in (*([-1] * (text != 1)), *words.tolist(), -1)
        ]
        pieces = [[(words, words) for words in part] for part in (texts[:2], texts[2:3], texts[3:])]
        found = row_of_texts(pieces, len(pairs), DEFAULT_SPECIAL_IDS).words.tolist()
        assert [word == -1 for word in found] == [word == -1 for _, word in pairs]
        named = {(pair, word) for pair, word in zip(pairs, found, strict=True) if word >= 0}
        assert len(named) == len({pair for pair, _ in named}) == len({word for _, word in named})
        assert [word for _, word in sorted(named)] == sorted(word for _, word in named)


def test_words_are_taken_in_a_random_order_while_they_fit():
    """Oracle: a walk in Python over the same order. Numbers of words may have gaps; -1 is no word."""
    draw = np.random.default_rng(1)
    for _ in range(200):
        words = np.sort(draw.choice(draw.integers(0, 23, draw.integers(1, 12)), draw.integers(1, 40)))
        words[draw.random(len(words)) < 0.2] = -1
        most, chosen = int(draw.integers(1, 20)), set[int]()
        room = most
        numbers = sorted(set(words[words >= 0].tolist()))
        for i in generator(3, most).permutation(len(numbers)).tolist():
            if (size := (words == numbers[i]).sum()) <= room:
                room, chosen = room - size, chosen | {numbers[i]}
        found = sample_masked_positions(words, most, generator(3, most))
        assert found.tolist() == [position for position, word in enumerate(words.tolist()) if word in chosen]


def test_a_mask_is_the_tokenizers_or_a_free_id():
    documents = [record([], [4, 5, 6])]
    for mask in (None, 6):
        message = rf"^objective\.mask_token is {mask}: .* set it to 7, and model\.vocab_size to 8 or more"
        with pytest.raises(ValueError, match=message):
            theirs(MaskedLM(mask_token=mask), documents, CharacterTokenizer("abc"))
    theirs(MaskedLM(mask_token=7), documents, CharacterTokenizer("abc"))


# Pairs of texts ----------------------------------------------------------------------------------------------------------


def paired(number: int = 12, length: int = 40) -> list[TokenPair]:
    """Documents of which no two share a token."""
    return [record([], list(range(100 * i, 100 * i + length))) for i in range(1, number + 1)]


def test_a_pair_of_texts_by_hand():
    """BOS A EOS B EOS, types 0 and 1, positions from 0, one segment; 40 tokens in pieces of at most 19 are four of 10."""
    objective = MaskedLM(mask_token=5000, next_sentence=True)
    packs = objective.make_rows(paired(), Lengths(41, 0), 0)
    assert len(packs) == 24 and all(len(piece) == 10 for pack in packs for piece in pack.pieces)
    assert packs[0].pieces[0].tolist() == list(range(100, 110)) and packs[0].pieces[1].tolist() == list(range(110, 120))
    assert packs[1].pieces[0].tolist() == list(range(120, 130))
    assert packs.lengths[0].tolist() == [23, 0]
    row = example(objective, packs[0], Lengths(25, 0), 1, 2)
    tokens = unmasked(row)
    assert [tokens[i] for i in (0, 11, 22, 23, 24)] == [BOS, EOS, EOS, PAD, PAD]
    assert row.inputs.token_types.tolist() == [0] * 12 + [1] * 11 + [0] * 2
    assert row.inputs.source_positions.tolist() == [*range(23), 0, 0]
    assert row.inputs.source_segments.tolist() == [1] * 23 + [0] * 2
    assert not {0, 11, 22, 23, 24} & set(row.inputs.predict_positions[row.weights > 0].tolist())


def test_half_of_the_texts_follow_and_the_others_are_of_other_documents():
    """Law, within four standard deviations; label 0 says that the text follows. Oracle: the tokens tell their document."""
    objective = MaskedLM(mask_token=5000, next_sentence=True)
    packs = objective.make_rows(paired(), Lengths(41, 0), 0)
    follows, strangers = 0, set()
    for i, pack in enumerate(packs):
        row = example(objective, pack, Lengths(41, 0), 2, i)
        for step in range(20):
            row = example(objective, pack, Lengths(41, 0), 2, 1000 * step + i)
            tokens = [token for token in unmasked(row) if token > EOS]
            first, second = tokens[:10], tokens[10:]
            assert (second[0] == first[-1] + 1) == (int(row.labels) == 0)
            if int(row.labels) == 1:
                assert second[0] // 100 != first[0] // 100
                strangers.add(second[0] // 100)
            follows += int(row.labels) == 0
    assert abs(follows / 480 - 0.5) < 4 * 0.5 / np.sqrt(480)
    assert len(strangers) == 12


def test_next_sentences_are_a_function_of_seed_and_step_and_need_two_documents():
    objective = MaskedLM(mask_token=5000, next_sentence=True)
    data = DataConfig(max_source_length=41, tokens_per_batch=41 * 8, rows_multiple=8)
    first, again, other = (Dataset.training(paired(), objective, data, seed=seed) for seed in (3, 3, 4))
    drawn = [jax.tree.map(np.asarray, dataset.batch(1)) for dataset in (first, again, other)]
    same = jax.tree.map(np.array_equal, drawn[0], drawn[1])
    assert all(jax.tree.leaves(same)) and not np.array_equal(drawn[0].labels, drawn[2].labels)
    with pytest.raises(ValueError, match=r"^objective\.next_sentence needs texts of other documents"):
        Dataset.training([*paired(1), record([], [5])], objective, data, seed=0)
