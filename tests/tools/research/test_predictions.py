"""A teacher's predictions as a file: pairs are found by their tokens; a file of another form is one line."""

import re
from pathlib import Path

import numpy as np
import pytest

from flaxformer_lite.core.data.dataset import Dataset
from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.objectives import Seq2Seq
from flaxformer_lite.files.data.config import DataConfig
from flaxformer_lite.tools.research.distillation import Distillation
from flaxformer_lite.tools.research.predictions import ARRAYS, Predictions, SoftTargets, pair_key
from tests.support.objectives import example, record

PAIRS = [record([4, 5], [6]), record([4], [5, 6]), record([7], [7, 7, 7])]
"""The first two have the same ids, one after the other."""


def soft(pair: TokenPair, of: int) -> SoftTargets:
    """Two tokens at each position of the target and at EOS, other ones for each pair `of`."""
    size = len(pair.target) + 1
    ids = np.arange(2 * size).reshape(size, 2) + 10 * of
    return SoftTargets(ids.astype(np.int32), np.full((size, 2), 2.0 ** -(of + 1), np.float32))


def predictions(vocab_size: int = 99) -> Predictions:
    return Predictions.of({pair_key(pair): soft(pair, of) for of, pair in enumerate(PAIRS)}, vocab_size)


def student(folder: Path, learned: Predictions) -> Distillation:
    """The objective that learns these predictions, from a file."""
    learned.write(folder / "teacher.npz")
    return Distillation(predictions=str(folder / "teacher.npz"))


@pytest.mark.parametrize("vocab_size", [99, 2**16, 2**16 + 1])
def test_a_pair_gets_what_was_written_for_it(tmp_path: Path, vocab_size: int):
    assert predictions(vocab_size).ids.itemsize == (2 if vocab_size <= 2**16 else 4)
    predictions(vocab_size).write(tmp_path / "new" / "teacher.npz")
    found = Predictions.read(str(tmp_path / "new" / "teacher.npz"))
    assert len(found) == 3 and found.top == 2 and found.vocab_size == vocab_size
    for of in (2, 0, 1):
        taught = found.taught(PAIRS[of])
        for x, expected in zip(taught.soft_targets, soft(PAIRS[of], of), strict=True):
            np.testing.assert_array_equal(x, expected)
            assert x.dtype == expected.dtype
        assert taught[:2] == PAIRS[of][:2] and PAIRS[of] in found


def test_a_pair_without_predictions_gets_empty_ones():
    other = record([4, 5, 6], [])
    taught = predictions().taught(other)
    assert taught.soft_targets.ids.shape == taught.soft_targets.probs.shape == (0, 2) and other not in predictions()
    assert predictions().coverage([*PAIRS, other]) == 0.75
    assert predictions().coverage([other] * 5, most=2) == 0


def test_rows_of_a_batch_have_the_predictions_of_their_pairs(tmp_path: Path):
    """Oracle: the pair that a row shows. A row that fills up, and a pair that the teacher did not read, have none."""
    pairs = [*PAIRS, record([8], [8])]
    config = DataConfig(
        tokens_per_batch=32, rows_multiple=8, bucket_lengths=(4,), max_source_length=4, max_target_length=4
    )
    objective = student(tmp_path, predictions())
    batch = Dataset.training(pairs, objective, config, seed=1).batch(0)
    assert batch.extra.ids.shape == batch.extra.probs.shape == (8, 4, 2)
    seen = 0
    for row, target in enumerate(batch.targets):
        size = int(batch.weights[row].sum())
        found = [of for of, pair in enumerate(PAIRS) if [*pair.target, 3] == target[:size].tolist()]
        expected = soft(PAIRS[found[0]], found[0]) if found else SoftTargets(np.zeros((0, 2)), np.zeros((0, 2)))
        for x, wanted in zip(batch.extra, expected, strict=True):
            np.testing.assert_array_equal(x[row], np.pad(wanted, ((0, 4 - len(wanted)), (0, 0))))
        seen += len(found)
    assert seen == 3
    assert Dataset.evaluation(pairs, objective, config).batch(0).extra is None


def test_a_pair_with_other_positions_is_refused(tmp_path: Path):
    """`data.subword_sampling` gives the words other positions than the teacher read."""
    taught = predictions().taught(PAIRS[0])
    with pytest.raises(
        ValueError, match=r"has 2 positions for a target of 4 tokens with EOS: set data\.subword_sampling to None"
    ):
        example(student(tmp_path, predictions()), taught._replace(target=PAIRS[2].target), Lengths(4, 4))


def test_other_predictions_are_other_data(tmp_path: Path):
    """A run continues on the data that it was trained on, its teacher's probabilities included."""

    def fingerprint(of: Predictions | None) -> str:
        objective = Seq2Seq() if of is None else student(tmp_path, of)
        return Dataset.training(PAIRS, objective, DataConfig(), seed=1).fingerprint

    less_sure = predictions()
    less_sure.probs = less_sure.probs / 2
    assert len({fingerprint(of) for of in (None, predictions(), less_sure, predictions(98))}) == 4
    assert fingerprint(predictions()) == fingerprint(predictions())


def damaged(name: str) -> dict[str, np.ndarray]:
    """The arrays of a file, of which one does not fit."""
    arrays = {key: np.asarray(getattr(predictions(), key)) for key in ARRAYS}
    arrays[name] = {
        "keys": arrays["keys"][::-1],
        "starts": arrays["starts"] + 1,
        "ids": arrays["ids"] + 99,
        "probs": arrays["probs"][:-1],
        "vocab_size": np.array("many"),
    }[name]
    return arrays


@pytest.mark.parametrize("name", ARRAYS)
def test_a_damaged_file_is_refused(tmp_path: Path, name: str):
    path = tmp_path / "teacher.npz"
    np.savez(path, **damaged(name))
    with pytest.raises(
        ValueError, match=r"^objective\.predictions is '.*', which is not a file of `flaxformer-lite teach`"
    ):
        Predictions.read(str(path))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ids", -1, "they must be whole, from 0 to 98"),
        ("ids", 99, "they must be whole, from 0 to 98"),
        ("ids", 0.5, "they must be whole, from 0 to 98"),
        *(("probs", value, "each must be at least 0, their sum at most 1") for value in (np.nan, np.inf, -0.1, 0.6)),
    ],
)
def test_numbers_that_no_teacher_writes_are_refused(tmp_path: Path, name: str, value: float, message: str):
    """Law: ids are whole and in the table; probabilities are finite, at least 0, and at most 1 together (here 0.5 + 0.6)."""
    arrays = {key: np.asarray(getattr(predictions(), key)) for key in ARRAYS}
    arrays[name] = arrays[name].astype(float if name == "probs" or value % 1 else np.int32)
    arrays[name][1, 0] = value
    np.savez(tmp_path / "teacher.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        Predictions.read(str(tmp_path / "teacher.npz"))


def test_probabilities_that_float16_rounded_up_are_read(tmp_path: Path):
    """Law: any probabilities that sum to 1 in float32 are read back, though their float16 sum may be above 1."""
    draws = np.random.default_rng(0).dirichlet(np.ones(5), 300).astype(np.float32)
    soft = SoftTargets(np.tile(np.arange(5, dtype=np.int32), (300, 1)), draws)
    assert draws.astype(np.float16).astype(float).sum(-1).max() > 1
    Predictions.of({7: soft}, 5).write(tmp_path / "teacher.npz")
    assert len(Predictions.read(str(tmp_path / "teacher.npz"))) == 1


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"a text\n"], ids=["empty", "zip", "text"])
def test_another_file_is_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "teacher.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is not a file of `flaxformer-lite teach` \(.*\): write it again$"):
        Predictions.read(str(path))


def test_a_missing_file_names_the_command(tmp_path: Path):
    missing = str(tmp_path / "missing.npz")
    with pytest.raises(
        ValueError, match=f"^objective.predictions is {re.escape(repr(missing))}: there is no such file"
    ):
        Predictions.read(missing)
