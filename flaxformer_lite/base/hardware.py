"""Accelerators of this machine by what its system shows, without JAX: what JAX should find."""

import contextlib
import csv
import glob
import hashlib
import importlib.util
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, MutableMapping
from pathlib import Path
from typing import NamedTuple

GOOGLE = "0x1ae0"
"""The vendor of a TPU on the PCI bus; disks and network cards of Google's machines have it too, but other classes."""
TPU_CLASSES = ("0xff", "0x12")
"""PCI classes of a TPU: none, and processing accelerator."""


class NvidiaGPU(NamedTuple):
    """A GPU as its driver describes it."""

    name: str
    compute_capability: str
    driver: str
    """The version of the driver; "" if `nvidia-smi` is missing."""


def nvidia_gpus() -> list[NvidiaGPU]:
    """Returns the NVIDIA GPUs by `nvidia-smi`; without it one unnamed GPU, if the system has a device for it."""
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        rows = csv.reader(answer.splitlines())
        return [NvidiaGPU(*map(str.strip, row)) for row in rows if len(row) == 3]
    except (OSError, subprocess.SubprocessError):
        return [NvidiaGPU("an NVIDIA GPU", "", "")] if has_nvidia_device() else []


def has_nvidia_device() -> bool:
    """Returns whether the system has a device file of an NVIDIA GPU; /dev/dxg is that of WSL 2."""
    return any(os.path.exists(f"/dev/{name}") for name in ("nvidia0", "nvidiactl", "dxg"))


def has_tpu() -> bool:
    """Returns whether the system has a device file of a TPU, or one on the PCI bus."""
    if glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"):
        return True
    vendors = (Path(path) for path in glob.glob("/sys/bus/pci/devices/*/vendor"))
    google = (path.parent for path in vendors if path.read_text().strip() == GOOGLE)
    return any(device.joinpath("class").read_text().startswith(TPU_CLASSES) for device in google)


def check_platforms() -> None:
    """Raises: ValueError if JAX_PLATFORMS has nothing but cuda and no GPU is shown to JAX, whose own error has no message."""
    if {*os.environ.get("JAX_PLATFORMS", "").split(",")} == {"cuda"} and not has_nvidia_device():
        raise ValueError("JAX_PLATFORMS is cuda, and this machine shows no NVIDIA GPU: unset it, or set it to cpu")


def usable_cores(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the CPU cores that this process may use: those it may run on, within the quota of its container.

    groups: where Linux shows the limits of control groups, of version 2 or 1.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for names in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with contextlib.suppress(OSError, ValueError):  # no such file; "max" and -1 stand for no quota
            quota, period = map(int, " ".join((groups / name).read_text() for name in names).split())
            return min(cores, max(1, math.ceil(quota / period))) if quota > 0 else cores
    return cores


def cpu_kind() -> str:
    """Returns a name that differs between CPUs with other instructions: the architecture, and a digest of its list of them."""
    machine = platform.machine() or "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return machine
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return f"{machine}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"


def multiplies_bfloat16() -> bool:
    """Returns whether the processor has instructions for products of bfloat16, where its system tells."""
    with contextlib.suppress(OSError):
        return bool(re.search(r" (avx512_bf16|amx_bf16)\b", Path("/proc/cpuinfo").read_text(encoding="utf-8")))
    return False


def usable_memory(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the bytes of memory that the processes of this machine may use, within the limit of their container.

    groups: as for `usable_cores`.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file; "max" stands for no limit
            memory = min(memory, int((groups / name).read_text()))
    return memory


def process_memory(field: str = "VmRSS") -> int | None:
    """Returns the bytes of memory that this process uses now, or the most so far (VmHWM); None where Linux does not say it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    match = re.search(rf"^{field}:\s*(\d+) kB", status, re.MULTILINE)
    return None if match is None else int(match[1]) * 1024


def skip_missing_tpu(environment: MutableMapping[str, str]) -> None:
    """Sets JAX_PLATFORMS to cpu where libtpu is installed and there is nothing for it, nor for another plug-in.

    Must be called before JAX is imported. libtpu would look for a TPU and write to stderr that it found none.
    """
    is_set = "JAX_PLATFORMS" in environment or any(name.startswith("TPU_") for name in environment)
    if is_set or importlib.util.find_spec("libtpu") is None:
        return
    from importlib.metadata import entry_points  # it costs a tenth of the start of a command

    if not (entry_points(group="jax_plugins") or has_tpu() or has_nvidia_device()):
        environment["JAX_PLATFORMS"] = "cpu"


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
