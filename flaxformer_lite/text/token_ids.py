"""The range of token ids, checked before they reach a model: an accelerator looks up wrong ids silently."""

from collections.abc import Iterable


def check_token_ids(ids: Iterable[int | None], vocab_size: int, where: str) -> None:
    """Checks that every id is one of a vocabulary; None is no id and is skipped.

    where: the beginning of the message, for example "objective.mask_token is" or "prompt 3 has".

    Raises: ValueError for the first id outside of the vocabulary.
    """
    for i in ids:
        if i is not None and not 0 <= i < vocab_size:
            raise ValueError(
                f"{where} {i}, which is no token id: ids must be between 0 and {vocab_size - 1}, one less than model.vocab_size"
            )
