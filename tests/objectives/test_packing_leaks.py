"""Law: a packed document moves nothing of its neighbour, bit for bit, through the objective, with every attention there is."""

import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.data.records import Lengths, Pack
from flaxformer_lite.model.attention import AttentionVariant, DotProduct, SharedProjection
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.positions import Rotary
from flaxformer_lite.model.transformer import Transformer
from flaxformer_lite.objectives import Batch, CausalLM, MaskedLM
from flaxformer_lite.text.special_ids import BOS, EOS
from flaxformer_lite.training.step import total
from tests.support.quick import quick

ATTENTION = {
    "dot_product": DotProduct(),
    "grouped_queries": DotProduct(num_kv_heads=1, soft_cap=5.0),
    "shared_projection": SharedProjection(),
}
FIRST, OTHER, SECOND = [4, 5, 6, 7], [14, 15, 16, 17], [8, 9, 10, 11, 12]
PAIRS = [f"{kind}-{name}" for kind in ("causal_lm", "masked_lm") for name in ATTENTION]
QUICK = ("causal_lm-grouped_queries",)


def test_every_attention_is_here():
    assert {type(attention) for attention in ATTENTION.values()} == set(typing.get_args(AttentionVariant))


def row(kind: str, first: list[int]) -> tuple[Batch, np.ndarray]:
    """Both documents in a row of which only what is asked of the second counts, and where that is."""
    if kind == "causal_lm":
        pieces = tuple(np.array([BOS, *text, EOS], np.int32) for text in (first, SECOND))
        batch = CausalLM().example(Pack(pieces), Lengths(0, 13))
        of_second = np.asarray(batch.inputs.target_segments) == 2
    else:
        generator = np.random.Generator(np.random.Philox(key=[2, 6]))
        pieces = tuple(np.array(text, np.int32) for text in (first, SECOND))
        objective = MaskedLM(mask_token=28, mask_rate=0.6)
        batch = objective.example(Pack(pieces), Lengths(15, 0), generator)
        segments = np.asarray(batch.inputs.source_segments)
        of_second = (segments[batch.inputs.predict_positions] == 2) & (batch.weights > 0)
    assert of_second.sum() >= 2
    batch = batch._replace(weights=np.where(of_second, batch.weights, 0))
    return jax.tree.map(lambda x: jnp.asarray(x)[None], batch), of_second


@pytest.mark.parametrize("pair", quick(PAIRS, QUICK.__contains__))
def test_another_first_document_moves_no_logit_and_no_gradient_of_the_second(pair: str):
    kind, name = pair.split("-")
    causal = kind == "causal_lm"
    objective = CausalLM() if causal else MaskedLM(mask_token=28, mask_rate=0.6)
    config = ModelConfig(
        vocab_size=29, d_model=12, num_heads=2, d_ff=17, attention=ATTENTION[name], positions=Rotary(),
        num_encoder_layers=0 if causal else 2, num_decoder_layers=2 if causal else 0,
    )  # fmt: skip
    model = Transformer(config)
    (batch, of_second), (moved, _) = row(kind, FIRST), row(kind, OTHER)
    shapes = jax.eval_shape(model.init, jax.random.key(1), objective.inputs(batch, config))["params"]
    rng = np.random.default_rng(4)
    params = jax.tree.map(lambda x: np.float32(0.6 * rng.normal(size=x.shape)), shapes)

    @jax.jit
    def look(batch: Batch):
        def loss(params):
            outputs = model.apply({"params": params}, objective.inputs(batch, config))
            terms = objective.loss(outputs, batch)
            return total(terms, {key: term.count for key, term in terms.items()}), outputs.logits[0]

        return jax.value_and_grad(loss, has_aux=True)(params)

    ((loss, logits), gradient), ((moved_loss, moved_logits), moved_gradient) = look(batch), look(moved)
    assert not np.array_equal(logits[~of_second], moved_logits[~of_second])
    np.testing.assert_array_equal(logits[of_second], moved_logits[of_second])
    assert loss == moved_loss
    jax.tree.map(np.testing.assert_array_equal, gradient, moved_gradient)
    assert any(np.any(leaf) for leaf in jax.tree.leaves(gradient))
