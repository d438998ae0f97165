"""Tokens in, logits out: the Transformer and its parts, as pure Flax Linen modules.

The alphabet of every shape in this package:

    B batch        T query or target length    S key or source length    D model width
    N query heads  K key/value heads           G query heads per key/value head (N / K)
    H head width   F feed-forward width        V vocabulary              L layers

`transformer.py` reads as the paper: embeddings, stacks, heads. A stack (`stack.py`) repeats a layer (`blocks.py`): attention
(`attention.py`, fused by `kernels.py`) and feed-forward, each between the commands of `residual.py`. `contexts.py` builds masks and
positions once from the inputs (`inputs.py`). Decoding stores keys and values in a cache (`cache.py`). `config.py` has the settings;
attention variants, position schemes and norms are values, each in the file of its subject.

The mathematics are plain functions; the Linen modules only hold parameters. Dropout is on exactly when a module is applied
with a "dropout" random key: `model.apply(params, inputs, rngs={"dropout": key})` trains, without the key it evaluates.
"""

from flaxformer_lite.model.attention import Attention, DotProduct, MultiHeadAttention
from flaxformer_lite.model.blocks import DecoderLayer, EncoderLayer
from flaxformer_lite.model.config import LanguageModelHead, ModelConfig, Pooler
from flaxformer_lite.model.dropout import DropoutRates
from flaxformer_lite.model.feed_forward import FeedForward
from flaxformer_lite.model.initializers import Normal
from flaxformer_lite.model.inputs import Inputs
from flaxformer_lite.model.masks import causal_mask, padding_mask
from flaxformer_lite.model.norms import LayerNorm, RMSNorm
from flaxformer_lite.model.positions import ALiBi, Learned, NoPositions, RelativeBias, Rotary, Sinusoidal
from flaxformer_lite.model.residual import POST_NORM, PRE_NORM
from flaxformer_lite.model.stack import PositionBias, PositionEmbedding
from flaxformer_lite.model.transformer import Transformer

__all__ = [
    "POST_NORM",
    "PRE_NORM",
    "ALiBi",
    "Attention",
    "DecoderLayer",
    "DotProduct",
    "DropoutRates",
    "EncoderLayer",
    "FeedForward",
    "Inputs",
    "LanguageModelHead",
    "LayerNorm",
    "Learned",
    "ModelConfig",
    "MultiHeadAttention",
    "NoPositions",
    "Normal",
    "Pooler",
    "PositionBias",
    "PositionEmbedding",
    "RMSNorm",
    "RelativeBias",
    "Rotary",
    "Sinusoidal",
    "Transformer",
    "causal_mask",
    "padding_mask",
]
