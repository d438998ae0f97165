"""Diagnosis of a machine: from a record of facts to lines, and to problems with the command that mends each."""

import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from flaxformer_lite.base import hardware
from flaxformer_lite.base.hardware import AMPERE, NvidiaGPU
from flaxformer_lite.base.remote_files import cache_root, describe_error, is_url

if TYPE_CHECKING:
    import jax

PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
"""Distributions that let JAX use NVIDIA GPUs. JAX loads one whose version is that of jaxlib."""
EXTRAS = {
    "cuda": "jax-cuda13-plugin",
    "cuda12": "jax-cuda12-plugin",
    "tpu": "libtpu",
    "hub": "datasets",
    "report": "altair",
    "serve": "starlette",
    "notebooks": "nbclient",
    "s3": "s3fs",
    "gcs": "gcsfs",
    "zstd": "zstandard",
    "tensorboard": "tensorboardX",
    "wandb": "wandb",
    "trackio": "trackio",
    "lm-eval": "lm-eval",
}
"""By extra of this package a distribution that it installs."""
CUDA13_DRIVER = 580
"""The first driver for CUDA 13. Reference: CUDA Toolkit release notes, minimum driver versions."""


class Device(NamedTuple):
    """A device that JAX uses."""

    platform: str
    kind: str
    memory: int | None
    """Bytes that JAX may use; None where it does not know."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The machine and what is installed on it."""

    python: str
    system: str
    versions: Mapping[str, str]
    """By distribution its version; those that are not installed are missing."""
    libtpu_wanted: str | None = None
    """The version of libtpu that this JAX asks for, such as 0.0.42.*."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """JAX_PLATFORMS and CUDA_VISIBLE_DEVICES, if they are set."""
    gpus: tuple[NvidiaGPU, ...] = ()
    """The GPUs of the machine, whether JAX uses them or not."""
    tpu: bool = False
    """The machine has a TPU, whether JAX uses it or not."""
    devices: tuple[Device, ...] = ()
    """The devices of JAX."""
    errors: Mapping[Literal["import", "gpu", "tpu"], str] = field(default_factory=dict)
    """Error messages of JAX: when it was imported, and when it was asked for devices that the machine has."""
    caches: Mapping[str, tuple[str, int | None] | None] = field(default_factory=dict)
    """By name of a cache its folder and bytes, None of a URL; None where there is no folder for it."""
    timings: Mapping[str, str] = field(default_factory=dict)
    """Results with their units, by the thing that was timed."""


class Problem(NamedTuple):
    """Something wrong, and how to mend it."""

    what: str
    remedy: str


def problems(facts: Facts) -> Iterator[Problem]:
    """Yields everything that is wrong; the first entries are causes of the later ones."""
    jax, jaxlib = facts.versions.get("jax", ""), facts.versions.get("jaxlib", "")
    if minor(jax) != minor(jaxlib):
        yield Problem(f"jax {jax} and jaxlib {jaxlib or 'is missing'} do not agree", f'pip install "jaxlib=={jax}"')
    if "import" in facts.errors:
        yield Problem(
            f"JAX cannot be imported: {facts.errors['import']}", f'pip install --force-reinstall "jax=={jax}"'
        )
    used = {device.platform for device in facts.devices}
    for plugin in PLUGINS:
        if (version := facts.versions.get(plugin, jaxlib)) != jaxlib:
            extra = plugin.split("-")[1]
            yield Problem(
                f"{plugin} {version} is not for jaxlib {jaxlib}: JAX does not use it",
                f'pip install "jax[{extra}]=={jax}"',
            )
    if facts.gpus and "gpu" not in used:
        reason, remedy = unused_gpu(facts, facts.gpus[0])
        yield Problem(f"there is {facts.gpus[0].name}, and JAX does not use it, because {reason}", remedy)
    if facts.tpu and "tpu" not in used:
        reason, remedy = unused_tpu(facts)
        yield Problem(f"there is a TPU, and JAX does not use it, because {reason}", remedy)


def unused_gpu(facts: Facts, gpu: NvidiaGPU) -> Problem:
    """Returns why JAX does not use a GPU that is there, and the remedy."""
    jax, jaxlib = facts.versions.get("jax", ""), facts.versions.get("jaxlib", "")
    installed = [plugin for plugin in PLUGINS if plugin in facts.versions]
    driver = re.match(r"\d+", gpu.driver)
    cuda = "cuda13" if driver and int(driver[0]) >= CUDA13_DRIVER else "cuda12"
    install = f'pip install "jax[{cuda}]=={jax}"'
    if not installed:
        return Problem("JAX's plug-in for it is not installed", install)
    if all(facts.versions[plugin] != jaxlib for plugin in installed):
        return Problem(f"no plug-in is for jaxlib {jaxlib}", install)
    platforms = facts.environment.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & set(platforms.split(",")):
        return Problem(f"the environment variable JAX_PLATFORMS is {platforms}", "unset JAX_PLATFORMS")
    if (visible := facts.environment.get("CUDA_VISIBLE_DEVICES")) in ("", "-1"):
        return Problem(f"the environment variable CUDA_VISIBLE_DEVICES is {visible!r}", "unset CUDA_VISIBLE_DEVICES")
    if installed == ["jax-cuda13-plugin"] and driver and cuda == "cuda12":
        reason = f"its driver {gpu.driver} is older than CUDA 13, which needs {CUDA13_DRIVER}"
        return Problem(reason, f"pip uninstall jax-cuda13-plugin; {install}")
    return Problem(facts.errors.get("gpu", "JAX gives no reason"), install)


def unused_tpu(facts: Facts) -> Problem:
    """Returns why JAX does not use a TPU that is there, and the remedy."""
    install = f'pip install "jax[tpu]=={facts.versions.get("jax", "")}"'
    platforms, error = facts.environment.get("JAX_PLATFORMS", ""), facts.errors.get("tpu", "JAX gives no reason")
    if "libtpu" not in facts.versions:
        return Problem("libtpu is not installed", install)
    if platforms and "tpu" not in platforms.split(","):
        return Problem(f"the environment variable JAX_PLATFORMS is {platforms}", "unset JAX_PLATFORMS")
    if "in use" in error:
        return Problem(error, "end the other process that uses it")
    return Problem(error, install)


def notes(facts: Facts) -> Iterator[str]:
    """Yields what is worth knowing and not wrong."""
    wanted, version = facts.libtpu_wanted, facts.versions.get("libtpu")
    if wanted and version and not f"{version}.".startswith(f"{wanted.removesuffix('.*')}."):
        yield f"jax {facts.versions['jax']} asks for libtpu {wanted}, and {version} is installed: `plan` may differ or fail"
    for gpu in dict.fromkeys(facts.gpus):
        if gpu.compute_capability and float(gpu.compute_capability) < AMPERE:
            yield (
                f"{gpu.name} has compute capability {gpu.compute_capability}: no units for bfloat16 and no fused attention, both "
                f"from {AMPERE} on; train with --model.dtype float32"
            )


def report(facts: Facts) -> list[str]:
    """Returns the lines of the report; each problem ends with the command that mends it."""
    rows = [
        ("system", f"Python {facts.python}, {facts.system}"),
        *((name, version) for name, version in facts.versions.items()),
        *(("hardware", describe_gpu(gpu)) for gpu in facts.gpus),
        *[("hardware", "a TPU")] * facts.tpu,
        *(("JAX uses", describe_device(device)) for device in facts.devices),
        *describe_extras(facts.versions),
        *((name, describe_cache(cache)) for name, cache in facts.caches.items()),
        *facts.timings.items(),
    ]
    lines = [f"{name:<20} {value}" for name, value in rows]
    lines += [f"note: {note}" for note in notes(facts)]
    found = list(problems(facts))
    for problem in found:
        lines += [f"problem: {problem.what}", f"  mend it: {problem.remedy}"]
    return [*lines, f"{len(found)} problem{'s' * (len(found) > 1)}" if found else "nothing is wrong"]


def describe_gpu(gpu: NvidiaGPU) -> str:
    return gpu.name + (f", compute capability {gpu.compute_capability}, driver {gpu.driver}" if gpu.driver else "")


def describe_device(device: Device) -> str:
    memory = "" if device.memory is None else f", {device.memory / 2**30:.1f} GiB"
    return f"{device.platform} ({device.kind}{memory})"


def describe_extras(versions: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields which extras are installed, and which are not, with the command that adds one."""
    there = [name for name, distribution in EXTRAS.items() if distribution in versions]
    missing = [name for name in EXTRAS if name not in there]
    yield "extras", ", ".join(there) or "none"
    if missing:
        yield "not installed", f'{", ".join(missing)}: pip install "flaxformer-lite[NAME]"'


def describe_cache(cache: tuple[str, int | None] | None) -> str:
    if cache is None:
        return (
            "none: unset JAX_COMPILATION_CACHE_DIR, or set it to a folder, to keep compiled programs for the next start"
        )
    folder, size = cache
    return folder if size is None else f"{folder}, {size / 2**20:,.1f} MiB"


def minor(version: str) -> list[str]:
    """Returns major and minor of a version."""
    return version.split(".")[:2]


# The facts of this machine -------------------------------------------------------------------------------------------

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
