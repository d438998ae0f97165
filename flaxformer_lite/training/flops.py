"""The number of operations in a step of a model, by formula."""

import re
from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import PyTree

from flaxformer_lite.base.tree_paths import leaves_by_path
from flaxformer_lite.data.batch_plan import Bucket
from flaxformer_lite.model import ModelConfig
from flaxformer_lite.model.attention import SharedProjection
from flaxformer_lite.objectives import Batch


class Operations(NamedTuple):
    """Operations of a whole step, on all devices."""

    weights: float
    """Products of each matrix weight with each position that it is applied to."""
    attention: float
    """Products of each query with each key and its value, masked or not."""


def weight_sum(model: ModelConfig, params: PyTree, positions: Callable[[str], int]) -> int:
    """Returns the sum over all matrices: weights times the positions of a row that they are applied to."""
    total = 0
    for path, x in leaves_by_path(params).items():
        times = positions(path)
        if isinstance(model.attention, SharedProjection) and re.search(r"/(query|key|value)/", path):
            times *= model.num_heads
        is_table = path == "embedding/embedding" or path == "target_embedding/embedding"
        if path.endswith("/kernel") or (is_table and model.share_target_output and model.head is not None):
            total += times * x.size
    return total


def head_sum(model: ModelConfig) -> int:
    """Returns the multiplications for one query and one key in all heads: for the score, and for the value."""
    heads = model.attention.heads(model.d_model, model.num_heads)
    return model.num_heads * (heads.d_key + heads.d_value)


def training_flops(model: ModelConfig, params: PyTree, batch: Batch) -> Operations:
    """Returns the operations of a training step: 2 for each multiplication, times 3 for the gradient.

    Queries count with all keys, masked or not.

    Reference: Kaplan et al. 2020, arXiv:2001.08361, section 2.1; Chowdhery et al. 2022, arXiv:2204.02311, appendix B.
    """
    inputs = batch.inputs
    source, target = (0 if x is None else x.shape[1] for x in (inputs.source_tokens, inputs.target_tokens))
    rows, scored = batch.targets.shape

    def positions(path: str) -> int:
        if path.startswith("encoder/") or re.search(r"/cross_attention/(key|value)/", path):
            return source
        return target if path.startswith("decoder/") else 1 if path.startswith("pooler/") else scored

    attention = model.num_encoder_layers * source**2 * head_sum(model)
    attention += model.num_decoder_layers * target * (target + source) * head_sum(model.for_decoder)
    return Operations(6.0 * rows * weight_sum(model, params, positions), 6.0 * rows * attention)


def decoding_flops(model: ModelConfig, params: PyTree, bucket: Bucket) -> Operations:
    """Returns the operations of one token for each row, forward pass only. Every slot of the cache counts, filled or not."""
    source, room = bucket.lengths

    def positions(path: str) -> int:
        skipped = path.startswith(("encoder/", "pooler/")) or re.search(r"/cross_attention/(key|value)/", path)
        return 0 if skipped else 1

    cross = source if model.num_encoder_layers else 0
    attention = model.num_decoder_layers * (room + cross) * head_sum(model.for_decoder)
    return Operations(2.0 * bucket.rows * weight_sum(model, params, positions), 2.0 * bucket.rows * attention)
