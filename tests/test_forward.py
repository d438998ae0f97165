"""Oracle: the model itself, applied by hand; and by-hand shapes, ids and positions. The library's own numbers are in test_hf.py."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.forward import forward, inputs_of
from flaxformer_lite.interop.names import our_shapes
from flaxformer_lite.transformer import Inputs, ModelConfig, Transformer
from tests.test_hf_folders import DECODER, TRAINED_HERE, random_params

IDS = np.array([[5, 6, 7], [8, 9, 0]])
MASK = np.array([[1, 1, 1], [1, 1, 0]])
BOTH = {**DECODER, "num_encoder_layers": 1}


def ask(model: ModelConfig, **given: Any) -> Any:
    return forward(Transformer(model), {"params": random_params(model)}, 2, **given)


REFUSED = [
    (
        "bert",
        {"input_ids": IDS, "labels": IDS},
        "labels is nothing that this model reads: give input_ids, attention_mask, pos",
    ),
    ("distilbert", {"input_ids": IDS, "token_type_ids": IDS}, "token_type_ids is nothing that this model reads"),
    (
        "llama",
        {"attention_mask": MASK},
        "input_ids is missing: this model reads input_ids, attention_mask, position_ids",
    ),
    ("llama", {"input_ids": IDS[0]}, r"input_ids has the shape \(3,\): give numbers \[batch, length\]"),
    ("llama", {"input_ids": IDS, "attention_mask": MASK[:, :2]}, r"attention_mask has the shape \(2, 2\)"),
    ("llama", {"input_ids": IDS + 30}, "input_ids has 39, which is no token id: they are 0 to 36"),
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
        ValueError, match=r"inputs_embeds has the shape \(2, 3, 5\): give vectors \[batch, length, 12\]"
    ):
        ask(vectors, inputs_embeds=np.zeros((2, 3, 5)), decoder_inputs_embeds=np.zeros((2, 3, 12)))


def test_what_there_is_comes_out_and_the_rest_is_none() -> None:
    model = TRAINED_HERE["bert"]
    found = ask(model, input_ids=IDS.tolist(), attention_mask=MASK)
    inputs = Inputs(jnp.asarray(IDS), source_mask=jnp.asarray(MASK > 0), token_types=jnp.zeros((2, 3), jnp.int32))
    expected: Any = Transformer(model).apply({"params": jax.tree.map(jnp.asarray, random_params(model))}, inputs)
    parts = {"logits": "logits", "pooled": "pooled", "class_logits": "class_logits", "last_hidden_state": "memory"}
    for name, theirs in parts.items():
        assert isinstance(getattr(found, name), np.ndarray)
        np.testing.assert_allclose(getattr(found, name), getattr(expected, theirs), rtol=1e-4, atol=1e-4)
    assert found.encoder_last_hidden_state is None
    classifier = ask(TRAINED_HERE["bert classes"], input_ids=IDS)
    assert classifier.logits.shape == (2, 3) and (classifier.logits == classifier.class_logits).all()
    sentences = ask(TRAINED_HERE["bert sentences"], input_ids=IDS)
    assert sentences.logits is None and np.allclose(np.linalg.norm(sentences.pooled, axis=1), 1)


def test_positions_of_a_decoder_count_what_its_mask_shows() -> None:
    """Padding on the left takes none; hand-counted."""
    left = inputs_of(TRAINED_HERE["llama"], {"input_ids": IDS, "attention_mask": MASK[:, ::-1]}, 2)
    assert left.target_positions is not None
    assert left.target_positions.tolist() == [[0, 1, 2], [0, 0, 1]]
    given = {"input_ids": IDS, "attention_mask": MASK, "position_ids": IDS}
    assert inputs_of(TRAINED_HERE["llama"], given, 2).target_positions.tolist() == IDS.tolist()  # type: ignore[union-attr]
    assert our_shapes(TRAINED_HERE["llama"])["embedding/embedding"] == (37, 12)
