"""Fused attention kernels: scores, softmax and the sum of values in one program that never stores all scores.

`choose_kernel` returns what computes an attention. A kernel that is named and does not support the call is refused, with the
reason; `auto` then uses xla, the formula in `attention.py`. `docs/kernels.md` has the table of what each kernel supports.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.core.base.accelerators import AMPERE
from flaxformer_lite.core.base.bounds import Checked
from flaxformer_lite.core.model.masks import ByLayer, MaskStructure
from flaxformer_lite.core.parallel.sharding import ROW_AXES

if TYPE_CHECKING:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

Implementation = Literal["auto", "xla", "cudnn", "splash"]
BlockSize = Literal[128, 256, 384, 512, 1024, 2048]


@dataclass(frozen=True, kw_only=True)
class SplashBlocks(Checked, at="model.attention.splash"):
    """The blocks of scores that Splash computes at a time, and its backward pass. Answers stay the same up to rounding."""

    queries: BlockSize = 512
    """Most queries of a block. It gets the largest size up to this that divides the queries, which are padded to 128."""
    keys: BlockSize = 512
    """Most keys of a block. Larger blocks are fewer, but fewer of them are masked as a whole and skipped."""
    fused_backward: bool = False
    """Compute the gradients of queries, keys and values in one pass over the blocks, 5 products each in place of 7. Takes memory
    for the gradient of the queries once for each block of keys."""


HEADS_AXIS = "tensor"
"""The mesh axis that divides heads."""
SPLASH_BLOCK = 128
"""Block size of Splash, in queries and keys: blocks are a multiple of it, and other lengths are padded."""
SPLASH_SHORTEST = 256
"""Fewest queries and keys for which `auto` uses Splash: with fewer, blocks save nothing."""


class AttentionCall(NamedTuple):
    """The arguments of one attention, and what it requires of a kernel."""

    query: Float[Array, "B T N H"]
    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K Hv"]
    scale: float
    soft_cap: float | None = None
    mask: Bool[Array, "..."] | None = None
    structure: MaskStructure | ByLayer | None = MaskStructure()
    """The parts that the mask is made of; None: unknown, there is only the array."""
    has_bias: bool = False
    """A bias is added to the scores."""
    hard_mask: bool = True
    """A masked key has weight 0 exactly."""
    has_dropout: bool = False
    """Attention weights are dropped out."""
    needs_weights: bool = False
    """The caller reads the attention weights."""
    plain_softmax: bool = True
    """The weights are the softmax of the scaled product, and the answer is their sum of values."""
    blocks: SplashBlocks = SplashBlocks()
    """The blocks of Splash."""

    @property
    def dtype(self) -> Any:
        return self.query.dtype


Kernel = Callable[[AttentionCall], Float[Array, "B T N Hv"]]


class KernelChoice(NamedTuple):
    """The program that computes an attention, with the reason for it."""

    kernel: Kernel | None
    """None: no fused kernel, the formula in `attention.py` (xla)."""
    name: Literal["xla", "cudnn", "splash"]
    reason: str | None
    """None: the device, a CPU, leaves no choice, and no setting names a program."""

    def __str__(self) -> str:
        how = "plain JAX operations" if self.kernel is None else f"the fused kernel '{self.name}'"
        return f"attention is computed by {how}: {self.reason}"


def choose_kernel(implementation: Implementation, call: AttentionCall) -> KernelChoice:
    """Returns the kernel for a call. Raises: ValueError where a kernel is named that does not support the call."""
    device = platform()
    named = f"model.attention.implementation is '{implementation}'"
    if implementation == "xla":
        return KernelChoice(None, "xla", named)
    if implementation != "auto":
        reason = unsupported_reason(implementation, call, device)
        if reason is not None:
            raise ValueError(f"{named}, but {reason}: change that, or set the implementation to 'auto' or 'xla'")
        return KernelChoice(KERNELS[implementation], implementation, named)
    fitting: Literal["cudnn", "splash"] | None = {"gpu": "cudnn", "tpu": "splash"}.get(device)  # type: ignore[assignment]
    if fitting is None:
        return KernelChoice(None, "xla", None)
    reason = unsupported_reason(fitting, call, device) or auto_skips(fitting, call)
    if reason is not None:
        return KernelChoice(None, "xla", f"'{fitting}' was not used, since {reason}")
    return KernelChoice(KERNELS[fitting], fitting, f"the device is a {device.upper()}")


@contextlib.contextmanager
def report_choices(report: Callable[[str], None]) -> Iterator[None]:
    """Calls `report` with each distinct choice of kernel, in words, that is made while models are traced in this context.

    Says nothing of `auto` on a CPU.
    """
    reported: set[str] = set()

    def listen(method: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> object:
        result = method(*args, **kwargs)
        if isinstance(result, KernelChoice) and result.reason is not None and str(result) not in reported:
            reported.add(str(result))
            report(str(result))
        return result

    with nn.intercept_methods(listen):
        yield


def unsupported_reason(name: str, call: AttentionCall, device: str) -> str | None:
    """Returns the first thing in a call that the kernel does not support, in words; None: it supports the call."""
    common = [
        (not call.plain_softmax, f"{name} computes softmax(scale * query key^T) only, and model.attention does not"),
        (call.has_dropout, f"{name} has no dropout, and model.dropout.attention_rate is not 0"),
        (call.has_bias, f"{name} adds no bias to the scores, as ALiBi, relative positions and `source_bias` do"),
        (not call.hard_mask, f"{name} supports model.attention.masking 'exclude' only"),
        (call.needs_weights, f"{name} never stores the attention weights, which the caller reads"),
    ]
    limits = {"cudnn": cudnn_limits, "splash": splash_limits}[name](call, device)
    return next((reason for applies, reason in [*limits, *common] if applies), None)


def auto_skips(name: str, call: AttentionCall) -> str | None:
    """Returns why `auto` does not use a kernel that supports the call; None: it uses it."""
    if name != "splash":
        return None
    length = min(call.query.shape[1], call.key.shape[1])
    if length < SPLASH_SHORTEST and not INTERPRETED:
        return f"{length} queries or keys are fewer than {SPLASH_SHORTEST}"
    if jax.sharding.get_abstract_mesh().empty and jax.device_count() > 1:
        return "there are several devices, and no mesh that divides heads and rows among them"
    return None


def platform() -> str:
    """Returns the kind of device that the program is for: the mesh's devices, else the default device."""
    if INTERPRETED:
        return "tpu"
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)  # older versions of JAX say less of it
    name = getattr(device, "platform", None) or jax.default_backend()
    return "gpu" if name in ("cuda", "rocm") else name


# cuDNN -----------------------------------------------------------------------------------------------------------------


def cudnn_limits(call: AttentionCall, device: str) -> list[tuple[bool, str]]:
    """Returns cuDNN's limits in words, each with whether the call exceeds it."""
    width = call.query.shape[-1]
    capability = compute_capability()
    longest = 256 if capability >= 9 else 128
    odd = call.query.shape[1] % 2 or call.key.shape[1] % 2
    return [
        (device != "gpu" or capability == 0, f"cudnn is for NVIDIA GPUs, and the device is a {device}"),
        (capability < AMPERE, f"cudnn needs a GPU of compute capability {AMPERE}, and this one has {capability}"),
        (call.dtype not in (jnp.bfloat16, jnp.float16), f"cudnn computes in bfloat16, and model.dtype is {call.dtype}"),
        (call.soft_cap is not None, f"cudnn has no soft cap, and model.attention.soft_cap is {call.soft_cap}"),
        (call.value.shape[-1] != width, "cudnn needs model.attention.d_value equal to d_key"),
        (
            width % 8 != 0 or width > longest,
            f"cudnn needs heads whose width is a multiple of 8, at most {longest} here, and model.attention.d_key is {width}",
        ),
        (
            bool(odd) and whole_structure(call) is None,
            "cudnn needs even lengths where there is padding, packing or a window on both sides",
        ),
    ]


def compute_capability() -> float:
    """Returns the compute capability of the first GPU; 0 without an NVIDIA GPU."""
    try:
        return float(jax.devices("gpu")[0].compute_capability)
    except (RuntimeError, ValueError, AttributeError):
        return 0.0


def whole_structure(call: AttentionCall) -> MaskStructure | None:
    """Returns the mask's parts where flags tell cuDNN all of it: a causal mask, with or without a window, or no mask.

    cuDNN has no flag for a window on both sides.
    """
    structure = call.structure
    if not isinstance(structure, MaskStructure) or (structure.window is not None and not structure.causal):
        return None
    return structure if structure.keys is None else None


def cudnn(call: AttentionCall, implementation: Literal["cudnn", "xla"] = "cudnn") -> Float[Array, "B T N H"]:
    """Computes attention by `jax.nn.dot_product_attention`; padding, packing and a window on both sides are passed as an array
    `[B, 1, T, S]`.

    A causal mask is a flag beside the array: without it cuDNN computes every block, also those after their queries.
    """
    attention = functools.partial(
        jax.nn.dot_product_attention, *call[:3], scale=call.scale, implementation=implementation
    )
    structure = whole_structure(call)
    if structure is not None:
        window = None if structure.window is None else (structure.window - 1, 0)
        return attention(is_causal=structure.causal, local_window_size=window)
    if call.mask is None:
        return attention()
    rows, heads, *_ = jnp.broadcast_shapes(call.mask.shape, (1, 1, 1, 1))
    shape = (rows, heads, call.query.shape[1], call.key.shape[1])
    parts = call.structure[1:] if isinstance(call.structure, ByLayer) else (call.structure,)
    causal = all(one is not None and one.causal for one in parts)
    mixed = attention(mask=jnp.broadcast_to(call.mask, shape), is_causal=causal)
    return jnp.where(call.mask.any(-1).swapaxes(1, 2)[..., None], mixed, 0)


# Splash ----------------------------------------------------------------------------------------------------------------

INTERPRETED = False
"""Whether Splash runs interpreted, on any device: correct and very slow. For tests."""


def splash_limits(call: AttentionCall, device: str) -> list[tuple[bool, str]]:
    """Returns Splash's limits in words, each with whether the call exceeds it."""
    return [
        (device != "tpu", f"splash is for TPUs, and the device is a {device}"),
        (
            call.dtype not in (jnp.bfloat16, jnp.float32),
            f"splash computes in bfloat16 or float32, and model.dtype is {call.dtype}",
        ),
        (
            call.structure is None,
            "splash needs a causal, window, padding or segment mask, and `target_attention` is an array",
        ),
    ]


def splash(call: AttentionCall) -> Float[Array, "B T N Hv"]:
    """Computes attention by the Pallas kernel that comes with JAX, on each device's own rows and heads.

    Reference: the block-sparse form of Dao et al. 2022, arXiv:2205.14135.
    """
    structure = call.structure
    assert structure is not None
    if isinstance(structure, ByLayer):
        return jax.lax.cond(
            structure.is_local,
            lambda: splash(call._replace(structure=structure.local)),
            lambda: splash(call._replace(structure=structure.other)),
        )
    q, k, v = (x.swapaxes(1, 2) for x in call[:3])
    q, k, v = padded(q * jnp.asarray(call.scale, q.dtype)), padded(k), padded(v)
    segments = splash_segments(call, structure, q.shape[2], k.shape[2])

    def of_rows(
        q: Float[Array, "B N T H"], k: Float[Array, "B K S H"], v: Float[Array, "B K S Hv"], segments: object
    ) -> Float[Array, "B N T Hv"]:
        kernel = splash_kernel(structure, call, q.shape[1], q.shape[2], k.shape[2])
        return jax.vmap(kernel)(q, k, v, segments)

    kind = "causal" if structure.causal else "every_key"
    if structure.window:
        kind = f"{'window' if structure.causal else 'around'}_{structure.window}"
    with jax.named_scope(f"splash_{kind}"):  # `plan` counts by this name the blocks that the kernel computes
        mixed = on_each_device(of_rows, call)(q, k, v, segments)
    mixed = mixed[:, :, : call.query.shape[1]].swapaxes(1, 2)
    return mixed if structure.answered is None else jnp.where(structure.answered[..., None, None], mixed, 0)


def padded(x: Float[Array, "B N T H"]) -> Float[Array, "B N U H"]:
    """Pads T with zeros to a whole number of blocks."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % SPLASH_BLOCK), (0, 0)))


def splash_segments(
    call: AttentionCall, structure: MaskStructure, num_queries: int, num_keys: int
) -> "splash_attention_kernel.SegmentIds | None":
    """Returns the text numbers of queries and keys, with different numbers for padded queries (-1) and keys (0).

    None where no query can see a padded key: without numbers, if the mask is causal or no key was padded.
    """
    (batch, length, _, _), room = call.query.shape, call.key.shape[1]
    if structure.keys is None and (structure.causal or room == num_keys):
        return None
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    def numbers(given: Int[Array, "B T"] | None, length: int, room: int, filler: int) -> Int[Array, "B U"]:
        given = jnp.ones((batch, length), jnp.int32) if given is None else given
        return jnp.pad(given, ((0, 0), (0, room - length)), constant_values=filler)

    queries = numbers(structure.queries, length, num_queries, -1)
    return splash_attention_kernel.SegmentIds(queries, numbers(structure.keys, room, num_keys, 0))


def largest_block(length: int, limit: int) -> int:
    """Returns the largest size of a block that divides a length, `limit` at most."""
    return max(size for size in get_args(BlockSize) if size <= limit and length % size == 0)


def splash_kernel(
    structure: MaskStructure, call: AttentionCall, num_heads: int, num_queries: int, num_keys: int
) -> Callable[..., Array]:
    """Returns the kernel for one row: `[N, T, H]`, `[K, S, H]` and `[K, S, Hv]` to `[N, T, Hv]`."""
    # Imported here: every start of the program would take a quarter of a second longer, and only TPUs have this kernel.
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    shape = (num_queries, num_keys)
    mask: splash_attention_mask.Mask = splash_attention_mask.FullMask(shape)
    if structure.window is not None:
        before = structure.window - 1
        mask = splash_attention_mask.LocalMask(shape, (before, 0 if structure.causal else before), 0)
    elif structure.causal:
        mask = splash_attention_mask.CausalMask(shape)
    most = call.blocks
    of_queries, of_keys = largest_block(num_queries, most.queries), largest_block(num_keys, most.keys)
    blocks = splash_attention_kernel.BlockSizes(
        block_q=of_queries,
        block_kv=of_keys,
        block_q_dkv=of_queries,
        block_kv_dkv=of_keys,
        block_q_dq=None if most.fused_backward else of_queries,
        block_kv_dq=None if most.fused_backward else of_keys,
        use_fused_bwd_kernel=most.fused_backward,
    )
    return splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask([mask] * num_heads),
        block_sizes=blocks,
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=call.soft_cap,
        interpret=INTERPRETED,
    )


def on_each_device(function: Callable[..., Array], call: AttentionCall) -> Callable[..., Array]:
    """Maps a function over the devices of the mesh, each with its own rows and heads: the compiler cannot divide a Pallas kernel.

    An axis that does not divide rows or heads is left out: its devices then repeat the same work.
    """
    mesh = jax.sharding.get_abstract_mesh()
    automatic = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto}
    if not automatic:
        return function
    rows = []
    rest = call.query.shape[0]
    for axis in ROW_AXES:
        if axis in automatic and rest % mesh.shape[axis] == 0:
            rows.append(axis)
            rest //= mesh.shape[axis]
    split = HEADS_AXIS in automatic and call.key.shape[2] % mesh.shape[HEADS_AXIS] == 0
    heads = PartitionSpec(tuple(rows), HEADS_AXIS if split else None)
    specs = (heads, heads, heads, PartitionSpec(tuple(rows)))
    return jax.shard_map(function, in_specs=specs, out_specs=heads, axis_names=automatic, check_vma=False)


KERNELS: dict[str, Kernel] = {"cudnn": cudnn, "splash": splash}
