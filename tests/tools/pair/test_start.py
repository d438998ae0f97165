"""`pair` that starts from a trained model. Oracles: the weights and ids of that model; the licence that its card states."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite import export_hf, import_hf, load
from flaxformer_lite.core.base.progress import no_progress
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.text import LanguageTokenizers
from flaxformer_lite.engine.texts import TextTranslator
from flaxformer_lite.interop.hf.card import stated_license
from flaxformer_lite.run.description import describe_teachers
from flaxformer_lite.tools.making.starting import run_path
from flaxformer_lite.tools.pair import Models, make, preparing, teaching
from flaxformer_lite.tools.pair.cleaning import Cleaned
from flaxformer_lite.workdir import RunFolder
from tests.support.language_runs import folder_with
from tests.support.made_up_languages import languages, write

PAIRS = [Pair(*(" ".join(text.split()[:3]) for text in pair[:2])) for pair in languages()[:100]]
DIRECTION = {"source": "fra_Latn", "target": "eng_Latn"}


@pytest.fixture
def nllb(toy: Path) -> str:
    """A tiny NLLB as a Hugging Face folder, with a card."""
    folder = folder_with("m2m_100/nllb", "nllb", toy / "nllb")
    (folder / "README.md").write_text("---\ntags: [a]\nlicense: cc-by-nc-4.0\n---\n# NLLB\n\nlicense: mit\n")
    return "nllb"


def test_a_new_run_begins_as_the_model_that_it_starts_from(nllb: str):
    models = Models(start=nllb, **DIRECTION)
    config = preparing.prepare(write(Path(), PAIRS), (), Path("run"), None, (), models)
    start = RunFolder(str(config.train.init_from))
    there = start.config()
    assert start.path == Path(run_path(nllb)) == Path(config.data.tokenizer.path)
    assert config.model == there.model and config.decode == there.decode
    assert config.data.languages.direction == ("fra_Latn", "eng_Latn")
    assert config.data.languages.codes == there.data.languages.codes
    before = (start.path / "config.json").stat().st_mtime_ns
    assert preparing.prepare(["text.xa", "text.yb"], (), Path("run"), None, (), models) == config
    assert (start.path / "config.json").stat().st_mtime_ns == before, "it was imported again"


def test_a_new_language_is_added_to_it_first(nllb: str):
    """Oracle: the row of the new language's token is that of the language that it is like. Its teachers stay on record."""
    import_hf(nllb, "base")
    RunFolder("base").add_teachers([{"name": "large", "license": "mit"}])
    models = Models(start="base", source="xyz_Latn", target="fra_Latn", like="eng_Latn", pieces=300)
    config = preparing.prepare(write(Path(), PAIRS), (), Path("run"), None, (), models)
    assert config.train.init_from == str(Path("run/start/extended").absolute())
    assert config.data.languages.direction == ("xyz_Latn", "fra_Latn")
    assert RunFolder("run/start/extended").teachers == RunFolder("base").teachers != []
    run, base = load(config.train.init_from), load("base")
    table = {name: leaves_by_path(one.params)["embedding/embedding"] for name, one in (("new", run), ("old", base))}
    assert isinstance(run.tokenizers, LanguageTokenizers)
    tokens = [run.tokenizers.token_id(code) for code in ("xyz_Latn", "eng_Latn")]
    assert np.array_equal(table["new"][tokens[0]], table["old"][tokens[1]])


def test_tokens_that_neither_side_needs_are_left_out(nllb: str):
    """Oracle: the run that the training starts from reads the sentences as the whole one, in fewer ids."""
    import_hf(nllb, "base")
    models = Models(start="base", source="eng_Latn", target="fra_Latn", trim=True)
    config = preparing.prepare(write(Path(), PAIRS), (), Path("run"), None, (), models)
    assert config.train.init_from == str(Path("run/start/trimmed").absolute())
    assert config.data.languages.direction == ("eng_Latn", "fra_Latn")
    run, base = load(config.train.init_from), load("base")
    assert config.model == run.config.model and run.config.model.vocab_size < base.config.model.vocab_size
    sources = [pair.source for pair in PAIRS]
    new, old = (one.tokenizer.encode_batch(sources) for one in (run, base))
    assert [run.tokenizer.pieces(row) for row in new] == [base.tokenizer.pieces(row) for row in old]


def test_codes_are_for_the_models_that_name_languages(nllb: str):
    """A teacher of one direction beside them has its own; the language of a source that is not read is dropped.

    Oracle of what a teacher says: `translate`.
    """
    import_hf(nllb, "several")
    languages = RunFolder("several").config().data.languages
    marian = dataclasses.replace(languages, source="none", target="source", direction=())
    assert Models(start=nllb, source="en", target="fra_Latn").directed(marian).direction == ("", "fra_Latn")
    both, one = Models(teachers=("one",), start=nllb, **DIRECTION), load("several")
    directed = both.in_direction(one).tokenizers
    assert isinstance(directed, LanguageTokenizers) and directed.languages.direction == ("fra_Latn", "eng_Latn")
    texts = ["a b", "", "c"]
    labelled = teaching.labelled(both.in_direction(one), texts, "jax", no_progress)
    assert [text for _, text in labelled] == both.in_direction(one).translate(texts)
    alone = dataclasses.replace(one, tokenizers=directed.base)
    assert both.in_direction(alone) is alone


def test_a_refused_direction_leaves_the_folder_free(nllb: str):
    """A model that was named by mistake is not started from; `--to` alone has the model's own source."""
    shutil.copytree(nllb, "other")
    files = write(Path(), PAIRS)
    for models, name in (
        (Models(start="other", source="eng_Lat"), "from"),
        (Models(teachers=("other",), source="fra_Latn", target="eng_Lat"), "to"),
    ):
        with pytest.raises(ValueError, match=f"^{name} is 'eng_Lat'.*perhaps you meant eng_Latn"):
            preparing.prepare(files, (), Path("run"), None, (), models)
    config = preparing.prepare(files, (), Path("run"), None, (), Models(start=nllb, target="eng_Latn"))
    assert config.data.languages.direction == ("eng_Latn", "eng_Latn")
    assert RunFolder(str(config.train.init_from)).as_teacher()["name"] == "nllb"


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("eng_Latn", "fra_Latn", "for one new language, but of --from eng_Latn and --to fra_Latn"),
        ("xyz_Latn", "abc_Latn", "has none: leave --like and --pieces out, or name one of its"),
    ],
)
def test_one_of_two_languages_is_new(source: str, target: str, message: str, nllb: str):
    models = Models(start=nllb, like="eng_Latn", pieces=300, source=source, target=target)
    with pytest.raises(ValueError, match=message):
        preparing.prepare(write(Path(), PAIRS), (), Path("run"), None, (), models)


@pytest.mark.slow
def test_from_a_teacher_and_a_start_to_the_cards_of_exports(
    nllb: str, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    """The teacher's name and licence are on each; it is told what to answer, and no rule removes that here."""
    known = {pair.source: pair.target for pair in PAIRS}
    monkeypatch.setattr(TextTranslator, "translate", lambda self, texts, **_: [known[text] for text in texts])
    monkeypatch.setattr(teaching, "labelled", lambda run, texts, *_: [("", known[text]) for text in texts])
    monkeypatch.setattr("flaxformer_lite.tools.pair.making.report_once", lambda folder: None)
    monkeypatch.setattr(teaching, "clean", lambda pairs, *_: Cleaned([*range(len(pairs))], {}))
    models, told = Models(teachers=(nllb,), start=nllb, share=0.25, **DIRECTION), list[str]()
    made = make(write(Path(), PAIRS), Path("run"), models=models, tell=told.append)
    assert made is not None and made.scores["teacher"]["sentences"] == made.scores["sentences"] > 0
    assert told[1].endswith("of the teacher; learned from: nllb (licence cc-by-nc-4.0)")
    assert made.exported is not None and "MB in int8" in told[2]
    assert "| nllb | cc-by-nc-4.0 |" in (made.exported / "README.md").read_text()
    export_hf("run", "exported")
    card = Path("exported", "README.md").read_text()
    assert "| nllb | cc-by-nc-4.0 |" in card and "imported from another checkpoint" in card
    assert describe_teachers(RunFolder("run")) in repr(load("run"))


@pytest.mark.parametrize(
    ("card", "license"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ("---\r\nlicense: 'apache-2.0' # of all\r\n---\r\n", "apache-2.0"),
        ("---\ntags:\n- a\n---\nlicense: mit\n", None),
        ("license: mit\n", None),
        ("", None),
    ],
)
def test_a_licence_is_what_the_metadata_of_a_card_state(card: str, license: str | None, tmp_path: Path):
    assert stated_license(tmp_path) is None
    (tmp_path / "README.md").write_bytes(card.encode())
    assert stated_license(tmp_path) == license


def test_a_teacher_without_a_card_has_an_unknown_licence(nllb: str):
    Path(nllb, "README.md").unlink()
    assert RunFolder(import_hf(nllb, "run")).as_teacher() == {"name": "nllb", "license": None}
    assert RunFolder("elsewhere/mine").as_teacher() == {"name": "mine", "license": None}
    Path("mine").mkdir()
    Path("mine/imported.json").write_text('{"added_languages": ["xyz"]}')
    ours = RunFolder("mine").as_teacher()
    assert ours == {"name": "mine", "license": None}, "a run of our own, with one more language"
