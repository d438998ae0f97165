"""The choice of the devices of a `Placement`: as a setting says, or the fewest devices of a group whose memory suffices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh
from jaxtyping import PyTree

from flaxformer_lite.core.model import ModelConfig, Transformer
from flaxformer_lite.core.model.config import check_heads
from flaxformer_lite.core.model.layers import rounded_shapes
from flaxformer_lite.core.model.transformer import parameter_shapes
from flaxformer_lite.core.parallel import MeshConfig, make_mesh
from flaxformer_lite.core.parallel.sharding import (
    MESH_AXES,
    padded_vocabulary,
    parameter_sharding,
    shard_bytes,
    with_shardings,
)
from flaxformer_lite.core.placement.placement import ONE_DEVICE, Placement
from flaxformer_lite.core.search.decoder import Decoder
from flaxformer_lite.core.search.search import grow_cache
from flaxformer_lite.core.search.settings import DecodeConfig

GIB = 2**30
USABLE = 0.9
"""The share of a device's memory that is planned for; the rest is for the temporaries of a step."""


class TooLarge(ValueError):
    """A model that no group of the devices holds; the message has the figures, and the caller adds the remedy."""


@dataclass(frozen=True)
class Workload:
    """Models that answer together, their settings, and the type of their weights: all that devices have to hold."""

    models: tuple[ModelConfig, ...]
    decode: DecodeConfig
    longest: int
    """Tokens of the longest source or prompt."""
    weights_dtype: str = "float32"

    def divided_by(self, tensor: int) -> str:
        """Returns why `tensor` devices cannot divide a model; "" if they can."""
        mesh = group_of(tensor)
        try:
            for model in self.models:
                check_heads(model, mesh)
                parameter_sharding(padded_vocabulary(parameter_shapes(model), tensor), mesh)
        except ValueError as error:
            return str(error)
        return ""

    def parameter_bytes(self, tensor: int) -> int:
        """Returns the bytes of the parameters on each of `tensor` devices that divide them."""
        return sum(shard_bytes(self.parameters(model, group_of(tensor))) for model in self.models)

    def parameters(self, model: ModelConfig, mesh: Mesh | AbstractMesh) -> PyTree:
        """Returns shapes, types and shardings of a model's parameters on a mesh."""
        shapes = padded_vocabulary(parameter_shapes(model), mesh.shape["tensor"])
        return with_shardings(rounded_shapes(shapes, self.weights_dtype), parameter_sharding(shapes, mesh))

    def search_bytes(self) -> int:
        """Returns the bytes of the largest batch of a search, on all devices of a group: its state and three times its logits.

        Batches of short sources have more rows. A cache grows by half of its last size, and both are there then.
        """
        if any(model.num_decoder_layers == 0 for model in self.models):
            return 0
        decoder = Decoder(tuple(Transformer(model) for model in self.models), self.decode)
        lengths = {2**power for power in range(3, self.longest.bit_length())} | {self.longest}
        return max(self.batch_bytes(decoder, length) for length in lengths)

    def batch_bytes(self, decoder: Decoder, length: int) -> int:
        """Returns the bytes of the largest batch of sources of a length."""
        inputs, settings = decoder.largest_inputs(self.decode.batch_tokens, [0] * length)
        variables = [{"params": parameter_shapes(model)} for model in self.models]
        _, state = jax.eval_shape(
            lambda variables, inputs: decoder.search.start_rows(variables, inputs, settings), variables, inputs
        )
        capacity = decoder.search.capacity(inputs, settings, settings.max_new_tokens)
        cache = jax.eval_shape(lambda cache: grow_cache(cache, capacity), state.cache)
        logits = (
            len(inputs.tokens)
            * settings.config.beam_size
            * self.models[0].output_size
            * jnp.dtype(jnp.float32).itemsize
        )
        return tree_bytes(state._replace(cache=cache)) + tree_bytes(cache) // 2 + 3 * logits


def group_of(tensor: int) -> AbstractMesh:
    """Returns the mesh of one group of devices."""
    return AbstractMesh((1, 1, tensor), MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def tree_bytes(tree: PyTree) -> int:
    """Returns the bytes of all arrays of a tree."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def memory_of(device: Any) -> int | None:
    """Returns the bytes of memory that JAX may use on a device; None: unknown, as of a CPU."""
    stats = device.memory_stats() if device.platform != "cpu" else None
    limit: int | None = (stats or {}).get("bytes_limit")
    return limit


def device_groups(
    workload: Workload,
    mesh: MeshConfig | None = None,
    devices: Sequence[object] | None = None,
    memory: int | None = None,
) -> Placement:
    """Returns the groups of devices, by default of all local ones.

    mesh: devices of `fsdp` join those of `tensor` as far as the heads of keys and the widths allow; the others answer rows of their
    own. None: the fewest devices of a group that have the memory. memory: bytes of a device; None: as JAX says.

    Raises: ValueError if the mesh does not divide the devices or the model; TooLarge if no group has the memory.
    """
    devices = jax.local_devices() if devices is None else devices
    if mesh is None:
        tensor = smallest_tensor(workload, len(devices), memory or memory_of(devices[0]))
    else:
        _, fsdp, tensor = mesh.shape(len(devices))
        reason = workload.divided_by(tensor)
        if reason:
            raise ValueError(reason)
        joining = (n for n in divisors(fsdp) if n == 1 or not workload.divided_by(tensor * n))
        tensor *= max(joining)
    if len(devices) == 1:
        return ONE_DEVICE
    return Placement(make_mesh(MeshConfig(tensor=tensor), devices))


def smallest_tensor(workload: Workload, num_devices: int, memory: int | None) -> int:
    """Returns the fewest devices of a group that hold the model and the largest batch; 1 if their memory is not known.

    Raises: TooLarge with the figures if no group of these devices does.
    """
    if num_devices == 1 or memory is None:
        return 1
    of_search = workload.search_bytes()
    needed = {
        tensor: workload.parameter_bytes(tensor) + of_search // tensor
        for tensor in divisors(num_devices)
        if tensor == 1 or not workload.divided_by(tensor)
    }
    fitting = [tensor for tensor, size in needed.items() if size <= USABLE * memory]
    if not fitting:
        least = min(needed, key=lambda tensor: needed[tensor])
        raise TooLarge(
            f"the model does not fit: with train.mesh.tensor {least} of {num_devices} devices a device needs "
            f"{needed[least] / GIB:.2f} GiB, {workload.parameter_bytes(least) / GIB:.2f} of them for parameters, and "
            f"{USABLE * memory / GIB:.2f} of its {memory / GIB:.2f} GiB are for both"
        )
    return min(fitting)


def divisors(number: int) -> list[int]:
    """Returns the divisors of a number, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]
