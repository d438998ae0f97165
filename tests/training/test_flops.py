"""Oracle: multiplications of a tiny model counted by hand. Plans compare the count with compiled programs in test_plan.py."""

import jax

from flaxformer_lite.data.batch_plan import Bucket
from flaxformer_lite.data.records import Lengths
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.inputs import example_inputs
from flaxformer_lite.model.transformer import Transformer
from flaxformer_lite.training.flops import decoding_flops, head_sum

MODEL = ModelConfig(vocab_size=11, d_model=6, num_heads=2, d_ff=5, num_encoder_layers=0, num_decoder_layers=3)


def test_one_more_token_by_hand() -> None:
    """Weights: four 6 x 6 projections and two 6 x 5 feed-forward matrices a layer, the 11 x 6 table as head."""
    params = jax.eval_shape(Transformer(MODEL).init, jax.random.key(0), example_inputs(MODEL))["params"]
    found = decoding_flops(MODEL, params, Bucket(lengths=Lengths(source=0, target=7), rows=4))
    assert found.weights == 2 * 4 * (3 * (4 * 6 * 6 + 2 * 6 * 5) + 11 * 6)
    assert found.attention == 2 * 4 * 3 * 7 * (6 + 6)
    assert head_sum(MODEL) == 12
