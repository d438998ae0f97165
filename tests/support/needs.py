"""Marks of tests that need more than the light install: `pip install -e .[test-all]`, or a newer JAX."""

import importlib.metadata
import importlib.util
import shutil

import jax
import pytest

from flaxformer_lite.tools.planning.topology import OLDEST_JAX as OLDEST_JAX_OF_PLANS

TEST_ALL = 'is not installed: pip install -e ".[test-all]"'

libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None or jax.__version_info__ < OLDEST_JAX_OF_PLANS,
    reason=f"libtpu {TEST_ALL}, on Linux and with JAX {'.'.join(map(str, OLDEST_JAX_OF_PLANS))}",
)
ctranslate2 = pytest.mark.skipif(importlib.util.find_spec("ctranslate2") is None, reason=f"CTranslate2 {TEST_ALL}")
altair = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("altair", "vl_convert")), reason=f"Altair {TEST_ALL}"
)
tensorboard = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("tensorboard", "tensorboardX")),
    reason=f"tensorboard or tensorboardX {TEST_ALL}",
)
wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason='wandb is not installed: pip install -e ".[wandb]"'
)
trackio = pytest.mark.skipif(
    importlib.util.find_spec("trackio") is None, reason='trackio is not installed: pip install -e ".[trackio]"'
)
torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
transformers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")),
    reason="PyTorch or transformers is not installed",
)
sentence_transformers = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"
)
onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(n) is None for n in ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")),
    reason="PyTorch, transformers, onnx, onnxscript or onnxruntime is not installed",
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
chromium = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason=f"Chromium is not on the PATH (apt-get install chromium), or playwright {TEST_ALL}",
)
starlette = pytest.mark.skipif(
    any(importlib.util.find_spec(n) is None for n in ("starlette", "uvicorn", "jinja2", "prometheus_client", "httpx2")),
    reason=f"Starlette with uvicorn, or httpx2, {TEST_ALL}",
)
openai = pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason=f"openai {TEST_ALL}")
datasets = pytest.mark.skipif(importlib.util.find_spec("datasets") is None, reason=f"datasets {TEST_ALL}")
orbax_v1 = pytest.mark.skipif(
    tuple(map(int, importlib.metadata.version("orbax-checkpoint").split(".")[:3])) < (0, 12, 8),
    reason="Orbax's interface v1 is tried from 0.12.8 on, and Orbax is older",
)
