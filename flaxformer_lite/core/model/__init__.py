"""Tokens in, logits out: the Transformer and its parts, as pure Flax Linen modules.

The alphabet of every shape in this package:

    B batch        T query or target length    S key or source length    D model width
    N query heads  K key/value heads           G query heads per key/value head (N / K)
    H head width   F feed-forward width        V vocabulary              L layers
    E width of embeddings, and of the vector of a text                   O width of a stack's output

`transformer.py` and `attention.py` are the forward pass. Its parts, a file each: `layers.py` (dense, dropout, feed-forward),
`heads.py` (what reads the last layer), `estimation.py` (the parts of COMET), `norms.py`, `positions.py`, `masks.py`, `contexts.py`
(masks and positions of a stack, the decode cache), `inputs.py`, `config.py`. `fast.py` and `kernels.py` compute the same faster.
Attention variants, position schemes and norms are values, each in the file of its subject.

The mathematics are plain functions; the Linen modules only hold parameters. Dropout is on exactly when a module is applied
with a "dropout" random key: `model.apply(params, inputs, rngs={"dropout": key})` trains, without the key it evaluates.
"""

from flaxformer_lite.core.model.attention import Attention, DotProduct, MultiHeadAttention, check_attention
from flaxformer_lite.core.model.config import (
    POST_NORM,
    PRE_NORM,
    EmbeddingProjection,
    LanguageModelHead,
    ModelConfig,
    Residual,
    SlidingWindow,
)
from flaxformer_lite.core.model.estimation import Estimator, LayerMix
from flaxformer_lite.core.model.inputs import Inputs
from flaxformer_lite.core.model.layers import DropoutRates, FeedForward, Normal
from flaxformer_lite.core.model.lora import LoRA
from flaxformer_lite.core.model.masks import causal_mask, padding_mask
from flaxformer_lite.core.model.norms import LayerNorm, RMSNorm
from flaxformer_lite.core.model.positions import ALiBi, Learned, NoPositions, RelativeBias, Rotary, Sinusoidal
from flaxformer_lite.core.model.transformer import (
    DecoderLayer,
    EncoderLayer,
    PositionBias,
    PositionEmbedding,
    Transformer,
)
from flaxformer_lite.core.reading.heads import Pooler, SentenceEmbedding

__all__ = [
    "POST_NORM",
    "PRE_NORM",
    "ALiBi",
    "Attention",
    "DecoderLayer",
    "DotProduct",
    "DropoutRates",
    "EmbeddingProjection",
    "EncoderLayer",
    "Estimator",
    "FeedForward",
    "Inputs",
    "LanguageModelHead",
    "LayerMix",
    "LayerNorm",
    "Learned",
    "LoRA",
    "ModelConfig",
    "MultiHeadAttention",
    "NoPositions",
    "Normal",
    "Pooler",
    "PositionBias",
    "PositionEmbedding",
    "RMSNorm",
    "RelativeBias",
    "Residual",
    "Rotary",
    "SentenceEmbedding",
    "Sinusoidal",
    "SlidingWindow",
    "Transformer",
    "causal_mask",
    "check_attention",
    "padding_mask",
]
