"""Oracle: four existing systems in their own frameworks, whose outputs and gradients are in `.npz` fixtures.

Every fixture of a folder is discovered and every `out/`, `grad/`, `grad_in/` and `f64/` entry in it compared. The folder is
`tests/fixtures/oracles`, or what the environment variable FLAXFORMER_ORACLES says.
"""

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.paths import FIXTURES
from tests.support.quick import quick
from tests.support.seed_cases import MODULES, Case
from tests.support.seed_models import MODELS
from tests.support.seed_runs import RUNS

FOLDER = Path(os.environ.get("FLAXFORMER_ORACLES", FIXTURES / "oracles"))
CASES = sorted(FOLDER.glob("*.npz"))
KINDS = MODULES | MODELS | RUNS
QUICK = {
    *("002_bert_relu_defaults", "000_mha_self_padbias"),
    *("002_attention_cross_rank2_to2d", "002_attention_causal_fully_masked_rows"),
}
"""The whole model of the fast suite, and an attention of each system that has some. All smaller modules are quick."""
LARGE = re.compile(
    "000_(encoder|mha)|001_(adam|cached|decode|forward|label)|002_(attention|bert)|003_(default|forward|main|transformer)"
)
COMPARED: dict[str, int] = {}


@pytest.fixture(scope="module", autouse=True)
def report(pytestconfig: pytest.Config) -> Iterator[None]:
    """Says at the end how much was compared."""
    yield
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(f"\nseed systems: {len(COMPARED)} cases, {sum(COMPARED.values())} entries compared")


def tolerance(config: dict[str, Any], entry: str, precise: bool, expected: np.ndarray) -> np.ndarray:
    """The largest error allowed at each element.

    1e-10 in float64. In float32 1e-5; a millionth for rates and cross-entropies; a millionth, too, for those gradients, and sums
    weighed by a cotangent, that are above 10, where float32 itself has steps of 1e-6 and more.
    """
    if precise:
        return np.full(expected.shape, 1e-10)
    size = np.abs(np.nan_to_num(expected.astype(np.float64)))
    weighed = entry == "out/loss" and config.get("loss", "dot") == "dot" and "vocab_size" not in config
    if re.match(r"out/(lr_|.*loss)", entry) and not weighed:
        return 1e-6 * size
    return np.maximum(1e-5, 1e-6 * size) if weighed or entry.startswith("grad") else np.full(expected.shape, 1e-5)


def compute(config: dict[str, Any], arrays: dict[str, np.ndarray], dtype: Any) -> dict[str, np.ndarray]:
    """What this package says of the case, in the given type."""
    kind = (config["system"], config["kind"])
    assert kind in KINDS, f"no adapter for cases of kind {kind}"

    def under(prefix: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(prefix): x for name, x in arrays.items() if name.startswith(prefix)}

    with jax.enable_x64(dtype == np.float64):
        inputs = {name: jnp.asarray(x, dtype if x.dtype.kind == "f" else None) for name, x in under("in/").items()}
        found = KINDS[kind](Case(config, under("param/"), inputs, jnp.dtype(dtype)))
        return {name: np.asarray(x) for name, x in found.items()}


def assert_agree(
    config: dict[str, Any],
    entries: dict[str, np.ndarray],
    found: dict[str, np.ndarray],
    precise: bool,
    exact: Callable[[], dict[str, np.ndarray]] | None = None,
) -> None:
    """Every entry was computed, and is as expected. Raises: AssertionError naming the entry.

    exact: computes the same in float64. Two results in float32 may lie on both sides of it, each within the tolerance, as
    processors add in different orders; that theirs does is compared in the test in float64.
    """
    for entry, theirs in entries.items():
        assert entry in found, f"{entry} was not compared: the case's adapter does not compute it"
        ours = found[entry]
        assert ours.shape == theirs.shape, f"{entry}: shape {ours.shape}, not {theirs.shape}"
        assert np.array_equal(np.isnan(ours), np.isnan(theirs)), f"{entry}: not a number in other places"
        error = np.abs(np.nan_to_num(ours.astype(np.float64) - theirs))
        allowed = tolerance(config, entry, precise, theirs)
        excess = (error - allowed).max(initial=0)
        if excess > 0 and exact is not None:
            excess = (np.abs(np.nan_to_num(ours.astype(np.float64) - exact()[entry])) - allowed).max(initial=0)
        assert excess <= 0, f"{entry} ({'float64' if precise else 'float32'}): {excess} beyond the tolerance"


@pytest.fixture
def compiler_of_users() -> Iterator[None]:
    """Compiles with optimisations: their rounding is the one that users see."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def has_float64(file: Path) -> bool:
    """Returns whether the fixture has float64 values, against which no compiler's rounding shows."""
    with np.load(file) as archive:
        return any(name.startswith("f64/") for name in archive.files)


def is_quick(file: Path) -> bool:
    return file.stem in QUICK or not LARGE.match(file.stem)


def test_the_quick_cases_exist() -> None:
    assert {file.stem for file in CASES} >= QUICK or FOLDER != FIXTURES / "oracles"


@pytest.mark.parametrize("file", quick(CASES, is_quick), ids=lambda file: file.stem)
def test_every_entry_agrees(file: Path) -> None:
    """In float64 where the fixture has such values: with these to 1e-10, with the float32 ones to their digits. Else in float32."""
    compare(file, np.float64 if has_float64(file) else np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("file", [file for file in CASES if has_float64(file)], ids=lambda file: file.stem)
def test_every_entry_agrees_in_float32_too(file: Path, compiler_of_users: None) -> None:
    compare(file, np.float32)


def compare(file: Path, dtype: Any) -> None:
    """Compares every entry of a case with what this package computes in `dtype`."""
    with np.load(file) as archive:
        arrays = dict(archive)
    config = json.loads(str(arrays.pop("config")))
    entries = {name: x for name, x in arrays.items() if not name.startswith(("param/", "in/"))}
    single = {name: x for name, x in entries.items() if not name.startswith("f64/")}
    double = {name.removeprefix("f64/"): x for name, x in entries.items() if name.startswith("f64/")}
    found = compute(config, arrays, dtype)
    exact = None if dtype == np.float64 else functools.cache(lambda: compute(config, arrays, np.float64))
    assert_agree(config, single, found, precise=False, exact=exact)
    if dtype == np.float64:
        assert_agree(config, double, found, precise=True)
        COMPARED[file.stem] = len(entries) + len(config.get("errors", ()))
    else:
        COMPARED[file.stem] = len(single) + len(config.get("errors", ()))
    assert COMPARED[file.stem], "nothing was compared"


def test_there_are_cases_of_every_kind() -> None:
    """A folder that went missing would otherwise pass in silence."""
    found = set()
    for file in CASES:
        with np.load(file) as archive:
            config = json.loads(str(archive["config"]))
        found.add((config["system"], config["kind"]))
    assert CASES, f"no .npz files in {FOLDER}"
    if "FLAXFORMER_ORACLES" not in os.environ:
        assert found == KINDS.keys()
