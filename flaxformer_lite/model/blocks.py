"""A layer of the Transformer. The alphabet is in `model/__init__.py`."""

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.model.attention import MultiHeadAttention
from flaxformer_lite.model.cache import CachedKeyValue, LayerCache
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.contexts import LayerContext
from flaxformer_lite.model.dropout import DropoutRates, apply_dropout
from flaxformer_lite.model.feed_forward import FeedForward
from flaxformer_lite.model.inputs import default_positions
from flaxformer_lite.model.masks import AttentionMask, combine_masks, mask_by_layer, own_mask, structured_mask
from flaxformer_lite.model.norms import Normalize
from flaxformer_lite.model.numerics import DTYPES
from flaxformer_lite.model.residual import apply_commands
from flaxformer_lite.parallel.sharding import constrain_sharding


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
    ) -> tuple[Float[Array, "B T D"], CachedKeyValue | None]:
        """Returns the layer's output and, with a cache, its keys and values, the new ones among them.

        is_local: whether this layer has the sliding window, where only some layers have one; None: all layers are alike.
        """
        h, filled = self.self_attention(self.pre("attention", x), cache, is_local, context)
        x = self.post("attention", h, x)
        if self.cross:
            x = self.post("cross_attention", self.memory_attention(self.pre("cross_attention", x), cache, context), x)
        x = self.post("feed_forward", self.feed_forward(self.pre("feed_forward", x)), x)
        self.sow("intermediates", "output", x)
        return x, filled

    def self_attention(
        self,
        h: Float[Array, "B T D"],
        cache: LayerCache | None,
        is_local: Bool[Array, ""] | None,
        context: LayerContext,
    ) -> tuple[Float[Array, "B T D"], CachedKeyValue | None]:
        """Returns the attention of the tokens to themselves and to the cache and, with a cache, all keys and values of it."""
        rotate = functools.partial(self.rotate, is_local=is_local, context=context)
        mask = context.mask
        if is_local is not None:
            assert context.local_mask is not None
            mask = mask_by_layer(is_local, context.local_mask, mask)
        own, filled = self.attention.key_value(h, rotate=rotate), None
        if cache is not None:
            assert context.index is not None
            new = own.by_head()
            if context.slots is None:
                filled = attended = cache.own.write(new, context.index)
            else:
                filled, attended = cache.own.write_window(new, context.slots), cache.own.concat(new)
            own = attended.by_slot()
        cached = cache is not None
        return self.attention.attend(h, own, mask=mask, bias=context.bias, rotate=rotate, cached=cached), filled

    def memory_attention(
        self, h: Float[Array, "B T D"], cache: LayerCache | None, context: LayerContext
    ) -> Float[Array, "B T D"]:
        """Returns the attention of the tokens to the memory."""
        if cache is None:
            assert context.memory is not None
            memory = self.cross_attention.key_value(context.memory)
        else:
            assert cache.memory is not None
            memory = cache.memory.by_slot()
        return self.cross_attention.attend(h, memory, mask=context.memory_mask, cached=cache is not None)

    def rotate(
        self, heads: Float[Array, "B T N H"], is_local: Bool[Array, ""] | None, context: LayerContext
    ) -> Float[Array, "B T N H"]:
        """Returns the heads of queries or keys, rotated by their positions with the scheme of this layer."""
        assert context.positions is not None
        rotated = self.config.positions.rotate(heads, context.positions)
        window = self.config.sliding_window
        if is_local is None or window is None or window.positions is None:
            return rotated
        return jnp.where(is_local, window.positions.rotate(heads, context.positions), rotated)

    def memory_key_value(
        self, carry: None, cache: None, is_local: None, context: LayerContext
    ) -> tuple[None, CachedKeyValue]:
        """Returns keys and values of the memory, once a sentence in decoding. The signature is that of `__call__`, for the scan."""
        assert context.memory is not None
        return carry, self.cross_attention.key_value(context.memory).by_head()

    def pre(self, sublayer: str, x: Array) -> Array:
        norm = getattr(self, f"{sublayer}_pre_norm")
        return residual_commands(self, self.config.dropout, self.config.residual.pre, norm, x)

    def post(self, sublayer: str, x: Array, residual: Array) -> Array:
        norm = getattr(self, f"{sublayer}_post_norm")
        return constrain_sharding(
            residual_commands(self, self.config.dropout, self.config.residual.post, norm, x, residual), "B T D"
        )


class EncoderLayer(Block):
    """A layer of an encoder by itself, for models of one's own: `EncoderLayer(config).apply(variables, x, mask=mask)`.

    Its parameters are those of one layer of a `Transformer` with these settings. Residual(pre, post) and the rotation of heads by
    `config.positions` are part of it; embeddings, addends of scores and the last norm are not.
    """

    def __call__(  # type: ignore[override]  # the stack calls a Block
        self,
        x: Float[Array, "B T D"],
        *,
        mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "#B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the layer's output.

        Args:
            mask: True: the query may attend to the key; broadcasts to `[B, N, T, T]`, such as `padding_mask(is_token)`. None: all.
            bias: added to the scores, such as that of `PositionBias`; broadcasts to `[B, N, T, T]`.
            positions: of the tokens, for rotary positions; None: 0, 1, 2, …
        """
        return self.layer(x, own_mask(mask), bias, positions, LayerContext())

    def layer(
        self,
        x: Float[Array, "B T D"],
        mask: AttentionMask,
        bias: Float[Array, "..."] | None,
        positions: Int[Array, "#B T"] | None,
        context: LayerContext,
    ) -> Float[Array, "B T D"]:
        positions = default_positions(x) if positions is None else positions
        x, _ = super().__call__(x, None, None, context._replace(mask=mask, bias=bias, positions=positions))
        return x


class DecoderLayer(EncoderLayer):
    """A layer of a decoder by itself: `EncoderLayer` with causal self-attention and, unless `cross` is False, a memory."""

    cross: bool = True

    def __call__(  # type: ignore[override]  # it reads a memory too
        self,
        x: Float[Array, "B T D"],
        memory: Float[Array, "B S D"] | None = None,
        *,
        mask: Bool[Array, "..."] | None = None,
        memory_mask: Bool[Array, "..."] | None = None,
        bias: Float[Array, "..."] | None = None,
        positions: Int[Array, "#B T"] | None = None,
    ) -> Float[Array, "B T D"]:
        """Returns the layer's output; no token sees those after it. The other arguments are those of `EncoderLayer`.

        Args:
            memory: the encoder's output; None without `cross`.
            memory_mask: as `mask`, for the memory: broadcasts to `[B, N, T, S]`.

        Raises: ValueError for a memory without `cross`, or `cross` without one.
        """
        if self.cross == (memory is None):
            given = "None" if memory is None else "given"
            raise ValueError(f"cross is {self.cross} and memory is {given}: give a memory exactly if cross is True")
        causal = structured_mask(causal_length=x.shape[1])
        own = causal if mask is None else AttentionMask(combine_masks(causal.allowed, own_mask(mask).allowed))
        return self.layer(x, own, bias, positions, LayerContext(memory=memory, memory_mask=own_mask(memory_mask)))


def remat_block(remat: str, *, in_loop: bool) -> type[Block]:
    """Returns the layer that recomputes its activations in the backward pass as `model.remat` says."""
    if remat == "none":
        return Block
    policy = {"full": None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}[remat]
    # Without a loop the compiler would merge the recomputation with the first computation, and store its result.
    return nn.remat(Block, policy=policy, prevent_cse=not in_loop)


def residual_commands(
    module: nn.Module, rates: DropoutRates, commands: str, norm: Normalize, x: Array, residual: Array | None = None
) -> Array:
    """Applies residual commands, with dropout by the module's random key."""

    def dropout(x: Array) -> Array:
        return apply_dropout(module, x, rates.residual_rate, rates.residual_scaling)

    return apply_commands(commands, x, residual, norm=norm, dropout=dropout)
