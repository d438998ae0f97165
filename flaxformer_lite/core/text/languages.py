"""Languages of a run that translates between several: the codes, the token of each, and the places of these tokens."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from flaxformer_lite.core.base.bounds import Checked, cut
from flaxformer_lite.core.base.groups import groups_of
from flaxformer_lite.core.base.mistake import Mistake
from flaxformer_lite.core.base.suggest import suggest
from flaxformer_lite.core.text.pairs import EncodedPair, Pair
from flaxformer_lite.core.text.tokenizer import Frame, Tokenizer, Tokenizers


@dataclass(frozen=True, kw_only=True)
class Languages(Checked, at="data.languages"):
    """The languages of a run that translates between several. Two tokens, one for each language, say which direction is meant:

    models                     the encoder reads     the decoder reads
    NLLB, M2M-100, mBART-50    [from] text EOS       BOS [to] text        source "before", target "first"
    mBART                      text EOS [from]       [to] text            source "behind", target "start"
    Marian, MADLAD-400         [to] text EOS         BOS text             source "none", target "source"
    """

    codes: tuple[str, ...]
    """Codes of the languages, such as eng_Latn: the values of --from and --to."""
    token: str = "{}"
    """The token of a language, with {} for its code: "__{}__", or "▁<2{}>" with a space. SentencePiece gets it if trained here."""
    source: Literal["none", "before", "behind"] = "before"
    """Place of the token of the source's language: before the source, behind its end, or none."""
    target: Literal["source", "first", "start"] = "first"
    """Place of the token of the target's language. source: before the source. first: the first token of every answer, which is
    forced. start: an answer starts from it, in the place of `decode.bos_id`."""
    direction: tuple[str, ...] = ()
    """The codes of source and target if nothing names others; (): each use must name them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        has_spaces = any(code.split() != [code] for code in self.codes)
        if not self.codes or len(set(self.codes)) < len(self.codes) or has_spaces:
            raise ValueError(
                f"data.languages.codes is {self.codes}: there must be one or more, each once, without white space"
            )
        if self.token.count("{}") != 1 or self.token.split() != [self.token]:
            raise ValueError(f"data.languages.token is {self.token!r}: it must have {{}} once, and no white space")
        if len(self.direction) not in (0, 2):
            raise ValueError(
                f"data.languages.direction is {self.direction}: it must be two codes, of source and target"
            )
        if self.direction:
            self.checked(*self.direction)

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(map(self.token.replace, ["{}"] * len(self.codes), self.codes))

    @property
    def trainable(self) -> bool:
        """Whether pairs can have the tokens at these places."""
        return (self.source == "behind") == (self.target == "start")

    def checked(self, source: str | None, target: str | None) -> tuple[str, str]:
        """Returns the codes of a direction, with `direction` in place of None; "" for a source whose language needs no token.

        Raises: ValueError for a code that this run does not have, with the nearest; or for a missing one.
        """
        usual_source, usual_target = self.direction or ("", "")
        sides = ("from", source or usual_source, self.source != "none"), ("to", target or usual_target, True)
        codes = []
        for name, code, needed in sides:
            if code:
                self.check_code(name, code)
            if not code and needed:
                raise ValueError(
                    f"{name} is missing: this run translates between {len(self.codes)} languages, {cut(', '.join(self.codes))}; "
                    "name the direction by --from and --to, from Python by run.between(source, target), for data by its `languages`"
                )
            codes.append(code)
        return codes[0], codes[1]

    def check_code(self, name: str, code: str) -> None:
        """Raises: ValueError for a code that this run does not have, with the nearest."""
        if code not in self.codes:
            listed = f"the languages are {cut(', '.join(self.codes))}"
            near = suggest(code, self.codes, 3, 0.3).removeprefix("; ") or listed
            raise Mistake(
                f"{name} is {cut(repr(code))}, which is not one of this run's {len(self.codes)} languages; {near}",
                setting=name,
            )


class Direction(NamedTuple):
    """The token ids of one direction."""

    before: tuple[int, ...]
    """Before a source."""
    behind: tuple[int, ...]
    """Behind the end of a source."""
    decode: dict[str, Any]
    """The settings `forced_bos_id`, `bos_id` and `num_ids` of `DecodeConfig`, as far as the direction decides them."""

    @property
    def first(self) -> tuple[int, ...]:
        """Before a target."""
        return tuple(i for name, i in self.decode.items() if name == "forced_bos_id")


@dataclass(frozen=True)
class LanguageTokenizers(Tokenizers):
    """Tokenizers that add the tokens of languages to pairs.

    A pair without languages of its own has the direction of `languages`.
    """

    languages: Languages
    base: Tokenizers
    """The tokenizers of the languages without a tokenizer of their own."""
    own: Mapping[str, Tokenizer] = field(default_factory=dict)
    """The tokenizers of added languages by their codes, in the order of the codes. Each has the ids of the one before it, then the
    token of its language, then more pieces: ids that no language before it reads or writes."""

    @classmethod
    def of(
        cls, tokenizers: Tokenizers, languages: Languages, own: Mapping[str, Tokenizer] = {}
    ) -> "LanguageTokenizers":
        """Returns the tokenizers for pairs; a source without a target gets no language.

        Raises: ValueError for a language without a token.
        """
        multilingual = cls(tokenizers.source, tokenizers.target, languages, tokenizers, own)
        for code in languages.codes:
            multilingual.token_id(code)
        return multilingual.plain

    @property
    def plain(self) -> "LanguageTokenizers":
        """Tokenizers that add no language token to a source and can decode any answer."""
        last = list(self.own)[-1] if self.own else ""
        return self.reading_by(Direction((), (), {}), ("", last))

    def reading_by(self, direction: Direction, codes: tuple[str, str]) -> "LanguageTokenizers":
        tokenizers = self.of_codes(codes)
        end = () if tokenizers.source.eos_id is None else (tokenizers.source.eos_id,)
        source = tokenizers.source.framed(Frame(direction.before, (*end, *direction.behind)))
        target = tokenizers.target.framed(Frame((), end, ends_pairs=self.languages.target == "start"))
        return replace(self, source=source, target=target)

    def of_codes(self, codes: tuple[str, str]) -> Tokenizers:
        """Returns the tokenizers of the texts of two languages."""
        source, target = codes
        return Tokenizers(self.own.get(source, self.base.source), self.own.get(target, self.base.target))

    def token_id(self, code: str) -> int:
        """Returns the id of the token of a language. Raises: ValueError if the tokenizer has no such token."""
        return self.token_ids(code)[-1]

    def token_ids(self, code: str) -> tuple[int, ...]:
        """Returns the ids of the token of a language as a text has it. Raises: ValueError if the tokenizer has no such token."""
        return token_ids(self.own.get(code, self.base.source), self.languages.token.replace("{}", code))

    def between(self, source: str | None, target: str | None) -> "LanguageTokenizers":
        """Returns the tokenizers as they read sources of one direction. Raises: ValueError as `Languages.checked`."""
        codes = self.languages.checked(source, target)
        direction = codes if all(codes) else ()
        tokenizers = self.reading_by(self.ids(source, target), codes)
        return replace(tokenizers, languages=replace(self.languages, direction=direction))

    def ids(self, source: str | None, target: str | None) -> Direction:
        """Returns the token ids of a direction. Raises: ValueError as `Languages.checked`."""
        places = self.languages
        codes = self.languages.checked(source, target)
        from_id, to_id = (self.token_id(code) if code else -1 for code in codes)
        decode = dict[str, Any]()
        if places.target == "first":
            decode["forced_bos_id"] = to_id
        elif places.target == "start":
            decode["bos_id"] = to_id
        if self.own:
            decode["num_ids"] = min((i for i in map(self.token_id, self.own) if i > to_id), default=None)
        before: tuple[int, ...] = (from_id,) if places.source == "before" else ()
        if places.target == "source":
            before += self.token_ids(codes[1])
        behind = (from_id,) if places.source == "behind" else ()
        return Direction(before, behind, decode)

    def ids_of(self, languages: Sequence[str]) -> Direction:
        """Returns the token ids of the direction of a pair with these languages."""
        return self.ids(*self.codes_of(languages))

    def codes_of(self, languages: Sequence[str]) -> tuple[str, str]:
        """Returns the codes of a pair with these languages. Raises: ValueError as `Languages.checked`, or for one code or three."""
        codes = languages or self.languages.direction or (None, None)
        if len(codes) != 2:
            raise ValueError(
                f"a pair has the languages {languages}: they must be two codes of data.languages, of source and target"
            )
        return self.languages.checked(*codes)

    @property
    def reading(self) -> str:
        return repr(self.languages)

    @cached_property
    def firsts(self) -> set[int]:
        """The tokens of languages that may be the first of an answer."""
        return {*map(self.token_id, self.languages.codes)} if self.languages.target == "first" else set()

    def target_text(self, tokens: Sequence[int]) -> str:
        return super().target_text(tokens[1:] if tokens and tokens[0] in self.firsts else tokens)

    def encode_pairs(self, pairs: Sequence[Pair]) -> Iterator[EncodedPair]:
        label = next((pair.label for pair in pairs if pair.label), "")
        if label:
            raise ValueError(
                f"a pair has the label {cut(repr(label))}, which a translation does not read: leave it out; `languages` of the "
                "data name the languages of pairs"
            )
        groups = groups_of(pair.languages for pair in pairs)
        directions = {languages: self.ids_of(languages) for languages in groups}
        if not self.languages.trainable:
            raise ValueError(
                f"data.languages.source is {self.languages.source!r} and .target is {self.languages.target!r}, which are for use "
                f"alone: train with --data.languages.source {'behind' if self.languages.target == 'start' else 'before'}"
            )
        encoded = dict[tuple[str, ...], Iterator[EncodedPair]]()
        for languages, numbers in groups.items():
            tokenizers = self.of_codes(self.codes_of(languages))
            encoded[languages] = tokenizers.encode_pairs([pairs[number] for number in numbers])
        for given in pairs:
            direction = directions[given.languages]
            before, behind, decode = direction
            first = direction.first
            pair = next(encoded[given.languages])
            if self.target.ends_pairs:
                end = self.target.as_source([])
                first = (decode["bos_id"],)
                yield EncodedPair([*pair.source, *end, *behind], [*first, *pair.target, *end])
            else:
                yield EncodedPair([*before, *pair.source], [*first, *pair.target])


def token_ids(tokenizer: Tokenizer, token: str) -> tuple[int, ...]:
    """Returns the id of a language's token, after the id of its space if it has one. Raises: ValueError without such a piece."""
    ids = tokenizer.encode(token)
    piece = tokenizer.piece(ids[-1]) if ids else ""
    if token not in (piece, f"▁{piece}"):
        raise ValueError(
            f"data.languages has the token {token!r}, which is no piece of the tokenizer: correct codes or token, or train a "
            "SentencePiece tokenizer, which gets these pieces"
        )
    return tuple(ids[-1:] if token == piece else ids[-2:])


PATTERNS = {
    "{}": re.compile(r"([a-z]{2,3}_[A-Z][A-Za-z]{1,3})"),
    "__{}__": re.compile(r"__(\w+?)__"),
    ">>{}<<": re.compile(r">>([^<>]+)<<"),
    "<2{}>": re.compile(r"<2(\w+)>"),
}
"""Patterns of the tokens of languages in other programs' models, by the form of the token."""


def codes_in(texts: Sequence[str], token: str) -> tuple[str, ...]:
    """Returns the codes of the texts that are tokens of this form, in order, each once."""
    matches = filter(None, map(PATTERNS[token].fullmatch, texts))
    return tuple(dict.fromkeys(match[1] for match in matches))
