"""Settings of generation in folders, both ways. Oracle: worked by hand from the library's own rules."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.config.experiment import Config
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.positions import Sinusoidal
from flaxformer_lite.core.search.settings import DecodeConfig, Sampling
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.interop import FAMILIES, read_folder
from flaxformer_lite.interop.hf.decoding import decode_config, export_notes, generation_config, written_special_ids
from flaxformer_lite.interop.hf.options import UsualIds
from tests.support.hf_folders import DATA

ALONE = ModelConfig(vocab_size=37, d_model=12, num_heads=3, d_ff=23, num_encoder_layers=0, num_decoder_layers=2)
"""A decoder alone."""


@pytest.mark.parametrize(
    ("config", "special", "expected"),
    [
        ({}, UsualIds(bos=1, eos=2), (2, 1, 2)),
        ({"eos_token_id": 5, "bos_token_id": None}, UsualIds(bos=1, eos=2), (5, 5, 5)),
        ({"eos_token_id": None, "pad_token_id": 3}, UsualIds(bos=1, eos=2), (3, 1, None)),
        ({"pad_token_id": -1}, UsualIds(pad=4, bos=1, eos=2), (2, 1, 2)),
    ],
)
def test_absent_special_ids_are_those_of_the_family_and_null_is_none(
    config: dict[str, Any], special: UsualIds, expected: tuple[int | None, ...]
) -> None:
    """Padding is an end where there is no other id, and what a prompt without tokens starts from."""
    found, _ = decode_config(config, None, ALONE, special)
    assert (found.pad_id, found.bos_id, found.eos_id) == expected
    again = generation_config(found, ALONE, 9)
    assert decode_config(written_special_ids(found, ALONE), again, ALONE, special) == (found, [])


def test_a_decoder_alone_needs_no_special_id() -> None:
    """A plain Qwen2 or Qwen3 has none. The decoder of an encoder–decoder starts from one."""
    nulls = {"bos_token_id": None, "eos_token_id": None, "decoder_start_token_id": None}
    for config in ({}, nulls):
        found, notes = decode_config(config, None, ALONE, UsualIds())
        assert (found.pad_id, found.bos_id, found.eos_ids) == (0, None, ())
        again = generation_config(found, ALONE, 9)
        assert decode_config(written_special_ids(found, ALONE), again, ALONE, UsualIds()) == (found, notes)
        with pytest.raises(ValueError, match="decoder_start_token_id is null: an answer starts from it"):
            decode_config(config, None, dataclasses.replace(ALONE, num_encoder_layers=2), UsualIds())


RULES: dict[str, Any] = {
    "num_beams": 3,
    "length_penalty": 2.0,
    "early_stopping": "never",
    "num_return_sequences": 2,
    "min_length": 4,
    "max_length": 9,
    "no_repeat_ngram_size": 2,
    "repetition_penalty": 1.5,
    "renormalize_logits": True,
    "forced_bos_token_id": 5,
    "forced_eos_token_id": 7,
    "suppress_tokens": [9],
    "bad_words_ids": [[11], [2]],
}
IDS = {"pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "bos_token_id": 0}
READ = DecodeConfig(
    beam_size=3,
    alpha=2.0,
    early_stopping="never",
    num_hypotheses=2,
    finish_at_limit=True,
    min_new_tokens=3,
    max_new_tokens=8,
    no_repeat_ngram=2,
    repetition_penalty=1.5,
    renormalize=True,
    forced_bos_id=5,
    forced_eos_id=7,
    suppress_ids=(9, 11),
    pad_id=1,
    bos_id=2,
    eos_ids=(2,),
)
NOT_READ = DecodeConfig(early_stopping=False, finish_at_limit=True, pad_id=1, bos_id=2, eos_ids=(2,))
FORCE = {"force_bos_token_to_be_generated": True}
TWO_FILES: list[tuple[dict[str, Any], dict[str, Any] | None, DecodeConfig]] = [
    (RULES, None, READ),
    ({}, RULES, READ),
    (RULES, {}, NOT_READ),
    (RULES, IDS, NOT_READ),
    (RULES, {"num_beams": 2, "forced_bos_token_id": None}, dataclasses.replace(NOT_READ, beam_size=2)),
    (FORCE, None, dataclasses.replace(NOT_READ, forced_bos_id=0)),
    (FORCE | {"forced_bos_token_id": 5}, None, dataclasses.replace(NOT_READ, forced_bos_id=0)),
    (FORCE, IDS, NOT_READ),
    ({}, {"min_length": 6, "min_new_tokens": 2}, dataclasses.replace(NOT_READ, min_new_tokens=2)),
]


@pytest.mark.parametrize(("config", "generation", "expected"), TWO_FILES)
def test_rules_are_those_of_one_file(
    config: dict[str, Any], generation: dict[str, Any] | None, expected: DecodeConfig, tmp_path: Path
) -> None:
    """Oracle: `generation_config` of BartForConditionalGeneration.from_pretrained, in transformers 5.24, of these folders.

    The special ids alone are also read from config.json where the other file lacks them (there: none, so no answer would end).
    """
    folder = Path(shutil.copytree(DATA / "bart/summary", tmp_path / "model"))
    kept = json.loads((folder / "config.json").read_text())
    kept = {name: value for name, value in kept.items() if name not in RULES | FORCE} | config
    (folder / "config.json").write_text(json.dumps(kept | IDS))
    (folder / "generation_config.json").unlink()
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert read_folder(folder).decode == expected


OUTSIDE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("gpt2/model", {"bos_token_id": 50256, "eos_token_id": 50256}, {"bos_id": None, "eos_ids": ()}),
    ("llama/mha", {"eos_token_id": [2, 128001], "pad_token_id": 128004}, {"eos_ids": (2,), "pad_id": 2}),
    ("qwen2/plain", {"eos_token_id": -7, "bos_token_id": 2**40}, {"eos_ids": (), "bos_id": None}),
    ("bert/model", {"pad_token_id": 2**31}, {"pad_id": 0}),
    ("distilbert/model", {"pad_token_id": 99}, {"pad_id": 0}),
    (
        "bart/summary",
        {"forced_bos_token_id": 250004, "forced_eos_token_id": 99},
        {"forced_bos_id": None, "forced_eos_id": None},
    ),
    ("bart/summary", {"suppress_tokens": [3, 99], "bad_words_ids": [[99], [4]]}, {"suppress_ids": (3, 4)}),
    ("bart/summary", {"bos_token_id": 99}, {"bos_id": 2}),
    ("marian/separate", {"pad_token_id": 58100}, {"pad_id": 0}),
    ("t5/model", {"eos_token_id": 32128}, {"eos_ids": ()}),
    ("gemma3/plain", {"eos_token_id": [1, 106]}, {"eos_ids": (1,)}),
]


@pytest.mark.parametrize(("label", "options", "expected"), OUTSIDE)
def test_an_id_outside_of_the_table_is_left_out_with_a_note(
    label: str, options: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    """Oracle: the same folder with null, or the list without these ids; the library reads such folders too.

    The experiment's config, which refuses ids outside of the vocabulary, takes the settings.
    """
    folder = Path(shutil.copytree(DATA / label, tmp_path / "model"))
    (folder / "generation_config.json").write_text(json.dumps(options))
    found = read_folder(folder)
    assert {name: getattr(found.decode, name) for name in expected} == expected
    Config(
        model=found.model,
        decode=found.decode,
        data=DataConfig(tokenizer=None, max_source_length=5, max_target_length=5),
    )
    for name in options:
        assert any(note.startswith(f"{name} has ") and "it was left out" in note for note in found.notes), found.notes


def test_the_familys_own_ids_may_be_outside_of_the_table_too() -> None:
    """GPT-2's default 50256 in a model of 37 ids."""
    found, notes = decode_config({}, None, ALONE, FAMILIES["gpt2"].special)
    assert (found.pad_id, found.bos_id, found.eos_ids) == (0, None, ())
    assert notes == [
        f"{name}_token_id has 50256, and the model's ids are 0 to 36: it was left out" for name in ("eos", "bos")
    ]


def test_an_id_that_every_answer_needs_is_refused_outside_of_the_table() -> None:
    model = dataclasses.replace(ALONE, num_encoder_layers=2)
    for options, complaint in (
        (
            {"decoder_start_token_id": 58100, "bos_token_id": 0},
            "decoder_start_token_id is 58100: .* ids are 0 to 36: set it",
        ),
        ({"bos_token_id": 58100}, "decoder_start_token_id is null: an answer starts from it, .* below 37"),
    ):
        with pytest.raises(ValueError, match=complaint):
            decode_config(options, None, model, UsualIds(eos=2))


def test_options_that_differ_in_a_decoder_alone_are_refused_or_noted() -> None:
    model, ids = ALONE, {"bos_token_id": 1, "eos_token_id": 2}
    with pytest.raises(ValueError, match="forced_bos_token_id is 4: the library forces it after prompts of one token"):
        decode_config({}, ids | {"forced_bos_token_id": 4}, model, UsualIds())
    [note] = decode_config({}, ids | {"max_length": 20}, model, UsualIds())[1]
    assert "max_length is 20 and counts the prompt" in note
    both = read_folder(DATA / "bart/summary").model
    for found in (decode_config({}, ids, model, UsualIds()), decode_config(ids, {"max_length": 20}, both, UsualIds())):
        assert found[1] == []


def test_exported_settings_of_generation_are_those_of_the_run() -> None:
    """Oracle: by hand. A length that depends on the source is the longest source's, at most as many as there are positions."""
    model = read_folder(DATA / "bart/summary").model
    places = model.positions.max_positions
    decode = DecodeConfig(beam_size=2, max_length_ratio=1.0, max_length_extra=3, suppress_ids=(7, 9), renormalize=True)
    found = generation_config(decode, model, 10)
    assert (found["max_new_tokens"], found["suppress_tokens"], found["renormalize_logits"]) == (13, [7, 9], True)
    assert generation_config(decode, model, 10 * places)["max_new_tokens"] == places
    computed = dataclasses.replace(model, positions=Sinusoidal())  # the library has a table of them
    lengths = [generation_config(decode, computed, 100, stated)["max_new_tokens"] for stated in (None, 64)]
    assert lengths == [103, 64]
    assert "decode.finish_at_limit is False" in export_notes(decode)[0]
    assert export_notes(dataclasses.replace(decode, finish_at_limit=True)) == export_notes(DecodeConfig()) == []
    assert not generation_config(DecodeConfig(sampling=Sampling(temperature=0.0)), model, 10)["do_sample"]


def test_settings_of_generation_are_read_as_the_library_reads_them() -> None:
    """Their lengths count the start token, ours do not; worked by hand for a summariser."""
    decode = read_folder(DATA / "bart/summary").decode
    assert (decode.beam_size, decode.alpha, decode.length_penalty, decode.early_stopping) == (4, 2.0, "average", True)
    assert (decode.forced_bos_id, decode.forced_eos_id, decode.no_repeat_ngram, decode.min_new_tokens) == (0, 2, 3, 3)
    assert (decode.pad_id, decode.bos_id, decode.eos_id, decode.finish_at_limit) == (1, 2, 2, True)
    assert read_folder(DATA / "marian/shared").decode.suppress_ids == (40,)
