"""Oracle: the model itself, applied by hand; and by-hand shapes, ids and positions. The library's own numbers are in test_hf.py."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.core.model import Inputs, Learned, ModelConfig, Pooler, Transformer
from flaxformer_lite.core.predictions.forward import forward, model_inputs
from flaxformer_lite.core.search.settings import DecodeConfig
from tests.support.hf_folders import DECODER, TRAINED_HERE, random_params
from tests.support.limits import assert_close

IDS = np.array([[5, 6, 7], [8, 9, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
BOTH = {**DECODER, "num_encoder_layers": 1}
DECODE = DecodeConfig(pad_id=0, bos_id=2, eos_ids=(7,))


def ask(model: ModelConfig, **given: Any) -> Any:
    return forward(Transformer(model), {"params": random_params(model)}, DECODE, **given)


REFUSED = [
    (
        "bert",
        {"input_ids": IDS, "labels": IDS},
        "labels is no argument of this model: choose from input_ids, attention_mask, pos",
    ),
    ("distilbert", {"input_ids": IDS, "token_type_ids": IDS}, "token_type_ids is no argument of this model"),
    (
        "llama",
        {"attention_mask": MASK},
        "input_ids is missing: the arguments of this model are input_ids, attention_mask, position_ids",
    ),
    ("llama", {"input_ids": IDS[0]}, r"input_ids has the shape \(3,\): it must be numbers \[batch, length\]"),
    ("llama", {"input_ids": IDS, "attention_mask": MASK[:, :2]}, r"attention_mask has the shape \(2, 2\)"),
    ("llama", {"input_ids": IDS + 30}, "input_ids has 39, which is no token id: ids must be between 0 and 36"),
    ("bert", {"input_ids": -IDS}, "input_ids has -9, which is no token id"),
]


@pytest.mark.parametrize(("name", "given", "complaint"), REFUSED)
def test_an_argument_that_does_not_fit_is_named(name: str, given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        ask(TRAINED_HERE[name], **given)


def test_an_encoder_decoder_needs_both_sides() -> None:
    with pytest.raises(ValueError, match="decoder_input_ids is missing"):
        ask(ModelConfig(**BOTH), input_ids=IDS)
    vectors = ModelConfig(**{**BOTH, "vocab_size": 0, "head": None})
    with pytest.raises(
        ValueError, match=r"inputs_embeds has the shape \(2, 3, 5\): it must be vectors \[batch, length, 12\]"
    ):
        ask(vectors, inputs_embeds=np.zeros((2, 3, 5)), decoder_inputs_embeds=np.zeros((2, 3, 12)))


def test_arrays_without_a_row_or_a_token_and_unlike_numbers_of_rows_are_named() -> None:
    both = ModelConfig(**BOTH)
    for source, target, name in (
        ((0, 3), (0, 3), "input_ids"),
        ((2, 0), (2, 0), "input_ids"),
        ((2, 3), (2, 0), "decoder_input_ids"),
    ):
        with pytest.raises(
            ValueError, match=rf"^{name} has the shape .*: it must be numbers .* with a row and a token"
        ):
            ask(both, input_ids=np.zeros(source, int), decoder_input_ids=np.zeros(target, int))
    with pytest.raises(
        ValueError, match=r"^decoder_input_ids has the shape \(3, 2\): it must have the rows of input_ids"
    ):
        ask(both, input_ids=IDS, decoder_input_ids=np.zeros((3, 2), int))


@pytest.mark.slow
def test_outputs_that_the_model_does_not_have_are_none() -> None:
    model = TRAINED_HERE["bert"]
    found = ask(model, input_ids=IDS.tolist(), attention_mask=MASK)
    inputs = Inputs(jnp.asarray(IDS), source_mask=jnp.asarray(MASK > 0), token_types=jnp.zeros((2, 3), jnp.int32))
    expected: Any = jax.jit(Transformer(model).apply)(
        {"params": jax.tree.map(jnp.asarray, random_params(model))}, inputs
    )
    parts = {"logits": "logits", "pooled": "pooled", "class_logits": "class_logits", "last_hidden_state": "memory"}
    for name, theirs in parts.items():
        assert isinstance(getattr(found, name), np.ndarray)
        np.testing.assert_allclose(getattr(found, name), getattr(expected, theirs), rtol=1e-4, atol=1e-4)
    assert found.encoder_last_hidden_state is None
    classifier = ask(TRAINED_HERE["bert classes"], input_ids=IDS)
    assert classifier.logits.shape == (2, 3) and (classifier.logits == classifier.class_logits).all()
    sentences = ask(TRAINED_HERE["bert sentences"], input_ids=IDS)
    assert sentences.logits is None and np.allclose(np.linalg.norm(sentences.pooled, axis=1), 1)


def test_default_positions_do_not_depend_on_the_mask() -> None:
    """As in the library: GPT-2 with padding on the left and without position_ids counts from 0."""
    model = TRAINED_HERE["llama"]
    left = {"input_ids": IDS, "attention_mask": MASK[:, ::-1]}
    assert model_inputs(model, left, DECODE).target_positions is None
    found = model_inputs(model, left | {"position_ids": IDS}, DECODE).target_positions
    assert found is not None and found.tolist() == IDS.tolist()


def test_positions_are_rows_of_a_table() -> None:
    """Oracle: counted by hand for RoBERTa, whose rows start after its padding id; equal to the model's own default."""
    table = Learned(max_positions=5, offset=2, stddev=1.0)
    model = dataclasses.replace(TRAINED_HERE["distilbert"], positions=table, position_padding_id=1)
    ids = np.array([[5, 6, 7], [8, 1, 9]])
    same = ask(model, input_ids=ids, position_ids=[[2, 3, 4], [2, 1, 3]]).logits
    assert_close(same, ask(model, input_ids=ids).logits)
    for wrong in (7, -1):
        with pytest.raises(
            ValueError,
            match=f"position_ids has {wrong}, which is no row of the position table: rows must be between 0 and 6",
        ):
            ask(model, input_ids=ids, position_ids=[[2, 3, 4], [2, wrong, 3]])


def test_positions_count_from_0_where_padding_takes_up_one() -> None:
    """As in the library: OPT's table has two rows before that of position 0, and its `position_ids` do not count them."""
    model = dataclasses.replace(TRAINED_HERE["gpt2"], positions=Learned(max_positions=3, offset=2, stddev=1.0))
    same = ask(model, input_ids=IDS, position_ids=[[0, 1, 2], [0, 1, 2]]).logits
    assert_close(same, ask(model, input_ids=IDS).logits)
    with pytest.raises(ValueError, match=r"position_ids has 3, .*rows must be between 0 and 2"):
        ask(model, input_ids=IDS, position_ids=[[0, 1, 3], [0, 1, 2]])


LAST = Pooler(token="last", activation=None, num_classes=3, class_bias=False)


@pytest.mark.parametrize(
    ("settings", "mask", "places"),
    [
        (DECODER, None, [2, 2]),  # the last that is no padding, 0: also in the middle
        pytest.param(DECODER, [[1, 1, 0, 0], [1, 1, 1, 1]], [1, 3], marks=pytest.mark.slow),
        pytest.param(BOTH, None, [2, 3], marks=pytest.mark.slow),  # the last end, 7
        (BOTH, [[1, 1, 1, 0], [1, 1, 1, 1]], [2, 3]),
    ],
)
def test_classes_are_read_at_the_last_token(
    settings: dict[str, Any], mask: list[list[int]] | None, places: list[int]
) -> None:
    """Oracle: positions counted by hand; without a mask the hidden states are those of a mask of ones."""
    model = ModelConfig(**{**settings, "head": None, "pooler": LAST, "share_target_output": False})
    ids = np.array([[5, 7, 7, 0], [7, 0, 8, 7 if settings is BOTH else 0]])
    found = ask(model, input_ids=ids, attention_mask=mask)
    kernel = random_params(model)["pooler"]["classes"]["kernel"]
    expected = found.last_hidden_state[[0, 1], places] @ kernel
    np.testing.assert_allclose(found.logits, expected, rtol=1e-4, atol=1e-5)
    if mask is None:
        unmasked = ask(model, input_ids=ids, attention_mask=np.ones_like(ids))
        np.testing.assert_array_equal(found.last_hidden_state, unmasked.last_hidden_state)


def test_a_text_without_an_end_is_named_by_its_row() -> None:
    model = ModelConfig(**{**BOTH, "head": None, "pooler": LAST, "share_target_output": False})
    with pytest.raises(ValueError, match=r"input_ids, row 1 does not contain the first of decode.eos_ids \(7,\)"):
        ask(model, input_ids=IDS)
