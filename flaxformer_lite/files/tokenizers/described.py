"""A SentencePiece model as the description of a `tokenizer.json`, which can be extended, and which other programs read."""

from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from flaxformer_lite.files.tokenizers.json_tokenizer import JsonTokenizer
from flaxformer_lite.files.tokenizers.subwords import FLAGS, AddedPieces, SentencePieceTokenizer

MOST_SPACES = 1000
"""The most spaces that an answer's beginning loses."""
USER_DEFINED = 4
"""The type of a piece that is found in a text before all others."""


def as_described(tokenizer: SentencePieceTokenizer) -> JsonTokenizer:
    """Returns the tokenizer with the same ids, in the terms of the `tokenizers` library.

    Texts are cut in the same way, but for rare ones: neighbours that spell the same piece twice, characters of several code points,
    and the names of special tokens, which are found in every text.
    """
    from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

    model = ModelProto.FromString(tokenizer.model)
    rules = model.normalizer_spec
    symbols = {piece.piece for piece in model.pieces if piece.type == USER_DEFINED}
    scores = {piece: score for piece, score in tokenizer.scored_pieces().values() if piece not in symbols}
    names = {i: tokenizer.piece(i) for i in tokenizer.with_pieces(range(tokenizer.largest_id + 1))}
    unk, in_bytes = tokenizer.unk_id, model.trainer_spec.byte_fallback
    if tokenizer.model_type == "bpe":
        ranked = sorted(scores, key=lambda piece: -scores[piece])
        merges = list[tuple[str, str]]()
        for piece in ranked:
            halves = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
            merges += [pair for pair in halves if scores.keys() >= set(pair)]
        ids = {name: i for i, name in names.items()}
        options: dict[str, Any] = {
            "byte_fallback": in_bytes,
            "fuse_unk": True,
            "unk_token": None if unk is None else names[unk],
        }
        library = Library(models.BPE(ids, merges, **options))
    else:
        lowest = min(scores.values())
        listed = [names.get(i, f"<unused {i}>") for i in range(tokenizer.largest_id + 1)]
        library = Library(models.Unigram([(name, scores.get(name, lowest)) for name in listed], unk, in_bytes))
    steps: list[Any] = [normalizers.Precompiled(rules.precompiled_charsmap)] if rules.precompiled_charsmap else []
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    added = tokenizer.added if isinstance(tokenizer, AddedPieces) else {}
    everywhere = not isinstance(tokenizer, AddedPieces) or tokenizer.prefix
    scheme = "never"
    if rules.add_dummy_prefix:
        scheme = "always" if everywhere else "first"
    library.normalizer = normalizers.Sequence(steps)
    library.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    spelled: list[Any] = [decoders.Replace("▁", " ")]
    if in_bytes:
        spelled.append(decoders.ByteFallback())
    spelled += [decoders.Fuse(), decoders.Strip(" ", MOST_SPACES, 0)]
    library.decoder = decoders.Sequence(spelled)
    special = [names[i] for i in tokenizer.special[:5] if i is not None and i in names and i not in added]
    library.add_special_tokens([AddedToken(name, normalized=False) for name in special])
    library.add_tokens([AddedToken(name, normalized=False) for name in sorted(symbols) if name in names.values()])
    library.add_tokens([AddedToken(**{flag: one[flag] for flag in ("content", *FLAGS)}) for one in added.values()])
    end = tokenizer.own_source([])
    library.post_processor = processors.TemplateProcessing(
        single=["$A", *(names[i] for i in end)],
        pair=["$A", *(names[i] for i in end), "$B:1", *(f"{names[i]}:1" for i in end)],
        special_tokens=[(names[i], i) for i in {*end}],
    )
    return JsonTokenizer(library.to_str(), tokenizer.special)
