"""Attention kernels: scores, softmax and the sum of values in one program that never holds all scores.

`choose` says what computes an attention. A kernel that is named and cannot do what is asked says why; `auto` passes on to xla,
the formula as it is written in `attention.py`. The table of who can do what is in `docs/kernels.md`.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from flaxformer_lite.model.masks import ByLayer, MaskStructure
from flaxformer_lite.parallel.sharding import ROW_AXES

Implementation = Literal["auto", "xla", "cudnn", "splash"]

HEADS = "tensor"
"""The axis of a mesh over which heads are divided."""
SPLASH_BLOCK = 128
"""Splash works on blocks of that many queries and keys, or of a multiple; other lengths are padded."""
SPLASH_SHORTEST = 256
"""Below this many queries or keys `auto` stays with xla on a TPU: the scores are then too few for blocks to pay."""


class AttentionCall(NamedTuple):
    """What an attention has to compute, and from what."""

    query: Float[Array, "B T N H"]
    key: Float[Array, "B S K H"]
    value: Float[Array, "B S K Hv"]
    scale: float
    soft_cap: float | None = None
    mask: Bool[Array, "..."] | None = None
    structure: MaskStructure | ByLayer | None = MaskStructure()
    """What the mask is made of; None: unknown, there is only the array."""
    bias: bool = False
    """Whether something is added to the scores."""
    excludes: bool = True
    """Whether a masked key has weight 0 exactly."""
    drops: bool = False
    """Whether attention weights are dropped out."""
    shows: bool = False
    """Whether somebody wants to see the attention weights."""

    @property
    def dtype(self) -> Any:
        return self.query.dtype


Kernel = Callable[[AttentionCall], Float[Array, "B T N Hv"]]
PICKED: dict[str, bool] = {}
"""What `auto` has picked in this process, in words, and whether that has been told."""


def choose(implementation: Implementation, asked: AttentionCall) -> Kernel | None:
    """The kernel for what is asked; None is xla.

    Raises: ValueError where the kernel that is named cannot do it.
    """
    if implementation == "xla":
        return None
    device = platform()
    if implementation != "auto":
        if (reason := unsupported_reason(implementation, asked, device)) is not None:
            raise ValueError(
                f"model.attention.implementation is '{implementation}', but {reason}: change that, or set the implementation "
                "to 'auto' or 'xla'"
            )
        return checked_kernel(implementation)
    fitting = {"gpu": "cudnn", "tpu": "splash"}.get(device)
    if fitting is None:
        picked, reason = "xla", f"the device is a {device}"
    elif (reason := unsupported_reason(fitting, asked, device) or auto_skips(fitting, asked)) is not None:
        picked, reason = "xla", f"not {fitting}, since {reason}"
    else:
        picked, reason = fitting, f"the device is a {device}"
    PICKED.setdefault(f"attention by {picked}: {reason}", False)
    return KERNELS.get(picked)


def news() -> list[str]:
    """What `auto` has picked and nobody has been told."""
    untold = [line for line, told in PICKED.items() if not told]
    PICKED.update(dict.fromkeys(untold, True))
    return untold


def unsupported_reason(name: str, asked: AttentionCall, device: str) -> str | None:
    """What that kernel cannot do of what is asked, in words; None: it can do all."""
    common = [
        (asked.drops, f"{name} has no dropout, and model.dropout.attention_rate is not 0"),
        (asked.bias, f"{name} adds no bias to the scores, as ALiBi, relative positions and `source_bias` do"),
        (not asked.excludes, f"{name} leaves masked keys out, and model.attention.masking is another way"),
        (asked.shows, f"{name} never has the attention weights, which are asked for"),
    ]
    own = {"cudnn": cudnn_refusals, "splash": splash_refusals}[name](asked, device)
    return next((reason for refused, reason in [*own, *common] if refused), None)


def auto_skips(name: str, asked: AttentionCall) -> str | None:
    """Why `auto` does not take a kernel that could do what is asked."""
    if name != "splash":
        return None
    if (length := min(asked.query.shape[1], asked.key.shape[1])) < SPLASH_SHORTEST and not INTERPRETED:
        return f"{length} queries or keys are fewer than {SPLASH_SHORTEST}"
    if jax.sharding.get_abstract_mesh().empty and jax.device_count() > 1:
        return "there are several devices, and no mesh is set that says how they share the heads and rows"
    return None


def platform() -> str:
    """Where the program will run: on what the mesh is made of, or on the default device."""
    if INTERPRETED:
        return "tpu"
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    name = jax.default_backend() if device is None else device.platform or jax.default_backend()
    return "gpu" if name in ("cuda", "rocm") else name


# A kernel that is named is in the program ------------------------------------------------------------------------------

MARKS = {"cudnn": "dot_product_attention_fwd", "splash": "splash_mha_fwd"}
"""What a kernel's primitive, or the kernel that the primitive calls, has in its name."""


def checked_kernel(name: str) -> Kernel:
    """That kernel, which fails where the program turns out to be without it: libraries may fall back on something else."""

    def kernel(asked: AttentionCall) -> Float[Array, "B T N Hv"]:
        found = kernels_in(
            jax.make_jaxpr(lambda q, k, v: KERNELS[name](asked._replace(query=q, key=k, value=v)))(*asked[:3])
        )
        if name not in found:
            raise AssertionError(f"model.attention.implementation is '{name}', but the program has no such kernel")
        return KERNELS[name](asked)

    return kernel


def kernels_in(program: Any) -> list[str]:
    """The kernels that a jaxpr calls, at any depth, a name for each call."""
    found = []
    for equation in program.eqns:
        words = f"{equation.primitive.name} {equation.params.get('name', '')} {equation.params.get('name_and_src_info', '')}"
        inner = [x for x in jax.tree.leaves(list(equation.params.values())) if hasattr(x, "eqns")]
        calls = [name for name, mark in MARKS.items() if mark in words]
        found += calls or [name for part in inner for name in kernels_in(part)]
    return found


# cuDNN -----------------------------------------------------------------------------------------------------------------


def cudnn_refusals(asked: AttentionCall, device: str) -> list[tuple[bool, str]]:
    width, longest = asked.query.shape[-1], 256 if compute_capability() >= 9 else 128
    odd = asked.query.shape[1] % 2 or asked.key.shape[1] % 2
    return [
        (device != "gpu" or compute_capability() == 0, f"cudnn is for NVIDIA GPUs, and the device is a {device}"),
        (
            asked.dtype not in (jnp.bfloat16, jnp.float16),
            f"cudnn computes in bfloat16, and model.dtype is {asked.dtype}",
        ),
        (asked.soft_cap is not None, f"cudnn has no soft cap, and model.attention.soft_cap is {asked.soft_cap}"),
        (asked.value.shape[-1] != width, "cudnn wants model.attention.d_value to be as d_key"),
        (
            width % 8 != 0 or width > longest,
            f"cudnn wants heads of a multiple of 8 up to {longest} here, and they are {width}",
        ),
        (bool(odd) and not flagged(asked), "cudnn wants even lengths where there is padding or packing"),
    ]


def compute_capability() -> float:
    """Of the first GPU; 0 where there is none by NVIDIA."""
    try:
        return float(jax.devices("gpu")[0].compute_capability)
    except (RuntimeError, ValueError, AttributeError):
        return 0.0


def flagged(asked: AttentionCall) -> bool:
    """Whether the mask is causal, with a window or without, or none, so that cuDNN needs no array of it."""
    return isinstance(asked.structure, MaskStructure) and asked.structure.keys is None


def cudnn(asked: AttentionCall, implementation: Literal["cudnn", "xla"] = "cudnn") -> Float[Array, "B T N H"]:
    """By `jax.nn.dot_product_attention`. Padding and packing go in as an array `[B, 1, T, S]` in the narrow type."""
    arguments: dict[str, Any] = {}
    if flagged(asked):
        structure = asked.structure
        assert isinstance(structure, MaskStructure)
        window = None if structure.window is None else (structure.window - 1, 0)
        arguments = {"is_causal": structure.causal, "local_window_size": window}
    elif asked.mask is not None:
        shape = (*jnp.broadcast_shapes(asked.mask.shape, (1, 1, 1, 1))[:2], asked.query.shape[1], asked.key.shape[1])
        arguments = {"mask": jnp.broadcast_to(asked.mask, shape)}
    mixed = jax.nn.dot_product_attention(*asked[:3], scale=asked.scale, implementation=implementation, **arguments)
    if "mask" not in arguments:
        return mixed
    assert asked.mask is not None
    return jnp.where(asked.mask.any(-1).swapaxes(1, 2)[..., None], mixed, 0)


# Splash ----------------------------------------------------------------------------------------------------------------

INTERPRETED: list[None] = []


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Within, Splash runs on any device, interpreted: right, and very slow. For tests."""
    INTERPRETED.append(None)
    try:
        yield
    finally:
        INTERPRETED.pop()


def splash_refusals(asked: AttentionCall, device: str) -> list[tuple[bool, str]]:
    return [
        (device != "tpu", f"splash is for TPUs, and the device is a {device}"),
        (
            asked.dtype not in (jnp.bfloat16, jnp.float32),
            f"splash computes in float32 at most, and model.dtype is {asked.dtype}",
        ),
        (asked.structure is None, "splash wants to know what a mask is made of, and `target_attention` is an array"),
    ]


def splash(asked: AttentionCall) -> Float[Array, "B T N Hv"]:
    """By the Pallas kernel that comes with JAX, on each device's own rows and heads.

    Reference: the block-sparse form of Dao et al. 2022, arXiv:2205.14135.
    """
    structure = asked.structure
    assert structure is not None
    if isinstance(structure, ByLayer):
        return jax.lax.cond(
            structure.is_local,
            lambda: splash(asked._replace(structure=structure.local)),
            lambda: splash(asked._replace(structure=structure.other)),
        )
    q, k, v = (x.swapaxes(1, 2) for x in asked[:3])
    q, k, v = padded(q * jnp.asarray(asked.scale, q.dtype)), padded(k), padded(v)
    segments = splash_segments(asked, structure, q.shape[2], k.shape[2])

    def of_rows(
        q: Float[Array, "B N T H"], k: Float[Array, "B K S H"], v: Float[Array, "B K S Hv"], segments: Any
    ) -> Float[Array, "B N T Hv"]:
        kernel = splash_kernel(structure, asked.soft_cap, q.shape[1], q.shape[2], k.shape[2])
        return jax.vmap(kernel)(q, k, v, segments)

    mixed = on_each_device(of_rows, asked)(q, k, v, segments)[:, :, : asked.query.shape[1]].swapaxes(1, 2)
    return mixed if structure.answered is None else jnp.where(structure.answered[..., None, None], mixed, 0)


def padded(x: Float[Array, "B N T H"]) -> Float[Array, "B N U H"]:
    """Zeros up to a whole number of blocks."""
    return jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % SPLASH_BLOCK), (0, 0)))


def splash_segments(
    asked: AttentionCall, structure: MaskStructure, num_queries: int, num_keys: int
) -> splash_attention_kernel.SegmentIds | None:
    """The numbers of queries and keys, where they matter: what is added in the padding is nobody's.

    Without numbers no query sees the keys added after the last one where the mask is causal.
    """
    (batch, length, _, _), room = asked.query.shape, asked.key.shape[1]
    if structure.keys is None and (structure.causal or room == num_keys):
        return None

    def numbers(given: Int[Array, "B T"] | None, length: int, room: int, nobody: int) -> Int[Array, "B U"]:
        given = jnp.ones((batch, length), jnp.int32) if given is None else given
        return jnp.pad(given, ((0, 0), (0, room - length)), constant_values=nobody)

    queries = numbers(structure.queries, length, num_queries, -1)
    return splash_attention_kernel.SegmentIds(queries, numbers(structure.keys, room, num_keys, 0))


def splash_kernel(
    structure: MaskStructure, soft_cap: float | None, num_heads: int, num_queries: int, num_keys: int
) -> Callable[..., Array]:
    """The kernel of one row, `[N, T, H]`, `[K, S, H]` and `[K, S, Hv]` to `[N, T, Hv]`."""
    shape = (num_queries, num_keys)
    mask: splash_attention_mask.Mask = splash_attention_mask.FullMask(shape)
    if structure.causal and structure.window is not None:
        mask = splash_attention_mask.LocalMask(shape, (structure.window - 1, 0), 0)
    elif structure.causal:
        mask = splash_attention_mask.CausalMask(shape)
    of_queries, of_keys = (next(b for b in (512, 384, 256, 128) if n % b == 0) for n in shape)
    blocks = splash_attention_kernel.BlockSizes(
        block_q=of_queries,
        block_kv=of_keys,
        block_q_dkv=of_queries,
        block_kv_dkv=of_keys,
        block_q_dq=of_queries,
        block_kv_dq=of_keys,
    )
    return splash_attention_kernel.make_splash_mha(
        splash_attention_mask.MultiHeadMask([mask] * num_heads),
        block_sizes=blocks,
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=soft_cap,
        interpret=bool(INTERPRETED),
    )


def on_each_device(function: Callable[..., Array], asked: AttentionCall) -> Callable[..., Array]:
    """The function on the rows and heads that each device of the mesh has: the compiler cannot divide a Pallas kernel by itself.

    An axis that does not divide them is left out: its devices then all do the same.
    """
    mesh = jax.sharding.get_abstract_mesh()
    automatic = {name for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Auto}
    if not automatic:
        return function
    rows, rest = [], asked.query.shape[0]
    for axis in ROW_AXES:
        if axis in automatic and rest % mesh.shape[axis] == 0:
            rows.append(axis)
            rest //= mesh.shape[axis]
    split = HEADS in automatic and asked.key.shape[2] % mesh.shape[HEADS] == 0
    heads = PartitionSpec(tuple(rows), HEADS if split else None)
    specs = (heads, heads, heads, PartitionSpec(tuple(rows)))
    return jax.shard_map(function, in_specs=specs, out_specs=heads, axis_names=automatic, check_vma=False)


KERNELS: dict[str, Kernel] = {"cudnn": cudnn, "splash": splash}
