"""A run on several devices: the answers of one, parameters that no device holds whole, and the choice of the devices."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import flaxformer_lite
from flaxformer_lite.config import Config
from flaxformer_lite.core.data import Pair
from flaxformer_lite.core.model import ModelConfig
from flaxformer_lite.core.model.transformer import parameter_shapes
from flaxformer_lite.core.objectives import MaskedLM
from flaxformer_lite.core.parallel import MeshConfig
from flaxformer_lite.core.reading.heads import Pooler, SentenceEmbedding
from flaxformer_lite.core.search import DecodeConfig
from flaxformer_lite.core.search.answers import ScoredText
from flaxformer_lite.core.search.devices import GIB, Workload, device_groups
from flaxformer_lite.core.text import Tokenizers
from flaxformer_lite.core.text.characters import Characters
from flaxformer_lite.run import Run, write_run
from flaxformer_lite.workdir import RunFolder
from tests.support.experiments import normal_params, tiny_config, use_one_device, with_train

MODEL = ModelConfig(vocab_size=149, d_model=16, num_heads=4, d_ff=24, num_encoder_layers=1, num_decoder_layers=1)
DATES = ["20 November 2026", "1 May 1999", "3 nov 2030", "", "Monday, 4 July 1988"] * 5
MESHES = {"rows": None, "tensor": MeshConfig(tensor=2), "fsdp": MeshConfig(data=1, fsdp=8)}
each_mesh = pytest.mark.parametrize(
    "name", ["tensor", *(pytest.param(n, marks=pytest.mark.slow) for n in ("rows", "fsdp"))]
)


def tokenizers() -> Tokenizers:
    tokenizer = Characters().train([str(i) for i in range(10)] + DATES, 149)
    return Tokenizers(tokenizer, tokenizer)


def config() -> Config:
    tiny = tiny_config(model=MODEL)
    decode = dataclasses.replace(tiny.decode, batch_tokens=64, num_hypotheses=2, beam_size=2)
    return dataclasses.replace(tiny, decode=decode)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("devices") / "run"
    params = jax.tree.map(lambda x: x / 2, normal_params(config(), 3))
    write_run(RunFolder(path), config(), 7, params, "a test", tokenizers=tokenizers())
    return path


def answered(run: Run) -> tuple[list[list[ScoredText]], dict[str, float]]:
    """Translations, and metrics on pairs."""
    return run.hypotheses(DATES), run.metrics([Pair(date, "2026-11-20") for date in DATES if date])


@pytest.fixture(scope="module")
def expected(folder: Path) -> tuple[list[list[ScoredText]], dict[str, float]]:
    """The answers of one device."""
    with pytest.MonkeyPatch.context() as patch:
        use_one_device(patch)
        return answered(flaxformer_lite.load(folder))


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_translations_and_metrics_are_those_of_one_device(name: str, folder: Path, expected: Any):
    run = flaxformer_lite.load(folder, mesh=MESHES[name])
    assert (run.placement.groups, run.placement.tensor) == {"rows": (8, 1), "tensor": (4, 2), "fsdp": (2, 4)}[name]
    (ours, metrics), (theirs, of_one) = answered(run), expected
    if name == "rows":
        assert ours == theirs
    assert [[one.text for one in each] for each in ours] == [[one.text for one in each] for each in theirs]
    scores = ([one.score for each in answers for one in each] for answers in (ours, theirs))
    np.testing.assert_allclose(*scores, atol=2e-4)
    assert metrics == pytest.approx(of_one, rel=1e-4)


@each_mesh
def test_predictions_for_texts_are_those_of_one_device(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    heads = {"pooler": Pooler(num_classes=3), "sentence_embedding": SentenceEmbedding()}
    model = dataclasses.replace(MODEL, num_decoder_layers=0, **heads)
    encoder = dataclasses.replace(
        with_train(config(), text_metrics=()), model=model, objective=MaskedLM(mask_token=148)
    )
    path = folder.parent / f"encoder_{name}"
    write_run(RunFolder(path), encoder, 1, normal_params(encoder, 5), "a test", tokenizers=tokenizers())
    many = flaxformer_lite.load(path, mesh=MESHES[name])
    use_one_device(monkeypatch)
    one, exact = flaxformer_lite.load(path), name == "rows"
    texts = [date for date in DATES if len(date) == 10]  # of one length, and so one program for each of three tasks
    assert len({*texts}) == 2
    np.testing.assert_allclose(many.embed(texts), one.embed(texts), atol=0 if exact else 1e-5)
    ours, theirs = ([each.scores for each in run.classify(texts)] for run in (many, one))
    assert ours == [pytest.approx(each, abs=0 if exact else 1e-4) for each in theirs]
    masked = [text.replace("1", "[MASK]", 1) for text in texts if "1" in text]
    filled, expected = (
        [[(token.id, token.probability) for token in place] for text in run.fill_mask(masked) for place in text]
        for run in (many, one)
    )
    assert [[i for i, _ in place] for place in filled] == [[i for i, _ in place] for place in expected]


def test_no_device_and_no_read_has_a_divided_parameter_whole(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: what is read of a divided matrix is a share of it, and the table of 149 ids is padded to 152 on 4 devices."""
    reads, made = [], jax.make_array_from_callback

    def watched(shape: tuple[int, ...], sharding: Any, read: Any) -> Any:
        def counted(index: tuple[slice, ...]) -> np.ndarray:
            part = read(index)
            reads.append((shape, part.shape))
            return part

        return made(shape, sharding, counted)

    monkeypatch.setattr(jax, "make_array_from_callback", watched)
    run = flaxformer_lite.load(folder, mesh=MeshConfig(tensor=4))
    assert run.params["embedding"]["embedding"].shape == (152, 16)
    assert {part for shape, part in reads if shape == (149, 16)} == {(149, 4)}
    assert {part for shape, part in reads if shape == (1, 16, 24)} == {(1, 16, 6)}
    of_device = [x.addressable_shards[0].data.shape for x in jax.tree.leaves(run.params) if x.ndim > 2]
    assert all(np.prod(shape) <= 16 * 16 // 4 * 6 for shape in of_device)
    table = np.asarray(run.params["embedding"]["embedding"])
    assert not table[149:].any() and table[:149].any(axis=1).all()


def test_weights_in_bfloat16_are_read_as_such(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Law: no matrix in float32 is on a device, and the values are those of the matrix in float32, rounded."""
    whole, types, made = flaxformer_lite.load(folder), set(), jax.make_array_from_callback

    def watched(shape: tuple[int, ...], sharding: Any, read: Any) -> Any:
        array = made(shape, sharding, read)
        types.add((array.ndim > 2, array.dtype.name))
        return array

    monkeypatch.setattr(jax, "make_array_from_callback", watched)
    rounded = flaxformer_lite.load(folder, weights_dtype="bfloat16")
    assert (True, "float32") not in types and (True, "bfloat16") in types
    table = "embedding"
    assert rounded.params[table][table].dtype == "bfloat16"
    np.testing.assert_array_equal(rounded.params[table][table], whole.params[table][table].astype("bfloat16"))


# The choice of the devices ---------------------------------------------------------------------------------------------------


def workload(**changes: Any) -> Workload:
    model = dataclasses.replace(MODEL, vocab_size=40_000, d_model=64, d_ff=256, **changes)
    return Workload((model,), DecodeConfig(batch_tokens=64), 16)


def test_a_copy_is_the_default_where_the_memory_is_not_known():
    placement = device_groups(workload())
    assert (placement.groups, placement.tensor) == (8, 1)
    assert device_groups(workload(), devices=jax.devices()[:1]).mesh is None


@pytest.mark.slow
def test_the_fewest_devices_of_a_group_that_have_the_memory_are_chosen():
    """Oracle: bytes of the parameters by their shapes; a search of this size needs less than a quarter of them."""
    sizes = [math.prod(x.shape) * 4 for x in jax.tree.leaves(parameter_shapes(workload().models[0]))]
    whole = sum(sizes) + workload().search_bytes()
    assert workload().parameter_bytes(1) == sum(sizes)
    for share, tensor in ((1.0, 1), (0.99, 2), (0.52, 2), (0.48, 4)):
        assert device_groups(workload(), memory=int(share * whole / 0.9) + 1).tensor == tensor
    message = r"does not fit: with train\.mesh\.tensor 4 of 8 devices a device needs .* GiB"
    with pytest.raises(ValueError, match=message):
        device_groups(workload(), memory=whole // 8)


def test_weights_in_bfloat16_need_half_the_memory_but_for_vectors():
    wide, narrow = workload(), dataclasses.replace(workload(), weights_dtype="bfloat16")
    assert 0.5 < narrow.parameter_bytes(1) / wide.parameter_bytes(1) < 0.51
    assert GIB == 1024**3


@pytest.mark.parametrize(
    ("mesh", "groups", "tensor"),
    [
        (MeshConfig(fsdp=2), 4, 2),
        (MeshConfig(data=1, fsdp=8), 2, 4),  # 4 heads: the other devices answer rows of their own
        (MeshConfig(fsdp=2, tensor=2), 2, 4),
        (MeshConfig(), 8, 1),
    ],
)
def test_devices_of_fsdp_join_tensor_as_far_as_the_heads_allow(mesh: MeshConfig, groups: int, tensor: int):
    placement = device_groups(workload(), mesh)
    assert (placement.groups, placement.tensor) == (groups, tensor)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (MeshConfig(tensor=8), r"train\.mesh\.tensor is 8, which does not divide the 4 key/value heads .*divisor of 4"),
        (MeshConfig(tensor=3), r"do not make up 8 devices"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh: MeshConfig, message: str):
    with pytest.raises(ValueError, match=message):
        device_groups(workload(), mesh)


def test_the_line_names_groups_and_tensor(folder: Path, capsys: pytest.CaptureFixture[str]):
    flaxformer_lite.load(folder, mesh=MeshConfig(fsdp=2))
    assert re.search(r"8 devices answer in 4 groups, .*mesh\.tensor 2", capsys.readouterr().err)
    flaxformer_lite.load(folder, mesh=MeshConfig(tensor=2))
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_model_that_no_group_holds_is_refused_with_the_figures_and_the_remedy(folder: Path, monkeypatch):
    monkeypatch.setattr("flaxformer_lite.core.search.devices.memory_of", lambda device: 2**14)
    figures = r"does not fit: .* of 8 devices .* GiB, .* for parameters, .* of its 0\.00 GiB"
    with pytest.raises(ValueError, match=figures + r".*: use weights_dtype bfloat16, .*batch_tokens, or more devices"):
        flaxformer_lite.load(folder)
    monkeypatch.setattr("flaxformer_lite.core.search.devices.memory_of", lambda device: 60_000)
    assert flaxformer_lite.load(folder).placement.tensor > 1
