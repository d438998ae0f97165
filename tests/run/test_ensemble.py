"""Laws of ensembles: the same run twice is that run; runs without a common vocabulary are refused."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from flaxformer_lite.core.parallel.sharding import padded_vocabulary
from flaxformer_lite.core.search.settings import Sampling
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.core.text.tokenizer import Tokenizers
from flaxformer_lite.run import Run, load_ensemble
from flaxformer_lite.workdir.folder import RunFolder
from tests.support.experiments import normal_params, tiny_config

CONFIG = tiny_config()


def untrained(name: str, letters: str = "0123456789", max_source_length: int = CONFIG.data.max_source_length) -> Run:
    tokenizer = Characters().train([letters], CONFIG.model.vocab_size)
    config = replace(CONFIG, data=replace(CONFIG.data, max_source_length=max_source_length))
    return Run(RunFolder(name), config, normal_params(CONFIG, 1), Tokenizers(tokenizer, tokenizer), 0)


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {
        "one": untrained("one"),
        "two": untrained("two"),
        "other": untrained("other", "abc"),
        "short": untrained("short", max_source_length=4),
    }
    monkeypatch.setattr("flaxformer_lite.run.run.load", lambda path, **weights: folders[path])


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


@pytest.mark.parametrize("paths", [("one", "short"), ("short", "one")], ids=str)
def test_sources_are_as_long_as_all_runs_read(paths: tuple[str, str]):
    """Oracle: worked by hand: 4 tokens with the end, whichever run is the first."""
    translator, long = load_ensemble(paths).translator, list[int]()
    rows = translator.form.sources(["1" * 9, "123"], lambda place, length: long.append(place))
    assert [len(row) for row in rows] == [4, 4] and long == [0]
    with pytest.raises(ValueError, match=r"source 0 has 5 ids but data\.max_source_length is 4: shorten it"):
        translator.check_sources([[4] * 5])


def test_an_ensemble_does_not_sample():
    with pytest.raises(ValueError, match=r"^decode\.sampling is set, but an ensemble of runs does not sample"):
        load_ensemble(["one", "two"]).translator.decoder(sampling=Sampling(), beam_size=1)


def test_the_origin_is_another_one_with_any_other_parameters_or_tokenizer():
    one, two, other = untrained("one"), untrained("two"), untrained("one", "abc")
    changed = replace(one, params=jax.tree.map(lambda x: x + np.float32(1e-3), one.params))
    (of_one,), (of_changed,), (of_other,) = one.origin, changed.origin, other.origin
    assert one.origin == two.origin and len({of_one, of_changed, of_other}) == 3
    assert load_ensemble(["one", "two"]).origin == [of_one] * 2
    assert replace(one, others=(changed,)).origin == [of_one, of_changed]


def test_the_origin_does_not_tell_how_devices_divide_the_vocabulary():
    run = untrained("one")
    widened = jax.tree.map(
        lambda x, like: np.pad(x, [(0, to - now) for now, to in zip(x.shape, like.shape, strict=True)]),
        run.params,
        padded_vocabulary(run.params, 7),
    )
    assert jax.tree.map(np.shape, widened) != jax.tree.map(np.shape, run.params)
    assert replace(run, params=widened).origin == run.origin
