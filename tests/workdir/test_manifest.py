"""Oracles: the law that any change of a file is noticed; edits of a config made by hand, and whether they decide an answer."""

import dataclasses
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.base.sealed_files import DamageError
from flaxformer_lite.config import Config, from_json
from flaxformer_lite.core.model.positions import Learned
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.files.tokenizers.kinds import save_tokenizer
from flaxformer_lite.run import write_run
from flaxformer_lite.workdir import RunFolder, abstract_saved_params, manifest, open_checkpoints
from flaxformer_lite.workdir.manifest import (
    check_digests,
    check_seal,
    difference,
    leaf_types,
    listed_params,
    read_document,
    seal,
    sealed_config,
    write_digests,
    write_own_digests,
)
from tests.support.experiments import tiny_config, with_train
from tests.support.paths import FIXTURES

CONFIG = tiny_config()


def test_leaf_types_and_their_difference_name_paths_dtypes_and_shapes():
    stored = leaf_types({"out": {"kernel": jnp.zeros((3, 5))}, "old": np.zeros((), np.int32)})
    assert stored == {"out/kernel": "float32[3,5]", "old": "int32[]"}
    wanted = leaf_types({"out": {"kernel": jnp.zeros((3, 7))}, "new": jnp.zeros(2)})
    assert difference(stored, wanted) == (
        "new is absent, wanted float32[2], old is int32[], wanted absent, "
        "out/kernel is float32[3,5], wanted float32[3,7]"
    )
    many = {f"leaf_{i}": "float32[]" for i in range(5)}
    assert difference(many, {}).endswith(" and 2 more") and difference(many, {}).count("wanted") == 3
    assert difference(many, {"leaf_0": "float32[]"}).endswith(" and 1 more")


def test_a_folder_notices_a_flipped_bit_and_a_missing_file(tmp_path):
    folder, copy = tmp_path / "folder", tmp_path / "copy"
    (folder / "below").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name, size in {"a": 997, "below/b": 13, "empty": 0}.items():
        (folder / name).write_bytes(generator.bytes(size))
    write_digests(folder)
    check_digests(folder)
    for _ in range(20):
        name, size = (("a", 997), ("below/b", 13))[generator.integers(2)]
        shutil.copytree(folder, copy)
        data = bytearray((copy / name).read_bytes())
        data[generator.integers(size)] ^= 1 << generator.integers(8)
        (copy / name).write_bytes(data)
        with pytest.raises(DamageError, match=f"^{name} is not as it was written$"):
            check_digests(copy)
        shutil.rmtree(copy)
    (folder / "empty").unlink()
    with pytest.raises(DamageError, match=r"^empty: No such file or directory$"):
        check_digests(folder)
    (folder / "digests.json").unlink()
    with pytest.raises(DamageError, match=r"^digests\.json: No such file or directory$"):
        check_digests(folder)


def test_processes_list_their_files_once_and_compare_all_of_them_together(tmp_path, monkeypatch):
    """Oracle: the digests of one process that reads everything; a flipped bit is in the part of exactly one of three."""
    folders = [tmp_path / "one", tmp_path / "three"]
    names = [f"ocdbt.process_{i}/d/{j}" for i in range(3) for j in range(4)]
    for folder in folders:
        for name in (*names, "manifest"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"content of {name}")
    write_digests(folders[0])
    for i in (1, 2):  # the list of the first process is lost
        write_own_digests(folders[1], f"ocdbt.process_{i}")
    read, digests_of = list[str](), manifest.file_digests
    monkeypatch.setattr(manifest, "file_digests", lambda at, some: read.extend(some) or digests_of(at, some))
    write_digests(folders[1])
    assert sorted(read) == sorted([*names[:4], "manifest"])
    assert [*folders[1].glob("digests*")] == [folders[1] / "digests.json"]
    assert read_document(folders[0] / "digests.json") == read_document(folders[1] / "digests.json")
    for name in names:
        (folders[1] / name).write_text(f"content of {name} ")
        complaints = []
        for part in ((0, 3), (1, 3), (2, 3)):
            try:
                check_digests(folders[1], part)
            except DamageError as error:
                complaints.append(str(error))
        assert complaints == [f"{name} is not as it was written"]
        (folders[1] / name).write_text(f"content of {name}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one checkpoint, as training and `import` leave it; of the parameters only the files matter here."""
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "run")
    with folder.lock(CONFIG), open_checkpoints(CONFIG, folder, read_only=False) as checkpoints:
        save_tokenizer(Characters().train(["a few letters"], 149), folder.path)
        checkpoints.save(7, {"params": jnp.zeros(3)}, {})
    return folder.path


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def open_for(folder: Path, *, training: bool = False) -> None:
    run = RunFolder(folder)
    with open_checkpoints(run.config(), run, read_only=not training):
        pass


def edit(folder: Path, old: str, new: str) -> None:
    text = (folder / "config.json").read_text()
    assert text.count(old) == 1
    (folder / "config.json").write_text(text.replace(old, new))


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, positions=Learned(max_positions=40))),
        with_train(CONFIG, trainable=("decoder/*",), frozen_dtype="bfloat16"),
    ],
)
def test_a_manifest_lists_the_parameters_that_a_trace_of_the_model_has(config: Config):
    """Oracle: the traced model. A list of a part of them, of another model or without a seal counts for nothing."""
    traced = abstract_saved_params(config)
    manifest = {"leaves": leaf_types({"params": traced, "ema": traced, "step": jnp.int32(0)})}
    assert listed_params(manifest, config) is None
    manifest["seal"] = seal(Path("nowhere"), config)
    listed = listed_params(manifest, config)
    assert jax.tree.structure(listed) == jax.tree.structure(traced) and leaf_types(listed) == leaf_types(traced)
    assert listed_params({**manifest, "seal": None}, config) is None
    assert listed_params({**manifest, "base": {}}, config) is None
    assert listed_params(manifest, dataclasses.replace(config, model=dataclasses.replace(config.model, d_ff=5))) is None


def test_an_untouched_run_is_used_and_resumed(run: Path):
    assert sealed_config(run / "checkpoints") == CONFIG
    open_for(run)
    open_for(run, training=True)


@pytest.mark.parametrize("training", [False, True])
def test_no_bit_of_a_tokenizer_can_change(copy: Path, training: bool):
    """Law: each flip is refused with the name of the file; 8 of all bits, drawn once."""
    file = copy / "tokenizer.characters.json"
    content = file.read_bytes()
    for bit in random.Random(3).sample(range(8 * len(content)), 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with pytest.raises(
            ValueError, match=r"tokenizer\.characters\.json is not the file that checkpoint 7 was trained"
        ):
            check_seal(copy, CONFIG, resumed=training)
    file.unlink()
    with pytest.raises(ValueError, match=r"tokenizer\.characters\.json is missing, but checkpoint 7 was trained with"):
        check_seal(copy, CONFIG, resumed=training)


def test_the_files_of_an_imported_run_are_sealed_too(tmp_path: Path):
    """Export copies them: the tokenizer of a folder that is given to others, and the settings in its config."""
    folder, files = RunFolder(tmp_path / "run"), tmp_path / "model"
    (files / "1_Pooling").mkdir(parents=True)
    for name in ("tokenizer.json", "1_Pooling/config.json"):
        (files / name).write_text("{}")

    def add_files(run: Path) -> None:
        shutil.copytree(files, run / "huggingface")

    write_run(folder, CONFIG, 0, {"x": jnp.zeros(3)}, "a test", imported={"system": "hf"}, add_files=add_files)
    open_for(folder.path)
    for name in ("huggingface/tokenizer.json", "huggingface/1_Pooling/config.json", "imported.json"):
        text = (folder.path / name).read_text()
        (folder.path / name).write_text(text + " ")
        with pytest.raises(ValueError, match=rf"{name} is not the file that checkpoint 0 was trained with"):
            open_for(folder.path)
        (folder.path / name).write_text(text)


def test_an_edit_that_decides_answers_is_refused_everywhere(copy: Path):
    edit(copy, '"activation": "relu"', '"activation": "silu"')
    for training in (False, True):
        with pytest.raises(ValueError, match=r"checkpoint 7 was trained with: model\.activation was 'relu' and is now"):
            open_for(copy, training=training)


def test_an_edit_of_decoding_is_reported_and_holds(copy: Path, capfd: pytest.CaptureFixture):
    edit(copy, '"max_new_tokens": null', '"max_new_tokens": 9')
    open_for(copy)
    assert (
        capfd.readouterr().err.count("was edited after the training: decode.max_new_tokens was None and is now 9") == 1
    )


def test_an_edit_that_decides_no_answer_does_not_matter_in_use(copy: Path, capfd: pytest.CaptureFixture):
    edit(copy, '"peak_rate": 0.01', '"peak_rate": 0.02')
    open_for(copy)
    assert capfd.readouterr().err == ""
    with pytest.raises(ValueError, match=r"optimizer\.schedule\.peak_rate was 0\.01 and is now 0\.02"):
        open_for(copy, training=True)


def test_the_length_of_a_run_may_change(copy: Path):
    longer = with_train(CONFIG, steps=99)
    check_seal(copy, longer, resumed=True)
    check_seal(copy, longer, resumed=False)


def test_a_run_without_a_checkpoint_is_used_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture):
    folder = shutil.copytree(
        FIXTURES / "runs" / "format_1", tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints")
    )
    config = from_json((folder / "config.json").read_bytes())
    assert sealed_config(folder / "checkpoints") is None
    for resumed in (False, True):
        check_seal(folder, config, resumed=resumed)
    assert capfd.readouterr().err == ""
