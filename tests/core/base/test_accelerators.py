from flaxformer_lite.core.base.accelerators import PEAK_FLOPS, peak_flops


def test_the_peak_of_a_kind_is_that_of_its_longest_name():
    """Kinds as JAX reports them; one that only begins like another is not known."""
    for kind, name in (
        ("TPU v5 lite", "v5e"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("Tesla V100-PCIE-16GB", "Tesla V100-PCIE"),
        ("NVIDIA L40S", "NVIDIA L40S"),
    ):
        assert peak_flops(kind) == PEAK_FLOPS[name]
    assert [peak_flops(kind) for kind in ("cpu", "TPU v4 lite", "NVIDIA A10G", "NVIDIA L40")] == [None] * 4
