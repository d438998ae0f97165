"""The languages of a translation model in a Hugging Face folder, read from the tokens of its tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flaxformer_lite.core.text import Languages, Tokenizers
from flaxformer_lite.core.text.languages import codes_in
from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.interop.hf.tokenizer_classes import CLASSES, OF_MODELS, PLAIN, class_name


def read_languages(folder: Path, config: Mapping[str, Any], tokenizers: Tokenizers | None) -> Languages | None:
    """Returns the languages that the tokenizer has tokens for; None for a model of one direction."""
    if tokenizers is None:
        return None
    settings = read_json(folder / "tokenizer_config.json")
    tokenizer = tokenizers.source
    for one in classes_with_languages(class_name(folder, config), config.get("model_type", "")):
        form = CLASSES[one].languages
        plain = form.get("target") == "source"  # a piece like others, or a special token
        pieces = map(tokenizer.piece, range(tokenizer.largest_id + 1)) if plain else tokenizer.special_texts
        codes = codes_in(list(pieces), form["token"])
        if codes:
            place = {"source": "behind"} if one == "NllbTokenizer" and settings.get("legacy_behaviour") else {}
            if plain:
                of_first = tokenizer.pieces(tokenizer.encode(form["token"].replace("{}", codes[0])))
                if of_first[:-1] == ["▁"]:
                    place = {"token": "▁" + form["token"]}
            pair = settings.get("src_lang"), settings.get("tgt_lang")
            known = {"direction": pair} if all(code in codes for code in pair) else {}
            return Languages(codes=codes, **{**form, **place, **known})
    return None


def classes_with_languages(name: str, model_type: str) -> list[str]:
    """Returns the class of a tokenizer if it has languages; else those with languages that a model of this type is used with."""
    if CLASSES.get(name, PLAIN).languages:
        return [name]
    usual = [OF_MODELS.get(model_type, "")]
    if model_type == "m2m_100":
        usual.append("NllbTokenizer")
    return [one for one in usual if CLASSES.get(one, PLAIN).languages]
