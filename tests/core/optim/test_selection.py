"""Laws of patterns: which layers they name, and which factor of the rate each parameter gets. Oracles: worked by hand."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import PyTree

from flaxformer_lite.core.base.tree_paths import leaves_by_path
from flaxformer_lite.core.optim.selection import (
    check_patterns,
    check_rates,
    merge_trees,
    scaled_updates,
    split,
    without_frozen_layers,
)

PARAMS = {
    "embedding": {"embedding": jnp.ones((5, 2))},
    "encoder": {"layers": {"up": {"kernel": jnp.ones((3, 2, 2))}}, "final_norm": {"scale": jnp.ones(2)}},
    "head": {"kernel": jnp.ones((2, 5))},
}


def split_paths(*patterns: str) -> list[str]:
    return sorted(leaves_by_path(split(PARAMS, patterns)[0]))


@pytest.mark.parametrize(
    ("pattern", "paths"),
    [
        ("head/*", ["head/kernel"]),
        ("*/kernel", ["encoder/layers/up/kernel", "head/kernel"]),
        ("encoder/layers/*/up/*", ["encoder/layers/up/kernel"]),
        ("encoder/layers/up/kernel", ["encoder/layers/up/kernel"]),
        ("encoder/layers/2/*", ["encoder/layers/up/kernel"]),
    ],
)
def test_a_pattern_names_stacked_arrays_and_their_layers(pattern: str, paths: list[str]):
    trained, frozen = split(PARAMS, (pattern,))
    assert sorted(leaves_by_path(trained)) == paths
    assert not set(leaves_by_path(trained)) & set(leaves_by_path(frozen))
    assert leaves_by_path(merge_trees(trained, frozen)).keys() == leaves_by_path(PARAMS).keys()


def test_exceptions_are_frozen():
    assert split_paths("*", "!head/*", "!*/scale") == [
        path for path in sorted(leaves_by_path(PARAMS)) if path != "head/kernel" and not path.endswith("/scale")
    ]
    found = leaves_by_path(without_frozen_layers(PARAMS, ("*", "!*/layers/1/*")))
    np.testing.assert_array_equal(found["encoder/layers/up/kernel"][:, 0, 0], [1, 0, 1])
    with pytest.raises(ValueError, match=r"train\.trainable has 'haed/kernel'"):
        split(PARAMS, ("*", "!haed/kernel"))


def test_all_parameters_train_by_default():
    assert split(PARAMS, ("*",)) == (PARAMS, {}) and merge_trees(PARAMS, {}) is PARAMS


def test_frozen_layers_of_an_array_get_zeros():
    trained, _ = split(PARAMS, ("encoder/layers/[12]/*", "head/*"))
    found = leaves_by_path(without_frozen_layers(trained, ("encoder/layers/[12]/*", "head/*")))
    np.testing.assert_array_equal(found["encoder/layers/up/kernel"][:, 0, 0], [0, 1, 1])
    np.testing.assert_array_equal(found["head/kernel"], 1)


def factors(rates: dict[str, float], layer_decay: float = 1, trainable: tuple[str, ...] = ("*",)) -> dict[str, PyTree]:
    transformation = scaled_updates(optax.identity(), rates, layer_decay, {"encoder": 3})
    trained, _ = split(PARAMS, trainable)
    updates, _ = transformation.update(trained, transformation.init(trained), trained)
    return {path: np.unique(np.asarray(x).reshape(len(x), -1), axis=1) for path, x in leaves_by_path(updates).items()}


def test_factors_of_all_patterns_are_multiplied():
    found = factors({"encoder/*": 0.5, "*/layers/1/*": 4.0, "*/kernel": 3.0})
    np.testing.assert_array_equal(found["encoder/layers/up/kernel"], [[1.5], [6], [1.5]])
    np.testing.assert_array_equal(found["encoder/final_norm/scale"], 0.5)
    np.testing.assert_array_equal(found["head/kernel"], 3)
    np.testing.assert_array_equal(found["embedding/embedding"], 1)


def test_layers_decay_from_the_head_down_to_the_embeddings():
    found = factors({}, layer_decay=0.5)
    np.testing.assert_array_equal(found["head/kernel"], 1)
    np.testing.assert_array_equal(found["encoder/final_norm/scale"], 1)
    np.testing.assert_array_equal(found["encoder/layers/up/kernel"], [[1 / 8], [1 / 4], [1 / 2]])
    np.testing.assert_array_equal(found["embedding/embedding"], 1 / 16)


@pytest.mark.parametrize("trainable", [("embedding/*",), ("embedding/*", "head/*"), ("*", "!encoder/layers/*")])
def test_rates_by_layer_do_not_depend_on_what_is_frozen(trainable: tuple[str, ...]):
    of_all, found = factors({}, layer_decay=0.5), factors({}, layer_decay=0.5, trainable=trainable)
    assert found and "encoder/layers/up/kernel" not in found
    for path, factor in found.items():
        np.testing.assert_array_equal(factor, of_all[path], err_msg=path)


@pytest.mark.parametrize(
    ("pattern", "trainable"),
    [
        ("encoder/*", ("head/*",)),
        ("*/layers/0/*", ("encoder/layers/[12]/*",)),  # other layers of the same array train
        ("head/*", ("*", "!head/kernel")),
    ],
)
def test_a_rate_of_frozen_parameters_alone_is_refused_as_that(pattern: str, trainable: tuple[str, ...]):
    with pytest.raises(ValueError, match=r"optimizer\.rates has .* frozen .*train\.trainable") as error:
        check_rates({pattern: 0.5}, PARAMS, trainable)
    assert repr(pattern) in str(error.value) and "no parameter" not in str(error.value)
    check_rates({pattern: 0.5}, PARAMS, ("*",))
    check_rates({pattern: 0.5}, PARAMS, (pattern,))


def test_a_pattern_that_matches_nothing_is_refused_with_the_nearest_path():
    with pytest.raises(ValueError, match=r"train\.trainable has 'haed/kernel', .* perhaps you meant head/kernel"):
        split(PARAMS, ("haed/kernel",))
    with pytest.raises(ValueError, match=r"optimizer\.rates has 'decoder/\*'"):
        check_rates({"decoder/*": 0.5}, PARAMS, ("head/*",))
    check_patterns("x", ("encoder/layers/0/*",), PARAMS)
