"""A tokenizer with a token and pieces of its own for one more language; all old ids keep their meaning."""

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from flaxformer_lite.core.text.tokenizer import Tokenizer
from flaxformer_lite.files.text.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.text.subwords import SentencePiece, SentencePieceTokenizer, with_more_pieces


class Extension(NamedTuple):
    """A tokenizer for a new language, and what its new pieces are made of."""

    tokenizer: Tokenizer
    parts: list[list[int]]
    """For each new piece, in the order of their ids, the ids that the old tokenizer reads it as."""


def extended(tokenizer: Tokenizer, lines: Iterable[str], num_pieces: int, token: str, first_id: int) -> Extension:
    """Returns a tokenizer that also has a language's token, of the id `first_id`, and behind it pieces that the old one lacks.

    SentencePiece learns a vocabulary of `num_pieces` from the lines. New pieces come before old ones where a text allows both.

    Raises: ValueError for a kind of tokenizer that learns no pieces, or text that has not so many.
    """
    if not isinstance(tokenizer, SentencePieceTokenizer | JsonTokenizer) or not tokenizer.model_type:
        name = type(tokenizer).__name__
        raise ValueError(
            f"the tokenizer is a {name}: a language is added to SentencePiece models alone, BPE or unigram"
        )
    texts = (tokenizer.normalized(line) for line in lines)
    kind: Literal["bpe", "unigram"] = "bpe" if tokenizer.model_type == "bpe" else "unigram"
    ids = tokenizer.with_pieces(range(tokenizer.largest_id + 1))
    known = {token, *tokenizer.pieces(ids)}
    single_digits = not any(re.search(r"\d\d", piece) for piece in known)
    try:
        learned = SentencePiece(model_type=kind, split_digits=single_digits).train(texts, num_pieces)
    except ValueError as error:
        raise ValueError(str(error).replace("model.vocab_size", "pieces", 1)) from None
    ranked = sorted(learned.scored_pieces().values(), key=lambda one: -one[1])
    new = [(piece, score) for piece, score in ranked if piece not in known]
    if kind == "bpe":  # above 0, where the merges of the old pieces begin
        new = [(piece, float(len(new) - number)) for number, (piece, _) in enumerate(new)]
    if isinstance(tokenizer, JsonTokenizer):
        more: Tokenizer = tokenizer.with_more_pieces(token, new, first_id)
    else:
        more = with_more_pieces(tokenizer, token, new, first_id)
    return Extension(more, tokenizer.split([piece for piece, _ in new]))
