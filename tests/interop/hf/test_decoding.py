"""Settings of generation in folders, both ways. Oracle: worked by hand from the library's own rules."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.inference.config import DecodeConfig, Sampling
from flaxformer_lite.interop.hf.decoding import decode_config, export_notes, generation_config, notes, special_ids
from flaxformer_lite.interop.hf.import_folder import read_folder
from flaxformer_lite.interop.hf.options import SpecialIds
from flaxformer_lite.model.config import ModelConfig
from tests.support.hf_folders import DATA

ALONE = ModelConfig(vocab_size=37, d_model=12, num_heads=3, d_ff=23, num_encoder_layers=0, num_decoder_layers=2)
"""A decoder alone."""

REFUSED = [
    ({"bad_words_ids": [[1, 2]]}, r"bad_words_ids is \[\[1, 2\]\]: only words of one token"),
    ({"num_beam_groups": 2}, "num_beam_groups is 2: only 1 is implemented"),
    ({"early_stopping": "always"}, 'early_stopping is "always"'),
    ({"begin_suppress_tokens": [5]}, "begin_suppress_tokens is"),
    ({"bad_words_ids": [["a"]]}, r'bad_words_ids is \[\["a"\]\]: it should be a token id'),
    ({"suppress_tokens": 7}, "suppress_tokens is 7: it should be a list"),
    ({"suppress_tokens": [7, 1.5]}, r"suppress_tokens is \[7, 1.5\]: it should be a token id"),
    ({"eos_token_id": []}, r"eos_token_id is \[\]: it should be a token id, at least 0, or a list"),
    ({"eos_token_id": [1, "x"]}, r'eos_token_id is \[1, "x"\]: it should be a token id'),
    ({"eos_token_id": -1}, "eos_token_id is -1: it should be a token id"),
    ({"pad_token_id": [1]}, r"pad_token_id is \[1\]: it should be one token id"),
    ({"decoder_start_token_id": "</s>"}, 'decoder_start_token_id is "</s>": it should be a token id'),
    ({"a_new_way": 2}, "generation_config.json: a_new_way is 2"),
]


@pytest.mark.parametrize(("options", "complaint"), REFUSED, ids=lambda x: next(iter(x)) if isinstance(x, dict) else "")
def test_a_way_to_generate_that_is_not_implemented_is_named(
    options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(DATA / "bart/summary", tmp_path / "model"))
    generation = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(generation | options))
    with pytest.raises(ValueError, match=complaint):
        read_folder(folder)


@pytest.mark.parametrize(
    ("config", "special", "expected"),
    [
        ({}, SpecialIds(bos=1, eos=2), (2, 1, 2)),
        ({"eos_token_id": 5, "bos_token_id": None}, SpecialIds(bos=1, eos=2), (5, 5, 5)),
        ({"eos_token_id": None, "pad_token_id": 3}, SpecialIds(bos=1, eos=2), (3, 1, None)),
        ({"pad_token_id": -1}, SpecialIds(pad=4, bos=1, eos=2), (2, 1, 2)),
    ],
)
def test_absent_special_ids_are_those_of_the_family_and_null_is_none(
    config: dict[str, Any], special: SpecialIds, expected: tuple[int | None, ...]
) -> None:
    """Padding is an end where there is no other id, and what a prompt without tokens starts from."""
    found = decode_config(config, {}, ALONE, special)
    assert (found.pad_id, found.bos_id, found.eos_id) == expected
    again = generation_config(found, ALONE, 9)
    assert decode_config(special_ids(found, ALONE), again, ALONE, special) == found


def test_a_decoder_alone_needs_no_special_id() -> None:
    """A plain Qwen2 or Qwen3 has none. The decoder of an encoder–decoder starts from one."""
    nulls = {"bos_token_id": None, "eos_token_id": None, "decoder_start_token_id": None}
    for config in ({}, nulls):
        found = decode_config(config, {}, ALONE, SpecialIds())
        assert (found.pad_id, found.bos_id, found.eos_ids) == (0, None, ())
        assert (
            decode_config(special_ids(found, ALONE), generation_config(found, ALONE, 9), ALONE, SpecialIds()) == found
        )
        with pytest.raises(ValueError, match="decoder_start_token_id is null: an answer starts from it"):
            decode_config(config, {}, dataclasses.replace(ALONE, num_encoder_layers=2), SpecialIds())


def test_options_that_differ_in_a_decoder_alone_are_refused_or_noted() -> None:
    model, ids = ALONE, {"bos_token_id": 1, "eos_token_id": 2}
    with pytest.raises(ValueError, match="forced_bos_token_id is 4: the library forces it after prompts of one token"):
        decode_config({}, ids | {"forced_bos_token_id": 4}, model, SpecialIds())
    assert "max_length is 20 and counts the prompt" in notes({}, ids | {"max_length": 20}, model)[0]
    assert notes({}, ids, model) == notes({}, {"max_length": 20}, read_folder(DATA / "bart/summary").model) == []


def test_exported_settings_of_generation_are_those_of_the_run() -> None:
    """Oracle: by hand. A length that depends on the source is the longest source's, at most as many as there are positions."""
    model = read_folder(DATA / "bart/summary").model
    places = model.positions.max_positions
    decode = DecodeConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3, suppress_ids=(7, 9), renormalize=True)
    found = generation_config(decode, model, 10)
    assert (found["max_new_tokens"], found["suppress_tokens"], found["renormalize_logits"]) == (13, [7, 9], True)
    assert generation_config(decode, model, 10 * places)["max_new_tokens"] == places
    assert "decode.at_limit is 'cut'" in export_notes(decode)[0]
    assert export_notes(dataclasses.replace(decode, at_limit="end")) == export_notes(DecodeConfig()) == []
    assert not generation_config(DecodeConfig(sampling=Sampling(temperature=0.0)), model, 10)["do_sample"]


def test_settings_of_generation_are_read_as_the_library_reads_them() -> None:
    """Their lengths count the start token, ours do not; worked by hand for a summariser."""
    decode = read_folder(DATA / "bart/summary").decode
    assert (decode.beam_size, decode.alpha, decode.length_penalty, decode.early_stopping) == (4, 2.0, "average", True)
    assert (decode.forced_bos_id, decode.forced_eos_id, decode.no_repeat_ngram, decode.min_new_tokens) == (0, 2, 3, 3)
    assert (decode.pad_id, decode.bos_id, decode.eos_id, decode.at_limit) == (1, 2, 2, "end")
    assert read_folder(DATA / "marian/shared").decode.suppress_ids == (40,)
