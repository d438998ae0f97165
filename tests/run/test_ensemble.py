"""Laws of ensembles: the same run twice is that run; runs without a common vocabulary are refused."""

import jax
import numpy as np
import pytest

from flaxformer_lite.inference.config import Sampling
from flaxformer_lite.run import Run, ensemble, load_ensemble
from flaxformer_lite.text.characters import Characters
from flaxformer_lite.text.tokenizer import Tokenizers
from flaxformer_lite.workdir.folder import RunFolder
from flaxformer_lite.workdir.weights import abstract_params
from tests.support.experiments import tiny_config

CONFIG = tiny_config()


def untrained(name: str, letters: str = "0123456789") -> Run:
    generator = np.random.default_rng(1)
    params = jax.tree.map(lambda x: np.float32(generator.normal(size=x.shape)), abstract_params(CONFIG))
    tokenizer = Characters().train([letters], CONFIG.model.vocab_size)
    return Run(RunFolder(name), CONFIG, params, Tokenizers(tokenizer, tokenizer), 0)


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {"one": untrained("one"), "two": untrained("two"), "other": untrained("other", "abc")}
    monkeypatch.setattr(ensemble, "load", lambda path, **weights: folders[path])


@pytest.mark.slow
def test_the_same_run_twice_translates_as_once():
    texts = ["1 2", "", "40"]
    alone, both = (run.hypotheses(texts, beam_size=2) for run in (untrained("one"), load_ensemble(["one", "two"])))
    assert [[text for text, _ in row] for row in both] == [[text for text, _ in row] for row in alone]
    np.testing.assert_allclose([row[0].score for row in both], [row[0].score for row in alone], rtol=1e-5)


def test_runs_with_other_tokenizers_are_refused():
    assert [str(run.folder.path) for run in load_ensemble(["one", "two"]).others] == ["two"]
    with pytest.raises(ValueError, match="other has other tokenizers or another vocabulary than one"):
        load_ensemble(["one", "other"])


def test_an_ensemble_does_not_sample():
    with pytest.raises(ValueError, match=r"^decode\.sampling is set, but an ensemble of runs does not sample"):
        load_ensemble(["one", "two"]).translation_decoder(sampling=Sampling(), beam_size=1)
