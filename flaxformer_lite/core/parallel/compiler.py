"""Options of XLA, the compiler of every step, by the kind of device."""

import functools
import re
from dataclasses import dataclass, fields

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from flaxformer_lite.core.base.accelerators import TPUS
from flaxformer_lite.core.base.bounds import Checked
from flaxformer_lite.core.parallel.sharding import replicated

QUICK = (("xla_backend_optimization_level", "1"), ("xla_cpu_use_fusion_emitters", "False"))
"""Options with which a CPU compiles a model in half the time, to a program that is as fast. An optimizer's update would be slower,
and so would a model with only the first option."""


@dataclass(frozen=True, kw_only=True)
class CompilerOptions(Checked, at="train.compiler_options"):
    """Options of XLA for the train and the evaluation step, each NAME=VALUE, by the kind of device that they are compiled for.

    A compiler gets only the options of its own kind of device.
    """

    cpu: tuple[str, ...] | None = None
    """Options on CPUs; (): XLA's own. None: for all but the optimizer's update xla_backend_optimization_level=1 and
    xla_cpu_use_fusion_emitters=False, which halve the time of compiling, if XLA has both (that of JAX 0.12 has not)."""
    gpu: tuple[str, ...] = ()
    """Options on GPUs, such as xla_gpu_enable_triton_gemm=False."""
    v4: tuple[str, ...] = ()
    """Options on TPU v4."""
    v5e: tuple[str, ...] = ()
    """Options on TPU v5e."""
    v5p: tuple[str, ...] = ()
    """Options on TPU v5p."""
    v6e: tuple[str, ...] = (
        "xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",
        "xla_enable_async_all_gather=true",
        "xla_tpu_enable_async_collective_fusion=true",
        "xla_tpu_enable_async_collective_fusion_multiple_steps=true",
        "xla_tpu_overlap_compute_collective_tc=true",
    )
    """Options on TPU v6e. By default parameters are gathered whole: products with parts of them would keep their partial sums in
    HBM. With two rows of 2,048 tokens a chip, or fewer, () is faster."""
    tpu7x: tuple[str, ...] = ()
    """Options on TPU7x."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in fields(self):
            words = getattr(self, field.name) or ()
            names = [word.partition("=")[0] for word in words]
            for word, name in zip(words, names, strict=True):
                if not re.fullmatch(r"\w+=\S+", word) or names.count(name) > 1:
                    raise ValueError(
                        f"{self._path}.{field.name} has {word!r}: it must be NAME=VALUE, each name once, such as "
                        "xla_tpu_scoped_vmem_limit_kib=65536"
                    )

    def of(self, mesh: Mesh, *, update: bool = False) -> dict[str, str]:
        """Returns the options for the devices of a mesh, by name. update: only those for an optimizer's update.

        Raises: ValueError for a name or a value that their compiler does not know.
        """
        device = mesh.devices.flat[0]
        kind = TPUS.get(device.device_kind, device.platform)
        words = getattr(self, kind, ())
        if words is None:
            return {} if update else quick_options(mesh)
        options = dict(word.split("=", 1) for word in words)
        reason = refused_options(tuple(options.items()), mesh)
        if reason is not None:
            raise ValueError(
                f"{self._path}.{kind} is {', '.join(words)}, which the compiler refuses ({reason}): correct the name or the value "
                "(True and False for switches), or leave it out"
            )
        return options


def quick_options(mesh: Mesh) -> dict[str, str]:
    """Returns the options of `QUICK` where the devices of a mesh are CPUs and their compiler knows all of them, else none.

    None either under `JAX_DISABLE_MOST_OPTIMIZATIONS`, which compiles more quickly still.
    """
    asked = mesh.devices.flat[0].platform == "cpu" and not jax.config.read("jax_disable_most_optimizations")
    return dict(QUICK) if asked and refused_options(QUICK, mesh) is None else {}


@functools.cache
def refused_options(options: tuple[tuple[str, str], ...], mesh: Mesh) -> str | None:
    """Returns the reason why the compiler of a mesh refuses the options, found by compiling the smallest program once."""
    nothing = jax.ShapeDtypeStruct((), jnp.float32, sharding=replicated(mesh))
    try:
        if options:
            jax.jit(lambda x: x, compiler_options=dict(options)).lower(nothing).compile()
    except jax.errors.JaxRuntimeError as error:
        return str(error).splitlines()[0]
    return None
