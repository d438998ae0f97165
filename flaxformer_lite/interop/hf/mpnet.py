"""MPNet: RoBERTa without token types, with learned positions and one relative bias of the scores that all layers share.

The library counts positions from padding id 1 on, and has 32 buckets of distances, whatever its config says.

Reference: Song et al. 2020, arXiv:2004.09297.
"""

from dataclasses import replace

from flaxformer_lite.core.model import Learned, ModelConfig, RelativeBias
from flaxformer_lite.interop.hf import bert
from flaxformer_lite.interop.options import Draft, Entry, Options, ignored, only, option

OFFSET = 2
"""Rows of the table of positions up to the padding id."""


def read_positions(options: Options, draft: Draft) -> None:
    rows = options.integer("max_position_embeddings", 512)
    if rows <= OFFSET:
        raise options.wrong("max_position_embeddings", f"it should be at least {OFFSET + 1}")
    draft["positions.max_positions"] = rows - OFFSET


def position_options(model: ModelConfig) -> dict[str, object]:
    return (
        {"max_position_embeddings": model.positions.max_positions + OFFSET} if type(model.positions) is Learned else {}
    )


LAYER = bert.LAYER | {
    "attention/query": "attention.attn.q",
    "attention/key": "attention.attn.k",
    "attention/value": "attention.attn.v",
    "attention/out": "attention.attn.o",
    "attention_post_norm": "attention.LayerNorm",
}
MPNET = bert.roberta_family(
    "mpnet",
    "MPNet",
    "mpnet",
    bert.base_names("mpnet", LAYER) | {"encoder/position_bias": "mpnet.encoder.relative_attention_bias"},
    replace(
        bert.ROBERTA_TEMPLATE,
        vocab_size=30527,
        num_token_types=0,
        positions=Learned(max_positions=512 - OFFSET, offset=OFFSET, relative=RelativeBias()),
    ),
    (
        *bert.WIDTHS,
        bert.HIDDEN_ACT,
        Entry(read_positions, position_options),
        option("initializer_range", "positions.stddev", "initializer.stddev"),
        only("relative_attention_num_buckets", 32),
        ignored("embedding_size"),  # only its absence is read, by a check of the heads' width
    ),
)
FAMILIES = (MPNET,)
