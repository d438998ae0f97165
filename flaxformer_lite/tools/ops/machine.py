"""The facts that `doctor` shows about this machine: versions, devices, extras, caches, and two timings."""

import importlib.metadata
import os
import platform
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flaxformer_lite.base import hardware
from flaxformer_lite.base.remote_files import cache_root, describe_error, is_url
from flaxformer_lite.tools.ops.diagnosis import EXTRAS, PLUGINS, Device, Facts

if TYPE_CHECKING:
    import jax

PACKAGES = (
    *("flaxformer-lite", "jax", "jaxlib", *PLUGINS, "libtpu", "flax", "optax", "orbax-checkpoint", "numpy"),
    *("pydantic", "tyro", "rich", "sentencepiece", "tokenizers", "safetensors", "ctranslate2"),
    *EXTRAS.values(),
)
"""Distributions whose versions are shown, if they are installed."""
VARIABLES = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")
"""Environment variables that hide devices from JAX."""


def collect(*, timing: bool) -> Facts:
    """Returns the facts of this machine; everything that fails on a broken installation is one of them."""
    gpus, tpu = tuple(hardware.nvidia_gpus()), hardware.has_tpu()
    machine: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "versions": hardware.installed_versions(PACKAGES),
        "libtpu_wanted": libtpu_wanted(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "gpus": gpus,
        "tpu": tpu,
    }
    try:
        import jax

        devices = jax.devices()
    except (ImportError, RuntimeError, AttributeError) as error:
        return Facts(**machine, errors={"import": describe_error(error)})
    kinds = {device.platform for device in devices}
    wanted = [name for name, there in (("gpu", bool(gpus)), ("tpu", tpu)) if there and name not in kinds]
    return Facts(
        **machine,
        devices=tuple(Device(d.platform, d.device_kind, memory_of(d)) for d in devices),
        errors={name: error for name in wanted if (error := backend_error(name))},
        caches=caches(jax.config.jax_compilation_cache_dir),  # type: ignore[attr-defined]
        timings=timings() if timing else {},
    )


def libtpu_wanted() -> str | None:
    """Returns the version of libtpu that the extra `tpu` of this JAX asks for."""
    try:
        required = importlib.metadata.requires("jax") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((found[1] for line in required if (found := re.match(r"libtpu==([\w.*]+)", line))), None)


def backend_error(name: str) -> str:
    """Returns why JAX has no such devices, in its own words."""
    import jax

    try:
        jax.devices(name)
    except RuntimeError as error:
        return describe_error(error)
    return ""


def memory_of(device: "jax.Device") -> int | None:
    """Returns the bytes that JAX may use on a device."""
    return (device.memory_stats() or {}).get("bytes_limit")


def caches(programs: str | None) -> dict[str, tuple[str, int | None] | None]:
    """Returns the caches that are there: compiled programs, copies of runs at URLs, models of the hub."""
    found: dict[str, tuple[str, int | None] | None] = {"compile cache": None}
    if programs is not None:
        found["compile cache"] = (programs, None if is_url(programs) else files_bytes(Path(programs)))
    runs = [path for path in cache_root().glob("*") if path.name != "programs"]
    if runs:
        found["copies of runs"] = (str(cache_root()), sum(map(files_bytes, runs)))
    from huggingface_hub import constants

    if (hub := Path(constants.HF_HUB_CACHE)).is_dir():
        found["models of the hub"] = (str(hub), files_bytes(hub))
    return found


def files_bytes(path: Path) -> int:
    """Returns the size of all files in a folder, without links to them; of a file its own."""
    files = (file for file in (path, *path.rglob("*")) if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files)


def timings() -> dict[str, str]:
    """Returns the speed of a matrix product, and the time to compile a small attention and its gradient, on the first device."""
    import jax
    import jax.numpy as jnp

    size, repeats = (1024, 8) if jax.default_backend() == "cpu" else (8192, 8)
    dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"

    def attention(x: Any) -> Any:
        return jnp.sum(jax.nn.softmax(x @ x.T) @ x)

    start = time.perf_counter()
    jax.jit(jax.grad(attention)).lower(jnp.ones((64, 16))).compile()
    compiling = time.perf_counter() - start
    matrix = jnp.ones((size, size), dtype)
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    start = time.perf_counter()
    for _ in range(repeats):
        answer = product(matrix, matrix)
    answer.block_until_ready()
    speed = repeats * 2 * size**3 / (time.perf_counter() - start)
    return {
        "matrix product": f"{speed / 1e9:,.0f} GFLOP/s ({size} x {size}, {dtype})",
        "compilation": f"{compiling:.2f} s (an attention and its gradient)",
    }
