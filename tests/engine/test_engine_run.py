"""Laws of a run without JAX. Oracle: the same run in JAX."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flaxformer_lite.engine.engine_run import open_engine, open_obeying
from flaxformer_lite.engine.exports import OwnConfig, RunWeights, own_config
from flaxformer_lite.run import load
from flaxformer_lite.training import train
from tests.support import needs
from tests.support.engine_runs import LINES, run_config, save
from tests.support.language_runs import language_config
from tests.support.paths import ROOT

pytestmark = [needs.ctranslate2, pytest.mark.usefixtures("one_device")]
LISTED = "; import sys; print(*sorted({m.split('.')[0] for m in sys.modules} & {'jax', 'jaxlib', 'flax', 'numpy'}))"


def without_jax(code: str) -> str:
    """Returns what a Python process prints, and at last those of the heavy libraries that it has imported."""
    done = subprocess.run([sys.executable, "-c", code + LISTED], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.slow
def test_a_translation_from_the_shell_needs_no_jax(folder: Path, tmp_path: Path):
    """Law: neither the process that finds an export nor the one that waits for it has JAX, Flax or NumPy among its modules."""
    (tmp_path / "lines").write_text("\n".join(LINES) + "\n")
    words = ["flaxformer-lite", "translate", str(folder), str(tmp_path / "lines"), "--engine", "ctranslate2"]
    code = f"import sys; sys.argv = {words!r}; from flaxformer_lite.cli.main import main; main()"
    expected = load(folder).translate(LINES)
    for _ in range(2):
        *answers, modules = without_jax(code).split("\n")[:-1]
        assert answers == expected and modules == ""


@pytest.mark.slow
def test_settings_of_a_call_and_weights_are_those_of_the_run(folder: Path):
    run, engine = load(folder), open_engine(RunWeights(str(folder)))
    for options in ({}, {"beam_size": 3}, {"max_new_tokens": 4, "beam_size": 2, "alpha": 0.3}):
        assert engine.translator.translate(LINES, **options) == run.translate(LINES, **options)
        assert run.translate(LINES, engine="ctranslate2", **options) == run.translate(LINES, **options)
    assert engine.origin == run.origin and engine.translator.form.most == run.translator.form.most
    ids = [[5, 7, 3], [9, 3]]
    assert engine.translator.hypotheses_of_ids(ids)[1][0].tokens == run.hypotheses_of_ids(ids)[1][0].tokens


@pytest.mark.slow
def test_a_run_of_languages_translates_in_each_direction(tmp_path: Path):
    config = language_config(tmp_path)
    assert train(config, tmp_path / "run") == 0
    run, engine = load(tmp_path / "run"), open_engine(RunWeights(str(tmp_path / "run")))
    texts = ["eins zwei", "six un", "sechs"]
    for codes in (("de", "en"), ("fr", "de"), ("en", "fr")):
        assert engine.between(*codes).translator.translate(texts) == run.between(*codes).translate(texts)
    with pytest.raises(ValueError, match="from is missing: this run translates between 3 languages"):
        engine.translator.translate(texts)


@pytest.mark.slow
def test_parameters_that_are_no_checkpoint_are_refused(folder: Path):
    import dataclasses

    import jax

    run = load(folder)
    other = dataclasses.replace(run, params=jax.tree.map(lambda x: 2 * x, run.params))
    with pytest.raises(ValueError, match=r"these parameters are not those of one: load it, or choose engine jax"):
        other.translate(LINES, engine="ctranslate2")
    assert other.translate(LINES, engine="auto") == other.translate(LINES)


@pytest.mark.slow
def test_a_run_that_was_trained_on_since_it_was_loaded_is_not_mixed_up(folder: Path):
    run = load(folder)
    save(folder, run_config(), 9, seed=7)
    with pytest.raises(ValueError, match="has changed since it was loaded: load it again"):
        run.translate(LINES, engine="ctranslate2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "torch"}, "engine is 'torch': it must be one of auto, jax, ctranslate2"),
        ({"weights_dtype": "int8"}, "weights_dtype is 'int8', but engine is jax, whose type load chooses: leave"),
        (
            {"weights_dtype": "int8", "prefix": "a"},
            "weights_dtype is 'int8', but engine is jax, whose type load chooses",
        ),
        ({"engine": "ctranslate2", "prefix": "a"}, "CTranslate2 has no terms, placeholders and prefixes"),
        ({"engine": "ctranslate2", "repetition_penalty": 1.1}, r"does not obey decode\.repetition_penalty 1\.1"),
    ],
)
def test_an_engine_that_cannot_answer_is_refused(folder: Path, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        load(folder).translate(LINES, **options)


def test_settings_are_read_from_a_config_without_its_classes(folder: Path):
    own = own_config(str(folder))
    assert own is not None and own[:2] == ("Translator", run_config().decode)
    (folder / "config.json").write_text(json.dumps({"decode": {"beam": 3}}))
    assert own_config(str(folder)) is None and own_config("nowhere") is None


def test_what_no_engine_does_is_told_by_jax_alone():
    """Law: no line names an engine before the mistake."""
    wanted, decode = RunWeights("nowhere"), run_config().decode
    for kind, other in (("Generator", "Translator"), ("Generator", "Encoder"), ("Translator", "Encoder")):
        assert open_obeying(kind, lambda own: own, wanted, OwnConfig(other, decode, {})) is None
