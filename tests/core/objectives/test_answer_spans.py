"""Oracles: rows worked by hand; the loss and the accuracy of drawn logits, row by row in float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.data.records import Lengths, TokenPair
from flaxformer_lite.core.model.config import ModelConfig
from flaxformer_lite.core.model.inputs import Inputs, Outputs
from flaxformer_lite.core.objectives import AnswerSpans, Batch, TokenLabels, default_objective
from flaxformer_lite.core.reading.heads import Pooler
from flaxformer_lite.core.reading.objectives import ANSWER
from flaxformer_lite.core.text.characters import CharacterTokenizer
from flaxformer_lite.core.text.pairs import Extent
from flaxformer_lite.core.text.special_ids import BOS, EOS, PAD
from tests.support.objectives import example, record

TOKENIZER = CharacterTokenizer("abcdefghijklmnop")


def question(source: list[int], target: list[int], answer: tuple[int, int]) -> TokenPair:
    """A question whose answer has the tokens from the first to before the second place."""
    places = np.array([answer[0], answer[1] - 1] if answer[1] else [], np.int32)
    return record(source, target)._replace(arrays={ANSWER: places})


def test_rows_by_hand():
    """Windows of four tokens that share one: the answer 7 8 is in the second alone, the refused question in none."""
    rows = AnswerSpans(overlap=1).make_rows(
        [
            question([10, 11], [4, 5, 6, 7, 8, 9], (3, 5)),
            record([], [])._replace(extent=Extent.REFUSED),
            question([10, 11, 12, 13, 14], [4], (0, 1)),
            question([10], [], (0, 0)),
        ],
        Lengths(9, 0), 0, TOKENIZER,
    )  # fmt: skip
    assert [row.tokens.tolist() for row in rows] == [
        [BOS, 10, 11, EOS, 4, 5, 6, 7, EOS],
        [BOS, 10, 11, EOS, 7, 8, 9, EOS],
        [BOS, 10, 11, 12, EOS, 4, EOS],
        [BOS, 10, EOS, EOS],
    ]
    assert [row.label for row in rows] == [(0, 0), (4, 5), (5, 5), (0, 0)]
    assert rows.lengths.tolist() == [[9, 0], [8, 0], [7, 0], [4, 0]]
    assert [rows.spans.row(i) for i in range(4)] == [[(0, 0, 4)], [(0, 3, 6)], [(2, 0, 1)], [(3, 0, 0)]]
    assert rows.note == "1 questions were cut, as data.max_source_length is 9"
    batch = example(AnswerSpans(), rows[1], Lengths(10, 0))
    assert batch.inputs.source_tokens.tolist() == [BOS, 10, 11, EOS, 7, 8, 9, EOS, PAD, PAD]
    assert batch.inputs.token_types.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0]
    assert batch.inputs.source_mask.tolist() == [True] * 8 + [False] * 2
    assert (batch.targets.tolist(), batch.weights.tolist()) == ([4, 5], [1, 1])


@pytest.mark.parametrize("overlap", [0, 1, 5, 128])
def test_windows_have_each_token_of_a_text(overlap: int):
    """Law: neighbours share the overlap, at most half of a window; each window but the last one fills its row."""
    objective = AnswerSpans(overlap=overlap)
    for longest, size, text in itertools.product((5, 6, 13, 29), (0, 1, 9, 40), (0, 1, 2, 7, 33)):
        room = objective.room(longest, TOKENIZER)
        asked, ids = [4] * size, list(range(5, 5 + text))
        starts = objective.starts(size, text, room)
        windows = [objective.window(asked, ids, start, room, TOKENIZER) for start in starts]
        shown = [one.read.tokens[one.before : one.before + one.size] for one in windows]
        assert [one.read.tokens.count(4) for one in windows] == [min(size, room // 2)] * len(windows)
        assert {len(one.read.tokens) for one in windows[:-1]} <= {longest} and len(windows[-1].read.tokens) <= longest
        assert [ids[one.start : one.start + one.size] for one in windows] == shown
        shared = min(overlap, (room - min(size, room // 2)) // 2)
        assert shown[0] + [i for one in shown[1:] for i in one[shared:]] == ids
        assert all(len(one) > shared for one in shown[1:])


def drawn(seed: int, rows: int = 37, length: int = 19) -> tuple[np.ndarray, Batch]:
    """Drawn logits `[B, T, 2]`, and rows of drawn lengths; the last row is padding alone."""
    rng = np.random.default_rng(seed)
    sizes = np.append(rng.integers(2, length + 1, rows - 1), 0)
    mask = np.arange(length) < sizes[:, None]
    targets = np.sort(rng.integers(0, np.maximum(sizes, 1)[:, None], (rows, 2)).astype(np.int32))
    weights = np.repeat((sizes[:, None] > 0).astype(np.float32), 2, 1)
    logits = rng.normal(size=(rows, length, 2)) + 2 * (np.arange(length)[:, None] == targets[:, None])
    batch = Batch(Inputs(source_mask=jnp.asarray(mask)), *map(jnp.asarray, (targets, weights)))
    return logits.astype(np.float32), batch


@pytest.mark.parametrize("seed", [1, 2])
def test_the_loss_and_the_accuracy_are_those_of_each_row(seed: int):
    objective, (logits, batch) = AnswerSpans(), drawn(seed)
    found = Outputs(class_logits=jnp.asarray(logits))
    nats, right = [], []
    for z, mask, places in zip(
        logits.astype(float), *map(np.asarray, (batch.inputs.source_mask, batch.targets)), strict=True
    ):
        for column, place in enumerate(places if mask.any() else ()):
            shown = z[mask, column]
            nats.append(np.log(np.exp(shown).sum()) - shown[place])
            right.append(shown.argmax() == place)
    figures = objective.report(jax.jit(objective.metrics)(found, batch))
    assert figures == pytest.approx({"loss": np.mean(nats), "accuracy": np.mean(right)}, rel=1e-5)
    assert 0.1 < figures["accuracy"] < 0.95 and set(figures) == set(objective.metric_names)
    (term,) = objective.loss(found, batch).values()
    assert (term.sum, term.count) == pytest.approx((np.sum(nats), len(nats)), rel=1e-5)


def test_padding_has_no_share_of_the_loss():
    objective, (logits, batch) = AnswerSpans(), drawn(4)
    hidden = np.where(batch.inputs.source_mask[..., None], logits, 50.0)
    (one,), (other,) = (objective.loss(Outputs(class_logits=jnp.asarray(z)), batch).values() for z in (logits, hidden))
    assert one.sum == other.sum and np.isfinite(one.sum)


def test_a_model_from_elsewhere_may_find_no_answer():
    each = Pooler(token="each", activation=None, num_classes=2)
    model = ModelConfig(vocab_size=29, num_decoder_layers=0, head=None, pooler=each)
    assert default_objective(model, ("a", "b"), labels="places") == AnswerSpans(unanswerable=True)
    assert isinstance(default_objective(model, ("a", "b")), TokenLabels)
