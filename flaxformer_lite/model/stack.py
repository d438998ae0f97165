"""A stack: one layer repeated, with positions and dropout below and the last norm above."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.model.blocks import Block, remat_block, residual_commands
from flaxformer_lite.model.cache import CachedKeyValue, DecodeCache, LayerCache
from flaxformer_lite.model.config import ModelConfig
from flaxformer_lite.model.contexts import LayerContext
from flaxformer_lite.model.dropout import apply_dropout
from flaxformer_lite.model.inputs import default_positions
from flaxformer_lite.model.norms import Normalize
from flaxformer_lite.model.numerics import DTYPES
from flaxformer_lite.model.positions import PositionScheme
from flaxformer_lite.parallel.sharding import constrain_sharding


class PositionEmbedding(nn.Module):
    """Module for the `embed` hook of a position scheme; holds its parameters."""

    scheme: PositionScheme

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], positions: Int[Array, "#B T"] | None = None) -> Float[Array, "B T D"]:
        return self.scheme.embed(x, default_positions(x) if positions is None else positions, self.param)


class PositionBias(nn.Module):
    """Module for the `bias` hook of a position scheme; holds its parameters."""

    scheme: PositionScheme
    num_heads: int
    causal: bool

    @nn.compact
    def __call__(self, queries: Int[Array, "#B T"], keys: Int[Array, "#B S"]) -> Float[Array, "#B N T S"] | None:
        return self.scheme.bias(queries, keys, self.num_heads, self.causal, self.param)


class Stack(nn.Module):
    """Positions, dropout, the layers, and the last residual commands. All layers are one set of parameters, `[L, …]`."""

    config: ModelConfig
    num_layers: int
    cross: bool = False
    causal: bool = False

    def setup(self) -> None:
        self.positions = PositionEmbedding(self.config.positions)
        self.position_bias = PositionBias(self.config.positions, self.config.num_heads, self.causal)
        # A loop that draws the first parameters compiles in half the time, and draws the same ones.
        unroll = 1 if self.is_initializing() else min(self.config.scan_unroll, self.num_layers)
        self.layers = nn.scan(
            remat_block(self.config.remat, in_loop=unroll < self.num_layers),
            variable_axes={"params": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(0, 0, nn.broadcast),
            length=self.num_layers,
            unroll=unroll,
            methods=["__call__", "memory_key_value"],
        )(self.config, self.cross)
        self.embedding_norm = Normalize(self.config.norm)
        self.final_norm = Normalize(self.config.norm)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        positions: Int[Array, "#B T"],
        context: LayerContext,
        cache: DecodeCache | None = None,
    ) -> tuple[Float[Array, "B T D"], DecodeCache | None]:
        x = constrain_sharding(self.positions(x, positions), "B T D")
        bias = self.position_bias(positions, positions if context.key_positions is None else context.key_positions)
        if bias is not None:
            context = context._replace(bias=bias if context.bias is None else context.bias + bias)
        context = context._replace(positions=positions)
        x = self.embedding_norm(x) if self.config.embedding_norm else x
        self.sow("intermediates", "embedded", x)
        x = apply_dropout(self, x, self.config.dropout.embedding_rate)
        window = self.config.sliding_window if self.causal else None
        some = None if window is None else window.layers
        is_local = None if some is None else jnp.asarray([i in some for i in range(self.num_layers)])
        if cache is None:
            x, _ = self.layers(x, None, is_local, context)
        else:
            x, cache = self.one_by_one(x, cache, is_local, context)
        return residual_commands(self, self.config.dropout, self.config.residual.final, self.final_norm, x), cache

    def one_by_one(
        self, x: Float[Array, "B T D"], cache: DecodeCache, is_local: Bool[Array, "L"] | None, context: LayerContext
    ) -> tuple[Float[Array, "B T D"], DecodeCache]:
        """Returns the last layer's output and the cache with the new keys and values, without a loop over the layers.

        A loop would copy each layer's cache from the array of all.
        """
        block, filled = Block(self.config, self.cross, parent=None), []
        layers = self.layers.variables["params"]
        for i, layer in enumerate(cache):
            params = jax.tree.map(lambda x, i=i: x[i], layers, is_leaf=lambda x: isinstance(x, tuple))
            x, own = block.apply({"params": params}, x, layer, None if is_local is None else is_local[i], context)
            assert isinstance(own, CachedKeyValue)
            filled.append(layer._replace(own=own))
        return x, tuple(filled)

    def start_cache(self, memory: Float[Array, "B S D"] | None, room: int, batch: int) -> DecodeCache:
        """Returns a cache with the keys and values of the memory, and with `room` empty slots (zeros) for the decoder's own."""
        c = self.config
        heads = c.attention.heads(c.d_model, c.num_heads)
        sizes = (heads.d_key, heads.d_value)
        own = CachedKeyValue(*(jnp.zeros((batch, heads.num_kv_heads, room, h), DTYPES[c.dtype]) for h in sizes))
        if memory is None:
            return (LayerCache(own=own, memory=None),) * self.num_layers
        _, memory_kv = self.layers.memory_key_value(None, None, None, LayerContext(memory=memory))
        each = (jax.tree.map(lambda x, i=i: x[i], memory_kv) for i in range(self.num_layers))
        return tuple(LayerCache(own=own, memory=one) for one in each)
