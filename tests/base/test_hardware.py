"""Fake systems: their device files, what their `nvidia-smi` prints, and what JAX is told of them."""

import glob
import importlib.metadata
import importlib.util
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from flaxformer_lite.base import hardware
from flaxformer_lite.base.hardware import (
    NvidiaGPU,
    check_platforms,
    cpu_kind,
    has_tpu,
    nvidia_gpus,
    process_memory,
    skip_missing_tpu,
    usable_cores,
)


def test_gpus_are_what_nvidia_smi_lists(monkeypatch: pytest.MonkeyPatch):
    listed = "Tesla T4, 7.5, 550.54.15\nNVIDIA A100-SXM4-40GB, 8.0, 550.54.15\n"
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout=listed))
    assert nvidia_gpus() == [
        NvidiaGPU("Tesla T4", "7.5", "550.54.15"),
        NvidiaGPU("NVIDIA A100-SXM4-40GB", "8.0", "550.54.15"),
    ]


def test_without_nvidia_smi_the_device_files_tell(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/nvidia0")
    assert nvidia_gpus() == [NvidiaGPU("an NVIDIA GPU", "", "")]
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert nvidia_gpus() == []


def test_a_gpu_that_is_asked_for_and_not_there_is_said_in_words(monkeypatch: pytest.MonkeyPatch):
    """JAX says nothing at all then; of any other platform it names those that it has."""
    for device, platforms in ((True, "cuda"), (False, "cpu"), (False, "cuda,cpu")):
        monkeypatch.setattr(hardware, "has_nvidia_device", lambda device=device: device)
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        check_platforms()
    for platforms in ("cuda", "cuda,cuda"):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        with pytest.raises(ValueError, match=r"^JAX_PLATFORMS is cuda, and this machine shows no NVIDIA GPU: unset it"):
            check_platforms()


@pytest.mark.parametrize(
    ("vendor", "kind", "expected"),
    [
        ("0x1ae0", "0xff0000", True),
        ("0x1ae0", "0x120000", True),
        ("0x1ae0", "0x020000", False),
        ("0x8086", "0xff0000", False),
    ],
)
def test_a_tpu_on_the_bus_is_no_network_card(vendor: str, kind: str, expected: bool, tmp_path: Path, monkeypatch):
    (tmp_path / "vendor").write_text(f"{vendor}\n")
    (tmp_path / "class").write_text(f"{kind}\n")
    found = {"/sys/bus/pci/devices/*/vendor": [str(tmp_path / "vendor")]}
    monkeypatch.setattr(glob, "glob", lambda pattern: found.get(pattern, []))
    assert has_tpu() is expected


def test_a_device_file_of_a_tpu_is_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(glob, "glob", lambda pattern: ["/dev/vfio/0"] if "vfio" in pattern else [])
    assert has_tpu()


@pytest.mark.parametrize(
    ("environment", "libtpu", "plugins", "tpu", "gpu", "expected"),
    [
        ({}, True, [], False, False, "cpu"),
        ({}, False, [], False, False, None),
        ({}, True, ["cuda"], False, False, None),
        ({}, True, [], True, False, None),
        ({}, True, [], False, True, None),
        ({"JAX_PLATFORMS": "tpu,cpu"}, True, [], False, False, "tpu,cpu"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True, [], False, False, None),
    ],
)
def test_libtpu_is_left_out_only_where_there_is_nothing_for_it(
    environment: dict[str, str], libtpu, plugins, tpu, gpu, expected, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: libtpu or None)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: plugins)
    monkeypatch.setattr(hardware, "has_tpu", lambda: tpu)
    monkeypatch.setattr(hardware, "has_nvidia_device", lambda: gpu)
    skip_missing_tpu(environment)
    assert environment.get("JAX_PLATFORMS") == expected


def test_cpus_with_other_instructions_have_other_names(monkeypatch: pytest.MonkeyPatch):
    names = []
    for text in ("flags : fpu avx2\n", "flags : fpu avx2 avx512f\n", "Features : asimd\n"):
        monkeypatch.setattr(Path, "read_text", lambda self, text=text, **_: "model name : X\n" + text)
        names.append(cpu_kind())
    assert len(set(names)) == 3 and names[0] == cpu_kind_of(monkeypatch, "model name : Y\nflags : fpu avx2\n")


def cpu_kind_of(monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    monkeypatch.setattr(Path, "read_text", lambda self, **_: text)
    return cpu_kind()


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="only Linux tells the peak of a process's memory")
def test_the_peak_of_memory_is_at_least_what_is_used_now():
    peak, pages = process_memory("VmHWM"), int(Path("/proc/self/statm").read_text().split()[1])
    assert peak is not None and 0.9 * pages * os.sysconf("SC_PAGESIZE") <= peak < 2**40


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "300000\n"}, 8),
        ({"cpu.max": ""}, 8),
    ],
    ids=str,
)
def test_cores_are_those_of_the_container(
    files: dict[str, str], cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Oracle: by hand, of a process that may run on 8 cores; a quota of one and a half cores keeps two busy."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores
