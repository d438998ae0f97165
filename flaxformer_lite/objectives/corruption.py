"""What masked language models and T5 do to a text before the model sees it, in NumPy on the host."""

import numpy as np
from jaxtyping import Bool, Int

from flaxformer_lite.text.special_ids import EOS


def sample_masked_positions(
    words: Int[np.ndarray, "S"], most: int, generator: np.random.Generator
) -> Int[np.ndarray, "_"]:
    """The places of up to `most` tokens, in order, in whole words drawn at random.

    `words` holds the number of the word that each token belongs to, -1 where there is none to be chosen. A word that is
    longer than what is left is passed over.
    """
    places = np.flatnonzero(words >= 0)
    order = np.argsort(words[places], kind="stable")
    ends = np.flatnonzero(np.diff(words[places][order])) + 1
    chosen: list[int] = []
    members = np.split(places[order], ends)
    for i in generator.permutation(len(members)):
        if len(chosen) + len(members[i]) <= most:
            chosen += members[i].tolist()
        if len(chosen) == most:
            break
    return np.array(sorted(chosen), np.int64)


def mask_tokens(
    tokens: Int[np.ndarray, "P"], mask_token: int, num_ids: int, generator: np.random.Generator
) -> Int[np.ndarray, "P"]:
    """What stands in the place of tokens that are to be told: the mask (80 %), a random token (10 %) or the token itself (10 %).

    Random ones are drawn from the first `num_ids` ids, but for the four special ones of tokenizers that are trained here.
    Reference: Devlin et al. 2018, arXiv:1810.04805, section 3.1.
    """
    share = generator.random(len(tokens))
    other = generator.integers(EOS + 1, num_ids, len(tokens))
    return np.where(share < 0.8, mask_token, np.where(share < 0.9, other, tokens)).astype(np.int32)


def span_counts(length: int, noise_density: float, mean_span: float) -> tuple[int, int]:
    """How many of `length` tokens are left out, and in how many spans: at least one and never all, but none of fewer than two."""
    if length < 2:
        return 0, 0
    noise = min(max(round(length * noise_density), 1), length - 1)
    return noise, min(max(round(noise / mean_span), 1), noise, length - noise)


def noise_spans(
    length: int, noise_density: float, mean_span: float, generator: np.random.Generator
) -> Bool[np.ndarray, "_"]:
    """Which tokens are left out: kept and left-out spans in turns, a kept one first, of random lengths of at least 1.

    Reference: Raffel et al. 2019, arXiv:1910.10683, section 3.1.4.
    """
    noise, spans = span_counts(length, noise_density, mean_span)
    if spans == 0:
        return np.zeros(length, bool)
    lengths = [random_parts(total, spans, generator) for total in (length - noise, noise)]
    return np.repeat(np.tile([False, True], spans), np.stack(lengths, 1).reshape(-1))


def random_parts(total: int, parts: int, generator: np.random.Generator) -> Int[np.ndarray, "_"]:
    """`total` as a sum of that many whole numbers of at least 1, every way to do so equally probable."""
    cuts = np.sort(generator.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))


def with_sentinels(
    tokens: Int[np.ndarray, "_"], left_out: Bool[np.ndarray, "_"], first_sentinel: int
) -> Int[np.ndarray, "_"]:
    """The tokens with a sentinel in the place of each span that is left out: `first_sentinel`, then one less each time."""
    starts = left_out & ~np.concatenate([[False], left_out])[:-1]
    replaced = np.where(starts, first_sentinel - np.cumsum(starts) + 1, tokens)
    return replaced[~left_out | starts].astype(np.int32)
