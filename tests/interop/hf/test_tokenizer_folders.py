"""Oracle: transformers, for folders drawn at random (tests/support/tokenizer_folders.py): live, and recorded in a fixture."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.core.text import Tokenizer
from flaxformer_lite.files.tokenizers import load_tokenizer, save_tokenizer
from flaxformer_lite.interop.hf.tokenizer_files import find_tokenizers
from tests.support.paths import FIXTURES
from tests.support.tokenizer_folders import Case, draw_case, write_case

FILES = FIXTURES / "tokenizer_folders"
RECORDED = json.loads((FILES / "cases.json").read_text(encoding="utf-8"))["cases"]


def read(folder: Path) -> Tokenizer:
    found = find_tokenizers(folder, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    assert found.tokenizers is not None, found.note
    return found.tokenizers.target


def compare(case: Case, expected: dict[str, Any], folder: Path) -> None:
    """Compares ids with special tokens, the text that comes back, and roles; saved and loaded. A token to which the library gives
    another id than the folder states is refused by its name."""
    write_case(case, folder, FILES)
    if expected["wrong"]:
        with pytest.raises(ValueError, match="should be the added token"):
            read(folder)
        return
    save_tokenizer(read(folder), folder / "saved")
    ours = load_tokenizer(folder / "saved")
    for text, row in zip(case["texts"], expected["rows"], strict=True):
        ids = ours.encode(text)
        assert ours.with_special_tokens(ids).tokens == row["ids"], text
        # T5's decoder keeps a space after a special token at the beginning.
        assert ours.decode(row["ids"]).lstrip(" ") == row["back"].lstrip(" "), text
        tail = ours.with_special_tokens([]).tokens[len(ours.as_prompt([])) :]
        assert ours.as_prompt(ids) + tail == row["ids"], text
    roles = expected["roles"]
    for role, names in {"bos": ("bos", "cls"), "eos": ("eos", "sep"), "unk": ("unk",)}.items():
        ids = {roles[name] for name in names} - {None}
        assert len(ids) != 1 or getattr(ours.special, role) in ids, role


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_recorded_folders_are_read_as_by_the_library(number: int, tmp_path: Path) -> None:
    compare(RECORDED[number], RECORDED[number]["expected"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_drawn_folders_are_read_as_by_the_library(seed: int, tmp_path: Path) -> None:
    """40 folders a seed, where transformers is installed (tests/makers/make_tokenizer_folders.py has what it is asked)."""
    pytest.importorskip("transformers")
    from tests.makers.make_tokenizer_folders import expected

    rng = random.Random(seed)
    for number in range(40):
        case, folder = draw_case(rng), tmp_path / str(number)
        write_case(case, folder, FILES)
        try:
            compare(case, expected(folder, case), folder)
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"seed {seed}, folder {number}: {case}") from error
