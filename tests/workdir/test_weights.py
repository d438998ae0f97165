"""Hand-worked cases of starting from another run's parameters, and the documented bytes of their digest."""

import dataclasses
import hashlib
import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.base.atomic_files import write_whole
from flaxformer_lite.base.sealed_files import read_sealed, sealed
from flaxformer_lite.config import Config, TrainConfig
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.layers import round_kernels
from flaxformer_lite.core.objectives import Classification, SentenceEmbeddings
from flaxformer_lite.core.reading.heads import Pooler, SentenceEmbedding
from flaxformer_lite.run import write_run
from flaxformer_lite.workdir import Checkpoints, RunFolder, parameter_digest, weights
from flaxformer_lite.workdir.manifest import leaf_types
from flaxformer_lite.workdir.weights import (
    abstract_saved_params,
    available,
    open_checkpoints,
    restore_weights,
    warm_start,
)
from tests.support.experiments import tiny_config, use_one_device, with_train


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    """A run folder with drawn parameters, and those by path."""
    use_one_device(monkeypatch)
    config = dataclasses.replace(tiny_config(), weights="last")
    generator = np.random.default_rng(3)
    params = jax.tree.map(lambda x: np.float32(generator.normal(size=x.shape)), abstract_saved_params(config))
    write_run(RunFolder(tmp_path / "source"), config, 7, params, "drawn by a test")
    return tmp_path / "source", flatten_dict(params, sep="/")


def start(flat: dict[str, Any], folder: Path, *fresh: str) -> tuple[dict[str, Any], str]:
    params = unflatten_dict(jax.tree.map(jax.numpy.zeros_like, flat), sep="/")
    found, said = warm_start(params, with_train(tiny_config(), init_from=str(folder), init_fresh=fresh))
    return flatten_dict(found, sep="/"), said


def test_what_fits_is_taken(source: tuple[Path, dict[str, Any]]) -> None:
    folder, flat = source
    found, said = start(flat, folder)
    assert found.keys() == flat.keys()
    for path, x in flat.items():
        np.testing.assert_array_equal(found[path], x)
    assert said == f"{len(flat)} parameters from step 7 of {folder}"


def test_what_is_missing_or_of_another_shape_is_named(source: tuple[Path, dict[str, Any]]) -> None:
    folder, flat = source
    wider = flat | {"embedding/embedding": np.zeros((5, 3)), "head/new": np.zeros(2)}
    shape = flat["embedding/embedding"].shape
    table = f"embedding/embedding ({shape} in that run, (5, 3) in this one)"
    message = f"train.init_from {folder} does not fit: {table}, head/new (missing in that run)"
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        start(wider, folder)
    with pytest.raises(ValueError, match=r"head/new \(missing in that run\)"):
        start(wider, folder, "embedding/*")
    found, said = start(wider, folder, "embedding/*", "head/*")
    assert not found["embedding/embedding"].any() and not found["head/new"].any()
    assert "; fresh: embedding/embedding, head/new" in said


def test_a_pattern_is_fresh_also_where_the_start_has_it(source: tuple[Path, dict[str, Any]]) -> None:
    folder, flat = source
    found, said = start(flat, folder, "embedding/*")
    assert not found["embedding/embedding"].any() and "; fresh: embedding/embedding" in said
    path = "decoder/final_norm/bias"
    np.testing.assert_array_equal(found[path], flat[path])


def classifier(classes: tuple[str, ...], **train: Any) -> Config:
    config = tiny_config()
    model = dataclasses.replace(
        config.model, num_decoder_layers=0, head=None, pooler=Pooler(num_classes=len(classes)), sentence_embedding=None
    )
    data = dataclasses.replace(config.data, train=None, eval=None)
    train = dataclasses.replace(config.train, text_metrics=(), best_metric="loss", **train)
    objective = Classification(classes=classes)
    return dataclasses.replace(config, model=model, objective=objective, data=data, train=train, weights="last")


CLASSES = ("pooler/classes/bias", "pooler/classes/kernel")


def test_classes_are_matched_by_their_names(tmp_path: Path, one_device: None, capsys: pytest.CaptureFixture) -> None:
    """By hand: another order, some other names, no common name, more names, and a head that is to be fresh."""
    config, folder = classifier(("bad", "good", "mixed")), tmp_path / "source"
    params = jax.tree.map(
        lambda x: np.random.default_rng(3).normal(size=x.shape).astype(x.dtype), abstract_saved_params(config)
    )
    write_run(RunFolder(folder), config, 7, params, "drawn by a test")
    theirs = flatten_dict(params, sep="/")

    def started(*classes: str, **train: Any) -> tuple[dict[str, Any], str, str]:
        here = classifier(classes, init_from=str(folder), **train)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape), abstract_saved_params(here))
        found, said = warm_start(zeros, here)
        return flatten_dict(found, sep="/"), said, capsys.readouterr().err

    found, _, err = started("good", "mixed", "bad")
    for path in CLASSES:
        np.testing.assert_allclose(found[path], theirs[path][..., [1, 2, 0]], rtol=1e-6)
    assert not err
    found, _, err = started("x", "y", "z")
    np.testing.assert_allclose(found[CLASSES[0]], theirs[CLASSES[0]], rtol=1e-6)
    assert "the classes of train.init_from are bad, good, mixed" in err and "train.init_fresh" in err
    with pytest.raises(
        ValueError, match=r"bias \(of other classes in that run: bad, good, mixed\), .*train\.init_fresh$"
    ):
        started("good", "bad", "new")
    with pytest.raises(ValueError, match=r"bias \(\(3,\) in that run, \(4,\) in this one\), "):
        started("bad", "good", "mixed", "new")
    for classes in (("good", "bad", "new"), ("x", "y", "z"), ("bad", "good", "mixed", "new")):
        found, said, err = started(*classes, init_fresh=("pooler/classes/*",))
        assert not any(found[path].any() for path in CLASSES) and not err
        assert f"fresh: {', '.join(CLASSES)}" in said


def test_another_model_of_the_same_shapes_is_told(source: tuple[Path, dict[str, Any]]) -> None:
    folder, flat = source
    config = with_train(tiny_config(), init_from=str(folder))
    model = dataclasses.replace(config.model, num_heads=2, scan_unroll=2)
    params = unflatten_dict(jax.tree.map(jax.numpy.zeros_like, flat), sep="/")
    _, said = warm_start(params, dataclasses.replace(config, model=model))
    assert said.endswith("; other settings in that run: model.num_heads 3")


def test_settings_of_a_part_that_one_run_lacks_are_not_told() -> None:
    """A pooler in either run: its parameters are fresh, or not used."""
    sizes: dict[str, Any] = {"d_model": 12, "num_heads": 3, "num_encoder_layers": 1, "num_decoder_layers": 0}
    model = ModelConfig(vocab_size=31, sentence_embedding=SentenceEmbedding(), pooler=Pooler(num_classes=2), **sizes)
    base = with_train(tiny_config(), text_metrics=())
    data = dataclasses.replace(base.data, train=None, eval=None)
    classes = dataclasses.replace(base, model=model, data=data, objective=SentenceEmbeddings())
    vectors = dataclasses.replace(classes, model=dataclasses.replace(model, pooler=None))
    assert weights.other_settings(classes, vectors) == weights.other_settings(vectors, classes) == []


def test_what_is_not_used_is_named(source: tuple[Path, dict[str, Any]]) -> None:
    folder, flat = source
    _, said = start({path: x for path, x in flat.items() if not path.startswith("embedding")}, folder)
    assert said.endswith("; not used: embedding/embedding")


def test_the_parameters_of_a_sealed_checkpoint_are_read_without_a_trace_of_the_model(
    source: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the arrays that were written, and the tree of a traced model."""
    folder, flat = RunFolder(source[0]), source[1]
    traced = leaf_types(abstract_saved_params(folder.config()))
    monkeypatch.delattr(weights, "parameter_shapes")
    with open_checkpoints(folder.config(), folder, read_only=True) as checkpoints:
        for dtype in ("float32", "bfloat16"):
            _, params = restore_weights(checkpoints, folder.config(), None, None, dtype=dtype)
            expected = flatten_dict(
                round_kernels(jax.tree.map(jnp.asarray, unflatten_dict(flat, sep="/")), dtype), sep="/"
            )
            assert leaf_types(flatten_dict(params, sep="/")) == leaf_types(expected)
            jax.tree.map(np.testing.assert_array_equal, flatten_dict(params, sep="/"), expected)
        assert leaf_types(abstract_saved_params(folder.config(), None, checkpoints)) == traced


def test_a_checkpoint_without_a_seal_is_compared_with_the_traced_model(source: tuple[Path, dict[str, Any]]) -> None:
    """Oracle: by hand. Without the seal nothing but its tree says of which model a checkpoint is."""
    folder = RunFolder(source[0])
    file = folder.checkpoints / "7" / "meta" / "meta.json"
    write_whole(file, json.dumps(sealed({**read_sealed(file), "seal": None})))
    config = folder.config()
    wider = dataclasses.replace(config, model=dataclasses.replace(config.model, d_ff=24))
    message = r"another tree: .*float32\[2,23\], wanted float32\[2,24\].*use the config of"
    with open_checkpoints(wider, folder, read_only=True) as checkpoints, pytest.raises(ValueError, match=message):
        restore_weights(checkpoints, wider, None, None)


def test_patterns_without_a_run_are_refused() -> None:
    with pytest.raises(ValueError, match=r"train\.init_fresh is \('a',\), but train\.init_from is None"):
        TrainConfig(init_fresh=("a",))


@pytest.mark.slow
def test_a_setting_averages_the_checkpoints_there_are_a_choice_does_not(
    tmp_path: Path, one_device: None, capfd: pytest.CaptureFixture
) -> None:
    """Oracle: by hand. Checkpoint 5 is of a stop, so no average counts it; a run with nothing else is used by it."""
    config = with_train(dataclasses.replace(tiny_config(), weights="average:3"), keep_latest=3, keep_best=0)
    shapes = abstract_saved_params(config)

    def used(weights: str | None = None) -> tuple[int, float, str]:
        """The step, a value that is the same in all parameters, and the warning."""
        with open_checkpoints(config, RunFolder(tmp_path), read_only=True) as checkpoints:
            step, params = restore_weights(checkpoints, config, weights, None)
        return (
            step,
            float(jax.tree.leaves(params)[0].ravel()[0]),
            capfd.readouterr().err.removeprefix("warning: ").strip(),
        )

    expected = {
        5: (5, 5.0, "weights is 'average:3', but the run has 0 checkpoints to average: weights 'last' is used"),
        6: (6, 6.0, "weights is 'average:3', but the run has 1 checkpoint to average: weights 'last' is used"),
        8: (8, 7.0, "weights is 'average:3', but the run has 2 checkpoints to average: weights 'average:2' is used"),
        10: (10, 8.0, ""),
    }  # fmt: skip
    for step, result in expected.items():
        with open_checkpoints(config, RunFolder(tmp_path), read_only=False) as checkpoints:
            params = jax.tree.map(lambda x: np.full(x.shape, step, x.dtype), shapes)  # noqa: B023
            checkpoints.save(step, {"params": params}, {}, {"loss": 1.0}, regular=step != 5)
        assert used() == result
        if step < 10:
            with pytest.raises(
                ValueError, match=r"^cannot average 3 checkpoints of .*; (average at most 2, or )?use weights last"
            ):
                used("average:3")
    assert used("average:3") == expected[10]


@pytest.mark.parametrize(("best", "used"), [(None, "last"), (6, "best")])
def test_a_run_that_was_stopped_before_its_first_evaluation_is_used_as_it_is(
    best: int | None, used: str, capfd: pytest.CaptureFixture
):
    checkpoints = Mock(Checkpoints, steps=lambda: [6], best=lambda: best)
    assert available(checkpoints, "best") == used
    assert ("no checkpoint has been evaluated yet: weights 'last' is used" in capfd.readouterr().err) == (best is None)


def test_the_parameter_digest_is_the_documented_one():
    kernel = np.random.default_rng(0).standard_normal((3, 5)).astype("<f4")
    bias = np.arange(7, dtype=ml_dtypes.bfloat16)
    count = np.array(11, dtype="<i4")
    written_out = (
        b"decoder/bias bfloat16 7\n"
        + bias.view("<u2").tobytes()
        + b"encoder/attention/kernel float32 3,5\n"
        + kernel.tobytes()
        + b"encoder/count int32 \n"
        + count.tobytes()
    )
    params = {
        "encoder": {"count": jnp.array(count), "attention": {"kernel": jnp.array(kernel)}},
        "decoder": {"bias": jnp.array(bias)},
    }
    assert parameter_digest(params) == hashlib.sha256(written_out).hexdigest()


def test_the_parameter_digest_orders_by_the_whole_path():
    # "a-b" < "a/c" as strings, although the name "a" comes before "a-b".
    params = {"a": {"c": np.zeros(2, "<f4")}, "a-b": np.ones(3, "<f4")}
    written_out = b"a-b float32 3\n" + b"\x00\x00\x80\x3f" * 3 + b"a/c float32 2\n" + bytes(8)
    assert parameter_digest(params) == hashlib.sha256(written_out).hexdigest()


def test_the_parameter_digest_does_not_depend_on_the_layout_in_memory():
    kernel = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    assert parameter_digest({"kernel": np.asfortranarray(kernel)}) == parameter_digest({"kernel": kernel})
