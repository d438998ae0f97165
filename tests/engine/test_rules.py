"""Which machine is one of a CPU, by what its system shows; and what is said of a library that is missing or old."""

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

from flaxformer_lite.engine import rules


@pytest.mark.parametrize(
    ("platforms", "plugins", "nvidia", "libtpu", "tpu", "expected"),
    [
        ("cpu", ["xla_cuda12"], True, False, False, True),
        ("cuda,cpu", [], False, False, False, False),
        ("", [], False, False, False, True),
        ("", [], True, False, False, True),  # a GPU, and no plug-in for it
        ("", ["xla_cuda13"], True, False, False, False),
        ("", ["xla_cuda13"], False, False, False, True),
        ("", ["xla_rocm60"], False, False, False, False),
        ("", [], False, True, True, False),
        ("", [], False, True, False, True),
        ("", [], False, False, True, True),
    ],
)
def test_jax_would_use_the_cpu(
    platforms: str,
    plugins: list[str],
    nvidia: bool,
    libtpu: bool,
    tpu: bool,
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    for name in plugins:
        (tmp_path / name).mkdir()
    spec = ModuleSpec("jax_plugins", None, is_package=True)
    assert spec.submodule_search_locations is not None
    spec.submodule_search_locations.append(str(tmp_path))
    found = {"jax_plugins": spec if plugins else None, "libtpu": ModuleSpec("libtpu", None) if libtpu else None}
    monkeypatch.setattr(importlib.util, "find_spec", found.__getitem__)
    monkeypatch.setattr(rules, "has_nvidia_device", lambda: nvidia)
    monkeypatch.setattr(rules, "has_tpu", lambda: tpu)
    monkeypatch.setitem(os.environ, "JAX_PLATFORMS", platforms)
    assert rules.uses_cpu() is expected


def test_a_missing_library_is_one_line_with_its_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.setattr(rules, "is_installed", lambda: False)
    with pytest.raises(ValueError, match=r'ctranslate2 cannot be imported \(it is not installed\): pip install "flax'):
        rules.library()


def test_an_old_library_is_one_line_with_its_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", SimpleNamespace(__version__="4.1.2"))
    with pytest.raises(ValueError, match=r"ctranslate2 is 4\.1\.2: it must be 4\.8 or newer: pip install"):
        rules.library()
