"""Diagnosis of a machine: from a record of facts to lines, and to problems with the command that mends each."""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from flaxformer_lite.base import hardware
from flaxformer_lite.base.console import counted
from flaxformer_lite.base.hardware import NvidiaGPU
from flaxformer_lite.base.remote_files import describe_error
from flaxformer_lite.core.base.accelerators import AMPERE
from flaxformer_lite.engine.exports import MOST_CACHE_BYTES, bytes_in, cache
from flaxformer_lite.engine.rules import INSTALL

PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
"""Distributions that let JAX use NVIDIA GPUs. JAX loads one whose version is that of jaxlib."""
SHOWN_PACKAGES = (
    "flaxformer-lite",
    "jax",
    "jaxlib",
    *PLUGINS,
    "libtpu",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "sentencepiece",
    "tokenizers",
    "safetensors",
    "ctranslate2",
    "datasets",
    "altair",
    "starlette",
)
"""Distributions whose versions are shown, if they are installed."""
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
    environment: Mapping[str, str] = field(default_factory=dict)
    """JAX_PLATFORMS and CUDA_VISIBLE_DEVICES, if they are set."""
    gpus: tuple[NvidiaGPU, ...] = ()
    """The GPUs of the machine, whether JAX uses them or not."""
    bfloat16: bool = False
    """The processor has instructions for products of bfloat16."""
    tpu: bool = False
    """The machine has a TPU, whether JAX uses it or not."""
    devices: tuple[Device, ...] = ()
    """The devices of JAX."""
    exports: int = 0
    """Bytes of the exports for CTranslate2 in the user's cache."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Error messages of JAX, by import, devices, gpu and tpu: of its import, of its start, and of devices that the machine has."""


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
        version = facts.versions.get(plugin, jaxlib)
        if version != jaxlib:
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
    if "devices" in facts.errors and not facts.gpus and not facts.tpu:
        remedy = "unset JAX_PLATFORMS" if facts.environment.get("JAX_PLATFORMS") else "export JAX_PLATFORMS=cpu"
        yield Problem(f"JAX cannot start its devices: {facts.errors['devices']}", remedy)


def unused_gpu(facts: Facts, gpu: NvidiaGPU) -> Problem:
    """Returns why JAX does not use a GPU of this machine, and the remedy."""
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
    visible = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return Problem(f"the environment variable CUDA_VISIBLE_DEVICES is {visible!r}", "unset CUDA_VISIBLE_DEVICES")
    if installed == ["jax-cuda13-plugin"] and driver and cuda == "cuda12":
        reason = f"its driver {gpu.driver} is older than CUDA 13, which needs {CUDA13_DRIVER}"
        return Problem(reason, f"pip uninstall jax-cuda13-plugin; {install}")
    return Problem(unused_reason(facts, "gpu"), install)


def unused_reason(facts: Facts, kind: str) -> str:
    """Returns JAX's words on devices of a kind that it does not use, or on its start."""
    return facts.errors.get(kind, facts.errors.get("devices", "JAX gives no reason"))


def unused_tpu(facts: Facts) -> Problem:
    """Returns why JAX does not use a TPU of this machine, and the remedy."""
    install = f'pip install "jax[tpu]=={facts.versions.get("jax", "")}"'
    platforms = facts.environment.get("JAX_PLATFORMS", "")
    error = unused_reason(facts, "tpu")
    if "libtpu" not in facts.versions:
        return Problem("libtpu is not installed", install)
    if platforms and "tpu" not in platforms.split(","):
        return Problem(f"the environment variable JAX_PLATFORMS is {platforms}", "unset JAX_PLATFORMS")
    if "in use" in error:
        return Problem(error, "end the other process that uses it")
    return Problem(error, install)


def diagnosis(facts: Facts) -> list[str]:
    """Returns the lines of `doctor`; each problem ends with the command that mends it."""
    hardware = [describe_gpu(gpu) for gpu in facts.gpus]
    if facts.bfloat16:
        hardware.append("a CPU with products of bfloat16 (--model.matmul-dtype bfloat16)")
    if facts.tpu:
        hardware.append("a TPU")
    rows = [
        ("system", f"Python {facts.python}, {facts.system}"),
        *facts.versions.items(),
        *(("hardware", name) for name in hardware),
        *(("JAX uses", describe_device(device)) for device in facts.devices),
    ]
    if facts.exports:
        rows.append(
            ("exports", f"{facts.exports / 2**30:.1f} GiB in {cache()}, of {MOST_CACHE_BYTES / 2**30:.0f} at most")
        )
    lines = [f"{name:<20} {value}" for name, value in rows]
    for gpu in dict.fromkeys(facts.gpus):
        if gpu.compute_capability and float(gpu.compute_capability) < AMPERE:
            lines.append(
                f"note: {gpu.name} has compute capability {gpu.compute_capability}: no units for bfloat16 and no fused attention, "
                f"both from {AMPERE} on; train with --model.dtype float32"
            )
    if "ctranslate2" not in facts.versions and {device.platform for device in facts.devices} == {"cpu"}:
        lines.append(
            "note: translate, serve and pair are faster on a CPU by CTranslate2: two sentences take 0.4 CPU seconds in place of 4; "
            f"{INSTALL}"
        )
    wrong = list(problems(facts))
    for problem in wrong:
        lines += [f"problem: {problem.what}", f"  mend it: {problem.remedy}"]
    lines.append(counted(len(wrong), "problem") if wrong else "nothing is wrong")
    return lines


def describe_gpu(gpu: NvidiaGPU) -> str:
    return gpu.name + (f", compute capability {gpu.compute_capability}, driver {gpu.driver}" if gpu.driver else "")


def describe_device(device: Device) -> str:
    memory = "" if device.memory is None else f", {device.memory / 2**30:.1f} GiB"
    return f"{device.platform} ({device.kind}{memory})"


def minor(version: str) -> list[str]:
    """Returns major and minor of a version."""
    return version.split(".")[:2]


def collect() -> Facts:
    """Returns the facts of this machine; everything that fails on a broken installation is one of them."""
    gpus = tuple(hardware.nvidia_gpus())
    tpu = hardware.has_tpu()
    hiding = ("JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES")
    machine: dict[str, Any] = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "versions": hardware.installed_versions(SHOWN_PACKAGES),
        "environment": {name: os.environ[name] for name in hiding if name in os.environ},
        "gpus": gpus,
        "bfloat16": hardware.multiplies_bfloat16(),
        "tpu": tpu,
        "exports": bytes_in(cache()),
    }
    try:
        import jax
    except (ImportError, RuntimeError, AttributeError) as error:
        return Facts(**machine, errors={"import": describe_error(error)})
    try:
        hardware.check_platforms()
        devices = jax.devices()
    except (RuntimeError, ValueError) as error:  # of a platform whose devices are not there, or not free
        return Facts(**machine, errors={"devices": describe_error(error)})
    errors = {}
    for name, there in (("gpu", bool(gpus)), ("tpu", tpu)):
        if there and name not in {device.platform for device in devices}:
            try:
                jax.devices(name)
            except RuntimeError as error:
                errors[name] = describe_error(error)
    used = tuple(Device(d.platform, d.device_kind, (d.memory_stats() or {}).get("bytes_limit")) for d in devices)
    return Facts(**machine, devices=used, errors=errors)
