"""The tokens that the files beside a vocabulary add to it, and which of them are special; merged as transformers 5.24 does.

`tokenizer_config.json` has them in `added_tokens_decoder`. Only in older folders without it, `special_tokens_map.json` and
`added_tokens.json` count too.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from flaxformer_lite.base.bounds import cut
from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.text.added_pieces import FLAGS
from flaxformer_lite.text.json_tokenizer import ROLES, token_text
from flaxformer_lite.text.tokenizer import MOST_IDS

NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The settings that name special tokens. Tokens that the vocabulary lacks get the next free ids in this order."""


class TokenizerSettings(NamedTuple):
    """The settings of a folder's tokenizer."""

    values: dict[str, Any]
    """`tokenizer_config.json`, in older folders with `special_tokens_map.json`."""
    older: bool
    """Whether `tokenizer.json` describes its tokens, and not `added_tokens_decoder`."""
    added: dict[int, AddedToken]
    """The tokens whose ids the folder states."""
    named: Collection[str]
    """The texts of tokens that have a role."""
    special: list[AddedToken]
    """Other special tokens, named or listed; one that the vocabulary lacks gets the next free id."""
    model_ids: dict[str, list[int]]
    """The special ids in the model's own config, by role."""


def read_settings(folder: Path, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> TokenizerSettings:
    """Returns the settings. `defaults` has the special tokens that the tokenizer's class names itself.

    Raises: ValueError where a token is neither a string nor an object with its content.
    """
    values = read_json(folder / "tokenizer_config.json")
    older, listed, named = "added_tokens_decoder" not in values, *listed_tokens(values)
    first = listed
    if older:
        values |= read_json(folder / "special_tokens_map.json")
        if not listed and not named:
            listed, named = listed_tokens(values)
    values |= {name: token for name, token in defaults.items() if not values.get(name)}
    roles = [values[name] for name in NAMES if values.get(name) is not None]
    own = [token for name, token in values.items() if name.endswith("_token") and isinstance(token, str | Mapping)]
    named = [*roles, *own, *named]
    if older:
        special = {*map(content, [*roles, *first])}
        stated = [
            (i, {"content": text, "special": text in special, "normalized": text not in special})
            for text, i in read_json(folder / "added_tokens.json").items()
        ]
    else:
        if not isinstance(values["added_tokens_decoder"], Mapping):
            raise ValueError("added_tokens_decoder is not an object: it must have tokens by their ids")
        stated = [*values["added_tokens_decoder"].items()]
    texts = {*map(content, named)}
    added = stated_tokens(stated, texts)
    known = {"", *(token.content for token in added.values())}  # the library ignores a token without text
    once = {repr(token): token for token in [*named, *listed]}.values()  # of two descriptions the last one counts
    others = {content(token): added_token(token, special=True) for token in once}
    more = [token for text, token in others.items() if text not in known]
    return TokenizerSettings(values, older, added, texts, more, model_ids(folder, config))


def listed_tokens(values: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Returns the listed special tokens, and those with names of their own. Raises: ValueError where they are neither."""
    found = values.get("extra_special_tokens") or values.get("additional_special_tokens") or []
    if not isinstance(found, list | dict):
        raise ValueError(f"additional_special_tokens is {cut(repr(found))}: it must be a list of tokens")
    return ([], [*found.values()]) if isinstance(found, dict) else (found, [])


def stated_tokens(stated: Iterable[tuple[Any, Any]], special: Collection[str]) -> dict[int, AddedToken]:
    """Returns added tokens by their ids. Raises: ValueError where two have the same one."""
    added: dict[int, AddedToken] = {}
    for i, token in stated:
        found = added_token(token, special=content(token) in special)
        if (number := token_id(i, token)) in added:
            both = " and ".join(cut(repr(text)) for text in (added[number].content, found.content))
            raise ValueError(f"the added tokens {both} have the same id {number}: give each an id of its own")
        if found.content:
            added[number] = found
    return added


def content(token: Any) -> str:
    """Returns the text of a token, which files store alone or in an object."""
    text = token_text("a special token", token)
    if text is None:
        raise ValueError("a special token is null: it must be a string, or an object with its content")
    return text


def added_token(token: Any, special: bool = False) -> AddedToken:
    """Returns a token as the files describe it; with `special` it is special, whatever they say."""
    text = content(token)
    flags = {name: token[name] for name in FLAGS if name in token} if isinstance(token, Mapping) else {}
    try:
        return AddedToken(text, **flags | ({"special": True} if special else {}))
    except (TypeError, UnicodeEncodeError) as error:
        raise ValueError(f"the token {cut(repr(text))} cannot be read: {error}") from None


def token_id(i: Any, token: Any) -> int:
    """Returns the id of an added token. Raises: ValueError where it is not an id."""
    if isinstance(i, bool) or not str(i).isdecimal() or int(i) >= MOST_IDS:
        text = cut(repr(content(token)))
        raise ValueError(f"the added token {text} has the id {cut(repr(i))}: it must be from 0 to {MOST_IDS - 1}")
    return int(i)


def model_ids(folder: Path, config: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns the special ids of `generation_config.json`, or of `config.json` where it has none, by role."""
    files = (read_json(folder / "generation_config.json"), config)
    found: dict[str, list[int]] = {}
    for role, names in ROLES.items():
        values = (file.get(f"{name}_token_id") for name in names for file in files)
        first: Any = next((value for value in values if value is not None), [])
        found[role] = [i for i in (first if isinstance(first, list) else [first]) if type(i) is int and i >= 0]
    return found


def add_tokens(library: Library, settings: TokenizerSettings) -> None:
    """Adds the tokens to a tokenizer, as one piece each.

    Raises: ValueError with the name of a token that would get another id than the folder states.
    """
    present = library.get_added_tokens_decoder()
    known = {token.content for token in (*present.values(), *settings.added.values())}
    stated = settings.added
    if settings.older:
        stated = stated | present
        for token in present.values():
            token.special |= token.content in settings.named
    library.add_tokens([token for _, token in sorted(stated.items())])
    library.add_tokens([token for token in settings.special if token.content not in known])
    check_ids(library, ((i, token.content) for i, token in settings.added.items()))


def check_ids(library: Library, tokens: Iterable[tuple[int, str]]) -> None:
    """Raises: ValueError with the name of a token that has another id than the folder states."""
    for i, text in tokens:
        if text and library.token_to_id(text) != i:
            raise wrong_id(i, text)


def wrong_id(i: int, text: str) -> ValueError:
    return ValueError(
        f"{cut(repr(text))} should be the added token {i}: that id does not follow the vocabulary; copy the folder again"
    )
