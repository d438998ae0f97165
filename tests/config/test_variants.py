"""Law: a variant that a user defines outside the package trains, is named honestly in config.json and is read from there."""

import dataclasses
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge

from flaxformer_lite.config import Config, differences, from_json, to_json
from flaxformer_lite.core.model import DotProduct, RMSNorm
from flaxformer_lite.core.optim.schedules import Constant, Linear
from tests.support.experiments import tiny_config

CONFIG = tiny_config()


@dataclass(frozen=True, kw_only=True)
class HalvedConstant(Constant):
    """A schedule of one's own; it inherits the kind of another one."""

    divisor: Annotated[int, Ge(1)] = 2
    names: tuple[str, ...] = ("a", "b")

    def build(self, *, total_steps: int, d_model: int) -> Any:
        return dataclasses.replace(Constant(peak_rate=self.peak_rate / self.divisor)).build(
            total_steps=total_steps, d_model=d_model
        )


@dataclass(frozen=True, kw_only=True)
class NamedAttention(DotProduct):
    kind: Literal["named"] = "named"  # type: ignore[assignment]


def outside() -> Config:
    optimizer = dataclasses.replace(CONFIG.optimizer, schedule=HalvedConstant(peak_rate=0.5, divisor=3))
    attention = NamedAttention(qk_norm=RMSNorm(), bias=False)
    return dataclasses.replace(
        CONFIG, optimizer=optimizer, model=dataclasses.replace(CONFIG.model, attention=attention)
    )


def test_json_names_the_class_and_gives_it_back():
    config = outside()
    tree = json.loads(to_json(config))
    assert tree["optimizer"]["schedule"]["kind"] == f"{__name__}:HalvedConstant"
    assert tree["model"]["attention"]["kind"] == f"{__name__}:NamedAttention"
    assert from_json(to_json(config)) == config
    assert differences(config, from_json(to_json(config))) == {}
    plain = dataclasses.replace(CONFIG.optimizer, schedule=Constant(peak_rate=0.5))
    assert "optimizer.schedule.kind" in differences(config, dataclasses.replace(config, optimizer=plain))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("optimizer.schedule.divisor", 0, "config.json: optimizer.schedule.divisor is 0: "),
        ("optimizer.schedule.divisor", 2.5, "config.json: optimizer.schedule.divisor is 2.5: "),
        ("optimizer.schedule.names", "a", "config.json: optimizer.schedule.names is 'a': "),
        ("optimizer.schedule.divsor", 2, "config.json: there is no setting optimizer.schedule.divsor"),
        ("optimizer.clip_norm", 0, "config.json: optimizer.clip_norm is 0: it must be above 0"),
        (
            "optimizer.algorithm.b1",
            1.5,
            "config.json: optimizer.algorithm.b1 is 1.5: it must be at least 0 and below 1",
        ),
        (
            "model.attention.qk_norm.kind",
            "rms",
            "model.attention.qk_norm.kind is 'rms': it must be one of 'layer_norm', ",
        ),
        ("model.norm.epsilon", "x", "config.json: model.norm.epsilon is 'x': it must be a number, at least 0"),
        ("train.steps", 0, "config.json: train.steps is 0: it must be at least 1; the default is 10000"),
        (
            "optimizer.schedule.kind",
            "nowhere.mine:Mine",
            "config.json: optimizer.schedule.kind is 'nowhere.mine:Mine': the class Mine is not part of flaxformer_lite, and no "
            "imported module nowhere.mine has it; add --import FILE.py, any file that has a class Mine, such as its source, or "
            "--import nowhere.mine; from Python, call load_config(FILE.py) or import the module before flaxformer_lite.load",
        ),
    ],
)
def test_mistakes_beside_it_are_answered_as_ever(path: str, value: object, words: str):
    tree = json.loads(to_json(outside()))
    *parents, leaf = path.split(".")
    node = tree
    for parent in parents:
        node = node[parent]
    node[leaf] = value
    with pytest.raises(ValueError) as caught:
        from_json(json.dumps(tree))
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_variant_that_cannot_be_named_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Local(Linear):
        pass

    schedule = dataclasses.replace(CONFIG.optimizer, schedule=Local(peak_rate=0.1))
    with pytest.raises(
        ValueError, match=r"^optimizer\.schedule is of the class .*Local, which config\.json cannot name: "
    ):
        to_json(dataclasses.replace(CONFIG, optimizer=schedule))


def test_a_variant_of_the_package_that_its_union_lacks_is_named_with_the_union(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(NamedAttention, "__module__", "flaxformer_lite.core.model.attention")
    with pytest.raises(ValueError) as caught:
        to_json(outside())
    assert str(caught.value) == (
        "model.attention is of the class flaxformer_lite.core.model.attention.NamedAttention, which is in no union of "
        "settings: add it to the one of DotProduct, SharedProjection, Disentangled"
    )


def test_a_class_where_there_is_no_choice_and_a_value_without_json_are_refused():
    @dataclass(frozen=True, kw_only=True)
    class Other(type(CONFIG.train)):  # type: ignore[misc]
        pass

    with pytest.raises(ValueError, match=r"^train is of the class .*Other: it must be of the class TrainConfig$"):
        to_json(dataclasses.replace(CONFIG, train=Other(text_metrics=("exact_match",))))
    broken = dataclasses.replace(CONFIG)
    object.__setattr__(broken, "weights", b"last")
    with pytest.raises(
        ValueError, match=r"^weights is b'last': it must be a number, a text, None, a variant or a tuple"
    ):
        to_json(broken)
    object.__setattr__(broken, "weights", float("inf"))
    with pytest.raises(ValueError, match=r"^weights is inf: it must be finite"):
        to_json(broken)
