"""The languages of a translation model in a Hugging Face folder, read from the tokens of its tokenizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flaxformer_lite.interop.hf.folder import read_json
from flaxformer_lite.text import Languages, Tokenizers
from flaxformer_lite.text.languages import codes_in

IN_TEXT = {"source": "none", "target": "source"}
FORMS: dict[str, dict[str, Any]] = {
    "M2M100Tokenizer": {"token": "__{}__"},
    "NllbTokenizer": {"token": "{}"},
    "MBart50Tokenizer": {"token": "{}"},
    "MBartTokenizer": {"token": "{}", "source": "behind", "target": "start"},
    "MarianTokenizer": {"token": ">>{}<<", **IN_TEXT},
    "T5Tokenizer": {"token": "<2{}>", **IN_TEXT},  # MADLAD-400
}
"""The settings of `Languages`, by the class of the tokenizer."""
CLASSES = {
    "m2m_100": ("M2M100Tokenizer", "NllbTokenizer"),
    "mbart": ("MBartTokenizer",),
    "marian": ("MarianTokenizer",),
    **dict.fromkeys(("t5", "mt5", "umt5"), ("T5Tokenizer",)),
}
"""Classes that a folder may mean which names none of these, by `model_type`."""


def read_languages(folder: Path, config: Mapping[str, Any], tokenizers: Tokenizers | None) -> Languages | None:
    """Returns the languages that the tokenizer has tokens for; None for a model of one direction."""
    if tokenizers is None:
        return None
    settings, tokenizer = read_json(folder / "tokenizer_config.json"), tokenizers.source
    name = str(settings.get("tokenizer_class") or config.get("tokenizer_class")).removesuffix("Fast")
    for one in (name,) if name in FORMS else CLASSES.get(config.get("model_type", ""), ()):
        form = FORMS[one]
        plain = form.get("target") == "source"  # a piece like others, or a special token
        pieces = map(tokenizer.piece, range(tokenizer.largest_id + 1)) if plain else tokenizer.special_texts
        if codes := codes_in([*pieces], form["token"]):
            place = {"source": "behind"} if one == "NllbTokenizer" and settings.get("legacy_behaviour") else {}
            if plain and tokenizer.pieces(tokenizer.encode(form["token"].replace("{}", codes[0])))[:-1] == ["▁"]:
                place = {"token": "▁" + form["token"]}
            pair = settings.get("src_lang"), settings.get("tgt_lang")
            known = {"direction": pair} if all(code in codes for code in pair) else {}
            return Languages(codes=codes, **form | place | known)
    return None
