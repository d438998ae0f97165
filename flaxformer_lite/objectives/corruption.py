"""Corruption of texts for masked language models and T5, in NumPy on the host."""

import numpy as np
from jaxtyping import Bool, Int

from flaxformer_lite.text.special_ids import EOS


def sample_masked_positions(
    words: Int[np.ndarray, "S"], max_positions: int, generator: np.random.Generator
) -> Int[np.ndarray, "_"]:
    """Returns the sorted positions of up to `max_positions` tokens, in whole words drawn at random.

    words: the word number of each token; -1 for a token that must not be drawn. A word longer than the rest is skipped.
    """
    positions = np.flatnonzero(words >= 0)
    _, word, sizes = np.unique(words[positions], return_inverse=True, return_counts=True)
    order, room = generator.permutation(len(sizes)), max_positions
    drawn = np.zeros(len(sizes), bool)
    for i, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        if size <= room:
            drawn[i] = True
            room -= size
        if room == 0:
            break
    return positions[drawn[word]]


def mask_tokens(
    tokens: Int[np.ndarray, "P"], mask_token: int, num_ids: int, generator: np.random.Generator
) -> Int[np.ndarray, "P"]:
    """Replaces tokens by the mask (80 %) or a random token (10 %); the other 10 % stay.

    Random tokens are below `num_ids` and above the four special ids of tokenizers trained here.

    Reference: Devlin et al. 2018, arXiv:1810.04805, section 3.1.
    """
    draw = generator.random(len(tokens))
    other = generator.integers(EOS + 1, num_ids, len(tokens))
    return np.where(draw < 0.8, mask_token, np.where(draw < 0.9, other, tokens)).astype(np.int32)


def span_counts(length: int, noise_density: float, mean_span: float) -> tuple[int, int]:
    """Returns the number of removed tokens, and of spans.

    Removes at least one token and never all; nothing if there are fewer than two.
    """
    if length < 2:
        return 0, 0
    noise = min(max(round(length * noise_density), 1), length - 1)
    return noise, min(max(round(noise / mean_span), 1), noise, length - noise)


def noise_spans(
    length: int, noise_density: float, mean_span: float, generator: np.random.Generator
) -> Bool[np.ndarray, "_"]:
    """Returns whether each token is removed: remaining and removed spans alternate, with random lengths of at least 1.

    The first span remains. Reference: Raffel et al. 2019, arXiv:1910.10683, section 3.1.4.
    """
    noise, spans = span_counts(length, noise_density, mean_span)
    if spans == 0:
        return np.zeros(length, bool)
    lengths = [random_parts(total, spans, generator) for total in (length - noise, noise)]
    return np.repeat(np.tile([False, True], spans), np.stack(lengths, 1).reshape(-1))


def random_parts(total: int, parts: int, generator: np.random.Generator) -> Int[np.ndarray, "_"]:
    """Splits `total` into `parts` whole numbers of at least 1; every split is equally probable."""
    cuts = np.sort(generator.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def with_sentinels(
    tokens: Int[np.ndarray, "_"], removed: Bool[np.ndarray, "_"], first_sentinel: int
) -> Int[np.ndarray, "_"]:
    """Replaces each removed span by one sentinel: `first_sentinel`, then the id below, and so on."""
    starts = removed & ~np.concatenate([[False], removed])[:-1]
    replaced = np.where(starts, first_sentinel - np.cumsum(starts) + 1, tokens)
    return replaced[~removed | starts].astype(np.int32)
