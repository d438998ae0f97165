"""Tokenizers of the `tokenizers` library, described by a `tokenizer.json`: WordPiece, byte-level BPE and others."""

import contextlib
import itertools
import json
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, SupportsIndex

import tokenizers

from flaxformer_lite.core.base.bounds import cut
from flaxformer_lite.core.text import EncodedText, SpecialIds
from flaxformer_lite.core.text.tokenizer import Sealed, SpannedIds, Tokenizer, json_fields
from flaxformer_lite.files.tokenizers.secret_names import secret_names

SPECIAL_NAMES = {"pad": ("pad",), "unk": ("unk",), "bos": ("bos", "cls"), "eos": ("eos", "sep"), "mask": ("mask",)}
"""For each special id the names that it has in a Hugging Face folder."""
NO_SPECIAL = SpecialIds(0, None, None, None)
JOINT_SCORE = 1e-3
"""Score of a unigram piece beyond the sum of its parts, for each joint: so it is chosen for them, and hardly elsewhere."""


def token_text(name: str, token: object) -> str | None:
    """Returns the text of a named token, which folders store as a text or in an object; None where it is not named."""
    text = token.get("content", token) if isinstance(token, Mapping) else token
    if not isinstance(text, str | None):
        raise ValueError(f"{name} is {cut(repr(token))}: it must be a string, or an object with its content")
    return text


Template = list[tuple[int | None, int, int]]
"""For each item its side, a token, and the token type of all its tokens. Side: 0 or 1, a whole text; None, a special id."""


@contextlib.contextmanager
def one_error() -> Iterator[None]:
    """Turns every error of the library into a ValueError: it raises bare `Exception`, and panics, which are only BaseException."""
    try:
        yield
    except (ValueError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ValueError(f"the tokenizers library cannot read it: {error}") from None


def renumbered(value: Any, new: Mapping[int, int], name: str = "") -> object:
    """Returns a value in a post-processor's description with new token ids. `name`: that of its field."""
    if isinstance(value, dict):
        return {inner: renumbered(one, new, inner) for inner, one in value.items()}
    if name in ("sep", "cls"):
        return [value[0], new[value[1]]]
    if isinstance(value, list):
        return [new[one] if name == "ids" else renumbered(one, new) for one in value]
    return value


class JsonTokenizer(Tokenizer):
    """A `tokenizer.json`, with the special ids that its folder names.

    Raises: ValueError if the library cannot use it. Some faults show with some texts only, such as an endless regular expression.
    """

    extension = ".hf.json"
    word_signs = ("▁", "Ġ")

    def __init__(self, description: str, special: SpecialIds) -> None:
        with one_error():
            self._tokenizer = tokenizers.Tokenizer.from_str(description)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.description = description
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.pad_id, self.unk_id, self.bos_id, self.eos_id, self.mask_id = special[:5]

    @property
    def largest_id(self) -> int:
        """The largest id that a text may get. Ids may have gaps, and a template may have ids of its own."""
        pieces = self._tokenizer.get_vocab(with_added_tokens=True).values()
        return max(super().largest_id, *pieces, *self.template_ids)

    @property
    def template_ids(self) -> set[int]:
        """The special ids that the template puts around a text, or around two."""
        items = itertools.chain.from_iterable(self._templates)
        return {token for side, token, _ in items if side is None}

    def has_piece(self, i: int) -> bool:
        return self._tokenizer.id_to_token(i) is not None

    @classmethod
    def of(
        cls, description: str, names: Mapping[str, object], model_ids: Mapping[str, Collection[int]] | None = None
    ) -> "JsonTokenizer":
        """Returns the tokenizer with the special tokens named by its folder: `{"pad_token": "[PAD]", …}`.

        Named tokens become special ones. If a special id has two names, such as bos and cls, or none, the template decides, then
        `model_ids`, which has the ids in the model's config by role.
        """
        library = cls(description, NO_SPECIAL)._tokenizer
        keys = {role: [f"{name}_token" for name in SPECIAL_NAMES[role]] for role in SPECIAL_NAMES}
        named = {role: [token_text(key, names.get(key)) for key in keys[role]] for role in SPECIAL_NAMES}
        texts = {text for text in itertools.chain.from_iterable(named.values()) if text is not None}
        known = {token.content for token in library.get_added_tokens_decoder().values()}
        library.add_special_tokens([text for text in sorted(texts - known) if library.token_to_id(text) is not None])
        plain = cls(library.to_str(), NO_SPECIAL)
        before: list[int] = []
        after: list[int] = []
        with contextlib.suppress(ValueError):  # a tokenizer that makes no token of any text raises when it is used
            before, after = plain._around

        def special_id(role: str) -> int | None:
            edge = {"bos": before, "eos": after}.get(role, [])
            in_model = [i for i in (model_ids or {}).get(role, ()) if plain.has_piece(i)]
            known = (library.token_to_id(text) for text in named[role] if text is not None)
            ids = [i for i in known if i is not None]
            if not ids and not any(key in names for key in keys[role]):
                ids = [*edge, *in_model]
            return min(ids, key=lambda i: (i not in edge, i not in in_model), default=None)

        ids = {role: special_id(role) for role in SPECIAL_NAMES}
        if ids["pad"] is None:  # any id: nothing reads the padding
            ids["pad"] = next((i for i in (ids["eos"], ids["unk"]) if i is not None), 0)
        return cls(plain.description, SpecialIds(**ids))  # type: ignore[arg-type]

    @one_error()
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    @one_error()
    def encode_spans(self, texts: Sequence[str]) -> list[SpannedIds]:
        encoded = []
        for read in self._tokenizer.encode_batch(list(texts), add_special_tokens=False):
            spans: list[tuple[int, int]] = []
            end = 0
            for start, stop in read.offsets:
                # A token of only white space has the place behind it, if offsets are trimmed.
                first = min(start, end) if start == stop else start
                spans.append((first, stop))
                end = stop
            encoded.append(SpannedIds(list(read.ids), spans))
        return encoded

    @property
    def special_texts(self) -> tuple[str, ...]:
        added = self._tokenizer.get_added_tokens_decoder().values()
        return tuple(token.content for token in added if token.special)

    @cached_property
    def sealed(self) -> Sealed:
        fields = json.loads(self._tokenizer.to_str())
        model = fields["model"]
        names = secret_names(self.special_texts)
        for token in fields["added_tokens"]:
            if token["content"] in names:
                token |= {"content": names[token["content"]], "single_word": False}
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, dict):
            model["vocab"] = {names.get(piece, piece): i for piece, i in vocabulary.items()}
        elif vocabulary is not None:
            model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
        if model.get("unk_token") is not None:
            model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
        if "merges" in model:  # no merge spells a name
            pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
            model["merges"] = [pair for pair in pairs if names.keys().isdisjoint((*pair, "".join(pair)))]
        ids = {names[name]: self._tokenizer.token_to_id(name) for name in names}

        def read() -> JsonTokenizer | None:
            """Returns the tokenizer if it finds each name within a text."""
            tokenizer = JsonTokenizer(json.dumps(fields, ensure_ascii=False), self.special)
            rows = zip(ids.values(), tokenizer.encode_batch([f"a{name}a" for name in ids]), strict=True)
            return tokenizer if all(i in row for i, row in rows) else None

        tokenizer = read()
        if tokenizer is None:  # a normalizer that changes the beginning of a text changes these names too
            for token in fields["added_tokens"]:
                token["normalized"] = token["normalized"] and token["content"] not in ids
            tokenizer = read()
        if tokenizer is None:
            raise ValueError(
                "the tokenizer does not find its special tokens under other names: choose another tokenizer"
            )
        return Sealed(tokenizer, names)

    @one_error()
    def unknown_parts(self, texts: Iterable[str]) -> list[str]:
        """Returns the parts of the texts that the vocabulary lacks, in order: words of WordPiece, else characters.

        A tokenizer without UNK drops such characters; they count if they are not white space.
        """
        texts = list(texts)
        if self.unk_id is None:
            characters = dict.fromkeys(itertools.chain.from_iterable(texts))
            return [c for c in characters if not self.encode(c) and not c.isspace()]
        missing = []
        name = self._piece(self.unk_id)
        for text, read in zip(texts, self._tokenizer.encode_batch(texts, add_special_tokens=False), strict=True):
            spans = zip(read.ids, read.offsets, strict=True)
            unknown = (text[a:b].strip() for i, (a, b) in spans if i == self.unk_id)
            missing += [word for word in unknown if word != name]
        return missing

    def with_special_tokens(self, first: Sequence[int], second: Sequence[int] | None = None) -> EncodedText:
        """Returns one text, or two, with special ids and token types by the tokenizer's own template."""
        texts = [first] if second is None else [first, second]
        tokens: list[int] = []
        types: list[int] = []
        for side, token, kind in self._templates[len(texts) - 1]:
            more = [token] if side is None else [int(i) for i in texts[side]]
            tokens, types = tokens + more, types + [kind] * len(more)
        return EncodedText(tokens, types)

    def own_source(self, tokens: Sequence[int]) -> list[int]:
        return self.with_special_tokens(tokens).tokens

    def as_prompt(self, tokens: Sequence[int]) -> list[int]:
        return [*self._around[0], *tokens]

    @property
    def _around(self) -> tuple[list[int], list[int]]:
        """The special ids before and after a single text."""
        sides = [side for side, *_ in self._templates[0]]
        tokens = [token for _, token, _ in self._templates[0]]
        return tokens[: sides.index(0)], tokens[sides.index(0) + 1 :]

    @cached_property
    @one_error()
    def _templates(self) -> tuple[Template, Template]:
        """The templates for one text and for two, read off the library's encoding of a text with at least one token."""
        some = self._some_text()

        def template(second: str | None) -> Template:
            whole, items = self._tokenizer.encode(some, second), Template()
            for item in zip(whole.sequence_ids, whole.ids, whole.type_ids, strict=True):
                if item[0] is None or all(item[0] != side for side, *_ in items):  # a text's first token stands for it
                    items.append(item)
            return items

        return template(None), template(some)

    def _some_text(self) -> str:
        """Returns a text with at least one token. Raises: ValueError if no piece of the vocabulary is one."""
        pieces = (self._tokenizer.decode([i], skip_special_tokens=False) for i in range(self.vocab_size))
        for text in itertools.chain("a", pieces):
            encoding = self._tokenizer.encode(text) if text else None
            if encoding is not None and 0 in encoding.sequence_ids:
                return str(text)
        raise ValueError("the tokenizer makes no token of any piece of its own vocabulary: choose another tokenizer")

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Returns the text of the ids; every token that the description calls special is dropped, and no other."""
        return str(self._tokenizer.decode([*map(operator.index, ids)], skip_special_tokens=True))

    def _text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def _piece(self, i: int) -> str:
        piece = self._tokenizer.id_to_token(i)
        if piece is None:
            raise IndexError(f"id {i} of {self.vocab_size}")
        return str(piece)

    def word_starts(self, ids: Sequence[int]) -> list[bool]:
        """Returns whether each token begins a word: of WordPiece all tokens without "##"."""
        prefix = self._continuing_prefix
        return super().word_starts(ids) if prefix is None else [not self._piece(i).startswith(prefix) for i in ids]

    @property
    def model_type(self) -> str:
        """The kind of the model: "bpe" or "unigram" where "▁" stands for a space, else ""."""
        kind = type(self._tokenizer.model).__name__.lower()
        return kind if kind in ("bpe", "unigram") and self._tokenizer.token_to_id("▁") is not None else ""

    def normalized(self, text: str) -> str:
        """Returns a text as the model reads it, with spaces."""
        normalizer = self._tokenizer.normalizer
        return (text if normalizer is None else str(normalizer.normalize_str(text))).replace("▁", " ")

    def split(self, pieces: Sequence[str]) -> list[list[int]]:
        """Returns the ids that each text is read as where it stands in a word; "▁" begins a word."""
        return [[token.id for token in self._tokenizer.model.tokenize(piece)] for piece in pieces]

    def with_more_pieces(self, token: str, pieces: Mapping[str, Sequence[str]], first_id: int) -> "JsonTokenizer":
        """Returns the tokenizer with a special token, which gets the id `first_id`, and pieces, which get those after it.

        `pieces` has for each one the pieces that it joins, or itself. Pieces are joined where the tokenizer puts them side by side.
        """
        fields = json.loads(self._tokenizer.to_str())
        model, added = fields["model"], fields["added_tokens"]
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added.append({"id": first_id, "content": token, **flags, "special": True})
        # In the model too: else the library would number them anew.
        names = {one["id"]: one["content"] for one in added}
        if self.model_type == "bpe":
            vocabulary = model["vocab"]
            vocabulary |= {name: i for i, name in names.items()}
            vocabulary |= {piece: i for i, piece in enumerate(pieces, first_id + 1)}
            for piece in pieces:
                halves = [[piece[:i], piece[i:]] for i in range(1, len(piece))]
                model["merges"] += [pair for pair in halves if vocabulary.keys() >= set(pair)]
        else:
            scores = dict(model["vocab"])
            lowest = min(scores.values())
            gap = range(len(model["vocab"]), first_id + 1)
            model["vocab"] += [[names.get(i, f"<unused {i}>"), lowest] for i in gap]
            for piece, joined in pieces.items():
                likely = sum(scores.get(one, lowest) for one in joined)
                model["vocab"].append([piece, likely + JOINT_SCORE * (len(joined) - 1)])
        return JsonTokenizer(json.dumps(fields, ensure_ascii=False), self.special)

    def with_ids(self, kept: Sequence[int]) -> "JsonTokenizer":
        """Returns the tokenizer with only the pieces of these ids, which get the numbers of their order.

        Merges stay between pieces that stay. The ids must include the special ones and those of the template.

        Raises: ValueError if the library would give a piece another number.
        """
        fields = json.loads(self.description)
        new = {i: number for number, i in enumerate(kept)}
        model = fields["model"]
        fields["post_processor"] = renumbered(fields["post_processor"], new)
        fields["added_tokens"] = [one | {"id": new[one["id"]]} for one in fields["added_tokens"] if one["id"] in new]
        vocabulary = model["vocab"]
        if isinstance(vocabulary, dict):
            model["vocab"] = {piece: new[i] for piece, i in vocabulary.items() if i in new}
        else:
            lowest = min(score for _, score in vocabulary)
            model["vocab"] = [vocabulary[i] for i in kept if i < len(vocabulary)]
            if model["unk_id"] is not None:  # unknown text costs as much as before, by the lowest score of the list
                model["unk_id"] = new[model["unk_id"]]
                model["vocab"][model["unk_id"]][1] = lowest
        if "merges" in model:
            model["merges"] = [pair for pair in self.merges if model["vocab"].keys() >= {*pair, "".join(pair)}]
        special = [None if i is None else new[i] for i in self.special[:5]]
        made = JsonTokenizer(json.dumps(fields, ensure_ascii=False), SpecialIds(*special))  # type: ignore[arg-type]
        for i in self.with_pieces(kept):
            if made.piece(new[i]) != self.piece(i):
                raise ValueError(
                    f"the tokenizers library gives the token {cut(repr(self.piece(i)))} another number than {new[i]}: name no "
                    "ids to keep that stand for no token"
                )
        return made

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """The pairs that byte-pair encoding joins, the first before the others; [] for another kind."""
        pairs = json.loads(self.description)["model"].get("merges", ())
        return [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in pairs]

    @cached_property
    def _continuing_prefix(self) -> str | None:
        """The sign of WordPiece before a token within a word; None for other kinds."""
        model = json.loads(self.description)["model"]
        return str(model["continuing_subword_prefix"]) if model.get("type") == "WordPiece" else None

    def to_bytes(self) -> bytes:
        special = self.special._replace(size=None)._asdict()
        return json.dumps({"kind": "tokenizers", "special": special, "tokenizer": self.description}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "Tokenizer":
        description, special = json_fields(content, "tokenizers", tokenizer=str, special=dict)
        return cls(description, SpecialIds(**special))
