"""A layer, and the stack that repeats it. The alphabet is in `model/__init__.py`.

The layers of a stack are one set of parameters with a leading axis L.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.model.attention import MultiHeadAttention
from flaxformer_lite.model.cache import KeyValue, LayerCache
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.dropout import DropoutRates, apply_dropout
from flaxformer_lite.model.feed_forward import FeedForward
from flaxformer_lite.model.masks import ByLayer, MaskStructure
from flaxformer_lite.model.norms import Normalize
from flaxformer_lite.model.numerics import DTYPES
from flaxformer_lite.model.residual import apply_commands
from flaxformer_lite.parallel.sharding import constrain_sharding


class LayerContext(NamedTuple):
    """What all layers of a stack see alike: mask and bias, the memory, positions, and while decoding the place being written."""

    mask: Bool[Array, "..."] | None = None
    local_mask: Bool[Array, "..."] | None = None
    """The mask of the layers that have a window, where others have none."""
    structure: MaskStructure | None = None
    """What these masks are made of; None: unknown."""
    local_structure: MaskStructure | None = None
    memory_structure: MaskStructure | None = None
    bias: Float[Array, "..."] | None = None
    memory: Float[Array, "B S D"] | None = None
    memory_mask: Bool[Array, "..."] | None = None
    positions: Int[Array, "#B T"] | None = None
    key_positions: Int[Array, "#B S"] | None = None
    """Where the keys stand; None: at `positions`, as in self-attention without a cache."""
    index: Int[Array, ""] | None = None  # type: ignore[assignment]  # tuples have a method of that name
    slots: Int[Array, "_"] | None = None
    """Where the last of several new keys go in a cache that keeps a window's only; None: all go to `index`. They are attended to
    beside those that the cache had before."""


class Block(nn.Module):
    """One layer: self-attention, in a decoder also cross-attention to the memory, then feed-forward."""

    config: ModelConfig
    cross: bool = False

    def setup(self) -> None:
        c = self.config
        dtype, kernel_init = DTYPES[c.dtype], c.initializer.kernel()

        def attention() -> MultiHeadAttention:
            return MultiHeadAttention(c.d_model, c.num_heads, c.attention, c.dropout.attention_rate, dtype, kernel_init)

        self.attention = attention()
        if self.cross:
            self.cross_attention = attention()
        self.feed_forward = FeedForward(
            c.d_model, c.d_ff, c.activation, c.feed_forward_bias, c.dropout.feed_forward_rate, dtype, kernel_init
        )
        for sublayer in ("attention", "cross_attention", "feed_forward"):
            for norm in ("pre_norm", "post_norm"):
                setattr(self, f"{sublayer}_{norm}", Normalize(c.norm))

    def __call__(
        self,
        x: Float[Array, "B T D"],
        cache: LayerCache | None,
        is_local: Bool[Array, ""] | None,
        context: LayerContext,
    ) -> tuple[Float[Array, "B T D"], LayerCache | None]:
        h = self.pre("attention", x)
        rotate = functools.partial(self.rotate, is_local=is_local, context=context)
        mask = context.mask
        if is_local is not None:
            assert mask is not None and context.local_mask is not None
            mask = jnp.where(is_local, context.local_mask, mask)
        structure: MaskStructure | ByLayer | None = context.structure
        if context.structure is not None and is_local is not None:
            assert context.local_structure is not None
            structure = ByLayer(is_local, context.local_structure, context.structure)
        own = self.attention.key_value(h, rotate=rotate)
        if cache is not None and context.slots is not None:
            own, cache = cache.own.concat(own), cache._replace(own=cache.own.keep(own, context.slots))
        elif cache is not None:
            assert context.index is not None
            own = cache.own.write(own, context.index)
            cache = cache._replace(own=own)
        cached = cache is not None
        h = self.attention.attend(
            h, own, mask=mask, bias=context.bias, rotate=rotate, structure=structure, cached=cached
        )
        x = self.post("attention", h, x)
        if self.cross:
            h = self.pre("cross_attention", x)
            memory = self.memory_key_value(None, None, None, context)[1] if cache is None else cache.memory
            assert memory is not None
            structure = context.memory_structure
            h = self.cross_attention.attend(h, memory, mask=context.memory_mask, structure=structure, cached=cached)
            x = self.post("cross_attention", h, x)
        x = self.post("feed_forward", self.feed_forward(self.pre("feed_forward", x)), x)
        self.sow("intermediates", "output", x)
        return x, cache

    def rotate(
        self, heads: Float[Array, "B T N H"], is_local: Bool[Array, ""] | None, context: LayerContext
    ) -> Float[Array, "B T N H"]:
        """The heads of queries or keys, rotated by their positions, by the scheme of this layer."""
        assert context.positions is not None
        rotated = self.config.positions.rotate(heads, context.positions)
        window = self.config.sliding_window
        if is_local is None or window is None or window.positions is None:
            return rotated
        return jnp.where(is_local, window.positions.rotate(heads, context.positions), rotated)

    def memory_key_value(
        self, carry: None, cache: None, is_local: None, context: LayerContext
    ) -> tuple[None, KeyValue]:
        """What cross-attention needs of the memory: decoding asks once a sentence. Shaped like `__call__`, for the scan."""
        assert context.memory is not None
        return carry, self.cross_attention.key_value(context.memory)

    def pre(self, sublayer: str, x: Array) -> Array:
        norm = getattr(self, f"{sublayer}_pre_norm")
        return residual_commands(self, self.config.dropout, self.config.residual.pre, norm, x)

    def post(self, sublayer: str, x: Array, residual: Array) -> Array:
        norm = getattr(self, f"{sublayer}_post_norm")
        return constrain_sharding(
            residual_commands(self, self.config.dropout, self.config.residual.post, norm, x, residual), "B T D"
        )


def remat_block(remat: str, *, in_a_loop: bool) -> type[Block]:
    """The layer as the backward pass remembers it, by `model.remat`."""
    if remat == "none":
        return Block
    policy = {"full": None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}[remat]
    # Where there is no loop the compiler would find that it computes the same twice, and keep it.
    return nn.remat(Block, policy=policy, prevent_cse=not in_a_loop)


def residual_commands(
    module: nn.Module, rates: DropoutRates, commands: str, norm: Normalize, x: Array, residual: Array | None = None
) -> Array:
    """The residual commands with dropout at the rates given, by the module's random key."""

    def dropout(x: Array) -> Array:
        return apply_dropout(module, x, rates.residual_rate, rates.residual_scaling)

    return apply_commands(commands, x, residual, norm=norm, dropout=dropout)
