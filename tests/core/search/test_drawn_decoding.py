"""Decode settings, models and lengths drawn by a seed. Oracle: `generate` of Hugging Face's library, recorded or beside ours.

The recorded draws need neither PyTorch nor transformers: tests/makers/make_drawn_decoding.py made them. Where both are installed,
other seeds are drawn: `FLAXFORMER_LITE_SEED=7 pytest -m slow tests/core/search/test_drawn_decoding.py`.

Known differences: a forced token wins over a suppressed one (with the library id 0 is chosen), and greedy search ends where the
rules leave no token (there it goes on with id 0); neither is compared. A beam that does not exist gives no answer (there one with a
score of -1e9). Of equal tokens at the edge of top-p the lowest ids are kept (there any of them).
"""

import functools
import json
import os
from typing import Any

import jax
import pytest

from tests.support import needs
from tests.support.drawn_decoding import (
    MODELS,
    RECORDED,
    Group,
    differences,
    draw_filter,
    draw_group,
    logits_of,
    our_answers,
    our_kept,
)

FIRST = 1000 + 100 * int(os.environ.get("FLAXFORMER_LITE_SEED", "0"))
"""The first seed of the draws that are not recorded."""


@functools.cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def check(groups: list[Group]) -> None:
    wrong = [line for group in groups for line in differences(group)]
    jax.clear_caches()
    assert not wrong, "\n".join(wrong)


def edge_of_kept(case: dict[str, Any], kept: list[int]) -> list[float]:
    """Returns the logits that are kept, in order: of equal ones any may be."""
    return sorted(logits_of(case)[kept].tolist())


def test_the_draws_meet_the_edges() -> None:
    """Law: each of these is compared at least twice, and nine rows in ten are."""
    groups = recorded()["groups"]
    rows = [answers for group in groups for answers in group["answers"]]
    assert {group["model"] for group in groups} == set(MODELS) and len(rows) >= 300
    assert sum(answers is not None for answers in rows) > 0.9 * len(rows)
    edges = {
        "one token": lambda o: o["max_new_tokens"] == 1,
        "an n-gram longer than the answer": lambda o: o["no_repeat_ngram_size"] > o["max_new_tokens"],
        "more tokens than the maximum": lambda o: o["min_new_tokens"] > o["max_new_tokens"],
        "nothing suppressed": lambda o: o.get("suppress_tokens") == [],
        "no end": lambda o: o["eos_token_id"] is None,
        "a forced end at once": lambda o: o["max_new_tokens"] == 1 and "forced_eos_token_id" in o,
        "beams": lambda o: o["num_beams"] > 1 and o["num_return_sequences"] == o["num_beams"],
    }
    for name, has in edges.items():
        assert sum(has(group["options"]) for group in groups) >= 2, name


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_recorded_draws_of_generate(model: str) -> None:
    """Six groups, each a program for eight rows."""
    check([group for group in recorded()["groups"] if group["model"] == model])


@pytest.mark.slow
def test_recorded_draws_of_filters() -> None:
    for case in recorded()["filters"]:
        assert edge_of_kept(case, our_kept(case)) == edge_of_kept(case, case["kept"]), f"seed {case['seed']}: {case}"


@pytest.mark.slow
def test_streams_of_drawn_groups() -> None:
    """Law: a stream has the tokens of the whole answer; at limits of one and two tokens, too."""
    groups = [group for group in recorded()["groups"] if group["options"]["num_beams"] == 1]
    for limit in (1, 2, 3):
        group = next(group for group in groups if group["options"]["max_new_tokens"] == limit)
        ((streamed, _),) = our_answers(group, streamed=True)[0]
        assert streamed == our_answers(group)[0][0][0], f"seed {group['seed']}"
    jax.clear_caches()


@pytest.mark.slow
@needs.transformers
@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
def test_draws_of_generate_beside_the_library() -> None:
    """Four groups of new seeds, each of another model."""
    from tests.makers.make_drawn_decoding import with_answers

    check([with_answers(draw_group(seed)) for seed in range(FIRST, FIRST + 4)])


@pytest.mark.slow
@needs.transformers
def test_draws_of_filters_beside_the_library() -> None:
    from tests.makers.make_drawn_decoding import with_kept

    for seed in range(FIRST, FIRST + 50):
        if (case := with_kept(draw_filter(seed))) is not None:
            assert edge_of_kept(case, our_kept(case)) == edge_of_kept(case, case["kept"]), f"seed {seed}: {case}"
