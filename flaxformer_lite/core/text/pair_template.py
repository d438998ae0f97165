"""Pairs of texts in the words of a template with the places {query} and {document}, for models that answer yes or no.

ids    … {query} … {document} …, tokenized as one text, without special ids but those that the template writes
"""

import itertools
from collections.abc import Sequence

from flaxformer_lite.core.base.bounds import with_places
from flaxformer_lite.core.text.special_ids import EncodedText
from flaxformer_lite.core.text.tokenizer import Tokenizer


def pair_text(template: str, query: str, document: str) -> str:
    """Returns the text of a pair."""
    return with_places(template, {"query": query, "document": document})


def pair_ending(template: str, tokenizer: Tokenizer) -> list[int]:
    """Returns the ids that the texts of all pairs end with: the common end of two pairs that share no token."""
    one, other = tokenizer.encode_batch([pair_text(template, text, text) for text in ("0", "1 2 3 4")])
    same = itertools.takewhile(lambda ids: ids[0] == ids[1], zip(reversed(one), reversed(other), strict=False))
    return [i for i, _ in same][::-1]


def cut_pair(ids: Sequence[int], ending: Sequence[int], most: int) -> EncodedText:
    """Returns the text of a pair, of at most `most` ids. A longer text is cut, and the ids of `ending` are its last ones.

    Reference: `_restore_chat_template_suffix` of sentence-transformers 6.2.
    """
    kept = list(ids) if len(ids) <= most else [*ids[: max(most - len(ending), 0)], *ending][-most:]
    return EncodedText(kept, [0] * len(kept))
