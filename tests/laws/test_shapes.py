"""Law: in tests, functions with arrays check the shapes that their annotations name."""

import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from flaxformer_lite.core.model.masks import before_mask, padding_mask
from tests.support.type_checks import ROOT, WITH_ARRAYS


def test_a_wrong_shape_or_type_is_an_error():
    with pytest.raises(TypeCheckError, match="is_token"):
        padding_mask(jnp.ones([3], bool))
    with pytest.raises(TypeCheckError, match="queries"):
        before_mask(jnp.ones([3]), jnp.arange(3))


def test_every_module_that_names_shapes_is_checked():
    """A module that spells the import in another way would not be."""
    named = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
        for path in (ROOT / "flaxformer_lite").rglob("*.py")
        if "jaxtyping" in path.read_text(encoding="utf-8")
    }
    assert named == set(WITH_ARRAYS)
