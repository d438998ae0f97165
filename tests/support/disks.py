"""File systems that are small, and can be made smaller or read-only: a tmpfs, so these tests need the rights to mount one."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, capture_output=True)


def small_disk(disk: Path, size: str) -> Iterator[Path]:
    """Yields a file system of a size, such as 64m, and unmounts it."""
    disk.mkdir()
    try:
        mount("-t", "tmpfs", "-o", f"size={size}", "none", disk)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a tmpfs is not permitted here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)
