"""A run of several directions. Oracle: its own tokens by hand; law: a direction is evaluated as by itself."""

import dataclasses
from pathlib import Path

import pytest

from flaxformer_lite.core.text import Characters
from flaxformer_lite.files.data.text_files import TSV
from flaxformer_lite.run import load, train
from flaxformer_lite.run.attention import attention_ids
from tests.support.commands import Command
from tests.support.experiments import rows
from tests.support.language_runs import NUMBERS, language_config


@pytest.mark.slow
@pytest.mark.parametrize("target", ["first", "source"])
def test_several_directions_are_trained_and_scored_each_and_together(
    target: str, tmp_path: Path, command: Command, one_device: None
) -> None:
    config = language_config(tmp_path, target=target, source="none" if target == "source" else "before")
    run = train(config, tmp_path / "run")
    evaluated = rows(tmp_path / "run")[-1]
    assert {"de-en/exact_match", "fr-de/exact_match", "exact_match", "fr-de/loss"} <= evaluated.keys()
    tokenizer = run.required_tokenizers.target
    pieces = {code: i for i in range(48) for code in NUMBERS if tokenizer.piece(i) == f"<{code}>"}
    assert len(pieces) == 3
    found = load(tmp_path / "run")
    direction = found.between("fr", "de")
    source = direction.required_tokenizers.source.as_source([9])
    assert source == [pieces["de" if target == "source" else "fr"], 9, 3]
    texts = ["un deux", "six un"]
    answers = direction.hypotheses_of_ids([direction.tokenizer.as_source(direction.tokenizer.encode(t)) for t in texts])
    if target == "first":
        assert all(answer[0].tokens[0] == pieces["de"] for answer in answers)
        assert attention_ids(direction, "un", "eins", lambda *_: None).targets[1] == pieces["de"]
        with pytest.raises(ValueError, match="from is missing"):
            found.attention("un", "eins")
    assert direction.translate(texts) == [found.required_tokenizers.target_text(a[0].tokens) for a in answers]
    scores = found.evaluate("eval")
    alone = TSV(path=str(tmp_path / "fr-de.tsv"))
    assert scores["fr-de/loss"] == pytest.approx(direction.metrics(alone.open())["loss"], rel=1e-5)
    assert {"de-en/chrf", "fr-de/chrf", "chrf"} <= scores.keys()
    said = command.mistake("evaluate", tmp_path / "run", "--from", "fr", "--to", "de", "--split", "eval")
    assert "name their languages: leave them out" in said


@pytest.mark.slow
def test_directions_that_are_not_the_runs_are_refused(tmp_path: Path) -> None:
    config = language_config(tmp_path)
    data = config.data
    wrong = TSV(path=str(tmp_path / "de-en.tsv"), languages=("de", "es"))
    for changes, message in (
        ({"languages": None}, r"data\.train\.sources\.0\.languages is \('de', 'en'\): it must be two codes"),
        ({"train": wrong}, r"data\.train\.languages: to is 'es', which is not one of .* 3 languages"),
    ):
        with pytest.raises(ValueError, match=message):
            dataclasses.replace(config, data=dataclasses.replace(data, **changes))
    characters = dataclasses.replace(config, data=dataclasses.replace(data, tokenizer=Characters()))
    with pytest.raises(ValueError, match="'<de>', which is no piece of the tokenizer"):
        train(characters, tmp_path / "run")
