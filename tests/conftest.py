"""Eight virtual CPU devices for the mesh laws, and one cache of compiled programs for the whole session."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import tempfile
from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def compilation_cache() -> Iterator[None]:
    """Several tests train the same small model: each program is compiled once."""
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
        yield
