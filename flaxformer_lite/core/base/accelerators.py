"""Facts that makers publish of their accelerators: names, speeds, abilities. Nothing here asks the machine."""

import re

TPUS = {
    "TPU v3": "v3",
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
    "TPU7x": "tpu7x",
}
"""Kinds of TPU by JAX's `device_kind`."""
PEAK_FLOPS = {
    "v3": 61.5e12,
    "v4": 275e12,
    "v5e": 197e12,
    "v5p": 459e12,
    "v6e": 918e12,
    "tpu7x": 1153.5e12,
    "Tesla T4": 65e12,
    "Tesla V100": 125e12,
    "Tesla V100-PCIE": 112e12,
    "NVIDIA A10": 125e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA H100": 989.4e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989.4e12,
    "NVIDIA GH200": 989.4e12,
    "NVIDIA B200": 2250e12,
}
"""Published operations per second of one device in bfloat16 without sparsity (T4 and V100: float16): of TPUs by their names in
`TPUS`, of GPUs by the first words of `device_kind`. A TPU v3 or TPU7x chip is two devices. Sources: Google's page of each TPU
version, NVIDIA's data sheets."""

AMPERE = 8.0
"""The first compute capability with units for bfloat16, and for which cuDNN has fused attention. A T4 has 7.5."""


def peak_flops(device_kind: str) -> float | None:
    """Returns the published operations per second of a device of that kind; None if it is not known, as for CPUs."""
    if device_kind.startswith("TPU"):  # "TPU v4 lite" is another chip than "TPU v4"
        return PEAK_FLOPS.get(TPUS.get(device_kind, ""))
    names = [name for name in PEAK_FLOPS if re.match(rf"{re.escape(name)}\b", device_kind)]
    return PEAK_FLOPS[max(names, key=len)] if names else None
