"""A language that is added to a run. Laws: old languages keep every bit beside a tokenizer of its own; new rows are means."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from flaxformer_lite import export_hf, import_hf, load
from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.data import Pair
from flaxformer_lite.files.data import DataConfig
from flaxformer_lite.files.data.store import train_tokenizers
from flaxformer_lite.files.tokenizers import FromRun
from flaxformer_lite.files.tokenizers.subword_sampling import BPEDropout
from flaxformer_lite.run import Run, write_run
from flaxformer_lite.run.extending import extend, lines_of_files, old_text
from flaxformer_lite.workdir import RunFolder
from tests.support.commands import Command
from tests.support.hf_folders import random_params
from tests.support.language_runs import folder_with, language_config

TEXT = "il gatto nero è qui\nuno due tre žabó bruno\n" * 20
SOURCES = ["the cat sat xyz_Latn <it> eins", "le chat noir, été? 日本", "\uff21\uff22\uff23 \ufb01 the </s> a il gatto"]
SOURCES += ["deux"]


def drawn_run(kind: str, folder: Path) -> tuple[Run, str, str]:
    """A run with random weights, trained here or imported, and two of its languages."""
    if kind != "own":
        label = "m2m_100/nllb" if kind == "nllb" else "mbart/plain"
        codes = ("eng_Latn", "fra_Latn") if kind == "nllb" else ("en_XX", "ro_RO")
        return load(import_hf(folder_with(label, kind, folder / "model"), folder / "run")), *codes
    config = language_config(folder)
    assert config.data.train is not None
    tokenizers = train_tokenizers(config.data, config.model.vocab_sizes, config.data.train.open())
    write_run(RunFolder(folder / "run"), config, 0, random_params(config.model), "drawn", tokenizers=tokenizers)
    return load(folder / "run"), "de", "fr"


def with_loud_rows(run: Run, size: int) -> Run:
    """The run with new ids that would win any search that they have a part in."""

    def louder(x: Any) -> Any:
        at = tuple(slice(size, None) if n == run.config.model.vocab_size else slice(None) for n in x.shape)
        found = np.array(x)
        found[at] *= 30 if at != (slice(None),) * x.ndim else 1
        return found

    return dataclasses.replace(run, params=jax.tree.map(louder, run.params))


def answers(run: Run, source: str, target: str) -> list[Any]:
    """The texts and scores of greedy and of beam search, and the tokens."""
    one = run.between(source, target)
    ids = [one.tokenizer.as_source(row) for row in one.tokenizer.encode_batch(SOURCES)]
    found: list[Any] = [
        one.hypotheses(SOURCES, max_new_tokens=12, warn=lambda _: None, beam_size=k, num_hypotheses=k) for k in (1, 3)
    ]
    return [*found, one.hypotheses_of_ids(ids, max_new_tokens=12)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own", "nllb", "mbart"])
@pytest.mark.usefixtures("one_device")
def test_old_languages_are_translated_bit_for_bit_as_before(kind: str, tmp_path: Path, command: Command) -> None:
    old, source, target = drawn_run(kind, tmp_path)
    (tmp_path / "text.it").write_text(TEXT, encoding="utf-8")
    words = ("extend", tmp_path / "run", tmp_path / "new", "--language", "it", "--like", source, "--tokenizer", "own")
    pieces = 23 if kind == "mbart" else 27
    assert "it: " in command(*words, "--pieces", pieces, "--from", tmp_path / "text.it").err
    new, size = load(tmp_path / "new"), old.config.model.vocab_size
    before = answers(old, source, target)
    assert answers(new, source, target) == before  # texts, tokens and scores
    loud = with_loud_rows(new, size)
    assert answers(loud, source, target) == before
    reads, writes = loud.between("it", target), loud.between(source, "it")
    assert max(reads.tokenizer.encode("il gatto")) > size > max(loud.between(source, target).tokenizer.encode("il it"))
    tokens = [
        one.hypotheses_of_ids([one.tokenizer.as_source([5])], max_new_tokens=12)[0][0].tokens for one in (reads, writes)
    ]
    assert max(tokens[0], default=0) < size <= max(tokens[1][1:], default=0)  # its own token may be the loudest


def test_text_is_of_one_file_or_of_several(tmp_path: Path) -> None:
    """By hand: a pattern, several files in their order, and one that is missing."""
    for name, text in (("a.txt", "1\n2\n"), ("b.txt", "3\n")):
        (tmp_path / name).write_text(text)
    first, second = str(tmp_path / "a.txt"), str(tmp_path / "b.txt")
    found = [[*lines_of_files(files)] for files in (first, str(tmp_path / "*.txt"), [second, first])]
    assert found == [[*"12"], [*"123"], [*"312"]]
    assert old_text(DataConfig(), [first, second]) == ["1", "2", "3"]
    with pytest.raises(ValueError, match=r"c\.txt: no such file"):
        old_text(DataConfig(), [first, str(tmp_path / "c.txt")])


@pytest.mark.slow
def test_new_rows_are_means_of_old_ones_and_a_second_language_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, *_ = drawn_run("own", tmp_path)
    (tmp_path / "text.it").write_text(TEXT, encoding="utf-8")
    given: dict[str, Any] = {"language": "it", "like": "fr", "pieces": 50, "text": str(tmp_path / "text.*")}
    given |= {"tokenizer": "own"}
    monkeypatch.chdir(tmp_path)
    new = load(extend("run", "new", **given))
    made = new.config.data.tokenizer
    assert made == FromRun(path=str(tmp_path / "new")), "the path depends on the folder of the call"
    size, before, after = old.config.model.vocab_size, leaves_by_path(old.params), leaves_by_path(new.params)
    for path, x in before.items():
        np.testing.assert_array_equal(x, after[path][tuple(map(slice, x.shape))])
    table = after["embedding/embedding"]
    like = old.tokenizer.encode("<fr>")[-1]
    np.testing.assert_array_equal(table[size], table[like])
    found = new.between("it", "fr").tokenizer
    words = {
        i: old.tokenizer.encode(found.piece(i)[1:]) for i in range(size + 1, len(table)) if found.piece(i)[0] == "▁"
    }
    known = {i: ids for i, ids in words.items() if old.tokenizer.unk_id not in ids}
    assert known
    for i, ids in known.items():
        np.testing.assert_allclose(table[i], np.asarray(table)[ids].mean(0), rtol=1e-5)
    # A second one has the pieces of the first, which has none of its own; a run that starts from there has both.
    newer = load(extend(tmp_path / "new", tmp_path / "newer", **(given | {"language": "zz", "pieces": 40})))
    both = newer.between("it", "zz")
    assert newer.between("zz", "it").config.decode.num_ids == len(table) and both.config.decode.num_ids is None
    assert newer.between("fr", "de").config.decode.num_ids == size
    config = newer.config
    data = dataclasses.replace(config.data, tokenizer=FromRun(path=str(tmp_path / "newer")))
    again = RunFolder(tmp_path / "again").tokenizers(data, config.model.vocab_sizes, [])
    texts = {("it", "de"): ("il gatto", "eins"), ("de", "zz"): ("eins", "il gatto"), ("de", "en"): ("eins", "zwei")}
    pairs = [Pair(*sides, languages=languages) for languages, sides in texts.items()]
    kept = newer.tokenizers
    assert kept is not None and [*again.encode_pairs(pairs)] == [*kept.encode_pairs(pairs)]
    assert max(next(iter(kept.encode_pairs(pairs))).target) < size < max([*kept.encode_pairs(pairs)][1].target)
    with pytest.raises(ValueError, match=r"for it, and hf has one .* extend the run without --tokenizer own"):
        export_hf(tmp_path / "new", tmp_path / "hf")
    sampling = dataclasses.replace(data, subword_sampling=BPEDropout())
    with pytest.raises(ValueError, match=r"data\.subword_sampling is set, but pieces of added languages"):
        RunFolder(tmp_path / "newer").load_tokenizers(sampling, config.model.vocab_sizes)
    for changes, message in (
        ({"language": "de"}, "language is 'de', which the run has already"),
        ({"language": "a/b"}, "language is 'a/b': it must be a code of letters"),
        ({"like": "frr"}, "like is 'frr', which is not one of this run's 3 languages; perhaps you meant fr"),
        ({"pieces": 0}, "pieces is 0: it must be 1 or more"),
        ({"old": "text.it"}, "old is set with tokenizer 'own', which reads no old text"),
        ({"run": "new", "tokenizer": "shared", "language": "zz"}, "new has a tokenizer of its own for it: give the ne"),
        ({"text": "nothing"}, "nothing: no such file"),
    ):
        with pytest.raises(ValueError, match=message):
            extend(output=tmp_path / "other", **({"run": "run"} | given | changes))
    assert not (tmp_path / "other").exists()
