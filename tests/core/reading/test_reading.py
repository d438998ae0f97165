"""Laws of what answers need without JAX. Oracles: the objectives themselves, and plain loops over the tokens of a text."""

import typing

import jax.numpy as jnp
import numpy as np
import pytest

from flaxformer_lite.config.serialize import as_tree
from flaxformer_lite.core.objectives import (
    AnswerSpans,
    BaseObjective,
    Classification,
    Objectives,
    Regression,
    SentenceEmbeddings,
    TokenLabels,
)
from flaxformer_lite.core.reading.heads import last_token, mean_token
from flaxformer_lite.core.reading.objectives import KINDS, continues, objective_of
from flaxformer_lite.core.text.characters import CharacterTokenizer
from tests.support.limits import assert_close
from tests.support.objectives import OBJECTIVES

SOME = [
    *(one for one in OBJECTIVES if one.kind in {*KINDS, "masked_lm"}),
    SentenceEmbeddings(prompts=(("query", "q: "), ("passage", "p: "), ("x", "y")), default_prompt="x"),
    Classification(classes=("a", "b"), labels="several", threshold=0.3),
    Regression(best="lowest", bounds=(0.0, 25.0), with_reference="{translation} {reference}"),
    TokenLabels(labels=("O", "B-A", "E-A", "S-B"), scheme="bioes"),
]


@pytest.mark.parametrize("objective", SOME, ids=lambda one: one.kind)
def test_the_part_says_what_the_objective_says(objective: BaseObjective):
    part = objective_of(as_tree(objective))
    for name in ("kind", "reads", "class_names", "rating", "label_threshold", "side_prompts"):
        assert getattr(part, name) == getattr(objective, name), name
    for prompt in (None, *part.side_prompts):
        assert part.text_before(prompt) == objective.text_before(prompt)
    with pytest.raises(ValueError) as of_part:
        part.text_before("none")
    with pytest.raises(ValueError) as of_whole:
        objective.text_before("none")
    assert str(of_part.value) == str(of_whole.value)


def test_every_kind_is_a_base_of_its_objective():
    kinds = {kind.kind: kind for kind in typing.get_args(Objectives)}
    assert all(issubclass(kinds[name], part) for name, part in KINDS.items())


def test_windows_and_labels_are_those_of_the_objective():
    spans, words = AnswerSpans(overlap=2, longest_answer=3), TokenLabels(labels=("O", "B-A", "I-A", "B-B"))
    part, tokenizer = objective_of(as_tree(spans)), CharacterTokenizer("abcdefgh")
    room = part.room(12, tokenizer)  # type: ignore[attr-defined]
    assert room == spans.room(12, tokenizer) and part.longest_answer == 3  # type: ignore[attr-defined]
    assert part.starts(3, 20, room) == spans.starts(3, 20, room)  # type: ignore[attr-defined]
    window = part.window([4, 5, 6], [*range(4, 12)], 2, room, tokenizer)  # type: ignore[attr-defined]
    assert window == spans.window([4, 5, 6], [*range(4, 12)], 2, room, tokenizer)
    labels = objective_of(as_tree(words))
    ids = np.array([0, 1, 2, 2, 3, 1])
    joins = continues(ids, labels.label_parts)  # type: ignore[attr-defined]
    assert joins.tolist() == continues(ids, words.label_parts).tolist() == [False, True, True, False, False]
    assert [labels.type_of(one) for one in words.labels] == ["", "A", "A", "B"]  # type: ignore[attr-defined]


def test_the_mathematics_of_heads_takes_arrays_of_both():
    hidden = np.random.default_rng(1).normal(size=(3, 4, 2)).astype(np.float32)
    mask = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0]], bool)
    for array in (np.asarray, jnp.asarray):
        means, last = mean_token(array(hidden), array(mask)), last_token(array(hidden), array(mask))
        assert_close(means, [hidden[0].mean(0), (hidden[1, 0] + hidden[1, 2]) / 2, np.zeros(2)])
        assert_close(last, [hidden[0, 3], hidden[1, 2], hidden[2, 0]])
        assert type(means) is type(last) is type(array(hidden))
