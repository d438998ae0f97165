"""Oracles: SentencePiece's own segmentation, and probabilities worked out by hand; law: a sample spells the same words."""

import collections
import itertools
import random

import numpy as np
import pytest

from flaxformer_lite.core.text.characters import ByteTokenizer
from flaxformer_lite.files.tokenizers.subword_sampling import BPEDropout, SubwordSampler, UnigramSampling
from flaxformer_lite.files.tokenizers.subwords import SentencePiece, SentencePieceTokenizer
from tests.support.tokenizers import TEXT, VOCAB_SIZE


class Letters(SentencePieceTokenizer):
    """A vocabulary of ▁, a, b, ab and ▁ab, in which "ab" is merged before "▁ab"."""

    def __init__(self) -> None:
        """Has no model of SentencePiece."""

    def scored_pieces(self) -> dict[int, tuple[str, float]]:
        return {4: ("ab", 0.0), 5: ("▁ab", -1.0), 6: ("▁", -2.0), 7: ("a", -3.0), 8: ("b", -4.0)}

    def nbest(self, word: str, size: int) -> list[list[int]]:
        return [[5], [6, 4], [6, 7, 8]][:size]


def frequencies(sampling: BPEDropout | UnigramSampling, draws: int = 4000) -> dict[tuple[int, ...], float]:
    draw, uniform = sampling.draw(Letters()), random.Random(5).random
    counts = collections.Counter(tuple(draw("▁ab", uniform)) for _ in range(draws))
    return {ids: count / draws for ids, count in counts.items()}


def test_each_merge_is_left_out_with_the_rate() -> None:
    """By hand: "ab" is merged with probability 0.7, and then "▁ab" with 0.7; nothing else can be merged."""
    expected = {(5,): 0.49, (6, 4): 0.21, (6, 7, 8): 0.3}
    assert frequencies(BPEDropout(rate=0.3)) == pytest.approx(expected, abs=0.03)


def test_unigram_segmentations_have_the_power_of_their_probability() -> None:
    """By hand: log probabilities -1, -2 and -9, times alpha 0.5; of the two best, the third is never drawn."""
    weights = np.exp([-0.5, -1.0, -4.5])
    expected = dict(zip([(5,), (6, 4), (6, 7, 8)], weights / weights.sum(), strict=True))
    assert frequencies(UnigramSampling(alpha=0.5)) == pytest.approx(expected, abs=0.03)
    assert (6, 7, 8) not in frequencies(UnigramSampling(alpha=0.01, nbest_size=2))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def tokenizer(request: pytest.FixtureRequest) -> SentencePieceTokenizer:
    return SentencePiece(model_type=request.param, character_coverage=0.99).train(TEXT, VOCAB_SIZE)


@pytest.fixture(scope="module")
def sampler(tokenizer: SentencePieceTokenizer) -> SubwordSampler:
    strong = {"bpe": BPEDropout(rate=0.5), "unigram": UnigramSampling(alpha=0.1)}
    return SubwordSampler(tokenizer, strong[tokenizer.model_type])


def test_without_dropout_the_words_are_sentence_pieces_own() -> None:
    tokenizer = SentencePiece().train(TEXT, VOCAB_SIZE)
    plain = SubwordSampler(tokenizer, BPEDropout(rate=0.0))
    for line in TEXT[:40]:
        ids = tokenizer.encode(line)
        assert plain(np.array(ids), 0, np.random.default_rng(0)).tolist() == ids


def test_a_sample_spells_the_same_text_within_the_spare_tokens(
    tokenizer: SentencePieceTokenizer, sampler: SubwordSampler
) -> None:
    others = 0
    for number, (line, spare) in enumerate(itertools.product(TEXT[:30], (0, 3, 100))):
        ids = np.array([tokenizer.bos_id, *tokenizer.encode(line), tokenizer.eos_id], np.int32)
        sample, again = (sampler(ids, spare, np.random.default_rng(number)) for _ in range(2))
        np.testing.assert_array_equal(sample, again)  # a function of the ids and the random numbers
        assert len(sample) <= len(ids) + spare
        assert tokenizer.decode(sample.tolist()) == tokenizer.decode(ids.tolist())
        assert (sample[0], sample[-1]) == (ids[0], ids[-1])
        assert (sample == tokenizer.unk_id).sum() == (ids == tokenizer.unk_id).sum()
        others += sample.tolist() != ids.tolist()
    assert others > 30
    assert sampler(ids[:0], 5, np.random.default_rng(0)).tolist() == []


def test_another_kind_of_tokenizer_is_refused() -> None:
    message = r"'bpe_dropout', which samples from a SentencePiece model of type 'bpe', but the tokenizer is "
    with pytest.raises(ValueError, match=message + "'unigram'"):
        SubwordSampler(SentencePiece(model_type="unigram").train(TEXT, VOCAB_SIZE), BPEDropout())
    with pytest.raises(ValueError, match=message + "'ByteTokenizer'"):
        SubwordSampler(ByteTokenizer(), BPEDropout())
